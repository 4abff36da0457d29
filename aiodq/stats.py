"""Numbers of a store, a topic and a channel at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ChannelStats", "Health", "HeldSegment", "Latency", "StoreStats", "TopicStats"]


class HeldSegment(NamedTuple):
    """A segment that is kept because of messages which channels have not settled.

    Attributes:
        base, end: its first offset, and the one behind its last.
        bytes: its size.
        by: the channels, sorted; then `hold NAME` for each hold of that name (see `aiodq.storage.state.holds`).
    """

    base: int
    end: int
    bytes: int
    by: tuple[str, ...]


class Latency(NamedTuple):
    """How long something took, in seconds, over the last 30 to 60 seconds; right to about 6 %.

    Of more than about 256 messages a second, a sample is measured in which each stands for as many as were not.

    Attributes:
        messages: how many these were.
        p50, p90, p99: so many percent of them took no longer.
        max: the longest that was measured.
    """

    messages: int
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel at one moment; counts since the store was opened, in messages.

    Attributes:
        name: the channel's.
        ready, in_flight, deferred, depth: `depth` is the sum of the others.
        floor: everything below this offset is settled.
        delivered, redelivered, acked, requeued, timed_out: what happened.
        dead: given up after too many attempts, or rejected.
        expired: not delivered in their time to live.
        filtered: without a tag that the channel wants.
        dropped: settled by an overflow policy or by retention.
        lost: could not be read because of damage.
        cancelled: deferred, and given up by `Channel.cancel`.
        paused: the channel or its topic delivers nothing.
        oldest_ns: when the oldest message that is not settled was put, nanoseconds since the epoch; None where there is
            none. Where it is not in memory, when the oldest message of its segment was.
        backlog_bytes: about how many bytes `depth` takes, uncompressed.
        put_to_deliver: from when messages were put, or were due, until they were first handed out; None where none was.
        put_to_ack: likewise until they were acked; one that was redelivered counts from its put.
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
    """A topic at one moment.

    Attributes:
        name: the topic's.
        begin_offset, end_offset, durable_offset: as those of `Topic`.
        pending: messages accepted and not yet delivered to channels.
        segments: number of segment files.
        disk_bytes: their size.
        fsyncs: of the log, since the store was opened.
        bytes_read: from disk for channels, since then. A channel that keeps up adds nothing.
        dropped: messages given up by the overflow policy, since then.
        damages: ranges of bytes found damaged at open.
        recovered_bytes: unfinished writes cut off at open.
        channels: by name.
        held: full segments that channels hold back; `by` names them.
        failed: why its files cannot be used, or could not be made when that was tried last; else None.
        backlog_bytes: about how many bytes of messages the slowest channel has not settled, uncompressed; where there
            is no channel, what the topic holds.
        lost: messages that were found to be missing when the store was opened, now or before: their files are gone.
            They count until `aiodq repair`.
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
    """A store at one moment.

    Attributes:
        path: its directory.
        failed: why it stopped, or None.
        topics: by name.
        transactions: committed since the store was opened.
        sync_backend: what `StoreOptions.sync_backend` came to: `"thread"` or `"aio"`.
    """

    path: str
    failed: str | None
    topics: dict[str, TopicStats]
    transactions: int = 0
    sync_backend: str = "thread"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a store is well, and why not. As a condition, it is true where the store is well.

    Attributes:
        ok: there is no reason to worry.
        reasons: in words: it has failed; a write was refused for want of space; little space is left; syncs are slow;
            an alarm that was given to `open` is raised.
        failed: why the store stopped, or None.
        oldest_age: seconds since the oldest message was put that some channel has not settled; None where none is left.
        depth: messages that the channel with most of them has not settled.
        disk_free: bytes free where the store lies, looked up about once a second; None where it is not known yet.
        sync_latency: seconds of the longest sync of about the last minute, also of one that is under way.
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
