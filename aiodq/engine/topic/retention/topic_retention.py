"""Retention: which segments are no longer needed, or expired, and when to look for them."""

from __future__ import annotations

import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.engine.channel.acks.ack_persister import Job
from aiodq.engine.topic.no_log import NoLog
from aiodq.engine.topic.retention.consumption import Consumption
from aiodq.engine.topic.retention.retaining_channels import retaining_channels
from aiodq.engine.topic.retention.segment_times import SegmentTimes
from aiodq.engine.topic.retention.topic_holds import FRESH, look_at_holds
from aiodq.engine.topic.whole_topic import WholeTopic
from aiodq.names import is_ephemeral
from aiodq.options import seconds
from aiodq.storage.log.retention import Ages, Verdict, expired, gone_ns, outgrown_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.effective_options import EffectiveOptions
    from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["RetainedTopic", "TopicRetention"]

_LOOK_EVERY: Final = 1.0
"""Seconds between two reads of the holds while they keep everything that might be deleted."""

_IDLE: Final = 10.0
"""Seconds without a put after which the last segment, if consumed, is deleted like the others: short for those who want
the disk space back or the messages gone, and long enough that a topic in use fills its segments."""

_SOON: Final = 0.05
"""Seconds between two looks at least, however often the log is synced: a thousand idle topics look, too."""

_WATCH: Final = 30
"""Sync intervals between two looks at what only time makes deletable: a wall clock may be set at any moment."""


class RetainedTopic(WholeTopic, Protocol):
    """What retention needs of a topic."""

    effective_options: EffectiveOptions


class TopicRetention:
    """The retention of one topic; called by the ioLoop, on the loop, while nothing else changes the list of segments.

    Attributes:
        written_at: when something was last put, in monotonic time.
        holds: the first offset that each hold keeps, by name, as last read.
    """

    __slots__ = (
        "_asked_to", "_bytes_wanted", "_deletion", "_engine", "_host", "_known", "_known_until", "_look_at",
        "_looking", "_newest", "_opened_at", "_persister", "_rolling", "_times", "_to_ask", "holds", "written_at",
    )  # fmt: skip

    def __init__(
        self, engine: RetainedTopic, deletion: SegmentDeletion, persister: AckPersister, host: TopicEngineHost
    ) -> None:
        """Retain this topic."""
        self._engine = engine
        self._deletion = deletion
        self._persister = persister
        self._host = host
        self.holds: dict[str, int] = {}
        self._looking = self._known = self._rolling = False
        self._look_at = self._known_until = 0.0
        self.written_at: float = host.clock.monotonic()
        self._opened_at = self.written_at
        self._times = SegmentTimes(host.clock, engine.log.segments)
        self._newest = -1
        self._asked_to = self._to_ask = 0
        self._bytes_wanted = False

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
        if not engine.effective_options.acting:
            return None
        again = self._deletion.next_try()
        if again is not None:
            return max(again, soon)
        if not segments or (len(segments) == 1 and segments[0].empty):
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
        self._deletion.retry()
        now = self._host.clock.monotonic()
        if is_ephemeral(engine.name):
            # No other process can hold what is only in memory, and its bound is enforced at once.
            self._delete()
        elif self._known and now <= self._known_until:
            self._known = False
            self._delete()
        elif now >= self._look_at and self._finds_any({}):
            self._looking, self._known = True, False
            self._persister.submit(Job(partial(look_at_holds, self._host, engine), self._looked))

    def _delete(self) -> None:
        """Delete what the known holds allow."""
        verdict = self._going(self.holds, cache(self._consumption))
        if verdict is not None:
            if verdict.forced_to:
                self._deletion.miss([(0, verdict.forced_to)])
            self._deletion.delete(verdict.segments, verdict.forced_to)
        if self._may_close(self.holds, self._consumption):
            self._close_last()

    def _finds_any(self, holds: dict[str, int]) -> bool:
        """Return whether a segment may be deleted, or sealed for that."""
        consumption = cache(self._consumption)
        return self._going(holds, consumption) is not None or self._may_close(holds, consumption)

    def _looked(self, found: Any, error: Exception | None) -> None:  # noqa: ANN401 - a job's result
        """Go on as soon as the log's segments are at rest; holds that could not be read are read again later."""
        self._looking = False
        self._look_at = self._host.clock.monotonic() + _LOOK_EVERY
        if error is not None:
            return
        began, self.holds = found
        if self._finds_any(self.holds):
            self._known, self._known_until = True, began + FRESH
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
        segments = self._deletion.unpinned(verdict.segments)
        if segments and not (verdict.forced_to and segments != verdict.segments):
            return Verdict(segments, verdict.forced_to)
        self._to_ask = max(min(self._to_ask, len(between)) - len(asked), 0)
        self._asked_to = listed.segments[asked[-1]].end if asked else 0
        if self._to_ask and engine.put_buffer.lacks_bytes:
            engine.retain_soon()
        return None

    def _consumption(self) -> Consumption:
        """Return how far the channels are whose messages are kept: nowhere if one of them has no state yet."""
        states = [channel_engine.state for channel_engine in retaining_channels(self._engine)]
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
        if self._deletion.pinned is not None and last.end > self._deletion.pinned:
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
