"""The statistics of a topic and of a channel."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.topic.retention.retaining_channels import retaining_channels
from aiodq.stats import ChannelStats, HeldSegment, TopicStats
from aiodq.storage.log.backlog_bytes import segment_at
from aiodq.storage.state.holds import held_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.channel.open_channel import OpenChannel
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["BacklogFigures", "backlogs", "channel_standing", "channel_stats", "state_of", "topic_stats"]

_MOST_DEFERRED: Final = 10_000
"""The most deferred messages of other channels to go through, as the event loop waits meanwhile."""

_MOST_CHANNELS: Final = 100
"""The most other channels to go through: a thousand that are being created would each look at a thousand."""


class BacklogFigures(NamedTuple):
    """The backlog of a channel, or of a topic without channels.

    Attributes:
        channel: the channel's name, or None.
        depth: the number of messages.
        oldest_age: seconds since the oldest of them was put, or None if there is none.
    """

    channel: str | None
    depth: int
    oldest_age: float | None


def backlogs(engine: TopicEngine, now_ns: int) -> Iterator[BacklogFigures]:
    """Yield the backlog of each channel of a topic; without channels, everything the topic holds counts."""
    for channel_engine in list(engine.channel_engines.values()):
        state = channel_engine.state
        if state is not None:
            depth = state.depth
            oldest = _oldest(engine, channel_engine, state.floor) if depth else None
            yield BacklogFigures(channel_engine.name, depth, _age(oldest, now_ns))
    if not engine.channel_engines:
        depth = engine.visible - engine.log.begin
        oldest = next((one.oldest_ns for one in engine.log.segments if one.records), None) if depth else None
        yield BacklogFigures(None, depth, _age(oldest, now_ns))


def _age(put_ns: int | None, now_ns: int) -> float | None:
    return None if put_ns is None else max(now_ns - put_ns, 0) / 1_000_000_000


def topic_stats(engine: TopicEngine) -> TopicStats:
    """Return a topic's statistics."""
    engine.note_synced()
    log, channel_engines = engine.log, engine.channel_engines
    # Once for all channels that are being created: each looks at all others.
    dues = _deferred_elsewhere(engine) if any(one.state is None for one in channel_engines.values()) else {}
    channels = {name: channel_stats(engine, channel_engines[name], dues) for name in sorted(channel_engines)}
    # A channel that is being created does not count yet.
    bytes_of = [channels[name].backlog_bytes for name, one in channel_engines.items() if one.state is not None]
    return TopicStats(
        engine.name,
        log.begin,
        log.end,
        log.durable,
        engine.put_buffer.pending,
        len(log.segments),
        sum([segment.size for segment in log.segments]),
        engine.syncer.count,
        engine.reader.bytes_read,
        engine.put_buffer.dropped,
        _damages(engine),
        log.cut_bytes,
        channels,
        _held(engine),
        _failed(engine),
        max(bytes_of) if bytes_of else _bytes_from(engine, log.begin, engine.visible - log.begin),
        log.lost,
    )


def _damages(engine: TopicEngine) -> int:
    """Return the number of damaged ranges found when the topic was opened, in its log and its channels' files."""
    journals = [one.journal for one in engine.channel_engines.values() if one.journal is not None]
    return len(engine.log.damages) + sum(len(journal.damages) for journal in journals)


def channel_standing(channel_engine: OpenChannel[Any]) -> str:
    """Return a channel's state as one word, for status displays; its topic is open."""
    if channel_engine.error is not None:
        return "deleted"
    if channel_engine.paused:
        return "paused"
    return "shut down" if channel_engine.shut else "open"


def _held(engine: TopicEngine) -> tuple[HeldSegment, ...]:
    """Return the full segments that channels or holds keep, with the names of those."""
    segments = engine.log.segments[:-1]
    if not segments:
        return ()
    ends = [segment.end for segment in segments]
    # By the index of a segment: the holders of it and of all later ones, and those that have settled it nevertheless.
    begin: dict[int, list[str]] = {}
    through: dict[int, set[str]] = {}
    for name, first in engine.retention.holds.items():
        begin.setdefault(bisect_right(ends, first), []).append(held_by(name))
    for one in retaining_channels(engine):
        if (state := one.state) is not None:
            at = bisect_right(ends, state.floor)
            begin.setdefault(at, []).append(one.name)
            for number in range(at, bisect_right(ends, state.settled.last)):
                if state.settled_all(segments[number].base, ends[number]):
                    through.setdefault(number, set()).add(one.name)
    found: list[HeldSegment] = []
    names: list[str] = []
    by: tuple[str, ...] = ()
    for number, segment in enumerate(segments):
        if number in begin:
            names = sorted(names + begin[number])
            by = tuple(names)
        those = tuple(name for name in by if name not in through[number]) if number in through else by
        if those:
            found.append(HeldSegment(segment.base, ends[number], segment.size, those))
    return tuple(found)


def _failed(engine: TopicEngine) -> str | None:
    if engine.unusable is not None:
        return str(engine.unusable)
    return str(engine.creation.error) if engine.creation.failed else None


def channel_stats(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], dues: Mapping[int, int] | None = None
) -> ChannelStats:
    """Return a channel's statistics; zeros if it has no state yet. `dues` is as for `state_of`."""
    state, latency = state_of(engine, channel_engine, dues) or ChannelState(0, 0, 1), channel_engine.latency
    counters, floor, depth, flying, deferred = (
        state.counters, state.floor, state.depth, state.flying, len(state.deferred),
    )  # fmt: skip
    return ChannelStats(
        channel_engine.name,
        depth - flying - deferred,
        flying,
        deferred,
        depth,
        floor,
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
        channel_engine.paused,
        _oldest(engine, channel_engine, floor) if depth else None,
        _bytes_from(engine, floor, depth),
        None if latency.idle else latency.put_to_deliver(),
        None if latency.idle else latency.put_to_ack(),
        counters.cancelled,
    )


def _bytes_from(engine: TopicEngine, floor: int, depth: int) -> int:
    """See `BacklogBytes.of`."""
    return engine.backlog_bytes.of(engine.log.segments, floor, depth) if depth > 0 else 0


def _oldest(engine: TopicEngine, channel_engine: ChannelEngine[Any], floor: int) -> int | None:
    """Return when a channel's first unsettled message was put, which is at its floor."""
    put = channel_engine.source.put_at(floor)
    if put is None:
        segment = segment_at(engine.log.segments, floor)
        return None if segment is None else segment.oldest_ns
    return put


def state_of(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], dues: Mapping[int, int] | None = None
) -> ChannelState | None:
    """Return a channel's state; if it is being created, a preview that is used for nothing else.

    Nothing is delivered from a preview, so nothing is settled in a channel that a power cut may undo.

    Args:
        engine: the topic's.
        channel_engine: the channel's.
        dues: the delayed messages that other channels know, and when they are due; None to look for them here.
    """
    if channel_engine.state is not None or channel_engine.preview is None or channel_engine.error is not None:
        return channel_engine.state
    begin = max(channel_engine.preview, engine.log.begin)  # retention may have passed the offset where it was to begin
    state = ChannelState(begin, engine.visible, channel_engine.options.max_in_flight)
    if state.depth:
        known = _deferred_elsewhere(engine) if dues is None else dues
        for offset, due in chain(_deferred_in_tail(engine, channel_engine, begin), known.items()):
            state.defer(offset, due)
    return state


def _deferred_in_tail(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], begin: int
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield the delayed messages in the log's tail, and when they are due."""
    wall, now = channel_engine.times()
    for batch in engine.tail.since(begin):
        for offset, due in enumerate(batch.columns.dues or (), batch.first):
            if due > wall:
                yield offset, now + due - wall


def _deferred_elsewhere(engine: TopicEngine) -> dict[int, int]:
    """Return the delayed messages that the oldest channels know, and when they are due; of very many, not all."""
    found: dict[int, int] = {}
    left = _MOST_DEFERRED
    for channel_engine in islice(engine.channel_engines.values(), _MOST_CHANNELS):
        state = channel_engine.state
        if state is not None and 0 < (number := len(state.deferred)) <= left:
            left -= number
            # A message that was delivered before was deferred for that channel alone.
            found.update((offset, due) for offset, due in state.deferred if not state.attempts(offset))
    return found
