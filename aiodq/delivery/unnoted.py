"""What happened to a channel's messages and is not noted on disk yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aiodq.delivery.range_set import joined
from aiodq.format.journal import Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.range_set import RangeSet

__all__ = ["Unnoted"]


class Unnoted:
    """The changes of one channel that are still to be noted.

    Attributes:
        floor: the floor as last noted.
        seek: the offset sought since then; None if there was no seek.
        acks: ranges that were settled.
        requeues: offsets that were made ready again, or deferred.
        deliveries: offsets that were handed out, if deliveries are noted.
    """

    __slots__ = ("acks", "deliveries", "floor", "requeues", "seek")

    def __init__(self, floor: int) -> None:
        """Start with this floor and no changes."""
        self.floor: int = floor
        self.seek: int | None = None
        self.acks: list[tuple[int, int]] = []
        self.requeues: list[int] = []
        self.deliveries: list[int] = []

    @classmethod
    def everything(
        cls, floor: int, settled: RangeSet, requeues: Iterable[int], deliveries: Iterable[int]
    ) -> Self:  # fmt: skip
        """Return a channel's whole state as changes, which replace everything noted before."""
        unnoted = cls(floor)
        unnoted.seek = floor
        unnoted.acks, unnoted.requeues, unnoted.deliveries = list(settled), list(requeues), list(deliveries)
        return unnoted

    def clear(self, floor: int) -> None:
        """Drop all changes, as a checkpoint holds them; set the floor."""
        self.seek, self.floor = None, floor
        for fresh in (self.acks, self.requeues, self.deliveries):
            fresh.clear()

    def take_settled(self, floor: int, most: int) -> list[Op]:
        """Remove and return the seek, the floor (now `floor`), and up to `most` of the oldest acks, joined."""
        ops: list[Op] = []
        if self.seek is not None:
            ops.append(Op(OpKind.SEEK, self.seek))
            self.seek = None
        if floor > self.floor:
            ops.append(Op(OpKind.FLOOR, floor))
            self.floor = floor
        if self.acks:
            ranges = joined([(max(start, floor), stop) for start, stop in self.acks[:most] if stop > floor])
            ops += [Op(OpKind.ACK, start, stop - start) for start, stop in ranges]
            del self.acks[:most]
        return ops

    def take_deliveries(self, most: int) -> tuple[list[int], list[int]]:
        """Return up to so many of the oldest requeues, and the deliveries.

        INVARIANT: every delivery is returned by the next call, as it must be written before the message is handed out.
        """
        requeued, delivered, self.deliveries = self.requeues[:most], self.deliveries, []
        del self.requeues[:most]
        return requeued, delivered
