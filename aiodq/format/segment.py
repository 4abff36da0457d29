"""The header of a segment, its first 64 bytes."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from aiodq.errors import CorruptionError, FormatVersionError
from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.frame import FrameContext
from aiodq.format.layout import SEGMENT_HEADER, SEGMENT_MAGIC, VERSION

if TYPE_CHECKING:
    from aiodq.format.layout import BytesLike

__all__ = ["SegmentHeader", "topic_salt"]

_CRC_AT = SEGMENT_HEADER.size - 4


def topic_salt(topic: UUID) -> int:
    """Return the salt that an owner gives a topic's segments, which is thus known even if a header is lost."""
    return zlib.crc32(topic.bytes)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment.

    Attributes:
        base: the offset of its first record.
        topic: the uuid of the topic it belongs to.
        created_ns: wall time, nanoseconds since the epoch.
        salt: starting value of its checksums.
        checksum: the algorithm's number.
        version: the format's version.
    """

    base: int
    topic: UUID
    created_ns: int
    salt: int
    checksum: int = CRC32
    version: int = VERSION

    @property
    def context(self) -> FrameContext:
        """What is needed to read and write the segment's frames."""
        return FrameContext(self.base, checksum_named(self.checksum), self.salt)

    def encode(self) -> bytes:
        """Encode the header."""
        head = SEGMENT_HEADER.pack(
            SEGMENT_MAGIC, self.version, self.checksum, 0, self.salt, self.base, self.topic.bytes, self.created_ns, 0
        )[:_CRC_AT]
        return head + zlib.crc32(head).to_bytes(4, "little")

    @classmethod
    def decode(cls, data: BytesLike, path: str = "") -> SegmentHeader:
        """Decode the header at the start of `data`.

        Raises:
            CorruptionError: the bytes are not a segment's header.
            FormatVersionError: a newer version or an unknown checksum algorithm.
        """
        if len(data) < SEGMENT_HEADER.size:
            message = f"the segment's header is cut short after {len(data)} bytes"
            raise CorruptionError(message, path, 0)
        magic, version, checksum, _, salt, base, topic, created_ns, crc = SEGMENT_HEADER.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            message = "the file does not begin like a segment"
            raise CorruptionError(message, path, 0)
        if crc != zlib.crc32(memoryview(data)[:_CRC_AT]):
            message = "the segment header's checksum is wrong"
            raise CorruptionError(message, path, 0)
        if version > VERSION or version < 1:
            message = f"segment format version {version}; this aiodq reads up to {VERSION}: upgrade to open it"
            raise FormatVersionError(message, path, 8)
        checksum_named(checksum, path)
        return cls(base, UUID(bytes=topic), created_ns, salt, checksum, version)

    @classmethod
    def mended(cls, data: BytesLike, path: str = "") -> SegmentHeader | None:
        """Repair a header in which a single bit is wrong; return None if more is.

        Every bit is tried; only the right one gives a valid checksum. This takes about a millisecond.
        """
        head = bytearray(data[: SEGMENT_HEADER.size])
        for bit in range(8 * len(head)):
            head[bit >> 3] ^= 1 << (bit & 7)
            with suppress(CorruptionError, FormatVersionError):
                return cls.decode(head, path)
            head[bit >> 3] ^= 1 << (bit & 7)
        return None
