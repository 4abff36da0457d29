"""Which transactions of whom are committed, for as long as one may come again: `#origins`, beside the topics.

A transaction's own block says whose it is, as long as it stands in the file of transactions. Before that file is
emptied, what it says is kept here, with what was known before: by producer, and by lane of it (`aiodq.wire`, TXN), the
last sequence and when it was committed, as JSON. A store that was never shared has no such file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aiodq.errors import CorruptionError
from aiodq.format.producers import Origin
from aiodq.storage.io.durable_io import read_file, replace_file
from aiodq.storage.io.quarantine import quarantine_file
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["LANE_SHIFT", "ORIGINS", "TransactionOrigins", "read_origins"]

ORIGINS: Final = "#origins"
"""No topic may be called so."""

LANE_SHIFT: Final = 40
"""A sequence's lane stands above so many bits; of a lane, sequences rise."""

_VERSION: Final = 1
_MOST: Final = 1 << 16
"""Lanes known; beyond that those are forgotten that have been silent for longest."""

_IDLE_NS: Final = 3600 * 1_000_000_000
"""After such a time a lane is forgotten."""


def read_origins(fs: FileSystem, store: str) -> list[tuple[Origin, int]]:
    """Return what is kept, each with the time of its commit, the one that was silent for longest first. Blocking.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = os.path.join(store, ORIGINS)
    data = read_file(fs, path)
    if data is None:
        return []
    found = decode_checked(data, "origins", _VERSION, path, "the file of origins")
    with taking_apart(path, "the file of origins"):
        return [
            (Origin(int(producer), int(sequence)), int(time)) for producer, sequence, time in found["last"]
        ]  # fmt: skip


class TransactionOrigins:
    """The last transaction of each lane of each producer, the one that was silent for longest first."""

    def __init__(self, fs: FileSystem, store: str, found: Iterable[Origin]) -> None:
        """Know of those that were found in the file of transactions; `recall` reads the rest."""
        self._fs = fs
        self._store = store
        self._found: list[Origin] = list(found)
        self._last: dict[tuple[int, int], tuple[int, int]] | None = None
        self._changed = bool(self._found)

    def __contains__(self, origin: Origin) -> bool:
        """Return whether a transaction is committed, or one behind it: a lane has one under way at a time."""
        last = (self._last or {}).get(_lane(origin))
        return last is not None and origin.sequence <= last[0]

    def note(self, origin: Origin, now_ns: int) -> None:
        """A transaction is committed. `recall` comes before."""
        if self._last is not None:
            self._note(self._last, origin, now_ns)
            self._changed = True

    @staticmethod
    def _note(last: dict[tuple[int, int], tuple[int, int]], origin: Origin, now_ns: int) -> None:
        before = last.pop(_lane(origin), (0, 0))[0]
        last[_lane(origin)] = max(origin.sequence, before), now_ns
        while len(last) > _MOST:
            del last[next(iter(last))]

    def recall(self, now_ns: int) -> None:
        """Know what was kept, and what stands in the file of transactions. Blocking.

        Raises:
            FormatVersionError: a newer version.
            StorageError: as mapped from the system's error.
        """
        if self._last is not None:
            return
        try:
            kept = read_origins(self._fs, self._store)
        except CorruptionError:
            # What it said is lost with it; what stands in the file of transactions is known all the same.
            quarantine_file(self._fs, os.path.join(self._store, ORIGINS))
            kept = []
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for origin, time in (*kept, *((origin, now_ns) for origin in self._found)):
            self._note(last, origin, time)
        self._found.clear()
        self._last = last

    def keep(self, now_ns: int) -> None:
        """Keep durably what is known, if that is more than what was kept before. Blocking.

        Raises:
            StorageError: as mapped from the system's error; what was kept before is.
        """
        if not self._changed:
            return
        self.recall(now_ns)
        rows = [(lane[0], *last) for lane, last in (self._last or {}).items() if last[1] > now_ns - _IDLE_NS]
        # CRASH: 16. Until the new content is durable, the file of transactions says it, which is emptied after that.
        replace_file(self._fs, os.path.join(self._store, ORIGINS), encode_checked("origins", _VERSION, {"last": rows}))
        self._changed = False


def _lane(origin: Origin) -> tuple[int, int]:
    return origin.producer, origin.sequence >> LANE_SHIFT
