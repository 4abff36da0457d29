"""Marks in a stream's offsets that identify the message before each, so that others with the same numbers are noticed.

For each topic, `"marks": {"orders": [123, 1767225600000000000, 305419896, 120]}` holds the offset and, of the frame
with the message before it, the time, the checksum, and the durable end of the log when it was written. Offsets without
a mark, or changed by hand, are taken as they are. So are offsets before which everything was deleted or cannot be read.
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
    """The mark of an offset: the offset, and what identifies the frame that holds the message before it."""

    offset: int
    frame: FrameMark

    def encode(self) -> list[int]:
        """Return the mark as JSON for offsets."""
        return [self.offset, *self.frame]


def marks_of(offsets: Mapping[str, Any]) -> dict[str, StreamMark]:
    """Return the marks in offsets, by topic."""
    said = offsets.get("marks")
    found: dict[str, StreamMark] = {}
    for topic, mark in said.items() if isinstance(said, dict) else ():
        numbers = isinstance(mark, list) and len(mark) == _NUMBERS and all(isinstance(each, int) for each in mark)
        if numbers and mark[0] == offsets["topics"].get(topic):
            found[topic] = StreamMark(mark[0], FrameMark(*mark[1:]))
    return found


class StreamMarks:
    """The marks of one query, with the positions of the frames, so that each is found again without a search."""

    def __init__(self) -> None:
        """Start without marks."""
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
        """Return whether the message before an offset is the marked one, or cannot be told from it. Blocking.

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
        # Damage to a message that was read already is no loss.
        return find_frame(fs, log.view, mark.offset - 1, check=True) is None

    def kept(self, topic: str, log: LogSnapshot, taken: int, mark: StreamMark | None) -> int:
        """Return the offset up to which a topic still has the messages that were read, as far as is known. Blocking.

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
