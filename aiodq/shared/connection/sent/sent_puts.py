"""The puts of one process into a topic, until an owner has answered."""

from __future__ import annotations

from collections import deque
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import AiodqError, MessageSizeError
from aiodq.shared.encoding.remote_errors import error_of, is_lost
from aiodq.storage.log.producer_table import MOST_PENDING
from aiodq.wire.packets import Done, Fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.wire.packets import Packet

__all__ = ["PutsByTopic", "SentPut", "TopicPuts", "WithdrawnError", "check_size"]

_LARGEST: Final = (64 << 20) - 4096
"""Most bytes of the frames of a put: an owner takes no larger packet."""

_MANY: Final = 1000
"""Topics of which at least the puts are remembered though all are answered."""

_WITHDRAWN: Final = "all callers of this put were cancelled"


class WithdrawnError(AiodqError):
    """A put was not stored, because all its callers were cancelled."""


class SentPut(NamedTuple):
    """A put on its way into a topic.

    Attributes:
        frames: see `aiodq.wire`.
        messages: the number of messages.
        each: whether every message is a put of its own.
        on_done: called once: with the offsets when they are as durable as the owner makes them, or with the error.
        given_up: returns whether it need not be stored: all its callers were cancelled, or are refused by a shutdown.
        cancelled: returns whether all its callers were cancelled.
    """

    frames: bytes
    messages: int
    each: bool
    on_done: Callable[[range | Exception], None]
    given_up: Callable[[], bool]
    cancelled: Callable[[], bool]


def check_size(put: SentPut) -> None:
    """Raise if the messages do not fit into a packet.

    Raises:
        MessageSizeError: they do not.
    """
    if len(put.frames) > _LARGEST:
        size = len(put.frames)
        raise MessageSizeError(f"a put of {size} bytes; a store that is shared takes {_LARGEST} at a time")


class PutsByTopic(dict[str, "TopicPuts"]):
    """The puts of one process, by topic."""

    def __init__(self, send: Callable[[str, int, SentPut], None]) -> None:
        """Start without any; `send` sends one by its topic and sequence, if there is an owner."""
        super().__init__()
        self._send = send
        self._sequence = 0
        self._most = _MANY

    def of(self, topic: str) -> TopicPuts:
        """Return the puts into a topic."""
        puts = self.get(topic)
        if puts is None:
            if len(self) >= self._most:
                self._forget_idle()
            puts = self[topic] = TopicPuts(partial(self._send, topic), self._sequence)
        return puts

    def _forget_idle(self) -> None:
        """Forget topics without puts in progress, as over time there may be any number of them."""
        for topic, puts in list(self.items()):
            if not (puts.pending or puts.queued):
                # INVARIANT: no sequence is used twice in a topic: its log would take the later put for the earlier one.
                self._sequence = max(self._sequence, puts.sequence)
                del self[topic]
        self._most = max(_MANY, 2 * len(self))


class TopicPuts:
    """The puts into a topic.

    Attributes:
        sequence: that of the last put sent.
        reached: that of the last put that an owner may have received.
        pending: the unacknowledged puts, by sequence and so in order.
        queued: the puts after them, which are not sent yet.
    """

    def __init__(self, send: Callable[[int, SentPut], None], sequence: int = 0) -> None:
        """Start without any after this sequence; `send` sends one by its sequence, if there is an owner."""
        self.sequence: int = sequence
        self.reached: int = 0
        self.pending: dict[int, SentPut] = {}
        self.queued: deque[SentPut] = deque()
        self._send = send
        self._given_up: set[int] = set()

    def put(self, put: SentPut) -> None:
        """Send a put, or queue it after others."""
        if self.queued or len(self.pending) >= MOST_PENDING:
            self.queued.append(put)
            return
        self.sequence += 1
        sequence = self.sequence
        self.pending[sequence] = put
        try:
            self._send(sequence, put)
        except Exception:
            # Its caller is told of that. No owner has it, and none is to get it.
            self.pending.pop(sequence, None)
            raise

    def _send_more(self) -> None:
        """Send what was queued and is not cancelled, as far as the window allows."""
        ended = list[SentPut]()
        while self.queued and len(self.pending) < MOST_PENDING:
            put = self.queued.popleft()
            if put.cancelled():
                ended.append(put)
                continue
            self.sequence += 1
            self.pending[self.sequence] = put
            self._send(self.sequence, put)
        for put in ended:
            put.on_done(WithdrawnError(_WITHDRAWN))

    def answered(self, sequence: int, answer: Packet) -> None:
        """Handle an owner's answer."""
        found: range | Exception
        if isinstance(answer, Done) and answer.placed is not None:
            first, number = answer.placed
            found = range(first, first + number)
        elif isinstance(answer, Fail) and not is_lost(answer):
            found = WithdrawnError(_WITHDRAWN) if sequence in self._given_up else error_of(answer)
        else:
            return  # It is sent again over the next connection.
        put = self.pending.pop(sequence, None)
        if put is not None:
            self._given_up.discard(sequence)
            if self.queued:
                self._send_more()
            put.on_done(found)

    def repeat(self) -> None:
        """Send everything unacknowledged to another owner, except puts whose callers were all cancelled.

        Those that were given up for another reason are to be given up again.
        """
        # INVARIANT: who waits for a put is told that it was refused only by an owner: another may have stored it.
        gone = [sequence for sequence in sorted(self._given_up) if self.pending[sequence].cancelled()]
        ended = [self.pending.pop(sequence) for sequence in gone]
        self._given_up.clear()
        for sequence, put in list(self.pending.items()):
            self._send(sequence, put)
        # INVARIANT: after those, or it would overtake them.
        self._send_more()
        for put in ended:
            put.on_done(WithdrawnError(_WITHDRAWN))

    def give_up(self, *, queued: bool = True) -> list[int]:
        """Drop queued puts that are given up; return the sequences of those already sent, each once.

        With `queued` false, those that are queued are left: cancelled ones are dropped when it is their turn.
        """
        ended = [put for put in self.queued if put.given_up()] if queued else []
        if ended:
            self.queued = deque(put for put in self.queued if not put.given_up())
        sequences = [each for each, put in self.pending.items() if each not in self._given_up and put.given_up()]
        self._given_up.update(sequences)
        for put in ended:
            put.on_done(WithdrawnError(_WITHDRAWN))
        return sequences

    def fail_behind(self, error: Exception) -> None:
        """Tell an error to puts that were never sent."""
        queued = list(self.queued)
        self.queued.clear()
        for put in queued:
            put.on_done(copy(error))

    def fail(self, error: Exception, undecided: Exception) -> None:
        """Tell an error to all puts: to those that an owner may have stored, that this is `undecided`."""
        ended = [(put, undecided if each <= self.reached else error) for each, put in self.pending.items()]
        ended += [(put, error) for put in self.queued]
        self.pending.clear()
        self.queued.clear()
        self._given_up.clear()
        for put, said in ended:
            put.on_done(copy(said))
