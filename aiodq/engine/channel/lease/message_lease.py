"""A lease with what its messages have in common, and the columns of each message but the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.delivery.leases import APART, Lease
from aiodq.engine.channel.addressed import shown
from aiodq.engine.loop.home_loop import NOWHERE
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiodq.engine.channel.settling_channel import SettlingChannel
    from aiodq.engine.loop.home_loop import HomeLoop

__all__ = ["MessageLease"]


class MessageLease(Lease):
    """A lease with the columns of its messages, but not their bodies: keeping one message keeps no other in memory.

    Attributes:
        topic: the topic's name.
        channel_engine: the channel's engine; None for messages that are only peeked at.
        home: the loop on which they may be settled without a further check.
        attempts: how often each was delivered.
        time_ns, times, tags, keys, headers, dues, expiries: as in `Batch` and `Columns`.
    """

    __slots__ = (
        "attempts", "channel_engine", "dues", "expiries", "headers", "home", "keys", "tags", "time_ns", "times",
        "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, batch: Batch, *, number: int = 0, attempts: int = 1, timeout: int | None = None,
        channel_engine: SettlingChannel | None = None, home: HomeLoop = NOWHERE,
    ) -> None:  # fmt: skip
        """Start with the messages of a batch."""
        columns = batch.columns
        super().__init__(batch.first, len(columns.bodies), timeout)
        self.number = number
        self.topic: str = topic
        self.channel_engine: SettlingChannel | None = channel_engine
        self.home: HomeLoop = home
        self.attempts: int = attempts
        self.time_ns: int = batch.time_ns
        self.times: Sequence[int] | None = columns.times
        self.tags: Sequence[str | None] | None = columns.tags
        self.keys: Sequence[bytes | None] | None = columns.keys
        self.headers: Sequence[Mapping[str, str]] | None = columns.headers
        self.dues: Sequence[int] | None = columns.dues
        self.expiries: Sequence[int] | None = columns.expiries

    @classmethod
    def of_one(
        cls, topic: str, batch: Batch, place: int, *, number: int = 0, attempts: int = 0,
        channel_engine: SettlingChannel | None = None,
    ) -> MessageLease:  # fmt: skip
        """Return a lease for a message outside the open lease: it is only peeked at, or has an entry of its own."""
        offset = batch.first + place
        lease = cls.of_apart(
            topic, batch.cut(offset, offset + 1), number=number, attempts=attempts, channel_engine=channel_engine
        )
        if lease.headers is not None:
            lease.headers = [shown(lease.headers[0])]
        return lease

    @classmethod
    def of_apart(
        cls, topic: str, batch: Batch, *, number: int, attempts: int, channel_engine: SettlingChannel | None
    ) -> MessageLease:
        """Return a lease for a batch of messages that have an entry of their own each."""
        lease = cls(topic, batch, number=number, attempts=attempts, channel_engine=channel_engine)
        lease.marks[:] = bytes([APART]) * len(lease.marks)
        lease.open = False
        return lease

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return how to copy what the messages have in common. Only messages that were looked at are copied."""
        rest = self.time_ns, self.times, self.tags, self.keys, self.headers, self.dues, self.expiries
        return _looked_at, (self.topic, self.first, len(self.marks), self.attempts, rest)

    def since(self, index: int) -> int:
        """Return when a message was put, or became due if that is later; wall time, nanoseconds."""
        put = self.time_ns if self.times is None else self.times[index]
        return put if self.dues is None else max(put, self.dues[index])


def _looked_at(topic: str, first: int, count: int, attempts: int, rest: tuple[Any, ...]) -> MessageLease:
    batch = Batch(first, 0, Columns([b""] * count))
    lease = MessageLease.of_apart(topic, batch, number=0, attempts=attempts, channel_engine=None)
    lease.time_ns, lease.times, lease.tags, lease.keys, lease.headers, lease.dues, lease.expiries = rest
    return lease
