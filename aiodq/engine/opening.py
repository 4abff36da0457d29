"""Opening a topic's files: the log, and each channel's journal and state. Blocking."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from aiodq.delivery.channel import ChannelState
from aiodq.engine.adopting import adopt_pending
from aiodq.engine.alarm import monotonic_ns
from aiodq.engine.batch import Part
from aiodq.engine.writer import write_blocking
from aiodq.errors import DiskFullError, StoreLockedError
from aiodq.format.codecs import codec_number
from aiodq.options import ChannelOptions
from aiodq.storage.adoption import finish_adoptions
from aiodq.storage.atomic import ensure_directory, sync_directory
from aiodq.storage.commitlock import lock_commits, lock_store
from aiodq.storage.delayed import delayed
from aiodq.storage.journal import ChannelJournal
from aiodq.storage.layout import check_store_directory, list_topics, require_store, sweep_deleted
from aiodq.storage.log import LogOptions, TopicLog
from aiodq.storage.transactions import TransactionFile, transactions_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.clock import Clock
    from aiodq.format.columns import Columns
    from aiodq.format.transactions import Acks, Block, Puts
    from aiodq.options import StoreOptions
    from aiodq.storage.filesystem import FileSystem, Lock

__all__ = [
    "Brought",
    "OpenedStore",
    "OpenedTopic",
    "adopt_without_owner",
    "brought_by",
    "open_channel",
    "open_store",
    "open_topic",
]


@dataclass(slots=True)
class Brought:
    """What transactions were committed that a topic may not hold durably.

    Attributes:
        puts: by their numbers, in order.
        acks: of its channels.
    """

    puts: list[tuple[int, Puts]] = field(default_factory=list)
    acks: list[Acks] = field(default_factory=list)


class OpenedTopic:
    """A topic's files as they were opened in a thread: the log, and each channel with its journal.

    Attributes:
        log: the log.
        channels: by name.
        left: what transactions put for which the disk has no room now.
    """

    __slots__ = ("channels", "left", "log")

    def __init__(self, log: TopicLog) -> None:
        """Begin without channels."""
        self.log: TopicLog = log
        self.channels: dict[str, tuple[ChannelJournal, ChannelState]] = {}
        self.left: list[Columns] = []

    def abandon(self) -> None:
        """Close the files and nothing else."""
        for journal, _ in self.channels.values():
            journal.close()
        self.log.abandon()


class OpenedStore(NamedTuple):
    """A store's files as they were opened in a thread.

    Attributes:
        lock: the store's.
        transactions: the file.
        topics: by name.
        brought: what it says, by topic.
    """

    lock: Lock
    transactions: TransactionFile
    topics: dict[str, OpenedTopic]
    brought: dict[str, Brought]

    def abandon(self) -> None:
        """Close everything."""
        for topic in self.topics.values():
            topic.abandon()
        self.transactions.close()
        self.lock.release()


def open_store(
    fs: FileSystem,
    clock: Clock,
    path: str,
    options: StoreOptions,
    take: Callable[[FileSystem, str], Lock] = lock_store,
    *,
    create: bool = True,
) -> OpenedStore:
    """Take a store's lock, and open its files or make them. Blocking.

    Args:
        fs: the file system.
        clock: for what is written.
        path: the directory.
        options: the store's.
        take: takes the lock.
        create: a store that is not there is made.

    Raises:
        StoreLockedError: another owner has it.
        StoreNotFoundError: there is none, and none is to be made.
        NotAStoreError: the directory is something else.
        StorageError: as mapped from the system's error.
    """
    with ExitStack() as undo:
        lock = _claim(fs, path, take, create=create)
        undo.callback(lock.release)
        sweep_deleted(fs, path)
        finish_adoptions(fs, path)
        transactions = TransactionFile(fs, path)
        undo.callback(transactions.close)
        brought = brought_by(transactions.found)
        topics: dict[str, OpenedTopic] = {}

        def opened(name: str) -> OpenedTopic:
            if name not in topics:
                topics[name] = open_topic(fs, clock, path, name, options, brought.get(name))
                undo.callback(topics[name].abandon)
            return topics[name]

        names = list_topics(fs, path)
        if not names:
            # CRASH: without LOCK the directory of a topic that is half made is not known for what it is.
            sync_directory(fs, path)
        for name in names:
            opened(name)
        for name in sorted(brought.keys() - topics.keys()):
            with suppress(DiskFullError):
                opened(name)
        adopt_pending(fs, clock, path, lambda name: opened(name).log)
        for topic in topics.values():
            for _, state in topic.channels.values():
                state.extend(topic.log.end)
        undo.pop_all()
    return OpenedStore(lock, transactions, topics, brought)


def _claim(fs: FileSystem, path: str, take: Callable[[FileSystem, str], Lock], *, create: bool) -> Lock:
    if not create:
        require_store(fs, path)
    # Who waits for the lock comes here many times, and makes the directory's name durable only once it is the owner.
    made = not fs.is_directory(path) and ensure_directory(fs, path)
    check_store_directory(fs, path)
    lock = take(fs, path)
    try:
        if not made:
            ensure_directory(fs, path)
    except BaseException:
        lock.release()
        raise
    return lock


def adopt_without_owner(fs: FileSystem, clock: Clock, path: str, options: StoreOptions) -> bool:
    """Own a store for a moment, so that it takes over what was committed; return whether nobody else owns it. Blocking.

    Whoever wants to open it meanwhile waits.

    Raises:
        StoreLockedError: others were committing for many seconds.
        StorageError: as mapped from the system's error.
    """
    lock = lock_commits(fs, path)
    try:
        open_store(fs, clock, path, options, lambda fs, path: fs.lock(path)).abandon()
    except StoreLockedError:
        return False
    finally:
        lock.release()
    return True


def brought_by(blocks: Iterable[Block]) -> dict[str, Brought]:
    """Return what committed transactions bring, by topic."""
    topics: dict[str, Brought] = defaultdict(Brought)
    for block in blocks:
        for puts in block.commit.puts:
            puts.columns.transaction = block.number
            topics[puts.topic].puts.append((block.number, puts))
        for acks in block.commit.acks:
            topics[acks.topic].acks.append(acks)
    return topics


def open_topic(  # noqa: PLR0917 - as `open_channel`
    fs: FileSystem, clock: Clock, store: str, name: str, options: StoreOptions, brought: Brought | None = None
) -> OpenedTopic:
    """Open one topic's files, or make them, and put into them what transactions brought. Blocking.

    Raises:
        StorageError: as mapped from the system's error, or what `TopicLog` says.
    """
    log_options = LogOptions(options.segment_bytes, codec_number(options.compression))
    log = TopicLog(fs, os.path.join(store, name), log_options, clock)
    topic = OpenedTopic(log)
    try:
        if brought is not None:
            topic.left = _put_missing(fs, clock, log, brought.puts)
        dues: Iterable[tuple[int, int, int]] = delayed(fs, log.view()) if log.meta.channels else ()
        for channel, start in log.meta.channels.items():
            topic.channels[channel] = open_channel(fs, clock, log, channel, start, dues)
        for acks in () if brought is None else brought.acks:
            if acks.channel in topic.channels:
                for start, stop in acks.ranges:
                    topic.channels[acks.channel][1].purge(start, stop)
    except BaseException:
        topic.abandon()
        raise
    return topic


def _put_missing(fs: FileSystem, clock: Clock, log: TopicLog, puts: Sequence[tuple[int, Puts]]) -> list[Columns]:
    """Append what the log does not hold; return what there is no room for."""
    if not puts:
        return []
    since = min(put.since for _, put in puts)
    missing = _missing(fs, log, puts, since)
    # CRASH: cut short, the next owner finds by the numbers how far this got.
    try:
        write_blocking(log, [Part(columns, [], atomic=True) for columns in missing], clock)
    except DiskFullError:
        log.rollback()
        return _missing(fs, log, puts, since)
    return []


def _missing(fs: FileSystem, log: TopicLog, puts: Sequence[tuple[int, Puts]], since: int) -> list[Columns]:
    there = transactions_in(fs, log, since)
    return [put.columns for number, put in puts if number not in there]


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
        state.miss(0, log.begin)
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
