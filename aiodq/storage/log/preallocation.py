"""Preallocation: zeros written ahead of a growing segment's end, so that a sync has no new size to commit.

A sync of a file that grew commits the new size and the new blocks as well as the bytes, which takes the device longer
than the bytes do. Measured on ext4, synced each time, against appending: batches of 132 bytes are 1.5 times as fast, of
13 KB twice, of 132 KB no faster. `posix_fallocate` and a larger size without blocks gain as much for the smallest, but
nothing, or 1.3 times, for 13 KB: blocks that were never written cost a commit at their first write.

Where there are many small puts and none waits for a sync, a write window may be opened over the zeros (see
`aiodq.storage.io.write_window`): then a put needs no system call.

INVARIANT: between a segment's last frame and its file's end are only zeros, except for a write that is in progress or
failed. Readers of a segment without a footer treat the zeros as not written; sealing, closing and the next opening
remove them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.storage.io.durable_io import write_all
from aiodq.storage.io.file_pool import PooledFile
from aiodq.storage.io.filesystem import free_space
from aiodq.storage.io.write_window import GRANULARITY

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["Preallocation"]

_PAGE: Final = 4096
_MOST: Final = 256 * 1024
"""Zeros written at once, in bytes: writing them blocks for about 0.05 ms."""

_SMALL: Final = 64 * 1024
"""Bytes in one sync above which zeros gain nothing."""

_FIRST_WINDOW: Final = 64 * 1024
"""Bytes of frames that a segment's owner has written before it opens a window: most topics are small, or quiet."""

_LARGEST: Final = 4 * 1024
"""Bytes of a write above which a window gains nothing: zeros and page faults take as long as it saves."""

_SHARE: Final = 100
"""One part in so many of the free space is used at most, so that many topics leave room for others."""

_ZEROS: Final = memoryview(bytes(_MOST))


class Preallocation:
    """The zeros after one segment's last frame.

    As many are written as the segment has bytes of frames, between 4 and 256 KiB, once the previous ones are used up,
    and as long as each sync covers little: a topic of a few messages has none, nor has one that is seldom synced.
    """

    def __init__(self, fs: FileSystem, file: File, path: str, position: int) -> None:
        """Start without zeros, with frames up to `position`."""
        self._fs = fs
        self._file = file
        self._path = path
        self._pooled = file if isinstance(file, PooledFile) else None
        self._windows = False
        self._first_window = position + _FIRST_WINDOW
        self._end = self._window_end = 0
        self._synced: int | None = None
        self._refused = False

    def synced(self, position: int) -> None:
        """Note that everything before `position` is on the device. May be called at any time."""
        self._synced = position

    def allow_windows(self, *, allowed: bool) -> None:
        """Open write windows where they gain something, or none any more."""
        self._windows = allowed
        if not allowed and self._window_end and self._pooled is not None:
            self._pooled.close_window()
            self._window_end = 0

    def wrote(self, position: int, limit: int, size: int) -> None:
        """Prepare for what follows a write: zeros where each sync covers little, else a window where writes are small.

        Args:
            position: where it ended, which is the frames' end.
            limit: the position after which nothing is written.
            size: its bytes.
        """
        synced = self._synced
        if synced is not None and position - synced <= _SMALL:
            if position >= self._end:
                self.top_up(position, limit)
        elif position + 2 * _PAGE >= self._window_end and position >= self._first_window and size <= _LARGEST:
            self._open_window(position, limit)

    def top_up(self, position: int, limit: int) -> None:
        """Write zeros from the frames' end on, not beyond `limit`, if few are left. Failing to do so is no error."""
        synced = self._synced
        if position < self._end or synced is None or position - synced > _SMALL or self._refused:
            return
        target = min(2 * position, position + _MOST, limit) // _PAGE * _PAGE
        if target - position >= _PAGE:
            self._fill(position, target, position)

    def _open_window(self, position: int, limit: int) -> None:
        """Have what follows be written through memory, into zeros, as far as `limit`."""
        pooled = self._pooled
        target = min(position + _MOST, limit) // _PAGE * _PAGE
        if not self._windows or pooled is None or self._refused or target - position < _SMALL:
            return
        if not self._fill(max(position, self._end), target, position):
            return
        if pooled.open_window(position // GRANULARITY * GRANULARITY, target):
            self._window_end = target
        else:
            self._pooled = None

    def _fill(self, begin: int, end: int, position: int) -> bool:
        """Write zeros from `begin` to `end`, if there is room; if that fails, truncate all after `position`."""
        if begin >= end:
            return True
        if not self._has_room(end - begin):
            return False
        # CRASH: 15. Any part of them may be missing, and later writes over them may be torn.
        try:
            self._end = write_all(self._file, [_ZEROS[: end - begin]], begin)
        except OSError:
            # What was written is given back: others need the space more.
            self._refused, self._end = True, end
            self.give_back(position)
            return False
        return True

    def _has_room(self, size: int) -> bool:
        free = free_space(self._fs, os.path.dirname(self._path))
        return free is None or size <= free // _SHARE

    def give_back(self, position: int) -> None:
        """Truncate the zeros after the frames' end. If that fails they stay until the next opening."""
        if self._end <= position:
            return
        with suppress(OSError):
            # CRASH: 15. Not synced; a power cut brings the zeros back, and the next opening truncates them.
            self._file.truncate(position)
            self._end = self._window_end = 0

    def gone(self) -> None:
        """Note that the file was truncated after its frames."""
        self._end = self._window_end = 0
