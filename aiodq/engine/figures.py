"""A topic and a channel in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aiodq.delivery.channel import ChannelState
from aiodq.engine.foreseen import state_of
from aiodq.stats import ChannelStats, TopicStats
from aiodq.storage.backlog import segment_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.outlet import Outlet

__all__ = ["BacklogFigures", "backlogs", "channel_stats", "topic_stats"]


class BacklogFigures(NamedTuple):
    """What a channel has before it, or a topic that has none.

    Attributes:
        channel: its name, or None.
        depth: messages.
        oldest_age: seconds since the oldest of them was put, or None where there is none.
    """

    channel: str | None
    depth: int
    oldest_age: float | None


def backlogs(ioloop: IoLoop, now_ns: int) -> Iterator[BacklogFigures]:
    """Yield what each channel of a topic has before it; of a topic without channels, all it holds counts."""
    for outlet in list(ioloop.outlets.values()):
        state = outlet.state
        if state is not None:
            oldest = _oldest(ioloop, outlet, state) if state.depth else None
            yield BacklogFigures(outlet.name, state.depth, _age(oldest, now_ns))
    if not ioloop.outlets:
        depth = ioloop.visible - ioloop.log.begin
        oldest = next((one.oldest_ns for one in ioloop.log.segments if one.records), None) if depth else None
        yield BacklogFigures(None, depth, _age(oldest, now_ns))


def _age(put_ns: int | None, now_ns: int) -> float | None:
    return None if put_ns is None else max(now_ns - put_ns, 0) / 1_000_000_000


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
        _failed(ioloop),
        _backlog_bytes(ioloop),
        log.lost,
    )


def _backlog_bytes(ioloop: IoLoop) -> int:
    log, states = ioloop.log, [outlet.state for outlet in ioloop.outlets.values() if outlet.state is not None]
    if not states:
        return ioloop.backlog_bytes.of(log.segments, log.begin, ioloop.visible - log.begin)
    return max(ioloop.backlog_bytes.of(log.segments, state.floor, state.depth) for state in states)


def _failed(ioloop: IoLoop) -> str | None:
    if ioloop.unusable is not None:
        return str(ioloop.unusable)
    return str(ioloop.making.error) if ioloop.making.failed else None


def channel_stats(ioloop: IoLoop, outlet: Outlet[Any]) -> ChannelStats:
    """Return a channel's numbers; zeros where nothing is known of it yet."""
    state = state_of(ioloop, outlet) or ChannelState(0, 0, 1)
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
        ioloop.backlog_bytes.of(ioloop.log.segments, state.floor, state.depth),
        outlet.latency.put_to_deliver(),
        outlet.latency.put_to_ack(),
        counters.cancelled,
    )


def _oldest(ioloop: IoLoop, outlet: Outlet[Any], state: ChannelState) -> int | None:
    put = outlet.source.put_at(state.floor)
    if put is None:
        segment = segment_at(ioloop.log.segments, state.floor)
        return None if segment is None else segment.oldest_ns
    return put
