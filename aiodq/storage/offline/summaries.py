"""Summaries of a store, a topic and a channel, as a reader sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiodq.stats import HeldSegment, Latency
from aiodq.storage.io.quarantine import Damage

__all__ = ["ChannelSummary", "StoreSummary", "TopicSummary"]


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """A channel, as its files show it. Fields named as in `ChannelStats` mean the same.

    Attributes:
        name: its name.
        ready: messages that may be delivered now.
        in_flight: messages that consumers hold. This, `timed_out`, `dead`, `dropped` and the latencies are known only
            to the owner, which publishes them about once a second; None if no process owns the store.
        deferred: messages that are not due yet, by the wall clock.
        depth: messages that are not settled: ready, in flight or deferred. Damaged ones count until the channel has
            passed them.
        floor: every message below this offset is settled.
        returned: those of `depth` that were delivered before and came back.
        timed_out: deliveries that exceeded their visibility timeout, since the owner opened the store.
        dead: messages given up, since then.
        oldest_ns: put time of the oldest unsettled message, nanoseconds since the epoch; None if there is none.
        backlog_bytes: about how many bytes `depth` takes, uncompressed.
        dropped: messages settled by an overflow policy or by retention, since then.
        put_to_deliver, put_to_ack: latencies of about the last minute; None also if there were no messages.
        paused: the channel or its topic is paused, and nothing is delivered.
    """

    name: str
    ready: int
    in_flight: int | None
    deferred: int
    depth: int
    floor: int
    returned: int
    timed_out: int | None
    dead: int | None
    oldest_ns: int | None
    backlog_bytes: int = 0
    dropped: int | None = None
    put_to_deliver: Latency | None = None
    put_to_ack: Latency | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic, as its files show it. Fields named as in `TopicStats` mean the same.

    Attributes:
        name: its name.
        begin_offset: the oldest message's offset.
        end_offset: the offset after the newest message.
        durable_offset: the noted watermark: everything below is on the device, and perhaps more.
        segments: the number of files.
        disk_bytes: their total size.
        messages: the number of messages in them.
        damages: the damage found so far.
        channels: by name.
        held: full segments that channels hold back; `by` names them.
        lost: messages that an owner found missing and noted, as their files are gone. They count until `repair`.
    """

    name: str
    begin_offset: int
    end_offset: int
    durable_offset: int
    segments: int
    disk_bytes: int
    messages: int
    damages: tuple[Damage, ...]
    channels: Mapping[str, ChannelSummary]
    held: tuple[HeldSegment, ...]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """A store, as its files show it.

    Attributes:
        path: its directory.
        topics: by name.
        refused: why the system does not let the others be read, by their names.
    """

    path: str
    topics: Mapping[str, TopicSummary]
    refused: Mapping[str, str] = field(default_factory=dict)
