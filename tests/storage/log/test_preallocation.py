"""Zeros ahead of a growing segment's end: who has them, what becomes of them, and what others take them for."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.errors import StorageError
from aiodq.storage.log import preallocation
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.segments.segment_files import written_end
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import messages, open_log, overwrite, put, put_each, reopened, segments
from tests.storage.stores import a_store

if TYPE_CHECKING:
    from aiodq.storage.log.topic_log import TopicLog

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "v1" / "ahead"
ENOUGH = [bytes([65 + number]) * 900 for number in range(7)]
"""More than the bytes from which on zeros are written."""


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def grown(topic: Path, fs: WatchedFileSystem | None = None, *, segment_bytes: int = 1 << 20) -> TopicLog:
    """Return a log that has zeros ahead."""
    log = open_log(topic, fs, segment_bytes=segment_bytes)
    put_each(log, ENOUGH)
    return log


def ahead(topic: Path, log: TopicLog) -> int:
    """Return how many bytes, all of them zeros, the last segment has behind its last frame."""
    rest = segments(topic)[-1].read_bytes()[log.segments[-1].data_end :]
    assert rest == bytes(len(rest))
    return len(rest)


def killed(topic: Path, name: str = "killed") -> Path:
    """Return a copy of what is there now."""
    return Path(shutil.copytree(topic, topic.with_name(name)))


def bodies_in(topic: Path) -> list[bytes]:
    """Return what the next owner finds."""
    return list(reopened(topic).values())


def test_a_topic_of_a_few_messages_has_none(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"x" * 100] * 5)
    assert ahead(topic, log) == 0
    log.close()


def test_what_is_synced_each_time_gets_as_many_zeros_as_it_has_bytes(topic: Path) -> None:
    log = open_log(topic)
    most = 0
    for _ in range(400):
        put(log, [b"x" * 900])
        assert log.segments[-1].size == log.segments[-1].data_end
        assert ahead(topic, log) <= log.segments[-1].data_end
        most = max(most, ahead(topic, log))
    assert 128 * 1024 < most <= 256 * 1024
    log.close()


@pytest.mark.parametrize("how", ["never synced", "large"])
def test_who_gains_nothing_has_none(topic: Path, how: str) -> None:
    log = open_log(topic)
    for _ in range(4):
        put(log, [b"x" * 70_000], sync=how == "large")
        assert ahead(topic, log) == 0
    log.close()


async def test_durable_puts_one_by_one_go_into_them(tmp_path: Path) -> None:
    async with aiodq.open_queue(tmp_path) as queue:
        for body in ENOUGH:
            await queue.put(body)
        file = next(tmp_path.rglob("*.seg"))
        while_open = file.read_bytes()
    written = file.stat().st_size
    assert while_open[written:] == bytes(len(while_open) - written) != b""


def test_they_go_when_the_log_is_closed(topic: Path) -> None:
    log = grown(topic)
    assert ahead(topic, log) > 4096
    log.close()
    assert ahead(topic, log) == 0


def test_they_go_with_the_seal_and_never_pass_the_segment_s_bound(topic: Path) -> None:
    log = open_log(topic, segment_bytes=20_000)
    while len(log.segments) < 3:
        put(log, [b"x" * 900])
        assert segments(topic)[-1].stat().st_size <= 20_000
    assert [path.stat().st_size for path in segments(topic)[:2]] == [each.size for each in log.segments[:2]]
    log.close()


def test_a_disk_without_room_for_them_takes_messages(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, ENOUGH[:4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preallocation, "_PAGE", 1)
        fs.fail(errno.ENOSPC, "write", at=2, match=".seg", short=500, times=1)
        assert put(log, [b"y" * 900]) == range(4, 5)
        assert ahead(topic, log) == 0
        writes = fs.calls["write"]
        put(log, [b"z" * 900])
    assert fs.calls["write"] == writes + 2, "it is tried again, or the watermark is not noted"
    log.close()
    assert bodies_in(topic) == [*ENOUGH[:4], b"y" * 900, b"z" * 900]


def test_they_take_a_hundredth_of_what_is_free_and_no_more(topic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preallocation, "free_space", lambda *_: 409_600)
    log = grown(topic)
    assert ahead(topic, log) == 0
    log.close()
    monkeypatch.setattr(preallocation, "free_space", lambda *_: 40_960_000)
    log = grown(topic)
    assert ahead(topic, log) > 0
    log.close()


def test_a_kill_leaves_them_and_the_next_owner_cuts_them_off_and_says_nothing(topic: Path) -> None:
    log = grown(topic)
    left = killed(topic)
    log.close()
    assert ahead(left, log) > 4096
    again = open_log(left)
    assert ahead(left, again) == 0
    assert (again.cut_bytes, again.damages) == (0, [])
    assert list(messages(again).values()) == ENOUGH
    put(again, [b"next"])
    again.close()
    assert bodies_in(left) == [*ENOUGH, b"next"]


def test_what_was_torn_among_them_is_told_and_cut_off(topic: Path) -> None:
    log = grown(topic)
    left = killed(topic)
    end = log.segments[-1].data_end
    log.close()
    overwrite(segments(left)[-1], end + 1000, b"torn")
    again = open_log(left)
    assert again.cut_bytes == 1008
    assert list(messages(again).values()) == ENOUGH
    assert segments(left)[-1].stat().st_size == end
    again.close()


def test_a_write_that_was_rolled_back_leaves_nothing_among_them(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = grown(topic, fs)
    fs.fail(errno.ENOSPC, "write", match=".seg", short=300, times=1)
    with pytest.raises(StorageError):
        put(log, [b"lost" * 200])
    log.rollback()
    put(log, [b"s"])
    left = killed(topic)
    log.close()
    assert bodies_in(left) == [*ENOUGH, b"s"]


def test_zeros_where_something_was_promised_are_damage(topic: Path) -> None:
    log = grown(topic)
    end = log.segments[-1].data_end
    log.close()
    overwrite(segments(topic)[-1], end - 936, bytes(936))
    again = open_log(topic)
    assert [(damage.position, damage.end) for damage in again.damages if damage.end] == [(end - 936, end)]
    assert again.lost == 1
    assert again.end == len(ENOUGH)
    again.close()


def test_zeros_at_the_end_of_a_full_segment_are_damage(tmp_path: Path) -> None:
    a_store(tmp_path / "store")
    log = open_log(tmp_path / "store" / "t")
    first = log.segments[0]
    log.close()
    overwrite(Path(first.path), first.data_end, bytes(first.size - first.data_end))
    findings = verify_store(str(tmp_path / "store"), WatchedFileSystem()).findings
    assert [(found.severity, found.position) for found in findings] == [("damage", first.data_end)]
    log = open_log(tmp_path / "store" / "t")
    assert [(damage.path, damage.position) for damage in log.damages] == [(first.path, first.data_end)]
    log.close()


@pytest.mark.parametrize("walk", [True, False])
def test_a_reader_beside_the_owner_sees_no_more_than_messages_and_reads_little(topic: Path, *, walk: bool) -> None:
    log = open_log(topic)
    put_each(log, [b"x" * 900] * 300)
    assert ahead(topic, log) > 64 * 1024
    fs = WatchedFileSystem()
    snapshot = LogSnapshot(fs, str(topic))
    snapshot.refresh(walk=walk)
    for number in range(301, 304):
        put(log, [b"y" * 900])
        before = fs.bytes_read
        snapshot.refresh(walk=walk)
        assert (snapshot.view.stop, snapshot.damages) == (number, [])
        assert snapshot.view.segments[-1].size == log.segments[-1].data_end
        assert fs.bytes_read - before < (5000 if walk else 600 * 1024)
    log.close()


def test_where_what_was_written_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data, end in (
        (b"h" * 64 + b"x" * 8, 72),
        (b"h" * 64 + b"x" * 5 + bytes(3), 72),
        (b"h" * 64 + b"x" * 9 + bytes(40_000), 80),
        (b"h" * 64 + bytes(40_000) + b"x" + bytes(16_383), 40_072),
        (b"h" * 64 + bytes(20_000), 64),
        (b"h" * 64, 64),
        (b"h" * 10, 10),
        (b"", 0),
        (b"h" * 64 + b"x" * 3, 67),
    ):
        path.write_bytes(data)
        file = WatchedFileSystem().open(str(path))
        assert written_end(file, str(path), len(data)) == end
        file.close()


def test_a_store_with_zeros_ahead_from_a_version_that_wrote_none(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    before = segments(store / "jobs")[0].stat().st_size
    report = verify_store(str(store), WatchedFileSystem())
    assert (report.ok, report.findings, report.records) == (True, (), 3)
    assert repair_store(str(store), WatchedFileSystem()) == []
    log = open_log(store / "jobs")
    assert list(messages(log).values()) == [b"one", b"two", b"three"]
    assert (log.cut_bytes, log.damages) == (0, [])
    assert segments(store / "jobs")[0].stat().st_size == before - 4096
    log.close()
