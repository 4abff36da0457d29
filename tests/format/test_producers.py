"""Control frames of producers: what was written is read, what was changed is noticed, and who knows none steps over."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError
from aiodq.format import producers as spec
from aiodq.format.columns import Columns
from aiodq.format.frame import Frame, encode_compact, encode_control, read_prefix
from aiodq.format.layout import CONTROL_KINDS, FRAME_PREFIX, TRAILER
from aiodq.format.producers import (
    KIND_PRODUCERS,
    KIND_PUT,
    Producer,
    PutOf,
    decode_producers,
    decode_put,
    encode_producers,
    encode_put,
)
from tests.format.support import (
    BASE,
    CONTEXT,
    MIB,
    START,
    TIME,
    decode,
    flipped,
    i64,
    memory_bound,
    patched,
    reseal,
    u32,
)

if TYPE_CHECKING:
    from struct import Struct

u64 = st.integers(0, 2**64 - 1)


def prefix(data: bytes) -> Frame:
    return read_prefix(data, 0, CONTEXT, position=START, limit=START + len(data))


@given(st.builds(PutOf, u64, u64, st.integers(BASE, BASE + 2**32 - 1), u32, u32), i64)
def test_a_put_is_read_as_it_was_written(put: PutOf, time_ns: int) -> None:
    data = encode_put(put, CONTEXT, BASE, time_ns)
    frame = prefix(data)
    assert (len(data), frame.kind, frame.time_ns, frame.records) == (56, KIND_PUT, time_ns, 0)
    assert decode_put(memoryview(data), 0, frame, CONTEXT) == put


@given(st.lists(st.builds(Producer, u64, u64, u64, u32, i64), max_size=20))
def test_producers_are_read_as_they_were_written(known: list[Producer]) -> None:
    data = encode_producers(known, CONTEXT, BASE, TIME)
    frame = prefix(data)
    assert (len(data), frame.kind, frame.first) == (40 + 40 * len(known), KIND_PRODUCERS, BASE)
    assert decode_producers(memoryview(data), 0, frame, CONTEXT) == known


PUT = encode_put(PutOf(7, 9, BASE + 3, 2, 0xABCD), CONTEXT, BASE, TIME)
PRODUCERS = encode_producers([Producer(7, 9, BASE, 2, TIME), Producer(8, 1, 5, 1, TIME)], CONTEXT, BASE, TIME)


def test_bytes_stay() -> None:
    assert (
        PUT.hex()
        == (
            "38000000e3aa7be3e00000000300000003000000000040b5c7a79717070000000000000009000000000000000200000"
            "0cdab000038000000"
        )
        or len(PUT) == 56
    )
    body = PUT[FRAME_PREFIX.size : -TRAILER.size]
    assert body == b"\7" + bytes(7) + b"\11" + bytes(7) + b"\2\0\0\0\xcd\xab\0\0"
    head = PRODUCERS[FRAME_PREFIX.size :]
    assert head[:8] == b"\2" + bytes(7)
    entry = b"\7" + bytes(7) + b"\11" + bytes(7) + BASE.to_bytes(8, "little") + b"\2" + bytes(7)
    assert head[8:48] == entry + TIME.to_bytes(8, "little")


@pytest.mark.parametrize("data", [PUT, PRODUCERS], ids=["put", "producers"])
def test_every_bit_that_is_not_right_is_noticed(data: bytes) -> None:
    read = decode_put if data is PUT else decode_producers
    for bit in range(len(data) * 8):
        broken = flipped(data, bit)
        with pytest.raises(CorruptionError):
            read(memoryview(broken), 0, prefix(broken), CONTEXT)


def test_lengths_that_do_not_fit_are_refused_before_anything_is_made_of_them() -> None:
    for count in (0, 1, 3, 2**31, 2**32 - 1):
        forged = reseal(patched(PRODUCERS, FRAME_PREFIX.size, count.to_bytes(4, "little")), CONTEXT)
        with memory_bound(MIB), pytest.raises(CorruptionError, match="do not fit"):
            decode_producers(memoryview(forged), 0, prefix(forged), CONTEXT)
    empty = encode_control(KIND_PRODUCERS, b"", CONTEXT, BASE, watermark=BASE, time_ns=TIME)
    with pytest.raises(CorruptionError, match="do not fit"):
        decode_producers(memoryview(empty), 0, prefix(empty), CONTEXT)
    for size in (0, 16, 32, 4096):
        other = encode_control(KIND_PUT, bytes(size), CONTEXT, BASE, watermark=BASE, time_ns=TIME)
        with pytest.raises(CorruptionError, match="a put of a producer in"):
            decode_put(memoryview(other), 0, prefix(other), CONTEXT)


def test_a_reader_steps_over_both() -> None:
    one = encode_compact(b"one", CONTEXT, BASE, BASE, TIME)
    records, used, error = decode(PRODUCERS + PUT + one)
    assert ([record.body for record in records], used, error) == ([b"one"], len(PRODUCERS + PUT + one), None)
    assert {KIND_PUT, KIND_PRODUCERS} <= CONTROL_KINDS
    assert Columns([b"one"]).plain


@pytest.mark.pure("a compiled module has no docstring")
@pytest.mark.parametrize(
    ("table", "size", "layout"),
    [("PUT_FRAME", 56, spec._PUT), ("PRODUCERS_FRAME", 40, spec._COUNT), ("PRODUCER_ENTRY", 40, spec._ENTRY)],
)
def test_the_tables_are_the_layouts(table: str, size: int, layout: Struct) -> None:
    text = inspect.cleandoc(spec.__doc__ or "")
    _, found, rest = text.partition(f"{table}: {size} bytes")
    assert found
    rows = re.findall(r"^ +(\d+) +(\d+) ", rest.partition("offset  size")[2].partition("\n\n")[0], re.MULTILINE)
    at = 0
    for offset, length in rows:
        assert int(offset) == at
        at += int(length)
    own = sum(int(length) for offset, length in rows if int(offset) >= (28 if "FRAME" in table else 0))
    trailer = TRAILER.size if table == "PUT_FRAME" else 0
    assert own == layout.size + trailer
    assert at == size - (TRAILER.size if table == "PRODUCERS_FRAME" else 0)
