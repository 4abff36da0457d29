"""Bulk loads: segments staged beside a store, and the commits that say which of them count.

A bulk writer, such as Spark, does not own the store. Its tasks write whole segments below `#staging`, with offsets that
begin at 0, and sync them. Then its driver writes one record, `#commits/KEY.json`: that is the commit. The owner of the
store, now or next, adopts them (`aiodq.storage.bulk.adoption`): it decides at which offset each topic takes them in,
notes that in the record, and moves the files into place.

Committing a key again adds nothing, so the record of a repeatable key stays, without its files: for a stream, whose
batches are numbered, only the last one's. That of a single write stays even if it had no messages. Staged segments that
are in no record were left by a writer that is gone; they are swept by the next commit of the same writer; else after a
day, when the store is opened, or by its owner once their writer has staged nothing for a day.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote

from aiodq.errors import (
    AiodqError,
    CorruptionError,
    InvalidNameError,
    InvalidOptionError,
    StorageError,
    StoreFailedError,
)
from aiodq.names import check_name, is_ephemeral
from aiodq.storage.bulk.commit_lock import COMMITS, lock_commits, try_commits
from aiodq.storage.io.durable_io import LARGEST_FILE, list_own, read_file, replace_file
from aiodq.storage.io.filesystem import directory_exists, name_exists
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.quarantine import Damage, quarantined
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiodq.storage.io.filesystem import FileSystem

__all__ = [
    "COMMITS",
    "STAGING",
    "Commit",
    "CommitKey",
    "FoundCommits",
    "Staged",
    "commit_staged",
    "decode_commit",
    "discard_staged",
    "finish_commit",
    "linked_writers",
    "read_commits",
    "staging_directory",
    "sweep_left",
    "sweep_staged",
    "write_commit",
]

STAGING: Final = "#staging"
"""The directory in which writers stage. No topic may have this name either."""

_VERSION: Final = 1
_LONGEST: Final = 150
_SUFFIX: Final = ".json"
_STAGED: Final = re.compile(r"([0-9]{20})-[0-9a-f]{32}\.seg")
_KEY: Final = re.compile(r"([^,]+)(?:,([0-9]{20}))?\.json")
_DAY: Final = 86_400 * 10**9


class Staged(NamedTuple):
    """A staged segment: its file name in the writer's directory, and its number of messages."""

    file: str
    records: int


@dataclass(frozen=True, slots=True)
class CommitKey:
    """The identity of a commit.

    Attributes:
        name: the writer's name: that of a stream, or of a single write that may be repeated.
        number: the number of a stream's batch; they count up.
        once: whether the name was made up for this commit, so that it cannot be repeated.
    """

    name: str
    number: int | None = None
    once: bool = False

    @property
    def file(self) -> str:
        """The file name of the record."""
        return quote(self.name, safe="") + ("" if self.number is None else f",{self.number:020d}") + _SUFFIX


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit's record.

    Attributes:
        key: its key.
        topics: the staged segments of each topic, in order; none are named any more when it is done.
        time_ns: wall time of the commit, nanoseconds since the epoch.
        bases: the offset at which a topic takes them in, for the topics where that is decided.
        done: whether everything is in its place.
        counted: how many messages it had, once it is done; None: unknown, as an earlier version did not note it.
        run: tells which of the runs that commit this key it is of; None: unknown.
        content: a fingerprint of the messages, the same in whatever order they come; None: unknown.
    """

    key: CommitKey
    topics: Mapping[str, tuple[Staged, ...]] = field(default_factory=dict)
    time_ns: int = 0
    bases: Mapping[str, int] = field(default_factory=dict)
    done: bool = False
    counted: int | None = None
    run: str | None = None
    content: int | None = None

    @property
    def records(self) -> int | None:
        """The number of messages; None if it is unknown."""
        return self.counted if self.done else sum(one.records for files in self.topics.values() for one in files)

    def placed(self, topic: str) -> list[tuple[str, int]]:
        """Return the name of each staged segment of a topic, with its offset, final or planned."""
        found: list[tuple[str, int]] = []
        base = self.bases[topic]
        for staged in self.topics[topic]:
            found.append((staged.file, base))
            base += staged.records
        return found

    @property
    def left(self) -> list[str]:
        """The topics whose offset is not decided yet, sorted."""
        return sorted(self.topics.keys() - self.bases.keys())

    def at(self, topic: str, base: int) -> Commit:
        """Return the record with a topic's offset decided."""
        return replace(self, bases={**self.bases, topic: base})


class FoundCommits(NamedTuple):
    """The commits of a store, ordered by time, and the records that cannot be read."""

    commits: list[Commit]
    damages: list[Damage]

    @property
    def pending(self) -> list[Commit]:
        """The commits that are not done."""
        return [commit for commit in self.commits if not commit.done]


def staging_directory(store: str, name: str) -> str:
    """Return the staging directory of the writer of that name.

    Raises:
        InvalidOptionError: the name is empty or too long.
    """
    quoted = quote(name, safe="")
    if not 0 < len(quoted) <= _LONGEST or quoted in {".", ".."}:
        raise InvalidOptionError(f"{name!r:.80} is no name for a writer: 1 to {_LONGEST} characters")
    return os.path.join(store, STAGING, quoted)


def decode_commit(data: bytes, path: str) -> Commit:
    """Return the commit that a record describes.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    found = decode_checked(data, "commit", _VERSION, path, "the commit's record")
    with taking_apart(path, "the commit's record"):
        name, number, once = found["key"]
        topics = {
            _durable_name(topic): tuple(Staged(str(file), int(records)) for file, records in files)
            for topic, files in found["topics"].items()
        }
        bases = {str(topic): int(base) for topic, base in found["bases"].items()}
        key = CommitKey(str(name), None if number is None else int(number), bool(once))
        commit = Commit(key, topics, int(found["time_ns"]), bases)
        counted = found.get("records") if found["done"] else None
        run, content = found.get("run"), found.get("content")
        commit = replace(commit, done=bool(found["done"]), counted=None if counted is None else int(counted))
        commit = replace(commit, run=None if run is None else str(run))
        commit = replace(commit, content=None if content is None else int(content))
        segments = [one for files in topics.values() for one in files]
        sound = all(_STAGED.fullmatch(one.file) and one.records > 0 for one in segments)
        # A segment can be moved only to one place, and an offset is decided only for a topic that gets one.
        whole = len({one.file for one in segments}) == len(segments)
        whole &= commit.done or all(topics[topic] for topic in commit.left)
        if not (sound and whole) or not bases.keys() <= topics.keys() or min(bases.values(), default=0) < 0:
            raise CorruptionError("the commit's record makes no sense", path, 0)
        return commit


def _durable_name(topic: str) -> str:
    if is_ephemeral(check_name(topic)):
        raise InvalidNameError(f"the topic {topic!r} is not on disk")
    return topic


def write_commit(fs: FileSystem, store: str, commit: Commit) -> None:
    """Write a commit's record, durably, over any earlier one. Blocking.

    Raises:
        StorageError: the old record stands.
        StoreFailedError: it is unknown which of the two stands.
    """
    key = commit.key
    content: dict[str, object] = {
        "key": [key.name, key.number, key.once],
        "topics": commit.topics,
        "time_ns": commit.time_ns,
        "bases": commit.bases,
        "done": commit.done,
        **({} if commit.counted is None else {"records": commit.counted}),
        **({} if commit.run is None else {"run": commit.run}),
        **({} if commit.content is None else {"content": commit.content}),
    }
    path, data = os.path.join(store, COMMITS, key.file), encode_checked("commit", _VERSION, content)
    if len(data) > LARGEST_FILE:
        number = sum(map(len, commit.topics.values()))
        raise StorageError(f"{number} staged segments are more than one commit may name: write fewer partitions", path)
    replace_file(fs, path, data)


def read_commits(
    fs: FileSystem, store: str, *, writer: str | None = None, done: set[str] | None = None
) -> FoundCommits:
    """Return the commits of a store. Blocking.

    There may be very many records, as that of a repeatable key stays: who looks often does not read all of them.

    Args:
        fs: the store's.
        store: its directory.
        writer: the name of the only writer that is asked for; None: all of them.
        done: the file names of records that an earlier call has found done, which stay so. They are left out, and this
            call brings the names up to date. None: nothing is left out.

    Raises:
        FormatVersionError: a record has a newer version.
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, COMMITS)
    found = FoundCommits([], [])
    quoted, names = None if writer is None else quote(writer, safe=""), list_own(fs, directory)
    known = set() if done is None else done.intersection(names)
    for match in _records(name for name in names if name not in known):
        if quoted not in {None, match[1]}:
            continue
        path = os.path.join(directory, match[0])
        data = read_file(fs, path)
        if data is None:
            continue
        try:
            commit = decode_commit(data, path)
        except CorruptionError as error:
            found.damages.append(Damage(path, 0, len(data), error.message))
            continue
        found.commits.append(commit)
        if commit.done:
            known.add(match[0])
    if done is not None:
        done.clear()
        done.update(known)
    return FoundCommits(_in_order(found.commits), found.damages)


def _in_order(commits: list[Commit]) -> list[Commit]:
    """Sort by time, but never put a batch of a stream before an earlier one: clocks may be set back."""
    latest: dict[str, int] = {}
    times: dict[CommitKey, int] = {}
    for commit in sorted(commits, key=lambda commit: commit.key.number or 0):
        name = commit.key.name
        latest[name] = times[commit.key] = max(latest.get(name, commit.time_ns), commit.time_ns)
    return sorted(commits, key=lambda commit: (times[commit.key], commit.key.name, commit.key.number or 0))


def _records(names: Iterable[str]) -> list[re.Match[str]]:
    """Return those names that are names of records, taken apart."""
    return [match for name in names if (match := _KEY.fullmatch(name))]


def commit_staged(fs: FileSystem, store: str, commit: Commit) -> bool:
    """Commit what was staged; return False if its key was committed before, so that it does not count. Blocking.

    Anything else its writer staged is removed.

    Raises:
        StoreLockedError: others held the lock for many seconds.
        StorageError: nothing was committed.
        StoreFailedError: it is unknown whether it was committed; repeating it is safe.
    """
    lock = lock_commits(fs, store)
    try:
        # INVARIANT: two writers with the same key never both find it new.
        new = not _is_known(fs, store, commit.key)
        # Spark itself knows a stream's empty batch; an empty single write is known by its record alone.
        if new and (commit.topics or (commit.key.number is None and not commit.key.once)):
            _require_staged(fs, store, commit)
            # CRASH: 10. Until here no staged segment counts; from here on all of them will be adopted.
            write_commit(fs, store, commit)
        with suppress(AiodqError, OSError):  # it is committed, even if tidying up fails
            _remove_staged(fs, store, quote(commit.key.name, safe=""), before_ns=None)
    finally:
        lock.release()
    return new


def _require_staged(fs: FileSystem, store: str, commit: Commit) -> None:
    """Check that the staged segments still exist: another writer of that name, or the sweep by age, may remove them."""
    directory = staging_directory(store, commit.key.name)
    with os_errors(directory):
        there = set(fs.listdir(directory)) if fs.is_directory(directory) else set()
    for staged in (staged for files in commit.topics.values() for staged in files):
        if staged.file not in there:
            path = os.path.join(directory, staged.file)
            reason = "a task staged it on a machine that does not share this directory, a writer had the same name"
            raise StorageError(f"what was staged is gone: {reason}, or it was a day ago", path)


def _is_known(fs: FileSystem, store: str, key: CommitKey) -> bool:
    """Return whether this key, or a later one of its stream, was committed."""
    for match in _records(list_own(fs, os.path.join(store, COMMITS))):
        if unquote(match[1]) != key.name:
            continue
        if key.number is None or match[2] is None or int(match[2]) >= key.number:
            return True
    return False


def discard_staged(fs: FileSystem, store: str, name: str) -> None:
    """Remove what a writer staged and did not commit, as far as the system allows it. Blocking.

    Raises:
        StoreLockedError: others held the lock of the commits for many seconds.
        StorageError: the commits cannot be read.
    """
    writer = quote(name, safe="")
    if not directory_exists(fs, os.path.join(store, STAGING, writer)):
        return
    lock = lock_commits(fs, store)
    try:
        _remove_staged(fs, store, writer, before_ns=None)
    finally:
        lock.release()


def sweep_staged(fs: FileSystem, store: str, now_ns: int, *, committing: bool = False) -> None:
    """Remove what writers staged more than a day ago and did not commit, as far as the system allows it. Blocking.

    While others commit, all of it is left to the next sweep.

    Args:
        fs: the store's.
        store: its directory.
        now_ns: wall time.
        committing: whether the caller holds the lock of the commits.

    Raises:
        StorageError: the commits cannot be read.
        StoreFailedError: a sync failed.
    """
    writers = list_own(fs, os.path.join(store, STAGING))
    if not writers:
        return
    try:
        # INVARIANT: as in `sweep_left`.
        lock = None if committing else try_commits(fs, store)
    except StoreFailedError:
        raise
    except StorageError:
        return
    try:
        for writer in writers:
            _remove_staged(fs, store, writer, before_ns=now_ns - _DAY)
    finally:
        if lock is not None:
            lock.release()


def sweep_left(fs: FileSystem, store: str, now_ns: int) -> None:
    """Remove what writers left that have staged nothing for a day, as far as the system allows it. Blocking.

    Writers may be running: one that is still at work keeps what it staged, however long it takes.

    Raises:
        StoreLockedError: others held the lock of the commits for many seconds.
        StorageError: the commits cannot be read.
    """
    staging, before_ns = os.path.join(store, STAGING), now_ns - _DAY
    left = [writer for writer in list_own(fs, staging) if _is_left(fs, os.path.join(staging, writer), before_ns)]
    if not left:
        return
    lock = lock_commits(fs, store)
    try:
        # INVARIANT: nothing that is removed here is committed: a commit checks, under this lock, that it exists.
        for writer in left:
            _remove_staged(fs, store, writer, before_ns)
    finally:
        lock.release()


def _is_left(fs: FileSystem, directory: str, before_ns: int) -> bool:
    if not directory_exists(fs, directory):
        return False
    try:
        times = [int(match[1]) for name in fs.listdir(directory) if (match := _STAGED.fullmatch(name))]
    except OSError:
        return False  # its writer removed it just now
    return bool(times) and max(times) < before_ns


def linked_writers(fs: FileSystem, store: str) -> list[str]:
    """Return the paths of links in the place of writers' directories, wherever they lead. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    staging = os.path.join(store, STAGING)
    paths = [os.path.join(staging, writer) for writer in list_own(fs, staging)]
    return [path for path in paths if name_exists(fs, path) and not directory_exists(fs, path) and _is_link(fs, path)]


def _is_link(fs: FileSystem, path: str) -> bool:
    """Return whether this is a link, to a directory or to nothing. A file may lie there: nothing is taken from it."""
    try:
        fs.listdir(path)
    except OSError as cause:
        return isinstance(cause, FileNotFoundError)
    return True


def _remove_staged(fs: FileSystem, store: str, writer: str, before_ns: int | None) -> None:
    # INVARIANT: what is in no record yet is not committed meanwhile, not even by another writer of that name, as the
    # caller holds the lock.
    found = read_commits(fs, store, writer=unquote(writer))
    commits = os.path.join(store, COMMITS)
    if found.damages or (directory_exists(fs, commits) and quarantined(fs, commits)):
        return  # an unreadable record may name any of these files
    used = {staged.file for commit in found.pending for files in commit.topics.values() for staged in files}
    moving = any(quote(commit.key.name, safe="") == writer for commit in found.pending)
    directory = os.path.join(store, STAGING, writer)
    if not directory_exists(fs, directory):
        return  # a link is not followed: what is behind it is not the store's to remove
    with suppress(OSError):  # what stays is swept later
        for name in fs.listdir(directory):
            match = _STAGED.fullmatch(name)
            if match is None or name in used or (before_ns is not None and int(match[1]) >= before_ns):
                continue
            with suppress(FileNotFoundError):
                fs.remove(os.path.join(directory, name))
        if not moving and not fs.listdir(directory):
            fs.remove_directory(directory)


def finish_commit(fs: FileSystem, store: str, commit: Commit) -> None:
    """Note that everything a commit brought is in its place. Blocking.

    Raises:
        StorageError: it was not noted; retrying is safe.
        StoreFailedError: it is unknown whether it was noted.
    """
    directory = os.path.join(store, COMMITS)
    with os_errors(directory):
        if commit.key.once:
            # CRASH: 12. The record may come back; then everything is already in its place.
            fs.remove(os.path.join(directory, commit.key.file))
        else:
            topics: dict[str, tuple[Staged, ...]] = dict.fromkeys(commit.topics, ())
            write_commit(fs, store, replace(commit, topics=topics, done=True, counted=commit.records))
            for earlier in read_commits(fs, store, writer=commit.key.name).commits:
                key = earlier.key
                if earlier.done and (key.number or 0) < (commit.key.number or 0):
                    fs.remove(os.path.join(directory, key.file))
    if commit.key.number is None:
        with suppress(OSError):  # anything else in it is swept later
            fs.remove_directory(staging_directory(store, commit.key.name))
