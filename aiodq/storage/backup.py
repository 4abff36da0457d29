"""A backup of a store, made while its owner runs: a copy of its files as they were at one moment.

The owner says when to copy what (`aiodq.engine.store.backups`). The copy is a store as an owner that was killed at that
moment would have left it, with everything durable; opening it recovers it like any other. It gets its name once it is
complete. Until then it has a temporary name; a directory of that name was left by an interrupted backup, and the next
backup removes it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import NotAStoreError, StorageError, StoreLockedError, StoreNotFoundError
from aiodq.format.segment import topic_salt
from aiodq.storage.bulk.commits import COMMITS, read_commits, staging_directory
from aiodq.storage.io.durable_io import TEMPORARY, list_own, write_all
from aiodq.storage.io.filesystem import close_file, directory_exists, name_exists
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.storage.state.assessment import CHANNELS
from aiodq.storage.state.channel_files import CHECKPOINT, JOURNAL
from aiodq.storage.state.holds import HOLDS
from aiodq.storage.state.store_identity import STORE_FILE
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE
from aiodq.storage.state.transactions.parked_transactions import ASIDE
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS
from aiodq.storage.state.transactions.transaction_origins import ORIGINS
from aiodq.storage.state.watermark import SLOT_FILE_BYTES, WATERMARK, WatermarkFile
from aiodq.storage.store_layout import refuse_inside_store, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiodq.storage.bulk.commits import Commit
    from aiodq.storage.io.filesystem import File, FileSystem, Lock
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.read.log_reader import LogView

__all__ = ["Backup", "LogCopy"]

_PIECE: Final = 1 << 20
"""Bytes copied between two looks at whether the backup is still wanted."""

_MOST_TAKEN: Final = 16 << 20
"""Bytes of small files that are kept in memory until they may be written; what exceeds them is written at once."""


class LogCopy(NamedTuple):
    """A topic's log as it was at one moment. Noting it is cheap: many are noted in one step of an event loop.

    Attributes:
        name: the topic's.
        log: the log, which continues to change.
        view: what could be read at that moment.
        grows: whether the last segment was still growing. It may be sealed meanwhile.
        undeleted: the paths of segments that are no longer needed, although nothing on disk may say so yet.
    """

    name: str
    log: TopicLog
    view: LogView
    grows: bool
    undeleted: tuple[str, ...]

    @classmethod
    def of(cls, name: str, log: TopicLog, undeleted: Iterable[str]) -> LogCopy:
        """Note a log as it is at this moment."""
        view = log.view()
        return cls(name, log, view, not view.segments[-1].sealed, tuple(undeleted))

    @property
    def messages(self) -> int:
        """How many messages its segments have offsets for."""
        return self.view.stop - self.view.segments[0].base

    def sizes(self) -> Iterator[tuple[str, int | None]]:
        """Yield the paths of its segments, each with the bytes to copy, or None for the whole file."""
        last = self.view.segments[-1]
        for segment in self.view.segments:
            yield segment.path, self.view.data_end if segment is last and self.grows else None


class Backup:
    """One backup of a store. Blocking. Several threads may call `take_topic_files` at once, and so for `sync_some`.

    Attributes:
        target: the directory that it becomes.
    """

    def __init__(self, fs: FileSystem, store: str, target: str, check: Callable[[], None]) -> None:
        """Back up the store at `store`; `check` is called before each step, and raises to abort."""
        self.target: str = target
        self._fs = fs
        self._store = store
        self._check = check
        self._unfinished = target + TEMPORARY
        self._directories: dict[str, None] = {}
        self._copied: dict[str, int] = {}
        self._taken: deque[tuple[str, bytes]] = deque()
        self._room = _MOST_TAKEN
        self._taking = threading.Lock()
        self._unsynced: deque[partial[None]] = deque()
        self._lock: Lock | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes copied so far."""
        return sum(self._copied.values())

    def begin(self) -> None:
        """Create and lock the directory in which the backup is made.

        Raises:
            NotAStoreError: the target exists, or lies in this store or among another store's own files.
            StoreLockedError: another backup is being made there.
            StorageError: as mapped from the system's error.
        """
        self._refuse_place()
        fs, path = self._fs, self._unfinished
        with os_errors(path):
            while self._lock is None:
                self._check()
                with suppress(FileExistsError):  # an earlier backup left it, or another is being made
                    fs.make_directory(path)
                with suppress(StoreNotFoundError):  # another that is given up has just removed it
                    self._lock = self._locked(path)
            self._empty()
        self._directories[path] = None

    def _locked(self, path: str) -> Lock:
        try:
            return self._fs.lock(path)
        except StoreLockedError as error:
            raise StoreLockedError("another backup is being made there", path, pid=error.pid) from error

    def _refuse_place(self) -> None:
        fs, target = self._fs, self.target
        if f"{target}/".startswith(f"{self._store}/"):
            raise NotAStoreError("a backup inside the store itself is lost with it: choose a place outside", target)
        refuse_inside_store(fs, target)
        if name_exists(fs, target):
            raise NotAStoreError("something is there already: a backup makes a directory of its own", target)
        if not directory_exists(fs, os.path.dirname(target)):
            raise NotAStoreError("there is no directory in which to make the backup", target)
        left = self._unfinished
        if name_exists(fs, left) and not self._is_left(left) and name_exists(fs, left):  # else it was just removed
            raise NotAStoreError("this is where the backup is made at first, and something else is there", left)

    def _is_left(self, path: str) -> bool:
        """Return whether an earlier backup left this directory: it locked it before it put anything there."""
        if not directory_exists(self._fs, path):
            return False
        names = list_own(self._fs, path)
        return not names or LOCK_NAME in names

    def _empty(self) -> None:
        """Remove everything but `LOCK`, by which the directory is known as a backup's, also if this is interrupted."""
        for name in self._fs.listdir(self._unfinished):
            path = os.path.join(self._unfinished, name)
            if self._fs.is_directory(path):
                remove_tree(self._fs, path)
            elif name != LOCK_NAME:
                self._fs.remove(path)

    # --- what is small: read while nothing of it changes, and written later, as the disk of the backup may be slow

    def take_store_files(self) -> list[Commit]:
        """Take what the store keeps beside its topics; return the bulk loads that no topic has adopted yet."""
        for name in (STORE_FILE, TRANSACTIONS, ORIGINS):
            self._take_if_there(name)
        for name in (HOLDS, ASIDE):
            self._take_files(name)
        found = read_commits(self._fs, self._store)
        for commit in found.commits:
            self._take_if_there(os.path.join(COMMITS, commit.key.file))
        return found.pending

    def take_topic_files(self, name: str) -> None:
        """Take what a topic keeps beside its log."""
        # The description first: if a channel is created meanwhile, there may be files that the description does not
        # name, but it names none that are missing.
        self._take_if_there(os.path.join(name, TOPIC_FILE))
        channels = os.path.join(name, CHANNELS)
        for channel in list_own(self._fs, os.path.join(self._store, channels)):
            if directory_exists(self._fs, os.path.join(self._store, channels, channel)):
                for file in (CHECKPOINT, JOURNAL):
                    self._take_if_there(os.path.join(channels, channel, file))

    def write_taken(self) -> None:
        """Write the small files that were taken.

        Raises:
            StorageError: as mapped from the system's error.
        """
        while self._taken:
            self._check()
            name, data = self._taken.popleft()
            target = os.path.join(self._unfinished, name)
            with os_errors(target):
                self._make_directories(os.path.dirname(name))
                file = self._fs.open(target, create=True)
                try:
                    self._copied[target] = write_all(file, [data], 0)
                finally:
                    file.close()

    def _take_files(self, name: str) -> None:
        for file in list_own(self._fs, os.path.join(self._store, name)):
            if not file.endswith(TEMPORARY):
                self._take_if_there(os.path.join(name, file))

    def _take_if_there(self, name: str) -> None:
        """Take a file of the store, if it exists."""
        self._check()
        path = os.path.join(self._store, name)
        with os_errors(path):
            try:
                file = self._fs.open(path)
            except FileNotFoundError:
                return
            try:
                size = file.size()
                with self._taking:
                    fits = size <= self._room
                    self._room -= size if fits else 0
                data = file.read_at(size, 0) if fits else b""
            finally:
                file.close()
        if fits:
            self._taken.append((name, data))
        else:
            self._copy_if_there(name)

    # --- what is large

    def copy_staged(self, commits: Sequence[Commit]) -> None:
        """Copy the segments of bulk loads that no topic has adopted yet; adopted ones are among the topic's."""
        for commit in commits:
            directory = os.path.relpath(staging_directory(self._store, commit.key.name), self._store)
            for staged in (staged for files in commit.topics.values() for staged in files):
                self._copy_if_there(os.path.join(directory, staged.file))

    def _copy_if_there(self, name: str) -> None:
        """Copy a file of the store, if it exists."""
        with suppress(FileNotFoundError):
            self._copy(name, None)

    def copy_log(self, log: LogCopy) -> None:
        """Copy a topic's log as it was noted; the files of its segments must not be deleted before.

        Raises:
            StorageError: as mapped from the system's error, or a segment is shorter than it was.
        """
        for path, size in log.sizes():
            try:
                self._copy(os.path.relpath(path, self._store), size)
            except FileNotFoundError as cause:
                raise storage_error(cause, path) from cause
        for path in log.undeleted:
            self._copy_if_there(os.path.relpath(path, self._store))
        self._write_watermark(log)

    def _write_watermark(self, log: LogCopy) -> None:
        """Write a watermark by which damage is told from an unfinished write: nothing in a backup is unfinished."""
        path = os.path.join(self._unfinished, log.name, WATERMARK)
        with os_errors(path):
            file = self._fs.open(path, create=True)
            try:
                self._copied[path] = write_all(file, [bytes(SLOT_FILE_BYTES)], 0)
            finally:
                file.close()
        watermark = WatermarkFile(self._fs, path)
        try:
            watermark.write(log.view.stop, topic_salt(log.log.meta.uuid))
        finally:
            watermark.close()

    def _copy(self, name: str, size: int | None) -> None:
        """Copy a file, or its first `size` bytes.

        Raises:
            FileNotFoundError: it is not there.
            StorageError: as mapped from the system's error, or it is shorter than that.
        """
        source, target = os.path.join(self._store, name), os.path.join(self._unfinished, name)
        self._check()
        try:
            from_file = self._fs.open(source)
        except FileNotFoundError:
            raise
        except OSError as cause:
            raise storage_error(cause, source) from cause
        try:
            self._make_directories(os.path.dirname(name))
            to_file = self._fs.open(target, create=True)
            try:
                self._copied[target] = self._copy_bytes(from_file, source, to_file, size)
            finally:
                to_file.close()
        except OSError as cause:
            raise storage_error(cause, target) from cause
        finally:
            close_file(from_file, source)

    def _copy_bytes(self, from_file: File, source: str, to_file: File, size: int | None) -> int:
        with os_errors(source):
            end = from_file.size() if size is None else size
        at = 0
        while at < end:
            self._check()
            with os_errors(source, at):
                data = from_file.read_at(min(end - at, _PIECE), at)
            if not data:
                raise StorageError(f"the file ends at byte {at}, not at {end}", source, at)
            at = write_all(to_file, [data], at)
        return at

    def _make_directories(self, name: str) -> None:
        """Make a directory of the backup, and those above it."""
        path = os.path.join(self._unfinished, name) if name else self._unfinished
        if path in self._directories:
            return
        self._make_directories(os.path.dirname(name))
        self._fs.make_directory(path)
        self._directories[path] = None

    # --- the end

    def copied(self) -> None:
        """Note that everything is copied and is to be synced."""
        self._unsynced += [partial(self._sync, path) for path in self._copied]
        self._unsynced += [partial(self._sync_directory, path) for path in reversed(self._directories)]

    def sync_some(self) -> None:
        """Sync files that no other thread syncs until none is left. Once all threads have returned, all is durable.

        Several threads take a fraction of the time: a file system writes its journal once for all waiting syncs.

        Raises:
            StorageError: as mapped from the system's error; the other threads then end as well.
        """
        try:
            while True:
                self._check()
                try:
                    sync = self._unsynced.popleft()
                except IndexError:
                    return
                sync()
        except BaseException:
            self._unsynced.clear()
            raise

    def finish(self) -> None:
        """Rename the backup to its final name, once all of it is synced: from here on it exists.

        Raises:
            StorageError: as mapped from the system's error; if the last sync failed, it exists, and a power cut may
                remove it.
        """
        with os_errors(self.target):
            # CRASH: 20. Everything in it is durable. Before the rename, or if that is lost, it has the other name.
            self._fs.rename(self._unfinished, self.target)
        self._release()
        self._sync_directory(os.path.dirname(self.target))

    def _sync(self, path: str) -> None:
        with os_errors(path):
            file = self._fs.open(path, write=True)
            try:
                file.sync()
            finally:
                file.close()

    def _sync_directory(self, path: str) -> None:
        with os_errors(path):
            self._fs.sync_directory(path)

    def discard(self) -> None:
        """Remove the unfinished backup as far as the system allows it; the next backup to that place does the rest."""
        if self._lock is not None:
            with suppress(OSError, StorageError):
                self._empty()
                remove_tree(self._fs, self._unfinished)
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
