"""What tasks read is what a scan gives, however it is cut into splits; without a JVM."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format.layout import FOOTER_TAIL, FRAME_PREFIX, SEGMENT_HEADER
from aiodq.spark import planning
from aiodq.spark.options import read_options
from aiodq.spark.planning import plan
from aiodq.spark.reading import record_batches
from aiodq.spark.stream.stream_hold import StreamHold
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.testing import Passed, WatchedFileSystem
from tests.spark.support import KEEP, fill, read, scanned
from tests.storage.controls import a_log_with_controls
from tests.storage.logs import SECOND, flip, open_log, put, put_each, segments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    await fill(path)
    return path


@pytest.mark.parametrize("split_bytes", ["1k", "20k", "1m"])
def test_control_frames_are_stepped_over(tmp_path: Path, split_bytes: str) -> None:
    bodies = a_log_with_controls(tmp_path / "store" / "t", size=5000)
    (tmp_path / "store" / "LOCK").touch()
    rows = read(tmp_path / "store", topic="t", splitBytes=split_bytes)
    assert [row["body"] for row in rows] == bodies
    assert rows == scanned(tmp_path / "store", "t")


async def test_of_very_many_topics_each_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare each name with each other one took hours where there are 100,000."""
    names = [f"topic-{number:03}" for number in range(60)]
    async with aiodq.open(tmp_path / "s") as owner:
        for name in names:
            await owner.topic(name).put(b"x")
    compared: list[str] = []

    def fnmatchcase(name: str, pattern: str) -> bool:
        compared.append(name)
        return pattern == "*-05?" and name[6:8] == "05"

    monkeypatch.setattr(planning, "fnmatchcase", fnmatchcase)
    assert len(read(tmp_path / "s", topics=",".join(names))) == 60
    StreamHold("h", (str(tmp_path / "s"),), tuple(names)).move({(str(tmp_path / "s"), name): 1 for name in names})
    assert compared == []
    assert [row["topic"] for row in read(tmp_path / "s", topics="topic-003,*-05?")] == ["topic-003", *names[50:]]
    assert len(compared) == 59
    told = r"there are: topic-000, .*, topic-049 and 10 more \["
    with pytest.raises(aiodq.StoreNotFoundError, match=told):
        read(tmp_path / "s", topics="unknown")
    with pytest.raises(aiodq.InvalidOptionError, match=r"these are: topic-000, .*, topic-049 and 10 more"):
        read(tmp_path / "s", startingOffsets='{"unknown": 1}')


async def test_each_core_gets_a_task_unless_there_is_little_to_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = scanned(store)

    def tasks(cores: int | None) -> int:
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        assert read(store) == rows
        return len(plan(OsFileSystem(), read_options({"path": str(store)})))

    assert tasks(8) == 1
    monkeypatch.setattr(planning, "LEAST_BYTES", 1)
    assert tasks(None) == 1
    assert tasks(2) == 2
    assert tasks(100) == 3, "as many as the indexes allow"
    monkeypatch.setattr(planning, "MOST_BYTES", 1)
    assert tasks(1) == 3


def test_no_core_gets_a_small_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "LOCK").touch()
    log = open_log(tmp_path / "s" / "orders", segment_bytes=1 << 20)
    put_each(log, [bytes(1000)] * 300)
    log.close()
    size = segments(tmp_path / "s" / "orders")[0].stat().st_size
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(planning, "LEAST_BYTES", 1)
    for most, tasks in ((size, 2), (size * 0.49, 2), (size * 0.35, 2), (size * 0.3, 4), (size * 0.22, 4)):
        monkeypatch.setattr(planning, "MOST_BYTES", int(most))
        splits = plan(OsFileSystem(), read_options({"path": str(tmp_path / "s")}))
        assert len(splits) == tasks, most
        counts = [split.stop - split.start for split in splits]
        assert min(counts) > max(counts) // 4, most


@pytest.mark.parametrize(
    ("sealed", "options", "expected"),
    [
        (1, {"splitBytes": "1280000"}, [(0, 103), (103, 223)]),
        (2, {"splitBytes": "1280000"}, [(0, 128), (128, 206), (206, 326)]),
        (2, {"splitBytes": "1280000", "startingOffsets": "206"}, [(206, 326)]),
        (2, {"splitBytes": "1280000", "startingOffsets": "300"}, [(300, 326)]),
        (2, {"splitBytes": "600000", "startingOffsets": "206"}, [(206, 266), (266, 326)]),
        (2, {"splitBytes": "4m"}, [(0, 326)]),
    ],
)
def test_nothing_is_cut_within_what_was_not_walked_through(
    tmp_path: Path, sealed: int, options: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "LOCK").touch()
    log = open_log(tmp_path / "s" / "orders", segment_bytes=1 << 24)
    for _ in range(sealed):
        put_each(log, [bytes(10_000)] * 103)
        log.roll()
    put_each(log, [bytes(10_000)] * 120)
    log.close()
    splits = plan(OsFileSystem(), read_options({"path": str(tmp_path / "s"), **options}))
    assert [(split.start, split.stop) for split in splits] == expected


@pytest.mark.parametrize(("end", "walks"), [(103, 0), (104, 1)])
def test_the_end_is_not_walked_through_for_what_lies_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, walks: int
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "LOCK").touch()
    log = open_log(tmp_path / "s" / "orders", segment_bytes=1 << 24)
    put_each(log, [bytes(10_000)] * 103)
    log.roll()
    put_each(log, [bytes(10_000)] * 120)
    log.close()
    walked: list[bool] = []
    refresh = LogSnapshot.refresh

    def watched(log: LogSnapshot, *, walk: bool = True) -> bool:
        walked.append(walk)
        return refresh(log, walk=walk)

    monkeypatch.setattr(LogSnapshot, "refresh", watched)
    rows = read(tmp_path / "s", splitBytes="600000", endingOffsets=f'{{"orders": {end}}}')
    assert [row["offset"] for row in rows] == list(range(end))
    assert walked.count(True) == walks


async def test_however_small_the_splits(store: Path) -> None:
    rows = scanned(store)
    assert len(rows) == 200
    for size in ("1", "300", "5000", "32m"):
        assert read(store, splitBytes=size) == rows
    splits = plan(OsFileSystem(), read_options({"path": str(store), "splitBytes": "1"}))
    assert len(splits) >= len(segments(store / "orders"))
    assert [split.start for split in splits[1:]] == [split.stop for split in splits[:-1]]
    assert all(len(pickle.dumps(split)) < 2500 for split in splits)


@pytest.mark.parametrize("start", [0, 1, 57, 199, 200])
async def test_between_two_offsets(store: Path, start: int) -> None:
    rows = scanned(store)
    assert read(store, startingOffsets=str(start), endingOffsets="120", splitBytes="500") == rows[start:120]
    assert read(store, startingOffsets=f'{{"orders": {start}}}') == rows[start:]
    with pytest.raises(aiodq.InvalidOptionError, match="endingOffsets names the topic 'other', which is not read"):
        read(store, endingOffsets='{"other": 1}')


@pytest.mark.parametrize("end", ["{}", '{{"orders": {}}}'])
async def test_an_end_before_which_all_was_deleted_is_an_error(store: Path, end: str) -> None:
    first, second = segments(store / "orders")[:2]
    begin = int(second.stem)
    first.unlink()
    with pytest.raises(aiodq.OffsetError, match=f"offsets {begin} to 199; the read is to end before {begin - 1}"):
        read(store, endingOffsets=end.format(begin - 1))
    assert read(store, endingOffsets=end.format(begin - 1), failOnDataLoss="false") == []
    assert read(store, endingOffsets=end.format(begin)) == []
    assert len(read(store, endingOffsets=end.format(begin + 1))) == 1


async def test_ends_and_times_by_topic(store: Path) -> None:
    await fill(store, "other", rounds=2)
    rows, others = scanned(store), scanned(store, "other")
    assert read(store, startingOffsets='{"orders": "latest", "other": 7}') == others[7:]
    assert read(store, endingOffsets='{"orders": "earliest", "other": "latest"}') == others
    moment = others[4]["timestamp"].isoformat()
    found = read(store, startingTimestamp=f'{{"other": "{moment}"}}')
    assert found[: len(rows)] == rows
    assert 1 <= len(found) - len(rows) <= 7
    with pytest.raises(aiodq.InvalidOptionError, match="startingTimestamp names the topic 'mail', which is not read"):
        read(store, startingTimestamp='{"mail": 5}')


async def test_between_two_times(store: Path) -> None:
    rows = scanned(store)
    moment = rows[90]["timestamp"]
    first = next(row["offset"] for row in rows if row["timestamp"] >= moment)
    assert abs(len(read(store, startingTimestamp=moment.isoformat())) - (200 - first)) <= 1
    assert read(store, startingTimestamp="2199-01-01T00:00:00+00:00") == []
    assert read(store, endingTimestamp="2001-01-01T00:00:00+00:00") == []


def test_between_two_times_of_a_clock_that_went_backward(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "LOCK").touch()
    log = open_log(tmp_path / "s" / "orders")
    for second in (10, 30, 20):
        put(log, [b"%d" % second], time_ns=second * SECOND)
    log.close()
    bodies = [row["body"] for row in read(tmp_path / "s", startingTimestamp="1970-01-01T00:00:25+00:00")]
    assert bodies == [b"30", b"20"]


async def test_only_some_columns_and_tags(store: Path) -> None:
    rows = scanned(store)
    assert read(store, columns="body") == [{"body": row["body"]} for row in rows]
    assert read(store, tags="red") == [row for row in rows if row["tag"] == "red"]
    reds = [{"offset": row["offset"]} for row in rows if row["tag"] in {"red", "blue"}]
    assert read(store, tags="red,blue", columns="offset", splitBytes="700") == reds
    assert read(store, tags="green") == []


async def test_tags_of_any_text_are_named_in_json(tmp_path: Path) -> None:
    tags = ["a,b", "a", "b", " c ", "", '[1, "x"]', 'ä"\\', None]
    async with aiodq.open(tmp_path / "store") as store:
        await store.topic("orders").put_many([aiodq.Draft(b"", tag=tag) for tag in tags])
    rows = scanned(tmp_path / "store")
    for chosen in ([each] for each in tags if each is not None):
        assert read(tmp_path / "store", tags=f" {json.dumps(chosen)} ") == [row for row in rows if row["tag"] in chosen]
    assert read(tmp_path / "store", tags=json.dumps(["a,b", " c "], ensure_ascii=False)) == [rows[0], rows[3]]


async def test_topics_by_name_and_by_pattern_in_several_stores(tmp_path: Path) -> None:
    for store in ("one", "two"):
        for topic in ("orders.eu", "orders.us", "mail"):
            await fill(tmp_path / store, topic, rounds=2)
    both = f"{tmp_path}/*"
    assert len(read(both)) == 60
    assert {row["topic"] for row in read(both, topics="orders.*")} == {"orders.eu", "orders.us"}
    assert len(read(both, topic="mail")) == 20
    assert read(both, topics="x*") == []
    with pytest.raises(aiodq.StoreNotFoundError, match=r"mail, orders\.eu"):
        read(both, topic="orders")
    with pytest.raises(aiodq.InvalidNameError):
        read(both, topic="or/ders")
    with pytest.raises(aiodq.NotAStoreError):
        read(tmp_path)


@pytest.mark.parametrize(
    "topics",
    [str(["orders"]), str(["x", "orders"]), '["orders"]', "ord ers*", "[^o]*", "mail.*;orders.*", "/data/orders*"],
    ids=str,
)
async def test_a_pattern_that_no_topic_can_match_is_refused(store: Path, topics: str) -> None:
    """As where a Python list is given, which Spark makes a text of: as a pattern it would match nothing, in silence."""
    with pytest.raises(aiodq.InvalidNameError, match=r"is no pattern for topics: .* several are orders,mail\.\*"):
        read(store, topics=topics)


@pytest.mark.parametrize("topics", ["[!x]*", "[a-z]r?ers", "*#ephemeral,orders", "[]o]rders"])
async def test_a_pattern_may_have_all_that_patterns_have(store: Path, topics: str) -> None:
    assert read(store, topics=topics) == read(store)


async def test_beside_an_owner_that_goes_on(tmp_path: Path) -> None:
    options = aiodq.StoreOptions(segment_bytes=2000, retention=KEEP)
    async with aiodq.open(tmp_path / "s", options) as store:
        topic, put = store.topic("orders"), 0
        for number in range(30):
            wanted = read_options({"path": str(tmp_path / "s"), "splitBytes": "800"})
            splits = plan(OsFileSystem(), wanted) if number else []
            put = await topic.put(b"x" * 90) + 1
            await topic.put_many([b"y"] * 7)
            before = put - 1
            put += 7
            rows = [
                row
                for split in splits
                for batch in record_batches(OsFileSystem(), split, wanted)
                for row in batch["offset"].to_pylist()
            ]
            assert rows == list(range(before))
        assert len(read(tmp_path / "s")) == put


def plain_in(path: Path, rows: list[dict[str, Any]]) -> bytes:
    """Return the first body in a segment that has a frame of its own."""
    bodies: list[bytes] = [row["body"] for row in rows if row["offset"] >= int(path.stem)]
    return next(body for body in bodies if body.startswith(b"plain"))


@pytest.mark.parametrize("number", [0, -1])
async def test_damage_is_told_or_stepped_over(store: Path, number: int) -> None:
    """In a sealed segment, and in the one that grows."""
    rows = scanned(store)
    path = segments(store / "orders")[number]
    body = plain_in(path, rows)
    flip(path, path.read_bytes().index(body), 1)
    with pytest.raises(aiodq.CorruptionError, match=r"failOnDataLoss=false, or .* report with lossy, .*; aiodq repair"):
        read(store)
    assert read(store, failOnDataLoss="false") == [row for row in rows if row["body"] != body]
    assert len(read(store, verify="none")) == len(rows)


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("split", ["32m", "1"])
async def test_damage_where_a_time_begins_is_told_or_stepped_over(store: Path, number: int, split: str) -> None:
    """Nobody knows the times of what cannot be read: it may be as new."""
    rows = scanned(store)
    path = segments(store / "orders")[number]
    behind = [row for row in rows if row["offset"] >= int(path.stem) and row["body"].startswith(b"plain")]
    lost, following = behind[0], behind[1]
    flip(path, path.read_bytes().index(lost["body"]), 1)
    for since in (lost, following):
        times = {"splitBytes": split, "startingTimestamp": since["timestamp"].isoformat()}
        found = read(store, failOnDataLoss="false", **times)
        assert lost not in found
        assert following in found
        if since is lost:
            with pytest.raises(aiodq.CorruptionError, match="checksum is wrong"):
                read(store, **times)
        else:
            assert read(store, **times) == found, "there is one between, which is older"


async def test_damage_of_a_sealed_header_is_told_however_it_is_planned(store: Path) -> None:
    flip(segments(store / "orders")[0], 3, 1)
    for options in ({}, {"splitBytes": "100"}, {"startingTimestamp": "2001-01-01T00:00:00+00:00"}):
        with pytest.raises(aiodq.CorruptionError):
            read(store, **options)


@pytest.mark.parametrize("split", ["32m", "5000", "1"])
async def test_bytes_that_are_none_of_ours_cost_no_message(tmp_path: Path, split: str) -> None:
    await fill(tmp_path / "s", segment_bytes=1 << 20)
    rows = scanned(tmp_path / "s")
    [path] = segments(tmp_path / "s" / "orders")
    data = path.read_bytes()
    path.write_bytes(data[:64] + bytes(64) + data[64:])
    assert read(tmp_path / "s", splitBytes=split, failOnDataLoss="false") == rows


@pytest.mark.parametrize("split", ["32m", "1"])
async def test_a_message_that_was_cut_out_is_told_or_stepped_over(store: Path, split: str) -> None:
    rows = scanned(store)
    path = segments(store / "orders")[-1]
    data = path.read_bytes()
    body = plain_in(path, rows)
    at = data.index(body) - FRAME_PREFIX.size
    path.write_bytes(data[:at] + data[at + int.from_bytes(data[at : at + 4], "little") :])
    with pytest.raises(aiodq.CorruptionError, match=r"(missing|no message has).*failOnDataLoss=false, .*aiodq repair"):
        read(store, splitBytes=split)
    assert read(store, splitBytes=split, failOnDataLoss="false") == [row for row in rows if row["body"] != body]


@pytest.mark.parametrize("split", ["32m", "1"])
@pytest.mark.parametrize("moved", [-1, 1, 1 << 31])
async def test_offsets_that_a_segment_should_have_and_has_not_are_told(store: Path, split: str, moved: int) -> None:
    """Of a frame that says another offset, with a checksum that is right, no byte is damaged."""
    rows = scanned(store)
    path = segments(store / "orders")[1]
    data = bytearray(path.read_bytes())
    body = [row["body"] for row in rows if row["offset"] >= int(path.stem) and row["body"].startswith(b"plain")][2]
    at = data.index(body) - FRAME_PREFIX.size
    end = at + int.from_bytes(data[at : at + 4], "little")
    data[at + 12 : at + 16] = (int.from_bytes(data[at + 12 : at + 16], "little") + moved).to_bytes(4, "little")
    salt = int.from_bytes(data[12:16], "little")
    data[at + 4 : at + 8] = zlib.crc32(data[at + 8 : end], salt).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(aiodq.CorruptionError, match=r"no message has .*failOnDataLoss=false, .*aiodq repair"):
        read(store, splitBytes=split)
    found = read(store, splitBytes=split, failOnDataLoss="false")
    assert {row["offset"] for row in found} < {row["offset"] for row in rows}
    repair_store(str(store), OsFileSystem())
    assert read(store, splitBytes=split) == read(store, splitBytes=split, failOnDataLoss="false")


async def test_a_footer_that_names_more_offsets_than_there_are_is_not_believed(store: Path) -> None:
    rows = scanned(store)
    path = segments(store / "orders")[1]
    data = bytearray(path.read_bytes())
    tail = data[-FOOTER_TAIL.size :]
    tail[32:40] = (2**63 - 1).to_bytes(8, "little")
    tail[84:88] = zlib.crc32(tail[:84]).to_bytes(4, "little")
    path.write_bytes(data[: -FOOTER_TAIL.size] + tail)
    assert read(store) == rows
    async with aiodq.open(store) as owner:
        channel = owner.topic("orders").channel("c", aiodq.ChannelOptions(start="earliest"))
        assert [message.offset for message in await channel.get_many(len(rows))] == list(range(len(rows)))


async def test_a_missing_segment_is_told_or_stepped_over(store: Path) -> None:
    (store / "orders").joinpath("topic.json")
    async with aiodq.open(store, aiodq.StoreOptions(retention=KEEP)) as owner:
        owner.topic("orders").channel("c", aiodq.ChannelOptions(start="earliest"))
        await owner.topic("orders").settle_in()
    middle = segments(store / "orders")[1]
    base, end = int(middle.stem), int(segments(store / "orders")[2].stem)
    middle.unlink()
    with pytest.raises(aiodq.CorruptionError, match="missing"):
        read(store)
    assert [row["offset"] for row in read(store, failOnDataLoss="false")] == [*range(base), *range(end, 200)]
    assert len(read(store, endingOffsets=str(base))) == base


@pytest.mark.filterwarnings("ignore")  # what an opening has to say of it is not tested here
@pytest.mark.parametrize("channels", [(), ("one",), ("one", "two")])
async def test_what_was_missing_at_an_opening_is_told_until_it_is_repaired(
    store: Path, channels: tuple[str, ...]
) -> None:
    """The owner has settled it in every channel, as if it had been consumed there."""
    async with aiodq.open(store) as opened:
        for name in channels:
            opened.topic("orders").channel(name, aiodq.ChannelOptions(start="earliest"))
    before, gone, *_ = segments(store / "orders")
    gone.unlink()
    async with aiodq.open(store) as opened:
        await opened.topic("orders").put(b"more")
    told = f"the messages {int(gone.stem)} to .* are missing; a read with failOnDataLoss=false"
    for options in ({}, {"startingOffsets": "0"}, {"startingOffsets": "3", "splitBytes": "1k"}):
        with pytest.raises(aiodq.CorruptionError, match=told):
            read(store, **options)
    with pytest.raises(aiodq.CorruptionError, match="are missing"):
        list(aiodq.open_reader(store).topic("orders").scan(strict=True))
    left = read(store, failOnDataLoss="false")
    assert read(store, endingOffsets=str(int(gone.stem))) == left[: int(gone.stem)]
    assert before.exists()
    repair_store(str(store), OsFileSystem())
    assert read(store) == read(store, startingOffsets="0") == left == scanned(store)


async def test_what_retention_deletes_during_a_read_is_told_or_stepped_over(store: Path) -> None:
    for strict in ("true", "false"):
        wanted = read_options({"path": str(store), "splitBytes": "1000", "failOnDataLoss": strict})
        splits = plan(OsFileSystem(), wanted)
        first = segments(store / "orders")[0]
        gone, stop = int(first.stem), int(segments(store / "orders")[1].stem)
        data = first.read_bytes()
        first.unlink()
        found: list[Any] = []
        try:
            for split in splits:
                found += [
                    row
                    for batch in record_batches(OsFileSystem(), split, wanted)
                    for row in batch["offset"].to_pylist()
                ]
        except aiodq.CorruptionError as error:
            assert strict == "true"
            assert f"the messages {gone} to {stop - 1} were deleted after the read was planned" in str(error)
            assert "repair" not in str(error), "there is nothing to repair"
            assert (error.path, error.position) == (str(first), 0)
        else:
            assert found == [*range(gone), *range(stop, 200)]
        first.write_bytes(data)


async def purged(store: Path) -> None:
    async with aiodq.open(store) as owner:
        await owner.queue("orders").purge()


async def rolled(store: Path) -> None:
    async with aiodq.open(store, aiodq.StoreOptions(segment_bytes=4096, retention=KEEP)) as owner:
        for _ in range(20):
            await owner.topic("orders").put(b"later" * 100)


async def quarantined(store: Path) -> None:
    for path in segments(store / "orders")[:2]:
        flip(path, 900, 3)
    repair_store(str(store), OsFileSystem())


@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize("change", [purged, rolled, quarantined])
async def test_what_changes_during_a_read_is_told_or_left_out(
    store: Path, change: Callable[[Path], Awaitable[None]], strict: str
) -> None:
    """Never is anything given out that was not there when the read was planned.

    What was repaired meanwhile is told of by the repair, and read as if that had come first.
    """
    before = scanned(store)
    wanted = read_options({"path": str(store), "splitBytes": "1000", "failOnDataLoss": strict})
    splits = plan(OsFileSystem(), wanted)
    await change(store)
    found: list[dict[str, Any]] = []
    told = False
    for split in splits:
        try:
            for batch in record_batches(OsFileSystem(), split, wanted):
                found += batch.to_pylist()
        except aiodq.CorruptionError:
            told = True
    assert found == [row for row in before if row in found]
    assert (len(found) < len(before)) is (change is not rolled)
    assert told is (strict == "true" and change is purged)


async def test_what_was_consumed_and_deleted_before_is_no_loss(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=1000)) as store:
        queue = store.queue("orders")
        for _ in range(100):
            await queue.put(b"x" * 50)
        for _ in range(60):
            await (await queue.get()).ack()
        await queue.sync()
        while queue.begin_offset == 0:
            await asyncio.sleep(0.01)
    # The owner is gone: it deletes one segment after the other, and would do so between two reads.
    rows = read(tmp_path / "s")
    assert rows == scanned(tmp_path / "s", "orders")
    assert 0 < rows[0]["offset"] <= 60
    with pytest.raises(aiodq.OffsetError, match="to start at 0"):
        read(tmp_path / "s", startingOffsets="0")
    with pytest.raises(aiodq.OffsetError, match="end before 101"):
        read(tmp_path / "s", endingOffsets="101")
    assert read(tmp_path / "s", startingOffsets="0", endingOffsets="101", failOnDataLoss="false") == rows


async def test_of_very_many_segments_each_is_opened_once_for_a_plan(store: Path) -> None:
    """But for the first and the last, by which the topic's description and the log's end are made sure of."""
    seen: list[str] = []
    fs = WatchedFileSystem()
    fs.add(lambda call: seen.append(call.path) if call.kind == "open" else None)
    between = segments(store / "orders")[1:-1]
    # Planned twice, as the segments are fewer than the tasks: this is cut where their indexes say.
    for options, most in (
        ({}, 1),
        ({"startingTimestamp": "2001-01-01T00:00:00+00:00"}, 1),
        ({"minPartitions": "99"}, 2),
    ):
        seen.clear()
        plan(fs, read_options({"path": str(store), **options}))
        counts = [seen.count(str(path)) for path in between]
        assert 0 < max(counts) <= most
    log = LogSnapshot(fs, str(store / "orders"))
    log.refresh()
    seen.clear()
    log.refresh()
    assert not {str(path) for path in between} & set(seen)


class DeletingFileSystem(WatchedFileSystem):
    """Deletes a file just before it is opened for the n-th time, as its owner may."""

    def __init__(self, victim: Path, number: int) -> None:
        super().__init__()
        self.left = number
        self._victim = victim
        self.add(self._look)

    def _look(self, call: Passed) -> None:
        if call.kind == "open" and call.path == str(self._victim):
            self.left -= 1
            if not self.left:
                self._victim.unlink()


@pytest.mark.parametrize("options", [{}, {"startingTimestamp": "2001-01-01T00:00:00+00:00"}, {"minPartitions": "4"}])
async def test_what_is_deleted_while_a_read_is_planned_is_no_loss(tmp_path: Path, options: dict[str, str]) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=1000, retention=KEEP)) as store:
        queue = store.queue("orders")
        for _ in range(10):
            await queue.put_many([b"x" * 50] * 10)
        for _ in range(60):
            await (await queue.get()).ack()
    first = segments(tmp_path / "s" / "orders")[0]
    behind = int(segments(tmp_path / "s" / "orders")[1].stem)
    data = first.read_bytes()
    wanted = read_options({"path": str(tmp_path / "s"), **options})
    number = 0
    while True:
        number += 1
        fs = DeletingFileSystem(first, number)
        splits = plan(fs, wanted)
        if fs.left > 0:
            break
        rows = [row for split in splits for batch in record_batches(fs, split, wanted) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == [*range(behind, 100)], number
        first.write_bytes(data)
    assert number > 2


async def test_a_torn_tail_is_not_there_yet(store: Path) -> None:
    rows = scanned(store)
    (store / "orders" / "watermark").unlink()
    last = segments(store / "orders")[-1]
    size = last.stat().st_size
    for cut in range(1, 200, 7):
        os.truncate(last, size - cut)
        assert read(store) == scanned(store)
        assert read(store) == rows[: len(read(store))]
        os.truncate(last, size)


def zeroed(store: Path) -> None:
    """Frames and index; what the end says of them stays."""
    path = segments(store / "orders")[0]
    data = path.read_bytes()
    path.write_bytes(
        data[: SEGMENT_HEADER.size] + bytes(len(data) - 200) + data[len(data) - 200 + SEGMENT_HEADER.size :]
    )


def zeroed_whole(store: Path) -> None:
    path = segments(store / "orders")[0]
    path.write_bytes(bytes(path.stat().st_size))


def shortened(store: Path) -> None:
    path = segments(store / "orders")[-1]
    os.truncate(path, path.stat().st_size // 2)


def without_last(store: Path) -> None:
    segments(store / "orders")[-1].unlink()


def another_copy(store: Path) -> None:
    first, second, *_ = segments(store / "orders")
    second.write_bytes(first.read_bytes())


@pytest.mark.parametrize("change", [zeroed, zeroed_whole, shortened, without_last, another_copy])
def test_nothing_is_left_out_in_silence(store: Path, change: Callable[[Path], None]) -> None:
    rows = scanned(store)
    change(store)
    with pytest.raises(aiodq.CorruptionError):
        read(store)
    with pytest.raises(aiodq.CorruptionError):
        list(aiodq.open_reader(store).topic("orders").scan(strict=True))
    found = read(store, failOnDataLoss="false")
    assert found == scanned(store)
    assert len(found) < len(rows)
    assert all(row in rows for row in found)


@pytest.mark.parametrize("options", [{"topic": "orders"}, {}], ids=["named", "all"])
@pytest.mark.parametrize("whole", [True, False], ids=["with its directory", "but for its directory"])
async def test_a_topic_that_is_deleted_between_listing_and_planning_is_told_or_left_out(
    store: Path, options: dict[str, str], whole: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (store / "orders").rename(store.with_name("saved"))
    look = planning.read_topics

    def deleting(*given: Any) -> list[str]:
        found = look(*given)
        shutil.rmtree(store / "orders")
        if not whole:
            (store / "orders").mkdir()
        return found

    monkeypatch.setattr(planning, "read_topics", deleting)
    for strict in ("true", "false"):
        shutil.rmtree(store / "orders", ignore_errors=True)
        shutil.copytree(store.with_name("saved"), store / "orders")
        if strict == "true":
            with pytest.raises(aiodq.StoreNotFoundError, match="topic 'orders' was deleted when the read had begun"):
                read(store, **options)
        else:
            assert read(store, **options, failOnDataLoss=strict) == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "topic 'orders' was deleted when the read had begun: left out, as failOnDataLoss is false"
    ]
