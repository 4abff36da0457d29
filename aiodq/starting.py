"""The offset at which a new channel begins, and the place in the log where a channel continues after a seek."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from aiodq.delivery.deferrals import Deferrals
from aiodq.delivery.range_set import RangeSet
from aiodq.engine.channel.seek_target import SeekTarget
from aiodq.errors import OffsetError
from aiodq.options import time_ns
from aiodq.storage.read.delayed_index import delayed
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.options import Position, Start
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.read.log_reader import LogView

__all__ = ["find_target", "known_start", "move_channel", "start_offset"]

_END: Final = 1 << 62
"""An offset after the end of every log."""


def start_offset(fs: FileSystem, start: Start, log: TopicLog, *, first: bool) -> int:
    """Return the offset at which a new channel begins (see `ChannelOptions.start`). Blocking."""
    if not isinstance(start, datetime):
        return _start_within(start, log.begin, log.end, first=first)
    reader = LogReader(fs)
    try:
        return reader.offset_at(log.view(), time_ns(start))
    finally:
        reader.close()


def known_start(start: Start, begin: int, end: int, *, first: bool) -> int | None:
    """Return the offset at which a new channel begins in a log from `begin` to `end`; None: it has to be read."""
    return None if isinstance(start, datetime) else _start_within(start, begin, end, first=first)


def _start_within(start: str | int | None, begin: int, end: int, *, first: bool) -> int:
    if start is None:
        start = "earliest" if first else "latest"
    if start == "earliest":
        return begin
    return end if start == "latest" else min(max(int(start), begin), end)


async def find_target(engine: TopicEngine, channel_engine: ChannelEngine[Any], position: Position) -> SeekTarget:
    """Return the place in the log at which a channel is to continue; see `Channel.seek`.

    Raises:
        OffsetError: beyond the log, or before what is still kept.
        StorageError: the log could not be read there.
    """
    await engine.settle_in(channel_engine.name)
    begin, end = engine.log.begin, engine.visible
    _check_position(engine, channel_engine, position)
    target = SeekTarget(position if isinstance(position, int) else begin, end, Deferrals(), RangeSet())
    if position == "latest":
        return target._replace(offset=_END)
    fs, view, times = engine.real_log().fs, engine.view(), channel_engine.times()
    if isinstance(position, datetime):
        found = await engine.reader.look(partial(LogReader.offset_at, view=view, time_ns=time_ns(position)))
        target = target._replace(offset=found)
    return await engine.reader.look(lambda _: _look_from(fs, view, target, times))


def _look_from(fs: FileSystem, view: LogView, target: SeekTarget, times: tuple[int, int]) -> SeekTarget:
    """Find the messages from a target on that are not due yet, at these wall and monotonic times. Blocking."""
    wall, now = times
    for number, put, due in delayed(fs, view, target.offset):
        if number >= target.offset and due > wall:
            target.deferred.add(number, now + due - max(wall, put))
            target.passed.add(number, number + 1)
    return target


def _check_position(engine: TopicEngine, channel_engine: ChannelEngine[Any], position: Position) -> None:
    begin, end = engine.log.begin, engine.visible
    if isinstance(position, int) and not begin <= position <= end:
        raise OffsetError(
            f"channel {channel_engine.name!r} may go to offsets {begin} to {end}, not to {position}: "
            "write 'earliest' or 'latest' for the ends"
        )


async def move_channel(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], target: SeekTarget, position: Position
) -> None:
    """Move a channel to another place in the log, durably; see `Channel.seek`.

    Raises:
        OffsetError: retention has deleted it since the target was found; nothing changed.
    """
    await engine.settle_in(channel_engine.name)
    _check_position(engine, channel_engine, position)
    log = engine.real_log()
    offset = min(max(target.offset, log.begin), engine.visible)
    gaps = [(one.end, following.base) for one, following in pairwise(log.segments) if one.end < following.base]
    channel_engine.seek(target._replace(offset=offset, gaps=gaps, lost=log.meta.lost))
    await channel_engine.committed()
