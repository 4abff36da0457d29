"""What a stream's offsets say of the messages before them, so that others under the same numbers are noticed.

Of each topic `"marks": {"orders": [123, 1767225600000000000, 305419896, 120]}` has the offset, and of the frame that
holds the message before it the time, the checksum, and up to where all was durable when it was written. Offsets without
a mark, or whose number was changed by hand, are taken for what they say. So are those before which everything was
deleted, or cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiodq.spark.objects import AnyFileSystem, is_url
from aiodq.storage.read.frame_marks import FrameMark, FramePlace, find_frame, first_other

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = ["StreamMark", "StreamMarks", "marks_of"]

_NUMBERS: Final = 4


class StreamMark(NamedTuple):
    """An offset, and what is known of the frame that holds the message before it."""

    offset: int
    frame: FrameMark

    def encode(self) -> list[int]:
        """Return it as offsets have it."""
        return [self.offset, *self.frame]


def marks_of(offsets: Mapping[str, Any]) -> dict[str, StreamMark]:
    """Return the marks that offsets have, by topic."""
    said = offsets.get("marks")
    found: dict[str, StreamMark] = {}
    for topic, mark in said.items() if isinstance(said, dict) else ():
        numbers = isinstance(mark, list) and len(mark) == _NUMBERS and all(isinstance(each, int) for each in mark)
        if numbers and mark[0] == offsets["topics"].get(topic):
            found[topic] = StreamMark(mark[0], FrameMark(*mark[1:]))
    return found


class StreamMarks:
    """The marks of one query, with where the frames are: so one is found again without a search."""

    def __init__(self) -> None:
        """Know of none."""
        self._places: dict[str, tuple[StreamMark, FramePlace]] = {}

    def make(self, topic: str, log: LogSnapshot, offset: int) -> StreamMark | None:
        """Return the mark of an offset; None if the message before it is not there. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        place = find_frame(AnyFileSystem(), log.view, offset - 1)
        return None if place is None else self._note(topic, offset, place)

    def _note(self, topic: str, offset: int, place: FramePlace) -> StreamMark:
        mark = StreamMark(offset, place.mark)
        self._places[topic] = (mark, place)
        return mark

    def holds(self, topic: str, log: LogSnapshot, mark: StreamMark) -> bool:
        """Return whether the message before an offset is not another one than it was, as far as can be told. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        fs = AnyFileSystem()
        known, place = self._places.get(topic, (None, None))
        # In a bucket an object is never replaced.
        if known == mark and place is not None and (is_url(place.path) or place.is_kept(fs)):
            return True
        place = find_frame(fs, log.view, mark.offset - 1)
        if place is None:
            return True
        if place.mark[:2] == mark.frame[:2]:
            self._note(topic, mark.offset, place)
            return True
        # What was damaged after it was read is no loss.
        return find_frame(fs, log.view, mark.offset - 1, check=True) is None

    def kept(self, topic: str, log: LogSnapshot, taken: int, mark: StreamMark | None) -> int:
        """Return up to where what was read of a topic is what is there, as nearly as can be told. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        end = log.view.stop
        if mark is None:
            return min(taken, end)
        if end >= taken and self.holds(topic, log, mark):
            return taken
        other = first_other(AnyFileSystem(), log.view, mark.frame, min(taken, end))
        if other is not None:
            return other
        return end if end < taken else min(mark.frame.durable, taken - 1)
