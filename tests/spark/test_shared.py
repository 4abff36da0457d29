"""Spark beside a store that many processes share: as beside one that a single process has."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.spark.pipelines import audit
from aiodq.storage.bulk.commits import STAGING, read_commits
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import lock_holder
from aiodq.storage.offline.verify import verify_store
from tests.cli.support import PROGRAM, environment
from tests.processes import killed_at_last
from tests.spark.support import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

PATIENCE = 200.0
ROWS = [b"%d" % number for number in range(90)]


def save(spark: SparkSession, path: Path) -> None:
    """Write rows by three tasks, from a thread that is not the session's: it has to be used there before."""
    spark.createDataFrame([], "id INT")
    frame = spark.range(0, len(ROWS), numPartitions=3).selectExpr("cast(id as string) as body")
    frame.write.format("aiodq").mode("append").option("topic", "jobs").save(str(path))


def read(spark: SparkSession, path: Path) -> list[tuple[int, bytes]]:
    rows = spark.read.format("aiodq").option("columns", "offset,body").load(str(path)).orderBy("offset").collect()
    return [(row["offset"], bytes(row["body"])) for row in rows]


async def take(queue: aiodq.Queue, count: int) -> list[bytes]:
    """Work off so many messages; return their bodies."""
    bodies: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        while len(bodies) < count:
            message = await queue.get()
            await message.ack()
            bodies.append(message.body)
    return bodies


async def test_a_write_is_delivered_to_all_who_share_the_store(spark: SparkSession, tmp_path: Path) -> None:
    path, options = tmp_path / "s", aiodq.StoreOptions(retention=KEEP)
    async with aiodq.open(path, options, mode="shared") as owner, aiodq.open(path, mode="client") as client:
        await owner.queue("jobs").put(b"before")
        await asyncio.to_thread(save, spark, path)
        one, other = await asyncio.gather(take(owner.queue("jobs"), 30), take(client.queue("jobs"), 61))
        assert sorted(one + other) == sorted([b"before", *ROWS])
        assert await client.queue("jobs").put(b"after") == 91
        assert [body for _, body in await asyncio.to_thread(read, spark, path)] == [b"before", *ROWS, b"after"]
    assert not [left for left in (path / STAGING).rglob("*") if left.is_file()]
    assert verify_store(str(path), OsFileSystem()).ok


async def test_what_others_put_is_read_and_audited_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    """Their puts have frames of their own in the log, which say whose they are; no reader sees those."""
    path = tmp_path / "s"
    options = aiodq.StoreOptions(segment_bytes=2000)
    async with aiodq.open(path, options, mode="shared"), aiodq.open(path, mode="client") as client:
        topic = client.topic("jobs")
        for number in range(0, 60, 3):
            await topic.put(b"%d" % number)
            await topic.put_many([b"%d" % (number + 1), b"%d" % (number + 2)])
        expected = [(number, b"%d" % number) for number in range(60)]
        assert await asyncio.to_thread(read, spark, path) == expected
        found = await asyncio.to_thread(audit, spark, path)
        assert (found.findings, found.records, found.segments > 1) == ((), 60, True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    """Return the process of `aiodq serve`, once it serves a new store."""
    command = [*PROGRAM, "serve", str(tmp_path / "s"), "--create", "--json"]
    with killed_at_last(command, env=environment(), stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["serving"]
        yield child


async def test_a_write_beside_aiodq_serve_is_there_once_though_that_is_killed(
    spark: SparkSession, tmp_path: Path, served: Any
) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path, mode="shared") as store:
        queue = store.queue("jobs")
        assert await queue.put(b"before") == 0
        await asyncio.to_thread(save, spark, path)
        # Whether it has taken over what was written by now, or this process does, is the same to whoever consumes it.
        served.kill()
        assert await take(queue, 91) == [b"before", *ROWS]
        assert await queue.put(b"after") == 91
        assert lock_holder(str(path)) is not None
        assert not read_commits(OsFileSystem(), str(path)).pending
        assert (await asyncio.to_thread(read, spark, path))[-1] == (91, b"after")
