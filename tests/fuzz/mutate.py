"""Changing valid bytes: what disks, restores and hostile hands do to them, as strategies that shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LONGEST: Final = 64
_NUMBERS: Final = [
    *(value for bits in (8, 16, 32, 64) for value in (2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1)),
    *range(9),
    24,
    32,
    40,
    48,
    2**20 + 1,
    2**63 + 1,
]


def _place(draw: st.DrawFn, data: bytes | bytearray) -> int:
    return draw(st.integers(0, max(len(data) - 1, 0)))


def _range(draw: st.DrawFn, data: bytes | bytearray) -> tuple[int, int]:
    start = _place(draw, data)
    return start, min(start + draw(st.integers(1, _LONGEST)), len(data))


def _flip(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    if data:
        data[_place(draw, data)] ^= 1 << draw(st.integers(0, 7))
    return data


def _number(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    """Put a number that is on some edge where a field may be."""
    size = draw(st.sampled_from([1, 2, 4, 8]))
    at = _place(draw, data) // size * size
    value = draw(st.sampled_from(_NUMBERS)) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, "little")[: len(data) - at]
    return data


def _cut(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    del data[_place(draw, data) :]
    return data


def _drop(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    start, stop = _range(draw, data)
    del data[start:stop]
    return data


def _zero(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    start, stop = _range(draw, data)
    data[start:stop] = bytes(stop - start)
    return data


def _double(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    start, stop = _range(draw, data)
    at = _place(draw, data)
    data[at:at] = data[start:stop]
    return data


def _swap(draw: st.DrawFn, data: bytearray, _: Sequence[bytes]) -> bytearray:
    start, stop = _range(draw, data)
    at = _place(draw, data)
    if at >= stop:
        size = min(stop - start, len(data) - at)
        data[start : start + size], data[at : at + size] = data[at : at + size], data[start : start + size]
    return data


def _splice(draw: st.DrawFn, data: bytearray, others: Sequence[bytes]) -> bytearray:
    other = draw(st.sampled_from(others))
    start, stop = _range(draw, other)
    at = _place(draw, data)
    data[at : at + draw(st.sampled_from([0, stop - start]))] = other[start:stop]
    return data


def _append(draw: st.DrawFn, data: bytearray, others: Sequence[bytes]) -> bytearray:
    return data + draw(st.sampled_from(others) | st.binary(max_size=_LONGEST))


_CHANGES: Final[list[Callable[[st.DrawFn, bytearray, Sequence[bytes]], bytearray]]] = [
    _flip,
    _number,
    _cut,
    _drop,
    _zero,
    _double,
    _swap,
    _splice,
    _append,
]


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Return a seed that was changed up to six times, behind a byte that says whether checksums are set right."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for change in draw(st.lists(st.sampled_from(_CHANGES), max_size=6)):
        data = change(draw, data, seeds)
    return bytes([draw(st.integers(0, 1))]) + bytes(data)
