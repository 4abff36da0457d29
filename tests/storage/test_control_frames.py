"""Format 1 promises that control frames, which carry no records, are stepped over by whoever does not know them.

By everything that goes through a log: the owner that opens, recovers, appends, rolls and adopts, readers forward and
backward, by tuples and by Arrow, a snapshot, `verify` and `repair`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aiodq.format.columns import Columns
from aiodq.format.layout import CONTROL_KINDS
from aiodq.format.vectorized.arrow import ArrowDecoder
from aiodq.format.vectorized.frame_arrays import index_singles as vectorized
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.filesystem import opened
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.read.frame_reader import FrameReader
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.segments.segment_contents import examine
from aiodq.storage.state.watermark import WATERMARK, read_slot_file
from aiodq.testing import WatchedFileSystem
from tests.storage.controls import SEGMENT_BYTES, a_log_with_controls, context_of, leave_control
from tests.storage.logs import CLOCK, contents, copy, flip, messages, open_log, put, read_topic, segments

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.storage.offline.store_report import StoreReport

KINDS = sorted(CONTROL_KINDS)
SIZES = [0, 40, 5000, 300_000]
"""Of what a control frame holds; the last is more than a window of any reader."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "LOCK").touch()
    return tmp_path / "store"


@pytest.fixture
def topic(store: Path) -> Path:
    return store / "t"


def verified(store: Path) -> StoreReport:
    return verify_store(str(store), WatchedFileSystem())


@pytest.mark.parametrize("kind", KINDS, ids=hex)
def test_an_owner_steps_over_every_kind(topic: Path, kind: int) -> None:
    bodies = a_log_with_controls(topic, kind)
    log = open_log(topic)
    assert log.damages == []
    assert messages(log) == dict(enumerate(bodies))
    log.close()
    assert read_topic(topic) == dict(enumerate(bodies))


@pytest.mark.parametrize("size", SIZES)
def test_readers_step_over_any_size(store: Path, topic: Path, size: int) -> None:
    bodies = a_log_with_controls(topic, size=size)
    reader = StoreReader(str(store), WatchedFileSystem()).topic("t")
    assert [message.body for message in reader.scan()] == bodies
    assert reader.to_arrow().column("body").to_pylist() == bodies
    assert reader.damages == ()
    view, log_reader = reader.refresh(), LogReader(WatchedFileSystem())
    back: list[bytes] = []
    at = view.stop
    while at > 0:
        result = log_reader.read_back(view, at, 1000)
        back = [body for batch in result.batches for body in batch.columns.bodies] + back
        assert result.damages == []
        assert result.next < at
        at = result.next
    log_reader.close()
    assert back == bodies


@pytest.mark.parametrize("size", SIZES)
def test_every_piece_of_a_read_is_the_same_in_arrow(topic: Path, size: int) -> None:
    bodies = a_log_with_controls(topic, size=size)
    log = open_log(topic)
    view = log.view()
    for start in range(len(bodies)):
        reader = FrameReader(WatchedFileSystem(), ArrowDecoder(), 1 << 20)
        result = reader.read(view, start, 2 << 20)
        found = [body for rows in result.batches for body in rows.arrays["body"].to_pylist()]
        assert found == bodies[start : result.next]
        assert found
        assert result.damages == []
        reader.close()
    log.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("walk", [True, False])
def test_a_snapshot_follows_a_log_that_grows_by_them(topic: Path, size: int, *, walk: bool) -> None:
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    for number in range(6):
        log = open_log(topic, segment_bytes=8 << 20)
        put(log, [b"%d" % number])
        log.close()
        assert segments(topic)[0].read_bytes().count(b"\xa5" * size) >= number
        leave_control(topic, number + 1, size=size)
        assert not snapshot.refresh(walk=walk)
        assert (snapshot.view.stop, snapshot.damages) == (number + 1, [])


@pytest.mark.parametrize("size", SIZES)
def test_verify_finds_nothing_wrong_and_repair_nothing_to_do(store: Path, topic: Path, size: int) -> None:
    bodies = a_log_with_controls(topic, size=size)
    before = [path.read_bytes() for path in segments(topic)]
    report = verified(store)
    assert (report.ok, report.records) == (True, len(bodies))
    assert [finding for finding in report.findings if finding.path.endswith(".seg")] == []
    repair_store(str(store), WatchedFileSystem())
    assert [path.read_bytes() for path in segments(topic)] == before


def test_repair_keeps_them_where_something_else_is_damaged(store: Path, topic: Path) -> None:
    bodies = a_log_with_controls(topic)
    path = segments(topic)[1]
    data = path.read_bytes()
    flip(path, data.index(b"1 batch 2"), 3)
    controls = data.count(b"\xa5" * 40)
    assert not verified(store).ok
    repair_store(str(store), WatchedFileSystem())
    assert verified(store).ok
    assert path.read_bytes().count(b"\xa5" * 40) == controls
    assert list(read_topic(topic).values()) == [body for body in bodies if not body.startswith(b"1 batch")]


@pytest.mark.parametrize("bit", [0, 7])
def test_damage_in_one_is_damage_and_costs_no_message(store: Path, topic: Path, bit: int) -> None:
    bodies = a_log_with_controls(topic)
    path = segments(topic)[0]
    flip(path, path.read_bytes().index(b"\xa5" * 40) + 11, bit)
    [damage] = verified(store).damages
    assert (damage.path, damage.position) == (str(path), 64)
    assert read_topic(topic) == dict(enumerate(bodies))


def test_a_cut_at_every_byte_of_one_and_its_batch_leaves_what_was_before(topic: Path, tmp_path: Path) -> None:
    log = open_log(topic)
    put(log, [b"before", b"it"])
    log.close()
    leave_control(topic, 2)
    end = segments(topic)[0].stat().st_size
    log = open_log(topic)
    put(log, [b"behind", b"it"], sync=False)
    log.abandon()
    whole = segments(topic)[0].stat().st_size
    assert whole > end, "the control frame was not taken off"
    for size in range(end - 72, whole + 1, 4):
        torn = copy(topic, tmp_path / "torn" / "t")
        os.truncate(segments(torn)[0], size)
        log = open_log(torn)
        found, damages = contents(log)
        kept = [b"before", b"it", b"behind", b"it"] if size == whole else [b"before", b"it"]
        assert (list(found.values()), damages, log.damages) == (kept, [], [])
        put(log, [b"next"])
        log.close()
        assert list(read_topic(torn).values()) == [*kept, b"next"]


def test_counting_by_arrays_and_by_a_loop_comes_to_the_same(topic: Path) -> None:
    a_log_with_controls(topic)
    fs = WatchedFileSystem()
    for path in segments(topic):
        with opened(fs, str(path)) as file:
            context, limit = context_of(path), path.stat().st_size
            one = examine(file, context, str(path), limit=limit, durable_end=0)
            other = examine(file, context, str(path), limit=limit, durable_end=0, singles=vectorized)
        assert one == other


def a_staged_segment(store: Path) -> tuple[str, list[bytes]]:
    """Stage a segment that has control frames; return its path and the bodies in it."""
    made = store.parent / "elsewhere"
    bodies = a_log_with_controls(made)
    del bodies[17:]
    writer = StagingWriter(WatchedFileSystem(), CLOCK, str(store), "writer", segment_bytes=SEGMENT_BYTES)
    writer.put("t", Columns([b"x"]))
    writer.finish()
    [staged] = store.rglob("*.seg")
    staged.write_bytes(segments(made)[0].read_bytes())
    return str(staged), bodies


@pytest.mark.parametrize("before", [[], [b"one", b"two"]], ids=["an empty log", "messages"])
def test_staged_segments_with_them_are_adopted(store: Path, topic: Path, before: list[bytes]) -> None:
    staged, bodies = a_staged_segment(store)
    log = open_log(topic)
    if before:
        put(log, before)
        log.close()
        leave_control(topic, len(before))
        log = open_log(topic)
    log.adopt([(staged, len(bodies))], lambda _: None)
    assert read_slot_file(log.fs, str(topic / WATERMARK))[0] == log.end, "what is adopted is promised"
    put(log, [b"behind"])
    assert list(messages(log).values()) == [*before, *bodies, b"behind"]
    log.close()
    assert verified(store).ok


def test_a_segment_of_nothing_else_is_none_to_roll(store: Path, topic: Path) -> None:
    log = open_log(topic, segment_bytes=2000)
    put(log, [b"a"])
    log.roll()
    log.close()
    leave_control(topic, 1)
    log = open_log(topic, segment_bytes=2000)
    put(log, [b"x" * 3000])
    log.roll()
    put(log, [b"z"])
    log.close()
    assert list(read_topic(topic).values()) == [b"a", b"x" * 3000, b"z"]
    assert verified(store).ok


def test_what_is_adopted_takes_the_place_of_a_segment_of_nothing_else(store: Path, topic: Path) -> None:
    staged, bodies = a_staged_segment(store)
    open_log(topic).close()
    leave_control(topic, 0)
    log = open_log(topic)
    log.adopt([(staged, len(bodies))], lambda _: None)
    put(log, [b"behind"])
    assert list(messages(log).values()) == [*bodies, b"behind"]
    log.close()
    assert verified(store).ok
