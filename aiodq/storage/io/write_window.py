"""Write windows: the end of a growing file, mapped into memory, so that a small write is no call of the system.

A store into a shared mapping reaches the page cache as a `write` does: it outlives the process, readers of the file see
it, and `fdatasync` covers it. For a hundred bytes it takes a fifth of the time of a `pwrite`.

But where a `write` reports an error, a store into a mapping kills the process (SIGBUS): if there is no space for a page
that was never written, or if the file has become shorter. So a window is opened only over bytes that were already
written by `write`, and only on file systems that overwrite in place: copy-on-write ones would need new space. The
remaining risk is a device that cannot read back a page that was written moments ago.

An error that makes a file system read-only is noticed with the next call for the file: a sync, or the zeros of the next
window, after at most 256 KiB of small puts.

The file's times change only at the first store into a page that has been written back, and its size does not change at
all. Programs that compare those, such as incremental backups, may miss what was stored since; closing truncates the
file, which changes both.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.storage.io.mounts import file_system_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.layout import BytesLike

__all__ = ["GRANULARITY", "MOST_WINDOWS", "WriteWindow", "mapped", "window_of"]

GRANULARITY: Final = mmap.ALLOCATIONGRANULARITY
"""Bytes of which a window's beginning is a multiple."""

MOST_WINDOWS: Final = 32
"""The windows of one store at once: each takes a descriptor, and its pages count as the process's memory."""

_IN_PLACE: Final = frozenset({"ext2", "ext3", "ext4", "tmpfs"})
"""File systems, by their kernel names, that never copy on write. On xfs, a file of which a copy shares blocks does."""


class WriteWindow(Protocol):
    """Bytes of a file, to be written by slices."""

    def __setitem__(self, where: slice, data: BytesLike, /) -> None:
        """Write `data`, which is as long as the slice."""
        ...


def window_of(file: object, begin: int, end: int) -> WriteWindow | None:
    """Return a window over these bytes of a file, or None where it has none.

    Args:
        file: a `File` that has bytes up to `end`, and that only the caller truncates.
        begin: where the window begins, a multiple of `GRANULARITY`.
        end: where it ends.
    """
    # Not a method of `File`: no stored data depend on it, and a file that has none is written anyway.
    window: Callable[[int, int], WriteWindow | None] | None = getattr(file, "window", None)
    return None if window is None else window(begin, end)


def mapped(descriptor: int, begin: int, end: int, in_place: dict[int, bool]) -> WriteWindow | None:
    """Return a window over these bytes of an open file, or None where it is unsafe or impossible.

    Args:
        descriptor: the file's.
        begin: as for `window_of`.
        end: likewise.
        in_place: which devices are known to be written in place. It is kept as long as files on them are: the system
            gives the number of a file system that was unmounted to the next one, of any kind.
    """
    if sys.platform != "linux":  # elsewhere, a sync of the file need not cover what was stored in a mapping
        return None
    try:
        device = os.fstat(descriptor).st_dev
        if device not in in_place:
            in_place[device] = file_system_type(device) in _IN_PLACE
        if not in_place[device]:
            return None
        return mmap.mmap(descriptor, end - begin, offset=begin)
    except (OSError, ValueError):
        return None
