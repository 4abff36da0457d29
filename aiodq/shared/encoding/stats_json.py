"""Statistics of a store as JSON: as an owner sends them, and as clients show them.

An owner of another version may send more fields, or fewer: unknown ones are ignored, missing ones are blank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.stats import ChannelStats, Health, HeldSegment, Latency, TopicStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "CHANNELS",
    "blank_topic",
    "channel_facts",
    "health_facts",
    "known_fields",
    "read_channel_stats",
    "read_health",
    "read_topic_stats",
    "topic_facts",
]

CHANNELS: Final = 25
"""Channels whose statistics are sent at once: a packet has room for those with the longest names and numbers."""

_HELD: Final = 50
_HOLDERS: Final = 5
_TEXT: Final = 500
"""Most held segments reported of a topic, names reported of each, and characters of an error."""

_CHANNEL: Final = ChannelStats(
    name="", ready=0, in_flight=0, deferred=0, depth=0, floor=0, delivered=0, redelivered=0, acked=0, requeued=0,
    timed_out=0, dead=0, expired=0, filtered=0, dropped=0, lost=0, paused=False, oldest_ns=None,
)  # fmt: skip


def _facts_of(stats: Any) -> dict[str, Any]:  # noqa: ANN401 - of whichever dataclass
    """Return the fields of a dataclass by name, as they are: `asdict` copies them, and takes ten times as long."""
    return {name: getattr(stats, name) for name in stats.__dataclass_fields__}


def topic_facts(stats: TopicStats) -> dict[str, Any]:
    """Encode a topic's statistics for JSON, without its channels."""
    held = [each._replace(by=_first(each.by)) for each in stats.held[:_HELD]]
    failed = None if stats.failed is None else stats.failed[:_TEXT]
    return {**_facts_of(stats), "channels": {}, "held": held, "failed": failed}


def _first(names: tuple[str, ...]) -> tuple[str, ...]:
    return names if len(names) <= _HOLDERS else (*names[:_HOLDERS], "…")


def channel_facts(channels: Iterable[ChannelStats]) -> dict[str, dict[str, Any]]:
    """Encode the statistics of channels for JSON, by name."""
    return {each.name: _facts_of(each) for each in channels}


def read_topic_stats(facts: Mapping[str, Any]) -> TopicStats:
    """Decode what `topic_facts` and `channel_facts` encoded."""
    values = _facts_of(_TOPIC) | known_fields(TopicStats, facts)
    held = (each[: len(HeldSegment._fields)] for each in values["held"])
    values["held"] = tuple(HeldSegment(base, end, size, tuple(by)) for base, end, size, by in held)
    values["channels"] = {name: read_channel_stats(each) for name, each in values["channels"].items()}
    return TopicStats(**values)


def read_channel_stats(facts: Mapping[str, Any]) -> ChannelStats:
    """Decode a channel's statistics; zeros for missing ones."""
    values = _facts_of(_CHANNEL) | known_fields(ChannelStats, facts)
    for name in ("put_to_deliver", "put_to_ack"):
        values[name] = None if values[name] is None else Latency(*values[name][: len(Latency._fields)])
    return ChannelStats(**values)


def blank_topic(name: str) -> TopicStats:
    """Return the statistics of a topic of which nothing is known yet."""
    return TopicStats(
        name=name, begin_offset=0, end_offset=0, durable_offset=0, pending=0, segments=0, disk_bytes=0, fsyncs=0,
        bytes_read=0, dropped=0, damages=0, recovered_bytes=0, channels={}, held=(),
    )  # fmt: skip


def health_facts(health: Health) -> dict[str, Any]:
    """Encode a store's health for JSON."""
    return {**_facts_of(health), "reasons": [reason[:_TEXT] for reason in health.reasons[:20]]}


def read_health(facts: Mapping[str, Any]) -> Health:
    """Decode what `health_facts` encoded."""
    return Health(**{**known_fields(Health, facts), "reasons": tuple(facts["reasons"])})


def known_fields(kind: type[Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the facts for which a dataclass has fields."""
    return {name: facts[name] for name in kind.__dataclass_fields__ if name in facts}


_TOPIC: Final = blank_topic("")
