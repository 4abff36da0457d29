"""Whether a task sees the store that the driver planned its work from.

A worker whose machine does not have the store's directory, or has an empty one where it would be mounted, looks to a
reader just as a topic whose segments were all deleted. That must never pass for messages that are gone. Nor must
another store, in which a topic of this one may lie that was copied there. A copy of the whole directory, with all that
it says of itself, cannot be told from it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.spark.objects import is_url
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.store_identity import STORE_FILE, decode_identity, read_identity
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, decode_meta, describe

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Place", "is_deleted", "require_seen", "store_uuid"]


class Place(NamedTuple):
    """Where a topic is, and whose it is: by that a task makes sure that it sees what planning saw.

    Attributes:
        directory: the topic's, as the driver named it.
        topic: its uuid.
        store: the store's, as `store_uuid` found it; None where that is not to be looked at.
        host: the name of the machine that found it.
    """

    directory: str
    topic: UUID
    store: UUID | None = None
    host: str = ""


def store_uuid(fs: FileSystem, store: str) -> UUID | None:
    """Return which store a read is planned from; None where nobody can say, or no task could see another. Blocking.

    An owner says it since there is such a file, and anew where that was damaged. A place in object storage is the same
    from every machine.

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
    """Make sure that a topic's directory is here, is that topic's, and lies in that store. Blocking.

    Args:
        fs: this machine's files.
        place: the topic's, as the driver found it.

    Raises:
        StoreNotFoundError: it is not here, or is another's; the message names this machine, the path and the uuids.
        StorageError: as mapped from the system's error.
    """
    found = _uuid(fs, place.directory, place.topic)
    if found == place.topic:
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
        f"{place.topic}): it is another store's, or the topic was deleted and made anew",
        place.directory,
    )


def is_deleted(fs: FileSystem, place: Place) -> bool:
    """Return whether a topic is there no more, or another one of its name, in a store that is seen. Blocking.

    Without the store's uuid nobody can tell that from a machine that does not see the store. Nor does any but the
    machine that found the topic: what was made a moment ago, another one's network file system may not show yet.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    if place.store is None or place.host != socket.gethostname():
        return False
    if store_uuid(fs, os.path.dirname(place.directory)) != place.store:
        return False
    with suppress(StoreNotFoundError):  # deleted while it is looked at
        # One that is being made anew has no description yet.
        return _uuid(fs, place.directory, place.topic) != place.topic
    return True


def _require_store(fs: FileSystem, place: Place) -> None:
    """Make sure of the store, where planning found out which it is. Damage does not say that it is another."""
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
    """Return which topic is there, or None where there is none; by its description mostly, else by its segments."""
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
        return describe(fs, directory)[0].uuid
    return said


@lru_cache(maxsize=4096)
def _said(data: bytes, path: str) -> UUID:
    """Return whose description this is. A worker is asked for the same topics by every batch of a stream."""
    return decode_meta(data, path).uuid


@lru_cache(maxsize=4096)
def _named(data: bytes, path: str) -> UUID:
    """Return which store this is, likewise."""
    return decode_identity(data, path)
