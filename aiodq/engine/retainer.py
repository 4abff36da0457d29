"""Giving up messages: consumed segments, purges, and what an overflowing backlog drops."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.persister import Job
from aiodq.engine.settle import settle
from aiodq.errors import StoreFailedError
from aiodq.names import is_ephemeral
from aiodq.stats import HeldSegment
from aiodq.storage.holds import held_by, read_holds
from aiodq.storage.retention import Verdict, expired

if TYPE_CHECKING:
    from aiodq.engine.host import IoLoopHost
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.outlet import Outlet
    from aiodq.engine.persister import MetadataPersister
    from aiodq.engine.reader import PrefetchingReader
    from aiodq.storage.segments import Segment

__all__ = ["Retainer"]

_LOOK_EVERY: Final = 1.0
"""Seconds between two looks for holds where they keep all that might go."""

_OVERFLOW: Final = "the backlog is at its bound, and overflow is 'drop_oldest'"

_FRESH: Final = 0.5
"""Seconds from the beginning of a look in which something may be deleted by it. Who makes a hold waits for longer."""


class Retainer:
    """One per topic; called on the loop, by the ioLoop, while nothing else changes the list of segments.

    Attributes:
        pinned: what is stored from this offset on must stay: the file of transactions still speaks of it. Or None.
        holds: by name, the first offset that one keeps, when something was last to be deleted.
    """

    def __init__(
        self, ioloop: IoLoop, reader: PrefetchingReader, persister: MetadataPersister, host: IoLoopHost
    ) -> None:
        """Give up what is in this topic."""
        self._ioloop = ioloop
        self._reader = reader
        self._persister = persister
        self._host = host
        self.pinned: int | None = None
        self.holds: dict[str, int] = {}
        self._looking = self._known = False
        self._look_at = self._known_until = 0.0

    def holding(self) -> list[Outlet[Any]]:
        """Return the channels for which messages are kept: not those that end with the store, unless the topic does."""
        outlets = list(self._ioloop.outlets.values())
        return outlets if is_ephemeral(self._ioloop.name) else [one for one in outlets if not is_ephemeral(one.name)]

    def retain(self) -> None:
        """Delete the segments that may go, once it is known what holds say."""
        ioloop = self._ioloop
        # INVARIANT: nothing goes by options that are not on disk.
        if ioloop.stopped or self._looking or not ioloop.choosing.acting:
            return
        now = self._host.clock.monotonic()
        if self._known and now <= self._known_until:
            self._known = False
            self._retain(self._going(self.holds))
        elif self._going({}) is not None and now >= self._look_at:
            self._looking, self._known = True, False
            self._persister.submit(Job(self._look, self._looked))

    def _look(self) -> tuple[float, dict[str, int]]:
        """Return when it looked, and by hold the first offset of this topic that it keeps. Blocking."""
        began = self._host.clock.monotonic()
        holds = read_holds(self._host.fs_of(self._ioloop.name), os.path.dirname(self._ioloop.real_log().directory))
        found = {name: hold.first(self._ioloop.name) for name, hold in holds.items()}
        return began, {name: first for name, first in found.items() if first is not None}

    def _looked(self, found: Any, error: Exception | None) -> None:  # noqa: ANN401 - a job's result
        """Go on as soon as the log's segments are at rest; what cannot be known now is looked for again."""
        self._looking = False
        self._look_at = self._host.clock.monotonic() + _LOOK_EVERY
        if error is not None:
            self.ignore(None, error)
            return
        began, self.holds = found
        if self._going(self.holds) is not None:
            self._known, self._known_until = True, began + _FRESH
            self._look_at = 0.0
            self._ioloop.retain_soon()

    def _going(self, holds: dict[str, int]) -> Verdict | None:
        """Return which segments may go now, or None for none."""
        ioloop, policy = self._ioloop, self._ioloop.options.retention

        def consumed(segment: Segment) -> bool:
            return self._consumed(segment) and all(segment.end <= first for first in holds.values())

        verdict = expired(ioloop.log.segments, policy, self._host.clock.now_ns(), consumed)
        segments = self._unpinned(verdict.segments)
        if not segments or (verdict.forced_to and segments != verdict.segments):
            return None
        return Verdict(segments, verdict.forced_to)

    def _retain(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        if verdict.forced_to:
            for outlet in self._ioloop.outlets.values():
                missed = 0 if outlet.state is None else outlet.state.miss(0, verdict.forced_to)
                if missed:
                    self._missed(outlet, missed)
        self._drop(verdict.segments, verdict.forced_to)

    def _missed(self, outlet: Outlet[Any], count: int) -> None:
        """A channel loses messages that are deleted before it had them."""
        self._ioloop.settled(outlet)
        self._ioloop.reporter.dropped(self._ioloop.name, outlet.name, count, "deleted by retention before it had them")
        outlet.wake()

    def pin(self, offset: int) -> None:
        """Keep what is stored from this offset on, until `unpin`."""
        self.pinned = offset if self.pinned is None else min(self.pinned, offset)

    def unpin(self) -> None:
        """Let go what was kept so."""
        self.pinned = None
        self._ioloop.retain_soon()

    def _unpinned(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        pinned = self.pinned
        return segments if pinned is None else tuple(segment for segment in segments if segment.end <= pinned)

    def held(self) -> tuple[HeldSegment, ...]:
        """Return the full segments that channels hold back, with the names of those channels."""
        found: list[HeldSegment] = []
        for segment in self._ioloop.log.segments[:-1]:
            base, end = segment.base, segment.end
            by = [one.name for one in self.holding() if one.state and not one.state.settled_all(base, end)]
            by += [held_by(name) for name, first in self.holds.items() if end > first]
            if by:
                found.append(HeldSegment(base, end, segment.size, tuple(sorted(by))))
        return tuple(found)

    def _consumed(self, segment: Segment) -> bool:
        outlets = self.holding()
        return bool(outlets) and all(
            outlet.state is not None and outlet.state.settled_all(segment.base, segment.end) for outlet in outlets
        )

    def _drop(self, segments: tuple[Segment, ...], begin: int) -> None:
        """Take segments out of sight and delete their files, once what allows it is durable."""
        log = self._ioloop.real_log()
        log.hide(segments)
        for outlet in self._ioloop.outlets.values():
            state = outlet.state
            missed = 0 if state is None else sum(state.miss(segment.base, segment.end) for segment in segments)
            if missed:
                self._missed(outlet, missed)

        def work() -> None:
            log.give_up(begin)
            self._reader.forget([segment.path for segment in segments])
            log.remove(segments)

        self._persister.submit(Job(work, self.ignore, acks_first=True))

    def ignore(self, _: object, error: Exception | None) -> None:
        """Note the end of work nobody waits for. A file that is still there is found again at the next open."""
        if isinstance(error, StoreFailedError):
            self._host.fail(error)

    async def purge(self) -> int:
        """Drop everything accepted so far; return how many messages that were.

        Cancellation: it is done all the same.
        """
        if not self._ioloop.making.exists:
            return 0
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def finish(end: int, error: Exception | None) -> None:
            settle(done, None if error is not None else self._purged(end), error)

        self._ioloop.submit(self._purge_files, finish)
        return await done

    def _purge_files(self) -> int:
        """Make durable that everything written is given up; return the offset behind it. Blocking."""
        log = self._ioloop.real_log()
        log.roll()
        log.give_up(log.end)
        return log.end

    def _purged(self, end: int) -> int:
        """Let everything below `end` go; return how many messages that were."""
        ioloop = self._ioloop
        outlets = list(ioloop.outlets.values())
        counts = [outlet.state.purge() for outlet in outlets if outlet.state is not None]
        for outlet in outlets:
            outlet.reset()
            self._persister.settled(outlet)
        ioloop.tail.clear()
        gone = tuple(segment for segment in ioloop.log.segments if segment.end <= end and segment.sealed)
        if gone:
            self._drop(gone, 0)
        ioloop.intake.freed()
        return max(counts) if counts else sum(segment.records for segment in gone)

    def drop_oldest(self, count: int) -> int:
        """Settle up to `count` of the oldest ready messages of the channels with the deepest backlog."""
        if not self._ioloop.choosing.acting:
            self._ioloop.choosing.used()
            return 0  # who waits for room is told as soon as the options are on disk
        outlets = self.holding()
        if not outlets:
            return self._skip(count)
        deepest = max((outlet.state.depth for outlet in outlets if outlet.state is not None), default=0)
        dropped = 0
        for outlet in outlets:
            state = outlet.state
            if state is None or state.depth < deepest:
                continue
            before, oldest = state.depth, state.floor
            state.drop(count)
            gone = before - state.depth
            dropped = max(dropped, gone)
            if gone:
                self._ioloop.reporter.dropped(self._ioloop.name, outlet.name, gone, _OVERFLOW, oldest)
            self._ioloop.settled(outlet)
            outlet.wake()
        return dropped

    def _skip(self, count: int) -> int:
        """Give up the oldest messages of a topic without channels."""
        log = self._ioloop.real_log()
        before = log.begin
        log.skip_to(min(before + count, self._ioloop.visible))
        gone = self._unpinned(tuple(segment for segment in log.segments[:-1] if segment.end <= log.begin))
        if gone:
            self._drop(gone, log.begin)
        if log.begin > before:
            self._ioloop.reporter.dropped(self._ioloop.name, None, log.begin - before, _OVERFLOW, before)
        return log.begin - before
