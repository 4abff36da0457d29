"""Whether a task sees the store that the driver planned its work from.

A worker whose machine does not have the store's directory, or has an empty one where it would be mounted, looks to a
reader just as a topic whose segments were all deleted. That must never pass for messages that are gone.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.topic_meta import TOPIC_FILE, decode_meta, describe

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["require_seen"]


def require_seen(fs: FileSystem, directory: str, uuid: UUID) -> None:
    """Make sure that a topic's directory is here, and is that topic's. Blocking.

    Args:
        fs: this machine's files.
        directory: the topic's, as the driver named it.
        uuid: the topic's, as the driver found it.

    Raises:
        StoreNotFoundError: it is not here, or is another topic's; the message names this machine and the path.
        StorageError: as mapped from the system's error.
    """
    found = _uuid(fs, directory, uuid)
    if found == uuid:
        return
    here = f"the task on {socket.gethostname()}"
    if found is None:
        raise StoreNotFoundError(
            f"{here} does not see the topic that the read was planned from, or it was deleted since then: every worker "
            f"needs the store's directory, under the same path as the driver",
            directory,
        )
    raise StoreNotFoundError(
        f"{here} sees another topic there than the one that the read was planned from (uuid {found}, not {uuid}): it "
        f"is another store's, or the topic was deleted and made anew",
        directory,
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
    try:
        there = fs.is_directory(directory)
    except OSError as cause:
        raise storage_error(cause, directory) from cause
    if there and list_segments(fs, directory):
        return describe(fs, directory)[0].uuid
    return said


@lru_cache(maxsize=4096)
def _said(data: bytes, path: str) -> UUID:
    """Return whose description this is. A worker is asked for the same topics by every batch of a stream."""
    return decode_meta(data, path).uuid
