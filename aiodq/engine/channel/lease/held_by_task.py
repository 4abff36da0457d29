"""The messages that each task has taken and not settled yet, which `task_done()` without a message refers to."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from aiodq.delivery.leases import ACKED, APART
from aiodq.engine.channel.lease.in_flight import InFlight
from aiodq.engine.loop.home_loop import task_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["HeldByTask", "TakenByTask", "is_settled"]

_BLOCK: Final = 16
_LARGEST: Final = 1000
"""Messages of a block that grows one by one, and of one that holds what was taken at once."""

T = TypeVar("T", bound=InFlight)


class TakenByTask(Generic[T]):
    """The messages one task has taken: the last, and older ones that were not settled when the next was taken.

    Attributes:
        last: the last message.
        whose: the task; None once it is gone.
    """

    __slots__ = ("_blocks", "_swept", "last", "whose")

    def __init__(self, first: T, whose: ref[asyncio.Task[Any]]) -> None:
        """Start with the first message."""
        self.last: T = first
        self.whose: ref[asyncio.Task[Any]] = whose
        # The older ones in order, in blocks, of which the last one grows; and the block to be swept next.
        self._blocks: list[list[T]] = [[]]
        self._swept = 0

    def add(self, message: T) -> None:
        """Add a message."""
        block = self._blocks[-1]
        block.append(self.last)
        self.last = message
        if len(block) >= _BLOCK:
            self._begin_block([])

    def add_many(self, messages: Sequence[T]) -> None:
        """Add messages, at least one."""
        self._blocks[-1].append(self.last)
        self.last = messages[-1]
        stop = len(messages) - 1
        for begin in range(0, stop, _LARGEST):
            self._begin_block(list(messages[begin : min(begin + _LARGEST, stop)]))

    def forget(self, settled: Sequence[T]) -> None:
        """Drop settled messages, if they are just those that were added at once last."""
        blocks = self._blocks
        # Lists of the same messages are compared quickly, by identity.
        if settled and self.last is settled[-1] and blocks[-1] == settled[:-1]:
            blocks[-1] = []

    def newest(self) -> T | None:
        """Return the unsettled message that was taken last, or None."""
        blocks = self._blocks
        while not self.last.held:
            while not blocks[-1]:
                if len(blocks) == 1:
                    return None
                del blocks[-1]
            self.last = blocks[-1].pop()
        return self.last

    def _begin_block(self, block: list[T]) -> None:
        # Two blocks are swept for each new one: at most half of the messages are settled, and no call takes long.
        self._blocks.append(block)
        self._sweep()
        self._sweep()

    def _sweep(self) -> None:
        """Drop the settled messages of the next block but the newest; the next call goes on with the one after it."""
        blocks = self._blocks
        at = self._swept if self._swept < len(blocks) - 1 else 0
        if at == len(blocks) - 1:
            return
        kept = list(filter(_may_be_held, blocks[at]))
        if at and len(blocks[at - 1]) + len(kept) <= _BLOCK:
            blocks[at - 1] += kept
            kept = []
        if kept:
            blocks[at] = kept
            at += 1
        else:
            del blocks[at]
        self._swept = at


class HeldByTask(Generic[T]):
    """The messages that tasks hold of one channel. A task that is gone is forgotten with what it took.

    Attributes:
        loop: the loop of the tasks.
    """

    __slots__ = ("_by_id", "loop")

    def __init__(self) -> None:
        """Start empty. Must be called on the loop of the tasks."""
        self.loop: asyncio.AbstractEventLoop = get_running_loop()
        # Not a WeakKeyDictionary: as it is looked up for each message, it would take a tenth of the time of a get.
        self._by_id: dict[int, TakenByTask[T]] = {}

    def __len__(self) -> int:
        """Return the number of known tasks."""
        return len(self._by_id)

    def note(self, message: T) -> TakenByTask[T] | None:
        """Note that the running task has taken a message; return all that it has taken, or None outside of any task."""
        task = task_of(self.loop)
        taken = self._by_id.get(id(task))
        if taken is None:
            if task is not None:  # otherwise a callback of the loop: it has to name the message that it settles
                taken = self._by_id[id(task)] = TakenByTask(message, ref(task, self._forget(id(task))))
        elif is_settled(taken.last):
            taken.last = message
        else:
            taken.add(message)
        return taken

    def note_many(self, messages: Sequence[T]) -> None:
        """Note that the running task has taken these messages, at least one."""
        task = task_of(self.loop)
        taken = self._by_id.get(id(task))
        if taken is None:
            taken, messages = self.note(messages[0]), messages[1:]
        if taken is not None and messages:
            taken.add_many(messages)

    def settled(self, messages: Sequence[T]) -> None:
        """Note that the running task has settled these messages: sooner or later, they are found to be settled anyway.

        Usually they are those that it has taken last. To look at each of them takes a tenth of the time of `get_many`.
        """
        taken = self._by_id.get(id(task_of(self.loop)))
        if taken is not None:
            taken.forget(messages)

    def _forget(self, identity: int) -> Callable[[object], object]:
        # INVARIANT: this runs before another task can have the same id.
        by_id = self._by_id
        return lambda _: by_id.pop(identity, None)

    def last(self) -> T | None:
        """Return the unsettled message that the running task took last, or None."""
        taken = self._by_id.get(id(task_of(self.loop)))
        return None if taken is None else taken.newest()


def is_settled(message: InFlight) -> bool:
    """Return whether its consumer has settled a message."""
    run: MessageLease = message._run  # noqa: SLF001 - its consumer's half
    return run.marks[message._index] >= ACKED  # noqa: SLF001 - as above


def _may_be_held(message: InFlight) -> bool:
    """Return whether a message has been neither settled nor taken away."""
    run: MessageLease = message._run  # noqa: SLF001 - as above
    mark = run.marks[message._index]  # noqa: SLF001 - as above
    # A message with an entry of its own has to be looked up; other marks are cheap to read.
    return message.held if mark == APART else mark < ACKED
