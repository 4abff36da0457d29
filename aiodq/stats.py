"""The statistics of a store, a topic and a channel at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["BackupReport", "ChannelStats", "Health", "HeldSegment", "Latency", "StoreStats", "TopicStats"]


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds.

    Attributes:
        path: its directory.
        topics: how many topics.
        messages: how many messages their segments hold, whether or not channels still need them.
        bytes: the bytes that were copied.
    """

    path: str
    topics: int
    messages: int
    bytes: int


class HeldSegment(NamedTuple):
    """A segment that channels or holds keep from being deleted.

    Attributes:
        base, end: its first offset, and the offset after its last.
        bytes: its size.
        by: the names of those channels, and `hold NAME` for each hold (see `aiodq.storage.state.holds`), sorted. In a
            shared store, of more than 5 the first 5, and `…`.
    """

    base: int
    end: int
    bytes: int
    by: tuple[str, ...]


class Latency(NamedTuple):
    """How long something took, in seconds, over the last 30 to 60 seconds; accurate to about 6 %.

    At more than about 256 messages a second, only a sample is measured; each measured message stands for several.

    Attributes:
        messages: how many messages these were.
        p50, p90, p99: 50, 90 and 99 percent of them took no longer than this.
        max: the longest time measured.
    """

    messages: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """The statistics of a channel at one moment. Counts are messages; those of events begin when the store is opened.

    Attributes:
        name: the channel's name.
        ready, in_flight, deferred, depth: messages in that state now; `depth` is the sum of the others.
        floor: everything below this offset is settled.
        delivered, redelivered, acked, requeued, timed_out: how often each of these happened.
        dead: given up after too many attempts, or rejected.
        expired: their time to live ended before they were settled; with a dead-letter topic they count in `dead`, too.
        filtered: not delivered, because they have no tag that the channel wants, or are for another channel.
        dropped: settled by an overflow policy or by retention.
        lost: could not be read because of damage.
        cancelled: deferred, and given up by `Channel.cancel`.
        paused: the channel or its topic is paused, and nothing is delivered.
        oldest_ns: when the oldest unsettled message was put, nanoseconds since the epoch; None if there is none. If
            that message is not in memory, it is the time of the oldest message of its segment. In a shared store, None
            too until the owner's next report, within about a second.
        backlog_bytes: about how many bytes `depth` takes, uncompressed.
        put_to_deliver: time from the put, or the due time, until the first delivery; None if nothing was delivered.
        put_to_ack: the same until the ack; a redelivered message counts from its put.
    """

    name: str
    ready: int
    in_flight: int
    deferred: int
    depth: int
    floor: int
    delivered: int
    redelivered: int
    acked: int
    requeued: int
    timed_out: int
    dead: int
    expired: int
    filtered: int
    dropped: int
    lost: int
    paused: bool
    oldest_ns: int | None
    backlog_bytes: int = 0
    put_to_deliver: Latency | None = None
    put_to_ack: Latency | None = None
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The statistics of a topic at one moment.

    Attributes:
        name: the topic's name.
        begin_offset, end_offset, durable_offset: as in `Topic`.
        pending: messages accepted and not yet visible to channels.
        segments: number of segment files.
        disk_bytes: their size.
        fsyncs: syncs of the log since the store was opened.
        bytes_read: bytes read from disk for channels since then; a channel that keeps up needs none.
        dropped: messages dropped by the overflow policy since then.
        damages: ranges of bytes found damaged, when the store was opened or by a channel, `read` or `scan`; counted
            once a second look at the file has confirmed it, about 50 ms after the messages count as lost.
        recovered_bytes: bytes of unfinished writes, truncated when the store was opened.
        channels: by name.
        held: full segments that channels hold back; `by` names them.
        failed: why its files cannot be used, or could not be created at the last attempt; otherwise None.
        backlog_bytes: about how many bytes of messages the slowest channel has not settled, uncompressed; without a
            channel, the bytes of all messages in the topic.
        lost: messages whose files were found to be missing when the store was opened, this time or before. They are
            counted until `aiodq repair`.
    """

    name: str
    begin_offset: int
    end_offset: int
    durable_offset: int
    pending: int
    segments: int
    disk_bytes: int
    fsyncs: int
    bytes_read: int
    dropped: int
    damages: int
    recovered_bytes: int
    channels: dict[str, ChannelStats]
    held: tuple[HeldSegment, ...]
    failed: str | None = None
    backlog_bytes: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The statistics of a store at one moment.

    Attributes:
        path: its directory.
        failed: why it stopped, or None.
        topics: by name.
        transactions: committed since the store was opened.
        sync_backend: the backend in use, `"thread"` or `"aio"`, as `StoreOptions.sync_backend` and the system allow.
    """

    path: str
    failed: str | None
    topics: dict[str, TopicStats]
    transactions: int = 0
    sync_backend: str = "thread"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a store is healthy, and why not. As a condition, it is true if the store is healthy.

    Attributes:
        ok: whether there are no `reasons`.
        reasons: as text: it has failed; it is closed; a write was refused, as on a full or read-only disk; little space
            is left; syncs are slow; the path does not lead to the open store any more; an alarm that was given to
            `open` is raised; no owner of the shared store answers.
        failed: why the store stopped, or None.
        oldest_age: seconds since the put of the oldest message that some channel has not settled, or None.
        depth: the number of unsettled messages of the channel that has the most.
        disk_free: free bytes on the store's file system, looked up about once a second; None if not known yet.
        sync_latency: seconds of the longest sync of about the last minute, including one that is under way.
    """

    ok: bool
    reasons: tuple[str, ...]
    failed: str | None
    oldest_age: float | None
    depth: int
    disk_free: int | None
    sync_latency: float

    def __bool__(self) -> bool:
        """Return `ok`."""
        return self.ok
