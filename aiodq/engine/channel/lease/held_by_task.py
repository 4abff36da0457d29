"""The messages that each task has taken and not settled yet, which `task_done()` without a message refers to."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from aiodq.delivery.leases import ACKED
from aiodq.engine.channel.lease.in_flight import InFlight
from aiodq.engine.loop.home_loop import task_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["HeldByTask", "TakenByTask", "is_settled"]

_SLACK: Final = 16
"""The settled messages that may stand in a task's list before they are removed."""


T = TypeVar("T", bound=InFlight)


class TakenByTask(Generic[T]):
    """The messages one task has taken: the last, and older ones that were not settled when the next was taken.

    Attributes:
        last: the last message.
        older: others that may not be settled.
        whose: the task; None once it is gone.
    """

    __slots__ = ("_most", "last", "older", "whose")

    def __init__(self, first: T, whose: ref[asyncio.Task[Any]]) -> None:
        """Start with the first message."""
        self.last: T = first
        self.whose: ref[asyncio.Task[Any]] = whose
        self.older: list[T] = []
        self._most = _SLACK

    def add(self, message: T) -> None:
        """Add a message; now and then drop those that were settled in another order than they were taken."""
        self.older.append(self.last)
        self.last = message
        if len(self.older) > self._most:
            self._drop()

    def add_many(self, messages: Sequence[T]) -> None:
        """Add messages, at least one. Those taken before have mostly been settled by now."""
        self.older.append(self.last)
        self._drop()
        self.older += messages[:-1]
        self.last = messages[-1]

    def _drop(self) -> None:
        # A mark is cheap to read; whether a message without one was taken away meanwhile has to be looked up.
        kept: list[T] = []
        for each in self.older:
            lease: MessageLease = each._run  # noqa: SLF001 - as in `is_settled`
            if lease.marks[each._index] < ACKED:  # noqa: SLF001 - as above
                kept.append(each)
        self.older = kept
        if len(self.older) > self._most:
            self.older = [each for each in self.older if each.held]
            self._most = 2 * len(self.older) + _SLACK
        self._most = min(self._most, 2 * len(self.older) + _SLACK)


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
            if task is not None:  # else a callback of the loop: it has to name the message it settles
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

    def _forget(self, identity: int) -> Callable[[object], object]:
        # INVARIANT: this runs before another task can have the same id.
        by_id = self._by_id
        return lambda _: by_id.pop(identity, None)

    def last(self) -> T | None:
        """Return the unsettled message that the running task took last, or None."""
        taken = self._by_id.get(id(task_of(self.loop)))
        if taken is None:
            return None
        while taken.older and not taken.last.held:
            taken.last = taken.older.pop()
        return taken.last if taken.last.held else None


def is_settled(message: InFlight) -> bool:
    """Return whether its consumer has settled a message."""
    run: MessageLease = message._run  # noqa: SLF001 - its consumer's half
    return run.marks[message._index] >= ACKED  # noqa: SLF001 - as above
