"""The substitute for the log of a topic that was named and has no files yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.storage.read.log_reader import LogView
from aiodq.storage.segments.segment_list import SegmentList

if TYPE_CHECKING:
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["NoLog"]


class NoLog:
    """An empty log without files."""

    begin = 0
    end = 0
    durable = 0
    cut_bytes = 0
    lost = 0
    segments: tuple[Segment, ...] = ()
    listed: SegmentList = SegmentList()
    damages: tuple[Damage, ...] = ()

    def view(self, stop: int | None = None) -> LogView:
        """Return an empty view."""
        return LogView((), stop or 0, 0)

    def close(self) -> None:
        """Do nothing, as there are no files."""

    def abandon(self) -> None:
        """Do nothing, as there are no files."""
