"""Messages that arrived from the owner and are not taken yet, kept in runs, so that each costs little.

The first run's lease is the channel's open one: consumers take from it by incrementing its index, up to its limit, as
from a lease in the owner's process. Messages taken in this way are counted when their number is needed.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from aiodq.engine.channel.lease.in_flight import message_of, messages_of
from aiodq.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aiodq.clock import Clock
    from aiodq.engine.channel.lease.message_lease import MessageLease
    from aiodq.engine.channel.lease.open_lease import OpenLease

__all__ = ["Arrived", "deaths"]


class _Run:
    """The remaining messages of one lease: indexes `next` to before `stop`; and until when each lives, if any dies."""

    __slots__ = ("bodies", "ends", "lease", "next", "stop")

    def __init__(self, lease: MessageLease, bodies: list[bytes], ends: Sequence[float] | None) -> None:
        self.lease = lease
        self.bodies = bodies
        self.ends = ends
        self.next = 0
        self.stop = len(bodies)


class Arrived:
    """The arrived messages of one channel, oldest first.

    Attributes:
        mortal: whether the time to live of any may end here.
    """

    __slots__ = ("_count", "_open", "_opened", "_runs", "_taken", "mortal")

    def __init__(self, opened: OpenLease) -> None:
        """Start without messages; `opened` is what the channel hands out from."""
        self._runs: deque[_Run] = deque()
        # Both as of the last look: how many are here, and how many were taken.
        self._count = 0
        self._taken = 0
        self._opened = opened
        self.mortal: bool = False
        # The first run, if its lease is open.
        self._open: _Run | None = None

    def __len__(self) -> int:
        """Return the number of messages."""
        run = self._open
        return self._count if run is None else self._count - (run.lease.next - run.next)

    @property
    def taken(self) -> int:
        """How many were taken so far."""
        self._look()
        return self._taken

    def _look(self) -> None:
        """Count what was taken of the open lease."""
        run = self._open
        if run is None:
            return
        taken = run.lease.next - run.next
        run.next += taken
        self._count -= taken
        self._taken += taken
        if run.next == run.stop:
            self._open, self._opened.bodies = None, []
            self._runs.popleft()

    def halt(self) -> None:
        """Let nothing be taken of the open lease before `take` is called."""
        self._look()
        if self._open is not None:
            lease, self._open = self._open.lease, None
            lease.limit = lease.room = lease.next

    def add(self, lease: MessageLease, bodies: list[bytes], ends: Sequence[float] | None) -> None:
        """Add all messages of a lease; `ends`: the monotonic time until which each lives, if any dies."""
        self._runs.append(_Run(lease, bodies, ends))
        self._count += len(bodies)
        self.mortal = self.mortal or ends is not None

    def take_dead(self, now: float) -> list[range]:
        """Drop the first messages as far as their time to live is over; return their numbers."""
        self.halt()
        numbers: list[range] = []
        while self._runs and (ends := (run := self._runs[0]).ends) is not None and ends[run.next] <= now:
            number = run.lease.number + run.next
            numbers.append(range(number, number + 1))
            run.next += 1
            self._count -= 1
            if run.next == run.stop:
                self._runs.popleft()
        self.mortal = any(run.ends is not None for run in self._runs)
        return numbers

    def take(self, store_ref: object, most: int) -> Message:
        """Take the first message, of which there must be one; up to `most` may be taken of the open lease then."""
        self._look()
        run = self._open = self._runs[0]
        lease, place = run.lease, run.next
        self._opened.lease, self._opened.bodies = lease, run.bodies
        # Of messages whose time to live may end, each is looked at before it is taken.
        lease.limit = lease.room = place + 1 if run.ends is not None else min(run.stop, place + most)
        lease.next = place + 1
        return message_of(Message, lease, place, run.bodies[place], store_ref)

    def take_run(self, most: int, store_ref: object) -> list[Message]:
        """Take the first messages, up to `most`."""
        self.halt()
        taken: list[Message] = []
        while self._runs and len(taken) < most:
            run = self._runs[0]
            first, stop = run.next, min(run.stop, run.next + most - len(taken))
            taken += messages_of(Message, run.lease, first, run.bodies[first:stop], store_ref)
            run.next = stop
            if stop == run.stop:
                self._runs.popleft()
        self._count -= len(taken)
        self._taken += len(taken)
        return taken

    def without(self, tags: Collection[str]) -> list[range]:
        """Return the numbers of messages that have none of these tags."""
        self._look()
        return [
            range(run.lease.number + place, run.lease.number + place + 1)
            for run in self._runs
            for place in range(run.next, run.stop)
            if run.lease.tags is None or run.lease.tags[place] not in tags
        ]

    def keep(self, free: Callable[[range], list[range]]) -> None:
        """Drop messages that this process no longer holds; `free` returns which of some numbers it does."""
        self.halt()
        runs, self._runs, self._count = self._runs, deque(), 0
        for run in runs:
            base = run.lease.number
            for part in free(range(base + run.next, base + run.stop)):
                kept = _Run(run.lease, run.bodies, run.ends)
                kept.next, kept.stop = part.start - base, part.stop - base
                self._runs.append(kept)
                self._count += len(part)

    def take_back(self, kept: int = 0) -> list[range]:
        """Drop all but the first `kept` messages; return the numbers of the dropped ones."""
        self.halt()
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


def deaths(clock: Clock, expiries: Sequence[int] | None) -> list[float] | None:
    """Return until when messages that arrive now live here, by the monotonic clock; None if none of them dies.

    The owner has just found each alive: if this process's wall clock says otherwise, it was set meanwhile, and the
    message is delivered. Given back, it would be redelivered, over and over.
    """
    if expiries is None:
        return None
    now, wall = clock.monotonic(), clock.now_ns()
    return [now + (each - wall) / 1_000_000_000 if each > wall else inf for each in expiries]
