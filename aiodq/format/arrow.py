"""Frames as Arrow arrays, without a Python loop over messages except where they have headers.

What `aiodq.format.decode` is for tuples of messages: the same frames are believed and the same are refused. A batch's
bodies are not copied; its lengths become the array's offsets. Only here and in `aiodq.storage.arrow` are pyarrow and
numpy imported.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final

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
    from collections.abc import Collection, Iterator, Sequence

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
        length: the frames' bytes.
        size: about the bytes of the rows, decompressed.
        flags: the frame's, `aiodq.format.columns.Flags`.
        times: when each was put, nanoseconds since the epoch: an array of int64, or one number for all.
        arrays: `tag`, `key`, `headers` and `body` as far as they are wanted; None where none of the records has any.
    """

    first: int
    stop: int
    position: int
    length: int
    size: int
    flags: int
    times: Any
    arrays: dict[str, Any]

    def cut(self, start: int, stop: int) -> ArrowRows:
        """Return the part between two offsets."""
        if self.first >= start and self.stop <= stop:
            return self
        low, high = max(start - self.first, 0), min(stop, self.stop) - self.first
        times = self.times if isinstance(self.times, int) else self.times[low:high]
        arrays = {name: None if one is None else one.slice(low, high - low) for name, one in self.arrays.items()}
        size = self.size * (high - low) // (self.stop - self.first)
        first, stop = self.first + low, self.first + high
        return replace(self, first=first, stop=stop, size=size, times=times, arrays=arrays)


def joined(rows: Sequence[ArrowRows], name: str, topic: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a column of `COLUMNS` of all these rows as one array."""
    count = sum(one.stop - one.first for one in rows)
    if name == "topic":
        return _same(topic, _at_least(count)).slice(0, count)
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
        return _nulls(name, _at_least(count)).slice(0, count)
    pieces = [
        pa.nulls(one.stop - one.first, _TYPES[name]) if array is None else array
        for one, array in zip(rows, arrays, strict=True)
    ]
    return pa.concat_arrays(pieces)


def _at_least(count: int) -> int:
    """Return a power of two, so that batches of nearly one size share arrays in which every value is the same."""
    return 1 << (count - 1).bit_length()


@lru_cache(maxsize=8)
def _same(topic: str, count: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    return pa.repeat(topic, count)


@lru_cache(maxsize=8)
def _nulls(name: str, count: int) -> Any:  # noqa: ANN401 - likewise
    return pa.nulls(count, _TYPES[name])


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
        end = min(len(data), limit - position)
        frames = _Frames(data, end)
        at = 0
        try:
            for low, high in frames.groups():
                while low < high:
                    at = frames.starts[low]
                    rows = self._compact(frames, low, high, context, position) if frames.compact[low] else None
                    if rows is None:
                        frame = whole_frame(frames.view, at, context, position=position, limit=limit, path=path)
                        if frame is None:
                            return found, at, None
                        rows = self._frame(frames.view, at, frame, context, path)
                        low += 1  # noqa: PLW2901 - a compact group may end early, at a frame that tells why
                    else:
                        low += rows.stop - rows.first  # noqa: PLW2901 - likewise
                    at += rows.length
                    if rows.stop > max(rows.first, skip_below):
                        found.append(rows)
            if at < end:
                # Cut short, or no frame: this tells which.
                whole_frame(frames.view, at, context, position=position, limit=limit, path=path)
        except CorruptionError as error:
            return found, at, error
        return found, at, None

    def _compact(self, frames: _Frames, low: int, high: int, context: FrameContext, position: int) -> ArrowRows | None:
        """Decode neighbouring compact records, up to the first that is not sound."""
        starts, ends = frames.at[low:high], frames.ends[low:high]
        padding = frames.padding[low:high]
        body_ends = ends - TRAILER.size - padding
        sound = (padding < ALIGNMENT) & (body_ends >= starts + _PREFIX)
        if self._verify:
            checksum, salt, data = context.checksum, context.salt, frames.data
            covered = map(data.__getitem__, map(slice, (starts + _START).tolist(), ends.tolist()))
            sound &= frames.crcs[low:high] == np.fromiter(map(checksum, covered, repeat(salt)), np.uint32, high - low)
        else:
            sound &= frames.trailing_lengths(low, high) == ends - starts
        count = high - low if sound.all() else int(sound.argmin())
        if not count:
            return None
        arrays: dict[str, Any] = dict.fromkeys(("tag", "key", "headers"))
        if "body" in self._wanted:
            arrays["body"] = _pieces(frames.view, starts[:count] + _PREFIX, body_ends[:count])
        first, at = context.base + int(frames.relative[low]), int(starts[0])
        length = int(ends[count - 1]) - at
        times = frames.times(low, low + count)
        return ArrowRows(first, first + count, position + at, length, length, 0, times, arrays)

    def _frame(self, view: memoryview, at: int, frame: Frame, context: FrameContext, path: str) -> ArrowRows:
        times: Any = frame.time_ns
        if frame.kind != KIND_BATCH:
            # A control frame, or a compact record that `_compact` would not believe: this tells why.
            batch = decode_frame(view, at, frame, context, path=path)
            arrays: dict[str, Any] = dict.fromkeys(("tag", "key", "headers"))
            arrays["body"] = pa.array(batch.columns.bodies, _TYPES["body"])
            return ArrowRows(
                frame.first, batch.stop, frame.position, frame.length, frame.length, frame.flags, times, arrays
            )
        if self._verify:
            check_frame(view, at, frame, context, path=path)
        payload = frame_payload(view, at, frame, path=path)
        try:
            own, arrays = _columns(self._wanted, payload, frame.records, frame.flags)
        except (ValueError, struct.error) as cause:
            message = f"the batch's columns do not add up: {cause}"
            raise CorruptionError(message, path, frame.position) from cause
        times = frame.time_ns if own is None else own
        size = len(payload)
        return ArrowRows(frame.first, frame.stop, frame.position, frame.length, size, frame.flags, times, arrays)


class _Frames:
    """The frames in some data, found by their lengths alone; nothing of them is believed yet.

    Behind something that is no frame there may be more that are none; going through them in order, one meets it first.

    Attributes:
        data: what they lie in; `view` is the same.
        starts: where each begins; `at` is the same.
        ends: where each ends.
        compact: whether each looks like a plain compact record.
        relative: the offset of each in its segment.
        crcs: the checksum of each, as it says.
        padding: the bytes behind each body, if it is a compact record.
    """

    def __init__(self, data: bytes, end: int) -> None:
        """Find those that lie before `end`."""
        self.data = data
        self.view = memoryview(data)
        words = _words(data)
        self.starts = _walk(words, end)
        self._table = np.frombuffer(words, np.uint32)
        self.at = np.array(self.starts, np.int64)
        self._word = self.at >> 2
        lengths = self._table[self._word].astype(np.int64)
        self.ends = self.at + lengths
        self.crcs = self._table[self._word + 1]
        kind = self._table[self._word + 2]
        self.compact = (kind & _COMPACT == KIND_COMPACT) & (lengths % ALIGNMENT == 0) & (self.ends <= end)
        self.padding = (kind >> 8 & 0xFF).astype(np.int64)
        self.relative = self._table[self._word + 3].astype(np.int64)

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers from which and up to which there are compact records with consecutive offsets, or one."""
        linked = self.compact[1:] & self.compact[:-1] & (np.diff(self.relative) == 1)
        breaks = [0, *(np.flatnonzero(~linked) + 1).tolist(), len(self.starts)]
        return pairwise(breaks)

    def trailing_lengths(self, low: int, high: int) -> Any:  # noqa: ANN401 - numpy has types that say nothing
        """Return the lengths that stand at the ends of compact records."""
        return self._table[self.ends[low:high] - TRAILER.size >> 2].astype(np.int64)

    def times(self, low: int, high: int) -> Any:  # noqa: ANN401 - likewise
        """Return when each was put, nanoseconds since the epoch."""
        word = self._word[low:high]
        return self._table[word + 5].astype(np.int64) | self._table[word + 6].astype(np.int64) << 32


def _words(data: bytes) -> memoryview:
    """Return the data as u32, for a walk that costs next to nothing a frame."""
    whole = memoryview(data)[: len(data) // 4 * 4]
    if sys.byteorder == "little":
        return whole.cast("I")
    swapped = array("I", bytes(whole))
    swapped.byteswap()
    return memoryview(swapped)


def _walk(words: memoryview, end: int) -> list[int]:
    """Return where frames start that lie one behind the other, by their lengths."""
    starts: list[int] = []
    add = starts.append
    at, last = 0, end - COMPACT_MIN
    while at <= last:
        add(at)
        length = words[at >> 2]
        if length < COMPACT_MIN:
            break
        at += length
    return starts


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
        lengths = np.frombuffer(payload, "<u4", count, at)
        missing = None if name == "body" else lengths == NULL_LENGTH
        if missing is not None:
            lengths = np.where(missing, 0, lengths)
        offsets = np.empty(count + 1, np.int64)
        offsets[0] = 0
        lengths.cumsum(dtype=np.int64, out=offsets[1:])
        offsets += cursor
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
