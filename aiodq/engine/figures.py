"""A topic and a channel in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.delivery.channel import ChannelState
from aiodq.stats import ChannelStats, TopicStats

if TYPE_CHECKING:
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.outlet import Outlet

__all__ = ["channel_stats", "topic_stats"]


def topic_stats(ioloop: IoLoop) -> TopicStats:
    """Return a topic's numbers."""
    log = ioloop.log
    return TopicStats(
        ioloop.name,
        log.begin,
        log.end,
        log.durable,
        ioloop.intake.pending,
        len(log.segments),
        sum(segment.size for segment in log.segments),
        ioloop.syncer.count,
        ioloop.reader.bytes_read,
        ioloop.intake.dropped,
        len(log.damages),
        log.cut_bytes,
        {name: channel_stats(ioloop, outlet) for name, outlet in sorted(ioloop.outlets.items())},
        ioloop.retainer.held(),
    )


def channel_stats(ioloop: IoLoop, outlet: Outlet[Any]) -> ChannelStats:
    """Return a channel's numbers; zeros where it has no state yet."""
    state = outlet.state or ChannelState(0, 0, 1)
    counters = state.counters
    return ChannelStats(
        outlet.name,
        state.ready,
        len(state.in_flight),
        len(state.deferred),
        state.depth,
        state.floor,
        counters.delivered,
        counters.redelivered,
        counters.acked,
        counters.requeued,
        counters.timed_out,
        counters.dead,
        counters.expired,
        counters.filtered,
        counters.dropped,
        counters.lost,
        outlet.paused,
        _oldest(ioloop, outlet, state) if state.depth else None,
    )


def _oldest(ioloop: IoLoop, outlet: Outlet[Any], state: ChannelState) -> int | None:
    put = outlet.source.put_at(state.floor)
    if put is None:
        return next((one.oldest_ns for one in ioloop.log.segments if one.base <= state.floor < one.end), None)
    return put
