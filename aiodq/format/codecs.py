"""Compression of a batch's payload. `zstandard` is imported only here, and only when a codec asks for it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError, FormatVersionError, MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

    from aiodq.format.layout import BytesLike

__all__ = ["CODEC_NONE", "CODEC_ZSTD", "codec_number", "compress", "decompress", "raw_limit"]

CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 1

_ALWAYS_ALLOWED: Final = 1 << 20
_MAX_RATIO: Final = 64
_NUMBERS: Final[dict[str | None, int]] = {None: CODEC_NONE, "zstd": CODEC_ZSTD}


def codec_number(name: str | None) -> int:
    """Return the number of a codec by its option name, after checking that it can be used.

    Raises:
        MissingExtraError: zstd was requested and is not installed.
    """
    number = _NUMBERS[name]
    if number == CODEC_ZSTD:
        _zstandard()
    return number


def raw_limit(stored: int) -> int:
    """Return the largest raw size that `stored` bytes may claim to expand to.

    A reader allocates by a length that it has read; this keeps what a damaged or hostile file can make it allocate
    proportional to the file.
    """
    return max(_ALWAYS_ALLOWED, stored * _MAX_RATIO)


def compress(payload: bytes, codec: int) -> tuple[int, bytes]:
    """Return the codec actually used, and the stored bytes: the payload itself if compression gains nothing."""
    if codec == CODEC_NONE:
        return CODEC_NONE, payload
    stored = _zstandard().ZstdCompressor(level=3).compress(payload)
    if len(stored) >= len(payload) or len(payload) > raw_limit(len(stored)):
        return CODEC_NONE, payload
    return codec, stored


def decompress(stored: BytesLike, codec: int, raw: int, *, path: str = "", position: int = 0) -> BytesLike:
    """Return the `raw` payload bytes.

    Raises:
        CorruptionError: the stored bytes are not a payload of that size.
        FormatVersionError: this version does not know the codec.
        MissingExtraError: the file is compressed and `zstandard` is not installed.
    """
    if codec == CODEC_NONE:
        return stored
    if codec != CODEC_ZSTD:
        message = f"codec {codec} is not known to this version of aiodq; upgrade to read this file"
        raise FormatVersionError(message, path, position)
    zstd = _zstandard()
    try:
        # The library allocates the size in the zstd frame's own header, so that is first checked against the claim.
        if zstd.get_frame_parameters(stored).content_size != raw:
            message = f"the compressed batch does not hold the {raw} bytes it claims"
            raise CorruptionError(message, path, position)
        payload: bytes = zstd.ZstdDecompressor().decompress(stored)
    except zstd.ZstdError as cause:
        message = f"the batch does not decompress: {cause}"
        raise CorruptionError(message, path, position) from cause
    return payload


@cache
def _zstandard() -> ModuleType:
    try:
        import zstandard  # noqa: PLC0415 - an extra, needed only where a store compresses
    except ImportError as cause:
        message = "zstd compression needs the extra 'zstd': pip install 'aiodq[zstd]'"
        raise MissingExtraError(message) from cause
    return zstandard
