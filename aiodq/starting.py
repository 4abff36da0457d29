"""Where a new channel begins."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from aiodq.options import time_ns
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from aiodq.options import Start
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["known_start", "start_offset"]


def start_offset(fs: FileSystem, start: Start, log: TopicLog, *, first: bool) -> int:
    """Return where a new channel begins (see `ChannelOptions.start`). Blocking."""
    if not isinstance(start, datetime):
        return _start_within(start, log.begin, log.end, first=first)
    reader = LogReader(fs)
    try:
        return reader.offset_at(log.view(), time_ns(start))
    finally:
        reader.close()


def known_start(start: Start, begin: int, end: int, *, first: bool) -> int | None:
    """Return where a new channel of a log from `begin` to `end` begins, or None where that has to be read."""
    return None if isinstance(start, datetime) else _start_within(start, begin, end, first=first)


def _start_within(start: str | int | None, begin: int, end: int, *, first: bool) -> int:
    if start is None:
        start = "earliest" if first else "latest"
    if start == "earliest":
        return begin
    return end if start == "latest" else min(max(int(start), begin), end)
