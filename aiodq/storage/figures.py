"""What only the owner of a store knows of its channels, shown to those who look on: `#figures`, beside the topics.

One line of JSON behind its checksum, written in place about once a second while it changes, never synced, and removed
at close. Nothing depends on it: a reader that finds it torn, or left behind by an owner that is gone, shows nothing.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.storage.filesystem import FileSystem

__all__ = ["FIGURES", "ChannelFigures", "Figures", "read_figures", "remove_figures", "write_figures"]

FIGURES: Final = "#figures"

_LARGEST: Final = 64 << 20
_CHECKSUM: Final = 9
"""Eight hexadecimal digits and a space."""


class ChannelFigures(NamedTuple):
    """Messages of a channel in flight now, and timed out and given up since the store was opened."""

    in_flight: int
    timed_out: int
    dead: int


Figures: TypeAlias = "Mapping[str, Mapping[str, ChannelFigures]]"
"""By topic, then by channel; what is missing is all zeros."""


def write_figures(fs: FileSystem, store: str, figures: Figures) -> None:
    """Show these figures instead of the last. Blocking.

    Raises:
        OSError: they are not shown.
    """
    path = os.path.join(store, FIGURES)
    text = json.dumps({"pid": os.getpid(), "topics": figures}, separators=(",", ":")).encode()
    file = fs.open(path, write=True) if fs.exists(path) else fs.open(path, create=True)
    try:
        data = b"%08x %b" % (zlib.crc32(text), text)
        file.write_at([data], 0)
        file.truncate(len(data))
    finally:
        file.close()


def remove_figures(fs: FileSystem, store: str) -> None:
    """Show nothing any more. Blocking.

    Raises:
        OSError: the file is still there.
    """
    path = os.path.join(store, FIGURES)
    if fs.exists(path):
        fs.remove(path)


def read_figures(fs: FileSystem, store: str) -> Figures | None:
    """Return what the store's owner shows; None where nobody owns it, or it is showing something else right now."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # whatever junk there may be
        file = fs.open(os.path.join(store, FIGURES))
        try:
            data = file.read_at(min(file.size(), _LARGEST), 0)
        finally:
            file.close()
        text = data[_CHECKSUM:]
        found = json.loads(text) if int(data[:_CHECKSUM], 16) == zlib.crc32(text) else {}
        if _lives(found["pid"]):
            topics = found["topics"].items()
            return {t: {c: ChannelFigures(*map(int, row)) for c, row in rows.items()} for t, rows in topics}
    return None


def _lives(pid: int) -> bool:
    """Return whether there is such a process. On Windows, where asking would kill it, there always is."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return pid > 0
