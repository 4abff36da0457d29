"""Zeros written ahead of a growing segment's end, so that the sync of a small write has no new size to commit.

A sync of a file that grew has its new size and its new blocks to commit as well as the bytes, which takes the device
longer than the bytes do. Measured on ext4, synced each time, beside appending: batches of 132 bytes go 1.5 times as
fast, of 13 KB twice, of 132 KB no faster. `posix_fallocate` and a larger size without blocks gain as much for the
smallest and nothing, or 1.3 times, for 13 KB: blocks that were never written cost a commit when they are.

INVARIANT: between a segment's last frame and its file's end are zeros and nothing else, but for a write that is under
way or failed. Whoever reads a segment without a footer takes them for not written; they end with the seal, at closing,
and at the next opening.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.storage.io.durable_io import write_all
from aiodq.storage.io.free_space import free_space

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["Preallocation"]

_PAGE: Final = 4096
_MOST: Final = 256 * 1024
"""Bytes of zeros at once: writing them holds the caller up for some 0.05 ms."""

_SMALL: Final = 64 * 1024
"""A sync of more bytes than these gains nothing."""

_SHARE: Final = 100
"""No more than the hundredth part of the free space is taken, so that many topics leave some to others."""

_ZEROS: Final = memoryview(bytes(_MOST))


class Preallocation:
    """The zeros behind one segment's last frame.

    As many are written as the segment has bytes of frames, 4 KiB at least and 256 at most, once those before are used
    up and as long as each sync covers little: a topic of a few messages has none, nor has one that is seldom synced.
    """

    def __init__(self, fs: FileSystem, file: File, path: str) -> None:
        """Begin without zeros."""
        self._fs = fs
        self._file = file
        self._path = path
        self._end = 0
        self._synced: int | None = None
        self._refused = False

    def synced(self, position: int) -> None:
        """Everything before `position` is on the device. May be called at any time."""
        self._synced = position

    def top_up(self, position: int, limit: int) -> None:
        """Write zeros from the frames' end on, not beyond `limit`, if few are left. That they cannot be is no error."""
        synced = self._synced
        if position < self._end or synced is None or position - synced > _SMALL or self._refused:
            return
        target = min(2 * position, position + _MOST, limit) // _PAGE * _PAGE
        if target - position < _PAGE or not self._has_room(target - position):
            return
        # CRASH: 15. Any part of them may be missing, and what is written over them later may be torn.
        try:
            self._end = write_all(self._file, [_ZEROS[: target - position]], position)
        except OSError:
            # Whatever got there is given back: others have more use for it.
            self._refused, self._end = True, target
            self.give_back(position)

    def _has_room(self, size: int) -> bool:
        free = free_space(self._fs, os.path.dirname(self._path))
        return free is None or size <= free // _SHARE

    def give_back(self, position: int) -> None:
        """Cut off the zeros behind the frames' end. Where that fails they stay, and are cut off at the next opening."""
        if self._end <= position:
            return
        with suppress(OSError):
            # CRASH: 15. Not synced; a power cut brings the zeros back, and the next opening cuts them off.
            self._file.truncate(position)
            self._end = 0

    def gone(self) -> None:
        """Somebody has cut the file off behind its frames."""
        self._end = 0
