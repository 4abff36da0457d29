"""A task that does not see what planning saw, and an archive that is to have all that is let go. Without Spark."""

from __future__ import annotations

import os
import shutil
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import aiodq
from aiodq.spark.options import read_options, stream_options
from aiodq.spark.pipelines.audit import _check_all, _logs, _Piece, _pieces, audit
from aiodq.spark.pipelines.tally import Tally
from aiodq.spark.planning import plan
from aiodq.spark.reading import Partition, _rows, record_batches
from aiodq.spark.stream.streaming import StreamReader
from aiodq.spark.visible import Place, _named, require_seen, store_uuid
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import Hold, read_hold, write_hold
from aiodq.storage.state.store_identity import STORE_FILE, encode_identity
from tests.spark.support import fill, read, scanned
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem


def planned(store: Path) -> tuple[list[Split], Callable[[Split], Iterator[Any]]]:
    """Return a lossy read's splits, and what a task does with one."""
    options = read_options({"path": str(store), "failOnDataLoss": "false", "splitBytes": "1k"})
    return plan(OsFileSystem(), options), lambda split: record_batches(OsFileSystem(), split, options)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store", rounds=20, segment_bytes=1000)
    return tmp_path / "store"


def refused() -> Any:
    return pytest.raises(aiodq.StoreNotFoundError, match=f"the task on {socket.gethostname()} does not see the topic")


async def test_a_store_that_a_task_does_not_see_is_no_loss_of_messages(store: Path) -> None:
    splits, task = planned(store)
    store.rename(store.with_name("elsewhere"))
    with refused() as caught:
        list(task(splits[0]))
    assert caught.value.path == str(store / "orders")
    store.mkdir()  # where it would be mounted
    with refused():
        list(task(splits[-1]))


async def test_what_disappears_during_a_read_is_no_loss_of_messages(store: Path) -> None:
    options = read_options({"path": str(store), "failOnDataLoss": "false"})
    (split,) = plan(OsFileSystem(), options)
    rows = _rows(OsFileSystem(), split, options, options.columns)
    assert next(rows).stop
    store.rename(store.with_name("elsewhere"))
    with refused():
        list(rows)


async def test_another_topic_of_the_name_is_not_read(store: Path) -> None:
    splits, task = planned(store)
    store.rename(store.with_name("elsewhere"))
    await fill(store, rounds=20, segment_bytes=1000)
    with pytest.raises(aiodq.StoreNotFoundError, match="sees another topic there"):
        list(task(splits[0]))


async def test_a_file_that_is_missing_where_the_topic_is_seen_is_a_loss(store: Path) -> None:
    splits, task = planned(store)
    segments(store / "orders")[3].unlink()
    rows = sum(batch.num_rows for split in splits for batch in task(split))
    assert 0 < rows < 100


@pytest.mark.parametrize("damage", ["missing", "flipped"])
async def test_a_topic_is_known_by_its_segments_where_its_description_is_damaged(store: Path, damage: str) -> None:
    splits, task = planned(store)
    description = store / "orders" / "topic.json"
    if damage == "missing":
        description.unlink()
    else:
        flip(description, 20, 1)
    assert sum(batch.num_rows for split in splits for batch in task(split)) == 100


async def test_a_topic_of_which_no_segment_is_left_is_known_by_its_description(store: Path) -> None:
    place = planned(store)[0][0].place
    for path in segments(store / "orders"):
        path.unlink()
    require_seen(OsFileSystem(), place)
    with pytest.raises(aiodq.StoreNotFoundError, match=f"sees another topic .*uuid {place.topic}, not"):
        require_seen(OsFileSystem(), place._replace(topic=uuid4()))


async def test_a_directory_without_anything_in_it_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with pytest.raises(aiodq.StoreNotFoundError, match="not mounted"):
        read(tmp_path)
    async with aiodq.open(tmp_path / "new"):
        pass
    assert read(tmp_path / "new") == []


async def test_an_audit_does_not_pass_by_what_it_does_not_see(store: Path) -> None:
    path = segments(store / "orders")[0]
    place = planned(store)[0][0].place
    work = [_Piece(0, 0, place, str(path), 0, 0, path.stat().st_size, last=False, copied=False)]
    assert list(_check_all(work))
    another(store)
    with pytest.raises(aiodq.StoreNotFoundError, match="sees another store there"):
        list(_check_all(work))
    store.rename(store.with_name("elsewhere"))
    with refused():
        list(_check_all(work))


async def test_an_audit_does_not_take_for_deleted_what_it_sees_no_more(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, whole = OsFileSystem(), str(store)
    work = _pieces(_logs(fs, whole, None))

    def seen(fs: FileSystem, place: Place) -> None:
        require_seen(fs, place)
        store.rename(store.with_name("elsewhere"))  # as a mount that goes just then

    monkeypatch.setitem(_check_all.__globals__, "require_seen", seen)
    with refused():
        list(_check_all(work))


async def test_an_audit_knows_each_store_and_tells_of_what_it_found_in_order(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside Spark: its tasks are done here."""
    other, pieces = tmp_path / "another", list[_Piece]()
    await fill(other, rounds=20, segment_bytes=1000)
    damaged = [segments(other / "orders")[0], *segments(store / "orders")[:2]]
    for path in damaged:
        flip(path, 200, 0)

    def here(_: object, work: Sequence[Sequence[_Piece]], task: Callable[[Sequence[_Piece]], Any], __: str) -> Any:
        pieces.extend(piece for each in work for piece in each)
        return SimpleNamespace(
            collect=lambda: [row for each in work for batch in task(each) for row in batch.to_pylist()]
        )

    monkeypatch.setitem(audit.__globals__, "spread", here)
    found = audit(cast("Any", None), f"{store},{other}")
    assert [finding.path for finding in found.findings] == list(map(str, damaged))
    assert (found.segments, found.bytes) == (len(pieces), sum(piece.size for piece in pieces))
    uuids = {str(each): store_uuid(OsFileSystem(), str(each)) for each in (store, other)}
    assert {os.path.dirname(piece.place.directory): piece.place.store for piece in pieces} == uuids
    assert None not in uuids.values()


async def test_a_task_of_an_audit_hands_on_one_batch_of_what_it_found(store: Path) -> None:
    """A batch for each segment costs as much as checking it, where it is small."""
    place, paths = planned(store)[0][0].place, segments(store / "orders")[:3]
    work = [
        _Piece(
            number,
            0,
            place,
            str(path),
            int(path.stem),
            int(path.stem),
            path.stat().st_size,
            last=False,
            copied=False,
        )
        for number, path in enumerate(paths)
    ]
    flip(paths[1], 500, 3)
    (found,) = list(_check_all(work))
    read, *damage = found.to_pylist()
    assert (read["bytes"], read["reason"]) == (sum(path.stat().st_size for path in paths), None)
    assert read["records"] == int(segments(store / "orders")[3].stem) - sum(d["stop"] - d["first"] for d in damage)
    assert {row["path"] for row in damage} == {str(paths[1])}
    assert all(row["records"] is row["bytes"] is None and row["reason"] for row in damage)
    size = paths[0].stat().st_size
    paths[0].unlink()  # as its owner does, when retention lets it go
    (found,) = list(_check_all(work))
    assert found["bytes"][0].as_py() == read["bytes"] - size


async def test_an_audit_takes_a_frame_that_is_cut_off_for_unfinished_only_at_the_end(store: Path) -> None:
    _, cut, *_ = segments(store / "orders")
    os.truncate(cut, cut.stat().st_size // 2)
    fs, whole = OsFileSystem(), str(store)
    work = _pieces(_logs(fs, whole, None))
    (found,) = list(_check_all(work))
    read, *damage = found.to_pylist()
    assert {row["path"] for row in damage} == {str(cut)}
    assert [row["reason"].partition(" of ")[0] for row in damage] == ["a frame", "the footer is missing"]
    assert read["records"] == len(scanned(store))


# --- the store


def another(store: Path) -> str:
    """Leave in a store's place one with the same topics, as if it had been copied before it said which it is."""
    shutil.copytree(store, store.with_name("original"))
    uuid = uuid4()
    (store / STORE_FILE).write_bytes(encode_identity(uuid))
    return str(uuid)


async def test_another_store_with_the_same_topic_is_not_read(store: Path) -> None:
    splits, task = planned(store)
    uuid = store_uuid(OsFileSystem(), str(store))
    assert {split.place.store for split in splits} == {uuid}
    assert list(task(splits[0]))
    found = another(store)
    for split in splits:
        with pytest.raises(aiodq.StoreNotFoundError, match=f"the task on {socket.gethostname()}") as caught:
            list(task(split))
        assert caught.value.path == str(store)
        assert f"sees another store there than the one that the read was planned from (uuid {found}, not {uuid}" in str(
            caught.value
        )


async def test_a_stream_does_not_read_another_store_either(store: Path) -> None:
    options = stream_options({"path": str(store)})
    reader = StreamReader(options)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    places = {split.place for one in partitions if isinstance(one, Partition) for split in one.splits}
    assert {place.store for place in places} == {store_uuid(OsFileSystem(), str(store))} != {None}
    another(store)
    with pytest.raises(aiodq.StoreNotFoundError, match="sees another store there"):
        list(reader.read(partitions[0]))


async def test_a_store_that_does_not_say_which_it_is_where_planning_was_told_is_another(store: Path) -> None:
    splits, task = planned(store)
    (store / STORE_FILE).unlink()
    with pytest.raises(aiodq.StoreNotFoundError, match=f"uuid unknown, not {splits[0].place.store}"):
        list(task(splits[0]))


async def test_planned_without_it_the_store_is_not_looked_at(store: Path) -> None:
    (store / STORE_FILE).unlink()
    splits, task = planned(store)
    assert {split.place.store for split in splits} == {None}
    another(store)
    assert sum(batch.num_rows for split in splits for batch in task(split)) == 100


@pytest.mark.parametrize("when", ["planning", "reading"])
async def test_damage_does_not_make_it_another_store(store: Path, when: str) -> None:
    splits, task = planned(store)
    flip(store / STORE_FILE, 30, 1)
    if when == "planning":
        splits, task = planned(store)
    assert all((split.place.store is None) == (when == "planning") for split in splits)
    assert sum(batch.num_rows for split in splits for batch in task(split)) == 100


async def test_the_store_is_read_once_for_a_plan_and_known_by_its_bytes_to_a_worker(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, "more", rounds=2)
    looks: list[str] = []

    def watched(fs: Any, path: str) -> Any:
        looks.append(path)
        return store_uuid(fs, path)

    monkeypatch.setattr("aiodq.spark.planning.store_uuid", watched)
    splits, _ = planned(store)
    assert (looks, len({split.topic for split in splits})) == ([str(store)], 2)
    _named.cache_clear()
    for split in splits:
        require_seen(OsFileSystem(), split.place)
    assert _named.cache_info()[:2] == (len(splits) - 1, 1)
    require_seen(OsFileSystem(), Place(*splits[0].place[:2]))
    assert _named.cache_info().hits == len(splits) - 1


def held(store: Path) -> int:
    hold = read_hold(OsFileSystem(), str(store), "h")
    assert hold is not None
    return hold.offsets["orders"]


def tally(store: Path, first: int, written: int = 0) -> Tally:
    write_hold(OsFileSystem(), str(store), "h", Hold({"orders": first}))
    return Tally(str(store), "h", lambda _topic, _first, _stop: written)


async def test_a_hold_moves_by_what_adds_up(store: Path) -> None:
    moving = tally(store, 0)
    moving.batch(None, {"orders": 30}, 30)
    moving.batch({"orders": 30}, {"orders": 70}, 40)
    moving.batch({"orders": 30}, {"orders": 70}, 40)
    moving.batch({"orders": 70}, {"orders": 70}, 0)
    moving.batch(None, {"orders": 30}, 30)
    assert (held(store), moving.lost) == (70, 0)


async def test_a_hold_stays_where_rows_are_missing(store: Path) -> None:
    moving = tally(store, 0, written=20)
    with pytest.raises(aiodq.StorageError, match="the store holds 30, and 20 were written: the hold 'h' stays at 0"):
        moving.batch(None, {"orders": 30}, 20)
    with pytest.raises(aiodq.StorageError, match="the store holds 50, and 20 were written"):
        moving.batch({"orders": 30}, {"orders": 50}, 20)
    assert held(store) == 0


async def test_a_hold_moves_past_what_is_gone(store: Path) -> None:
    gone = segments(store / "orders")[1]
    first, behind = int(gone.stem), int(segments(store / "orders")[2].stem)
    gone.unlink()
    there = 60 - (behind - first)
    moving = tally(store, 0, written=there)
    moving.batch(None, {"orders": 60}, there)
    assert (held(store), moving.lost) == (60, behind - first)


async def test_a_hold_moves_past_a_topic_that_was_deleted(store: Path) -> None:
    write_hold(OsFileSystem(), str(store), "h", Hold({"orders": 0, "gone": 0}))
    moving = Tally(str(store), "h", lambda topic, _first, stop: stop if topic == "orders" else 0)
    moving.batch(None, {"orders": 10, "gone": 20}, 10)
    assert (held(store), moving.lost) == (10, 20)


async def test_a_batch_of_a_run_that_was_killed_is_counted(store: Path) -> None:
    moving = tally(store, 10, written=50)
    moving.batch({"orders": 40}, {"orders": 60}, 20)
    assert held(store) == 60


async def test_what_a_run_that_was_killed_had_of_a_topic_that_rests_is_counted(store: Path) -> None:
    await fill(store, "other", rounds=4)
    moving = tally(store, 10, written=20)
    with pytest.raises(
        aiodq.StorageError, match=r"of the messages 10 to 39 .* the store holds 30, and 20 were written"
    ):
        moving.batch({"orders": 40, "other": 0}, {"orders": 40, "other": 10}, 10)
    assert held(store) == 10


async def test_what_was_let_go_of_one_topic_does_not_make_up_for_what_another_has_not_written(store: Path) -> None:
    await fill(store, "other", rounds=4)
    moving = tally(store, 10)
    write_hold(OsFileSystem(), str(store), "h", Hold({"orders": 10, "other": 10}))
    with pytest.raises(aiodq.StorageError, match=r"of the messages 10 to 29 of topic 'orders' the store holds 20"):
        moving.batch({"orders": 20, "other": 0}, {"orders": 30, "other": 20}, 30)
    assert held(store) == 10


async def test_what_was_let_go_before_is_neither_counted_again_nor_lost(store: Path) -> None:
    await fill(store, "other", rounds=4)
    write_hold(OsFileSystem(), str(store), "h", Hold({"orders": 60, "other": 0}))
    counted: list[str] = []

    def written(topic: str, first: int, stop: int) -> int:
        counted.append(topic)
        return stop - first

    moving = Tally(str(store), "h", written)
    moving.batch({"orders": 20, "other": 0}, {"orders": 30, "other": 10}, 20)
    assert (counted, moving.lost) == (["other"], 0)


async def test_a_topic_that_comes_later_is_held_from_where_it_begins(store: Path) -> None:
    moving = tally(store, 0)
    await fill(store, "later", rounds=4)
    moving.batch({"orders": 0}, {"orders": 10, "later": 0}, 10)
    moving.batch({"orders": 10, "later": 0}, {"orders": 10, "later": 20}, 20)
    hold = read_hold(OsFileSystem(), str(store), "h")
    assert hold is not None
    assert hold.offsets == {"orders": 10, "later": 20}


async def test_a_topic_that_was_made_anew_is_held_from_its_beginning(store: Path) -> None:
    moving = tally(store, 200)
    moving.batch({"orders": 200}, {"orders": 0}, 0)
    assert held(store) == 0
    moving.batch({"orders": 0}, {"orders": 60}, 60)
    assert (held(store), moving.lost) == (60, 0)


async def test_without_a_hold_there_is_nothing_to_move(store: Path) -> None:
    moving = Tally(str(store), "nobody", lambda _topic, _first, _stop: 0)
    moving.batch(None, {"orders": 10}, 0)
    assert moving.missing_at_ends() == 0
    assert read_hold(OsFileSystem(), str(store), "nobody") is None


@pytest.mark.parametrize("patterns", [None, ("ord*",), ("more",)])
async def test_what_is_missing_at_the_end_is_counted_until_the_topic_goes_on(
    store: Path, patterns: tuple[str, ...] | None
) -> None:
    """A stream does not go past it: whether messages follow, and where, only an owner decides."""
    last = segments(store / "orders")[-1]
    os.truncate(last, last.stat().st_size // 2)
    end = scanned(store)[-1]["offset"] + 1
    moving = tally(store, end)
    write_hold(OsFileSystem(), str(store), "h", Hold({"orders": end}, patterns))
    assert moving.missing_at_ends() == (0 if patterns == ("more",) else 100 - end)
    await fill(store, rounds=1)
    again = tally(store, end, written=5)
    again.batch({"orders": end}, {"orders": 105}, 5)
    assert (again.lost, again.missing_at_ends()) == (100 - end, 0)
