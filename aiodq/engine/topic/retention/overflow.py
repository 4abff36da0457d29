"""Overflow: in a topic with `overflow="drop_oldest"`, the oldest messages of a backlog over its bound are dropped."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.topic.retention.retaining_channels import retaining_channels
from aiodq.engine.topic.whole_topic import WholeTopic

if TYPE_CHECKING:
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.effective_options import EffectiveOptions
    from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion

__all__ = ["Overflow", "OverflowingTopic"]

_REASON: Final = "the backlog is at its bound, and overflow is 'drop_oldest'"


class OverflowingTopic(WholeTopic, Protocol):
    """What this needs of a topic."""

    effective_options: EffectiveOptions


class Overflow:
    """Drops the oldest messages of one topic."""

    def __init__(self, engine: OverflowingTopic, deletion: SegmentDeletion, host: TopicEngineHost) -> None:
        """Drop from this topic."""
        self._engine = engine
        self._deletion = deletion
        self._host = host

    def may_drop(self) -> bool:
        """Return whether anything may be dropped now; if not, waiting puts go on as soon as it may."""
        if not self._engine.effective_options.acting:
            self._engine.effective_options.used()
            return False
        # Until clients have claimed what they hold, it is not known what is in flight.
        return not (self._host.reclaiming and retaining_channels(self._engine))

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
        channel_engines = retaining_channels(self._engine)
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
                self._engine.reporter.dropped(self._engine.name, channel_engine.name, len(gone), _REASON, oldest)
            self._engine.settled(channel_engine)
            channel_engine.wake()
        return dropped

    def _skip(self, count: int, until: int) -> int:
        """Drop the oldest messages of a topic without channels."""
        log = self._engine.real_log()
        before = log.begin
        log.skip_to(max(before, min(before + count, until, self._engine.visible)))
        full = islice(log.segments, len(log.segments) - 1)
        gone = self._deletion.unpinned(tuple(takewhile(lambda segment: segment.end <= log.begin, full)))
        if gone:
            self._deletion.delete(gone, log.begin)
        if log.begin > before:
            self._engine.reporter.dropped(self._engine.name, None, log.begin - before, _REASON, before)
        return log.begin - before
