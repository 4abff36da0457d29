"""Cutting a stream of bytes into messages; memory holds one chunk and one unfinished line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NoReturn

from aiodq.cli.exits import WRONG, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BadLineError", "LineCutter", "WholeCutter", "check_json", "in_batches"]

_BATCH_MESSAGES: Final = 10_000
_BATCH_BYTES: Final = 1 << 20


class LineCutter:
    """Newline-terminated records; the last one may lack its newline.

    Attributes:
        number: how many lines were cut off so far.
    """

    def __init__(self, name: str, longest: int, *, jsonl: bool = False) -> None:
        """Begin.

        Args:
            name: the input's, for errors.
            longest: bytes of a line at most, its newline not counted.
            jsonl: each line has to be JSON.
        """
        self.number: int = 0
        self._name = name
        self._longest = longest
        self._jsonl = jsonl
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that the chunk completes.

        Raises:
            BadLineError: a line is too long, or no JSON.
        """
        head, newline, tail = chunk.partition(b"\n")
        self._keep(head, [])
        if not newline:
            return []
        lines = [self._take(), *tail.split(b"\n")]
        rest = lines.pop()
        self._check(lines)
        self._keep(rest, lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, where it has no newline.

        Raises:
            BadLineError: as `feed`.
        """
        lines = [self._take()] if self._size else []
        self._check(lines)
        return lines

    def _keep(self, piece: bytes, before: list[bytes]) -> None:
        self._rest.append(piece)
        self._size += len(piece)
        if self._size > self._longest:
            self._refuse(1, self._too_long, before)

    def _take(self) -> bytes:
        line = b"".join(self._rest)
        self._rest.clear()
        self._size = 0
        return line

    def _check(self, lines: list[bytes]) -> None:
        if self._jsonl or max(map(len, lines), default=0) > self._longest:
            for place, line in enumerate(lines):
                reason = self._too_long if len(line) > self._longest else check_json(line) if self._jsonl else ""
                if reason:
                    self._refuse(place + 1, reason, lines[:place])
        self.number += len(lines)

    @property
    def _too_long(self) -> str:
        return f"longer than {self._longest} bytes"

    def _refuse(self, place: int, reason: str, before: list[bytes]) -> NoReturn:
        raise BadLineError(f"line {self.number + place} of {self._name} is {reason}", before)


class BadLineError(CommandError):
    """A line cannot be a message.

    Attributes:
        before: the good lines that were cut off together with it.
    """

    def __init__(self, message: str, before: list[bytes]) -> None:
        """Keep the lines beside the text."""
        super().__init__(message, WRONG)
        self.before = before


class WholeCutter:
    """One record: all of it."""

    def __init__(self, name: str, longest: int) -> None:
        """Begin. The arguments are those of `LineCutter`."""
        self._name = name
        self._longest = longest
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return nothing yet.

        Raises:
            CommandError: it is too long.
        """
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > self._longest:
            raise CommandError(f"{self._name} is longer than {self._longest} bytes, so it can be no message", WRONG)
        return []

    def finish(self) -> list[bytes]:
        """Return the record."""
        return [b"".join(self._pieces)]


def check_json(line: bytes) -> str:
    """Return why a line is no JSON; empty where it is."""
    try:
        # Numbers stay text: JSON has no largest one, Python's conversion does.
        json.loads(line.decode(), parse_int=str, parse_float=str, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return f"no JSON: byte {error.start + 1} is not UTF-8"
    except json.JSONDecodeError as error:
        return f"no JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return ""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is JavaScript's, not JSON's")


def in_batches(records: Iterable[bytes], most: int | None = None) -> Iterator[list[bytes]]:
    """Yield the records in order, as many at a time as one put shall hold in memory.

    Args:
        records: taken as they are needed.
        most: how many at a time at most; fewer where they are large.
    """
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= (most or _BATCH_MESSAGES) or size + len(record) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch
