"""Where a new channel begins, and where one goes on from."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodq.errors import OffsetError
from aiodq.options import time_ns
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.options import Position, Start
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["known_start", "move_channel", "start_offset"]


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


async def move_channel(engine: TopicEngine, channel_engine: ChannelEngine[Any], position: Position) -> None:
    """Have a channel go on from another place, durably; see `Channel.seek`.

    Raises:
        OffsetError: beyond the log, or before what is still kept; nothing changed.
    """
    await engine.settle_in(channel_engine.name)
    begin, end = engine.log.begin, engine.visible
    if isinstance(position, datetime):
        wanted = time_ns(position)
        found = await engine.look(partial(LogReader.offset_at, view=engine.view(), time_ns=wanted))
        offset = max(found, engine.log.begin)
    elif isinstance(position, int):
        if not begin <= position <= end:
            raise OffsetError(
                f"channel {channel_engine.name!r} may go to offsets {begin} to {end}, not to {position}: "
                "write 'earliest' or 'latest' for the ends"
            )
        offset = position
    else:
        offset = end if position == "latest" else begin
    channel_engine.seek(offset)
    await channel_engine.committed()
