"""The origins of committed transactions, for as long as one may be repeated: `#origins`, beside the topics.

A transaction's block holds its origin as long as it stands in the transaction log. Before that log is emptied, the
origins are saved here, with those known before, as JSON: the last sequence of each producer and lane (`aiodq.wire`,
TXN), and when it was committed. A store that was never shared has no such file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.producers import Origin
from aiodq.storage.io.durable_io import read_file, replace_file
from aiodq.storage.io.quarantine import Damage, quarantine_file
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart
from aiodq.storage.state.seen_time import SeenTime

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["LANE_SHIFT", "ORIGINS", "TransactionOrigins", "read_origins"]

ORIGINS: Final = "#origins"
"""The file of the origins. No topic may have this name."""

LANE_SHIFT: Final = 40
"""The lane is the part of a sequence above this many bits; within a lane, sequences rise."""

_VERSION: Final = 1
_MOST: Final = 1 << 16
"""Lanes known; beyond that, those silent for longest are forgotten."""

_IDLE_NS: Final = 3600 * 1_000_000_000
"""Nanoseconds of silence, as seen by the commits of others, after which a lane is forgotten."""


def read_origins(fs: FileSystem, store: str) -> list[tuple[Origin, int]]:
    """Return the saved origins, each with the time of its commit, the one silent for longest first. Blocking.

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


class _Last(NamedTuple):
    """The last transaction of a lane: its sequence, and when it was committed, by the wall clock and as seen here."""

    sequence: int
    time_ns: int
    seen_ns: int


class TransactionOrigins:
    """The last transaction of each lane of each producer, the one silent for longest first.

    Attributes:
        damages: what could not be read of the saved ones; the file is quarantined.
    """

    def __init__(self, fs: FileSystem, store: str, found: Iterable[Origin], now_ns: int) -> None:
        """Load the saved origins, and add those found in the transaction log. Blocking.

        Raises:
            FormatVersionError: a newer version.
            StorageError: as mapped from the system's error.
        """
        self.damages: list[Damage] = []
        self._fs = fs
        self._store = store
        self._last: dict[tuple[int, int], _Last] = {}
        self._time = SeenTime()
        self._changed = False
        for origin, time in self._saved():
            self._note(origin, time)
        for origin in found:
            self.note(origin, now_ns)

    def __contains__(self, origin: Origin) -> bool:
        """Return whether a transaction, or a later one of its lane, is committed: a lane has one in flight."""
        last = self._last.get(_lane(origin))
        return last is not None and origin.sequence <= last.sequence

    def note(self, origin: Origin, now_ns: int) -> None:
        """Add a committed transaction."""
        self._note(origin, now_ns)
        self._changed = True

    def _note(self, origin: Origin, time_ns: int) -> None:
        before = self._last.pop(_lane(origin), None)
        sequence = origin.sequence if before is None else max(origin.sequence, before.sequence)
        self._last[_lane(origin)] = _Last(sequence, time_ns, self._time.see(time_ns))
        while len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    def _saved(self) -> list[tuple[Origin, int]]:
        try:
            return read_origins(self._fs, self._store)
        except CorruptionError as error:
            # Its contents are lost; the origins in the transaction log are still known.
            path = os.path.join(self._store, ORIGINS)
            size = len(read_file(self._fs, path) or b"")
            self.damages.append(Damage(quarantine_file(self._fs, path), 0, size, error.message))
            return []

    def keep(self, now_ns: int) -> None:
        """Save the known origins durably, if there are new ones. Blocking.

        Raises:
            StorageError: as mapped from the system's error; the saved ones stand.
        """
        if not self._changed:
            return
        since = self._time.see(now_ns) - _IDLE_NS
        rows = [(lane[0], last.sequence, last.time_ns) for lane, last in self._last.items() if last.seen_ns > since]
        # CRASH: 16. Until the new content is durable, the transaction log holds it, which is emptied after that.
        replace_file(self._fs, os.path.join(self._store, ORIGINS), encode_checked("origins", _VERSION, {"last": rows}))
        self._changed = False


def _lane(origin: Origin) -> tuple[int, int]:
    return origin.producer, origin.sequence >> LANE_SHIFT
