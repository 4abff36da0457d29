"""Frames as Arrow arrays, without a Python loop over messages except where they have headers.

The counterpart of `aiodq.format.decode`: it accepts and refuses the same frames, except for what `frame_arrays` says of
damage that cancels out. A batch's bodies are not copied; its lengths become the array's offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from aiodq.errors import CorruptionError
from aiodq.format.columns import CONTINUED, CONTINUES, Columns, column_places, decode_headers
from aiodq.format.decode import whole_frame
from aiodq.format.frame import check_frame, decode_frame, frame_payload
from aiodq.format.layout import KIND_BATCH, NULL_LENGTH
from aiodq.format.vectorized.frame_arrays import COMPACT, LABELLED, OTHER, PLAIN, FrameArrays, leading

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aiodq.format.frame import Batch, Frame, FrameContext
    from aiodq.format.layout import BytesLike
    from aiodq.format.vectorized.frame_arrays import Array, Values

__all__ = ["COLUMNS", "Arrow", "ArrowDecoder", "ArrowRows", "joined", "schema_of"]

Arrow: TypeAlias = Any
"""An array, a type, a schema or a table of pyarrow, which has no types of its own."""

_TYPES: Final[dict[str, Arrow]] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "tag": pa.string(),
    "key": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
}
COLUMNS: Final[tuple[str, ...]] = tuple(_TYPES)
"""The columns of a message; `timestamp` is the put time."""

_FEW: Final = 4
"""Frames from which on decoding them together is faster than one by one."""
_SMALL: Final = 64
"""Messages of a batch, on average, below which they are gathered one by one, not batch by batch."""
_SMALL_BYTES: Final = 16 * 1024
"""Bytes of a payload below which a batch is decoded message by message if it has few: above, copying takes longer."""
_LARGEST: Final = 2**31 - 1
"""Most bytes that one array of `binary` can hold."""


def schema_of(columns: Collection[str] = COLUMNS) -> Arrow:
    """Return the schema of these columns, in canonical order.

    Returns:
        A `pyarrow.Schema`. As Spark requires, every column is nullable; only `tag`, `key` and `headers` ever are null.
    """
    return pa.schema([(name, kind) for name, kind in _TYPES.items() if name in columns])


@dataclass(slots=True)
class ArrowRows:
    """Records with consecutive offsets.

    Attributes:
        first: the first record's offset.
        stop: the offset after the last record.
        position: the first frame's position in its segment, bytes.
        length: the length of the frames, bytes.
        size: about the size of the rows, decompressed, bytes.
        flags: the frame's `aiodq.format.columns.Flags`; of several frames only the first one's `CONTINUES` and the last
            one's `CONTINUED`, between which only whole runs begin or end.
        times: put times, nanoseconds since the epoch: an array of int64, or one number for all.
        arrays: those of `tag`, `key`, `headers` and `body` that are wanted, in one piece or several; None if no record
            has a value.
    """

    first: int
    stop: int
    position: int
    length: int
    size: int
    flags: int
    times: Array | int
    arrays: dict[str, Arrow]

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


def joined(rows: Sequence[ArrowRows], name: str, topic: str) -> Arrow:
    """Return one of the `COLUMNS` of all these rows as one array."""
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
    pieces: list[Arrow] = []
    for one, array in zip(rows, arrays, strict=True):
        if isinstance(array, pa.ChunkedArray):
            pieces += array.chunks
        else:
            pieces.append(pa.nulls(one.stop - one.first, _TYPES[name]) if array is None else array)
    return pa.concat_arrays(pieces)


def _at_least(count: int) -> int:
    """Return a power of two, so that batches of similar size share the arrays whose values are all the same."""
    return 1 << (count - 1).bit_length()


@lru_cache(maxsize=8)
def _same(topic: str, count: int) -> Arrow:
    return pa.repeat(topic, count)


@lru_cache(maxsize=8)
def _nulls(name: str, count: int) -> Arrow:
    return pa.nulls(count, _TYPES[name])


def _numbers(name: str, values: Array) -> Arrow:
    """Return numbers as an array; `pyarrow.array` would look for pandas at each call."""
    return pa.Array.from_buffers(_TYPES[name], len(values), [None, pa.py_buffer(values)])


class ArrowDecoder:
    """A decoder like `aiodq.format.decode.decode_frames` that returns `ArrowRows`."""

    def __init__(self, columns: Collection[str] = COLUMNS, *, verify: bool = True) -> None:
        """Decode these columns.

        Args:
            columns: some of `COLUMNS`; the lengths of the others are checked against the frame all the same.
            verify: compare every frame's checksum.
        """
        self._wanted = frozenset(columns)
        self._verify = verify

    def __call__(
        self, data: bytes, context: FrameContext, *, position: int, limit: int, skip_below: int = 0, path: str = ""
    ) -> tuple[list[ArrowRows], int, CorruptionError | None]:
        """Decode whole frames from the start of `data`. Parameters and result are those of `decode_frames`."""
        found: list[ArrowRows] = []
        few = _FewEach(found, self._wanted)
        end = min(len(data), limit - position)
        frames = FrameArrays(data, end)
        at = 0
        try:
            for low, high in frames.groups():
                while low < high:
                    several, rows = self._several(frames, low, high, context, position)
                    if rows is None:
                        # A single frame, or an invalid one, for which this gives the reason.
                        at = int(frames.starts[low])
                        frame = whole_frame(frames.view, at, context, position=position, limit=limit, path=path)
                        if frame is None:
                            return found, at, None
                        low += 1  # noqa: PLW2901 - a group may end early
                        if not frame.records or frame.stop <= skip_below:
                            check_frame(frames.view, at, frame, context, path=path)
                            at += frame.length
                            continue
                        if self._verify and _has_few(frame):
                            few.add(decode_frame(frames.view, at, frame, context, path=path))
                            at += frame.length
                            continue
                        rows = self._frame(frames.view, at, frame, context, path)
                    low += several  # noqa: PLW2901 - likewise
                    at = rows.position - position + rows.length
                    if rows.stop > max(rows.first, skip_below):
                        few.flush()
                        found.append(rows)
            if at < end:
                # Incomplete, or not a frame: this tells which.
                whole_frame(frames.view, at, context, position=position, limit=limit, path=path)
        except CorruptionError as error:
            return found, at, error
        finally:
            few.flush()
        return found, at, None

    def _several(
        self, frames: FrameArrays, low: int, high: int, context: FrameContext, position: int
    ) -> tuple[int, ArrowRows | None]:
        """Decode the frames of a group together, up to the first invalid one. Return their number.

        The rows are None if decoding one by one is faster, or the only way.
        """
        kind = frames.kinds[low]
        if (frames.kinds[low:high] == LABELLED).any():
            return self._singles(frames, low, high, context, position)
        high = frames.together(low, high)
        if kind == OTHER or (high - low < _FEW and (kind == PLAIN or self._verify)):
            return 0, None
        offsets, heads, sound = frames.bodies(low, high)
        count = leading(sound)
        if count and self._verify:
            count = frames.unchanged(low, low + count, context)
        if not count:
            return 0, None
        high = frames.together(low, low + count)
        count = high - low
        records = frames.records[low:high]
        times = frames.times(low, high)
        arrays: dict[str, Arrow] = dict.fromkeys(("tag", "key", "headers"))
        if "body" in self._wanted:
            offsets = offsets[: heads[count - 1] + records[-1] + 1]
            arrays["body"] = _bodies(frames.view, offsets, heads[:count], None if kind == COMPACT else records)
        first, at = context.base + frames.first(low), int(frames.starts[low])
        stop, length = first + int(records.sum()), int(frames.ends[high - 1]) - at
        times = times if kind == COMPACT else np.repeat(times, records)
        return count, ArrowRows(first, stop, position + at, length, length, frames.run_flags(low, high), times, arrays)

    def _singles(
        self, frames: FrameArrays, low: int, high: int, context: FrameContext, position: int
    ) -> tuple[int, ArrowRows | None]:
        """Do as `_several` for records that have a frame each, some of them with more than a body."""
        if self._verify and high - low < _FEW:
            return 0, None
        values, sound = frames.values(low, high)
        count = leading(sound)
        if count and self._verify:
            count = frames.unchanged(low, low + count, context)
        if not count:
            return 0, None
        arrays: dict[str, Arrow] = dict.fromkeys(("tag", "key", "headers"))
        try:
            for name in self._wanted & values.keys():
                arrays[name] = _gathered(name, frames.view, values[name], count)
        except (ValueError, struct.error):
            # One of them is no text: what is before it is found by halves.
            return self._singles(frames, low, low + count // 2, context, position)
        first, at = context.base + frames.first(low), int(frames.starts[low])
        length = int(frames.ends[low + count - 1]) - at
        times = frames.times(low, low + count)
        return count, ArrowRows(first, first + count, position + at, length, length, 0, times, arrays)

    def _frame(self, view: memoryview, at: int, frame: Frame, context: FrameContext, path: str) -> ArrowRows:
        times: Array | int = frame.time_ns
        if frame.kind != KIND_BATCH:
            batch = decode_frame(view, at, frame, context, path=path)
            arrays: dict[str, Arrow] = dict.fromkeys(("tag", "key", "headers"))
            if "body" in self._wanted:
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


class _FewEach:
    """Batches of few records each, as small transactions put them: arrays are made of many at once."""

    def __init__(self, found: list[ArrowRows], wanted: frozenset[str]) -> None:
        """Add rows with these columns to `found`."""
        self._found = found
        self._wanted = wanted
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        if self._batches and self._batches[-1].stop != batch.first:
            self.flush()
        self._batches.append(batch)

    def flush(self) -> None:
        """Make arrays of what was added."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        first, last = batches[0], batches[-1]
        times = [batch.columns.times or [batch.time_ns] * len(batch.columns.bodies) for batch in batches]
        columns = Columns.joined([batch.columns for batch in batches])
        headers = None if columns.headers is None else [list(one.items()) or None for one in columns.headers]
        lists: dict[str, Sequence[Any] | None]
        lists = {"tag": columns.tags, "key": columns.keys, "headers": headers, "body": columns.bodies}
        arrays: dict[str, Arrow] = dict.fromkeys(("tag", "key", "headers"))
        for name in self._wanted & lists.keys():
            arrays[name] = None if lists[name] is None else pa.array(lists[name], _TYPES[name])
        length = last.position + last.length - first.position
        all_times = np.array([*chain.from_iterable(times)], np.int64)
        self._found.append(ArrowRows(first.first, last.stop, first.position, length, length, 0, all_times, arrays))


def _has_few(frame: Frame) -> bool:
    """Return whether a frame is a small batch that is in no run."""
    small = frame.records <= _SMALL and frame.raw <= _SMALL_BYTES
    return small and frame.kind == KIND_BATCH and not frame.flags & (CONTINUES | CONTINUED)


def _bodies(view: memoryview, offsets: Array, heads: Array, counts: Array) -> Arrow:
    """Return bodies as an array, in pieces if frames have several each.

    They and the bytes between them form one array without a copy.

    Args:
        view: the bytes that hold them.
        offsets: where each begins in `view`, which is where the previous one ends, or what follows that.
        heads: the index of the first body's offset, for each frame.
        counts: the number of bodies of each frame; None if each has one.
    """
    places = pa.py_buffer(offsets.astype(np.int32))
    all_of_it = pa.Array.from_buffers(_TYPES["body"], len(offsets) - 1, [None, places, pa.py_buffer(view)])
    if counts is None:
        return all_of_it.take(_numbers("offset", heads))
    if len(offsets) < _SMALL * len(heads):
        bodies = np.ones(len(offsets) - 1, np.bool_)
        bodies[heads[1:] - 1] = False
        return all_of_it.take(_numbers("offset", np.flatnonzero(bodies)))
    return pa.chunked_array(map(all_of_it.slice, heads.tolist(), counts.tolist()), _TYPES["body"])


def _gathered(name: str, view: memoryview, values: Values, count: int) -> Arrow:
    """Return the first `count` values as an array; None if all are missing.

    Raises:
        ValueError, struct.error: one of them is not what was written.
    """
    missing = values.missing[:count]
    if missing.all():
        return None
    kind = _TYPES[name] if name != "headers" else pa.binary()
    places = pa.py_buffer(values.offsets[: 2 * count].astype(np.int32))
    all_of_it = pa.Array.from_buffers(kind, 2 * count - 1, [None, places, pa.py_buffer(view)])
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    numbers = pa.py_buffer(np.arange(0, 2 * count, 2))
    return _checked(name, all_of_it.take(pa.Array.from_buffers(pa.int64(), count, [valid, numbers])))


def _checked(name: str, values: Arrow) -> Arrow:
    """Return the values of a column, of headers those that their bytes mean, after checking what is text.

    Raises:
        ValueError, struct.error: one of them is not what was written.
    """
    if name == "headers":
        decoded = [None if blob is None else list(decode_headers(blob).items()) for blob in values.to_pylist()]
        return pa.array(decoded, _TYPES[name])
    if name == "tag":
        values.validate(full=True)  # UTF-8
    return values


def _columns(wanted: frozenset[str], payload: BytesLike, count: int, flags: int) -> tuple[Array, dict[str, Arrow]]:
    """Return the times, if records have their own, and the arrays."""
    places = column_places(len(payload), count, flags)
    times = None if places.times is None else np.frombuffer(payload, "<i8", count, places.times)
    arrays: dict[str, Arrow] = {}
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


def _values(name: str, payload: BytesLike, offsets: Array, missing: Array) -> Arrow:
    nulls = 0 if missing is None else int(missing.sum())
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if nulls else None
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(payload)]
    kind = _TYPES[name] if name != "headers" else pa.binary()
    return _checked(name, pa.Array.from_buffers(kind, len(offsets) - 1, buffers, nulls))
