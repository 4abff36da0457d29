"""What a reader has to say about the files it read."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Finding", "FindingKind"]

FindingKind: TypeAlias = Literal[
    "no-metadata",
    "bad-metadata",
    "stale-metadata",
    "bad-position",
    "already-read",
    "missing-file",
    "bad-length",
    "torn",
    "lost-end",
]


class Finding(NamedTuple):
    """Something that is not as a queue closed in good order leaves it.

    The kinds:

    - `no-metadata`: there is none; what is there is read from its beginning.
    - `bad-metadata`: it is not what go-diskqueue writes, contradicts itself, or names no file that is there; likewise.
    - `stale-metadata`: there is more than it knows of, from `position` on. It is read too. Messages may be redelivered.
    - `bad-position`: where it says to go on reading lies inside a message; its file is read from the beginning.
    - `already-read`: a file from before the read position; it is not read.
    - `missing-file`: files that should be there are not; what they held is not known. `path` is the first of them.
    - `bad-length`: no message can have the length at `position`; the rest of the file is not read.
    - `torn`: the file ends inside the message at `position`.
    - `lost-end`: the file ends before what the metadata says of it.

    Attributes:
        kind: one of these.
        path: the file.
        position: the byte in it from which on this holds.
        end: the byte after the last of it; equal to `position` where no bytes are meant.
        reason: as text.
    """

    kind: FindingKind
    path: str
    position: int
    end: int
    reason: str

    @property
    def loses(self) -> bool:
        """Whether messages may be missing from what was read."""
        return self.kind in {"missing-file", "bad-length", "torn", "lost-end"}
