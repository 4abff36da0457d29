"""What the logger `aiodq.spark` says: how much is read and written, and what a lossy read leaves out. Without Spark."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import aiodq
from aiodq.spark.options import write_options
from aiodq.spark.writing.writers import BatchWriter
from tests.spark.support import fill, read, scanned
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "aiodq.spark")
    return caplog


async def test_a_read_says_how_much_and_by_how_many(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    await fill(tmp_path / "store", rounds=20, segment_bytes=1000)
    found = len(read(tmp_path / "store", splitBytes="1k"))
    (line,) = [record.getMessage() for record in lines.records if record.name == "aiodq.spark"]
    assert line.startswith(f"read of the topics ['orders']: messages: {found}, tasks: ")


async def test_what_a_lossy_read_leaves_out_is_told_once(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    await fill(tmp_path / "store", rounds=20, segment_bytes=100_000)
    whole = len(read(tmp_path / "store"))
    (segment,) = segments(tmp_path / "store" / "orders")[:1]
    for position in (200, 900, 1500):
        flip(segment, position, 0)
    with pytest.raises(aiodq.CorruptionError):
        read(tmp_path / "store")
    lines.clear()
    assert len(read(tmp_path / "store", failOnDataLoss="false")) < whole
    first, more = [record for record in lines.records if record.levelno == logging.WARNING]
    assert str(segment) in first.getMessage()
    assert first.__dict__["topic"] == "orders"
    assert "2 more places" in more.getMessage()


async def test_what_is_missing_from_the_start_is_told_of_a_lossy_read(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    """No task meets a segment that is not there any more when the read is planned."""
    await fill(tmp_path / "store", rounds=20, segment_bytes=1000)
    there = scanned(tmp_path / "store")
    gone, after = segments(tmp_path / "store" / "orders")[2:4]
    gone.unlink()
    found = read(tmp_path / "store", failOnDataLoss="false")
    first, stop = int(gone.stem), int(after.stem)
    assert found == there[:first] + there[stop:]
    (warning,) = [record for record in lines.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith("topic 'orders': what can be read is read, as failOnDataLoss is false: ")
    assert warning.getMessage().endswith(f"the messages {first} to {stop - 1} are missing")
    assert warning.__dict__["offset"] == first
    lines.clear()
    read(tmp_path / "store", failOnDataLoss="false", startingOffsets=str(stop))
    assert [record for record in lines.records if record.levelno == logging.WARNING] == []


async def test_no_message_is_told_to_be_left_out_that_a_lossy_read_gives(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path / "store", rounds=20, segment_bytes=1000)
    there, damaged = scanned(tmp_path / "store"), segments(tmp_path / "store" / "orders")[2]
    flip(damaged, 9, 0)
    with pytest.raises(aiodq.CorruptionError):
        read(tmp_path / "store")
    assert read(tmp_path / "store", failOnDataLoss="false") == there
    (warning,) = [record for record in lines.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        f"topic 'orders': what can be read is read, as failOnDataLoss is false: {damaged} at byte 0: the segment "
        f"header's checksum is wrong"
    )


async def test_a_write_that_is_repeated_says_that_it_adds_nothing(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    store = str(tmp_path / "store")
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"]})
    for _ in range(2):
        writer = BatchWriter(write_options({"path": store, "topic": "t", "txnId": "one"}, stream=False))
        writer.commit([writer.write(iter([rows]))])
    last = [record.getMessage() for record in lines.records if record.name == "aiodq.spark"][-1]
    assert last == f"write into {store} was committed before: nothing is added of 3 messages"


async def test_a_write_says_how_much(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    store = str(tmp_path / "store")
    writer = BatchWriter(write_options({"path": store, "topic": "t"}, stream=False))
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b", b"c"]})
    writer.commit([writer.write(iter([rows]))])
    (line,) = [record.getMessage() for record in lines.records if record.name == "aiodq.spark"]
    assert line == f"write into the topics ['t'] of {store} committed: messages: 3"
    async with aiodq.open(store) as opened:
        await opened.topic("t").put(b"d")
        writer = BatchWriter(write_options({"path": store, "topic": "t"}, stream=False))
        writer.commit([writer.write(iter([rows]))])
        last = [record.getMessage() for record in lines.records if record.name == "aiodq.spark"][-1]
        assert last == f"the process that owns {store} takes them over"
