"""Two slots in turn: a write torn anywhere leaves the value before it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from aiodq.errors import StorageError, StoreFailedError
from aiodq.storage.state.watermark import (
    SLOT_FILE_BYTES,
    WatermarkFile,
    check_slots,
    noted_watermark,
    read_slot_file,
    read_slots,
)
from aiodq.testing import WatchedFileSystem

if TYPE_CHECKING:
    from pathlib import Path

SLOT = 36


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watermark"


def opened(path: Path, fs: WatchedFileSystem | None = None) -> WatermarkFile:
    return WatermarkFile(fs or WatchedFileSystem(), str(path))


def test_the_last_value_written_is_read(path: Path) -> None:
    slots = opened(path)
    assert slots.values == (0, 0)
    for number in (1, 5, 3, 2**63 - 1, 0, 7):
        slots.write(number, number // 2)
        assert slots.values == (number, number // 2)
        again = opened(path)
        assert again.values == (number, number // 2)
        again.close()
        assert read_slot_file(WatchedFileSystem(), str(path)) == (number, number // 2)
    slots.close()


def test_the_two_slots_take_turns_across_openings(path: Path) -> None:
    for number in range(1, 6):
        slots = opened(path)
        before = path.read_bytes()
        slots.write(number, 0)
        after = path.read_bytes()
        slots.close()
        changed = {at // 4096 for at in range(SLOT_FILE_BYTES) if before[at] != after[at]}
        assert changed == {number % 2}


def test_the_file_has_its_size_before_it_is_needed(path: Path) -> None:
    fs = WatchedFileSystem()
    opened(path, fs).close()
    assert path.stat().st_size == SLOT_FILE_BYTES == fs.synced[str(path)]


@pytest.mark.parametrize("size", [0, 1, 35, 36, 4096, 4131, 8191])
def test_a_file_cut_short_is_made_whole(path: Path, size: int) -> None:
    slots = opened(path)
    slots.write(5, 0)
    slots.write(6, 0)
    slots.close()
    path.write_bytes(path.read_bytes()[:size])
    slots = opened(path)
    assert slots.values == ((6, 0) if size >= SLOT else (0, 0))
    slots.write(9, 0)
    slots.close()
    assert path.stat().st_size == SLOT_FILE_BYTES
    assert read_slot_file(WatchedFileSystem(), str(path)) == (9, 0)


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_write_torn_anywhere_leaves_the_value_before(path: Path, writes: int) -> None:
    slots = opened(path)
    for number in range(1, writes + 1):
        slots.write(number * 1000, 7)
    old = path.read_bytes()
    slots.write(999_999, 7)
    new = path.read_bytes()
    slots.close()
    at = next(at for at in range(SLOT_FILE_BYTES) if old[at] != new[at]) // 4096 * 4096
    for cut in range(SLOT):
        for torn in (
            old[: at + cut] + new[at + cut :],
            new[: at + cut] + old[at + cut :],
            new[:at] + b"\xee" * cut + new[at + cut :],
        ):
            assert read_slots(torn)[1] in {999_999, writes * 1000}
            if torn not in (old, new):
                assert read_slots(torn)[1:] == (writes * 1000, 7)


def test_every_flipped_bit_leaves_the_other_slot(path: Path) -> None:
    slots = opened(path)
    slots.write(1, 0)
    slots.write(2, 0)
    slots.close()
    data = path.read_bytes()
    for at in (*range(SLOT), *range(4096, 4096 + SLOT)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert read_slots(bytes(flipped))[1:] == ((1, 0) if at < 4096 else (2, 0))


def test_a_foreign_watermark_promises_nothing() -> None:
    assert noted_watermark((5, 77), 77) == 5
    assert noted_watermark((5, 0), 77) == 5
    assert noted_watermark((5, 78), 77) == 0


def test_what_is_to_be_said_about_a_slot_file(path: Path) -> None:
    slots = opened(path)
    assert [(kind, at) for kind, at, _ in check_slots(path.read_bytes())] == [("note", 0)]
    slots.write(1, 0)
    slots.write(2, 0)
    slots.close()
    data = path.read_bytes()
    assert check_slots(data) == []
    assert [(kind, at) for kind, at, _ in check_slots(b"x" + data[1:])] == [("note", 0)]
    assert [(kind, at) for kind, at, _ in check_slots(b"\xff" * SLOT_FILE_BYTES)] == [("damage", 0)]
    assert [kind for kind, _, _ in check_slots(None)] == ["note"]
    assert [(kind, at) for kind, at, _ in check_slots(b"")] == [("note", 0)]


def test_a_first_write_that_was_cut_off_is_no_damage(path: Path) -> None:
    watermark = opened(path)
    blank = path.read_bytes()
    watermark.write(5, 7)
    watermark.close()
    whole = path.read_bytes()
    slot = whole.rstrip(b"\0")
    for length in range(len(blank) // 2, len(slot)):
        cut = slot[:length].ljust(len(blank), b"\0")
        assert {kind for kind, _, _ in check_slots(cut)} <= {"note"}, length
    later = whole[:4096] + whole[4096:].replace(b"\1", b"\2", 1)
    assert [kind for kind, _, _ in check_slots(later)] == ["damage"], "another write came before it"


@pytest.mark.parametrize("kind", ["open", "create", "read", "write", "size", "sync"])
def test_a_system_that_refuses_leaves_nothing_open(path: Path, kind: str) -> None:
    for there in (False, True):
        fs = WatchedFileSystem()
        if there:
            path.write_bytes(b"")
        fault = fs.fail(errno.EIO, kind, times=1)
        try:
            opened(path, fs).close()
        except (StorageError, StoreFailedError):
            assert fault.hits
        assert fs.open_files == 0
        path.unlink(missing_ok=True)


def test_a_write_that_fails_leaves_the_value_before(path: Path) -> None:
    fs = WatchedFileSystem()
    slots = opened(path, fs)
    slots.write(1, 0)
    fs.fail(errno.EIO, "write", short=20, times=1)
    with pytest.raises(StorageError):
        slots.write(2, 0)
    assert read_slot_file(fs, str(path)) == (1, 0)
    slots.write(3, 0)
    assert read_slot_file(fs, str(path)) == (3, 0)
    fs.fail(errno.EIO, "sync", times=1)
    with pytest.raises(StoreFailedError):
        slots.sync()
    slots.close()


def test_no_file_is_zero(path: Path) -> None:
    assert read_slot_file(WatchedFileSystem(), str(path)) == (0, 0)
