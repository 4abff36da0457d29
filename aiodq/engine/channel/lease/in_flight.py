"""A message in flight: its place in a lease, and the fast path of an ack."""

from __future__ import annotations

from asyncio import _get_running_loop
from itertools import repeat, starmap
from threading import get_ident
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.delivery.leases import ACKED, HELD, indexes
from aiodq.engine.loop.home_loop import BY_THREAD
from aiodq.format.many import COMPILED
from aiodq.storage.read.stored_message import StoredMessage

if TYPE_CHECKING:
    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["InFlight", "message_of", "messages_of", "neighbours"]

M = TypeVar("M", bound="InFlight")

_THREAD: Final = get_ident
_LOOP: Final = _get_running_loop


class InFlight(StoredMessage):
    """A message that was handed out: the part of `Message` that runs for every message, and is compiled."""

    # As in `StoredMessage`: code that makes a message sets `_store_ref` as well, as `message_of` does.
    __slots__ = ("_handling", "_store_ref")

    _store_ref: object
    _handling: object

    def __getstate__(self) -> object:
        """As in `StoredMessage`; a message that holds a store open is not copied."""
        return None, {"_run": self._run, "_index": self._index, "body": self.body, "_store_ref": None}

    def ack_nowait(self) -> None:
        """Settle the message; durable with the next commit.

        Raises:
            AlreadySettledError: settled before.
            NotInFlightError: taken away meanwhile.
            QueueShutDown: the store is closed, or the channel or its topic was deleted.
        """
        run: MessageLease = self._run
        index, home = self._index, run.home
        # INVARIANT: with the mark HELD, only the loop has to be checked: all else that forbids an ack changes the mark.
        is_running = home.is_running  # calling a local variable is faster than calling an attribute
        if run.marks[index] == HELD and (
            _THREAD() == home.thread and is_running() if BY_THREAD else _LOOP() is home.loop
        ):
            run.marks[index] = ACKED
            self._store_ref = None
            if run.clean and run.channel_engine is not None:
                run.channel_engine.acked(run)
        else:
            self._ack_otherwise()

    @property
    def held(self) -> bool:
        """Whether its consumer can still settle it: it is neither settled, nor timed out, nor taken away."""
        run: MessageLease = self._run
        offset, number, engine = run.first + self._index, run.number + self._index, run.channel_engine
        return run.marks[self._index] < ACKED and engine is not None and engine.holds(offset, number)

    def _ack_otherwise(self) -> None:
        """Ack a message that is not simply held here, or raise why it cannot be acked. `Message` implements it."""
        # No abstract method: a compiled class that has one cannot have a subclass that is not compiled.
        raise NotImplementedError


def message_of(kind: type[M], run: MessageLease, index: int, body: bytes, store_ref: object = None) -> M:
    """Return the message at an index of a lease; `store_ref` keeps its store open."""
    message = kind()
    message._run = run  # noqa: SLF001 - as `StoredMessage` says
    message._index = index  # noqa: SLF001 - as above
    message.body = body
    message._store_ref = store_ref  # noqa: SLF001 - as above
    return message


def messages_of(kind: type[M], run: MessageLease, first: int, bodies: list[bytes], store_ref: object) -> list[M]:
    """Return the messages with these bodies, from an index of a lease on."""
    # All are made by one call, and their places are numbers that exist: `message_of` for each takes twice as long.
    messages: list[M] = list(starmap(kind, repeat((), len(bodies))))
    if COMPILED:
        _fill(messages, run, first, bodies, store_ref)
        return messages
    places = indexes(first, first + len(bodies))
    message: M
    for message, message.body, message._index in zip(messages, bodies, places, strict=True):  # noqa: SLF001
        message._run, message._store_ref = run, store_ref  # noqa: SLF001
    return messages


def _fill(messages: list[M], run: MessageLease, first: int, bodies: list[bytes], store_ref: object) -> None:
    """Do as `messages_of` with messages just made, with a step for each: the quickest if it is compiled."""
    for at in range(len(bodies)):
        message: InFlight = messages[at]
        message._run = run  # noqa: SLF001 - as in `message_of`
        message._index = first + at  # noqa: SLF001 - as above
        message.body = bodies[at]
        message._store_ref = store_ref  # noqa: SLF001 - as above


def neighbours(messages: list[InFlight], at: int) -> int:
    """Return the end of the run, from an index of a list on, of messages that are also neighbours in their lease."""
    lease, first = messages[at]._run, messages[at]._index  # noqa: SLF001
    count = min(len(lease.marks) - first, len(messages) - at)
    index = first
    for message in messages[at : at + count]:
        if message._run is not lease or message._index != index:  # noqa: SLF001
            break
        index += 1
    return at + index - first
