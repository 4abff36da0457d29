"""A heap of entries that may become stale. Stale entries are dropped a few at a time, however many there are."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StaleHeap"]

E = TypeVar("E")

_SLACK: Final = 64
"""Stale entries that are left alone."""

_SWEPT: Final = 4
"""Entries that are checked with each new one, while there are many stale ones."""

_MOST_STALE: Final = 1000
"""Stale entries dropped by one look for the first."""


class StaleHeap(Generic[E]):
    """A heap that knows which of its entries still count.

    Once most of them are stale, those that count are moved to a new heap, a few with each entry that is added: no call
    takes long for that, and all in all there are at most about twice as many stale ones as others.
    """

    __slots__ = ("_counts", "_fresh", "_old")

    def __init__(self, counts: Callable[[E], bool]) -> None:
        """Make an empty heap; `counts` says whether an entry does, and may clean up after one that does not."""
        self._counts = counts
        self._fresh: list[Any] = []
        # Entries still to be checked: also a heap; its last entry may be removed at any time.
        self._old: list[Any] = []

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._fresh) + len(self._old)

    def add(self, entry: E, live: int) -> None:
        """Add an entry; with it, about `live` of them count."""
        heapq.heappush(self._fresh, entry)
        if self._old:
            self._sweep()
        elif len(self._fresh) > 2 * live + _SLACK:
            self._old, self._fresh = self._fresh, []

    def add_all(self, entries: list[E], live: int) -> None:
        """Add entries that are in order; with them, about `live` of all count."""
        if len(self._fresh) <= len(entries) and not self._old:
            self._fresh += entries
            heapq.heapify(self._fresh)
            return
        # Into a very large heap, entries are added one by one: the cost then does not depend on its size.
        for entry in entries:
            self.add(entry, live)

    def _sweep(self) -> None:
        old = self._old
        for _ in range(min(_SWEPT, len(old))):
            entry = old.pop()
            if self._counts(entry):
                heapq.heappush(self._fresh, entry)

    def _first(self) -> list[Any]:
        """Return the heap that has the first entry; an empty one if there is none."""
        old, fresh = self._old, self._fresh
        return old if old and (not fresh or old[0] < fresh[0]) else fresh

    def first(self) -> E | None:
        """Return the first entry that counts, or None; if very many stale ones precede it, one of those."""
        heap = self._first()
        for _ in range(_MOST_STALE):
            if not heap or self._counts(heap[0]):
                break
            heapq.heappop(heap)
            heap = self._first()
        return heap[0] if heap else None

    def pop(self) -> None:
        """Remove what `first` has returned."""
        heapq.heappop(self._first())

    def early(self, number: int) -> list[E]:
        """Return about the first `number` entries, and at most as many others; some may be stale."""
        # The top of a heap is not sorted, but holds early entries.
        return self._fresh[:number] + self._old[:number]

    def copy(self) -> list[E]:
        """Return all entries as a heap; some may be stale."""
        made = self._fresh + self._old
        if self._old:
            heapq.heapify(made)
        return made

    def parts(self) -> tuple[list[E], list[E]]:
        """See `OffsetMap.parts`."""
        return self._fresh, self._old
