"""Where a growing segment ends, found from its end: where a walk through all of it finds it, or not at all."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiodq.errors import StorageError
from aiodq.format import frame as frames
from aiodq.format.layout import BATCH_HEADER, KIND_BATCH, SEGMENT_HEADER
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.segments.segment_contents import Contents, examine
from aiodq.storage.segments.segment_files import inspect_file, segment_path
from aiodq.storage.segments.tail_search import contents_by_end
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import flip, open_log, overwrite, put, put_each, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.storage.segments.segment_files import Inspection


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a log goes whose runs have several frames even if they are small."""
    monkeypatch.setattr(frames, "FRAME_RECORDS", 2)
    return tmp_path / "orders"


def a_log(topic: Path, *, synced: int = 6) -> int:
    """Write singles, batches and runs, not all of them durable; return how many messages of them are."""
    rng = random.Random(5)
    log = open_log(topic)
    durable_end = 0
    for number in range(10):
        bodies = [rng.randbytes(rng.choice([0, 9, 60])) for _ in range(rng.choice([1, 1, 3]))]
        put(log, bodies, sync=number < synced)
        if number in {3, 8}:
            put(log, [rng.randbytes(30) for _ in range(5)], atomic=True, sync=number < synced)
        durable_end = log.durable
    log.abandon()
    return durable_end


def seen(path: Path) -> Inspection:
    """Return what a segment's two ends say."""
    fs = WatchedFileSystem()
    snapshot = LogSnapshot(fs, str(path.parent))
    snapshot.refresh()
    return inspect_file(fs, str(path), int(path.stem), snapshot.meta.uuid)


def two_ways(path: Path, *durable_ends: int) -> Iterator[tuple[Contents | None, Contents]]:
    """Yield what is found from the end, and by a walk, where so many messages were durable."""
    found = seen(path)
    context, limit = found.header.context, found.size
    file = WatchedFileSystem().open(str(path))
    try:
        for durable_end in durable_ends:
            walked = examine(file, context, str(path), limit=limit, durable_end=durable_end)
            yield contents_by_end(file, context, str(path), limit=limit, durable_end=durable_end), walked
    finally:
        file.close()


def agreed(path: Path, *durable_ends: int) -> int:
    """Make sure that both ways find the same end; return how often it was found from the end at all."""
    count = 0
    for durable_end, (short, walked) in zip(durable_ends, two_ways(path, *durable_ends), strict=True):
        if short is not None:
            assert (short.end, short.data_end) == (walked.end, walked.data_end), durable_end
            assert not short.lost
            assert not short.unfinished
            count += 1
    return count


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_a_file_is_cut(topic: Path, stride: int, seed: int) -> None:
    durable_end = a_log(topic)
    [path] = segments(topic)
    data = path.read_bytes()
    found = 0
    for size in range(len(data) - seed % stride, 63, -stride):
        os.truncate(path, size)
        found += agreed(path, 0, durable_end // 2, durable_end)
    assert found > 10 // stride


def broken(data: bytes, first: int, stride: int) -> Iterator[bytes]:
    """Yield a segment with something else in each place, or something more."""
    for position in range(64 + 8 * first, len(data), 8 * stride):
        before, behind = data[:position], data[position:]
        yield before + bytes(8) + behind
        yield before + behind[:8][::-1] + behind[8:]
        for size in (8, 64):
            yield before + bytes(min(size, len(behind))) + behind[size:]


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_is_wrong_before(topic: Path, stride: int, seed: int) -> None:
    durable_end = a_log(topic)
    [path] = segments(topic)
    found = 0
    for data in broken(path.read_bytes(), seed % stride, stride):
        path.write_bytes(data)
        found += agreed(path, 0, durable_end // 2, *range(durable_end - 3, durable_end + 1))
    assert found > 1000 // stride


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_frames_within_messages_are_at_worst_an_older_end(topic: Path, stride: int, seed: int) -> None:
    a_log(topic, synced=10)
    [path] = segments(topic)
    log, first = open_log(topic), path.read_bytes()[64:]
    before = log.durable
    put(log, [first, b"more"])
    put(log, [first])
    durable_end = log.durable
    log.abandon()
    assert agreed(path, durable_end)
    older = 0
    whole = path.stat().st_size
    sampled = range(whole - 104 - 4 * (seed % stride), len(first), -4 * stride)
    for size in (*range(whole - 4, whole - 104, -4), *sampled):
        os.truncate(path, size)
        for n, (short, walked) in zip((before, durable_end), two_ways(path, before, durable_end), strict=True):
            if short is not None:
                assert n <= short.end <= walked.end
                older += short.end < walked.end
    assert older == 1, "the second put, cut short behind its last frame"


@pytest.mark.parametrize("last", [1, 9])
def test_little_is_read(topic: Path, last: int) -> None:
    log = open_log(topic, segment_bytes=1 << 24)
    put_each(log, [bytes(1000)] * 2000)
    put(log, [b"x"] * last, atomic=True)
    log.close()
    fs = WatchedFileSystem()
    snapshot = LogSnapshot(fs, str(topic))
    snapshot.refresh(walk=False)
    assert snapshot.unwalked is not None
    assert snapshot.view.stop == 2000 + last
    assert fs.bytes_read < 600_000


def test_a_length_that_is_none_costs_no_large_read(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1 << 24)
    put_each(log, [bytes(100_000)] * 30)
    log.close()
    [path] = segments(topic)
    found = seen(path)
    for length in (found.size + 8, found.size - 64, 2_000_000):
        overwrite(path, found.size - 4, length.to_bytes(4, "little"))
        fs = WatchedFileSystem()
        file = fs.open(str(path))
        assert contents_by_end(file, found.header.context, str(path), limit=found.size, durable_end=30) is None
        file.close()
        assert fs.bytes_read < 600_000


def test_what_was_never_durable_is_walked_through(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1 << 24)
    put_each(log, [b"x"] * 1200, sync=False)
    log.abandon()
    [path] = segments(topic)
    [(short, _)] = two_ways(path, 0)
    assert short is None
    assert agreed(path, 900)


def test_what_the_frames_say_was_durable_is_not_walked_through(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1 << 24)
    put_each(log, [b"x"] * 1200)
    log.abandon()
    [path] = segments(topic)
    assert agreed(path, 0)


def test_nothing_is_assumed_of_what_precedes_the_first_put(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"one", b"two", b"three"], sync=False)
    log.abandon()
    [path] = segments(topic)
    [(short, walked)] = two_ways(path, 1)
    assert short is not None
    assert short.index == walked.index


def test_damage_where_it_looks_is_for_a_walk(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"one", b"two"], sync=False)
    put(log, [b"three", b"four"], sync=False)
    put_each(log, [b"five", b"six"], sync=False)
    log.abandon()
    [path] = segments(topic)
    flip(path, path.read_bytes().index(b"three"), 0)
    [(short, walked)] = two_ways(path, 3)
    assert short is None
    assert [(lost.first, lost.stop) for lost in walked.lost] == [(2, 4)]


def test_a_snapshot_without_a_walk_reads_as_one_with(topic: Path) -> None:
    a_log(topic, synced=10)
    fs = WatchedFileSystem()
    snapshot = LogSnapshot(fs, str(topic))

    def bodies() -> list[tuple[int, list[bytes]]]:
        reader, at, found = LogReader(fs), 0, []
        while at < snapshot.view.stop:
            part = reader.read(snapshot.view, at, 100)
            found += [(batch.first, batch.columns.bodies) for batch in part.batches]
            at = part.next
        reader.close()
        return found

    snapshot.refresh(walk=False)
    assert snapshot.unwalked is not None
    short = bodies()
    snapshot.refresh()
    assert snapshot.unwalked is None
    assert bodies() == short
    snapshot.refresh(walk=False)
    assert bodies() == short


@pytest.mark.parametrize("sealed", [True, False])
def test_a_run_that_lost_a_frame_is_no_run_without_a_walk(topic: Path, *, sealed: bool) -> None:
    """Nor in a sealed segment that is read without the index in its footer."""
    log = open_log(topic)
    put(log, [b"before"])
    put(log, [b"%d" % n * 30 for n in range(8)], atomic=True)
    put_each(log, [b"behind"] * 3)
    if sealed:
        log.roll()
    log.close()
    path = segments(topic)[0]
    data = path.read_bytes()
    at = data.index(b"2" * 30) - BATCH_HEADER.size - 2 * 4
    length = int.from_bytes(data[at : at + 4], "little")
    assert data[at + 8] == KIND_BATCH
    if sealed:
        overwrite(path, at, bytes(length))
    else:
        path.write_bytes(data[:at] + data[at + length :])
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=False)
    assert (snapshot.unwalked is None) == sealed
    reader, at, found = LogReader(WatchedFileSystem()), 0, []
    view = snapshot.view._replace(segments=tuple(reader.light(each, 0) for each in snapshot.view.segments))
    while at < view.stop:
        part = reader.read(view, at, 40)
        found += [body for batch in part.batches for body in batch.columns.bodies]
        at = part.next
    reader.close()
    assert found == [b"before", *[b"behind"] * 3]


def test_a_file_that_its_owner_cuts_meanwhile_shows_no_end(topic: Path) -> None:
    durable_end = a_log(topic)
    [path] = segments(topic)
    fs = WatchedFileSystem()
    file, context = fs.open(str(path)), seen(path).header.context
    for missing in (1, 4, 8, 1000):
        assert contents_by_end(file, context, str(path), limit=file.size() + missing, durable_end=durable_end) is None
    file.close()


def test_only_a_walk_finds_damage_in_the_middle(topic: Path) -> None:
    a_log(topic, synced=10)
    [path] = segments(topic)
    flip(path, 100, 0)
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=False)
    assert snapshot.unwalked is not None
    assert snapshot.damages == []
    stop = snapshot.view.stop
    snapshot.refresh()
    assert snapshot.unwalked is None
    assert snapshot.view.stop == stop
    assert [(damage.path, damage.first) for damage in snapshot.damages] == [(str(path), 0)]


def test_damage_of_a_header_is_told_at_every_look(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"one", b"two"])
    log.roll()
    put(log, [b"three"])
    log.close()
    flip(segments(topic)[0], 3, 1)
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    for walk in (False, True, True, False):
        snapshot.refresh(walk=walk)
        assert [damage.path for damage in snapshot.damages] == [str(segments(topic)[0])]
        assert (snapshot.unwalked is None) == walk
        assert snapshot.view.stop == 3


def test_a_segment_that_is_not_taken_is_not_the_one_to_be_walked(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a", b"b", b"c"])
    log.roll()
    put_each(log, [b"d", b"e"])
    log.close()
    (topic / "watermark").unlink()
    sealed, last = segments(topic)
    header, content = seen(last).header, last.read_bytes()[SEGMENT_HEADER.size :]
    last.unlink()
    Path(segment_path(str(topic), 1)).write_bytes(replace(header, base=1).encode() + content)
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=False)
    assert [segment.path for segment in snapshot.view.segments] == [str(sealed)]
    assert snapshot.unwalked is None


def test_a_torn_end_is_walked_to(topic: Path) -> None:
    a_log(topic)
    [path] = segments(topic)
    os.truncate(path, path.stat().st_size - 3)
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=False)
    assert snapshot.unwalked is None
    assert snapshot.view.data_end < path.stat().st_size


def test_a_promised_end_that_is_gone_is_walked_to(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a", b"b", b"c"])
    log.close()
    [path] = segments(topic)
    os.truncate(path, path.stat().st_size - 40)
    snapshot = LogSnapshot(WatchedFileSystem(), str(topic))
    snapshot.refresh(walk=False)
    assert snapshot.unwalked is None
    assert [damage.stop for damage in snapshot.damages] == [3]
    assert isinstance(snapshot.damages[0], Damage)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_system_that_refuses_raises(topic: Path, number: int) -> None:
    a_log(topic)
    fs = WatchedFileSystem()
    fs.fail(5, "read", at=number, times=1)
    with pytest.raises(StorageError):
        LogSnapshot(fs, str(topic)).refresh(walk=False)
    fs.heal()
    LogSnapshot(fs, str(topic)).refresh(walk=False)
