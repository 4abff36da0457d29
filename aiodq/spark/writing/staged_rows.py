"""The rows of one task, staged durably in the store's directory until the driver commits them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from aiodq.clock import SystemClock
from aiodq.errors import MessageSizeError, StorageError, StoreNotFoundError
from aiodq.format.checksum import crc32
from aiodq.format.codecs import codec_number
from aiodq.options import StoreOptions
from aiodq.spark.worker import spare_collections
from aiodq.spark.writing.rows import columns_by_topic
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.durable_io import NOT_A_DIRECTORY
from aiodq.storage.io.filesystem import OsFileSystem, directory_exists, name_exists
from aiodq.storage.state.topic.topic_meta import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.spark.options import WriteOptions
    from aiodq.storage.bulk.commits import Staged
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["StagedByTask", "kept_options", "stage"]

_SHOWN: Final = 32
"""The most bytes of a body that an error shows, to identify the row."""


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
