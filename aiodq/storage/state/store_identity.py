"""`#store`: which store this is, beside its topics, so that a reader elsewhere can tell it from another one.

A store has one as long as it has a topic: an older aiodq takes a directory for no store that holds this file and
nothing else but `LOCK`. One that was written before there was such a file gets it when it is next opened.
"""

from __future__ import annotations

import os
import threading
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
"""No topic may be called so."""

_VERSION: Final = 1


def encode_identity(uuid: UUID) -> bytes:
    """Return the file's bytes."""
    return encode_checked("store", _VERSION, {"uuid": str(uuid)})


def decode_identity(data: bytes, path: str) -> UUID:
    """Return which store the file's bytes say it is.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    found = decode_checked(data, "store", _VERSION, path, "the store's description")
    with taking_apart(path, "the store's description"):
        return UUID(found["uuid"])


def read_identity(fs: FileSystem, store: str) -> UUID | None:
    """Return which store this is; None where nobody has said yet. Blocking.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = os.path.join(store, STORE_FILE)
    data = read_file(fs, path)
    return None if data is None else decode_identity(data, path)


class StoreIdentity:
    """The file, for the store's owner: made once there is a topic, gone with the last of them.

    Only readers elsewhere need it, who without it go by the topics' uuids alone. So where the system refuses to read or
    to write it, the store does without until it is opened again, and nobody is told. A sync that failed is another
    matter: as everywhere, it stops the store.

    Attributes:
        damages: what was there and could not be read.
    """

    def __init__(self, fs: FileSystem, store: str) -> None:
        """Look at what is there. Blocking; nothing is written.

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
        """Have the file made unless it was, now that there is a topic: durably, or not at all. Blocking.

        What is damaged is quarantined first. After the first time this costs nothing, however that went.

        Raises:
            StoreFailedError: a sync failed.
        """
        with self._mutex:
            if self._settled:
                return
            self._settled = True
            try:
                self._set_aside()
                # CRASH: 17. Without it the next owner makes another one: nobody has been told of this one durably.
                replace_file(self._fs, self._path, encode_identity(uuid4()))
            except StoreFailedError:
                raise
            except StorageError:
                return
            self._there = True

    def drop(self, has_topics: Callable[[], bool]) -> None:
        """Remove the file if there is no topic any more; with the next one it is another store. Blocking.

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
            # CRASH: 7. Until there is another one, the store is as those that were written before there were any.
            quarantine_file(self._fs, self._path)
            self._damaged = False
