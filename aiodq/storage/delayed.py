"""What a log says of messages that are not to be delivered before a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.format.columns import Flags
from aiodq.storage.logreader import LogReader

if TYPE_CHECKING:
    from aiodq.storage.filesystem import FileSystem
    from aiodq.storage.log import TopicLog

__all__ = ["delayed"]

_PIECE: Final = 1 << 20
_DUES: Final = int(Flags.DUES)


def delayed(fs: FileSystem, log: TopicLog) -> list[tuple[int, int, int]]:
    """Return (offset, when put, when due) of all messages with a delay: wall time, nanoseconds. Blocking.

    Only segments that hold such messages are read.

    Raises:
        StorageError: as mapped from the system's error.
    """
    reader, view = LogReader(fs), log.view()
    found: list[tuple[int, int, int]] = []
    try:
        for segment in log.segments:
            at = segment.base if segment.flags & _DUES else segment.end
            while at < segment.end:
                result = reader.read(view, at, _PIECE)
                for batch in result.batches:
                    dues = batch.columns.dues or ()
                    found += ((offset, batch.time_ns, due) for offset, due in enumerate(dues, batch.first) if due)
                if result.next <= at:
                    break
                at = result.next
    finally:
        reader.close()
    return found
