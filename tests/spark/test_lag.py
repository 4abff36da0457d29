"""How far a query is behind, from a checkpoint as Spark writes it. Without a JVM, but for one query."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.spark.stream.lag import TopicLag, lag
from tests.cli.support import aiodq as run
from tests.cli.support import ok
from tests.spark.support import KEEP, MALFORMED, begun

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def checkpoint_of(path: Path, *sources: dict[str, Any] | str, batch: int = 0, finished: bool = True) -> Path:
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True, exist_ok=True)
    lines = [source if isinstance(source, str) else json.dumps(source) for source in sources]
    (path / "offsets" / str(batch)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))
    (path / "offsets" / f".{batch}.crc").touch()
    if finished:
        (path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return path


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    async with aiodq.open(tmp_path / "store", aiodq.StoreOptions(retention=KEEP)) as store:
        for topic, count in (("a", 12), ("b", 5)):
            await store.topic(topic).put_many([b"x"] * count)
    return tmp_path / "store"


def test_it_is_what_the_last_finished_batch_has_not_taken_in(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    for batch, taken in ((9, 3), (10, 4)):
        checkpoint_of(place, "-", {"v": 1, "topics": {"a": taken, "b": 5, "gone": 7}}, batch=batch)
    checkpoint_of(place, {"v": 1, "topics": {"a": 12, "b": 5}}, batch=11, finished=False)
    expected = [TopicLag(str(store), "a", 4, 12, 8), TopicLag(str(store), "b", 5, 5, 0)]
    assert lag(place, store) == expected
    assert [line["lag"] for line in json.loads(ok("spark", "lag", place, store, "--json").out)] == [8, 0]
    assert b"8" in ok("spark", "lag", place, store).out


@pytest.mark.parametrize("source", ["0", "orders_of_a_shop"])
def test_sources_may_have_names(store: Path, tmp_path: Path, source: str) -> None:
    """Spark writes them so in version 2 of its log of offsets, for queries whose sources may come and go."""
    place = checkpoint_of(tmp_path / "checkpoint", {"v": 1, "topics": {"a": 4}})
    written = place / "offsets" / "0"
    _, metadata, offsets = written.read_text().splitlines()
    written.write_text(f"v2\n{metadata}\nx:-\n{source}:{offsets}")
    assert lag(place, store) == [TopicLag(str(store), "a", 4, 12, 8)]


@pytest.mark.parametrize("content", ["", "v1", "v2", "v2\n"])
def test_offsets_that_were_cut_off_are_of_no_source(store: Path, tmp_path: Path, content: str) -> None:
    place = checkpoint_of(tmp_path / "checkpoint", {"v": 1, "topics": {"a": 4}})
    (place / "offsets" / "0").write_text(content)
    with pytest.raises(aiodq.InvalidOptionError, match="reads nothing of aiodq"):
        lag(place, store)


async def test_what_was_deleted_is_not_waited_for(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "store", aiodq.StoreOptions(retention=KEEP)) as store:
        await store.topic("a").put_many([b"x"] * 10)
        await store.topic("a").purge()
        await store.topic("a").put(b"x")
        place = checkpoint_of(tmp_path / "checkpoint", {"v": 1, "topics": {"a": 3}})
        assert [(each.taken, each.end, each.lag) for each in lag(place, tmp_path / "store")] == [(3, 11, 1)]


def test_of_several_stores_the_checkpoint_knows_them(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "other")
    topics = {f"{tmp_path}/other/a": 1, f"{store}/a": 2, f"{store}/b": 0}
    place = checkpoint_of(tmp_path / "checkpoint", {"v": 2, "topics": topics})
    assert [(each.store, each.topic, each.lag) for each in lag(place)] == [
        (str(tmp_path / "other"), "a", 11),
        (str(store), "a", 10),
        (str(store), "b", 5),
    ]


def test_mistakes(store: Path, tmp_path: Path) -> None:
    place = checkpoint_of(tmp_path / "checkpoint", {"v": 1, "topics": {"a": 3}})
    with pytest.raises(aiodq.InvalidOptionError, match="which store does the query read"):
        lag(place)
    with pytest.raises(aiodq.StoreNotFoundError):
        lag(place, tmp_path / "nowhere")
    with pytest.raises(aiodq.StoreNotFoundError, match="there is no checkpoint"):
        lag(tmp_path / "nowhere", store)
    with pytest.raises(aiodq.InvalidOptionError, match="reads nothing of aiodq"):
        lag(checkpoint_of(tmp_path / "others", '{"logOffset":3}', "not JSON"), store)
    with pytest.raises(aiodq.InvalidOptionError, match="no batch of the query"):
        lag(checkpoint_of(tmp_path / "new", {"v": 1, "topics": {"a": 3}}, finished=False), store)
    for number, wrong in enumerate(MALFORMED):
        if wrong.get("v") is None:
            told = checkpoint_of(tmp_path / f"spoilt {number}", {"v": 1, **wrong})
            with pytest.raises(aiodq.CorruptionError, match="offsets that aiodq does not write") as caught:
                lag(told, store)
            assert caught.value.path == str(told / "offsets" / "0")
    (place / "offsets" / "0").unlink()
    with pytest.raises(aiodq.CorruptionError, match="are missing"):
        lag(place, store)
    assert run("spark", "lag", tmp_path / "nowhere").code != 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_query_of_several_stores_and_what_its_progress_says(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "other")
    frame = spark.readStream.format("aiodq").option("maxRecordsPerTrigger", "10").load(f"{store},{tmp_path}/other")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = begun(writer.trigger(availableNow=True).start)
    assert query.awaitTermination(250)
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    source = batches[0]["sources"][0]
    end, latest = (json.loads(source[name])["topics"] for name in ("endOffset", "latestOffset"))
    assert sum(latest[topic] - end[topic] for topic in latest) == 24
    assert sum(batch["numInputRows"] for batch in batches) == 34
    assert {(each.store, each.lag) for each in lag(tmp_path / "checkpoint")} == {
        (str(store), 0),
        (str(tmp_path / "other"), 0),
    }
