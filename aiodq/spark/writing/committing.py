"""One record of the driver commits what all tasks of a write have staged: once, however often it is repeated.

The record: `aiodq.storage.bulk.commits`. If no process owns the store, the commit itself adds the rows to the topics;
otherwise the owner, in this process or another, does within a second or two.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiodq.clock import SystemClock
from aiodq.engine.store.opening import adopt_without_owner
from aiodq.errors import AiodqError, InvalidOptionError
from aiodq.spark.writing.staged_rows import StagedByTask
from aiodq.storage.bulk.commits import Commit, CommitKey, Staged, commit_staged, discard_staged, read_commits
from aiodq.storage.io.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import WriterCommitMessage

    from aiodq.spark.options import WriteOptions

__all__ = ["commit_write", "key_of", "single_writes", "stream_name", "was_committed", "was_committed_by_another"]

_LOG: Final = logging.getLogger("aiodq.spark")

_STREAM: Final = "stream "
"""The prefix of a stream's name, which tells it from that of a single write."""
_WRITE: Final = "write "
"""The prefix of a single write's name."""


def key_of(name: str) -> CommitKey:
    """Return the key of a single write of this name (`txnId`)."""
    return CommitKey(f"{_WRITE}{name}")


def stream_name(options: WriteOptions) -> str:
    """Return the name under which the batches of a stream are committed."""
    return f"{_STREAM}{options.name}"


def commit_write(options: WriteOptions, key: CommitKey, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit what the tasks staged, so that it becomes part of the topics. Blocking.

    Raises:
        StorageError: nothing was committed.
        StoreFailedError: it is unknown whether it was committed; repeating it is safe.
        InvalidOptionError: a single write of this name was committed before, into other topics.
    """
    topics: dict[str, list[Staged]] = {}
    tasks = [message for message in messages if isinstance(message, StagedByTask)]
    for topic, staged in (item for task in tasks for item in task.topics.items()):
        topics.setdefault(topic, []).extend(staged)
    contents = [task.content for task in tasks if task.content is not None]
    fs, clock = OsFileSystem(), SystemClock()
    records = sum(staged.records for found in topics.values() for staged in found)
    commit = Commit(key, {t: tuple(s) for t, s in topics.items()}, clock.now_ns(), run=options.run)
    commit = replace(commit, content=sum(contents) if len(contents) == len(tasks) else None)
    if commit_staged(fs, options.store, commit):
        _LOG.info("write into the topics %s of %s committed: messages: %d", sorted(topics), options.store, records)
    else:
        _refuse_another(options, commit)
        _tell_that_it_was_committed(options, commit)
    _take_over(options, key.name)


def _refuse_another(options: WriteOptions, commit: Commit) -> None:
    """Make sure that a single write whose name was committed before is the same one, judged by its topics.

    Raises:
        InvalidOptionError: none of its topics is among those that were committed under its name.
    """
    commits = read_commits(OsFileSystem(), options.store, writer=commit.key.name).commits
    earlier = {topic for one in commits if one.key == commit.key for topic in one.topics}
    others = sorted(commit.topics.keys() - earlier)
    if commit.key.number is not None or not earlier or not others:
        return
    name, before = commit.key.name.removeprefix(_WRITE), ", ".join(sorted(earlier))
    if len(others) == len(commit.topics):
        raise InvalidOptionError(
            f"a write with the txnId {name!r} was committed before, into {before}, and this one is for "
            f"{', '.join(others)}, of which nothing was added: give each write a txnId of its own"
        )
    text = "a write with the txnId %r was committed before, into %s: nothing is added to %s"
    _LOG.warning(text, name, before, ", ".join(others))


def _tell_that_it_was_committed(options: WriteOptions, commit: Commit) -> None:
    """Tell that a write adds nothing; warn of it unless it seems to be repeated.

    Spark repeats the last batch of a stream, of the same messages; an earlier one, or others, are another's.
    """
    key, records = commit.key, commit.records or 0
    commits = read_commits(OsFileSystem(), options.store, writer=key.name).commits
    before = next((one for one in commits if one.key == key), commit)
    other = f"{before.records} messages" if before.records not in {None, records} else None
    if other is None and None not in {before.content, commit.content} and before.content != commit.content:
        other = "other messages, though as many"
    if records and other is not None:
        _LOG.warning(
            "the write %r was committed to %s before, with %s, and adds none of the %d that it has this time: if it is "
            "another one, it takes a txnId of its own, or as a stream a txnAppId",
            _known_as(key), options.store, other, records,
        )  # fmt: skip
        return
    last = max((one.key.number or 0 for one in commits), default=0)
    if key.number is None or key.number >= last:
        _LOG.info("write into %s was committed before: nothing is added of %d messages", options.store, records)
        return
    _LOG.warning(
        "batch %d of the query %r adds none of its %d messages to %s, as its batch %d was committed before: another "
        "query has a copy of its checkpoint, or its own was set back; one that is to go on by itself takes a txnAppId "
        "of its own",
        key.number, key.name.removeprefix(_STREAM), records, options.store, last,
    )  # fmt: skip


def _known_as(key: CommitKey) -> str:
    """Return what a user calls a write: the `txnId`, or the stream's name with the batch."""
    name = key.name.removeprefix(_WRITE).removeprefix(_STREAM)
    return name if key.number is None else f"{name}, batch {key.number}"


def _take_over(options: WriteOptions, name: str) -> None:
    """If no process owns the store, add what was committed to its topics, and remove other staged files. Blocking."""
    fs = OsFileSystem()
    try:
        if not adopt_without_owner(fs, SystemClock(), options.store, options.new_topics):
            _LOG.info("the process that owns %s takes them over", options.store)
        discard_staged(fs, options.store, name)
    except (AiodqError, OSError) as error:
        # It is committed. If the job failed now, it would be repeated, and without a name all would be added again.
        warning = f"the rows are committed; the next owner takes them over, as that failed now: {error}"
        warnings.warn(warning, stacklevel=2)


def was_committed(options: WriteOptions, name: str) -> bool:
    """Return whether a single write of this name (`txnId`) was committed to a store. Blocking.

    If its driver was killed after the commit and no process owns the store, it is added to its topics now.

    Raises:
        StorageError: as mapped from the system's error.
    """
    key = key_of(name)
    found = [one for one in read_commits(OsFileSystem(), options.store, writer=key.name).commits if one.key == key]
    if any(not commit.done for commit in found):
        _take_over(options, key.name)
    return bool(found)


def was_committed_by_another(store: str, name: str | None, run: str) -> bool:
    """Return whether a single write of this name was committed by another run (`txnRun`) than this one. Blocking.

    Asked after the write: between `was_committed` and the commit that of another run may have come. A write without a
    name is nobody else's.

    Raises:
        StorageError: as mapped from the system's error.
    """
    if name is None:
        return False
    key = key_of(name)
    commits = read_commits(OsFileSystem(), store, writer=key.name).commits
    return any(commit.key == key and commit.run not in {None, run} for commit in commits)


def single_writes(store: str) -> dict[str, bool]:
    """Return the names of the committed single writes, and of each whether all of it is in its topics. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    commits, prefix = read_commits(OsFileSystem(), store).commits, key_of("").name
    single = [commit for commit in commits if commit.key.number is None and commit.key.name.startswith(prefix)]
    return {commit.key.name.removeprefix(prefix): commit.done for commit in single}
