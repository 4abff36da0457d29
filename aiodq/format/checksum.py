"""Checksum algorithms by the number a segment header gives them.

A segment's salt is the starting value, so that a frame copied into a message's body (a stored segment file, say) never
passes for a frame of the segment it lies in.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from aiodq.errors import FormatVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.layout import BytesLike

    Checksum = Callable[[BytesLike, int], int]

__all__ = ["CRC32", "checksum_named"]

CRC32: Final = 1
"""zlib's CRC-32, the default."""

_ALGORITHMS: Final[dict[int, Checksum]] = {CRC32: zlib.crc32}


def checksum_named(number: int, path: str = "") -> Checksum:
    """Return the function `(data, start) -> u32` with that number.

    Raises:
        FormatVersionError: no such algorithm in this version of aiodq.
    """
    try:
        return _ALGORITHMS[number]
    except KeyError:
        message = f"checksum algorithm {number} is not known to this version of aiodq; upgrade to read this file"
        raise FormatVersionError(message, path, 10) from None
