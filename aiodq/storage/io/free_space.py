"""How much room there is where a store lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["free_space"]


def free_space(fs: FileSystem, path: str) -> int | None:
    """Return the bytes that may still be written at `path`, or None where the file system does not tell. Blocking."""
    # Not a method of `FileSystem`: nothing that is stored depends on it, and not all of them have a bound.
    measure: Callable[[str], int | None] | None = getattr(fs, "free_space", None)
    if measure is None:
        return None
    try:
        return measure(path)
    except OSError:
        return None
