"""The identity of a store, `#store` beside its topics, by which a reader elsewhere tells it from another store.

A store has one as long as it has a topic: to an older aiodq, a directory that holds only this file and `LOCK` is not a
store. A store that was written before the file existed gets it when it is next opened.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from aiodq.errors import CorruptionError, FormatVersionError, StorageError, StoreFailedError
from aiodq.storage.io.durable_io import read_file, replace_file
from aiodq.storage.io.quarantine import Damage, quarantine_file
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["STORE_FILE", "StoreIdentity", "decode_identity", "encode_identity", "read_identity"]

STORE_FILE: Final = "#store"
"""The file of the identity. No topic may have this name."""

_VERSION: Final = 1


def encode_identity(uuid: UUID) -> bytes:
    """Encode the file."""
    return encode_checked("store", _VERSION, {"uuid": str(uuid)})


def decode_identity(data: bytes, path: str) -> UUID:
    """Decode the file and return the store's uuid.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    found = decode_checked(data, "store", _VERSION, path, "the store's description")
    with taking_apart(path, "the store's description"):
        return UUID(found["uuid"])


def read_identity(fs: FileSystem, store: str) -> UUID | None:
    """Return the store's uuid, or None if it has none yet. Blocking.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = os.path.join(store, STORE_FILE)
    data = read_file(fs, path)
    return None if data is None else decode_identity(data, path)


class StoreIdentity:
    """The file of a store's identity, as its owner writes it: made with the first topic, removed with the last.

    Only readers elsewhere need it; without it, they go by the topics' uuids alone. So if the system refuses to read or
    write it, the store does without it until it is opened again, silently. A failed sync is another matter: as
    everywhere, it stops the store.

    Attributes:
        damages: what existed and could not be read.
    """

    def __init__(self, fs: FileSystem, store: str) -> None:
        """Read the file. Blocking; nothing is written.

        Raises:
            FormatVersionError: a newer version.
        """
        self.damages: list[Damage] = []
        self._fs = fs
        self._path = os.path.join(store, STORE_FILE)
        self._mutex = threading.Lock()
        self._settled = self._there = False
        try:
            self._settled = self._there = read_identity(fs, store) is not None
        except FormatVersionError:
            raise
        except CorruptionError as error:
            self.damages.append(Damage(self._path, 0, 0, error.message))
        except StorageError:
            self._settled = True
        self._damaged = bool(self.damages)

    def make(self) -> None:
        """Make the file, unless it exists, now that there is a topic: durably, or not at all. Blocking.

        A damaged file is quarantined first. Only the first call does anything, whatever its outcome.

        Raises:
            StoreFailedError: a sync failed.
        """
        with self._mutex:
            if self._settled:
                return
            self._settled = True
            try:
                self._set_aside()
                # CRASH: 17. If it is lost, the next owner makes another one: nothing has relied on this one yet.
                replace_file(self._fs, self._path, encode_identity(uuid4()))
            except StoreFailedError:
                raise
            except StorageError:
                return
            self._there = True

    def ruined(self) -> bool:
        """Return whether another program has deleted the file. Blocking."""
        with self._mutex, suppress(StorageError):  # where it cannot be read, nothing is known
            return self._there and read_file(self._fs, self._path) is None
        return False

    def drop(self, has_topics: Callable[[], bool]) -> None:
        """Remove the file if no topic is left; with the next topic the store gets a new identity. Blocking.

        Raises:
            StoreFailedError: a sync failed.
        """
        with self._mutex:
            try:
                if not (self._there or self._damaged) or has_topics():
                    return
                self._set_aside()
                if self._there:
                    # CRASH: the next owner of a store without topics finds it, and drops it.
                    self._fs.remove(self._path)
            except StoreFailedError:
                raise
            except (OSError, StorageError):
                return
            self._there = self._settled = False

    def _set_aside(self) -> None:
        if self._damaged:
            # CRASH: 7. Until there is another one, the store is like one that was written before the file existed.
            quarantine_file(self._fs, self._path)
            self._damaged = False
