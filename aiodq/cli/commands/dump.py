"""`aiodq dump`: one segment file, frame by frame, whatever state it is in."""

import json as json_text
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, WRONG, CommandError
from aiodq.cli.show import message_fields
from aiodq.errors import CorruptionError, MissingExtraError
from aiodq.format.checksum import CRC32, checksum_named
from aiodq.format.columns import Flags
from aiodq.format.footer import FooterTail, SegmentIndex
from aiodq.format.frame import Frame, FrameContext, decode_frame
from aiodq.format.layout import FOOTER_TAIL, INDEX_ENTRY, KIND_BATCH, KIND_COMPACT, SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.io.filesystem import File, OsFileSystem
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.read.stored_message import records_of
from aiodq.storage.segments.frame_scan import Bad, scan_units
from aiodq.storage.segments.segment_files import written_end
from aiodq.storage.state.topic.topic_meta import read_meta

__all__ = ["dump"]

Part = dict[str, Any]

_NAME: Final = re.compile(r"([0-9]{20})\.seg")
_KINDS: Final = {KIND_BATCH: "batch", KIND_COMPACT: "compact"}


def dump(segment: Place, /, *, json: bool = False, bodies: bool = False) -> int:
    """Show one segment file: header, frames, footer, and everything that fails its check.

    The exit code is 1 if something fails; at the end of a segment that is being written, that may be an unfinished
    frame.

    Args:
        segment: the file.
        json: print each part as a line of JSON.
        bodies: show the messages in each frame, too.
    """
    if os.path.isdir(segment):
        raise CommandError(f"{segment} is a directory; dump takes one segment file")
    code = DONE
    for part in _Dump(segment, bodies=bodies).parts():
        sys.stdout.write((json_text.dumps(part) if json else "\n".join(_lines(part))) + "\n")
        if part["part"] == "damage":
            code = WRONG
    return code


class _Dump:
    """One file."""

    def __init__(self, path: str, *, bodies: bool) -> None:
        self._path = path
        self._bodies = bodies

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the file, from the first byte to the last."""
        with os_errors(self._path):
            file = OsFileSystem().open(self._path)
            try:
                yield from self._parts(file)
            finally:
                file.close()

    def _parts(self, file: File) -> Iterator[Part]:
        size = file.size()
        tail, tail_error = self._tail(file, size)
        header, error = self._header(file)
        if error is not None:
            if _NAME.fullmatch(os.path.basename(self._path)) is None and tail is None:
                raise CommandError(f"{self._path} is no segment: {error.message}")
            yield _damage(0, min(size, SEGMENT_HEADER.size), error.message)
        if header is not None:
            yield _header_part(header)
        context = self._context(header, tail)
        limit = written_end(file, self._path, size) if tail is None else tail.data_end
        if context is not None:
            yield from self._frames(file, context, limit)
        elif limit > SEGMENT_HEADER.size:
            yield _damage(SEGMENT_HEADER.size, limit, "without header, footer and topic.json, frames cannot be checked")
        if tail is None and limit < size:
            yield {"part": "zeros", "position": limit, "end": size}
        yield from self._footer(file, size, tail, tail_error)

    def _header(self, file: File) -> tuple[SegmentHeader | None, CorruptionError | None]:
        try:
            return SegmentHeader.decode(file.read_at(SEGMENT_HEADER.size, 0), self._path), None
        except CorruptionError as error:
            return None, error

    def _tail(self, file: File, size: int) -> tuple[FooterTail | None, CorruptionError | None]:
        at = max(size - FOOTER_TAIL.size, 0)
        try:
            return FooterTail.decode(file.read_at(FOOTER_TAIL.size, at), size, self._path), None
        except CorruptionError as error:
            return None, error

    def _context(self, header: SegmentHeader | None, tail: FooterTail | None) -> FrameContext | None:
        """Return the context to read frames; if the header is lost, by the file's name, the footer or the topic."""
        if header is not None:
            return header.context
        named = _NAME.fullmatch(os.path.basename(self._path))
        if named is None:
            return None
        salt = None if tail is None else tail.salt
        if salt is None:
            try:
                meta = read_meta(OsFileSystem(), os.path.dirname(os.path.abspath(self._path)))
            except CorruptionError:
                return None
            if meta is None:
                return None
            salt = topic_salt(meta.uuid)
        return FrameContext(int(named[1]), checksum_named(CRC32), salt)

    def _frames(self, file: File, context: FrameContext, limit: int) -> Iterator[Part]:
        for item in scan_units(file, context, self._path, limit=limit):
            if isinstance(item, Bad):
                yield _damage(item.position, item.end, item.reason)
                continue
            for frame in item.frames:
                part = _frame_part(frame)
                if self._bodies:
                    part["messages"] = self._messages(file, frame, context)
                yield part

    def _messages(self, file: File, frame: Frame, context: FrameContext) -> list[dict[str, Any]]:
        data = memoryview(file.read_at(frame.length, frame.position))
        try:
            batch = decode_frame(data, 0, frame, context, path=self._path)
        except (CorruptionError, MissingExtraError) as error:
            return [{"error": str(error)}]
        return [message_fields(record) for record in records_of(batch, "")]

    def _footer(self, file: File, size: int, tail: FooterTail | None, error: CorruptionError | None) -> Iterator[Part]:
        if tail is None:
            if error is not None:
                yield _damage(error.position or 0, size, error.message)
            yield {"part": "end", "position": size, "sealed": False}
            return
        try:
            SegmentIndex.decode(file.read_at(tail.entries * INDEX_ENTRY.size, tail.data_end), tail, self._path)
        except CorruptionError as wrong:
            yield _damage(tail.data_end, size - FOOTER_TAIL.size, wrong.message)
        yield _footer_part(tail)
        yield {"part": "end", "position": size, "sealed": True}


def _damage(position: int, end: int, reason: str) -> Part:
    return {"part": "damage", "position": position, "end": end, "reason": reason}


def _header_part(header: SegmentHeader) -> Part:
    return {
        "part": "header",
        "position": 0,
        "version": header.version,
        "checksum": header.checksum,
        "base": header.base,
        "topic": str(header.topic),
        "created": _time(header.created_ns),
        "salt": f"{header.salt:08x}",
    }


def _frame_part(frame: Frame) -> Part:
    return {
        "part": "frame",
        "position": frame.position,
        "length": frame.length,
        "kind": _KINDS.get(frame.kind, f"control {frame.kind:#x}"),
        "codec": frame.detail if frame.kind == KIND_BATCH else 0,
        "flags": [flag.name for flag in Flags if frame.flags & flag],
        "first": frame.first,
        "count": frame.records,
        "watermark": frame.watermark,
        "time": _time(frame.time_ns),
        "raw_bytes": frame.raw,
    }


def _footer_part(tail: FooterTail) -> Part:
    return {
        "part": "footer",
        "position": tail.data_end,
        "index_entries": tail.entries,
        "frames": tail.frames,
        "records": tail.records,
        "end": tail.end,
        "raw_bytes": tail.raw_bytes,
        "oldest": _time(tail.oldest_ns),
        "newest": _time(tail.newest_ns),
        "salt": f"{tail.salt:08x}",
    }


def _time(time_ns: int) -> str:
    """Return a time in UTC; as a number if it is out of a calendar's range, as in a damaged or hostile file."""
    try:
        seconds, rest = divmod(time_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"


def _lines(part: Part) -> Iterator[str]:
    """Yield a part as lines of text."""
    kind, position = part["part"], part["position"]
    if kind == "damage":
        text = f"to {part['end']}: {part['reason']}"
    elif kind == "frame":
        flags = f", {' '.join(part['flags'])}" if part["flags"] else ""
        codec = ", zstd" if part["codec"] else ""
        text = (
            f"{part['kind']}, {part['length']} bytes, messages {part['first']} to {part['first'] + part['count'] - 1}, "
            f"put {part['time']}, durable to {part['watermark']}{codec}{flags}"
        )
    elif kind == "zeros":
        text = f"to {part['end']}: written ahead, for frames to come"
    elif kind == "end":
        text = "sealed" if part["sealed"] else "not sealed"
    else:
        text = ", ".join(f"{name} {value}" for name, value in part.items() if name not in {"part", "position"})
    yield f"{position:>12} {kind:<7} {text}"
    for message in part.get("messages", ()):
        yield f"{'':>20} {' '.join(f'{name}={value!r}' for name, value in message.items() if name != 'timestamp_ns')}"
