"""The delayed messages of a log."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from aiodq.format.columns import Flags
from aiodq.storage.read.log_reader import batches_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Batch
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.read.log_reader import LogView

__all__ = ["Dues", "delayed"]


class Dues:
    """Delayed messages, in 24 bytes each: there may be millions."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        """Make an empty list."""
        self._numbers = array("q")

    def take(self, batch: Batch) -> None:
        """Add those of a batch."""
        columns = batch.columns
        times = repeat(batch.time_ns) if columns.times is None else columns.times
        for offset, put, due in zip(range(batch.first, batch.stop), times, columns.dues or (), strict=False):
            if due:
                self._numbers.extend((offset, put, due))

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, put time, due time); times are wall time in nanoseconds."""
        numbers = iter(self._numbers)
        return zip(numbers, numbers, numbers, strict=True)


def delayed(fs: FileSystem, view: LogView, since: int = 0) -> Dues:
    """Return all messages that were put with a delay, and perhaps some below `since`. Blocking.

    Only segments that hold such messages are read, from the offset `since` on.

    Raises:
        StorageError: as mapped from the system's error.
    """
    found = Dues()
    for batch in batches_with(fs, view, Flags.DUES, since):
        found.take(batch)
    return found
