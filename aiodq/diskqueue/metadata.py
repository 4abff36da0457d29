"""The metadata: three lines of text."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from aiodq.errors import CorruptionError

__all__ = ["LONGEST", "DiskQueueMetadata"]

LONGEST: Final = 5 * 20 + 5
"""Bytes of the longest metadata there can be."""

_MOST: Final = 2**63 - 1
_TEXT: Final = re.compile(rb"(-?[0-9]{1,19})\n([0-9]{1,19}),([0-9]{1,19})\n([0-9]{1,19}),([0-9]{1,19})\n")


class DiskQueueMetadata(NamedTuple):
    r"""How far a queue was read and written when it was last synced: "depth\nfile,position\nfile,position\n".

    Attributes:
        depth: unread messages, as go-diskqueue counted them; after a crash it may be wrong, even negative.
        read_file: number of the file to be read next.
        read_position: byte in it.
        write_file: number of the file to be written next; it need not be there yet.
        write_position: byte in it.
    """

    depth: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int

    @classmethod
    def decode(cls, data: bytes, path: str = "") -> Self:
        """Return what a metadata file says.

        Args:
            data: all of the file's bytes.
            path: for the error.

        Raises:
            CorruptionError: it is not exactly what go-diskqueue writes, or reading is ahead of writing.
        """
        match = _TEXT.fullmatch(data)
        if match is None:
            raise CorruptionError("the metadata is not three lines of numbers", path, 0)
        found = cls(*map(int, match.groups()))
        if max(found) > _MOST or found.depth < -_MOST:
            raise CorruptionError("a number in the metadata has more than 63 bits", path, 0)
        if (found.read_file, found.read_position) > (found.write_file, found.write_position):
            raise CorruptionError("the metadata's read position is ahead of its write position", path, 0)
        return found

    def encode(self) -> bytes:
        """Return the file's bytes, exactly as go-diskqueue writes them."""
        lines = f"{self.depth}", f"{self.read_file},{self.read_position}", f"{self.write_file},{self.write_position}"
        return "".join(f"{line}\n" for line in lines).encode("ascii")
