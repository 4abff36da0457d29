"""What a reader tells of a store, a topic and a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.stats import HeldSegment, Latency
    from aiodq.storage.io.quarantine import Damage

__all__ = ["ChannelSummary", "StoreSummary", "TopicSummary"]


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """A channel as its files tell it. What has the name of a figure in `ChannelStats` is the same.

    Attributes:
        name: its name.
        ready: messages that may be delivered now.
        in_flight: those that a consumer has in hand. This, `timed_out`, `dead`, `dropped` and how long messages take
            only the owner knows, and shows about once a second; None where no process owns the store.
        deferred: those that are not due yet, by the wall clock.
        depth: messages that are not settled: ready, in flight or deferred. What damage took counts until the channel
            has come past it.
        floor: every message below this offset is settled.
        returned: those of `depth` that were delivered before and came back.
        timed_out: deliveries that took longer than their visibility timeout, since the owner opened the store.
        dead: messages given up, since then.
        oldest_ns: when the oldest that is not settled was put, nanoseconds since the epoch; None where there is none.
        backlog_bytes: about how many bytes `depth` takes, uncompressed.
        dropped: messages settled by an overflow policy or by retention, since then.
        put_to_deliver, put_to_ack: how long messages took in about the last minute; None also where none came.
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


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic as its files tell it. What has the name of a figure in `TopicStats` is the same.

    Attributes:
        name: its name.
        begin_offset: the oldest message's offset.
        end_offset: the offset behind the newest message.
        durable_offset: everything below this was noted to be on the device; the truth may be ahead of it.
        segments: how many files.
        disk_bytes: their size together.
        messages: the messages in them.
        damages: what was found wrong so far.
        channels: by name.
        held: full segments that channels hold back; `by` names them.
        lost: messages that an owner found to be missing, and noted: their files are gone. They count until `repair`.
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
    """A store as its files tell it.

    Attributes:
        path: its directory.
        topics: by name.
    """

    path: str
    topics: Mapping[str, TopicSummary]
