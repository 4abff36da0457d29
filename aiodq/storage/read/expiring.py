"""The messages of a log that have a time to live, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.columns import Flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Batch
    from aiodq.storage.read.log_reader import LogReader, LogView

__all__ = ["Expiring", "expiring_from", "expiring_in"]

_PIECE: Final = 256 * 1024


class Expiring(NamedTuple):
    """Consecutive messages whose times to live end together.

    Attributes:
        first: the offset of the first one.
        number: how many there are.
        put: the put time of the first one, wall time in nanoseconds.
        expiry: when they expire, wall time in nanoseconds.
    """

    first: int
    number: int
    put: int
    expiry: int


def expiring_in(batch: Batch) -> Iterator[Expiring]:
    """Yield the messages of a batch that have a time to live, in as few runs as possible."""
    columns = batch.columns
    expiries, times = columns.expiries, columns.times
    if not expiries:
        return
    count = len(expiries)
    if expiries.count(expiries[0]) == count:  # as for messages put together
        if expiries[0]:
            yield Expiring(batch.first, count, batch.time_ns if times is None else times[0], expiries[0])
        return
    start = 0
    for number in range(1, count + 1):
        if number == count or expiries[number] != expiries[start]:
            if expiries[start]:
                put = batch.time_ns if times is None else times[start]
                yield Expiring(batch.first + start, number - start, put, expiries[start])
            start = number


def expiring_from(reader: LogReader, view: LogView, offset: int) -> tuple[list[Expiring], int]:
    """Return the messages with a time to live in the next piece of a log, and the offset to continue with. Blocking.

    Segments without such messages are not read.

    Args:
        reader: a reader of the log.
        view: what may be read; the offset to continue with never exceeds its end.
        offset: where the piece begins.

    Raises:
        StorageError: as mapped from the system's error.
    """
    for segment in view.between(offset, view.stop):
        if segment.flags & Flags.EXPIRIES:
            at = max(segment.base, offset)
            result = reader.read(view, at, _PIECE)
            found = [one for batch in result.batches for one in expiring_in(batch)]
            return found, max(result.next, at + 1)
    return [], view.stop
