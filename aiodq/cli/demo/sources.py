"""What the demonstration puts: every line of the standard library's sources, dealt out among producers."""

from __future__ import annotations

import os
import sysconfig
from bisect import bisect_right
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Library", "Share", "standard_library"]

_NOT_OURS: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


def standard_library() -> str:
    """Return the directory of the running Python's standard library."""
    return sysconfig.get_path("stdlib")


def _lines(path: str) -> list[bytes]:
    """Return a file's lines without their newlines, as bytes: not every source of the library is UTF-8."""
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


class Share:
    """One producer's lines, in order; a line's place in it is its position.

    A message's body is file, line number and text with colons between them, as grep prints it. In the file's name,
    colons are percent-encoded, so that no name can be taken for another's line.
    """

    def __init__(self) -> None:
        """Begin without lines."""
        self.size: int = 0
        self._starts: list[int] = []
        self._paths: list[str] = []
        self._names: list[bytes] = []
        self._loaded = (-1, [b""])

    def __len__(self) -> int:
        """Return the number of lines."""
        return self.size

    def add(self, path: str, name: bytes, lines: int) -> int:
        """Append the first lines of a file; return the position of the first."""
        start = self.size
        self._starts.append(start)
        self._paths.append(path)
        self._names.append(name)
        self.size += lines
        return start

    def __getitem__(self, position: int) -> bytes:
        """Return the message at a position."""
        place = bisect_right(self._starts, position) - 1
        number = position - self._starts[place]
        if self._loaded[0] != place:
            # One file is enough, as positions are asked for in order nearly always.
            self._loaded = place, _lines(self._paths[place])
        return b"%b:%d:%b" % (self._names[place], number + 1, self._loaded[1][number])

    def messages(self, start: int = 0) -> Iterator[bytes]:
        """Yield the messages from a position on."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        ends = [*self._starts[1:], self.size]
        for place in range(first, len(self._starts)):
            name, begin = self._names[place], self._starts[place]
            skip = max(start - begin, 0)
            lines = _lines(self._paths[place])[skip : ends[place] - begin]
            yield from (b"%b:%d:%b" % (name, number, text) for number, text in enumerate(lines, skip + 1))

    def where(self, position: int) -> str:
        """Return file and line number of a position, for people."""
        place = bisect_right(self._starts, position) - 1
        return f"{self._names[place].decode()}:{position - self._starts[place] + 1}"


class Library:
    """All lines, dealt out.

    Attributes:
        shares: by producer.
        files: how many files they come from.
        lines: how many there are.
    """

    def __init__(self, root: str, producers: int, limit: int | None = None) -> None:
        """Count the lines of every `*.py` below `root`, and give each file to the producer with the fewest.

        Args:
            root: a directory. Packages that were installed there since are left out.
            producers: at least 1.
            limit: lines in all, at most.
        """
        self.shares: list[Share] = [Share() for _ in range(producers)]
        self.files: int = 0
        self.lines: int = 0
        self._places: dict[bytes, tuple[int, int, int]] = {}
        left = -1 if limit is None else limit
        for path, name in _sources(root):
            if not left:
                break
            lines = _count(path)
            lines = lines if left < 0 else min(lines, left)
            left -= lines if left > 0 else 0
            self._deal(path, name, lines)

    def _deal(self, path: str, name: bytes, lines: int) -> None:
        producer = min(range(len(self.shares)), key=lambda number: self.shares[number].size)
        self._places[name] = producer, self.shares[producer].add(path, name, lines), lines
        self.files += 1
        self.lines += lines

    def locate(self, body: bytes) -> tuple[int, int] | None:
        """Return the producer and the position that a message names; None where it names no line of ours."""
        name, _, rest = body.partition(b":")
        place = self._places.get(name)
        if place is None:
            return None
        try:
            number = int(rest.partition(b":")[0])
        except ValueError:
            return None
        producer, start, lines = place
        return (producer, start + number - 1) if 0 < number <= lines else None


def _sources(root: str) -> Iterable[tuple[str, bytes]]:
    """Yield path and name of every source, in an order that is the same for everybody who looks."""
    found = []
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_OURS]
        found += [os.path.join(directory, name) for name in names if name.endswith(".py")]
    for path in sorted(found):
        yield path, quote_from_bytes(os.fsencode(os.path.relpath(path, root)), safe="/").encode()


def _count(path: str) -> int:
    with open(path, "rb") as file:
        data = file.read()
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
