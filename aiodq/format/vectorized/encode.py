"""Arrow arrays as frames, without a Python loop over messages: an array holds its values joined, as a payload does.

The counterpart of `aiodq.format.vectorized.arrow`. The frames are those of `aiodq.format.frame`, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiodq.format.columns import Columns, Flags
from aiodq.format.frame import encode_batch, encode_run
from aiodq.format.layout import FRAME_BYTES, FRAME_RECORDS, NULL_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Encoded, FrameContext
    from aiodq.format.vectorized.arrow import Arrow
    from aiodq.format.vectorized.frame_arrays import Array

__all__ = ["ArrowColumns", "ArrowPart"]

_TAGS, _KEYS = int(Flags.TAGS), int(Flags.KEYS)
_OFFSET: Final = 4
"""Bytes of an offset in an array of `binary`."""


@dataclass(slots=True)
class _Values:
    """One value per record.

    Attributes:
        data: bytes that hold all of them, joined.
        offsets: where each begins in `data`, and where the last one ends.
        missing: whether each is null; None if none is.
    """

    data: memoryview
    offsets: Array
    missing: Array | None

    @classmethod
    def of(cls, array: Arrow) -> _Values:
        """Return those of an array of binary values or text, at least one."""
        array, missing = array.cast(pa.binary()), None
        if array.null_count:
            missing = array.is_null().to_numpy(zero_copy_only=False)
            array = array.fill_null(b"")  # any bytes may lie where a null is
        _, places, data = array.buffers()
        offsets = np.frombuffer(places, np.int32, len(array) + 1, _OFFSET * array.offset)
        return cls(memoryview(b"" if data is None else data).cast("B"), offsets, missing)

    def slice(self, start: int, stop: int) -> _Values:
        """Return the values `start` to `stop`."""
        missing = None if self.missing is None else self.missing[start:stop]
        return _Values(self.data, self.offsets[start : stop + 1], missing)

    def lengths(self) -> bytes:
        """Return the column of their lengths."""
        lengths = (self.offsets[1:] - self.offsets[:-1]).astype("<u4")
        if self.missing is not None:
            lengths[self.missing] = NULL_LENGTH
        return bytes(lengths)

    def joined(self) -> bytes:
        """Return a copy of them: what waits to be written keeps no array alive, which may be much larger."""
        return self.data[self.offsets[0] : self.offsets[-1]].tobytes()


@dataclass(slots=True)
class ArrowPart:
    """The records of one frame, as `ArrowColumns.parts` yields them."""

    _bodies: _Values
    _tags: _Values | None
    _keys: _Values | None

    @property
    def records(self) -> int:
        """Their number."""
        return len(self._bodies.offsets) - 1

    def encode(self, context: FrameContext, *, first: int, watermark: int, time_ns: int, codec: int) -> Encoded:
        """Return their frame. The parameters are those of `aiodq.format.frame.encode_frames`."""
        bodies = self._bodies.joined()
        if self.records == 1 and self._tags is None and self._keys is None:
            (one,) = encode_run(
                Columns([bodies]), context, first=first, watermark=watermark, time_ns=time_ns, codec=codec, atomic=False
            )
            return one
        flags, lengths, values = 0, [self._bodies.lengths()], []
        for flag, labels in ((_TAGS, self._tags), (_KEYS, self._keys)):
            if labels is not None:
                flags |= flag
                lengths.append(labels.lengths())
                values.append(labels.joined())
        payload = [*lengths, *values, bodies]
        return encode_batch(payload, self.records, context, first, watermark, time_ns, codec=codec, flags=flags)


class ArrowColumns:
    """Records in Arrow arrays: the counterpart of `Columns`, for those that have bodies, tags and keys."""

    def __init__(self, bodies: Arrow, tags: Arrow = None, keys: Arrow = None) -> None:
        """Take arrays of the same length, at least 1.

        Args:
            bodies: binary values or text, none of them null.
            tags: text that is valid; None: no record has any.
            keys: binary values or text; None: no record has any.
        """
        self._bodies = _Values.of(bodies)
        self._tags = None if tags is None else _Values.of(tags)
        self._keys = None if keys is None else _Values.of(keys)
        # Where each ends, by the sizes that decide when a frame is full: `Columns.sizes`, which counts characters.
        self._ends = self._bodies.offsets
        if tags is not None:
            characters = pc.utf8_length(tags).fill_null(0).to_numpy(zero_copy_only=False)
            self._ends = self._ends + np.append(0, np.cumsum(characters, dtype=np.int64))
        if self._keys is not None:
            self._ends = self._ends + self._keys.offsets.astype(np.int64)

    def parts(self) -> Iterator[ArrowPart]:
        """Yield what goes into one frame each: the slices that `aiodq.format.frame.slice_frames` would make."""
        ends, last = memoryview(self._ends), len(self._ends) - 1
        start = 0
        while start < last:
            most = min(start + FRAME_RECORDS, last)
            stop = max(bisect_right(ends, ends[start] + FRAME_BYTES, start + 1, most + 1) - 1, start + 1)
            tags, keys = (None if values is None else values.slice(start, stop) for values in (self._tags, self._keys))
            yield ArrowPart(self._bodies.slice(start, stop), tags, keys)
            start = stop
