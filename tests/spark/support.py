"""What these tests share: a store with everything in it, and what a reader beside it sees."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiodq
from aiodq.format.vectorized.arrow import COLUMNS
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import read_options, stream_options
from aiodq.spark.packing import plan_tasks
from aiodq.spark.reading import Partition, read_partition
from aiodq.spark.stream.streaming import StreamReader
from tests.storage.logs import segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery

    from aiodq.storage.read.stored_message import StoredMessage

KEEP = aiodq.Retention(consumed="keep")

MALFORMED: list[dict[str, Any]] = [
    {"topics": {"orders": "5"}},
    {"topics": {"orders": -5}},
    {"topics": {"orders": 5.0}},
    {"topics": {"orders": None}},
    {"topics": {"orders": True}},
    {"topics": ["orders"]},
    {"topics": None},
    {"topics": {"orders": 5}, "ids": ["orders"]},
    {"topics": {"orders": 5}, "ids": {"orders": 5}},
    {"topics": {"orders": 5}, "ids": None},
    {"topics": {"orders": 5}, "v": [1]},
]
"""Of offsets, what is not as aiodq writes it; a user may have changed a checkpoint by hand."""


async def fill(path: Path, topic: str = "orders", rounds: int = 40, segment_bytes: int = 4096) -> None:
    """Put batches, single messages, and all that a message may have; over several segments."""
    options = aiodq.StoreOptions(segment_bytes=segment_bytes, retention=KEEP, sync="os")  # closing syncs
    async with aiodq.open(path, options) as store:
        target = store.topic(topic)
        for number in range(rounds):
            await target.put_many([b"%d" % number, aiodq.Draft(b"x" * number, headers={"n": str(number)}), b""])
            await target.put(b"plain %d" % number)
            await target.put(b"red", tag="red" if number % 3 else "blue", key=b"k" * (number % 2))


async def deleted(topic: aiodq.Topic | aiodq.Queue, directory: Path) -> None:
    """Wait until no file is left of what is not in the topic any more: readers may see what is in a file until then."""
    while int(segments(directory)[0].stem) < topic.begin_offset:
        await asyncio.sleep(0.01)


def as_row(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a row."""
    return {
        "topic": message.topic,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "tag": message.tag,
        "key": message.key,
        "headers": list(message.headers.items()) or None,
        "body": message.body,
    }


def scanned(path: Path, topic: str = "orders") -> list[dict[str, Any]]:
    """Return a topic's messages as a reader beside its owner gives them."""
    return [as_row(message) for message in aiodq.open_reader(path).topic(topic).scan()]


def reader_of(path: Path | str, **options: str) -> StreamReader:
    """Return the reader of a stream."""
    return StreamReader(stream_options({"path": str(path), **options}))


def read(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of all splits, without Spark."""
    wanted = read_options({"path": str(path), **options})
    fs = AnyFileSystem()
    tasks = [Partition(splits) for splits in plan_tasks(fs, wanted)]
    batches = [batch for task in tasks for batch in read_partition(fs, task, wanted)]
    assert all(batch.schema.names == [name for name in COLUMNS if name in wanted.columns] for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def begun(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Return a query that has begun, or has ended.

    Spark waits ten seconds for the process that is to read for it. On a machine that is busy with other tests that is
    not enough now and then; nothing was read then, and it is started again.
    """
    for _ in range(10):
        query = start()
        while query.isActive and not query.recentProgress:
            time.sleep(0.05)
        if "Python worker failed to connect back" not in str(query.exception()):
            break
    return query
