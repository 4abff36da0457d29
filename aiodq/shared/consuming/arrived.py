"""Messages that arrived from the owner and are not taken yet, kept in runs, so that each costs little."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiodq.engine.channel.lease.in_flight import message_of, messages_of
from aiodq.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["Arrived"]


class _Run:
    """The remaining messages of one lease: indexes `next` to before `stop`."""

    __slots__ = ("bodies", "lease", "next", "stop")

    def __init__(self, lease: MessageLease, bodies: Sequence[bytes]) -> None:
        self.lease = lease
        self.bodies = bodies
        self.next = 0
        self.stop = len(bodies)


class Arrived:
    """The arrived messages of one channel, oldest first."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        """Start without messages."""
        self._runs: deque[_Run] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def add(self, lease: MessageLease, bodies: Sequence[bytes]) -> None:
        """Add all messages of a lease."""
        self._runs.append(_Run(lease, bodies))
        self._count += len(bodies)

    def take(self, store_ref: object) -> Message:
        """Take the first message; there must be one."""
        run = self._runs[0]
        place = run.next
        run.next = place + 1
        self._count -= 1
        if run.next == run.stop:
            self._runs.popleft()
        return message_of(Message, run.lease, place, run.bodies[place], store_ref)

    def take_run(self, most: int, store_ref: object) -> list[Message]:
        """Take the first messages, up to `most`."""
        taken: list[Message] = []
        while self._runs and len(taken) < most:
            run = self._runs[0]
            first, stop = run.next, min(run.stop, run.next + most - len(taken))
            taken += messages_of(Message, run.lease, first, run.bodies[first:stop], store_ref)
            run.next = stop
            if stop == run.stop:
                self._runs.popleft()
        self._count -= len(taken)
        return taken

    def keep(self, free: Callable[[range], list[range]]) -> None:
        """Drop messages that this process no longer holds; `free` returns which of some numbers it does."""
        runs, self._runs, self._count = self._runs, deque(), 0
        for run in runs:
            base = run.lease.number
            for part in free(range(base + run.next, base + run.stop)):
                kept = _Run(run.lease, run.bodies)
                kept.next, kept.stop = part.start - base, part.stop - base
                self._runs.append(kept)
                self._count += len(part)

    def take_back(self, kept: int = 0) -> list[range]:
        """Drop all but the first `kept` messages; return the numbers of the dropped ones."""
        numbers: list[range] = []
        while self._count > kept:
            run = self._runs[-1]
            first = max(run.stop - (self._count - kept), run.next)
            numbers.append(range(run.lease.number + first, run.lease.number + run.stop))
            self._count -= run.stop - first
            run.stop = first
            if run.next == run.stop:
                self._runs.pop()
        return numbers[::-1]
