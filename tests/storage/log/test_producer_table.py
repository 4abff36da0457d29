"""Who put what is known from the log alone: after a reopening, a roll, a torn write, and for as long as it matters."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from aiodq.clock import SystemClock
from aiodq.format.columns import Columns
from aiodq.format.producers import Producer
from aiodq.storage.bulk.commits import staging_directory
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.filesystem import opened
from aiodq.storage.log import active_segment, producer_table, recovery
from aiodq.storage.log.producer_table import MOST_PENDING, Origin, ProducerTable
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.segments.frame_scan import Window
from aiodq.testing import SimulatedFileSystem, WatchedFileSystem
from tests.storage.logs import START, contents, copy, flip, messages, open_log, put, read_topic, segments

if TYPE_CHECKING:
    from aiodq.storage.log.topic_log import TopicLog

SECOND = 1_000_000_000


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "LOCK").touch()
    return tmp_path / "store" / "t"


def put_of(log: TopicLog, origin: Origin, bodies: list[bytes], time_ns: int = START, *, sync: bool = True) -> range:
    """Put as somebody, at once where that can be, and rolling where that is needed."""
    first = log.end
    at_once = len(bodies) == 1 and log.append(bodies[0], time_ns, origin=origin) >= 0
    if not at_once and log.stage(Columns(bodies), time_ns, atomic=True, origin=origin) is None:
        log.roll()
        assert log.stage(Columns(bodies), time_ns, atomic=True, origin=origin) is not None
    log.flush()
    log.commit()
    if sync:
        log.sync()
    return range(first, log.end)


def recalled(topic: Path, segment_bytes: int = 1 << 20) -> ProducerTable:
    """Return what a log that is opened anew knows."""
    log = open_log(topic, segment_bytes=segment_bytes)
    log.recall()
    log.close()
    return log.producers


def last(table: ProducerTable, producer: int) -> int | None:
    """Return the sequence of a producer's last put, or None if the producer is unknown."""
    return max(table.puts.get(producer, {}), default=None)


def is_whole(topic: Path) -> bool:
    return verify_store(str(topic.parent), WatchedFileSystem()).ok


def test_a_put_is_known_by_its_producer_and_number_after_a_reopening(topic: Path) -> None:
    log = open_log(topic)
    placed = {Origin(7, n): put_of(log, Origin(7, n), [b"x"] * n) for n in range(1, 5)}
    put(log, [b"of nobody"])
    placed[Origin(8, 1)] = put_of(log, Origin(8, 1), [b"%d" % n * 50_000 for n in range(5)])
    log.close()
    for known in (log.producers, recalled(topic)):
        assert {origin: known.find(origin) for origin in placed} == placed
        assert known.find(Origin(7, 5)) is known.find(Origin(9, 1)) is None
        assert (last(known, 7), last(known, 8), last(known, 9)) == (4, 1, None)
    assert is_whole(topic)
    assert len(read_topic(topic)) == 16


@pytest.mark.parametrize("segment_bytes", [400, 3000, 20_000])
def test_a_segment_begins_with_who_was_known_however_it_begins(topic: Path, segment_bytes: int, seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(topic, segment_bytes=segment_bytes)
    placed: dict[Origin, range] = {}
    for number in range(200):
        kind = rng.randrange(4)
        if kind == 0:
            origin = Origin(rng.randrange(3), number)
            placed[origin] = put_of(log, origin, [b"x" * rng.randrange(100)] * rng.randint(1, 20), number)
        elif kind == 1:
            put(log, [b"y" * rng.randrange(300)], sync=False)
        elif kind == 2:
            put(log, [b"z"] * rng.randrange(1, 9), atomic=True, sync=False)
        elif log.append(b"at once", START) < 0:
            put(log, [b"at once"], sync=False)
        active = log.active
        assert active._indexed == len(active._index.positions), "the room for the footer is counted right"
        if rng.random() < 0.05:
            log.roll()
        if rng.random() < 0.05:
            log.close()
            log = open_log(topic, segment_bytes=segment_bytes)
            log.recall()
    log.close()
    assert is_whole(topic)
    last = segments(topic)[-1]
    for path in segments(topic)[:-3]:
        path.unlink()  # as retention does
    known = recalled(topic, segment_bytes)
    for producer in range(3):
        own = sorted(origin for origin in placed if origin.producer == producer)[-MOST_PENDING:]
        assert {origin: known.find(origin) for origin in own} == {origin: placed[origin] for origin in own}
    assert last.exists()


def test_a_put_that_is_written_at_once_is_the_same_as_one_in_steps(topic: Path, seed: int) -> None:
    """To readers, to the index, and to who opens the log next."""
    rng = random.Random(seed)
    logs = [open_log(topic.with_name(name), segment_bytes=40_000) for name in ("t", "u")]
    for number in range(1500):
        body, origin = rng.randbytes(rng.choice([0, 7, 60, *[100] * 9, 3000])), Origin(rng.randrange(3), number)
        time_ns = START + rng.randrange(-5, 5) * SECOND
        for at_once, log in enumerate(logs):
            if not at_once or log.append(body, time_ns, origin=origin) < 0:
                if log.stage(Columns([body]), time_ns, atomic=True, origin=origin) is None:
                    log.roll()
                    log.stage(Columns([body]), time_ns, atomic=True, origin=origin)
                log.flush()
                log.commit()
        one, two = (log.segments[-1] for log in logs)
        assert one.index == two.index
        for name in ("base", "end", "data_end", "size", "records", "raw_bytes", "flags", "oldest_ns", "newest_ns"):
            assert getattr(one, name) == getattr(two, name), name
    assert logs[0].producers.puts == logs[1].producers.puts
    for log in logs:
        log.close()
    assert len(logs[0].segments) > 5
    assert read_topic(topic) == read_topic(topic.with_name("u"))
    assert recalled(topic).puts == recalled(topic.with_name("u")).puts == logs[0].producers.puts
    assert is_whole(topic)


def test_a_segment_holds_no_more_puts_of_others_however_they_are_written(
    topic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_segment, "_MOST_OF_OTHERS", 10)
    log = open_log(topic)
    placed = [log.append(b"x", START, origin=Origin(7, number)) for number in range(11)]
    log.close()
    assert placed == [*range(10), -1]


def test_a_record_that_is_written_at_once_begins_no_segment_without_them(topic: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"a"])
    log.roll()
    assert log.append(b"b", START) < 0
    put(log, [b"b"])
    assert log.append(b"c", START) == 2
    log.close()
    segments(topic)[0].unlink()
    assert recalled(topic).find(Origin(7, 1)) == range(1)


def test_what_a_torn_write_left_is_not_known_whoever_has_its_offsets_then(topic: Path, tmp_path: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"before"])
    log.close()
    start = segments(topic)[0].stat().st_size
    log = open_log(topic)
    put_of(log, Origin(7, 2), [b"%d" % n * 30_000 for n in range(4)], sync=False)
    log.abandon()
    end = segments(topic)[0].stat().st_size
    for size in (*range(start, start + 200, 8), *range(start + 200, end, 9000), end):
        torn = copy(topic, tmp_path / "torn" / "t")
        os.truncate(segments(torn)[0], size)
        log = open_log(torn)
        log.recall()
        kept = range(1, 5) if size == end else None
        assert log.producers.find(Origin(7, 2)) == kept
        assert log.producers.find(Origin(7, 1)) == range(1)
        put(log, [b"another", b"put", b"of", b"as many"])
        log.close()
        assert recalled(torn).find(Origin(7, 2)) == kept
        log = open_log(torn)
        log.recall()
        again = put_of(log, Origin(7, 2), [b"again"])
        assert log.producers.find(Origin(7, 2)) == again
        log.close()
        assert recalled(torn).find(Origin(7, 2)) == again


def test_what_was_rolled_back_is_not_known(topic: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"a"])
    assert log.stage(Columns([b"b"]), START, atomic=True, origin=Origin(7, 2)) is not None
    log.flush()
    log.rollback()
    put_of(log, Origin(7, 3), [b"c"])
    assert [log.producers.find(Origin(7, n)) for n in (1, 2, 3)] == [range(1), None, range(1, 2)]
    log.close()
    assert [recalled(topic).find(Origin(7, n)) for n in (1, 2, 3)] == [range(1), None, range(1, 2)]
    assert list(read_topic(topic).values()) == [b"a", b"c"]


def test_damage_in_a_control_frame_costs_no_message(topic: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"a"])
    put_of(log, Origin(7, 2), [b"b"])
    log.roll()
    put_of(log, Origin(7, 3), [b"c"])
    log.close()
    flip(segments(topic)[0], 64 + 30, 1)
    log = open_log(topic)
    log.recall()
    assert list(messages(log).values()) == [b"a", b"b", b"c"]
    assert [log.producers.find(Origin(7, n)) for n in (1, 2, 3)] == [range(1), range(1, 2), range(2, 3)]
    log.close()


def test_a_message_that_holds_the_log_tells_nothing_that_is_not_so(topic: Path) -> None:
    log = open_log(topic)
    placed = put_of(log, Origin(7, 1), [b"a"])
    log.close()
    whole = segments(topic)[0].read_bytes()
    log = open_log(topic)
    put(log, [whole, b"\xe0\0\0\0" * 100])
    log.close()
    known = recalled(topic)
    assert (known.find(Origin(7, 1)), len(known)) == (placed, 1)


def test_only_the_last_puts_of_a_producer_are_known() -> None:
    table = ProducerTable()
    for number in range(100):
        table.note(Producer(7, number, number, 1, number))
    assert [table.find(Origin(7, number)) is not None for number in range(100)] == [
        number >= 100 - MOST_PENDING for number in range(100)
    ]
    assert last(table, 7) == 99


def test_who_is_silent_for_long_or_one_of_too_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_table, "_MOST", 5)
    table = ProducerTable()
    for number in range(8):
        table.note(Producer(number, 1, number, 1, number * SECOND))
        table.note(Producer(0, number + 1, number, 1, number * SECOND))
    assert sorted(row.producer for row in table.rows() if row.producer) == [4, 5, 6, 7]
    assert last(table, 0) == 8
    for minute in range(60):
        table.note(Producer(0, minute + 9, 50, 1, 7 * SECOND + minute * 60 * SECOND))
    assert {row.producer for row in table.rows()} == {0, 4, 5, 6, 7}
    table.note(Producer(99, 1, 50, 1, 3600 * SECOND + 6 * SECOND))
    assert {row.producer for row in table.rows()} == {0, 6, 7, 99}
    assert not ProducerTable().puts


@pytest.mark.parametrize("hours", [2, -2])
def test_nobody_is_forgotten_as_the_wall_clock_jumps(topic: Path, hours: int) -> None:
    log = open_log(topic)
    placed = put_of(log, Origin(7, 1), [b"a"])
    for number in range(1, 31):
        put_of(log, Origin(8, number), [b"b"], START + (number % 2) * hours * 3600 * SECOND)
    log.close()
    for known in (log.producers, recalled(topic)):
        assert known.find(Origin(7, 1)) == placed


def test_how_far_back_is_looked_is_bounded(topic: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"a"])
    log.close()
    for number in range(10):  # by owners who know nobody
        log = open_log(topic)
        log.roll()
        put(log, [b"%d" % number])
        log.close()
        fs = WatchedFileSystem()
        log = open_log(topic, fs)
        before = fs.calls["open"]
        log.recall()
        after = fs.calls["open"]
        assert (log.producers.find(Origin(7, 1)) is not None) == (number < 3)
        assert after - before <= 4
        log.close()


def test_a_segment_holds_so_many_puts_of_others_and_any_number_of_its_owner(
    topic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_segment, "_MOST_OF_OTHERS", 10)
    log = open_log(topic)
    placed = {}
    for number in range(1, 26):
        if number in {4, 17}:  # what an owner before has written counts as well
            log.close()
            log = open_log(topic)
            log.recall()
        origin = Origin(number % 2, number)
        placed[origin] = put_of(log, origin, [b"%d" % number] * 3)
    assert [segment.records for segment in log.segments] == [30, 30, 15]
    assert {origin: log.producers.find(origin) for origin in placed} == placed
    for number in range(40):
        put(log, [b"%d" % number])
    assert len(log.segments) == 3
    log.close()
    assert recalled(topic).rows() == log.producers.rows()


def test_who_owns_the_log_next_finds_by_a_footer_what_others_put(topic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean end: others wait for that. Where few puts, or an owner's own, are to be found, no segment ends."""
    monkeypatch.setattr(active_segment, "_MANY_OF_OTHERS", 10)
    log = open_log(topic)
    log.recall()
    for number in range(30):
        put(log, [b"%d" % number])
    log.close()
    sealed, producers = [], []
    for numbers in (range(1, 10), range(10, 13), range(13, 30)):
        log = open_log(topic)
        log.recall()
        sealed.append([segment.records for segment in log.segments if segment.sealed])
        for number in numbers:
            put_of(log, Origin(7, number), [b"other %d" % number])
        producers.append(log.producers.rows())
        log.close()
    assert sealed == [[], [39], [39]]
    with mock.patch.object(recovery, "examine_growing") as scan:
        log = open_log(topic)
    assert scan.call_count == 0
    assert [segment.records for segment in log.segments] == [39, 20, 0]
    with mock.patch.object(producer_table, "_places") as search:
        log.recall()
    assert search.call_count == 0
    assert log.producers.rows() == producers[-1]
    log.close()
    assert list(read_topic(topic).values()) == [b"%d" % n for n in range(30)] + [b"other %d" % n for n in range(1, 30)]
    assert is_whole(topic)


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_with_any_byte_wrong_in_the_frame_at_the_end_who_put_is_known_all_the_same(
    topic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int, seed: int
) -> None:
    monkeypatch.setattr(active_segment, "_MANY_OF_OTHERS", 10)
    log = open_log(topic)
    for number in range(1, 21):
        put_of(log, Origin(number % 2, number), [b"%d" % number])
    begin, rows = log.segments[-1].data_end, log.producers.rows()
    log.close()
    end = log.segments[-1].data_end
    assert end - begin == 40 + 40 * 20
    for position in range(begin + seed % stride, end, stride):
        other = tmp_path / str(position)
        copy(topic.parent, other)
        flip(segments(other / "t")[0], position, position % 8)
        assert sorted(recalled(other / "t").rows()) == sorted(rows)


@pytest.mark.parametrize("room", [400, 700])
def test_a_segment_ends_with_who_put_only_where_there_is_room(
    topic: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for both that frame and the footer."""
    monkeypatch.setattr(active_segment, "_MANY_OF_OTHERS", 10)
    log = open_log(topic)
    for number in range(1, 21):
        put_of(log, Origin(7, number), [b"%d" % number])
    rows, end = log.producers.rows(), log.segments[-1].data_end
    log.abandon()
    log = open_log(topic, segment_bytes=end + room)
    log.recall()
    log.close()
    assert (log.segments[-1].sealed, log.segments[-1].data_end) == (True, end)
    assert segments(topic)[0].stat().st_size <= end + room
    assert recalled(topic).rows() == rows


@pytest.mark.parametrize("killed", [False, True])
def test_whenever_the_power_is_cut_at_the_end_every_put_is_there_and_known(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, killed: bool
) -> None:
    """Cut while a log is being closed, also after it was closed in a life that was killed before it said so."""
    monkeypatch.setattr(active_segment, "_MANY_OF_OTHERS", 10)
    fs = SimulatedFileSystem()
    fs.make_directory("/s")
    log = open_log(Path("/s/t"), fs)
    for number in range(1, 21):
        put_of(log, Origin(number % 2, number), [b"%d" % number])
    rows = log.producers.rows()
    log.abandon()
    recorded = SimulatedFileSystem(fs.image(), record=True)
    closing = open_log(Path("/s/t"), recorded)
    closing.recall()
    closing.close()
    assert closing.segments[-1].sealed
    if killed:
        recorded = SimulatedFileSystem(recorded.image(), record=True)
        after = open_log(Path("/s/t"), recorded)
        after.recall()
        put_of(after, Origin(7, 1), [b"last"])
        after.close()
    states = list(recorded.power_cuts(seed, 4))
    for _, image in random.Random(seed).sample(states, min(len(states), 60)):
        log = open_log(Path("/s/t"), SimulatedFileSystem(image))
        log.recall()
        assert [row for row in log.producers.rows() if row.producer < 7] == rows
        found, damages = contents(log, log.fs)
        assert [found[offset] for offset in range(20)] == [b"%d" % number for number in range(1, 21)]
        assert damages == log.damages == []
        put_of(log, Origin(8, 1), [b"next"])
        log.close()


@pytest.mark.parametrize("taken", [0, 10, 60])
def test_where_a_footer_finds_no_room_at_the_end_the_segment_goes_on(
    topic: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    monkeypatch.setattr(active_segment, "_MANY_OF_OTHERS", 10)
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    for number in range(1, 21):
        put_of(log, Origin(7, number), [b"%d" % number])
    fs.fail(errno.ENOSPC, "write", short=taken, times=1)
    log.close()
    log = open_log(topic)
    assert [segment.sealed for segment in log.segments] == [False]
    log.recall()
    assert last(log.producers, 7) == 20
    put(log, [b"next"])
    log.close()
    assert list(read_topic(topic).values()) == [*(b"%d" % number for number in range(1, 21)), b"next"]


def test_what_retention_deletes_meanwhile_is_not_asked(topic: Path) -> None:
    log = open_log(topic)
    put_of(log, Origin(7, 1), [b"a"])
    log.close()
    log = open_log(topic)
    log.roll()  # by an owner who knows nobody
    placed = put_of(log, Origin(8, 1), [b"b"])
    log.close()
    log = open_log(topic)
    os.unlink(segments(topic)[0])
    log.recall()
    assert log.producers.find(Origin(7, 1)) is None
    assert log.producers.find(Origin(8, 1)) == placed
    log.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_only_the_last_puts_are_read_and_earlier_ones_where_one_of_them_is_damaged(
    topic: Path, monkeypatch: pytest.MonkeyPatch, seed: int, damaged: bool
) -> None:
    rng = random.Random(seed)
    log = open_log(topic)
    sequences, places = [0, 0, 0], []
    for _ in range(400):
        producer = rng.choice((0, 0, 0, 1, 1, 2))
        sequences[producer] += 1
        places.append(log.segments[-1].data_end)
        put_of(log, Origin(producer, sequences[producer]), [bytes(rng.randrange(200))], sync=False)
    log.close()
    if damaged:
        flip(Path(segments(topic)[0]), places[-rng.randint(2, 9)] + 40, 3)  # its sequence
    read: list[int] = []
    put_of_frame = producer_table._put_of

    def counted(*given: Any) -> Producer | None:
        read.append(len(read))
        return put_of_frame(*given)

    monkeypatch.setattr(producer_table, "_put_of", counted)
    latest = recalled(topic)
    assert (len(read) > 400) if damaged else (len(read) == 3 * MOST_PENDING)
    monkeypatch.setattr(producer_table, "_latest", list)
    everything = recalled(topic)
    assert latest.puts == everything.puts
    assert [len(puts) for puts in latest.puts.values()] == [MOST_PENDING] * 3
    assert last(latest, 0) == sequences[0] or damaged


def test_what_lies_across_two_chunks_is_found_once(topic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(topic)
    for number in range(100):
        put_of(log, Origin(7, number + 1), [bytes(number)], sync=False)
    log.close()
    whole = recalled(topic).puts
    for size in range(64, 400, 24):
        monkeypatch.setattr(producer_table, "_CHUNK", size)
        log = open_log(topic)
        segment = log.segments[0]
        with opened(log.fs, segment.path) as file:
            window = Window(file, segment.path, segment.data_end)
            found = [each.position for each in producer_table._places(window, segment) if each.producer is not None]
        log.close()
        assert len(found) == len(set(found)) == 100
        assert recalled(topic).puts == whole


def test_segments_that_were_taken_over_push_nobody_out(topic: Path) -> None:
    """A bulk writer's are one for each of its tasks at least, and none of them says who has put what before."""
    log = open_log(topic)
    placed = put_of(log, Origin(7, 1), [b"a"])
    store = str(topic.parent)
    writer = StagingWriter(log.fs, SystemClock(), store, "bulk", segment_bytes=400)
    for _ in range(10):
        writer.put("t", Columns([b"x" * 200]))
    staged = writer.finish()["t"]
    assert len(staged) == 10
    paths = [os.path.join(staging_directory(store, "bulk"), each.file) for each in staged]
    noted: list[int] = []
    log.adopt([(path, each.records) for path, each in zip(paths, staged, strict=True)], noted.append)
    assert (noted, log.end) == ([1], 11)
    log.close()
    assert recalled(topic).find(Origin(7, 1)) == placed
