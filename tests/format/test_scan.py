"""Frames found behind damage and backward from the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format.columns import Columns
from aiodq.format.layout import ALIGNMENT
from aiodq.format.scan import candidate_frames, frame_before
from tests.format.support import (
    CONTEXT,
    HOSTILE,
    OTHER,
    START,
    Put,
    control_frame,
    encode_puts,
    first_frame,
    flipped,
    mixed_stream,
    patched,
    puts_strategy,
    walk,
)

MIXED = mixed_stream()


def find(data: bytes, start: int = 0, limit: int | None = None) -> int | None:
    """Return where in `data` the first right frame is."""
    limit = START + len(data) if limit is None else limit
    frame = first_frame(data, start, CONTEXT, position=START, limit=limit)
    return None if frame is None else frame.position - START


def back(data: bytes, at: int) -> tuple[int, int]:
    """Return position and length of the frame that ends at `data[at]`."""
    frame = frame_before(data, at, CONTEXT, position=START, limit=START + len(data))
    return frame.position - START, frame.length


@pytest.mark.parametrize("size", [0, 8, 40, 4096])
def test_a_frame_is_found_behind_zeros(size: int) -> None:
    assert find(bytes(size) + MIXED.data) == size


@pytest.mark.parametrize("kind", range(0xB0, 0x100))
def test_a_frame_is_found_behind_bytes_that_look_like_its_kind(kind: int) -> None:
    junk = bytes([kind, 0]) * 64
    assert find(junk + MIXED.frames[6]) == len(junk)


def test_a_frame_is_found_behind_junk(seed: int) -> None:
    junk = random.Random(seed).randbytes(64 * 1024)
    assert find(junk + MIXED.data) == len(junk)


@pytest.mark.parametrize("number", range(len(MIXED.frames)))
def test_every_frame_of_the_stream_is_found(number: int) -> None:
    begin, end = MIXED.positions[number : number + 2]
    assert find(MIXED.data, begin) == begin
    assert find(MIXED.data[:end], begin + ALIGNMENT) is None


@pytest.mark.parametrize("number", range(len(MIXED.frames) - 1))
def test_behind_a_frame_with_a_wrong_bit_the_next_is_found(number: int) -> None:
    begin, end = MIXED.positions[number : number + 2]
    for bit in range(begin * 8, end * 8, 5):
        assert find(flipped(MIXED.data, bit), begin) == end


@pytest.mark.parametrize("off", range(1, ALIGNMENT))
def test_a_frame_is_only_found_where_it_may_be(off: int) -> None:
    frame = MIXED.frames[0]
    assert find(bytes(off) + frame + bytes(ALIGNMENT)) is None
    found = first_frame(bytes(off) + frame, 0, CONTEXT, position=START + ALIGNMENT - off, limit=2**40)
    assert found is not None
    assert found.position == START + ALIGNMENT


def test_a_frame_that_the_data_does_not_hold_whole_is_not_found() -> None:
    frame = MIXED.frames[6]
    for cut in range(len(frame)):
        assert find(frame[:cut], limit=2**40) is None


def test_a_frame_beyond_the_limit_is_not_found() -> None:
    frame = MIXED.frames[6]
    assert find(frame + MIXED.data, START, limit=START + len(frame) + 8) is None


@given(puts_strategy, st.binary(max_size=16))
def test_frames_of_another_salt_in_a_body_are_not_found(puts: list[Put], lead: bytes) -> None:
    inner = encode_puts(puts, OTHER).data
    stream = encode_puts([Put(Columns([aligned(lead, 28) + inner])), Put(Columns([b"next"]))])
    assert inner in stream.data
    outer = stream.positions[1]
    assert find(flipped(stream.data, 0)) == outer
    assert find(stream.data, ALIGNMENT) == outer


def test_only_the_salt_tells_frames_in_a_body_apart() -> None:
    stream = encode_puts([Put(Columns([aligned(b"", 28) + MIXED.data])), Put(Columns([b"next"]))])
    assert find(stream.data, ALIGNMENT) == 32


def aligned(lead: bytes, at: int) -> bytes:
    """Return `lead` padded so that what follows it begins at a multiple of 8, being `at` bytes into a frame itself."""
    return lead + bytes(-(at + len(lead)) % ALIGNMENT)


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_the_same_bytes_never_have_one_checksum_under_two_salts(data: bytes, one: int, two: int) -> None:
    assert (CONTEXT.checksum(data, one) == CONTEXT.checksum(data, two)) == (one == two)


def test_an_unknown_control_frame_is_found() -> None:
    data = bytes(8) + control_frame(kind=0xEF, body=bytes(8))
    assert find(data) == 8


def test_candidates_have_a_frames_shape_and_no_more() -> None:
    wrong_crc = patched(MIXED.frames[0], 4, bytes(4))
    wrong_length = patched(MIXED.frames[0], 0, b"\x09")
    data = wrong_length + wrong_crc + MIXED.frames[6]
    found = candidate_frames(data, CONTEXT, position=START, limit=START + len(data))
    assert [frame.position - START for frame in found] == [len(wrong_length), len(wrong_length) + len(wrong_crc)]


@given(puts_strategy)
def test_backward_gives_the_frames_of_forward(puts: list[Put]) -> None:
    data = encode_puts(puts).data
    frames = []
    at = len(data)
    while at:
        frames.append(frame_before(data, at, CONTEXT, position=START, limit=START + len(data)))
        at -= frames[-1].length
    assert frames[::-1] == walk(data)


def test_backward_over_every_kind_of_frame() -> None:
    at = len(MIXED.data)
    for begin in MIXED.positions[-2::-1]:
        assert back(MIXED.data, at) == (begin, at - begin)
        at = begin


def test_backward_from_a_hostile_length() -> None:
    size = len(MIXED.data)
    for length in {*HOSTILE, size, size - 8, size + 8} - {len(MIXED.frames[-1])}:
        data = MIXED.data[:-4] + length.to_bytes(4, "little")
        with pytest.raises(CorruptionError):
            back(data, size)


def test_backward_from_a_length_that_wraps_around() -> None:
    prefix = MIXED.frames[0][:28].replace(MIXED.frames[0][:4], (80).to_bytes(4, "little"))
    data = bytes(36) + (80).to_bytes(4, "little") + prefix + bytes(12)
    with pytest.raises(CorruptionError, match="does not fit before"):
        back(data, 40)


def test_backward_from_where_no_frame_ends() -> None:
    for at in range(len(MIXED.data)):
        if at not in MIXED.positions:
            with pytest.raises(CorruptionError):
                back(MIXED.data, at)


def test_backward_from_the_start() -> None:
    with pytest.raises(CorruptionError, match="no frame ends here"):
        back(MIXED.data, 0)


def test_backward_where_the_two_lengths_differ() -> None:
    frame = MIXED.frames[0]
    other = (len(frame) - 8).to_bytes(4, "little")
    with pytest.raises(CorruptionError, match="two lengths differ"):
        back(patched(MIXED.data, 0, (len(frame) + 8).to_bytes(4, "little")), len(frame))
    with pytest.raises(CorruptionError):
        back(patched(MIXED.data, len(frame) - 4, other), len(frame))


def test_backward_from_data_that_does_not_hold_the_frame() -> None:
    frame = MIXED.frames[6]
    for begin in range(1, len(frame)):
        part = frame[begin:]
        with pytest.raises(CorruptionError):
            frame_before(part, len(part), CONTEXT, position=START + begin, limit=2**40)
