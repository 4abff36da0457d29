"""What is put one by one is in the log, its segments and their indices just as what is staged."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from aiodq.errors import DiskFullError
from aiodq.format.columns import Columns
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.segments.segment_contents import examine
from aiodq.storage.segments.segment_files import load_index
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import SECOND, START, messages, open_log, put, read_topic, reopened

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.storage.log.topic_log import TopicLog


def put_one(log: TopicLog, body: bytes, time_ns: int) -> None:
    """Put at once, or the long way where that has to be."""
    if log.append(body, time_ns) < 0:
        put(log, [body], time_ns=time_ns, sync=False)


def put_labelled(log: TopicLog, columns: Columns, time_ns: int) -> None:
    """Do as `put_one` for a message with more than a body."""
    if log.append(columns.bodies[0], time_ns, labelled=columns) >= 0:
        return
    if log.stage(columns, time_ns, atomic=False) is None:
        log.roll()
        assert log.stage(columns, time_ns, atomic=False) is not None
    log.flush()
    log.commit()


def labelled(rng: random.Random, body: bytes) -> Columns:
    """Return a message with some of what a message may have besides its body."""
    columns = Columns([body], tags=[rng.choice(("a", "ä", None))])
    if rng.random() < 0.4:
        columns.keys = [rng.choice((b"", b"key", None))]
    if rng.random() < 0.2:
        columns.headers = [rng.choice(({}, {"a": "b", "c": "d"}))]
    if rng.random() < 0.1:
        columns.dues, columns.expiries = [START], [START + SECOND]
    return columns


def check_indices(log: TopicLog, fs: WatchedFileSystem) -> None:
    """Compare what each sealed segment says of itself with what is in it."""
    for segment in log.segments:
        if not segment.sealed:
            continue
        file = fs.open(segment.path)
        found = examine(file, segment.context, segment.path, limit=segment.data_end, durable_end=segment.end)
        assert load_index(file, segment) == found.index
        assert (segment.records, segment.raw_bytes) == (found.records, found.index.raw_bytes)
        assert segment.flags == found.index.flags
        assert (segment.oldest_ns, segment.newest_ns) == (found.index.oldest_ns, found.index.newest_ns)
        file.close()


@pytest.mark.parametrize("segment_bytes", [700, 10_000, 60_000])
def test_indices_say_what_is_there(tmp_path: Path, segment_bytes: int, seed: int) -> None:
    fs, rng = WatchedFileSystem(), random.Random(seed)
    log = open_log(tmp_path / "t", fs, segment_bytes=segment_bytes)
    said: list[bytes] = []
    now = START
    for number in range(1500):
        now += rng.choice((0, 1, 5, SECOND, -SECOND, -3))
        body = b"%d" % number + b"." * rng.choice((0, 7, 50, 300, 1500))
        if rng.random() < 0.6:
            put_one(log, body, now)
            said.append(body)
        elif rng.random() < 0.8:
            put_labelled(log, labelled(rng, body), now)
            said.append(body)
        else:
            more = [body, *(b"%d" % each for each in range(rng.randrange(40)))]
            put(log, more, time_ns=now, sync=rng.random() < 0.2)
            said += more
        if rng.random() < 0.01:
            log.roll()
    assert list(messages(log).values()) == said
    log.roll()
    check_indices(log, fs)
    log.close()
    assert list(read_topic(tmp_path / "t").values()) == said


def test_no_segment_is_larger_than_it_may_be(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path / "t", segment_bytes=9000)
    for number in range(2000):
        put_one(log, b"." * rng.randrange(200), START + number)
    sizes = [segment.size for segment in log.segments if segment.sealed]
    assert max(sizes) <= 9000
    assert min(sizes) > 9000 - 400
    log.close()


def test_another_limit_holds_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t", segment_bytes=1 << 20)
    for number in range(50):
        assert log.append(b"." * 100, START + number) == number
    log.options = type(log.options)(5000)
    assert log.append(b"." * 100, START) == -1
    log.options = type(log.options)(1 << 20)
    assert log.append(b"." * 100, START) == 50
    log.close()


def test_the_newest_are_found_by_their_time_while_the_segment_grows(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    reader = LogReader(WatchedFileSystem())
    for number in range(100):
        assert log.append(b"%d" % number, START + number * SECOND) == number
        assert reader.offset_at(log.view(), START + number * SECOND) == number
        assert reader.offset_at(log.view(), START + number * SECOND + 1) == number + 1
    reader.close()
    log.close()


@pytest.mark.parametrize("taken", [0, 3])
def test_after_a_write_that_failed_what_follows_is_whole(tmp_path: Path, taken: int) -> None:
    fs = WatchedFileSystem()
    log = open_log(tmp_path / "t", fs)
    assert log.append(b"first", START) == 0
    if taken:
        fs.fail(None, "write", match=".seg", times=1, short=taken)
    fs.fail(errno.ENOSPC, "write", match=".seg", times=1, at=2 if taken else 1)
    with pytest.raises(DiskFullError):
        log.append(b"lost", START)
    # Before anything is cut off, nothing goes the short way.
    assert log.append(b"x", START) == -1
    fs.fail(errno.EIO, "truncate", times=1)
    log.rollback()
    assert log.append(b"x", START) == -1
    put(log, [b"second"], time_ns=START)
    assert log.append(b"third", START) == 2
    assert list(messages(log).values()) == [b"first", b"second", b"third"]
    log.roll()
    check_indices(log, fs)
    log.close()
    assert list(reopened(tmp_path / "t").values()) == [b"first", b"second", b"third"]


def test_nothing_overtakes_what_is_staged(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    assert log.append(b"first", START) == 0
    assert log.stage(Columns([b"second", b"third"]), START, atomic=True) == (1, 3)
    assert log.append(b"fourth", START) == -1
    log.flush()
    log.commit()
    assert log.append(b"fourth", START) == 3
    assert list(messages(log).values()) == [b"first", b"second", b"third", b"fourth"]
    log.close()
