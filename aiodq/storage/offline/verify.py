"""Verification: reads every byte of a store and reports what is wrong. It writes nothing and needs no lock."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError, StorageError, StoreNotFoundError
from aiodq.names import is_topic_name
from aiodq.storage.bulk.adoption import unadoptable
from aiodq.storage.bulk.commits import COMMITS, STAGING, read_commits
from aiodq.storage.io.durable_io import NOT_A_DIRECTORY, TEMPORARY, read_file
from aiodq.storage.io.filesystem import directory_exists, name_exists
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import is_refused, os_errors
from aiodq.storage.io.quarantine import is_quarantined
from aiodq.storage.offline.store_report import FileReport, Finding, StoreReport
from aiodq.storage.offline.verify_log import log_findings, plan_log
from aiodq.storage.offline.verify_segment import SegmentCheck, check_segment
from aiodq.storage.state.assessment import CHANNELS, channel_directory
from aiodq.storage.state.channel_files import CHECKPOINT, JOURNAL, read_channel, topic_of
from aiodq.storage.state.holds import HOLDS, decode_hold
from aiodq.storage.state.owner_stats import FIGURES
from aiodq.storage.state.store_identity import STORE_FILE, read_identity
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, TopicMeta, find_meta
from aiodq.storage.state.transactions.parked_transactions import ASIDE, may_be_topic, read_owed
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, read_transactions
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, read_origins
from aiodq.storage.state.watermark import WATERMARK
from aiodq.storage.store_layout import check_store_directory, has_topic, in_the_way, list_topics, misplaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from aiodq.storage.bulk.commits import Commit
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.offline.store_report import Kind

__all__ = ["verify_store"]

_LINKED: Final = "a link to a topic's files, which no owner follows; put the topic's directory itself there"
_LOOKS: Final = 10
"""At a topic that was deleted and created anew each time before all of it was read."""
_NO_LOCK: Final = "the store's lock is a link, or no regular file, so no one can own it; remove it if no one does"
_OWN: Final = frozenset({LOCK_NAME, TRANSACTIONS, ORIGINS, ASIDE, FIGURES, COMMITS, STAGING, HOLDS, STORE_FILE})


def verify_store(path: str, fs: FileSystem) -> StoreReport:
    """Read every byte of a store, while its owner runs or on a copy.

    A copy of a live store should be a snapshot of one moment; otherwise some files seem to lag behind others.

    Raises:
        StoreNotFoundError: there is no such directory.
        NotAStoreError: the directory holds something else.
        FormatVersionError: a file has a newer version.
        StorageError: the system refused; damage is listed in the report instead.
    """
    check_store_directory(fs, path)
    with os_errors(path):
        names = fs.listdir(path)
        topics, wrong = list_topics(fs, path), misplaced(fs, path)
        # Without the store's own directories, the parked transactions of its topics are unknown.
        blocked = {} if wrong else _blocked(fs, path)
        others = [f"{path}/{name}" for name in names if name not in {*topics, *_OWN, *blocked}]
        files = [
            _by_hand(one, "unknown", "", _LINKED) if _is_linked(fs, one) else _other(fs, one, "") for one in others
        ]
        files += [_by_hand(one, "unknown", "", NOT_A_DIRECTORY) for one in wrong]
        files += [_in_the_way(fs, blocked[topic], topic) for topic in sorted(blocked)]
        for name, check in _CHECKS.items():
            if name in names and os.path.join(path, name) not in wrong:
                files += _whole_or_by_hand(check, fs, path)
    for topic in topics:
        files += _topic(fs, os.path.join(path, topic), topic)
    return StoreReport(path, tuple(files))


def _blocked(fs: FileSystem, store: str) -> dict[str, str]:
    """Return what is `in_the_way`, or nothing where the files that tell may not be read: that is reported elsewhere."""
    try:
        return in_the_way(fs, store)
    except StorageError as error:
        if not is_refused(error):
            raise
        return {}


def _whole_or_by_hand(
    check: Callable[[FileSystem, str], Iterable[FileReport]], fs: FileSystem, store: str
) -> list[FileReport]:
    """Report some of the store's files, or that one of them can never be read as it is."""
    try:
        return list(check(fs, store))
    except StorageError as error:
        if not is_refused(error):
            raise
        return [_by_hand(error.path, "unknown", "", error.message)]


def _topic(fs: FileSystem, directory: str, name: str) -> list[FileReport]:
    """Report a topic's files, or that they may not be read, which spoils the report on no other topic."""
    try:
        return _whole_topic(fs, directory, name)
    except StorageError as error:
        if not is_refused(error):
            raise
        return [_by_hand(error.path, "topic", name, error.message)]


def _whole_topic(fs: FileSystem, directory: str, name: str) -> list[FileReport]:
    """Report one topic: begin again if it was deleted and created anew, as two topics' files do not fit together."""
    for _ in range(_LOOKS - 1):
        check = _TopicCheck(fs, directory, name)
        with suppress(StoreNotFoundError):
            files = check.run()
            if check.is_current() or not any(one.severity == "damage" for file in files for one in file.findings):
                return files
        if not has_topic(fs, os.path.dirname(directory), name):
            return []  # its owner deleted it meanwhile
    return _TopicCheck(fs, directory, name).run()


def _by_hand(path: str, kind: Kind, topic: str, reason: str) -> FileReport:
    """Report what `repair_store` cannot settle."""
    return FileReport(path, kind, topic, 0, 0, (Finding("damage", path, 0, reason, by_hand=True),))


class _TopicCheck:
    """The check of one topic's files."""

    def __init__(self, fs: FileSystem, directory: str, name: str) -> None:
        self._fs = fs
        self._directory = directory
        self._name = name
        self._uuid: UUID | None = None
        self._files: list[FileReport] = []
        self._seen: set[str] = {CHANNELS}

    def run(self) -> list[FileReport]:
        meta = self._log()
        topic = topic_of(self._fs, self._directory)
        channels = os.path.join(self._directory, CHANNELS)
        blocked = name_exists(self._fs, channels) and not directory_exists(self._fs, channels)
        if blocked:
            self._files.append(_by_hand(channels, "unknown", self._name, NOT_A_DIRECTORY))
        for channel in sorted({*self._names(CHANNELS), *(() if blocked else meta.channels)}):
            directory, described = channel_directory(self._directory, channel), channel in meta.channels
            gone = described and not name_exists(self._fs, directory)
            if gone or directory_exists(self._fs, directory):
                start = meta.channels.get(channel, meta.begin)
                self._channel(channel, start, topic, described=described)
            elif described:
                self._files.append(_by_hand(directory, "unknown", self._name, NOT_A_DIRECTORY))
            else:
                self._files.append(_other(self._fs, directory, self._name))
        for name in self._names():
            if name not in self._seen:
                self._files.append(_other(self._fs, os.path.join(self._directory, name), self._name))
        return self._files

    def is_current(self) -> bool:
        """Return whether the topic that was read is still the one of this name, as far as a file says."""
        found = find_meta(self._fs, self._directory)
        return not found.named or found.meta.uuid == self._uuid

    def _names(self, *below: str) -> list[str]:
        directory = os.path.join(self._directory, *below)
        with os_errors(directory):
            return _listed(self._fs, directory)

    def _add(self, path: str, kind: Kind, size: int, records: int, findings: Iterable[Finding]) -> None:
        self._seen.add(os.path.relpath(path, self._directory))
        self._files.append(FileReport(path, kind, self._name, size, records, tuple(findings)))

    def _log(self) -> TopicMeta:
        """Report the description, the watermark and the segments; return the description."""
        plan = plan_log(self._fs, self._directory)
        self._uuid = plan.meta.uuid
        checks: dict[str, SegmentCheck] = {}
        for one in plan.segments:
            with suppress(StoreNotFoundError):  # the owner deleted it meanwhile
                checks[one.path] = check_segment(
                    self._fs, one.path, one.base, plan.meta.uuid, one.durable_end, last=one.last, copied=plan.copied
                )
        spans = {path: None if one.contents is None else (one.base, one.end) for path, one in checks.items()}
        planned, together = _by_path(plan.findings), _by_path(log_findings(self._fs, plan, spans))
        description, watermark = (os.path.join(self._directory, name) for name in (TOPIC_FILE, WATERMARK))
        self._add(description, "topic", len(read_file(self._fs, description) or b""), 0, planned[description])
        self._add(watermark, "watermark", plan.watermark_bytes, 0, planned[watermark])
        for path, size in plan.foreign:
            self._add(path, "segment", size, 0, planned[path])
        for path, check in checks.items():
            own = [Finding(s, path, at, reason, first, stop) for s, at, reason, first, stop in check.findings]
            self._add(path, "segment", check.size, check.records, [*own, *together[path]])
        others: tuple[tuple[str, Kind], ...] = ((description, "topic"), (watermark, "watermark"))
        for path, kind in others:
            if path in together:
                self._files.append(FileReport(path, kind, self._name, 0, 0, tuple(together[path])))
        return plan.meta

    def _channel(self, name: str, start: int, topic: UUID | None, *, described: bool) -> None:
        directory = channel_directory(self._directory, name)
        read = read_channel(self._fs, directory, start, topic, described=described)
        # What a deletion that was cut short has left belongs to no channel any more.
        damages = read.damages if described else []
        kinds: tuple[tuple[str, Kind], ...] = ((CHECKPOINT, "checkpoint"), (JOURNAL, "journal"))
        for file, kind in kinds:
            path = os.path.join(directory, file)
            found = [Finding("damage", path, d.position, d.reason) for d in damages if d.path == path]
            if file not in read.sizes and not found:
                continue
            if file == JOURNAL and read.end and read.unfinished:
                found.append(Finding("note", path, read.end, "unfinished: the last operations are not whole"))
            records = len(read.ops) if file == JOURNAL else 0
            self._files.append(FileReport(path, kind, self._name, read.sizes.get(file, 0), records, tuple(found)))
        for entry in self._names(CHANNELS, name):
            if entry not in {CHECKPOINT, JOURNAL}:
                self._files.append(_other(self._fs, os.path.join(directory, entry), self._name))


def _by_path(findings: Iterable[Finding]) -> defaultdict[str, list[Finding]]:
    found = defaultdict[str, list[Finding]](list)
    for one in findings:
        found[one.path].append(one)
    return found


def _lock(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the store's lock, whose contents may be anything."""
    path = os.path.join(store, LOCK_NAME)
    try:
        fs.open(path).close()
    except OSError as error:
        # Another user's may not be read, and there is none beside a copy.
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.EEXIST}:
            yield _by_hand(path, "lock", "", _NO_LOCK)
            return
    yield FileReport(path, "lock", "", _size(fs, path))


def _identity(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the file of the store's identity."""
    path = os.path.join(store, STORE_FILE)
    size = len(read_file(fs, path) or b"")
    try:
        read_identity(fs, store)
    except CorruptionError as error:
        yield FileReport(path, "store", "", size, 0, (Finding("damage", path, 0, error.message),))
    else:
        yield FileReport(path, "store", "", size)


def _transactions(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the store's transaction log."""
    path, found = os.path.join(store, TRANSACTIONS), read_transactions(fs, store)
    findings = [Finding("damage", path, damage.position, damage.reason) for damage in found.damages]
    if found.blocks:
        reason = f"{len(found.blocks)} committed transactions are for the next owner to put where they belong"
        findings.append(Finding("note", path, 0, reason))
    yield FileReport(path, "transactions", "", found.size, len(found.blocks), tuple(findings))


def _origins(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the file of the origins of committed transactions."""
    path = os.path.join(store, ORIGINS)
    size = len(read_file(fs, path) or b"")
    try:
        yield FileReport(path, "transactions", "", size, len(read_origins(fs, store)))
    except CorruptionError as error:
        yield FileReport(path, "transactions", "", size, 0, (Finding("damage", path, 0, error.message),))


def _owed(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the parked transactions of topics that could not be used."""
    for files in read_owed(fs, store).values():
        for one in files:
            findings = [Finding("damage", one.path, damage.position, damage.reason) for damage in one.damages]
            what = f"of {len(one.blocks)} committed transactions, what is for topic {one.topic!r}"
            if may_be_topic(fs, store, one.topic):
                findings.append(Finding("note", one.path, 0, f"{what}; it is put there as soon as that can be used"))
            else:
                findings.append(Finding("damage", one.path, 0, f"{what}; no topic can be called so"))
            yield FileReport(one.path, "transactions", one.topic, one.size, len(one.blocks), tuple(findings))
    directory = os.path.join(store, ASIDE)
    known = {one.path for files in read_owed(fs, store).values() for one in files}
    for path in (os.path.join(directory, name) for name in _listed(fs, directory)):
        if path not in known:
            yield _other(fs, path, "")


def _in_the_way(fs: FileSystem, path: str, topic: str) -> FileReport:
    """Report a foreign file that lies in a topic's place."""
    reason = f"it lies in the place of topic {topic!r}, for which something is committed; move it away"
    return FileReport(path, "unknown", "", _size(fs, path), 0, (Finding("damage", path, 0, reason),))


def _commits(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the records of bulk loads."""
    found, directory = read_commits(fs, store), os.path.join(store, COMMITS)
    for damage in found.damages:
        finding = Finding("damage", damage.path, damage.position, damage.reason)
        yield FileReport(damage.path, "commit", "", damage.end, 0, (finding,))
    for earlier in found.commits:
        commit, reasons = _settled(fs, store, earlier)
        if commit is None:
            continue
        path = os.path.join(directory, commit.key.file)
        findings = [Finding("damage", path, 0, reason) for reason in reasons]
        if not commit.done and not findings:
            findings = [Finding("note", path, 0, "committed; the next owner takes over what is staged")]
        records = sum(staged.records for files in commit.topics.values() for staged in files)
        yield FileReport(path, "commit", "", _size(fs, path), 0 if commit.done else records, tuple(findings))
    known = {commit.key.file for commit in found.commits} | {os.path.basename(damage.path) for damage in found.damages}
    for name in _listed(fs, directory):
        if name not in known:
            yield _other(fs, os.path.join(directory, name), "")


def _settled(fs: FileSystem, store: str, commit: Commit) -> tuple[Commit | None, list[str]]:
    """Return a commit as it is now, or None, and the reasons why it cannot be adopted.

    An owner that adopts it meanwhile moves the staged segments away, and says so in the record first.
    """
    now: Commit | None = commit
    while now is not None:
        commit, reasons = now, unadoptable(fs, store, now)
        if not reasons:
            return commit, reasons
        now = next((one for one in read_commits(fs, store).commits if one.key == commit.key), None)
        if now == commit:
            return commit, reasons
    return None, []


def _staged(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report the staged segments, committed or not."""
    directory = os.path.join(store, STAGING)
    for writer in _listed(fs, directory):
        for name in _listed(fs, os.path.join(directory, writer)):
            path = os.path.join(directory, writer, name)
            yield FileReport(path, "staged", "", _size(fs, path))


def _holds(fs: FileSystem, store: str) -> Iterator[FileReport]:
    """Report holds. An unreadable one costs nothing but space."""
    directory = os.path.join(store, HOLDS)
    for name in _listed(fs, directory):
        path = os.path.join(directory, name)
        if not name.endswith(".json"):
            yield _other(fs, path, "")
            continue
        findings: tuple[Finding, ...] = ()
        try:
            decode_hold(read_file(fs, path) or b"", path)
        except CorruptionError as error:
            findings = (Finding("damage", path, 0, f"{error.message}; until it is released it keeps everything"),)
        yield FileReport(path, "hold", "", _size(fs, path), 0, findings)


def _other(fs: FileSystem, path: str, topic: str) -> FileReport:
    """Report a file that holds neither messages nor state."""
    name = os.path.basename(path)
    kind: Kind = "unknown"
    findings: tuple[Finding, ...] = ()
    if name.endswith(TEMPORARY):
        kind = "temporary"
        findings = (Finding("note", path, 0, "left over from an unfinished replacement"),)
    elif is_quarantined(name):
        kind = "quarantined"
    return FileReport(path, kind, topic, _size(fs, path), 0, findings)


def _is_linked(fs: FileSystem, path: str) -> bool:
    """Return whether a topic's files lie behind a link of that name, which no owner follows."""
    try:
        name = os.path.basename(path)
        there = is_topic_name(name) and not fs.is_directory(path) and fs.listdir(path)
    except OSError:
        return False  # most often it is a file, which may be anything
    return bool(there) and any(entry == TOPIC_FILE or entry.endswith(".seg") for entry in there or ())


def _listed(fs: FileSystem, directory: str) -> list[str]:
    """Return the names in a directory that may be removed at any moment."""
    try:
        return fs.listdir(directory) if fs.is_directory(directory) else []
    except FileNotFoundError:
        return []


def _size(fs: FileSystem, path: str) -> int:
    """Return a file's size; 0 for anything that is not a file or may not be read."""
    try:
        if fs.is_directory(path):
            return 0
        file = fs.open(path)
        try:
            return file.size()
        finally:
            file.close()
    except OSError:
        return 0


_CHECKS: Final[Mapping[str, Callable[[FileSystem, str], Iterable[FileReport]]]] = {
    LOCK_NAME: _lock,
    STORE_FILE: _identity,
    TRANSACTIONS: _transactions,
    ORIGINS: _origins,
    ASIDE: _owed,
    COMMITS: _commits,
    STAGING: _staged,
    HOLDS: _holds,
}
"""What reports on each of the store's own files and directories."""
