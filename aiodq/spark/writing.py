"""Writes: tasks stage segments in the store's directory, and one record of the driver commits them all.

The record: `aiodq.storage.bulk.commits`.

Rows become messages in the order of the partitions, and of the rows within each. If no process owns the store, the
commit itself adds them to the topics; otherwise the owner, in this process or another, does within a second or two.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from aiodq.clock import SystemClock
from aiodq.engine.batch.validation import LONGEST_KEY, LONGEST_TAG, check_headers, check_labels
from aiodq.engine.store.opening import adopt_without_owner
from aiodq.errors import (
    AiodqError,
    InvalidMessageError,
    InvalidOptionError,
    MessageSizeError,
    StorageError,
    StoreNotFoundError,
)
from aiodq.format.checksum import crc32
from aiodq.format.codecs import codec_number
from aiodq.format.columns import Columns
from aiodq.format.vectorized.encode import ArrowColumns
from aiodq.options import StoreOptions
from aiodq.spark.options import check_topic
from aiodq.spark.worker import spare_collections
from aiodq.storage.bulk.commits import Commit, CommitKey, Staged, commit_staged, discard_staged, read_commits
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.durable_io import NOT_A_DIRECTORY, ensure_directory
from aiodq.storage.io.filesystem import OsFileSystem, directory_exists, name_exists
from aiodq.storage.state.topic.topic_meta import describe
from aiodq.storage.store_layout import check_store_directory, refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from aiodq.spark.options import WriteOptions
    from aiodq.storage.io.filesystem import FileSystem

__all__ = [
    "BatchWriter",
    "StreamWriter",
    "check_place",
    "check_schema",
    "columns_by_topic",
    "kept_options",
    "single_writes",
    "stage",
    "was_committed",
    "was_committed_by_another",
]

_LOG: Final = logging.getLogger("aiodq.spark")

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "key": ("binary", "string"),
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
}
_Header = tuple[str | None, str | None] | dict[str, Any]
_STREAM: Final = "stream "
"""The prefix of a stream's name, which tells it from that of a single write."""
_WRITE: Final = "write "
"""The prefix of a single write's name."""
_SHOWN: Final = 32
"""The most bytes of a body that an error shows, to identify the row."""
_READ_ONLY: Final = frozenset({"offset", "timestamp", "topic_uuid"})
"""Columns of messages that were read; the topic assigns new values when they are written."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Make sure that rows of this schema can be messages.

    Raises:
        InvalidMessageError: a column is missing, unknown, or has a type that it cannot have.
    """
    types: dict[str, str] = {}
    for column in schema:
        name, found = column.name, column.dataType.simpleString()
        if name in types:
            raise InvalidMessageError(f"there are two columns {name!r}: a message has one; drop or rename the other")
        types[name] = found
        if name in _READ_ONLY:
            continue
        if name not in _TYPES:
            raise InvalidMessageError(
                f"there is no place for the column {name!r} in a message{_meant(name)}; there are {', '.join(_TYPES)}"
            )
        if found not in _TYPES[name]:
            raise InvalidMessageError(
                f"the column {name!r} is {' or '.join(_TYPES[name])}, not {found}: write {_as_written(name, found)}"
            )
    if "body" not in types:
        raise InvalidMessageError("the column 'body' is missing: the bytes or the text of each message")
    if "topic" not in types and options.topic is None:
        raise InvalidMessageError("whose messages are they? Give the option 'topic', or a column of that name")


def _meant(name: str) -> str:
    """Return advice about an unknown column: the one that may be meant. Spark ignores case in names; this does not."""
    if name.lower() in _TYPES:
        return f": it is called {name.lower()!r}, in small letters"
    return " (Kafka's value is the body here)" if name == "value" else ""


def _as_written(name: str, found: str) -> str:
    """Return the expression that converts a column of another type, for an error."""
    if name == "headers":
        if found.lower().startswith("array<struct<value:"):  # a cast goes by position
            return "transform(headers, h -> struct(h.key AS key, CAST(h.value AS BINARY) AS value))"
        if found.startswith(("array<struct<", "array<void>")):
            return "CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
        return (
            "CAST(headers AS MAP<STRING, STRING>)" if found.startswith(("map<", "void")) else "map('name', 'value', …)"
        )
    return f"to_json({name})" if found.startswith(("struct<", "array<", "map<")) else f"CAST({name} AS STRING)"


@dataclass
class StagedByTask(WriterCommitMessage):
    """What a task has staged, as it is sent to the driver.

    Attributes:
        topics: its segments by topic.
        content: the sum of its messages' fingerprints; None for a write that is not repeated.
    """

    topics: dict[str, list[Staged]] = field(default_factory=dict)
    content: int | None = None


def stage(options: WriteOptions, name: str, batches: Iterator[Any]) -> StagedByTask:
    """Stage the rows of `pyarrow.RecordBatch` objects, durably. Blocking.

    Raises:
        InvalidMessageError: a row has no body, no topic, or an invalid topic.
        MessageSizeError: a body is outside its topic's bounds.
        StorageError: as mapped from the system's error. What was staged is removed again.
    """
    fs, codec = OsFileSystem(), codec_number(options.compression)
    writer = StagingWriter(fs, SystemClock(), options.store, name, segment_bytes=options.segment_bytes, codec=codec)
    kept = cache(partial(kept_options, fs, options.store))
    content = None if options.name is None else 0
    try:
        for batch in batches:
            for topic, bodies, columns in columns_by_topic(batch, options.topic, options.repeated):
                _check_sizes(topic, bodies, kept(topic), options.new_topics)
                content = None if content is None else content + _content(topic, bodies)
                writer.put(topic, columns)
        staged = StagedByTask(writer.finish(), content)
    except BaseException:
        writer.discard()
        raise
    spare_collections()
    return staged


def _content(topic: str, bodies: pa.BinaryArray) -> int:
    """Return a fingerprint of messages. Those of all tasks make a sum that is the same however rows are divided."""
    return crc32(topic.encode()) * len(bodies) + sum(map(crc32, bodies.to_pylist()))


def kept_options(fs: FileSystem, store: str, topic: str) -> StoreOptions | None:
    """Return the options stored with a topic; the library's defaults if it has none; None if there is no such topic.

    Raises:
        FormatVersionError: written by a newer aiodq.
        StorageError: a file or a link lies where the topic would; or as mapped from the system's error.
    """
    directory = os.path.join(store, topic)
    if name_exists(fs, directory) and not directory_exists(fs, directory):
        # Messages that are committed for it would wait until somebody moves that away.
        raise StorageError(NOT_A_DIRECTORY, directory)
    try:
        stored = describe(fs, directory)[0].options
    except StoreNotFoundError:
        return None
    return StoreOptions() if stored is None else stored.options


def _check_sizes(topic: str, bodies: pa.BinaryArray, kept: StoreOptions | None, new: StoreOptions) -> None:
    """Make sure that a put would take bodies of these sizes.

    Raises:
        MessageSizeError: one is too small or too large.
    """
    bounds = kept or new
    least, most = bounds.min_message_bytes, bounds.max_message_bytes
    sizes = pc.binary_length(bodies)
    found = pc.min_max(sizes)
    if found["min"].as_py() >= least and found["max"].as_py() <= most:
        return
    body = next(body for body in bodies.to_pylist() if not least <= len(body) <= most)
    raise MessageSizeError(
        f"a row for the topic {topic!r} has a body of {len(body)} bytes, {_begins(body)}; it takes "
        f"{least} to {most} (min_message_bytes, max_message_bytes): leave such rows out, or "
        + (
            "give the topic other bounds by its configure()"
            if kept
            else "say by maxMessageBytes (of replay: max_message_bytes) how much this new topic takes"
        )
    )


def _begins(body: bytes) -> str:
    return f"which begins with {body[:_SHOWN]!r}" if body else "which is empty"


def columns_by_topic(
    batch: pa.RecordBatch, into: str | None, repeated: str | None = None
) -> Iterator[tuple[str, pa.BinaryArray, Columns | ArrowColumns]]:
    """Yield a batch's rows by topic, in their order: the bodies of each, and all that is to be put.

    Args:
        batch: the rows.
        into: the topic of all rows, whatever their column says, as with Kafka's sink; None: each names its own. Rows
            that were read name the topic that they come from, and should not go back there.
        repeated: which value of a repeated header counts, "first" or "last"; None: a repeated header is an error.

    Raises:
        InvalidMessageError: a row has no body, no topic, or an invalid topic or headers.
    """
    if not batch.num_rows:
        return
    names = set(batch.schema.names)
    if into is not None:
        check_topic(into)
        yield into, *_columns(batch, names, repeated)
        return
    column = batch.column("topic").dictionary_encode(null_encoding="encode")
    topics, numbers = _values("topic", column.dictionary), column.indices.to_numpy()
    if len(topics) > 1:
        # Once for all topics: to look through the rows for each of them takes much longer where there are many.
        batch = batch.take(pa.array(np.argsort(numbers, kind="stable")))
    start = 0
    for topic, count in zip(topics, np.bincount(numbers).tolist(), strict=True):
        if topic is None:
            raise InvalidMessageError(
                "a row's topic is null: fill that column, or say by the option 'topic' where all rows go"
            )
        check_topic(topic)
        yield topic, *_columns(batch.slice(start, count), names, repeated)
        start += count


def _columns(
    rows: pa.RecordBatch, names: set[str], repeated: str | None
) -> tuple[pa.BinaryArray, Columns | ArrowColumns]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise InvalidMessageError("a row's body is null: a message has at least an empty one")
    bodies = bodies.cast(pa.binary())
    tags, keys, headers = (
        rows.column(name) if name in names and rows.column(name).null_count < len(rows) else None
        for name in ("tag", "key", "headers")
    )
    keys = None if keys is None else keys.cast(pa.binary())
    if headers is None and _are_labels(tags, LONGEST_TAG) and _are_labels(keys, LONGEST_KEY):
        return bodies, ArrowColumns(bodies, tags, keys)
    columns = Columns(bodies.to_pylist())
    columns.tags = None if tags is None else _values("tag", tags)
    columns.keys = None if keys is None else _values("key", keys)
    columns.headers = None if headers is None else [_headers(row, repeated) for row in _values("headers", headers)]
    for tag, key in zip_longest(columns.tags or (), columns.keys or ()):
        check_labels(tag, key)
    return bodies, columns


def _are_labels(column: pa.Array | None, longest: int) -> bool:
    """Return whether messages may have these tags or keys: text that is UTF-8, and none of it too long."""
    if column is None:
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return bool(pc.max(pc.binary_length(column)).as_py() <= longest)


def _headers(row: Sequence[_Header | None] | None, repeated: str | None) -> Mapping[str, str]:
    """Return a row's headers, from a map or from the format of Spark's Kafka source."""
    headers: dict[str, str] = {}
    for header in row or ():
        if header is None:
            raise InvalidMessageError("one of a row's headers is null: leave it out of the array")
        name, value = (header["key"], header["value"]) if isinstance(header, dict) else header
        if name is None or value is None:
            raise InvalidMessageError(f"{'the name' if name is None else 'the value'} of a row's header is null")
        if name in headers and repeated is None:
            raise InvalidMessageError(
                f"a row has the header {name!r} twice: say which one counts by repeatedHeaders=first or last"
            )
        if name not in headers or repeated == "last":
            headers[name] = _text(name, value)
    return check_headers(headers)


def _text(name: str, value: str | bytes) -> str:
    """Return a header's value as text.

    Raises:
        InvalidMessageError: it is not UTF-8.
    """
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as cause:
        raise InvalidMessageError(f"the value of a row's header {name!r} is no UTF-8: {cause}") from cause


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values. Strings of Spark may hold any bytes.

    Raises:
        InvalidMessageError: a text is not UTF-8.
    """
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as cause:
        raise InvalidMessageError(
            f"the column {name!r} has text in it that is no UTF-8 ({cause}): write make_valid_utf8(…) of it"
        ) from cause
    return values


def _commit(options: WriteOptions, key: CommitKey, messages: Sequence[WriterCommitMessage | None]) -> None:
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


class BatchWriter(DataSourceArrowWriter):
    """The writer of a single write."""

    def __init__(self, options: WriteOptions) -> None:
        """Write with these options; made beside the driver, it travels to each task."""
        _prepare(options.store)
        self._options = options
        name = options.name
        self._key = CommitKey(uuid4().hex, once=True) if name is None else _key_of(name)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return stage(self._options, self._key.name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks staged; add nothing if the `txnId` was committed before."""
        _commit(self._options, self._key, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - a failed task sends none
        """Remove what was staged; what was committed stays, whatever failed then."""
        discard_staged(OsFileSystem(), self._options.store, self._key.name)


def was_committed(options: WriteOptions, name: str) -> bool:
    """Return whether a single write of this name (`txnId`) was committed to a store. Blocking.

    If its driver was killed after the commit and no process owns the store, it is added to its topics now.

    Raises:
        StorageError: as mapped from the system's error.
    """
    key = _key_of(name)
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
    key = _key_of(name)
    commits = read_commits(OsFileSystem(), store, writer=key.name).commits
    return any(commit.key == key and commit.run not in {None, run} for commit in commits)


def single_writes(store: str) -> dict[str, bool]:
    """Return the names of the committed single writes, and of each whether all of it is in its topics. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    commits, prefix = read_commits(OsFileSystem(), store).commits, _key_of("").name
    single = [commit for commit in commits if commit.key.number is None and commit.key.name.startswith(prefix)]
    return {commit.key.name.removeprefix(prefix): commit.done for commit in single}


def _key_of(name: str) -> CommitKey:
    return CommitKey(f"{_WRITE}{name}")


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream, batch by batch."""

    def __init__(self, options: WriteOptions) -> None:
        """Write with these options; made beside the driver, it travels to each task."""
        _prepare(options.store)
        self._options = options
        self._name = f"{_STREAM}{options.name}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return stage(self._options, self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit what all tasks staged; add nothing if the batch was committed before."""
        _commit(self._options, CommitKey(self._name, batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - likewise
        """Remove what was staged; what was committed stays, whatever failed then."""
        discard_staged(OsFileSystem(), self._options.store, self._name)


def check_place(store: str) -> None:
    """Make sure that this is a store, or that one can be created here; nothing is created. Blocking.

    Raises:
        NotAStoreError: it holds something else, is no directory, or lies among another store's own files.
        StoreNotFoundError: its parent directory does not exist.
        StorageError: as mapped from the system's error.
    """
    fs, parent = OsFileSystem(), os.path.dirname(store.rstrip("/"))
    # Nobody opens a store there: what was committed to it would never be taken over.
    refuse_inside_store(fs, os.path.realpath(store))
    if name_exists(fs, store):
        check_store_directory(fs, store)
    elif not os.path.isdir(parent):
        raise StoreNotFoundError("there is no directory in which the store could be made", parent)


def _prepare(store: str) -> None:
    """Make sure that this is a store, or an empty directory that can become one.

    Raises:
        NotAStoreError: as for `check_place`.
        StorageError: as mapped from the system's error.
    """
    check_place(store)
    fs = OsFileSystem()
    ensure_directory(fs, store)
    check_store_directory(fs, store)
