"""What a reader tells of a store, a topic and a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.stats import HeldSegment
    from aiodq.storage.damage import Damage

__all__ = ["ChannelSummary", "StoreSummary", "TopicSummary"]


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """A channel as its files tell it.

    Attributes:
        name: its name.
        floor: every message below this offset is settled.
        depth: messages that are not settled: ready, in flight or deferred. What damage took counts until the channel
            has come past it.
        deferred: those of them that are not due yet, by the wall clock.
        redelivered: those of them that were delivered before and came back.
        oldest_ns: when the oldest of them was put, nanoseconds since the epoch; None where there is none.
        in_flight: those of them that a consumer has in hand. This and the next two only the owner knows, and shows
            about once a second; None where no process owns the store.
        timed_out: deliveries that took longer than their visibility timeout, since the owner opened the store.
        dead: messages given up, since then.
    """

    name: str
    floor: int
    depth: int
    deferred: int
    redelivered: int
    oldest_ns: int | None
    in_flight: int | None
    timed_out: int | None
    dead: int | None

    @property
    def ready(self) -> int:
        """Those that may be delivered now."""
        return max(self.depth - self.deferred - (self.in_flight or 0), 0)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic as its files tell it.

    Attributes:
        name: its name.
        begin_offset: the oldest message's offset.
        end_offset: the offset behind the newest message.
        durable_offset: everything below this was noted to be on the device; the truth may be ahead of it.
        segments: how many files.
        bytes: their size together.
        records: the messages in them.
        damages: what was found wrong so far.
        channels: by name.
        held: full segments that channels hold back; `by` names them.
    """

    name: str
    begin_offset: int
    end_offset: int
    durable_offset: int
    segments: int
    bytes: int
    records: int
    damages: tuple[Damage, ...]
    channels: Mapping[str, ChannelSummary]
    held: tuple[HeldSegment, ...]


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """A store as its files tell it.

    Attributes:
        path: its directory.
        topics: by name.
    """

    path: str
    topics: Mapping[str, TopicSummary]
