"""Frames as Arrow arrays, without a Python loop over messages except where they have headers.

What `aiodq.format.decode` is for tuples of messages: the same frames are believed and the same are refused. A batch's
bodies are not copied; its lengths become the array's offsets. Only here and in `aiodq.storage.arrow` are pyarrow and
numpy imported.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from aiodq.errors import CorruptionError
from aiodq.format.columns import column_places, decode_headers
from aiodq.format.decode import whole_frame
from aiodq.format.frames import check_frame, decode_frame, frame_payload
from aiodq.format.layout import (
    ALIGNMENT,
    COMPACT_MIN,
    FRAME_PREFIX,
    FRAME_START,
    KIND_BATCH,
    KIND_COMPACT,
    NULL_LENGTH,
    TRAILER,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aiodq.format.frames import Frame, FrameContext
    from aiodq.format.layout import BytesLike

__all__ = ["COLUMNS", "ArrowDecoder", "ArrowRows", "joined", "schema_of"]

_TYPES: Final[dict[str, Any]] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "tag": pa.string(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
}
COLUMNS: Final[tuple[str, ...]] = tuple(_TYPES)
"""What a message is shown as; `timestamp` is when it was put."""

_PREFIX: Final = FRAME_PREFIX.size
_START: Final = FRAME_START.size
_LARGEST: Final = 2**31 - 1
"""The bytes that one array of `binary` can hold."""
_COMPACT: Final = 0xFFFF00FF
"""The bits of a frame's third word that tell a plain compact record: its kind, and no flags."""


def schema_of(columns: Collection[str] = COLUMNS) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return the schema of these columns, in their own order.

    Returns:
        A `pyarrow.Schema`. As Spark wants it, every column may be null; only `tag`, `key` and `headers` ever are.
    """
    return pa.schema([(name, kind) for name, kind in _TYPES.items() if name in columns])


@dataclass(slots=True)
class ArrowRows:
    """Records with consecutive offsets.

    Attributes:
        first: the first record's offset.
        stop: the offset behind the last record.
        position: the first frame's place in its segment, bytes.
        times: when each was put, nanoseconds since the epoch: an array of int64, or one number for all.
        arrays: `tag`, `key`, `headers` and `body` as far as they are wanted; None where none of the records has any.
    """

    first: int
    stop: int
    position: int
    times: Any
    arrays: dict[str, Any]

    @property
    def bytes(self) -> int:
        """The bodies' bytes, with those of their offsets."""
        body = self.arrays.get("body")
        return 0 if body is None else int(body.nbytes)

    def cut(self, start: int, stop: int) -> ArrowRows:
        """Return the part between two offsets."""
        if self.first >= start and self.stop <= stop:
            return self
        low, high = max(start - self.first, 0), min(stop, self.stop) - self.first
        times = self.times if isinstance(self.times, int) else self.times[low:high]
        arrays = {name: None if one is None else one.slice(low, high - low) for name, one in self.arrays.items()}
        return ArrowRows(self.first + low, self.first + high, self.position, times, arrays)


def joined(rows: Sequence[ArrowRows], name: str, topic: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a column of `COLUMNS` of all these rows as one array."""
    count = sum(one.stop - one.first for one in rows)
    if name == "topic":
        return pa.repeat(topic, count)
    if name == "offset":
        return _numbers(name, np.concatenate([np.arange(one.first, one.stop, dtype=np.int64) for one in rows]))
    if name == "timestamp":
        times = [
            np.full(one.stop - one.first, one.times, np.int64) if isinstance(one.times, int) else one.times
            for one in rows
        ]
        return _numbers(name, np.concatenate(times) // 1000)
    arrays = [one.arrays[name] for one in rows]
    if all(array is None for array in arrays):
        return pa.nulls(count, _TYPES[name])
    pieces = [
        pa.nulls(one.stop - one.first, _TYPES[name]) if array is None else array
        for one, array in zip(rows, arrays, strict=True)
    ]
    return pa.concat_arrays(pieces)


def _numbers(name: str, values: Any) -> Any:  # noqa: ANN401 - numpy's, pyarrow's
    """Return numbers as an array; `pyarrow.array` would look for pandas each time."""
    return pa.Array.from_buffers(_TYPES[name], len(values), [None, pa.py_buffer(values)])


class ArrowDecoder:
    """Like `aiodq.format.decode.decode_stretch`, of `ArrowRows`."""

    def __init__(self, columns: Collection[str] = COLUMNS, *, verify: bool = True) -> None:
        """Decode these columns.

        Args:
            columns: of `COLUMNS`; the lengths of the others are held against the frame all the same.
            verify: compare every frame's checksum.
        """
        self._wanted = frozenset(columns)
        self._verify = verify

    def __call__(
        self, data: bytes, context: FrameContext, *, position: int, limit: int, skip_below: int = 0, path: str = ""
    ) -> tuple[list[ArrowRows], int, CorruptionError | None]:
        """Decode whole frames from the start of `data`. Parameters and result as those of `decode_stretch`."""
        found: list[ArrowRows] = []
        view, words = memoryview(data), _words(data)
        at, end = 0, min(len(data), limit - position)
        try:
            while at < end:
                starts, stop = _walk(words, at, end)
                rows = self._compact(_Compact(view, words, starts, stop), context, position) if starts else None
                if rows is not None:
                    at = starts[rows.stop - rows.first] if rows.stop - rows.first < len(starts) else stop
                else:
                    frame = whole_frame(view, at, context, position=position, limit=limit, path=path)
                    if frame is None:
                        break
                    rows = self._frame(view, at, frame, context, path)
                    at += frame.length
                if rows.stop > max(rows.first, skip_below):
                    found.append(rows)
        except CorruptionError as error:
            return found, at, error
        return found, at, None

    def _compact(self, found: _Compact, context: FrameContext, position: int) -> ArrowRows | None:
        """Decode what `_walk` found, up to the first record that is not sound."""
        table, at = np.frombuffer(found.words, np.uint32), np.array(found.starts, np.int64)
        ends = np.append(at[1:], found.stop)
        word = at >> 2
        padding = (table[word + 2] >> 8 & 0xFF).astype(np.int64)
        body_ends = ends - TRAILER.size - padding
        sound = (padding < ALIGNMENT) & (body_ends >= at + _PREFIX)
        if self._verify:
            checksum, salt, view = context.checksum, context.salt, found.view
            crcs = [checksum(view[a + _START : b], salt) for a, b in zip(found.starts, ends.tolist(), strict=True)]
            sound &= table[word + 1] == np.array(crcs, np.uint32)
        else:
            sound &= table[ends - TRAILER.size >> 2] == table[word]
        count = len(at) if sound.all() else int(sound.argmin())
        if not count:
            return None
        arrays: dict[str, Any] = dict.fromkeys(("tag", "key", "headers"))
        if "body" in self._wanted:
            arrays["body"] = _pieces(found.view, at[:count] + _PREFIX, body_ends[:count])
        times = table[word[:count] + 5].astype(np.int64) | table[word[:count] + 6].astype(np.int64) << 32
        first = context.base + found.words[(found.starts[0] >> 2) + 3]
        return ArrowRows(first, first + count, position + found.starts[0], times, arrays)

    def _frame(self, view: memoryview, at: int, frame: Frame, context: FrameContext, path: str) -> ArrowRows:
        times: Any = frame.time_ns
        if frame.kind != KIND_BATCH:
            # A control frame, or a compact record that `_compact` would not believe: this tells why.
            batch = decode_frame(view, at, frame, context, path=path)
            arrays: dict[str, Any] = dict.fromkeys(("tag", "key", "headers"))
            arrays["body"] = pa.array(batch.columns.bodies, _TYPES["body"])
            return ArrowRows(frame.first, batch.stop, frame.position, times, arrays)
        if self._verify:
            check_frame(view, at, frame, context, path=path)
        payload = frame_payload(view, at, frame, path=path)
        try:
            own, arrays = _columns(self._wanted, payload, frame.records, frame.flags)
        except (ValueError, struct.error) as cause:
            message = f"the batch's columns do not add up: {cause}"
            raise CorruptionError(message, path, frame.position) from cause
        return ArrowRows(frame.first, frame.stop, frame.position, times if own is None else own, arrays)


class _Compact(NamedTuple):
    """Whole frames that look like compact records with consecutive offsets.

    Attributes:
        view: what they lie in.
        words: the same as u32.
        starts: where each begins.
        stop: where the last ends.
    """

    view: memoryview
    words: memoryview
    starts: list[int]
    stop: int


def _words(data: bytes) -> memoryview:
    """Return the data as u32, for a walk that costs next to nothing a frame."""
    whole = memoryview(data)[: len(data) // 4 * 4]
    if sys.byteorder == "little":
        return whole.cast("I")
    swapped = array("I", bytes(whole))
    swapped.byteswap()
    return memoryview(swapped)


def _walk(words: memoryview, at: int, end: int) -> tuple[list[int], int]:
    """Return where whole frames that look like compact records start, one behind the other, and where they end."""
    starts: list[int] = []
    add = starts.append
    last = end - COMPACT_MIN
    expected = words[(at >> 2) + 3] if at <= last else 0
    while at <= last:
        word = at >> 2
        length = words[word]
        stop = at + length
        if (
            words[word + 2] & _COMPACT != KIND_COMPACT
            or length % ALIGNMENT
            or length < COMPACT_MIN
            or stop > end
            or words[word + 3] != expected
        ):
            break
        add(at)
        at = stop
        expected += 1
    return starts, at


def _pieces(view: memoryview, starts: Any, ends: Any) -> Any:  # noqa: ANN401 - arrays of numpy and pyarrow
    """Return the bytes between these places, which do not overlap, as an array.

    They and what lies between them are one array without a copy, whose every other item is taken.
    """
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    between = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(view)])
    return between.take(_numbers("offset", np.arange(0, len(offsets), 2)))


def _columns(wanted: frozenset[str], payload: BytesLike, count: int, flags: int) -> tuple[Any, dict[str, Any]]:
    """Return the times, if records have their own, and the arrays."""
    places = column_places(len(payload), count, flags)
    times = None if places.times is None else np.frombuffer(payload, "<i8", count, places.times)
    arrays: dict[str, Any] = {}
    cursor = places.values
    for name, at in (("tag", places.tags), ("key", places.keys), ("headers", places.headers), ("body", places.bodies)):
        if at is None:
            arrays[name] = None
            continue
        lengths = np.frombuffer(payload, "<u4", count, at).astype(np.int64)
        missing = lengths == NULL_LENGTH if name != "body" else None
        if missing is not None:
            lengths[missing] = 0
        offsets = np.concatenate(([0], np.cumsum(lengths))) + cursor
        cursor = int(offsets[-1])
        if cursor > min(len(payload), _LARGEST):
            message = f"values that end at byte {cursor} of {len(payload)}"
            raise ValueError(message)
        if name in wanted:
            arrays[name] = _values(name, payload, offsets, missing)
    if cursor != len(payload):
        message = f"columns of {cursor} bytes in {len(payload)}"
        raise ValueError(message)
    return times, arrays


def _values(name: str, payload: BytesLike, offsets: Any, missing: Any) -> Any:  # noqa: ANN401 - numpy's, pyarrow's
    nulls = 0 if missing is None else int(missing.sum())
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if nulls else None
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(payload)]
    if name != "headers":
        found = pa.Array.from_buffers(_TYPES[name], len(offsets) - 1, buffers, nulls)
        if name == "tag":
            found.validate(full=True)  # UTF-8
        return found
    blobs = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, nulls)
    return pa.array(
        [None if blob is None else list(decode_headers(blob).items()) for blob in blobs.to_pylist()], _TYPES[name]
    )
