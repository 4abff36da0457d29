"""One decoder, three ways: a scan's messages, Arrow, and what Spark's tasks give; the same, whatever there is."""

from __future__ import annotations

import random
import shutil
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format.segment import SegmentHeader
from aiodq.spark.pipelines.session import load
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.store_layout import list_topics
from tests.spark.support import KEEP, read, scanned
from tests.storage.stores import BREAKS, LEFTOVERS, a_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def golden_store(path: Path) -> Path:
    """Make a store of the golden segments, each a topic."""
    path.mkdir()
    (path / "LOCK").touch()
    for segment in GOLDEN.glob("v*/*.seg"):
        topic = path / f"{segment.parent.name}-{segment.stem}"
        topic.mkdir()
        shutil.copy(segment, topic / f"{SegmentHeader.decode(segment.read_bytes()).base:020d}.seg")
    return path


def draft(rng: random.Random) -> bytes | aiodq.Draft:
    """Return a message with any mixture of what a message may have."""
    body = rng.randbytes(rng.choice([0, 1, 9, 200])) * rng.choice([1, 1, 30])
    if rng.random() < 0.5:
        return body
    headers = {f"h{n}": "é" * rng.randrange(3) for n in range(rng.randrange(3))}
    return aiodq.Draft(
        body,
        tag=rng.choice([None, "", "red", "ünï"]),
        key=rng.choice([None, b"", b"k", bytes(300)]),
        headers=headers,
        delay=rng.choice([0, 0, 1000]),
        ttl=rng.choice([None, None, 1000]),
    )


def three_ways(store: Path, topic: str) -> list[dict[str, Any]]:
    """Return a topic's rows, having made sure that each way gives them."""
    rows = scanned(store, topic)
    assert aiodq.open_reader(store).topic(topic).to_arrow().to_pylist() == rows
    for size in ("1", "700", "32m"):
        assert read(store, topic=topic, splitBytes=size, failOnDataLoss="false") == rows
    return rows


def test_golden_files(tmp_path: Path) -> None:
    store = golden_store(tmp_path / "store")
    found = {topic: three_ways(store, topic) for topic in list_topics(OsFileSystem(), str(store))}
    assert len(found) == len(list(GOLDEN.glob("v*/*.seg")))
    assert sum(map(bool, found.values())) == len(found) - 1, "one of them is empty"


@pytest.mark.parametrize("change", [*BREAKS.values(), *LEFTOVERS.values()], ids=[*BREAKS, *LEFTOVERS])
def test_damaged_files(tmp_path: Path, change: Callable[[Path], object]) -> None:
    a_store(tmp_path / "store")
    change(tmp_path / "store")
    three_ways(tmp_path / "store", "t")


@pytest.mark.parametrize("compression", [None, "zstd"])
async def test_whatever_is_put_beside_the_owner(tmp_path: Path, compression: Any, seed: int) -> None:
    rng = random.Random(seed)
    options = aiodq.StoreOptions(segment_bytes=20_000, retention=KEEP, compression=compression)
    async with aiodq.open(tmp_path / "store", options) as store:
        topic, count = store.topic("t"), 0
        for _ in range(12):
            for _ in range(rng.randrange(1, 6)):
                drafts = [draft(rng) for _ in range(rng.choice([1, 1, 2, 40]))]
                count += len(await topic.put_many(drafts))
            assert len(three_ways(tmp_path / "store", "t")) == count


def test_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    golden, damaged = golden_store(tmp_path / "golden"), tmp_path / "damaged"
    a_store(damaged)
    BREAKS["a flipped bit in a sealed segment"](damaged)
    BREAKS["a flipped bit in the newest record"](damaged)
    stores = (golden, damaged)
    topics = [(store, topic) for store in stores for topic in list_topics(OsFileSystem(), str(store))]
    wanted = [row for store, topic in topics for row in scanned(store, topic)]
    frame = load(spark, list(map(str, stores)), failOnDataLoss="false", splitBytes="500")
    found = [row.asDict() for row in frame.collect()]
    for row in found:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
        row["key"] = None if row["key"] is None else bytes(row["key"])
        row["headers"] = list(row["headers"].items()) if row["headers"] else None
        row["body"] = bytes(row["body"])
    assert found == wanted
