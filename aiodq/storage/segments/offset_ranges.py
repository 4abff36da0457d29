"""Ranges of offsets, as pairs (first, the one after the last): sorted and disjoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ranges", "joined", "total", "without"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges, which may come in any order and overlap."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def without(ranges: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> Ranges:
    """Return the difference: what is in `ranges` and not in `taken`."""
    left: list[tuple[int, int]] = []
    holes = joined(taken)
    for first, stop in joined(ranges):
        start = first
        for low, high in holes:
            if high > start and low < stop:
                if low > start:
                    left.append((start, low))
                start = high
        if start < stop:
            left.append((start, stop))
    return tuple(left)


def total(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of offsets in disjoint ranges."""
    return sum(stop - start for start, stop in ranges)
