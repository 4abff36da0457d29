"""Opening a topic's files: the log, and each channel's journal and state. Blocking."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

from aiodq.delivery.channel import ChannelState
from aiodq.engine.alarm import monotonic_ns
from aiodq.format.codecs import codec_number
from aiodq.options import ChannelOptions
from aiodq.storage.atomic import ensure_directory
from aiodq.storage.delayed import delayed
from aiodq.storage.journal import ChannelJournal
from aiodq.storage.log import LogOptions, TopicLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.clock import Clock
    from aiodq.options import StoreOptions
    from aiodq.storage.filesystem import FileSystem

__all__ = ["OpenedTopic", "open_channel", "open_topic"]


class OpenedTopic:
    """A topic's files as they were opened in a thread: the log, and each channel with its journal."""

    __slots__ = ("channels", "log")

    def __init__(self, log: TopicLog) -> None:
        """Begin without channels."""
        self.log: TopicLog = log
        self.channels: dict[str, tuple[ChannelJournal, ChannelState]] = {}

    def abandon(self) -> None:
        """Close the files and nothing else."""
        for journal, _ in self.channels.values():
            journal.close()
        self.log.abandon()


def open_topic(fs: FileSystem, clock: Clock, store: str, name: str, options: StoreOptions) -> OpenedTopic:
    """Open one topic's files, or make them. Blocking.

    Raises:
        StorageError: as mapped from the system's error, or what `TopicLog` says.
    """
    log_options = LogOptions(options.segment_bytes, codec_number(options.compression))
    log = TopicLog(fs, os.path.join(store, name), log_options, clock)
    topic = OpenedTopic(log)
    try:
        dues: Iterable[tuple[int, int, int]] = delayed(fs, log) if log.meta.channels else ()
        for channel, start in log.meta.channels.items():
            topic.channels[channel] = open_channel(fs, clock, log, channel, start, dues)
    except BaseException:
        topic.abandon()
        raise
    return topic


def open_channel(  # noqa: PLR0917 - a channel hangs on that much
    fs: FileSystem, clock: Clock, log: TopicLog, channel: str, start: int, dues: Iterable[tuple[int, int, int]]
) -> tuple[ChannelJournal, ChannelState]:
    """Open a channel's files, or make them, and return its state as far as the log still holds it. Blocking.

    Args:
        fs: the store's.
        clock: likewise.
        log: the topic's.
        channel: its name.
        start: where it began.
        dues: what `delayed` found in the log.

    Raises:
        StorageError: as mapped from the system's error, or what `ChannelJournal` says.
    """
    ensure_directory(fs, os.path.join(log.directory, "channels"))
    journal = ChannelJournal(fs, os.path.join(log.directory, "channels", channel), start)
    try:
        wall, now = clock.now_ns(), monotonic_ns(clock)
        most = ChannelOptions().max_in_flight
        state = ChannelState.restored(journal.image, journal.ops, log.end, most, wall=wall, now=now)
        for offset, put, due in dues:
            # One that was delivered has its due time, if any, from its journal.
            if due > wall and not state.attempts(offset):
                state.defer(offset, now + due - max(wall, put))
        state.drop_below(log.begin)
        state.counters.dropped = 0
        for segment, following in pairwise(log.segments):
            state.lose(segment.end, following.base)
        if journal.unclean or journal.reach > log.end:
            # CRASH: what names messages that the log lost must be gone before their numbers are given again.
            journal.fold(state.image(wall, now))
    except BaseException:
        journal.close()
        raise
    return journal, state
