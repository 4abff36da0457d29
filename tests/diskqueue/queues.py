"""The queues in tests/data/diskqueue, and small ones in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from aiodq.diskqueue import read
from aiodq.testing import SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiodq.diskqueue import Finding

DATA = Path(__file__).parents[1] / "data" / "diskqueue"
AT = "/q"
NAME = "jobs"


def message(i: int) -> bytes:
    """Return the message that the README of the data numbers `i`."""
    return b"message %06d " % i + bytes((31 * i + 7 * j) % 256 for j in range(i % 97))


def messages(numbers: Iterable[int]) -> list[bytes]:
    return [message(i) for i in numbers]


def record(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def records(*bodies: bytes) -> bytes:
    return b"".join(map(record, bodies))


def meta(text: str) -> dict[str | int, bytes]:
    return {"meta": text.encode()}


def disk(files: Mapping[str | int, bytes], name: str = NAME) -> SimulatedFileSystem:
    """Return a file system with a queue; a file goes by its number, or by what stands in the number's place."""
    paths = {key if isinstance(key, str) else f"{key:06d}": data for key, data in files.items()}
    image: dict[str, bytes | None] = {f"{AT}/{name}.diskqueue.{key}.dat": data for key, data in paths.items()}
    return SimulatedFileSystem({AT: None, **image})


def path(key: str | int, name: str = NAME) -> str:
    return f"{AT}/{name}.diskqueue.{key if isinstance(key, str) else f'{key:06d}'}.dat"


def outcome(fs: SimulatedFileSystem, *, least: int = 0) -> tuple[list[bytes], list[Finding]]:
    """Return what is read of the queue, and make sure that reading changed nothing and left nothing open."""
    before = fs.image()
    reader = read(AT, NAME, min_message_bytes=least, fs=fs)
    bodies = [found.body for found in reader]
    assert fs.image() == before
    assert left_open(fs) == 0
    return bodies, reader.findings


def written(fs: SimulatedFileSystem) -> dict[str, bytes]:
    """Return the files in the queue's directory."""
    return {at: data for at, data in fs.image().items() if at.startswith(AT + "/") and data is not None}


def left_open(fs: SimulatedFileSystem) -> int:
    return fs.calls.get("open", 0) + fs.calls.get("create", 0) - fs.calls.get("close", 0)
