"""What these tests share: a log to write to, its messages as a dictionary, and ways to break its files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.read.log_reader import LogReader
from aiodq.testing import WatchedFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.io.quarantine import Damage

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


class StepClock:
    """A clock that moves by a second whenever it is looked at."""

    def __init__(self, now_ns: int = START) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        """Return wall time."""
        self.now += SECOND
        return self.now

    def monotonic(self) -> float:
        """Return seconds."""
        return self.now / SECOND


CLOCK = StepClock()


def open_log(
    directory: Path, fs: FileSystem | None = None, *, segment_bytes: int = 1 << 20, codec: int = CODEC_NONE
) -> TopicLog:
    """Open a topic's log; without `fs`, on one that does not wait for the device."""
    return TopicLog(fs or WatchedFileSystem(), str(directory), LogOptions(segment_bytes, codec), CLOCK)


def put(
    log: TopicLog, bodies: Sequence[bytes], *, atomic: bool = False, sync: bool = True, time_ns: int | None = None
) -> range:
    """Put messages as one batch, rolling where that is needed; return their offsets."""
    first = log.end
    at = CLOCK.now_ns() if time_ns is None else time_ns
    if log.stage(Columns(list(bodies)), at, atomic=atomic) is None:
        log.roll()
        assert log.stage(Columns(list(bodies)), at, atomic=atomic) is not None
    log.flush()
    log.commit()
    if sync:
        log.sync()
    return range(first, log.end)


def put_each(log: TopicLog, bodies: Sequence[bytes], *, sync: bool = True) -> None:
    """Put messages one by one, each in a frame of its own."""
    for body in bodies:
        put(log, [body], sync=sync)


def alike(one: bytes, two: bytes) -> int:
    """Return how many bytes two files have in common from their beginning."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == two[:middle] else (low, middle - 1)
    return low


def contents(
    log: TopicLog, fs: FileSystem | None = None, max_bytes: int = 4096
) -> tuple[dict[int, bytes], list[Damage]]:
    """Return every message by offset, and what was damaged on the way. Reading must end and never go back."""
    reader = LogReader(fs or WatchedFileSystem())
    found: dict[int, bytes] = {}
    damages: list[Damage] = []
    at, view = log.begin, log.view()
    try:
        while at < view.stop:
            result = reader.read(view, at, max_bytes)
            assert result.next > at
            for batch in result.batches:
                assert at <= batch.first < batch.stop <= result.next
                at = batch.stop
                found.update(enumerate(batch.columns.bodies, batch.first))
            damages += result.damages
            at = result.next
    finally:
        reader.close()
    return found, damages


def messages(log: TopicLog) -> dict[int, bytes]:
    """Return every message by offset; none may be missing."""
    found, damages = contents(log)
    assert damages == []
    return found


def read_topic(directory: Path) -> dict[int, bytes]:
    """Return every message by offset as a reader without a lock sees them."""
    reader = TopicReader(WatchedFileSystem(), str(directory), directory.name)
    return {message.offset: message.body for message in reader.scan()}


def reopened(directory: Path, *, segment_bytes: int = 1 << 20) -> dict[int, bytes]:
    """Open a log, close it, and return its messages."""
    log = open_log(directory, segment_bytes=segment_bytes)
    try:
        return contents(log)[0]
    finally:
        log.close()


def segments(directory: Path) -> list[Path]:
    """Return the segment files, in order."""
    return sorted(directory.glob("*.seg"))


def set_aside(directory: Path) -> list[Path]:
    """Return what is in quarantine, anywhere below."""
    return sorted(directory.rglob("*.damaged-*"))


def flip(path: Path, position: int, bit: int) -> None:
    """Turn one bit of a file around."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write into a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def tree(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory with its content."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def copy(source: Path, target: Path) -> Path:
    """Copy a directory, replacing what is there; return the copy."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target
