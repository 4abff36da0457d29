"""Checks that a task sees the store from which the driver planned its work.

If a worker's machine does not have the store's directory, or has an empty one where it should be mounted, it looks as
if all segments had been deleted. That must never be taken for deleted messages. Nor must another store be taken for
this one, even if a topic was copied there. A copy of the whole directory has the same uuids and cannot be recognised.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.spark.objects import is_url
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.store_identity import STORE_FILE, decode_identity, read_identity
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, decode_meta, find_meta

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Place", "is_deleted", "require_seen", "store_uuid"]


_UNNAMED: Final = UUID(int=0)
"""Stands for the uuid of a topic with segments of which no file says which topic it is."""


class Place(NamedTuple):
    """Where a topic is, and which one it is: a task checks with this that it sees what planning saw.

    Attributes:
        directory: the topic's, as the driver named it.
        topic: the uuid of the topic.
        store: the uuid of its store, as `store_uuid` found it; None if it is not to be checked.
        host: the name of the machine that planned the read.
        named: whether a file says which topic it is: where none does, each look makes up another uuid.
    """

    directory: str
    topic: UUID
    store: UUID | None = None
    host: str = ""
    named: bool = True


def store_uuid(fs: FileSystem, store: str) -> UUID | None:
    """Return the uuid of the store that a read is planned from; None if it is unknown or needs no check. Blocking.

    An owner writes it when it creates the store, and a new one if its file was damaged. A URL of object storage is the
    same place from every machine, so it needs no check.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    if is_url(store):
        return None
    with suppress(CorruptionError):
        return read_identity(fs, store)
    return None


def require_seen(fs: FileSystem, place: Place) -> None:
    """Make sure that a topic's directory is on this machine, holds that topic, and lies in that store. Blocking.

    Args:
        fs: the file system of this machine.
        place: the topic, as the driver found it.

    Raises:
        StoreNotFoundError: it is not here, or is another one; the message names this machine, the path and the uuids.
        StorageError: as mapped from the system's error.
    """
    expected = place.topic if place.named else _UNNAMED
    found = _uuid(fs, place.directory, expected)
    if found == expected:
        _require_store(fs, place)
        return
    here = f"the task on {socket.gethostname()}"
    if found is None:
        raise StoreNotFoundError(
            f"{here} does not see the topic that the read was planned from, or it was deleted since then: every worker "
            f"needs the store's directory, under the same path as the driver",
            place.directory,
        )
    raise StoreNotFoundError(
        f"{here} sees another topic there than the one that the read was planned from (uuid {found}, not "
        f"{place.topic}): it is another store's, or the topic was deleted and created again",
        place.directory,
    )


def is_deleted(fs: FileSystem, place: Place) -> bool:
    """Return whether a topic was deleted, or replaced by another one of its name, in a store that is visible. Blocking.

    Without the store's uuid, this cannot be told from a machine that does not see the store. And only the machine that
    planned the read can tell: the network file system of another one may not show new files yet.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    if place.store is None or place.host != socket.gethostname():
        return False
    if store_uuid(fs, os.path.dirname(place.directory)) != place.store:
        return False
    with suppress(StoreNotFoundError):  # deleted meanwhile
        # A topic that is just being created has no description yet.
        expected = place.topic if place.named else _UNNAMED
        return _uuid(fs, place.directory, expected) != expected
    return True


def _require_store(fs: FileSystem, place: Place) -> None:
    """Check the store, if planning has found its uuid. A damaged uuid does not count as another one."""
    if place.store is None:
        return
    store = os.path.dirname(place.directory)
    path = os.path.join(store, STORE_FILE)
    data = read_file(fs, path)
    with suppress(CorruptionError):
        found = None if data is None else _named(data, path)
        if found != place.store:
            raise StoreNotFoundError(
                f"the task on {socket.gethostname()} sees another store there than the one that the read was planned "
                f"from (uuid {found or 'unknown'}, not {place.store}), though with the same topic, as if that "
                f"was copied there; every worker needs the store's own directory",
                store,
            )


def _uuid(fs: FileSystem, directory: str, expected: UUID) -> UUID | None:
    """Return the uuid of the topic that is there, or None: from its description, or else from its segments."""
    said = None
    with suppress(CorruptionError):
        path = os.path.join(directory, TOPIC_FILE)
        data = read_file(fs, path)
        said = None if data is None else _said(data, path)
        if said == expected:
            return expected
    with os_errors(directory):
        there = fs.is_directory(directory)
    if there and list_segments(fs, directory):
        meta, _, _, named = find_meta(fs, directory)
        return meta.uuid if named else _UNNAMED
    return said


@lru_cache(maxsize=4096)
def _said(data: bytes, path: str) -> UUID:
    """Return the uuid in a description. It is cached, as every batch of a stream asks a worker for the same topics."""
    return decode_meta(data, path).uuid


@lru_cache(maxsize=4096)
def _named(data: bytes, path: str) -> UUID:
    """Return the uuid of a store; cached, likewise."""
    return decode_identity(data, path)
