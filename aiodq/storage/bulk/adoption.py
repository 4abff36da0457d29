"""Adoption of segments that other processes have written and committed (`aiodq.storage.bulk.commits`)."""

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
    linked_writers,
    read_commits,
    staging_directory,
    sweep_staged,
    write_commit,
)
from aiodq.storage.io.durable_io import NOT_A_DIRECTORY, sync_directory
from aiodq.storage.io.os_errors import is_lasting
from aiodq.storage.log.staged_segments import check_staged, move_in
from aiodq.storage.state.transactions.parked_transactions import may_be_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["adopt", "adopt_pending", "finish_adoptions", "unadoptable"]


def adopt(log: TopicLog, store: str, commit: Commit, topic: str) -> Commit:
    """Have a topic adopt its segments of a commit; return the updated record. The log must be at rest. Blocking.

    Raises:
        CorruptionError: a staged segment is not what was written; nothing was adopted.
        StorageError: nothing was adopted; retrying is safe.
        StoreFailedError: the segments will be adopted when the store is opened again.
    """
    directory = staging_directory(store, commit.key.name)
    if directory in linked_writers(log.fs, store):
        raise StorageError(NOT_A_DIRECTORY, directory)
    placed = commit

    def note(base: int) -> None:
        nonlocal placed
        # CRASH: 11. From here on these messages have these offsets, and no others ever will.
        write_commit(log.fs, store, commit.at(topic, base))
        placed = commit.at(topic, base)

    log.adopt([(os.path.join(directory, staged.file), staged.records) for staged in commit.topics[topic]], note)
    return placed


def finish_adoptions(
    fs: FileSystem, store: str, done: set[str] | None = None
) -> tuple[dict[str, StorageError], set[CommitKey]]:
    """Finish the adoptions that an earlier owner decided on, before any topic is opened. Blocking.

    Args:
        fs: the store's.
        store: its directory.
        done: as for `read_commits`.

    Returns:
        The topics into which something cannot be moved, and why: nothing may be appended to them, as the offsets of
        the missing segments are decided. Then the commits concerned, which are left as they are.

    Raises:
        FormatVersionError: a record has a newer version.
        StorageError: as mapped from the system's error; retrying is safe.
    """
    unusable: dict[str, StorageError] = {}
    blocked: set[CommitKey] = set()
    pending = read_commits(fs, store, done=done).pending
    if pending:
        # CRASH: 10. A record that was only renamed is made durable before anything is moved because of it.
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
            with suppress(DiskFullError):  # noted later, when consuming has made room
                finish_commit(fs, store, commit)
    return unusable, blocked


def unadoptable(fs: FileSystem, store: str, commit: Commit) -> list[str]:
    """Return the reasons, as text, why an owner cannot adopt a commit. Blocking.

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


def adopt_pending(  # noqa: PLR0917 - what opening hands on
    fs: FileSystem, store: str, now_ns: int, log_of: Callable[[str], TopicLog], blocked: Iterable[CommitKey] = (),
    done: set[str] | None = None, *, committing: bool = False,
) -> None:  # fmt: skip
    """Adopt all that was committed to a store that is being opened. Blocking.

    A commit that does not fit on the disk now, is damaged, or fails for another reason is left as it is, whole: a
    commit is there or not.

    Args:
        fs: the store's.
        store: its directory.
        now_ns: wall time.
        log_of: opens or creates a topic.
        blocked: commits to leave as they are.
        done: as for `read_commits`.
        committing: as for `sweep_staged`.

    Raises:
        StoreFailedError: the store has to be opened again.
        StorageError: as mapped from the system's error.
    """
    waiting = {key.name for key in blocked}
    for pending in read_commits(fs, store, done=done).pending:
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
            break  # what follows may belong to the same stream
        except StoreFailedError:
            raise
        except AiodqError:
            waiting.add(commit.key.name)  # other writers' commits go on; this one is tried again
    sweep_staged(fs, store, now_ns, committing=committing)
