"""Checksum algorithms, by their number in a segment's header.

A segment's salt is the starting value, so that a frame copied into a message's body (a stored segment file, say) is
never taken for a frame of the segment that holds it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zlib import crc32 as crc32_of_few

from aiodq.errors import FormatVersionError

try:
    # The extra `arrow` brings it: the same checksum in less than half the time. It is imported only here.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.layout import BytesLike

    Checksum = Callable[[BytesLike, int], int]

__all__ = ["CRC32", "checksum_named", "crc32", "crc32_link", "crc32_of_few", "crc32_of_range"]

CRC32: Final = 1
"""zlib's CRC-32, the default."""

_ALGORITHMS: Final[dict[int, Checksum]] = {CRC32: crc32}


def checksum_named(number: int, path: str = "") -> Checksum:
    """Return the function `(data, start) -> u32` of that number.

    Raises:
        FormatVersionError: no such algorithm in this version of aiodq.
    """
    try:
        return _ALGORITHMS[number]
    except KeyError:
        message = f"checksum algorithm {number} is not known to this version of aiodq; upgrade to read this file"
        raise FormatVersionError(message, path, 10) from None


_POLYNOMIAL: Final = 0xEDB88320
_ALL: Final = 0xFFFFFFFF
_ONE: Final = 1 << 31
"""The polynomial 1: bits are reflected, so the highest power is the lowest bit."""


def crc32_of_range(before: int, through: int, length: int, start: int) -> int:
    """Return the CRC-32, with starting value `start`, of a range without reading it.

    Checksumming many overlapping ranges, in bytes that an attacker chose, would otherwise take quadratic time.

    Args:
        before: the CRC-32 of everything before the range.
        through: the CRC-32 of everything up to its end.
        length: its length, bytes.
        start: the starting value.
    """
    return through ^ _product(before ^ start, _shift(length))


@lru_cache(maxsize=4096)
def _shift(length: int) -> int:
    """Return x to the power of `8 * length`, by which a CRC-32 is multiplied if `length` zero bytes follow."""
    result, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            result = _product(result, square)
        square = _product(square, square)
        length >>= 1
    return result


@lru_cache(maxsize=64)
def crc32_link(start: int) -> int:
    """Return the u32 that ends one checksum and begins another.

    The CRC-32 of any bytes, followed by the inverse of their own CRC-32 as a u32, by this u32 and by other bytes, is
    the CRC-32 of the other bytes with starting value `start`.
    """
    register = start ^ _ALL
    for _ in range(32):
        carried = register >> 31
        register = ((register ^ _POLYNOMIAL if carried else register) << 1 | carried) & _ALL
    return register


def _product(one: int, two: int) -> int:
    """Return the product of two polynomials, modulo that of CRC-32."""
    result = 0
    while one:
        if one & _ONE:
            result ^= two
        one = (one << 1) & _ALL
        two = (two >> 1) ^ _POLYNOMIAL if two & 1 else two >> 1
    return result
