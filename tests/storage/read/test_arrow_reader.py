"""A topic as Arrow: the messages that `scan` gives, whatever the state of the files, beside an owner or without one."""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import aiodq
from aiodq.format.vectorized.arrow import COLUMNS, ArrowDecoder
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.read.frame_reader import FrameReader
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import flip, open_log, put, put_each, segments
from tests.storage.stores import BREAKS, LEFTOVERS, a_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.offline.store_reader import TopicReader
    from aiodq.storage.read.stored_message import StoredMessage


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    directory.mkdir()
    (directory / "LOCK").touch()
    return directory


def topic_of(store: Path) -> TopicReader:
    return StoreReader(str(store), WatchedFileSystem()).topic("t")


def as_rows(messages: Iterable[StoredMessage]) -> list[dict[str, object]]:
    return [
        {
            "topic": m.topic,
            "offset": m.offset,
            "timestamp": m.timestamp,
            "tag": m.tag,
            "key": m.key,
            "headers": list(m.headers.items()) or None,
            "body": m.body,
        }
        for m in messages
    ]


@pytest.mark.parametrize("change", [*BREAKS.values(), *LEFTOVERS.values()], ids=[*BREAKS, *LEFTOVERS])
def test_the_messages_and_the_damages_of_a_scan(tmp_path: Path, change: Callable[[Path], object]) -> None:
    store = tmp_path / "store"
    a_store(store)
    change(store)
    one, other = topic_of(store), topic_of(store)
    rows = as_rows(one.scan())
    assert other.to_arrow().to_pylist() == rows
    assert other.damages == one.damages


def all_of(log: TopicLog, max_bytes: int, run_bytes: int) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """Return every message, and which offsets were damaged."""
    reader = FrameReader(WatchedFileSystem(), ArrowDecoder(), run_bytes)
    view, at = log.view(), log.begin
    found: list[tuple[int, bytes]] = []
    damages: list[tuple[int, int]] = []
    try:
        while at < view.stop:
            result = reader.read(view, at, max_bytes)
            for rows in result.batches:
                found += enumerate(rows.arrays["body"].to_pylist(), rows.first)
            damages += [(damage.first, damage.stop) for damage in result.damages]
            assert result.next > at
            at = result.next
    finally:
        reader.close()
    return found, damages


def test_a_long_put_is_there_as_a_whole_or_not_at_all_however_it_is_read(tmp_path: Path, seed: int) -> None:
    log = open_log(tmp_path, segment_bytes=4 << 20)
    rng = random.Random(5)
    for count, size in ((1, 3), (20, 40_000), (30, 9000), (1, 0)):
        put(log, [rng.randbytes(size) for _ in range(count)], atomic=True)
    [path] = segments(tmp_path)
    end = log.view().data_end
    for position in (None, *random.Random(seed).sample(range(200, end), 7)):
        if position is not None:
            flip(path, position, 3)
        expected = all_of(log, 8 << 20, 0)
        assert bool(expected[1]) == (position is not None)
        for max_bytes in (100, 70_000, 300_000):
            for run_bytes in (0, 300_000, 8 << 20):
                assert all_of(log, max_bytes, run_bytes) == expected, (position, max_bytes, run_bytes)
        if position is not None:
            flip(path, position, 3)
    log.close()


def test_a_run_without_its_middle_is_no_run_however_it_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 20)
    put(log, [b"before", b"b"])
    put(log, [b"x" * 40_000] * 4, atomic=True)
    put(log, [b"behind", b"b"])
    [path] = segments(tmp_path)
    data = path.read_bytes()
    length = 40_000 + 48
    at = data.index(b"x" * 40_000) - 44
    assert int.from_bytes(data[at : at + 4], "little") == length
    path.write_bytes(data[: at + length] + data[at + 2 * length :])
    view = log.view()
    log.close()
    view = view._replace(data_end=view.data_end - length)
    for max_bytes in (60, 100_000, 1 << 20):
        for run_bytes in (0, 1 << 20):
            reader = FrameReader(WatchedFileSystem(), ArrowDecoder(), run_bytes)
            found, offset = [], 0
            while offset < view.stop:
                result = reader.read(view, offset, max_bytes)
                found += [n for rows in result.batches for n in range(rows.first, rows.stop)]
                offset = result.next
            reader.close()
            assert found == [0, 1, 6, 7], (max_bytes, run_bytes)


def test_record_batches_of_a_few_rows(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 20)
    for n in range(300):
        put(log, [b"%d" % n, b"", b"b" * n][: n % 3 + 1])
    log.close()
    reader = StoreReader(str(tmp_path.parent), WatchedFileSystem()).topic(tmp_path.name)
    whole = reader.to_arrow().to_pylist()
    for most in (1, 2, 7):
        batches = list(reader.record_batches(most_rows=most))
        assert {batch.num_rows for batch in batches[:-1]} == {most}
        assert [row for batch in batches for row in batch.to_pylist()] == whole


def test_a_long_put_is_read_in_pieces_to_its_end_and_no_further_than_is_allowed(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 20)
    for _ in range(3):
        put(log, [bytes(50_000)] * 60, atomic=True)
    long = 60 * 50_000
    # Of every four frames that are read the last is cut short, and read again.
    for run_bytes, records, most in (
        (4 << 20, 60, long * 4 // 3 + 200_000),
        (1 << 20, 20, (1 << 20) * 4 // 3 + 200_000),
    ):
        reader = FrameReader(WatchedFileSystem(), ArrowDecoder(), run_bytes)
        result = reader.read(log.view(), 60, 200_000)
        assert 60 + records <= result.next <= 120
        # Where the put is longer than may be read, its end is looked for first; that is not counted here.
        assert result.bytes_read <= most
        assert len(result.batches) >= records // 4
        reader.close()
    log.close()


def test_what_is_damaged_all_over_is_not_read_over_and_over(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 20)
    put_each(log, [b"<%d>" % n * 70 for n in range(1000, 3000)])
    fs = WatchedFileSystem()
    view, reader = log.view(), FrameReader(fs, ArrowDecoder(), 8 << 20)
    log.close()
    [path] = segments(tmp_path)
    data = bytearray(path.read_bytes())
    for n in range(1000, 3000, 2):
        data[data.index(b"<%d>" % n)] = 0
    path.write_bytes(data)
    at = found = lost = 0
    while at < view.stop:
        result = reader.read(view, at, 8 << 20)
        at = result.next
        found += sum(rows.stop - rows.first for rows in result.batches)
        lost += len(result.damages)
    reader.close()
    assert (found, lost) == (1000, 1000)
    assert fs.bytes_read < 1000 * 150_000


@pytest.mark.parametrize("count", [3, 6, 11, 25])
def test_what_is_read_of_puts_of_any_length_is_decoded_once(tmp_path: Path, count: int) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 20)
    for _ in range(200 // count):
        put(log, [bytes(100_000)] * count, atomic=True)
    view, reader = log.view(), FrameReader(WatchedFileSystem(), ArrowDecoder(), 8 << 20)
    log.close()
    at = total = 0
    while at < view.stop:
        result = reader.read(view, at, 1 << 20)
        at, total = result.next, total + result.bytes_read
    reader.close()
    # Of every ten frames one is cut short and read again.
    assert total < view.data_end * 1.12


async def test_record_batches_are_about_two_megabytes(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os")) as store:
        for at in range(3):
            await store.topic("t").put_many([bytes(1000 * at + 500)] * 3000)
        await asyncio.gather(*(store.topic("t").put(bytes(4000)) for _ in range(2000)))
        for _ in range(200):
            await store.topic("t").put(bytes(30_000))
    sizes = [batch.nbytes for batch in aiodq.open_reader(tmp_path).topic("t").record_batches(columns=["body"])]
    assert all(1 << 20 <= size <= (2 << 20) + 200_000 for size in sizes[:-1])
    assert len(sizes) > 8


async def test_everything_that_a_message_has_beside_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "store"
    options = aiodq.StoreOptions(segment_bytes=4096, retention=aiodq.Retention(consumed="keep"))
    async with aiodq.open(path, options) as store:
        topic, seen = store.topic("orders"), 0
        for number in range(60):
            await topic.put(b"%d" % number, tag=None if number % 3 else "t", key=b"k" * (number % 2))
            await topic.put_many([b"a", aiodq.Draft(b"b" * number, headers={"n": str(number), "": "x"}), b""])
            await topic.put(b"plain")
            reader = aiodq.open_reader(path).topic("orders")
            table = reader.to_arrow(seen)
            assert table.to_pylist() == as_rows(reader.scan(seen))
            assert table.num_rows == 5
            seen = reader.end_offset
    reader = aiodq.open_reader(path).topic("orders")
    rows = reader.to_arrow()
    assert rows.num_rows == 300
    assert rows.schema.names == list(COLUMNS)
    assert abs(rows["timestamp"][0].as_py() - datetime.now(UTC)).total_seconds() < 3600


async def test_compressed(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, aiodq.StoreOptions(compression="zstd")) as store:
        await store.topic("t").put_many([b"abc" * 50] * 100)
        await store.topic("t").put(b"xyz" * 50)
    reader = aiodq.open_reader(tmp_path).topic("t")
    assert reader.to_arrow().to_pylist() == as_rows(reader.scan())


def test_between_two_offsets_in_batches_of_any_size(store: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(store / "t", segment_bytes=2000)
    for _ in range(40):
        put(log, [bytes(rng.randrange(60)) for _ in range(rng.randrange(1, 9))])
    log.close()
    reader = topic_of(store)
    bodies = [message.body for message in reader.scan()]
    for _ in range(60):
        start, stop, most = rng.randrange(len(bodies) + 9), rng.randrange(len(bodies) + 9), rng.randrange(1, 30)
        batches = list(reader.record_batches(start, stop, columns=["body", "offset"], most_rows=most))
        assert all(batch.num_rows == most for batch in batches[:-1])
        assert all(0 < batch.num_rows <= most for batch in batches)
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert rows == list(enumerate(bodies))[start:stop]


def test_strict_raises_where_damage_is_met_and_without_checksums_it_is_not(store: Path) -> None:
    log = open_log(store / "t")
    put_each(log, [bytes([65 + n]) * 50 for n in range(8)])
    log.close()
    path = segments(store / "t")[0]
    flip(path, path.read_bytes().index(b"C" * 50) + 10, 1)
    reader = topic_of(store)
    assert [row["offset"] for row in reader.to_arrow().to_pylist()] == [0, 1, 3, 4, 5, 6, 7]
    assert len(reader.damages) == 1
    with pytest.raises(aiodq.CorruptionError):
        topic_of(store).to_arrow(strict=True)
    assert topic_of(store).to_arrow(verify=False).num_rows == 8


def test_nothing(store: Path) -> None:
    open_log(store / "t").close()
    table = topic_of(store).to_arrow(columns=["tag", "body"])
    assert (table.num_rows, table.schema.names) == (0, ["tag", "body"])
    assert isinstance(table, pa.Table)


@pytest.mark.parametrize("columns", [[], ["bodies"], ["body", "x"], "body"], ids=repr)
def test_columns_that_there_are_not(store: Path, columns: list[str]) -> None:
    open_log(store / "t").close()
    with pytest.raises(aiodq.InvalidOptionError, match="topic, offset, timestamp"):
        topic_of(store).to_arrow(columns=columns)
    with pytest.raises(aiodq.InvalidOptionError):
        topic_of(store).record_batches(most_rows=0)


def test_without_pyarrow_the_error_names_the_extra(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_log(store / "t").close()
    monkeypatch.delitem(sys.modules, "aiodq.storage.read.arrow_reader", raising=False)
    monkeypatch.delattr(sys.modules["aiodq.storage.read"], "arrow_reader", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(aiodq.MissingExtraError, match=r"aiodq\[arrow\]"):
        topic_of(store).to_arrow()
