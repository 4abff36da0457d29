"""The free space where a store lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["free_space"]


def free_space(fs: FileSystem, path: str) -> int | None:
    """Return the bytes that may still be written at `path`, or None if the file system does not tell. Blocking."""
    # Not a method of `FileSystem`: no stored data depend on it, and not every file system has a limit.
    measure: Callable[[str], int | None] | None = getattr(fs, "free_space", None)
    if measure is None:
        return None
    try:
        return measure(path)
    except OSError:
        return None
