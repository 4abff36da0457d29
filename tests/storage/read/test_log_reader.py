"""Reading by offset, backward, by time, and by size."""

from __future__ import annotations

import errno
import os
import pickle
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiodq.errors import StorageError
from aiodq.format import frame as frames
from aiodq.format.checksum import crc32
from aiodq.format.columns import Columns
from aiodq.format.frame import FrameContext
from aiodq.format.layout import BATCH_HEADER, FRAME_PREFIX, KIND_COMPACT, SEGMENT_HEADER
from aiodq.storage.log.backlog_bytes import position_in
from aiodq.storage.read.log_reader import LogReader, LogView, ReadResult
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.testing import Passed, WatchedFileSystem
from tests.format.support import control_frame
from tests.storage.logs import SECOND, START, contents, flip, open_log, overwrite, put, put_each, segments

if TYPE_CHECKING:
    from aiodq.storage.log.topic_log import TopicLog


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def a_mixed_log(topic: Path, seed: int = 1) -> tuple[TopicLog, list[bytes]]:
    """Return a log with single records, batches and runs in several segments."""
    rng = random.Random(seed)
    log = open_log(topic, segment_bytes=60_000)
    bodies: list[bytes] = []
    for _ in range(150):
        many = [rng.randbytes(rng.choice([0, 1, 30, 700])) for _ in range(rng.choice([1, 1, 2, 40]))]
        bodies += many
        put(log, many, sync=False)
    run = [rng.randbytes(9000) for _ in range(20)]
    put(log, run, atomic=True, sync=False)
    log.sync()
    return log, bodies + run


@pytest.mark.parametrize("max_bytes", [1, 40, 4096, 1 << 20])
def test_every_offset_can_be_read_with_any_size_of_read(topic: Path, max_bytes: int, seed: int) -> None:
    log, bodies = a_mixed_log(topic)
    assert len(log.segments) > 3
    reader = LogReader(WatchedFileSystem())
    rng = random.Random(seed)
    for offset in [0, log.end - 1, *rng.sample(range(log.end), 60)]:
        result = reader.read(log.view(), offset, max_bytes)
        assert result.batches[0].first == offset
        assert result.damages == []
        for batch in result.batches:
            assert batch.columns.bodies == bodies[batch.first : batch.stop]
        assert result.next == result.batches[-1].stop
    reader.close()
    log.close()


@pytest.mark.parametrize("max_bytes", [100, 5000, 1 << 20])
def test_backward_is_forward_reversed(topic: Path, max_bytes: int) -> None:
    log, bodies = a_mixed_log(topic)
    reader = LogReader(WatchedFileSystem())
    found: list[bytes] = []
    at = log.end
    while at > log.begin:
        result = reader.read_back(log.view(), at, max_bytes)
        part = [body for batch in result.batches for body in batch.columns.bodies]
        assert [batch.first for batch in result.batches] == sorted(batch.first for batch in result.batches)
        assert result.next < at
        assert len(part) == at - result.next
        found = part + found
        at = result.next
    assert found == bodies
    reader.close()
    log.close()


def test_backward_from_the_middle_of_a_batch(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"a", b"b", b"c", b"d"])
    reader = LogReader(WatchedFileSystem())
    result = reader.read_back(log.view(), 3, 1000)
    assert [batch.columns.bodies for batch in result.batches] == [[b"a", b"b", b"c"]]
    assert reader.read_back(log.view(), 0, 1000).batches == []
    reader.close()
    log.close()


def test_a_read_that_a_view_cuts_short_goes_on_where_it_was_cut(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"a", b"b", b"c", b"d"])
    put(log, [b"e"])
    reader = LogReader(WatchedFileSystem())
    result = reader.read(log.view(2), 0, 1 << 20)
    assert ([batch.columns.bodies for batch in result.batches], result.next) == ([[b"a", b"b"]], 2)
    result = reader.read(log.view(), 2, 1 << 20)
    assert [body for batch in result.batches for body in batch.columns.bodies] == [b"c", b"d", b"e"]
    assert result.damages == []
    reader.close()
    log.close()


def test_nothing_is_read_at_the_end_and_behind_it(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"a"])
    reader = LogReader(WatchedFileSystem())
    for offset in (1, 2, 1000):
        result = reader.read(log.view(), offset, 100)
        assert (result.batches, result.damages, result.next) == ([], [], offset)
    reader.close()
    log.close()


def test_a_reader_follows_a_growing_log(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    reader = LogReader(WatchedFileSystem())
    found = []
    at = 0
    for number in range(50):
        put(log, [f"{number}".encode() * 20])
        result = reader.read(log.view(), at, 100)
        found += [body for batch in result.batches for body in batch.columns.bodies]
        assert result.damages == []
        at = result.next
    assert found == [f"{number}".encode() * 20 for number in range(50)]
    reader.close()
    log.close()


def test_sequential_reading_reads_each_byte_once(topic: Path) -> None:
    log = open_log(topic, segment_bytes=100_000)
    put_each(log, [b"x" * 100] * 3000)
    log.close()
    log = open_log(topic, segment_bytes=100_000)
    fs = WatchedFileSystem()
    contents(log, fs, 10_000)
    sizes = sum(path.stat().st_size for path in segments(topic))
    assert fs.bytes_read < sizes * 1.1
    assert fs.calls["open"] == len(segments(topic))
    log.close()


def test_readers_that_take_turns_in_a_long_run_go_on_where_the_other_ended(topic: Path) -> None:
    """None of them looks for its place from the run's beginning, or checks once more that the run is complete."""
    log = open_log(topic)
    bodies = [bytes([number]) * 9000 for number in range(200)]
    put(log, bodies, atomic=True)
    view, fs, found = log.view(), WatchedFileSystem(), []
    readers = [LogReader(fs) for _ in range(3)]
    result = ReadResult()
    while result.next < log.end:
        result = readers[result.next % 3].read(view, result.next, 64 * 1024, result.continuation)
        found += [body for batch in result.batches for body in batch.columns.bodies]
    assert found == bodies
    assert fs.bytes_read < 2.2 * segments(topic)[0].stat().st_size, "once to check the run, and once to decode it"
    for reader in readers:
        reader.close()
    log.close()


def test_a_run_that_there_is_room_for_is_read_once(topic: Path) -> None:
    log = open_log(topic, segment_bytes=64 << 20)
    bodies = [bytes([number]) * 9000 for number in range(200)]
    for _ in range(2):
        put(log, bodies, atomic=True)
    view, size, fs = log.view(), segments(topic)[0].stat().st_size // 2, WatchedFileSystem()
    reader = LogReader(fs)
    result = reader.read(view, 0, 64 * 1024, run_bytes=4 << 20)
    assert [body for batch in result.batches for body in batch.columns.bodies] == bodies
    assert fs.bytes_read < 1.3 * size
    assert reader.read(view, 200, 64 * 1024, run_bytes=size * 2 // 3).next < 400
    reader.close()
    log.close()


def test_reading_here_and_there_in_long_runs_looks_through_each_once(topic: Path, seed: int) -> None:
    """The index has only where a run begins; redelivered and deferred messages are read from wherever they are."""
    log = open_log(topic, segment_bytes=64 << 20)
    bodies = [number.to_bytes(2) * 4500 for number in range(800)]
    put_each(log, bodies[:100])
    for start in range(100, 800, 350):
        put(log, bodies[start : start + 350], atomic=True)
    view, fs, rng = log.view(), WatchedFileSystem(), random.Random(seed)
    reader, reads, offset = LogReader(fs), 0, 0
    while reads < 500:
        offset = rng.randrange(800)
        for _ in range(rng.choice([1, 1, 3])):  # some go on where they ended
            result = reader.read(view, offset, 1)
            reads += 1
            found = [body for batch in result.batches for body in batch.columns.bodies]
            assert (result.batches[0].first, result.damages) == (offset, [])
            assert found == bodies[offset : result.next]
            if (offset := result.next) >= 800:
                break
    frame, rest = 64 * 1024 + 9000, segments(topic)[0].stat().st_size
    assert fs.bytes_read < 1.5 * rest + 2 * reads * frame  # a read from the run's beginning: 20 frames on average
    reader.close()
    log.close()


def test_a_long_run_is_read_backward_in_pieces(topic: Path) -> None:
    log = open_log(topic, segment_bytes=64 << 20)
    bodies = [number.to_bytes(2) * 4500 for number in range(700)]
    put(log, bodies[:350], atomic=True)
    put_each(log, bodies[350:360])
    put(log, bodies[360:], atomic=True)
    view, fs, found, offset = log.view(), WatchedFileSystem(), list[bytes](), log.end
    reader = LogReader(fs)
    while offset:
        result = reader.read_back(view, offset, 100_000)
        part = [body for batch in result.batches for body in batch.columns.bodies]
        assert (len(part) <= 30, result.damages) == (True, [])
        found, offset = part + found, result.next
    assert found == bodies
    assert fs.bytes_read < 3.5 * segments(topic)[0].stat().st_size
    reader.close()
    log.close()


def test_what_was_decoded_of_the_next_run_is_not_read_again(topic: Path) -> None:
    log = open_log(topic, segment_bytes=64 << 20)
    bodies = [bytes([number]) * 9000 for number in range(200)]
    for start in range(0, 200, 10):
        put(log, bodies[start : start + 10], atomic=True)
    view, fs, found = log.view(), WatchedFileSystem(), []
    readers = [LogReader(fs) for _ in range(3)]
    result, rests = ReadResult(), 0
    while result.next < log.end:
        result = readers[result.next % 3].read(view, result.next, 170_000, result.continuation)
        rests += bool(result.continuation and result.continuation.rest)
        found += [body for batch in result.batches for body in batch.columns.bodies]
    assert (found, rests > 5) == (bodies, True)
    assert fs.bytes_read < 1.3 * segments(topic)[0].stat().st_size, "the frame that a read cuts is read again"
    for reader in readers:
        reader.close()
    log.close()


def test_what_is_not_to_be_seen_yet_is_not_kept_for_later(topic: Path) -> None:
    log = open_log(topic, segment_bytes=64 << 20)
    for _ in range(2):
        put(log, [bytes(9000)] * 10, atomic=True)
    reader = LogReader(WatchedFileSystem())
    for stop, kept in ((10, False), (20, True)):
        continuation = reader.read(log.view(stop), 0, 170_000).continuation
        assert continuation is not None
        assert (continuation.offset, bool(continuation.rest)) == (10, kept)
    reader.close()
    log.close()


def test_a_run_that_must_not_be_scanned_is_refused_before_it_is_read(topic: Path) -> None:
    log = open_log(topic, segment_bytes=64 << 20)
    for _ in range(2):
        put(log, [bytes(9000)] * 200, atomic=True)
    fs = WatchedFileSystem()
    reader, view = LogReader(fs), log.view()
    with pytest.raises(StorageError, match="scanned"):
        reader.read(view, 0, 64 * 1024, run_bytes=1 << 20, scan=False)
    assert fs.bytes_read == 0
    result = reader.read(view, 0, 64 * 1024)
    while result.next < 200:
        result = reader.read(view, result.next, 64 * 1024, result.continuation, run_bytes=1 << 20, scan=False)
    with pytest.raises(StorageError, match="scanned"):
        reader.read(view, 200, 64 * 1024, result.continuation, run_bytes=1 << 20, scan=False)
    assert reader.read(view, 200, 64 * 1024, result.continuation, run_bytes=4 << 20, scan=False).next == 400
    reader.close()
    log.close()


def test_a_continuation_of_another_segment_or_offset_is_not_gone_by(topic: Path) -> None:
    log, bodies = a_mixed_log(topic)
    view = log.view()
    reader = LogReader(WatchedFileSystem())
    right = reader.read(view, 0, 4096).continuation
    assert right is not None
    for wrong in (right._replace(offset=right.offset + 1), right._replace(path=view.segments[-1].path)):
        result = LogReader(WatchedFileSystem()).read(view, right.offset, 4096, wrong._replace(position=12345))
        first = result.batches[0]
        assert (first.first, first.columns.bodies[0]) == (right.offset, bodies[right.offset])
    reader.close()
    log.close()


def test_a_reader_keeps_few_files_open(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    put_each(log, [b"x" * 100] * 40)
    fs = WatchedFileSystem()
    reader = LogReader(fs)
    for offset in range(40):
        reader.read(log.view(), offset, 100)
    assert fs.open_files <= 4
    reader.forget([segment.path for segment in log.segments])
    assert fs.open_files == 0
    reader.read(log.view(), 0, 100)
    reader.close()
    assert fs.open_files == 0
    log.close()


# --- time


def at(second: int) -> int:
    return START + second * SECOND


def test_offset_at_is_the_first_that_is_not_older(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    for number in range(30):
        put(log, [b"x" * 60], time_ns=at(number * 10))
    reader = LogReader(WatchedFileSystem())
    for number in range(30):
        assert reader.offset_at(log.view(), at(number * 10)) == number
        assert reader.offset_at(log.view(), at(number * 10 - 9)) == number
        assert reader.offset_at(log.view(), at(number * 10) + 1) == number + 1
    assert reader.offset_at(log.view(), 0) == 0
    assert reader.offset_at(log.view(10), at(250)) == 10
    reader.close()
    log.close()


def test_offset_at_bears_a_clock_that_goes_backward(topic: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(topic, segment_bytes=2000)
    times = [at(rng.randrange(1000)) for _ in range(200)]
    for time_ns in times:
        put(log, [b"x" * 50], time_ns=time_ns, sync=False)
    reader = LogReader(WatchedFileSystem())
    for second in range(-1, 1001, 37):
        expected = next((n for n, time_ns in enumerate(times) if time_ns >= at(second)), 200)
        assert reader.offset_at(log.view(), at(second)) == expected
    reader.close()
    log.close()


def test_offset_at_looks_into_a_batch_with_times_of_its_own(topic: Path) -> None:
    log = open_log(topic)
    log.stage(Columns([b"a", b"b", b"c"], times=[at(1), at(5), at(9)]), at(9), atomic=False)
    log.flush()
    log.commit()
    reader = LogReader(WatchedFileSystem())
    assert [reader.offset_at(log.view(), at(second)) for second in (0, 2, 5, 6, 9, 10)] == [0, 1, 1, 2, 2, 3]
    reader.close()
    log.close()


def test_offset_from_goes_back_over_what_cannot_be_read_and_no_further(topic: Path) -> None:
    log = open_log(topic, segment_bytes=700)
    for number in range(60):
        put(log, [b"%02d" % number * 30], time_ns=at(number * 10))
    log.close()
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh()
    reader, firsts = LogReader(WatchedFileSystem()), [segment.base for segment in snapshot.view.segments]
    assert all(reader.offset_from(snapshot.view, at(n * 5)) == -(-n // 2) for n in range(120))
    reader.close()

    def damage(number: int) -> None:
        path = next(path for path in reversed(segments(topic)) if int(path.stem) <= number)
        flip(path, path.read_bytes().index(b"%02d" % number * 30), 1)

    assert firsts[4] - firsts[3] > 2
    damage(firsts[2] - 1)
    damage(firsts[3])
    damage(firsts[3] + 1)
    segments(topic)[5].unlink()
    snapshot.refresh()
    reader = LogReader(WatchedFileSystem())
    found = {n: reader.offset_from(snapshot.view, at(n * 10)) for n in range(60)}
    # All of a full segment is known to be older where its footer says so.
    expected = {n: n for n in range(60)} | {firsts[3] + 1: firsts[3], firsts[3] + 2: firsts[3]}
    expected |= dict.fromkeys(range(firsts[5], firsts[6] + 1), firsts[5])
    assert found == expected
    reader.close()


# --- beside an owner


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_owner_that_goes_on_to_another_segment_does_not_make_a_log_seem_empty(topic: Path, number: int) -> None:
    """The newest file that was listed, and all before it, are deleted before they are looked at."""
    log = open_log(topic)
    put_each(log, [b"x"] * 10)
    path, left = log.segments[-1].path, number
    fs = WatchedFileSystem()

    def go_on(call: Passed) -> None:
        nonlocal left
        if call.kind == "open" and call.path == path:
            left -= 1
            if left:
                return
            log.roll()
            put_each(log, [b"y"] * 5)
            gone = log.segments[:1]
            log.hide(gone)
            log.remove(gone)

    fs.add(go_on)
    snapshot = LogSnapshot(fs, str(topic))
    snapshot.refresh()
    assert (left, snapshot.begin, snapshot.view.stop) == (0, 10, 15)
    log.close()


# --- size


def bytes_from(reader: LogReader, view: LogView, offset: int) -> int:
    """Return how many bytes of frames lie at `offset` and behind it, to the index's precision."""
    waiting = view.between(offset, view.stop)
    return sum(max(view.data_end_of(each) - reader._position_of(each, offset), 0) for each in waiting)


@pytest.mark.parametrize("known", [True, False])
def test_bytes_fall_from_all_to_none(topic: Path, *, known: bool) -> None:
    log, _ = a_mixed_log(topic)
    reader = LogReader(WatchedFileSystem())

    def left(offset: int) -> int:
        number = log.listed.at(offset)
        segment = log.segments[number]
        index = reader.opened(segment).index if known else None
        return log.listed.frames_from(number) - position_in(segment, offset, index) + SEGMENT_HEADER.size

    frames = sum(segment.data_end - SEGMENT_HEADER.size for segment in log.segments)
    assert (left(0), left(log.end)) == (frames, 0)
    sizes = [left(offset) for offset in range(log.end + 1)]
    assert sizes == sorted(sizes, reverse=True)
    exact = {segment.base for segment in log.segments}
    if known:
        exact |= {segment.base + first for segment in log.segments for first in reader.opened(segment).index.firsts}
    for offset in exact:
        assert left(offset) == bytes_from(reader, log.view(), offset)
    reader.close()
    log.close()


# --- trouble


@pytest.mark.parametrize("kind", ["open", "read"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_system_that_refuses_raises_and_the_same_read_works_later(topic: Path, kind: str, error: int) -> None:
    log, bodies = a_mixed_log(topic)
    log.close()
    log = open_log(topic)
    fs = WatchedFileSystem()
    reader = LogReader(fs)
    for number in (1, 2):
        fs.fail(error, kind, at=number, times=1)
        try:
            reader.read(log.view(), 0, 1000)
        except StorageError as refused:
            assert refused.errno == error
        fs.heal()
    result = reader.read(log.view(), 0, 1000)
    assert result.batches[0].columns.bodies[0] == bodies[0]
    reader.close()
    assert fs.open_files == 0
    log.close()


def test_a_segment_that_vanished_is_reported_and_stepped_over(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    put_each(log, [bytes([n]) * 60 for n in range(20)])
    gone = log.segments[1]
    os.unlink(gone.path)
    found, damages = contents(log)
    assert list(found) == [offset for offset in range(20) if not gone.base <= offset < gone.end]
    assert [(damage.first, damage.stop) for damage in damages] == [(gone.base, gone.end)]
    log.close()


def test_backward_a_segment_that_vanished_is_reported_and_stepped_over(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    put_each(log, [bytes([n]) * 60 for n in range(20)])
    gone = log.segments[1]
    os.unlink(gone.path)
    reader, at = LogReader(WatchedFileSystem()), log.end
    found: list[int] = []
    damages: list[tuple[int, int]] = []
    while at > 0:
        result = reader.read_back(log.view(), at, 1000)
        found += [offset for batch in reversed(result.batches) for offset in reversed(range(batch.first, batch.stop))]
        damages += [(damage.first, damage.stop) for damage in result.damages]
        at = result.next
    assert found == [offset for offset in reversed(range(20)) if not gone.base <= offset < gone.end]
    assert damages == [(gone.base, gone.end)]
    reader.close()
    log.close()


def test_offsets_that_no_message_has_are_told(topic: Path) -> None:
    log = open_log(topic, segment_bytes=428)
    put_each(log, [b"x" * 60] * 20)
    view = log.view()
    middle = view.segments[2]
    without = LogView(view.segments[1:2] + view.segments[3:], view.stop, view.data_end)
    reader = LogReader(WatchedFileSystem())
    for offset, stop in ((0, view.segments[1].base), (middle.base, middle.end), (middle.base + 1, middle.end)):
        result = reader.read(without, offset, 100)
        assert [(damage.first, damage.stop) for damage in result.damages] == [(offset, stop)]
        assert (result.batches, result.next) == ([], stop)
    short = LogView(view.segments[:2], view.stop, view.segments[1].data_end)
    result = reader.read(short, view.segments[1].end, 100)
    assert [(damage.first, damage.stop) for damage in result.damages] == [(view.segments[1].end, view.stop)]
    reader.close()
    log.close()


def test_damage_in_an_index_costs_nothing(topic: Path) -> None:
    log, bodies = a_mixed_log(topic)
    log.close()
    for segment in log.segments[:-1]:
        overwrite(Path(segment.path), segment.data_end + 3, b"\xff")
    log = open_log(topic)
    found, damages = contents(log)
    assert (list(found.values()), damages, log.damages) == (bodies, [], [])
    log.close()


def test_a_length_that_one_bit_made_large_does_not_cost_that_much_memory(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a" * 50, b"b" * 50])
    put(log, [b"c" * 3_000_000])
    log.roll()
    log.close()
    path = segments(topic)[0]
    first = int.from_bytes(path.read_bytes()[64:68], "little")
    overwrite(path, 64, FRAME_PREFIX.pack(first + (1 << 21), 0, KIND_COMPACT, 0, 0, 0, 0, 0)[:4])
    log = open_log(topic)
    fs = WatchedFileSystem()
    reader = LogReader(fs)
    result = reader.read(log.view(), 0, 4096)
    assert [(damage.first, damage.stop) for damage in result.damages] == [(0, 1)]
    assert fs.bytes_read < 1 << 20
    reader.close()
    log.close()


@pytest.mark.parametrize("part", [0, 4])
@pytest.mark.parametrize("walk", [True, False])
def test_a_log_is_cut_where_its_indexes_can(topic: Path, part: int, *, walk: bool) -> None:
    log, bodies = a_mixed_log(topic)
    log.close()
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=walk)
    view, reader = snapshot.view, LogReader(WatchedFileSystem())
    begins = {each.base + first for each in view.segments for first in reader.opened(each).index.firsts}
    bases = {segment.base for segment in view.segments}
    near = 0
    for size in (1, 700, 9000, 59_000, 70_000, 1 << 20):
        at, slack = 0, size * part // 8
        while at < view.stop:
            end = reader.offset_behind(view, at, size, slack)
            assert at < end <= view.stop
            left, least = (bytes_from(reader, view, offset) for offset in (at, end))
            if end < view.stop:
                assert end in begins
                assert left - least >= size
                before = max(first for first in (at, *begins) if first < end)
                beyond = left - bytes_from(reader, view, before) >= size
                assert not beyond or (end in bases and left - least <= size + slack), "no entry before is far enough"
                near += beyond
            at = end
    assert bool(near) == (part > 0)
    reader.close()
    assert len(bodies) == view.stop


def test_a_log_is_cut_behind_frames_without_records(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"one", b"two"])
    log.close()
    [path] = segments(topic)
    data = path.read_bytes()
    context = FrameContext(0, crc32, int.from_bytes(data[12:16], "little"))
    path.write_bytes(data[:64] + control_frame(context, first=0, body=bytes(1000)) * 10 + data[64:])
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh()
    reader = LogReader(WatchedFileSystem())
    for size in (1, 1000, 5000, 9000, 20_000):
        assert reader.offset_behind(snapshot.view, 0, size) == 2
    reader.close()


def test_a_run_that_lost_a_frame_is_none_to_who_read_behind_it_first(
    topic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_RECORDS", 2)
    log = open_log(topic)
    put(log, [b"a"])
    put(log, [b"%d" % n * 20 for n in range(6)], atomic=True)
    put(log, [b"z"])
    log.close()
    [path] = segments(topic)
    data = path.read_bytes()
    at = data.index(b"2" * 20) - BATCH_HEADER.size - 2 * 4
    path.write_bytes(data[:at] + data[at + int.from_bytes(data[at : at + 4], "little") :])
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh()
    reader = LogReader(WatchedFileSystem())
    assert reader.read(snapshot.view, 7, 1 << 20).batches[0].columns.bodies == [b"z"]
    result = reader.read(snapshot.view, 1, 1 << 20)
    reader.close()
    assert result.batches == []
    assert [(damage.first, damage.stop) for damage in result.damages] == [(1, 7)]


def test_a_light_segment_is_enough_to_read_on(topic: Path) -> None:
    log, bodies = a_mixed_log(topic)
    view, reader = log.view(), LogReader(WatchedFileSystem())
    for start in range(0, log.end, 37):
        segments = tuple(reader.light(segment, start) for segment in view.segments if segment.end > start)
        part = LogReader(WatchedFileSystem())
        result = part.read(view._replace(segments=segments), start, 1000)
        assert result.batches[0].first == start
        assert result.batches[0].columns.bodies[0] == bodies[start]
        assert result.bytes_read < 20_000, "it begins near"
        before = max(start - 3, segments[0].base)
        assert part.read(view._replace(segments=segments), before, 1000).batches[0].first == before
        part.close()
        assert len(pickle.dumps(segments[0])) < 1500
    reader.close()
    log.close()
