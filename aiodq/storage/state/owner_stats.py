"""Statistics that only a store's owner knows, published for other processes in `#figures`, beside the topics.

One line of JSON after its checksum, written in place about once a second while it changes, never synced, and removed at
close. Nothing depends on it: a reader that finds it torn, or left by an owner that is gone, shows nothing.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from aiodq.errors import StorageError
from aiodq.stats import Latency
from aiodq.storage.io.lock import is_locked
from aiodq.storage.io.processes import lives, pid_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["FIGURES", "ChannelFigures", "Figures", "read_figures", "remove_figures", "write_figures"]

FIGURES: Final = "#figures"

_LARGEST: Final = 64 << 20
_CHECKSUM: Final = 9
"""Eight hexadecimal digits and a space."""


class ChannelFigures(NamedTuple):
    """Statistics that only a channel's owner knows; named as in `ChannelStats`."""

    in_flight: int = 0
    timed_out: int = 0
    dead: int = 0
    dropped: int = 0
    put_to_deliver: Latency | None = None
    put_to_ack: Latency | None = None


Figures: TypeAlias = "Mapping[str, Mapping[str, ChannelFigures]]"
"""By topic, then by channel; missing ones are all zeros."""


def write_figures(fs: FileSystem, store: str, figures: Figures) -> None:
    """Publish these figures in place of the last ones. Blocking.

    Raises:
        OSError: they were not published.
    """
    path = os.path.join(store, FIGURES)
    text = json.dumps(
        {"pid": os.getpid(), "namespace": pid_namespace(), "topics": figures}, separators=(",", ":")
    ).encode()
    file = fs.open(path, write=True) if fs.exists(path) else fs.open(path, create=True)
    try:
        data = b"%08x %b" % (zlib.crc32(text), text)
        file.write_at([data], 0)
        file.truncate(len(data))
    finally:
        file.close()


def remove_figures(fs: FileSystem, store: str) -> None:
    """Remove the published figures. Blocking.

    Raises:
        OSError: the file is still there.
    """
    path = os.path.join(store, FIGURES)
    if fs.exists(path):
        fs.remove(path)


def read_figures(fs: FileSystem, store: str) -> Figures | None:
    """Return the figures of the store's owner; None if there is no owner, or it is writing them at this moment."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, StorageError):  # whatever junk there may be
        file = fs.open(os.path.join(store, FIGURES))
        try:
            data = file.read_at(min(file.size(), _LARGEST), 0)
        finally:
            file.close()
        text = data[_CHECKSUM:]
        found = json.loads(text) if int(data[:_CHECKSUM], 16) == zlib.crc32(text) else {}
        if _is_owned(store, found["pid"], found.get("namespace", 0)):
            topics = found["topics"].items()
            return {t: {c: _channel(*row) for c, row in rows.items()} for t, rows in topics}
    return None


def _is_owned(store: str, pid: int, namespace: int) -> bool:
    """Return whether the process that published the figures is still there, if need be by the store's lock."""
    return lives(pid) if namespace in {0, pid_namespace()} else is_locked(store)


def _channel(*row: Any) -> ChannelFigures:  # noqa: ANN401 - whatever junk there may be
    in_flight, timed_out, dead, dropped, put_to_deliver, put_to_ack = row
    counts = int(in_flight), int(timed_out), int(dead), int(dropped)
    return ChannelFigures(*counts, _latency(put_to_deliver), _latency(put_to_ack))


def _latency(row: Any) -> Latency | None:  # noqa: ANN401 - see above
    return None if row is None else Latency(int(row[0]), *map(float, row[1:]))
