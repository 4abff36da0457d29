"""A hold belongs to one query: another one neither takes it over nor moves it unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiodq
from aiodq.spark.options import stream_options
from aiodq.spark.pipelines.ship import ship
from aiodq.spark.stream.streaming import StreamReader
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import Hold, read_hold, write_hold
from tests.spark.support import KEEP
from tests.spark.test_streaming import read

if TYPE_CHECKING:
    from pathlib import Path

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.spark.stream.stream_hold._UNTIL_KNOWN", 0.0)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    for topic in ("a", "b"):
        await put(tmp_path / "store", topic, 10)
    return tmp_path / "store"


async def put(path: Path, topic: str, count: int) -> None:
    async with aiodq.open(path, aiodq.StoreOptions(retention=KEEP)) as store:
        await store.topic(topic).put_many([b"x"] * count)


def reader_of(path: Path, **options: str) -> StreamReader:
    return StreamReader(stream_options({"path": str(path), "hold": "daily", **options}))


def held(path: Path) -> Hold | None:
    return read_hold(OsFileSystem(), str(path), "daily")


def first_batch(reader: StreamReader) -> dict[str, Any]:
    """Run a query's first batch, to its end; return where that is."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    reader.partitions(start, end)
    reader.commit(end)
    return end


async def test_the_hold_of_a_query_under_way_is_refused_to_another(store: Path) -> None:
    first = reader_of(store)
    end = first.latestOffset(first.initialOffset(), ALL)
    await put(store, "a", 5)
    last = first.latestOffset(end, ALL)
    second = reader_of(store, topics="a", startingOffsets="latest")
    with pytest.raises(aiodq.InvalidOptionError, match=r"another query's.*holds .*store --release daily"):
        second.latestOffset(second.initialOffset(), ALL)
    assert held(store) == Hold({"a": 0, "b": 0}, None, under_way=True)
    first.commit(end)
    again = reader_of(store)
    assert again.latestOffset(last, ALL) == last


async def test_a_query_of_one_batch_is_under_way(store: Path) -> None:
    """With `trigger(once=True)` Spark does not look again behind it."""
    first = reader_of(store)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    first.partitions(start, end)
    second = reader_of(store, topics="a", startingOffsets="latest")
    with pytest.raises(aiodq.InvalidOptionError, match="another query's"):
        second.latestOffset(second.initialOffset(), ALL)
    assert held(store) == Hold({"a": 0, "b": 0}, None, under_way=True)


async def test_a_first_batch_that_is_tried_again_is_no_other_query(store: Path) -> None:
    first = reader_of(store)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    rows = read(first, start, end)
    await put(store, "a", 5)
    again = reader_of(store)
    assert read(again, again.initialOffset(), end) == rows
    assert again.latestOffset(end, ALL)["topics"] == {"a": 15, "b": 10}
    assert held(store) == Hold({"a": 0, "b": 0}, None, under_way=True)


async def test_a_query_that_was_interrupted_before_its_first_batch_was_on_record(store: Path) -> None:
    first = reader_of(store)
    end = first.latestOffset(first.initialOffset(), ALL)
    again = reader_of(store)
    assert again.latestOffset(again.initialOffset(), ALL) == end


async def test_a_query_that_was_interrupted_in_its_first_batch_begins_again(store: Path) -> None:
    first = reader_of(store, startingOffsets="latest")
    end = first.latestOffset(first.initialOffset(), ALL)
    await put(store, "a", 5)
    again = reader_of(store, startingOffsets="latest")
    again.initialOffset()
    assert held(store) == Hold({"a": 10, "b": 10}, None), "what was promised to the first batch is still kept"
    assert again.latestOffset(end, ALL)["topics"] == {"a": 15, "b": 10}


async def test_a_hold_that_another_query_has_moved_is_told(store: Path) -> None:
    reader = reader_of(store)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.latestOffset(end, ALL)
    write_hold(OsFileSystem(), str(store), "daily", Hold({"a": 10, "b": 11}, None, under_way=True))
    with pytest.raises(aiodq.OffsetError, match="keeps topic 'b' from 11 on, and the query has come to 10"):
        reader.latestOffset(end, ALL)
    lenient = reader_of(store, failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) == end
    assert held(store) == Hold({"a": 10, "b": 10}, None, under_way=True)


@pytest.mark.parametrize("loss", ["true", "false"])
async def test_two_sources_of_one_query_do_not_share_a_hold(store: Path, loss: str) -> None:
    """It would keep only what the one that came last reads."""
    one, two = (reader_of(store, topics=topic, failOnDataLoss=loss) for topic in "ab")
    begins = [each.initialOffset() for each in (one, two)]
    ends = [each.latestOffset(begin, ALL) for each, begin in zip((one, two), begins, strict=True)]
    for each, begin, end in zip((one, two), begins, ends, strict=True):
        each.partitions(begin, end)
    assert held(store) == Hold({"a": 0, "b": 0}, ("b",), under_way=True), "a is not kept"
    with pytest.raises(aiodq.InvalidOptionError, match=r"is used for other topics, too, .* each source of one query"):
        one.latestOffset(ends[0], ALL)


@pytest.mark.parametrize("advance", ["batch", "manual"])
async def test_a_topic_that_joins_the_list_is_held_from_then_on(store: Path, advance: str) -> None:
    reader = reader_of(store, topics="a")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    wider = reader_of(store, topics="a,b", holdAdvance=advance)
    assert wider.latestOffset(end, ALL)["topics"] == {"a": 10, "b": 0}
    found = held(store)
    assert found is not None
    assert found.first("b") == 0


async def test_a_topic_that_leaves_the_list_is_held_no_more(store: Path) -> None:
    reader = reader_of(store, topics="a,b")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    narrow = reader_of(store, topics="a")
    assert narrow.latestOffset(end, ALL) == end, "it goes on where it was if it joins again"
    narrow.commit(end)
    assert held(store) == Hold({"a": 10}, ("a",), under_way=True)


async def test_what_a_pattern_matches_is_held_on(store: Path) -> None:
    reader = reader_of(store, topics="[ab],c*")
    first_batch(reader)
    assert held(store) == Hold({"a": 10, "b": 10}, ("[ab]", "c*"), under_way=True)


async def test_a_topic_that_came_before_the_last_commit_is_no_other_query_s(store: Path) -> None:
    """Its first batch is never committed where the query ends behind it."""
    reader = reader_of(store)
    end = first_batch(reader)
    await put(store, "c", 5)
    between = reader.latestOffset(end, ALL)
    assert between["topics"] == {"a": 10, "b": 10, "c": 0}
    assert reader_of(store).latestOffset(between, ALL)["topics"]["c"] == 5


async def test_an_owner_is_given_time_to_know_of_a_hold_before_the_store_is_looked_at(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(store, aiodq.StoreOptions(retention=KEEP)) as owner:
        await owner.topic("c").put_many([b"x"] * 10)
        await owner.topic("c").purge()
        await owner.topic("c").put(b"x")
    begun: list[Hold | None] = []
    monkeypatch.setattr("aiodq.spark.stream.streaming.wait_until_known", lambda: begun.append(held(store)))
    reader = reader_of(store)
    start = reader.initialOffset()
    assert start["topics"] == {"a": 0, "b": 0, "c": 10}
    assert reader.initialOffset() == start
    assert begun == [Hold({"a": 0, "b": 0, "c": 10}, None)]


async def test_a_hold_that_its_user_moves_stays_where_batches_end(store: Path) -> None:
    reader = reader_of(store, holdAdvance="manual")
    first_batch(reader)
    assert held(store) == Hold({"a": 0, "b": 0}, None, under_way=True)


async def test_a_store_behind_a_link_has_holds(store: Path) -> None:
    """It has them where an owner that opens the link looks for them."""
    link = store.parent / "link"
    link.symlink_to(store)
    reader = reader_of(link)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert held(store) == Hold({"a": 0, "b": 0}, None)
    reader.partitions(start, end)
    reader.commit(end)
    assert held(store) == Hold({"a": 10, "b": 10}, None, under_way=True)
    assert ship(link, f"memory://{uuid4()}/lake", hold="lake").rows == 0
    assert read_hold(OsFileSystem(), str(store), "lake") == Hold({"a": 0, "b": 0}, None)
