"""Control frames in a log, written behind an owner's back: what a later aiodq may leave for this one to step over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.format.checksum import crc32
from aiodq.format.frame import FrameContext
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader
from tests.format.support import control_frame
from tests.storage.logs import open_log, put, segments

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_BYTES = 100_000


def context_of(segment: Path) -> FrameContext:
    """Return what the frames of a segment have in common, by its header."""
    header = SegmentHeader.decode(segment.read_bytes()[: SEGMENT_HEADER.size])
    return FrameContext(header.base, crc32, header.salt)


def leave_control(directory: Path, first: int, kind: int = 0xE0, size: int = 40) -> bytes:
    """Append a control frame to a closed log, which names an offset as a batch there would; return the frame."""
    path = segments(directory)[-1]
    frame = control_frame(context_of(path), kind, first, b"\xa5" * size)
    with path.open("ab") as file:
        file.write(frame)
    return frame


def a_log_with_controls(directory: Path, kind: int = 0xE0, size: int = 40) -> list[bytes]:
    """Make a log with control frames before, between and behind all puts, of two sealed segments and a growing one.

    Returns:
        The bodies in it.
    """
    bodies: list[bytes] = []
    frames: list[bytes] = []
    room = SEGMENT_BYTES + 20 * size

    def control() -> None:
        frames.append(leave_control(directory, len(bodies), kind, size))

    def add(some: list[bytes], *, atomic: bool = False) -> None:
        log = open_log(directory, segment_bytes=room)
        assert log.end == len(bodies)
        put(log, some, atomic=atomic)
        log.close()
        bodies.extend(some)
        control()

    def roll() -> None:
        log = open_log(directory, segment_bytes=room)
        log.roll()
        log.close()

    directory.parent.mkdir(exist_ok=True)
    open_log(directory, segment_bytes=room).close()
    for number in range(3):
        control()
        control()
        add([b"%d single" % number])
        add([b"%d another" % number])
        add([b"%d batch %d" % (number, each) for each in range(5)])
        add([b"%d run %d " % (number, each) * 900 for each in range(9)], atomic=True)
        add([b"%d last" % number])
        if number < 2:
            roll()
    files = [path.read_bytes() for path in segments(directory)]
    assert len(files) == 3, "a segment that began with control frames went on"
    assert all(any(frame in data for data in files) for frame in frames), "no owner took one off"
    return bodies
