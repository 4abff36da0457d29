"""Messages lent to a client, kept in runs of leases, so that each costs little."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiodq.delivery.leases import HELD, MEASURED
from aiodq.engine.channel.lease.held_runs import is_held
from aiodq.engine.channel.lease.in_flight import message_of
from aiodq.engine.transactions.participants import AckRun
from aiodq.errors import not_in_flight
from aiodq.format.columns import Columns
from aiodq.message import Message
from aiodq.shared.encoding.number_runs import HERE, NumberRun, marked_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.engine.channel.lease.message_lease import MessageLease
    from aiodq.engine.topic.topic_engine import TopicEngine

T = TypeVar("T")

__all__ = ["LentRun", "as_sent", "columns_of", "extended"]


class LentRun(NumberRun):
    """Consecutive messages of one lease, from index `first` on; their numbers are their delivery numbers.

    Attributes:
        lease: their lease.
        bodies: their bodies; empty ones for messages that the client no longer holds, to save memory.
        store_ref: keeps the store open.
        sent: which of the runs sent to the client it is; 0 for what the client had before.
    """

    __slots__ = ("bodies", "first", "lease", "sent", "store_ref")

    def __init__(self, lease: MessageLease, first: int, bodies: list[bytes], store_ref: object) -> None:
        """Lend all of these messages."""
        super().__init__(lease.number + first, len(bodies))
        self.lease: MessageLease = lease
        self.first: int = first
        self.bodies: list[bytes] = bodies
        self.store_ref: object = store_ref
        self.sent: int = 0

    @classmethod
    def of(cls, message: Message) -> LentRun:
        """Lend one message."""
        return cls(message._run, message._index, [message.body], message._store_ref)  # noqa: SLF001 - its other half

    @property
    def offset(self) -> int:
        """The offset of the first message."""
        return self.lease.first + self.first

    def extend(self, bodies: list[bytes]) -> None:
        """Lend the following messages of the lease, too."""
        self.bodies.extend(bodies)
        self.lengthen(len(bodies))

    def columns(self) -> Columns:
        """Return the messages column by column, with `times` only if the lease has them, and without due times."""
        lease, first, stop = self.lease, self.first, self.first + len(self.bodies)
        return Columns(
            self.bodies,
            _part(lease.times, first, stop),
            tags=_part(lease.tags, first, stop),
            keys=_part(lease.keys, first, stop),
            headers=_part(lease.headers, first, stop),
            expiries=_part(lease.expiries, first, stop),
        )

    def message(self, place: int) -> Message:
        """Return one of the messages."""
        return message_of(Message, self.lease, self.first + place, self.bodies[place], self.store_ref)

    def cut(self, start: int, stop: int) -> LentRun:
        """Return some of the messages as a run of their own."""
        return LentRun(self.lease, self.first + start, self.bodies[start:stop], self.store_ref)

    def acks(self, engine: TopicEngine) -> AckRun:
        """Return what a transaction needs in order to settle all of them; `engine` is their topic's.

        Raises:
            NotInFlightError: they have no channel.
        """
        start, channel_engine = self.offset, self.lease.channel_engine
        if channel_engine is None:
            raise not_in_flight(f"message {start}")
        return AckRun(engine, channel_engine, start, start + len(self.bodies), self.number)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the messages that the client holds."""
        return marked_ranges(self.marks, start, stop)

    def forget(self, start: int, stop: int) -> None:
        """Free the bodies of messages that the client no longer holds."""
        self.bodies[start:stop] = [b""] * (stop - start)

    def in_flight(self, start: int, stop: int) -> bool:
        """Return whether the client holds all of these messages, and they can be settled at once."""
        marks, first, count = self.lease.marks, self.first + start, stop - start
        if self.marks.count(HERE, start, stop) != count:
            return False
        # Most of the time they are in flight through their lease, which takes no call.
        there = marks.count(HELD, first, first + count) + marks.count(MEASURED, first, first + count)
        return there == count or is_held(self.lease, first, count)


def extended(runs: Sequence[LentRun], more: LentRun) -> bool:
    """Extend the last run by another one, if that follows it in its lease; return whether it does."""
    last = runs[-1] if runs else None
    if last is None or last.lease is not more.lease or last.first + len(last.bodies) != more.first:
        return False
    last.extend(more.bodies)
    return True


def as_sent(runs: Sequence[LentRun]) -> list[list[LentRun]]:
    """Group runs into packets: those of one packet are consecutive and were delivered equally often."""
    packets: list[list[LentRun]] = []
    for run in runs:
        last = packets[-1][-1] if packets else None
        if (
            last is not None
            and run.offset == last.offset + len(last.bodies)
            and run.number == last.number + len(last.bodies)
            and run.lease.attempts == last.lease.attempts
        ):
            packets[-1].append(run)
        else:
            packets.append([run])
    return packets


def columns_of(runs: Sequence[LentRun]) -> tuple[Columns, int]:
    """Return the messages of a packet column by column, and the put time of the first, nanoseconds."""
    parts = [run.columns() for run in runs]
    times = {run.lease.time_ns for run in runs}
    if len(times) > 1 or any(part.times is not None for part in parts):
        for part, run in zip(parts, runs, strict=True):
            part.times = part.times or [run.lease.time_ns] * len(part.bodies)
    columns = Columns.joined(parts)
    put = runs[0].lease.time_ns if columns.times is None else columns.times[0]
    if len(columns.bodies) == 1:
        columns.times = None  # a lone message needs no time beside that of its frame
    return columns, put


def _part(column: Sequence[T] | None, first: int, stop: int) -> list[T] | None:
    return None if column is None else list(column[first:stop])
