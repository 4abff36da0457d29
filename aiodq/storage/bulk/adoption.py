"""Taking over segments that somebody else has written and committed (`aiodq.storage.bulk.commits`)."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError, DiskFullError, StorageError, StoreNotFoundError
from aiodq.storage.bulk.commits import (
    COMMITS,
    Commit,
    CommitKey,
    finish_commit,
    read_commits,
    staging_directory,
    write_commit,
)
from aiodq.storage.io.durable_io import sync_directory
from aiodq.storage.io.os_errors import is_lasting
from aiodq.storage.log.staged_segments import check_staged, move_in
from aiodq.storage.state.parked_transactions import may_be_topic

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["adopt", "finish_adoptions", "unadoptable"]


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
