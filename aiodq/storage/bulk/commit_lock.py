"""The lock of bulk commits, and how an owner and a committer wait for each other (`aiodq.storage.bulk.commits`)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.errors import StoreLockedError
from aiodq.storage.io.durable_io import ensure_directory
from aiodq.storage.io.filesystem import locked, locked_in_turn
from aiodq.storage.io.os_errors import storage_error

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import FileSystem, Lock

__all__ = ["COMMITS", "lock_commits", "lock_store", "try_commits"]

COMMITS: Final = "#commits"
"""The directory of the records and their lock. No topic may have this name."""


def lock_commits(fs: FileSystem, store: str) -> Lock:
    """Take the lock that admits one committer at a time, waiting for others for some seconds. Blocking.

    Raises:
        StoreLockedError: others are still committing.
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, COMMITS)
    ensure_directory(fs, directory)
    return locked_in_turn(fs, directory)


def try_commits(fs: FileSystem, store: str) -> Lock:
    """Take the same lock, or fail at once. Blocking.

    Raises:
        StoreLockedError: others are committing.
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, COMMITS)
    ensure_directory(fs, directory)
    return locked(fs, directory)


def lock_store(fs: FileSystem, store: str) -> Lock:
    """Take the lock of a store's owner, waiting while a committer holds it for a moment. Blocking.

    Raises:
        StoreLockedError: another owner has it.
        StorageError: as mapped from the system's error.
    """
    return locked_in_turn(fs, store, leaving=partial(_is_committing, fs, store))


def _is_committing(fs: FileSystem, store: str) -> bool:
    try:
        directory = os.path.join(store, COMMITS)
        if fs.is_directory(directory):
            locked(fs, directory).release()
    except StoreLockedError:
        return True
    except OSError as cause:
        raise storage_error(cause, store) from cause
    return False
