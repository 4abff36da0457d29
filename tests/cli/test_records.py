from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.cli import records
from aiodq.cli.exits import CommandError
from aiodq.cli.records import BadLineError, LineCutter, WholeCutter, check_json, in_batches

CHUNKS = st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\n\n", b"a\n", b""]), max_size=12)


def cut(cutter: LineCutter | WholeCutter, chunks: list[bytes]) -> list[bytes]:
    return [*chain.from_iterable(map(cutter.feed, chunks)), *cutter.finish()]


@given(CHUNKS)
def test_lines_do_not_depend_on_where_the_input_was_cut(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert cut(LineCutter("x", 1000), chunks) == expected


@given(CHUNKS)
def test_a_whole_file_is_one_record(chunks: list[bytes]) -> None:
    assert cut(WholeCutter("x", 1000), chunks) == [b"".join(chunks)]


@pytest.mark.parametrize(
    ("chunks", "number", "before"),
    [
        ([b"123456"], 1, []),
        ([b"123", b"456"], 1, []),
        ([b"123", b"456\n"], 1, []),
        ([b"1\n2\n123456\n4\n"], 3, [b"1", b"2"]),
        ([b"1\n2\n123456"], 3, [b"1", b"2"]),
        ([b"1\n2\n123", b"456"], 3, []),
    ],
)
def test_a_line_that_is_too_long_is_named(chunks: list[bytes], number: int, before: list[bytes]) -> None:
    with pytest.raises(BadLineError, match=f"^line {number} of x is longer than 5 bytes") as caught:
        cut(LineCutter("x", 5), chunks)
    assert caught.value.before == before
    assert caught.value.code == 1


def test_a_line_of_just_the_longest_length_is_taken() -> None:
    assert cut(LineCutter("x", 5), [b"12345\n123", b"45"]) == [b"12345", b"12345"]


def test_a_file_that_is_too_long_is_refused_before_all_of_it_is_read() -> None:
    cutter = WholeCutter("x", 5)
    cutter.feed(b"123")
    with pytest.raises(CommandError, match="longer than 5"):
        cutter.feed(b"456")


@pytest.mark.parametrize(
    "line",
    [b"{}", b'  [1, 2.5e300, "\\u00e4"] ', b"null", b"9" * 5000, b"1" + b"0" * 400 + b".5", '"ä"'.encode(), b"1\r"],
)
def test_what_is_json(line: bytes) -> None:
    assert check_json(line) == ""


@pytest.mark.parametrize(
    "line", [b"", b" ", b"{", b"{'a': 1}", b"NaN", b"[Infinity]", b'"\xff"', b"1 2", b"[" * 100_000, b"\xff\xfe1\x00"]
)
def test_what_is_no_json(line: bytes) -> None:
    assert "JSON" in check_json(line)


@given(st.lists(st.binary(max_size=8), max_size=40))
def test_batches_are_bounded_and_lose_nothing(lines: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_BATCH_MESSAGES", 5)
        patch.setattr(records, "_BATCH_BYTES", 12)
        batches = list(in_batches(lines))
    assert [line for batch in batches for line in batch] == lines
    assert all(0 < len(batch) <= 5 for batch in batches)
    assert all(len(batch) == 1 or sum(map(len, batch)) <= 12 for batch in batches)
