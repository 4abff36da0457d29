"""Segments between others that retention deletes while a stream has still to read them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import aiodq
from aiodq.spark.stream.lag import lag
from aiodq.spark.stream.stream_gaps import gaps_of
from tests.spark.support import read, reader_of
from tests.spark.test_lag import checkpoint_of
from tests.storage.logs import segments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiodq.spark.stream.streaming import StreamReader

OPTIONS = aiodq.StoreOptions(segment_bytes=1000, sync="os")
ALL = ReadAllAvailable()


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[aiodq.Topic]:
    async with aiodq.open(tmp_path, OPTIONS) as store:
        orders = store.topic("orders")
        orders.channel("work")
        for number in range(100):
            await orders.put(b"%03d" % number + bytes(40))
        yield orders


async def settle(topic: aiodq.Topic, tmp_path: Path) -> tuple[int, int]:
    """Ack all messages but one in the first segment and one in the last; return the gap that retention leaves."""
    _, after, *_, last = (int(segment.stem) for segment in segments(tmp_path / "orders"))
    work = topic.channel("work")
    await work.ack_many([message for message in await work.get_many(100) if message.offset not in {2, 99}])
    while len(segments(tmp_path / "orders")) > 2:
        await asyncio.sleep(0.01)
    return after, last


def rows_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the numbers of the messages between two offsets, as they would come out of a checkpoint."""
    tasks = reader.partitions(start, end)
    return [int(body[:3]) for task in tasks for batch in reader.read(task) for body in batch["body"].to_pylist()]


async def test_what_is_deleted_before_it_was_read_is_an_error(
    topic: aiodq.Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(5))
    planned = reader.latestOffset(end, ALL)
    first, stop = await settle(topic, tmp_path)
    told = f"the messages {first} to {stop - 1} of topic 'orders' were deleted before the query has read them"
    for again in (reader, reader_of(tmp_path)):
        for until in (planned, again.latestOffset(end, ALL)):
            with pytest.raises(aiodq.OffsetError, match=told):
                again.partitions(end, until)
    lossy = reader_of(tmp_path, failOnDataLoss="false")
    assert rows_of(lossy, end, planned) == [*range(5, first), *range(stop, 100)]
    assert f"deleted before they were read: {first} to {stop - 1}" in caplog.text


async def test_offsets_that_a_read_is_to_begin_at_count_for_what_follows_too(
    topic: aiodq.Topic, tmp_path: Path
) -> None:
    """As a job would that goes on where its last run ended."""
    first, stop = await settle(topic, tmp_path)
    told = f"topic 'orders' has no messages {first} to [0-9]+ any more: .*; the read is to start at 5"
    options: dict[str, str]
    for given in ("5", '{"orders": 5}'):
        for options in ({}, {"endingOffsets": str(first + 1)}, {"minPartitions": "5"}):
            with pytest.raises(aiodq.OffsetError, match=told):
                read(tmp_path, startingOffsets=given, **options)
        assert len(read(tmp_path, startingOffsets=given, endingOffsets=str(first))) == first - 5
        assert len(read(tmp_path, startingOffsets=given, failOnDataLoss="false")) == first - 5 + 100 - stop
    there = [*range(first), *range(stop, 100)]
    assert [row["offset"] for row in read(tmp_path)] == there
    assert [row["offset"] for row in read(tmp_path, startingOffsets="earliest", endingOffsets="100")] == there
    assert len(read(tmp_path, startingOffsets=str(stop))) == 100 - stop


async def test_what_was_deleted_before_the_query_began_is_none_of_its_losses(
    topic: aiodq.Topic, tmp_path: Path
) -> None:
    first, stop = await settle(topic, tmp_path)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    ends = [start]
    found: list[int] = []
    for most in (5, first - 5, 3, 200):
        ends.append(reader_of(tmp_path).latestOffset(ends[-1], ReadMaxRows(most)))
        found += rows_of(reader_of(tmp_path), ends[-2], ends[-1])
    assert found == [*range(first), *range(stop, 100)]
    uuid = ends[-1]["ids"]["orders"]
    assert gaps_of(ends[3], uuid) == ((first, stop),)
    last = reader.latestOffset(ends[-1], ALL)
    assert "gaps" not in last, "it lies behind"
    # The earlier segment goes, too: the query has begun within the gap.
    await topic.channel("work").seek(99)
    while len(segments(tmp_path / "orders")) > 1:
        await asyncio.sleep(0.01)
    assert rows_of(reader_of(tmp_path), ends[2], ends[4]) == [*range(stop, 100)]


async def test_a_topic_that_comes_later_is_read_with_the_gaps_that_it_has_then(
    topic: aiodq.Topic, tmp_path: Path
) -> None:
    first, stop = await settle(topic, tmp_path)
    reader = reader_of(tmp_path)
    start = {**reader.initialOffset(), "topics": {}, "ids": {}}
    del start["initial"]
    come = reader.latestOffset(start, ALL)
    assert come["topics"] == {"orders": 0}
    end = reader.latestOffset(come, ALL)
    assert rows_of(reader, come, end) == [*range(first), *range(stop, 100)]


@pytest.mark.parametrize("said", [None, [], {"u": 5}, {"u": [5]}, {"u": [[1, "2"]]}, {"u": [[1]]}, {"u": [[1, None]]}])
def test_gaps_that_were_spoilt_by_hand_are_none(said: object) -> None:
    assert gaps_of({"gaps": said}, "u") == ()


async def test_the_lag_counts_no_messages_that_were_deleted_between_others(topic: aiodq.Topic, tmp_path: Path) -> None:
    first, stop = await settle(topic, tmp_path)
    for taken, waiting in ((5, first - 5 + 100 - stop), (first + 1, 100 - stop), (stop + 1, 99 - stop)):
        place = checkpoint_of(tmp_path.with_name(f"checkpoint {taken}"), {"v": 1, "topics": {"orders": taken}})
        assert [each.lag for each in lag(place, tmp_path)] == [waiting]
