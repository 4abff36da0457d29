"""Taking over segments that somebody else has written and committed (`aiodq.storage.bulk.commits`)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError, DiskFullError, StorageError, StoreFailedError, StoreNotFoundError
from aiodq.format.footer import FooterTail
from aiodq.format.layout import FOOTER_TAIL, SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader
from aiodq.storage.bulk.commits import (
    COMMITS,
    Commit,
    CommitKey,
    finish_commit,
    read_commits,
    staging_directory,
    write_commit,
)
from aiodq.storage.io.durable_io import sync_directory, sync_file, write_all
from aiodq.storage.io.os_errors import is_lasting, opened, storage_error
from aiodq.storage.log.segment_files import inspect_file, sealed_segment, segment_path
from aiodq.storage.state.parked_transactions import may_be_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.log.segment_files import Segment
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["adopt", "check_staged", "finish_adoptions", "move_in", "place", "placed", "unadoptable"]


def adopt(log: TopicLog, store: str, commit: Commit, topic: str) -> Commit:
    """Let a topic take over what a commit brings it; return the record as it is then. The log is at rest. Blocking.

    Raises:
        CorruptionError: a staged segment is not what was written; nothing was taken over.
        StorageError: nothing was taken over; it may be repeated.
        StoreFailedError: it will be when the store is opened again.
    """
    directory = staging_directory(store, commit.key.name)
    placed = commit

    def note(base: int) -> None:
        nonlocal placed
        # CRASH: 11. From here on these messages have these offsets, and no others ever will.
        write_commit(log.fs, store, commit.at(topic, base))
        placed = commit.at(topic, base)

    log.adopt([(os.path.join(directory, staged.file), staged.records) for staged in commit.topics[topic]], note)
    return placed


def finish_adoptions(fs: FileSystem, store: str) -> tuple[dict[str, StorageError], set[CommitKey]]:
    """Put in its place what an owner before had decided to: before any topic is opened. Blocking.

    Returns:
        The topics into which something cannot be moved, and why: nothing may be appended to them, as the offsets of
        what belongs there are decided. And the commits that this concerns, which are left as they are.

    Raises:
        FormatVersionError: a record is of a newer version.
        StorageError: as mapped from the system's error; it may be repeated.
    """
    unusable: dict[str, StorageError] = {}
    blocked: set[CommitKey] = set()
    pending = read_commits(fs, store).pending
    if pending:
        # CRASH: 10. A record that was renamed and no more is durable before anything is moved by its word.
        sync_directory(fs, os.path.join(store, COMMITS))
    for commit in pending:
        for topic in commit.bases:
            staging = staging_directory(store, commit.key.name)
            staged = [(os.path.join(staging, file), at) for file, at in commit.placed(topic)]
            try:
                move_in(fs, os.path.join(store, topic), staged)
            except StorageError as error:
                if not is_lasting(error):
                    raise
                unusable[topic] = error
                blocked.add(commit.key)
        if commit.bases.keys() == commit.topics.keys() and commit.key not in blocked:
            with suppress(DiskFullError):  # it can be noted later, when consuming has made room
                finish_commit(fs, store, commit)
    return unusable, blocked


def place(fs: FileSystem, path: str, topic: UUID, base: int, records: int) -> None:
    """Let a staged segment say that it is a topic's, and where it begins. Blocking.

    Its frames say everything relative to that, and its checksums go on from a salt of its own.

    Raises:
        CorruptionError: it is not what was written.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path, write=True) as file:
        header = _checked(file, path, records)
        write_all(file, [replace(header, topic=topic, base=base).encode()], 0)
        sync_file(file, path)


def check_staged(fs: FileSystem, path: str, records: int) -> None:
    """Make sure that both ends of a staged segment say that it holds so many messages. Blocking.

    Raises:
        CorruptionError: they do not.
        StorageError: as mapped from the system's error.
    """
    with opened(fs, path) as file:
        _checked(file, path, records)


def unadoptable(fs: FileSystem, store: str, commit: Commit) -> list[str]:
    """Return why an owner cannot adopt a commit, in words. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    reasons: list[str] = []
    directory = staging_directory(store, commit.key.name)
    for topic in commit.topics.keys() - commit.bases.keys():
        if not may_be_topic(fs, store, topic):
            number = sum(staged.records for staged in commit.topics[topic])
            reasons.append(f"no topic can be called {topic!r}, for which there are {number} messages")
        for staged in commit.topics[topic]:
            try:
                check_staged(fs, os.path.join(directory, staged.file), staged.records)
            except (CorruptionError, StoreNotFoundError) as error:
                reasons.append(f"{staged.records} messages for topic {topic!r} are not what was staged: {error}")
    return reasons


def _checked(file: File, path: str, records: int) -> SegmentHeader:
    size = file.size()
    header = SegmentHeader.decode(file.read_at(SEGMENT_HEADER.size, 0), path)
    end = file.read_at(FOOTER_TAIL.size, size - FOOTER_TAIL.size) if size >= FOOTER_TAIL.size else b""
    tail = FooterTail.decode(end, size, path)
    if tail is None or tail.end != records or tail.records != records or tail.salt != header.salt:
        raise CorruptionError(f"the staged segment does not hold the {records} messages committed", path, size)
    return header


def placed(fs: FileSystem, directory: str, topic: UUID, base: int) -> Segment:
    """Return a segment that was moved in. Blocking.

    Raises:
        CorruptionError: it is not what was staged.
        StorageError: as mapped from the system's error.
    """
    path = segment_path(directory, base)
    found = inspect_file(fs, path, base, topic)
    if found.tail is None or found.header_error is not None:
        raise CorruptionError("the segment is not what was staged", path)
    return sealed_segment(path, found, found.tail)


def move_in(fs: FileSystem, directory: str, staged: Sequence[tuple[str, int]]) -> None:
    """Move staged segments to their places, durably. One that is no longer staged is in its place, or was. Blocking.

    Raises:
        StorageError: as mapped from the system's error; it may be repeated.
    """
    moving = [(path, base) for path, base in staged if fs.exists(path)]
    try:
        for path, base in moving:
            # The first takes the name of the empty segment that the log would have gone on with.
            fs.rename(path, segment_path(directory, base))
        if moving:
            # CRASH: 11. Nothing else is appended before both names are durable: no power cut brings a staged one back
            # once retention may have deleted what it became.
            sync_directory(fs, directory)
            _sync_staging(fs, os.path.dirname(moving[0][0]))
    except OSError as cause:
        raise storage_error(cause, directory) from cause


def _sync_staging(fs: FileSystem, directory: str) -> None:
    """Make durable that files have left a writer's directory, which the writer may be removing at this moment."""
    try:
        sync_directory(fs, directory)
    except StoreFailedError:
        if fs.exists(directory):
            raise
        sync_directory(fs, os.path.dirname(directory))
