"""Opening a topic's files: the log, and each channel's journal and state. Blocking."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from aiodq.delivery.recovery import restored_state
from aiodq.engine.batch.put_batch import Part
from aiodq.engine.channel.addressed import FOR, addressed_since
from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.engine.monitoring.reporter import STORE, Reporter
from aiodq.engine.opened_files import Committed, OpenedStore, OpenedTopic
from aiodq.engine.topic.commit.segment_writer import write_blocking
from aiodq.errors import (
    DiskFullError,
    InvalidNameError,
    NotAStoreError,
    StorageError,
    StoreLockedError,
    StoreNotFoundError,
)
from aiodq.format.journal import MOST_REMAINING
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.storage.bulk.adoption import adopt_pending, finish_adoptions, unadoptable
from aiodq.storage.bulk.commit_lock import lock_commits, lock_store
from aiodq.storage.bulk.commits import read_commits
from aiodq.storage.io.durable_io import ensure_directory, sync_directory, sync_present
from aiodq.storage.io.file_pool import PooledFileSystem
from aiodq.storage.io.filesystem import directory_exists, locked, name_exists
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import is_lasting, os_errors
from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.read.delayed_index import delayed
from aiodq.storage.read.log_reader import transactions_in
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.store_identity import StoreIdentity
from aiodq.storage.state.topic.stored_options import StoredOptions, holding, kept
from aiodq.storage.state.transactions.parked_transactions import drop_owed, keep_owed, owed_to, read_owed
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.storage.state.watermark import WATERMARK
from aiodq.storage.store_layout import (
    NO_DIRECTORY,
    check_store_directory,
    has_topics,
    holds_other_things,
    list_topics,
    refuse_inside_store,
    require_own_directories,
    require_store,
    sweep_deleted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.format.columns import Columns
    from aiodq.format.transactions import Block, Puts
    from aiodq.storage.io.filesystem import FileSystem, Lock
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.state.transactions.parked_transactions import Owed

__all__ = [
    "adopt_without_owner",
    "make_log",
    "open_channel",
    "open_store",
    "open_topic",
]


def open_store(
    fs: FileSystem,
    clock: Clock,
    path: str,
    options: StoreOptions | None,
    *,
    create: bool = True,
    committing: bool = False,
) -> OpenedStore:
    """Take a store's lock, and open its files or create them. Blocking.

    Args:
        fs: the file system.
        clock: gives the time of what is written.
        path: the directory.
        options: those given to the store, or None: for new topics, and for those without options of their own.
        create: whether a missing store is created.
        committing: whether the caller holds the lock of bulk commits; it waits for no owner then.

    Raises:
        StoreLockedError: another owner has it.
        StoreNotFoundError: there is none, and none is to be created.
        NotAStoreError: the directory is something else, or lies inside a store.
        StorageError: as mapped from the system's error.
    """
    with ExitStack() as undo:
        lock = _claim(fs, path, locked if committing else lock_store, create=create)
        undo.callback(lock.release)
        # CRASH: names that a killed owner or writer created, renamed or removed without a sync are durable from here
        # on. That includes the lock's name: without it, the directory of a half-created topic looks like any other.
        sync_directory(fs, path)
        owed, identity = read_owed(fs, path), StoreIdentity(fs, path)
        done: set[str] = set()
        sweep_deleted(fs, path, done)
        unusable, blocked = finish_adoptions(fs, path, done)
        transactions = TransactionFile(fs, path, clock.now_ns())
        undo.callback(transactions.close)
        committed = _committed_in(
            [*(block for files in owed.values() for one in files for block in one.blocks), *transactions.found]
        )
        topics = _Topics(fs, clock, path, options, committed, unusable)
        undo.callback(topics.abandon)
        topics.open_all()
        now_ns = clock.now_ns()
        adopt_pending(fs, path, now_ns, lambda name: topics.opened(name).log, blocked, done, committing=committing)
        for topic in topics.there.values():
            for _, state in topic.channels.values():
                state.extend(topic.log.end)
        for name in committed.keys() & (topics.unusable.keys() | topics.owing.keys()):
            if blocks := owed_to(name, transactions.found):
                keep_owed(fs, path, name, blocks)
            del committed[name]
        taken = [one for name, files in owed.items() if name in committed for one in files]
        if topics.there:
            identity.make()
        else:
            identity.drop(partial(has_topics, fs, path))
        undo.pop_all()
    found = topics.there, committed, taken, topics.unusable, topics.owing, blocked, done, identity
    return OpenedStore(lock, transactions, *found, _own_damages(identity, transactions, owed))


def _own_damages(
    identity: StoreIdentity, transactions: TransactionFile, owed: Mapping[str, Sequence[Owed]]
) -> list[Damage]:
    """Return what is damaged of a store's own files."""
    parked = (damage for files in owed.values() for one in files for damage in one.damages)
    return [*identity.damages, *transactions.damages, *parked]


class _Topics:
    """The topics of a store being opened. One that cannot be used does not affect the others.

    Attributes:
        there: the opened topics, by name.
        unusable: the error of each topic that has files and could not be opened.
        owing: the error of each topic that could not be created.
    """

    def __init__(  # noqa: PLR0917 - as `open_channel`
        self, fs: FileSystem, clock: Clock, path: str, options: StoreOptions | None, committed: dict[str, Committed],
        unusable: dict[str, StorageError],
    ) -> None:  # fmt: skip
        self.there: dict[str, OpenedTopic] = {}
        self.unusable = unusable
        self.owing: dict[str, StorageError] = {}
        self._fs = fs
        self._clock = clock
        self._path = path
        self._options = options
        self._committed = committed
        self._names: set[str] = set()

    def open_all(self) -> None:
        """Open all topics there are, and those that transactions put into.

        Raises:
            StorageError: an error that may pass, or concerns more than one topic.
        """
        # INVARIANT: the store's directory was synced before, so that the names found in it are durable.
        self._names = set(list_topics(self._fs, self._path))
        for name in sorted(self._names | self._committed.keys()):
            try:
                self.opened(name)
            except DiskFullError:
                if name in self._names:
                    raise
            except StorageError as error:
                if not is_lasting(error):
                    raise

    def opened(self, name: str) -> OpenedTopic:
        """Return a topic; open or create it first if needed.

        Raises:
            StorageError: as mapped from the system's error.
        """
        error = self.unusable.get(name) or self.owing.get(name)
        if error is not None:
            raise error
        if name not in self.there:
            try:
                self.there[name] = open_topic(
                    self._fs, self._clock, self._path, name, self._options, self._committed.get(name),
                    synced=name in self._names,
                )  # fmt: skip
            except StorageError as refused:
                if is_lasting(refused):
                    (self.unusable if name in self._names else self.owing)[name] = refused
                raise
        return self.there[name]

    def abandon(self) -> None:
        """Close everything."""
        for topic in self.there.values():
            topic.abandon()


def _claim(fs: FileSystem, path: str, take: Callable[[FileSystem, str], Lock], *, create: bool) -> Lock:
    if not create:
        require_store(fs, path)
    refuse_inside_store(fs, path)
    # A process that waits for the lock comes here many times, but syncs the directory's name only as the owner.
    there = directory_exists(fs, path)
    # Another process may create it between any two of these checks: several often open a new store at once.
    if not there and name_exists(fs, path) and not directory_exists(fs, path):
        raise NotAStoreError(NO_DIRECTORY, path)
    made = not there and _make_directory(fs, path)
    check_store_directory(fs, path)
    lock = take(fs, path)
    try:
        if not made:
            ensure_directory(fs, path)
        require_own_directories(fs, path)
    except BaseException:
        lock.release()
        raise
    return lock


def _make_directory(fs: FileSystem, path: str) -> bool:
    parent = os.path.dirname(path)
    try:
        return ensure_directory(fs, path)
    except StoreNotFoundError as error:
        if directory_exists(fs, parent):
            raise
        if name_exists(fs, parent):
            raise NotAStoreError(NO_DIRECTORY, parent) from error
        text = f"there is no directory {parent}, in which to make the store"
        raise StoreNotFoundError(text, path, errno=error.errno) from error


def adopt_without_owner(fs: FileSystem, clock: Clock, path: str, options: StoreOptions | None) -> bool:
    """Own a store briefly to adopt committed bulk loads; return False if it is owned already. Blocking.

    Processes that open it meanwhile wait. This logs what an owner would log: damage, and commits that are left.

    Raises:
        StoreLockedError: others were committing for many seconds.
        StorageError: as mapped from the system's error.
    """
    fs = PooledFileSystem(fs, frozenset({WATERMARK}))
    lock = lock_commits(fs, path)
    began = clock.monotonic()
    try:
        opened = open_store(fs, clock, path, options, committing=True)
        try:
            reporter = Reporter(path)
            reporter.opened(clock.monotonic() - began, opened)
            _report_commits(fs, path, reporter, opened.done)
        finally:
            opened.abandon()
    except StoreLockedError:
        return False
    finally:
        fs.retire()
        lock.release()
    return True


def _report_commits(fs: FileSystem, path: str, reporter: Reporter, done: set[str]) -> None:
    """Report what is damaged of bulk commits, and which ones an opening has not adopted."""
    found = read_commits(fs, path, done=done)
    for damage in found.damages:
        reporter.store_damaged(damage)
    for commit in found.pending:
        reasons = unadoptable(fs, path, commit) or ["it could not be taken over now"]
        reporter.warn(STORE, f"the bulk load {commit.key.name!r} is left to the next owner: {reasons[0]}")


def _committed_in(blocks: Iterable[Block]) -> dict[str, Committed]:
    """Return the acks and puts of committed transactions by topic; each transaction once."""
    topics: dict[str, Committed] = defaultdict(Committed)
    known: set[tuple[str, int]] = set()
    for block in blocks:
        for puts in block.commit.puts:
            if (puts.topic, block.number) in known:
                continue  # it was parked, and its block is still in the transaction log
            known.add((puts.topic, block.number))
            puts.columns.transaction = block.number
            topics[puts.topic].puts.append((block.number, puts))
        for acks in block.commit.acks:
            topics[acks.topic].acks.append(acks)
    return topics


def open_topic(  # noqa: PLR0917 - as `open_channel`
    fs: FileSystem,
    clock: Clock,
    store: str,
    name: str,
    options: StoreOptions | None,
    committed: Committed | None = None,
    record: StoredOptions | None = None,
    *,
    synced: bool = False,
) -> OpenedTopic:
    """Open or create one topic's files, and put into them what transactions committed to it. Blocking.

    Args:
        fs: the store's file system.
        clock: the store's clock.
        store: its directory.
        name: the topic's name.
        options: those given to the store, or None.
        committed: what transactions committed to it.
        record: the options to store if the topic is created now; None for those given, or the library's defaults.
        synced: see `ensure_directory`, of the topic's directory.

    Raises:
        StorageError: as mapped from the system's error, or as raised by `TopicLog`.
    """
    record = record or StoredOptions(named=False, options=kept(options or StoreOptions()))
    log = TopicLog(fs, os.path.join(store, name), LogOptions.of(record.options), clock, record, synced=synced)
    log.configure(LogOptions.of(holding(None, log.meta.options, options)))
    topic = OpenedTopic(log)
    try:
        if committed is not None:
            topic.left = _put_missing(fs, clock, log, committed.puts)
        dues: Iterable[tuple[int, int, int]] = delayed(fs, log.view()) if log.meta.channels else ()
        if log.meta.channels:
            _sync_channels(fs, log)
        for channel, start in log.meta.channels.items():
            topic.channels[channel] = open_channel(fs, clock, log, channel, start, dues, synced=True)
        for acks in () if committed is None else committed.acks:
            if acks.channel in topic.channels:
                for start, stop in acks.ranges:
                    topic.channels[acks.channel][1].purge(start, stop)
        if committed is not None:
            _pass_over(fs, topic, committed.puts)
    except BaseException:
        topic.abandon()
        raise
    return topic


def _sync_channels(fs: FileSystem, log: TopicLog) -> None:
    """Sync the names of all channels at once: with a sync for each, a thousand would keep the device busy."""
    directory = os.path.join(log.directory, "channels")
    # Recovery has synced the topic's directory.
    ensure_directory(fs, directory, synced=True)
    with os_errors(directory):
        sync_present(fs, directory)


def _pass_over(fs: FileSystem, topic: OpenedTopic, puts: Sequence[tuple[int, Puts]]) -> None:
    """Settle in each channel the messages that transactions addressed to another channel."""
    # CRASH: 19. Until the transaction log is emptied, the channels' journals may not record that.
    if not any(FOR in own for _, put in puts for own in put.columns.headers or ()):
        return
    for offset, name in addressed_since(fs, topic.log, min(put.since for _, put in puts)):
        for channel, (_, state) in topic.channels.items():
            if channel != name:
                state.skip(offset, offset + 1)


def _put_missing(fs: FileSystem, clock: Clock, log: TopicLog, puts: Sequence[tuple[int, Puts]]) -> list[Columns]:
    """Append what the log does not hold; return what there is no room for."""
    if not puts:
        return []
    since = min(put.since for _, put in puts)
    missing = _missing(fs, log, puts, since)
    # CRASH: 19. If this is interrupted, the transactions' numbers show the next owner how far it got.
    try:
        write_blocking(log, [Part(columns, [], atomic=True) for columns in missing], clock)
    except DiskFullError:
        log.rollback()
        return _missing(fs, log, puts, since)
    return []


def _missing(fs: FileSystem, log: TopicLog, puts: Sequence[tuple[int, Puts]], since: int) -> list[Columns]:
    there = transactions_in(fs, log.view(), since)
    return [put.columns for number, put in puts if number not in there]


def make_log(  # noqa: PLR0917 - as `open_channel`
    fs: FileSystem, clock: Clock, store: str, name: str, record: StoredOptions, identity: StoreIdentity | None
) -> TopicLog:
    """Create a topic's files, apply its parked transactions, and with the first topic make the store's identity.

    Blocking.

    Raises:
        InvalidNameError: the file system takes the name for another topic's.
        DiskFullError: there is no room for its parked transactions. Calling it again is safe.
        StorageError: as mapped from the system's error.
    """
    _require_own_directory(fs, store, name)
    owed = read_owed(fs, store).get(name, [])
    committed = _committed_in(block for one in owed for block in one.blocks).get(name)
    topic = open_topic(fs, clock, store, name, record.options, committed, record)
    if topic.left:
        # INVARIANT: nothing is put behind transactions before all of them are there, nor is anything deleted: what is
        # there shows what was applied. The next attempt, or the next owner, applies the rest.
        topic.abandon()
        text = "no space left for what transactions committed to this topic: free some, and try again"
        raise DiskFullError(text, topic.log.directory, errno=errno.ENOSPC, retriable=True)
    # They are synced there, and nothing can have been deleted yet.
    drop_owed(fs, owed)
    if identity is not None:
        _make_identity(identity, topic)
    return topic.log


def _make_identity(identity: StoreIdentity, topic: OpenedTopic) -> None:
    try:
        identity.make()
    except BaseException:
        topic.abandon()
        raise


def _require_own_directory(fs: FileSystem, store: str, name: str) -> None:
    """Ensure that nothing else lies in the place of a topic that is to be created."""
    directory = os.path.join(store, name)
    with os_errors(store):
        there = fs.is_directory(directory)
        taken = there and name not in fs.listdir(store)
        # INVARIANT: no store lies in a topic's directory, with which it would be deleted.
        is_store = there and fs.exists(os.path.join(directory, LOCK_NAME))
        # INVARIANT: nor do any other files.
        is_other = there and holds_other_things(fs, store, name)
    if is_store:
        raise StorageError("another store lies where this topic would: use another name, or move that store", directory)
    if is_other:
        raise StorageError("other files lie where this topic would: use another name, or move them away", directory)
    if taken:
        raise InvalidNameError(f"this file system takes {name!r} for a topic that differs in case alone: use that name")


def open_channel(  # noqa: PLR0917 - a channel hangs on that much
    fs: FileSystem,
    clock: Clock,
    log: TopicLog,
    channel: str,
    start: int,
    dues: Iterable[tuple[int, int, int]],
    *,
    synced: bool = False,
) -> tuple[ChannelJournal, ChannelState]:
    """Open or create a channel's files, and return its state as far as the log still holds it. Blocking.

    Args:
        fs: the store's file system.
        clock: the store's clock.
        log: the topic's log.
        channel: its name.
        start: the offset at which it began.
        dues: what `delayed` found in the log.
        synced: see `ensure_directory`, of the directory of the topic's channels, and of the channel's own.

    Raises:
        StorageError: as mapped from the system's error, or as raised by `ChannelJournal`.
    """
    ensure_directory(fs, os.path.join(log.directory, "channels"), synced=synced)
    directory, described = os.path.join(log.directory, "channels", channel), channel in log.meta.channels
    journal = ChannelJournal(fs, directory, start, log.meta.uuid, described=described, synced=synced)
    try:
        wall, now = clock.now_ns(), monotonic_ns(clock)
        most = ChannelOptions().max_in_flight
        state = restored_state(journal.image, journal.ops, log.end, most, wall=wall, now=now)
        for offset, put, due in dues:
            # The due time of a delivered message, if any, is in its journal.
            if due > wall and not state.attempts(offset):
                state.defer(offset, now + due - max(wall, put))
        for lost in log.meta.lost:
            state.lose(*lost)
        state.miss(0, log.begin)
        state.counters.dropped = 0
        for segment, following in pairwise(log.segments):
            state.purge(segment.end, following.base)
        if journal.unclean or journal.reach > log.end or state.settled.total > MOST_REMAINING:
            # CRASH: entries for messages that the log lost must be gone before their offsets are used again. And what
            # a watermark of junk makes missing may take more operations than a disk holds, but one range.
            journal.fold(state.snapshot(wall, now))
            state.all_noted()
    except BaseException:
        journal.close()
        raise
    return journal, state
