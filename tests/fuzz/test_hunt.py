"""Looking for frames behind damage, in bytes that somebody chose: what only looks like frames is read a few times."""

from __future__ import annotations

import struct
import zlib
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from aiodq.format.checksum import crc32_of_range
from aiodq.format.columns import Columns
from aiodq.format.frame import encode_frames
from aiodq.format.segment import SegmentHeader
from aiodq.storage.log.recovery import recover
from aiodq.storage.segments import frame_scan as scan
from aiodq.storage.segments.frame_scan import Bad, Unit, scan_units
from aiodq.testing import SimulatedFileSystem, WatchedFileSystem
from tests.fuzz.mend import SALT
from tests.fuzz.targets import BASE, CONTEXT, START, TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KIB = 1024


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_the_checksum_of_a_stretch_is_known_from_those_of_its_ends(before: bytes, stretch: bytes, start: int) -> None:
    sums = zlib.crc32(before), zlib.crc32(before + stretch)
    assert crc32_of_range(*sums, len(stretch), start) == zlib.crc32(stretch, start)


def like_frames(size: int) -> bytes:
    """Return a message in which a frame seems to begin at every sixteenth byte, half as long as the message."""
    length = struct.pack("<I", size // 2 & ~15)
    return bytes(4) + (length + bytes(4) + b"\xc5\0\0\0" + length) * (size // 16)


def frame(body: bytes, number: int) -> bytes:
    (encoded,) = encode_frames(Columns([body]), CONTEXT, first=BASE + number, watermark=BASE, time_ns=1)
    return encoded


def test_a_torn_message_full_of_what_looks_like_frames_is_cut_at_a_price(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE:020d}.seg"
    whole = frame(b"whole", 0)
    path.write_bytes(SegmentHeader(BASE, TOPIC, 1, SALT).encode() + whole + frame(like_frames(256 * KIB), 1)[:-8])
    fs = WatchedFileSystem()
    found = recover(fs, str(tmp_path), TOPIC, 0)
    assert found.segments[0].end == BASE + 1
    # Sixteen thousand times half the message would be two GiB.
    assert fs.bytes_read < 200 * KIB * KIB


def items(data: bytes) -> list[Unit | Bad]:
    fs = SimulatedFileSystem({"/s": bytes(START) + data})
    return list(scan_units(fs.open("/s"), CONTEXT, "/s", limit=START + len(data), expected=BASE))


def test_what_is_found_behind_damage_is_the_same_with_and_without_patience(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    for _ in range(30):
        bodies = [rng.choice((like_frames(4 * KIB), rng.randbytes(rng.randrange(9_000)), b"")) for _ in range(6)]
        data = bytearray(b"".join(frame(body, number) for number, body in enumerate(bodies)))
        for _ in range(3):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        patient = items(bytes(data))
        with monkeypatch.context() as patch:
            patch.setattr(scan, "_BYTES_BEFORE_RUNNING_SUMS", -1)
            assert items(bytes(data)) == patient
