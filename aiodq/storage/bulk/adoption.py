"""Taking over segments that somebody else has written and committed (`aiodq.storage.bulk.commits`)."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodq.errors import AiodqError, CorruptionError, DiskFullError, StorageError, StoreFailedError, StoreNotFoundError
from aiodq.storage.bulk.commits import (
    COMMITS,
    Commit,
    CommitKey,
    finish_commit,
    read_commits,
    staging_directory,
    sweep_staged,
    write_commit,
)
from aiodq.storage.io.durable_io import sync_directory
from aiodq.storage.io.os_errors import is_lasting
from aiodq.storage.log.staged_segments import check_staged, move_in
from aiodq.storage.state.parked_transactions import may_be_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["adopt", "adopt_pending", "finish_adoptions", "unadoptable"]


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
    for topic in commit.left:
        if not may_be_topic(fs, store, topic):
            number = sum(staged.records for staged in commit.topics[topic])
            reasons.append(f"no topic can be called {topic!r}, for which there are {number} messages")
        for staged in commit.topics[topic]:
            try:
                check_staged(fs, os.path.join(directory, staged.file), staged.records)
            except (CorruptionError, StoreNotFoundError) as error:
                reasons.append(f"{staged.records} messages for topic {topic!r} are not what was staged: {error}")
    return reasons


def adopt_pending(
    fs: FileSystem, store: str, now_ns: int, log_of: Callable[[str], TopicLog], blocked: Iterable[CommitKey] = ()
) -> None:
    """Let a store that is being opened take over all that was committed. Blocking.

    What the disk has no room for now, what is damaged, or cannot be for another reason, is left as it is: all of it, so
    that a commit is there or not.

    Args:
        fs: the store's.
        store: its directory.
        now_ns: wall time.
        log_of: opens a topic, or makes it.
        blocked: commits that are to be left as they are.

    Raises:
        StoreFailedError: it has to be opened again.
        StorageError: as mapped from the system's error.
    """
    waiting = {key.name for key in blocked}
    for pending in read_commits(fs, store).pending:
        commit = pending
        if commit.key.name in waiting:
            continue  # a stream's batches keep their order
        try:
            if not commit.bases and unadoptable(fs, store, commit):
                continue
            logs = {topic: log_of(topic) for topic in commit.left}
            for topic, log in logs.items():
                commit = adopt(log, store, commit, topic)
            finish_commit(fs, store, commit)
        except DiskFullError:
            break  # what comes behind it may be of the same stream
        except StoreFailedError:
            raise
        except AiodqError:
            waiting.add(commit.key.name)  # nobody else has to suffer for it; it is tried again
    sweep_staged(fs, store, now_ns)
