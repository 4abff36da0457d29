"""Others that come to have the numbers of what a stream has read: after a power cut, or an earlier copy's return."""

from __future__ import annotations

import json
import shutil
import time
from typing import TYPE_CHECKING, Any
from unittest import mock
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import aiodq
from aiodq.spark.options import stream_options
from aiodq.spark.pipelines.ship import ship
from aiodq.spark.stream.streaming import StreamReader
from aiodq.storage.read.frame_marks import FramePlace
from tests.spark.support import KEEP, fill, reader_of
from tests.spark.test_stream_identity import damage_first, put, taken
from tests.spark.test_streaming import read
from tests.storage.logs import segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql.streaming.datasource import ReadLimit

ALL = ReadAllAvailable()
BODY = b"no header has this in it"
OTHERS = r"topic 'a' was read up to 50, and from 30 on, about, there are other messages now: a power cut .*=false"


def cut(store: Path, saved: Path) -> None:
    """Bring back what was saved, as a power cut does that takes all since then, or whoever restores a backup."""
    shutil.rmtree(store)
    shutil.copytree(saved, store)


async def shortened(tmp_path: Path, others: int, **options: str) -> tuple[Path, dict[str, Any]]:
    """Return a store whose topic was read up to 50, went back to 30, and got so many others; and what was read."""
    store = tmp_path / "store"
    await put(store, "a", 30)
    await put(store, "b", 5)
    shutil.copytree(store, tmp_path / "saved")
    await put(store, "a", 20)
    end = taken(reader_of(store, **options))
    assert end["topics"] == {"a": 50, "b": 5}
    cut(store, tmp_path / "saved")
    await put(store, "a", others, b"other")
    return store, end


@pytest.mark.parametrize("others", [20, 21, 40])
async def test_others_under_the_numbers_of_what_was_read(
    tmp_path: Path, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, end = await shortened(tmp_path, others)
    with pytest.raises(aiodq.OffsetError, match=OTHERS):
        reader_of(store).latestOffset(end, ALL)
    lenient = reader_of(store, failOnDataLoss="false")
    between = lenient.latestOffset(end, ALL)
    assert between["topics"] == {"a": 30, "b": 5}
    assert "there are other messages now" in caplog.text
    assert "the query goes on at 30" in caplog.text
    assert read(lenient, end, between) == []
    last = reader_of(store).latestOffset(between, ALL)
    assert read(lenient, between, last) == [("a", number) for number in range(30, 30 + others)]


async def test_others_that_do_not_reach_as_far_as_what_was_read(tmp_path: Path) -> None:
    store, end = await shortened(tmp_path, 10)
    with pytest.raises(aiodq.OffsetError, match="'a' ends at 40, and was read up to 50"):
        reader_of(store).latestOffset(end, ALL)
    lenient = reader_of(store, failOnDataLoss="false")
    between = lenient.latestOffset(end, ALL)
    assert between["topics"]["a"] == 30
    assert read(lenient, between, lenient.latestOffset(between, ALL)) == [("a", number) for number in range(30, 40)]


async def test_a_query_that_runs_meanwhile(tmp_path: Path) -> None:
    store = tmp_path / "store"
    await put(store, "a", 30)
    shutil.copytree(store, tmp_path / "saved")
    await put(store, "a", 20)
    reader = reader_of(store)
    end = taken(reader)
    assert reader.latestOffset(end, ALL) == end
    cut(store, tmp_path / "saved")
    await put(store, "a", 30, b"other")
    with pytest.raises(aiodq.OffsetError, match=OTHERS):
        reader.latestOffset(end, ALL)


async def test_a_batch_on_record_that_would_read_others(tmp_path: Path) -> None:
    """A sink may have its first try already, and passes over the second."""
    store, end = await shortened(tmp_path, 40)
    start = reader_of(store).initialOffset()
    again = reader_of(store)
    with pytest.raises(aiodq.OffsetError, match="is to read the messages 0 to 49 of topic 'a', and there are others"):
        again.partitions(start, end)
    lenient = reader_of(store, failOnDataLoss="false")
    assert len(read(lenient, start, end)) == 55
    assert lenient.latestOffset(end, ALL)["topics"]["a"] == 30, "what the sink has passed over comes again"


async def test_a_query_that_begins_at_the_end(tmp_path: Path) -> None:
    store, end = await shortened(tmp_path, 40, startingOffsets="latest")
    with pytest.raises(aiodq.OffsetError, match=OTHERS):
        reader_of(store, startingOffsets="latest").latestOffset(end, ALL)


async def test_several_stores_of_which_one_went_back(tmp_path: Path) -> None:
    await put(tmp_path / "one", "a", 50)
    await put(tmp_path / "two", "a", 30)
    shutil.copytree(tmp_path / "two", tmp_path / "saved")
    await put(tmp_path / "two", "a", 20)
    both = f"{tmp_path}/one,{tmp_path}/two"
    end = taken(reader_of(both))
    cut(tmp_path / "two", tmp_path / "saved")
    await put(tmp_path / "two", "a", 40, b"other")
    with pytest.raises(aiodq.OffsetError, match="two/a' was read up to 50, and from 30 on"):
        reader_of(both).latestOffset(end, ALL)
    (tmp_path / "two").rename(tmp_path / "three")
    moved = reader_of(f"{tmp_path}/one,{tmp_path}/three", failOnDataLoss="false")
    assert moved.latestOffset(end, ALL)["topics"] == {f"{tmp_path}/one/a": 50, f"{tmp_path}/three/a": 30}


async def test_where_a_clock_was_set_back_it_goes_back_to_what_was_durable(tmp_path: Path) -> None:
    """What a mark says was durable is what no power cut has taken."""
    store, end = await shortened(tmp_path, 40)
    later = {**end, "marks": {**end["marks"], "a": [50, 1 << 62, *end["marks"]["a"][2:]]}}
    assert later["marks"]["a"][3] == 30
    assert reader_of(store, failOnDataLoss="false").latestOffset(later, ALL)["topics"]["a"] == 30
    later["marks"]["a"][3] = 17
    assert reader_of(store, failOnDataLoss="false").latestOffset(later, ALL)["topics"]["a"] == 17
    later["marks"]["a"][3] = 50
    assert reader_of(store, failOnDataLoss="false").latestOffset(later, ALL)["topics"]["a"] == 49


async def test_what_came_behind_it_does_not_hide_that_a_clock_was_set_back(tmp_path: Path) -> None:
    store, end = await shortened(tmp_path, 40)
    meanwhile = {**end, "marks": {**end["marks"], "a": [50, time.time_ns(), *end["marks"]["a"][2:]]}}
    await put(store, "a", 10, b"newer")
    assert reader_of(store, failOnDataLoss="false").latestOffset(meanwhile, ALL)["topics"]["a"] == 30
    with pytest.raises(aiodq.OffsetError, match=OTHERS):
        reader_of(store).latestOffset(meanwhile, ALL)


async def test_damage_elsewhere_does_not_hide_others(tmp_path: Path) -> None:
    store, end = await shortened(tmp_path, 40)
    (store / "a" / f"{1000:020d}.seg").write_bytes(b"no header" * 100)
    assert reader_of(store, failOnDataLoss="false").latestOffset(end, ALL)["topics"]["a"] == 30


async def test_offsets_of_before_and_by_hand_are_taken_for_what_they_say(tmp_path: Path) -> None:
    store, end = await shortened(tmp_path, 40)
    before = {name: value for name, value in end.items() if name != "marks"}
    by_hand = {**end, "topics": {**end["topics"], "a": 45}}
    no_marks: list[Any] = [[], {"a": 5}, {"a": [50, 1, 2]}, {"a": [50, 1, 2, "3"]}]
    wrong = [{**end, "marks": marks} for marks in no_marks]
    for start, count in ((before, 20), (by_hand, 25), *((start, 20) for start in wrong)):
        reader = reader_of(store)
        last = reader.latestOffset(start, ALL)
        assert len(read(reader, start, last)) == count
        assert sorted(last["marks"]) == ["a", "b"]


async def test_what_was_read_may_be_deleted(tmp_path: Path) -> None:
    small = aiodq.StoreOptions(segment_bytes=4096, retention=KEEP)
    async with aiodq.open(tmp_path, small) as store:
        topic = store.topic("a")
        for _ in range(20):
            await topic.put_many([b"x" * 90] * 10)
        reader = StreamReader(stream_options({"path": str(tmp_path)}))
        end = reader.latestOffset(reader.initialOffset(), ALL)
        assert end["topics"] == {"a": 200}
        await topic.purge()
        for running in (reader, reader_of(tmp_path)):
            assert running.latestOffset(end, ALL) == end, "nothing has come, so there is no batch"
        await topic.put_many([b"x"] * 5)
    for strict in (reader, reader_of(tmp_path)):
        assert read(strict, end, strict.latestOffset(end, ALL)) == [("a", number) for number in range(200, 205)]


@pytest.mark.parametrize("limit", [ReadMaxRows(7), ReadMaxBytes(3000), ALL], ids=str)
async def test_every_kind_of_frame_is_known_again(tmp_path: Path, limit: ReadLimit) -> None:
    """Wherever a batch ends: within a frame, at a segment's end, before control frames, in an adopted segment."""
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=4096, retention=KEEP)) as store:
        topic = store.topic("a")
        for number in range(12):
            await topic.put_many([b"x" * 40] * 20)
            await topic.put(b"plain")
            await topic.put(b"tagged", tag="t", ttl=3600)
            async with store.transaction() as tx:
                tx.put("a", b"y" * number)
                tx.put("a", b"z")
    start, seen = reader_of(tmp_path).initialOffset(), list[tuple[str, int]]()
    while True:
        end = json.loads(json.dumps(reader_of(tmp_path).latestOffset(start, limit)))
        if end == start:
            break
        assert end["marks"]["a"][0] == end["topics"]["a"]
        seen += read(reader_of(tmp_path), start, end)
        start = end
    assert seen == [("a", number) for number in range(12 * 24)]


async def test_damage_to_what_was_read_is_no_concern_of_the_query(tmp_path: Path) -> None:
    await put(tmp_path, "a", 5, BODY)
    end = taken(reader_of(tmp_path))
    await put(tmp_path, "a", 5)
    path = segments(tmp_path / "a")[0]
    whole = path.read_bytes()
    damage_first(tmp_path / "a")
    assert reader_of(tmp_path).latestOffset(end, ALL)["topics"] == {"a": 10}
    path.write_bytes(whole[:68] + bytes([whole[68] ^ 1]) + whole[69:])
    assert reader_of(tmp_path).latestOffset(end, ALL)["topics"] == {"a": 10}, "of its checksum itself"


async def test_a_quiet_topic_costs_one_look(tmp_path: Path) -> None:
    """And finding the frame anew is for a query that was started again."""
    await put(tmp_path, "a", 500)
    reader = reader_of(tmp_path)
    end = taken(reader)
    look: Callable[..., bool] = FramePlace.is_kept
    with (
        mock.patch.object(FramePlace, "is_kept", autospec=True, side_effect=look) as looked,
        mock.patch("aiodq.spark.stream.stream_marks.find_frame", side_effect=AssertionError),
    ):
        assert reader.latestOffset(end, ALL) == end
    assert looked.call_count == 1


async def test_an_archive_of_the_store_goes_on_where_the_store_was_and_is_looked_at_once(tmp_path: Path) -> None:
    """In a bucket an object is never replaced, and each look is a request."""
    store, bucket = tmp_path / "store", f"memory://{uuid4()}/lake"
    await fill(store, segment_bytes=2000)
    running = reader_of(store)
    begin = json.loads(json.dumps(running.latestOffset(running.initialOffset(), ReadMaxRows(30))))
    ship(store, bucket)
    reader = reader_of(bucket)
    end = json.loads(json.dumps(reader.latestOffset(begin, ALL)))
    assert read(reader, begin, end) == [("orders", number) for number in range(30, end["topics"]["orders"])]
    assert end["marks"]["orders"][0] == end["topics"]["orders"]
    with mock.patch.object(FramePlace, "is_kept", side_effect=AssertionError):
        assert reader.latestOffset(end, ALL) == end
    wrong = {**begin, "marks": {"orders": [30, 1, 2, 3]}}
    with pytest.raises(aiodq.OffsetError, match="'orders' was read up to 30, and from 0 on, about"):
        reader_of(bucket).latestOffset(wrong, ALL)
