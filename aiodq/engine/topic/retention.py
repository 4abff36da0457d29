"""Retention: deletes consumed or expired segments, purges, and drops messages of an overflowing backlog."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache, partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.delivery.range_set import RangeSet
from aiodq.engine.channel.acks.ack_persister import Job
from aiodq.engine.loop.futures import settle
from aiodq.engine.topic.consumption import Consumption
from aiodq.engine.topic.no_log import NoLog
from aiodq.engine.topic.segment_times import SegmentTimes
from aiodq.engine.topic.whole_topic import WholeTopic
from aiodq.errors import StorageError, StoreFailedError
from aiodq.names import is_ephemeral
from aiodq.options import seconds
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.io.quarantine import quarantine, remedy
from aiodq.storage.log.retention import Ages, Verdict, expired, gone_ns, outgrown_ns
from aiodq.storage.state.holds import read_holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.topic.creation import Creation
    from aiodq.engine.topic.effective_options import EffectiveOptions
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["RetainedTopic", "TopicRetention"]

_LOOK_EVERY: Final = 1.0
"""Seconds between two reads of the holds while they keep everything that might be deleted."""

_OVERFLOW: Final = "the backlog is at its bound, and overflow is 'drop_oldest'"

_IDLE: Final = 10.0
"""Seconds without a put after which the last segment, if consumed, is deleted like the others: short for those who want
the disk space back or the messages gone, and long enough that a topic in use fills its segments."""

_SOON: Final = 0.05
"""Seconds between two looks at least, however often the log is synced: a thousand idle topics look, too."""

_WATCH: Final = 30
"""Sync intervals between two looks at what only time makes deletable: a wall clock may be set at any moment."""

_PURGED_AT_ONCE: Final = 50
"""Channels purged in one turn of the loop: about a millisecond."""

_FRESH: Final = 0.5
"""Seconds from the reading of the holds in which segments may be deleted by them. Making a hold takes longer."""


class RetainedTopic(WholeTopic, Protocol):
    """What retention needs of a topic."""

    creation: Creation
    effective_options: EffectiveOptions


class TopicRetention:
    """The retention of one topic; called by the ioLoop, on the loop, while nothing else changes the list of segments.

    Attributes:
        pinned: the offset from which on everything must stay, as the transaction log still refers to it, or None.
        written_at: when something was last put, in monotonic time.
        holds: the first offset that each hold keeps, by name, as last read.
        undeleted: the paths of segments that are no longer needed, and may still exist.
    """

    __slots__ = (
        "_asked_to", "_bytes_wanted", "_damaged", "_engine", "_host", "_keepers", "_kept", "_kept_until", "_known",
        "_known_until", "_look_at", "_looking", "_newest", "_opened_at", "_persister", "_reader", "_rolling", "_times",
        "_to_ask", "holds", "pinned", "undeleted", "written_at",
    )  # fmt: skip

    def __init__(
        self, engine: RetainedTopic, reader: PrefetchingReader, persister: AckPersister, host: TopicEngineHost
    ) -> None:
        """Delete from this topic."""
        self._engine = engine
        self._reader = reader
        self._persister = persister
        self._host = host
        self.pinned: int | None = None
        self.holds: dict[str, int] = {}
        self.undeleted: dict[str, None] = {}
        self._keepers = 0
        self._kept: list[Job] = []
        self._looking = self._known = self._rolling = False
        self._look_at = self._known_until = self._kept_until = 0.0
        self.written_at: float = host.clock.monotonic()
        self._opened_at = self.written_at
        self._times = SegmentTimes(host.clock, engine.log.segments)
        self._newest = -1
        self._asked_to = self._to_ask = 0
        self._bytes_wanted = False
        self._damaged: dict[tuple[str, int], Damage] = {}
        reader.damaged = self.met_damage

    def is_held(self) -> bool:
        """Return whether `holding` returns any channel, without checking all: naming a channel calls this."""
        names = self._engine.channel_engines
        return bool(names) and (is_ephemeral(self._engine.name) or not all(map(is_ephemeral, names)))

    def holding(self) -> list[ChannelEngine[Any]]:
        """Return the channels whose messages are kept: not the ephemeral ones, unless the topic is ephemeral too."""
        channel_engines = list(self._engine.channel_engines.values())
        return (
            channel_engines
            if is_ephemeral(self._engine.name)
            else [one for one in channel_engines if not is_ephemeral(one.name)]
        )

    # --- when to look

    def wrote(self) -> bool:
        """Note a put; return whether a segment was begun since the last one, so that others may be deletable."""
        self.written_at = self._host.clock.monotonic()
        segments, before = self._engine.log.segments, self._newest
        self._newest = segments[-1].base
        if self._newest == before:
            return False
        self._times.begun(segments)
        return True

    def adopted(self, before: int) -> None:
        """Note that the log has segments from offset `before` on that another process has written."""
        for segment in reversed(self._engine.log.segments[:-1]):
            if segment.base < before:
                self._times.closed(segment, self._written_ns())
                break
            self._times.adopted(segment)

    def _written_ns(self) -> int | None:
        """Return when something was last put in this run, as `SegmentTimes` counts; None if nothing was."""
        return None if self.written_at == self._opened_at else self._times.at(round(self.written_at * 1e9))

    def _newest_ns(self, segment: Segment) -> int:
        return self._times.newest_ns(segment, self._written_ns())

    @property
    def begun(self) -> bool:
        """Whether a segment was begun since the last put."""
        return self._engine.log.segments[-1].base != self._newest

    def passed(self, channel_engine: ChannelCore) -> bool:
        """Return whether a channel has settled everything in the oldest segment, for the first time."""
        segments = self._engine.log.segments
        if len(segments) <= 1 or channel_engine.state is None:  # the last one is never deleted
            return False
        end = segments[0].end
        if channel_engine.state.floor < end or channel_engine.passed == end:
            return False
        channel_engine.passed = end
        return True

    def begin_round(self) -> None:
        """Check each segment again, a few at each look, as something has changed."""
        self._to_ask = len(self._engine.log.segments)

    def look_for_bytes(self) -> None:
        """Look at once for segments to delete after one that is still needed, as a put waits for their bytes."""
        if not self._bytes_wanted:
            self._bytes_wanted = True
            self._engine.retain_soon()

    def next_look(self) -> float | None:
        """Return in how many seconds segments may become deletable by time alone, or None if none will."""
        engine, soon = self._engine, max(seconds(self._engine.options.sync_interval), _SOON)
        segments, policy = engine.log.segments, engine.options.retention
        if self._kept and not self._keepers:
            return soon
        if not engine.effective_options.acting or not segments or (len(segments) == 1 and segments[0].empty):
            return None
        if self._looking or self._known or self._rolling:
            return soon
        consumption = cache(self._consumption)
        if self._going({}, consumption) is not None or self._to_ask > 0:
            return soon
        times: list[float] = []
        last = segments[-1]
        if policy.consumed == "delete" and not last.empty and consumption().covers(last):
            times.append(self.written_at + _IDLE - self._host.clock.monotonic())
        now_ns = self._times.now_ns()
        first_ns = self._newest_ns(segments[0]) if len(segments) > 1 else None
        bounds = (self._outgrown_ns(last), None if first_ns is None else gone_ns(first_ns, policy))
        times += [(bound - now_ns) / 1e9 for bound in bounds if bound is not None]
        return min(max(min(times), soon), _WATCH * soon) if times else None

    # --- what may go

    def retain(self) -> None:
        """Delete the segments that may go, once the holds are known."""
        engine = self._engine
        # INVARIANT: nothing is deleted by options that are not on disk.
        if engine.stopped or self._looking or not engine.effective_options.acting or isinstance(engine.log, NoLog):
            return
        if self._bytes_wanted:
            self._bytes_wanted = False
            self.begin_round()
        now = self._host.clock.monotonic()
        if now >= self._kept_until:
            self._delete_kept()
        if is_ephemeral(engine.name):
            # No other process can hold what is only in memory, and its bound is enforced at once.
            self._delete()
        elif self._known and now <= self._known_until:
            self._known = False
            self._delete()
        elif now >= self._look_at and self._finds_any({}):
            self._looking, self._known = True, False
            self._persister.submit(Job(self._look, self._looked))

    def _delete(self) -> None:
        """Delete what the known holds allow."""
        self._retain(self._going(self.holds, cache(self._consumption)))
        if self._may_close(self.holds, self._consumption):
            self._close_last()

    def _finds_any(self, holds: dict[str, int]) -> bool:
        """Return whether a segment may be deleted, or sealed for that."""
        consumption = cache(self._consumption)
        return self._going(holds, consumption) is not None or self._may_close(holds, consumption)

    def _look(self) -> tuple[float, dict[str, int]]:
        """Return when the holds were read, and the first offset of this topic that each keeps. Blocking."""
        began = self._host.clock.monotonic()
        holds = read_holds(self._host.fs_of(self._engine.name), os.path.dirname(self._engine.real_log().directory))
        found = {name: hold.first(self._engine.name) for name, hold in holds.items()}
        return began, {name: first for name, first in found.items() if first is not None}

    def _looked(self, found: Any, error: Exception | None) -> None:  # noqa: ANN401 - a job's result
        """Go on as soon as the log's segments are at rest; holds that could not be read are read again later."""
        self._looking = False
        self._look_at = self._host.clock.monotonic() + _LOOK_EVERY
        if error is not None:
            self.ignore(None, error)
            return
        began, self.holds = found
        if self._finds_any(self.holds):
            self._known, self._known_until = True, began + _FRESH
            self._look_at = 0.0
            self._engine.retain_soon()

    def _going(self, holds: dict[str, int], consumption: Callable[[], Consumption]) -> Verdict | None:
        """Return which segments may be deleted now, or None for none. Of one alone, no channel is asked."""
        engine, policy = self._engine, self._engine.options.retention
        held_from = min(holds.values(), default=sys.maxsize)

        def consumed(segment: Segment) -> bool:
            return segment.end <= held_from and consumption().covers(segment)

        listed, ages = engine.log.listed, Ages(self._times.now_ns(), self._newest_ns)

        def judged(asked: range) -> Verdict:
            segments = [listed.segments[number] for number in asked]
            return expired(listed, policy, ages, consumed, segments)

        between = consumption().between(listed) if len(listed.segments) > 1 else range(0)
        asked = self._next_of(between, consumption().at_a_time) if between else between
        verdict = judged(asked)
        if verdict.forced_to and asked != between:
            # INVARIANT: no channel loses a message as long as deleting consumed segments is enough.
            verdict = judged(between)
        segments = self._unpinned(verdict.segments)
        if segments and not (verdict.forced_to and segments != verdict.segments):
            return Verdict(segments, verdict.forced_to)
        self._to_ask = max(min(self._to_ask, len(between)) - len(asked), 0)
        self._asked_to = listed.segments[asked[-1]].end if asked else 0
        if self._to_ask and engine.put_buffer.lacks_bytes:
            engine.retain_soon()
        return None

    def _consumption(self) -> Consumption:
        """Return how far the channels are whose messages are kept: nowhere if one of them has no state yet."""
        states = [channel_engine.state for channel_engine in self.holding()]
        known = [state for state in states if state is not None]
        return Consumption(known if len(known) == len(states) else ())

    def _next_of(self, between: range, most: int) -> range:
        """Return the segments to be checked in this look: up to a limit, and others the next time."""
        at = self._engine.log.listed.at(self._asked_to)
        first = at if at in between else between.start
        return range(first, min(first + most, between.stop))

    def _may_close(self, holds: dict[str, int], consumption: Callable[[], Consumption]) -> bool:
        """Return whether to seal the segment being written, so that it can be deleted: it is consumed, or old."""
        engine, policy, last = self._engine, self._engine.options.retention, self._engine.log.segments[-1]
        if self._rolling or last.empty or engine.visible < last.end:
            return False
        if self.pinned is not None and last.end > self.pinned:
            return False
        outgrown = self._outgrown_ns(last)
        if outgrown is not None and self._times.now_ns() >= outgrown:
            return True
        idle = self._host.clock.monotonic() >= self.written_at + _IDLE
        held = any(last.end > first for first in holds.values())
        return policy.consumed == "delete" and idle and not held and consumption().covers(last)

    def _outgrown_ns(self, last: Segment) -> int | None:
        return None if last.empty else outgrown_ns(self._times.oldest_ns(last), self._engine.options.retention)

    def _close_last(self) -> None:
        """Seal the segment being written; if allowed, it is deleted as soon as the next one is there."""
        self._rolling = True
        last = self._engine.log.segments[-1]

        def finish(_: object, error: Exception | None) -> None:
            self._rolling = False
            if error is None:
                self._times.closed(last, self._written_ns())
                self._look_at = 0.0
                self._engine.retain_soon()
            else:
                # On a full disk, for example: it is retried after as long a time.
                self.written_at = self._host.clock.monotonic()

        # CRASH: 4. The log goes on at the same offset: the next segment, though empty, is durable before this one is
        # deleted, and records by its name how far there were messages.
        self._engine.submit(self._engine.real_log().roll, finish, after=0)

    def _retain(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        if verdict.forced_to:
            for channel_engine in self._engine.channel_engines.values():
                missed = 0 if channel_engine.state is None else channel_engine.state.miss(0, verdict.forced_to)
                if missed:
                    self._missed(channel_engine, missed)
        self._drop(verdict.segments, verdict.forced_to)

    def _missed(self, channel_engine: ChannelEngine[Any], count: int) -> None:
        """Report messages that were deleted before a channel had them."""
        if channel_engine.state is not None:
            channel_engine.source.requeue_cache.discard_settled(
                channel_engine.state.floor, channel_engine.state.settled
            )
        self._engine.settled(channel_engine)
        self._engine.reporter.dropped(
            self._engine.name, channel_engine.name, count, "deleted by retention before it had them"
        )
        channel_engine.wake()

    def pin(self, offset: int) -> None:
        """Keep everything from this offset on, until `unpin`."""
        self.pinned = offset if self.pinned is None else min(self.pinned, offset)

    def unpin(self) -> None:
        """End what `pin` began."""
        self.pinned = None
        self._engine.retain_soon()

    def _unpinned(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        pinned = self.pinned
        return segments if pinned is None else tuple(segment for segment in segments if segment.end <= pinned)

    def _miss(self, segments: tuple[Segment, ...]) -> None:
        """Have all channels settle their undelivered messages of segments that are given up."""
        offsets = RangeSet()
        for segment in segments:
            offsets.add(segment.base, segment.end)
        for channel_engine in self._engine.channel_engines.values():
            state = channel_engine.state
            missed = 0 if state is None else sum(state.miss(start, stop) for start, stop in offsets)
            if missed:
                self._missed(channel_engine, missed)

    def _drop(self, segments: tuple[Segment, ...], begin: int) -> None:
        """Hide segments and delete their files, once what allows it is durable."""
        log = self._engine.real_log()
        log.hide(segments)
        self._miss(segments)
        paths = {segment.path for segment in segments}
        damaged = [self._damaged.pop(key) for key in list(self._damaged) if key[0] in paths]

        left = list(segments)

        def work() -> None:
            if self._keepers:
                return
            # INVARIANT: what could not be read is in quarantine before its file goes, even if that failed before.
            for damage in damaged:
                _quarantine(log, damage)
            log.description.give_up(begin)
            self._delete_files(log, left)

        def finish(_: object, error: Exception | None) -> None:
            for path in paths - {segment.path for segment in left}:
                self.undeleted.pop(path, None)
            self.ignore(None, error)
            if left and not self._engine.stopped:
                self._kept.append(job)
                self._kept_until = self._host.clock.monotonic() + _LOOK_EVERY
                self._engine.schedule_tick()

        job = Job(work, finish, acks_first=True, patient=True)
        self.undeleted.update(dict.fromkeys(paths))
        self._persister.submit(job)
        self._engine.put_buffer.freed()

    def _delete_files(self, log: TopicLog, left: list[Segment]) -> None:
        """Delete the files of hidden segments, oldest first, and remove them from the list. Blocking.

        INVARIANT: what a hold asks for stays, even if it was made after these were found deletable: on a full disk, or
        beside a backup, that may have been long ago. Its reader sees them as long as their files exist.
        """
        while left:
            began, holds = self._look()
            kept_from = max(min(holds.values(), default=sys.maxsize), log.meta.begin)
            going = [segment for segment in left if segment.end <= kept_from]
            if not going:
                return
            log.description.note_deleted(going, log.segments[0].base)
            self._reader.forget([segment.path for segment in going])
            for segment in going:
                log.remove([segment])
                del left[0]
                if self._host.clock.monotonic() > began + _FRESH:
                    break  # very many take so long that others may have made holds

    def keep_files(self) -> None:
        """Keep the files of segments that are no longer needed, until `release_files`."""
        self._keepers += 1

    def release_files(self) -> None:
        """End what `keep_files` began; the last such call deletes the files."""
        self._keepers -= 1
        self._delete_kept()

    def _delete_kept(self) -> None:
        if not self._keepers:
            kept, self._kept = self._kept, []
            for job in kept:
                self._persister.submit(job)

    def met_damage(self, found: Iterable[Damage]) -> None:
        """Quarantine bytes that a read found damaged: their segment is deleted once the rest of it is acked."""
        log = self._engine.real_log()
        known = {(damage.path, damage.position) for damage in log.damages}
        for damage in found:
            key = damage.path, damage.position
            if damage.end == damage.position or key in known or key in self._damaged:
                continue  # a gap, of which there is no byte; or found before
            self._damaged[key] = damage
            self._persister.submit(Job(partial(_quarantine, log, damage), partial(self._quarantined, log, damage)))

    def _quarantined(self, log: TopicLog, damage: Damage, there: object, error: Exception | None) -> None:
        if not there and error is None and any(segment.path == damage.path for segment in log.segments):
            # Had retention deleted it, it would not be listed.
            there, damage = True, damage._replace(end=0, reason=f"the file was deleted, not by aiodq: {remedy('it')}")
        if there or isinstance(error, StorageError):
            log.damages.append(damage)
            self._engine.reporter.damaged(self._engine.name, damage)
        self.ignore(None, error)

    def ignore(self, _: object, error: Exception | None) -> None:
        """Ignore the end of work without a waiter. A file that still exists is found again at the next opening."""
        if isinstance(error, StoreFailedError):
            self._host.fail(error)

    async def purge(self) -> int:
        """Drop everything accepted so far; return the number of messages.

        Cancellation: it is dropped anyway.
        """
        if not self._engine.creation.exists:
            return 0
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        counts: dict[ChannelEngine[Any], int | None] = {}

        def finish(end: int, error: Exception | None) -> None:
            if error is not None:
                settle(done, None, error)
            elif self._purge_some(end, counts):
                settle(done, self._purged(end, counts), None)
            else:
                self._engine.submit(lambda: end, finish)

        self._engine.submit(self._purge_files, finish)
        return await done

    def _purge_files(self) -> int:
        """Make durable that everything written is given up; return the offset after it. Blocking."""
        log = self._engine.real_log()
        log.roll()
        log.description.give_up(log.end)
        return log.end

    def _purge_some(self, end: int, counts: dict[ChannelEngine[Any], int | None]) -> bool:
        """Drop everything below `end` from channels that are not in `counts` yet, and add them; return whether all are.

        What a channel delivers before its turn comes is as if it had been delivered before the purge.
        """
        if not counts:
            self._engine.tail.clear()
        left = [one for one in self._engine.channel_engines.values() if one not in counts]
        for channel_engine in left[:_PURGED_AT_ONCE]:
            state = channel_engine.state
            counts[channel_engine] = None if state is None else state.purge(0, end)
            channel_engine.reset()
            self._persister.settled(channel_engine)
        return len(left) <= _PURGED_AT_ONCE

    def _purged(self, end: int, counts: dict[ChannelEngine[Any], int | None]) -> int:
        """Delete everything below `end`, which all channels have dropped; return the number of messages."""
        engine = self._engine
        gone = tuple(segment for segment in engine.log.segments if segment.end <= end and segment.sealed)
        if gone:
            self._drop(gone, 0)
        engine.put_buffer.freed()
        found = [count for count in counts.values() if count is not None]
        return max(found) if found else sum(segment.records for segment in gone)

    def may_drop(self) -> bool:
        """Return whether `drop_oldest` may drop anything now; if not, waiting puts go on as soon as it may."""
        if not self._engine.effective_options.acting:
            self._engine.effective_options.used()
            return False
        # Until clients have claimed what they hold, it is not known what is in flight.
        return not (self._host.reclaiming and self.holding())

    def drop_oldest(self, count: int, until: int, *, furthest: bool) -> int:
        """Settle up to `count` of the oldest messages of some channels; return the most that one of them lost.

        Args:
            count: how many, and none that is in flight.
            until: none from this offset on.
            furthest: of those furthest behind, up to the first message in flight: no bytes are free before that one
                is settled. Else of those with the deepest backlog.
        """
        if not self.may_drop():
            return 0
        channel_engines = self.holding()
        if not channel_engines:
            return self._skip(count, until)
        states = [(one, one.state) for one in channel_engines if one.state is not None]
        deepest = max((state.depth for _, state in states), default=0)
        floor = min((state.floor for _, state in states), default=0)
        if furthest and any(state.floor == floor and state.delivery(floor) is not None for _, state in states):
            return 0
        dropped = 0
        for channel_engine, state in states:
            oldest = state.floor
            if oldest > floor if furthest else state.depth < deepest:
                continue
            gone = state.drop(count, until=until, spare=furthest)
            dropped = max(dropped, len(gone))
            for offset in gone:
                channel_engine.source.requeue_cache.discard(offset)
            if gone:
                self._engine.reporter.dropped(self._engine.name, channel_engine.name, len(gone), _OVERFLOW, oldest)
            self._engine.settled(channel_engine)
            channel_engine.wake()
        return dropped

    def _skip(self, count: int, until: int) -> int:
        """Drop the oldest messages of a topic without channels."""
        log = self._engine.real_log()
        before = log.begin
        log.skip_to(max(before, min(before + count, until, self._engine.visible)))
        full = islice(log.segments, len(log.segments) - 1)
        gone = self._unpinned(tuple(takewhile(lambda segment: segment.end <= log.begin, full)))
        if gone:
            self._drop(gone, log.begin)
        if log.begin > before:
            self._engine.reporter.dropped(self._engine.name, None, log.begin - before, _OVERFLOW, before)
        return log.begin - before


def _quarantine(log: TopicLog, damage: Damage) -> bool:
    """Copy damaged bytes to quarantine; return whether their file is there, and not deleted meanwhile. Blocking.

    Raises:
        StorageError: as mapped from the system's error; they are not in quarantine.
    """
    if not name_exists(log.fs, damage.path):
        return False
    quarantine(log.fs, damage.path, damage.position, damage.end)
    return True
