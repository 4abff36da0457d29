"""Finding frames at unknown positions: after damage, or backward from the end."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError
from aiodq.format.frame import read_prefix
from aiodq.format.layout import ALIGNMENT, COMPACT_MIN, CONTROL_KINDS, KIND_BATCH, KIND_COMPACT, TRAILER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.frame import Frame, FrameContext

__all__ = ["candidate_frames", "frame_before"]

_KIND_AT: Final = 8
_KINDS: Final = bytes(sorted({KIND_BATCH, KIND_COMPACT, *CONTROL_KINDS}))
_CANDIDATE: Final = re.compile(b"[" + re.escape(_KINDS) + b"][\x00-\x07]", re.DOTALL)


def candidate_frames(data: bytes, context: FrameContext, *, position: int, limit: int) -> Iterator[Frame]:
    """Yield what looks like a frame's prefix in `data`; only the shape is checked.

    Args:
        data: bytes of the file from `position` on.
        context: the segment's.
        position: where `data` starts in the file.
        limit: the file's end for frames, bytes.
    """
    view = memoryview(data)
    for match in _CANDIDATE.finditer(data, _KIND_AT):
        at = match.start() - _KIND_AT
        if (position + at) % ALIGNMENT:
            continue
        with suppress(CorruptionError):
            yield read_prefix(view, at, context, position=position + at, limit=limit)


def frame_before(data: bytes, at: int, context: FrameContext, *, position: int, limit: int, path: str = "") -> Frame:
    """Return the frame that ends at `data[at]`, by its trailing length. Its checksum is not checked.

    Raises:
        CorruptionError: no frame ends there, or `data` does not hold all of it.
    """
    where = position + at
    if at < COMPACT_MIN:
        message = "no frame ends here"
        raise CorruptionError(message, path, where)
    (length,) = TRAILER.unpack_from(data, at - TRAILER.size)
    if not COMPACT_MIN <= length <= at:
        message = f"a frame of {length} bytes does not fit before this place"
        raise CorruptionError(message, path, where)
    frame = read_prefix(data, at - length, context, position=where - length, limit=limit, path=path)
    if frame.length != length:
        message = "the frame's two lengths differ"
        raise CorruptionError(message, path, frame.position)
    return frame
