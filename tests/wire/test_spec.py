"""The protocol's specification is the docstring of `aiodq.wire`; its tables are held against the code here."""

from __future__ import annotations

import inspect
import re
import struct

import pytest

import aiodq.wire as spec
from aiodq.wire import layout
from aiodq.wire.layout import Op
from aiodq.wire.packets import PACKETS

TEXT = inspect.cleandoc(spec.__doc__ or "")
STRUCTS = {
    "PACKET": layout.PACKET,
    "HELLO": layout.HELLO,
    "WELCOME": layout.WELCOME,
    "OPEN": layout.OPEN,
    "PUT": layout.PUT,
    "WANT": layout.WANT,
    "ACK, RELEASE, GONE": layout.ACK,
    "RANGE": layout.RANGE,
    "HELD": layout.HELD,
    "ITEM": layout.ITEM,
    "REJECT": layout.REJECT,
    "TXN": layout.TXN,
    "CALL": layout.CALL,
    "PLACED": layout.PLACED,
    "FAIL": layout.FAIL,
    "DELIVER": layout.DELIVER,
    "FIGURES": layout.FIGURES,
    "PING, PONG": layout.TOKEN,
    "HANDOVER": layout.TOKEN,
}


def rows_below(heading: str) -> list[list[str]]:
    _, found, rest = f"\n{TEXT}".partition(f"\n{heading}")
    assert found, heading
    body = rest.partition("\n\n")[2].split("\n\n")[0]
    return [line.split() for line in body.split("\n") if line.startswith("    ")]


TABLES = dict(re.findall(r"^([A-Z, ]+): (\d+) bytes.*\n\n    offset  size", TEXT, re.MULTILINE))


def test_every_layout_has_a_table_and_every_table_a_layout() -> None:
    assert set(TABLES) == set(STRUCTS)
    assert {one for one in vars(layout).values() if isinstance(one, struct.Struct)} == {*STRUCTS.values(), layout.SIZE}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_table_says_what_the_layout_is(name: str) -> None:
    title, *rows = rows_below(f"{name}: {TABLES[name]} bytes")
    assert title == ["offset", "size", "name", "meaning"]
    assert int(TABLES[name]) == STRUCTS[name].size
    codes = STRUCTS[name].format.lstrip("<")
    codes = "".join(code * int(count or 1) for count, code in re.findall(r"(\d*)([a-zA-Z])", codes))
    ends = [struct.calcsize("<" + codes[: number + 1]) for number in range(len(codes))]
    at = 0
    for offset, size, _, *_ in rows:
        assert int(offset) == at
        at += int(size)
        assert at in ends, "a field ends there"
    assert at == STRUCTS[name].size
    if name != "HELD":  # its first row is a whole range
        assert len(rows) == len(codes)
        signed = [code in "iq" for code in codes]
        assert [any(word.strip(":,") in {"i32", "i64"} for word in row[3:]) for row in rows] == signed


def test_the_operations_are_those_of_the_code() -> None:
    rows = {row[0]: (int(row[1], 16), row[2]) for row in rows_below("OPERATIONS")}
    assert rows == {op.name: (op.value, "owner" if op.value & 0x80 else "client") for op in Op}
    assert set(PACKETS) == set(Op)


def test_the_numbers_are_those_of_the_code() -> None:
    numbers = {row[0]: int(row[1], 0) for row in rows_below("NUMBERS")}
    assert numbers == {name: getattr(layout, name) for name in numbers}
    assert {name for name, one in vars(layout).items() if isinstance(one, int) and name.isupper()} == set(numbers)
