"""What a log goes on with when it is opened: what was promised, what is missing, and the next offset."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.state.watermark import SLOT_FILE_BYTES, WATERMARK, WatermarkFile
from aiodq.testing import WatchedFileSystem
from tests.storage.log.conftest import ALL, SMALL, note
from tests.storage.logs import contents, messages, open_log, put, put_each, read_topic, reopened, segments, set_aside

# --- the watermark never outranks the segments


@pytest.mark.parametrize("noted", [None, b"", b"\0" * 8192, b"\xff" * 8192, b"AIODQWM1" * 1024, b"short"])
def test_without_a_watermark_everything_is_there(synced: Path, noted: bytes | None) -> None:
    (synced / WATERMARK).unlink()
    if noted is not None:
        (synced / WATERMARK).write_bytes(noted)
    assert read_topic(synced) == dict(enumerate(ALL))
    log = open_log(synced)
    assert (messages(log), log.damages, log.end) == (dict(enumerate(ALL)), [], len(ALL))
    junk = [noted.ljust(SLOT_FILE_BYTES, b"\0")] if noted and any(noted) else []
    assert [copied.read_bytes() for copied in set_aside(synced)] == junk
    put(log, [b"next"])
    log.abandon()
    assert list(reopened(synced).values()) == [*ALL, b"next"]


def test_another_topic_s_watermark_promises_nothing_and_is_set_aside(synced: Path) -> None:
    slots = WatermarkFile(WatchedFileSystem(), str(synced / WATERMARK))
    slots.write(1000, 12345)
    slots.close()
    theirs = (synced / WATERMARK).read_bytes()
    assert TopicReader(WatchedFileSystem(), str(synced), "t").damages == ()
    log = open_log(synced)
    assert [damage.path for damage in log.damages] == [str(synced / WATERMARK)]
    assert [copied.read_bytes() for copied in set_aside(synced)] == [theirs]
    assert put(log, [b"next"]).start == len(ALL)
    log.abandon()
    log = open_log(synced)
    assert (messages(log), log.damages) == (dict(enumerate([*ALL, b"next"])), [])
    log.abandon()


def test_a_watermark_behind_the_data_costs_nothing(synced: Path) -> None:
    note(synced, 2)
    assert reopened(synced) == dict(enumerate(ALL))


def test_a_watermark_ahead_of_the_data_is_a_reported_loss_and_no_offset_is_given_again(synced: Path) -> None:
    note(synced, 1000)
    log = open_log(synced)
    assert [(damage.first, damage.stop) for damage in log.damages] == [(len(ALL), 1000)]
    assert contents(log)[0] == dict(enumerate(ALL))
    assert put(log, [b"next"]).start == 1000
    log.abandon()
    assert reopened(synced) == {**dict(enumerate(ALL)), 1000: b"next"}


# --- what is not there


def test_a_missing_middle_segment_is_reported_then_skipped(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t", segment_bytes=300)
    put_each(log, [bytes([n]) * 40 for n in range(20)])
    log.close()
    middle = log.segments[2]
    Path(middle.path).unlink()
    expected = [offset for offset in range(20) if not middle.base <= offset < middle.end]
    assert list(read_topic(tmp_path / "t")) == expected
    for _ in range(3):
        log = open_log(tmp_path / "t", segment_bytes=300)
        assert [(damage.first, damage.stop) for damage in log.damages] == [(middle.base, middle.end)]
        found, damages = contents(log)
        assert list(found) == expected
        assert [(damage.first, damage.stop) for damage in damages] == [(middle.base, middle.end)]
        log.close()
    assert set_aside(tmp_path / "t") == []


def test_numbers_that_were_purged_are_not_given_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, SMALL, sync=False)
    log.description.give_up(len(SMALL))
    log.abandon()
    # None of it was ever synced but that it is given up.
    os.truncate(segments(tmp_path / "t")[-1], SEGMENT_HEADER.size)
    log = open_log(tmp_path / "t")
    assert (log.damages, log.begin) == ([], len(SMALL))
    assert put(log, [b"next"]).start == len(SMALL)
    log.abandon()
    assert reopened(tmp_path / "t") == {len(SMALL): b"next"}


def test_temporaries_are_swept(synced: Path) -> None:
    for name in ("topic.json", "a", "00000000000000000000.seg.damaged-000000000000"):
        (synced / f"{name}{TEMPORARY}").write_bytes(b"half")
    (synced / f"directory{TEMPORARY}").mkdir()
    assert reopened(synced) == dict(enumerate(ALL))
    assert [path.name for path in synced.iterdir() if path.name.endswith(TEMPORARY)] == [f"directory{TEMPORARY}"]
