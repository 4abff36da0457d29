"""The directory of a shared store: it must be on a local disk, and must stay where it was opened."""

from __future__ import annotations

import os
from typing import Final

from aiodq.errors import StorageError, StoreNotFoundError
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.mounts import file_system_type
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.storage.state.store_identity import STORE_FILE

__all__ = ["StoreDirectory", "refuse_network"]

_NETWORK: Final = frozenset(
    {
        "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs",
        "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.moosefs",
        "fuse.mfs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs",
    }
)  # fmt: skip
"""File systems that several machines may mount at once, by their kernel names."""


def refuse_network(directory: str) -> None:
    """Check that only processes of this machine can open the store, as far as is known.

    Locks of a network file system may hold on one machine only, or not at all, and the owner's socket never reaches
    another machine: two machines would own the store at once.

    Raises:
        StorageError: it is, or would be, on a network file system.
    """
    kind = _file_system(directory)
    if kind in _NETWORK:
        text = (
            f"the store lies on a network file system ({kind}), to which other machines may write, and whose locks are "
            "not reliable: put a shared store on a disk of this machine, or open it in one process only, in mode "
            '"exclusive"'
        )
        raise StorageError(text, directory)


def _file_system(directory: str) -> str | None:
    """Return the type of the file system that a directory is or would be on; None if unknown."""
    try:
        while not os.path.lexists(directory):
            directory = os.path.dirname(directory)
        return file_system_type(os.stat(directory).st_dev)
    except OSError:
        return None


class StoreDirectory:
    """The identity of a store's directory: another one may have its path later.

    Attributes:
        path: the directory's.
    """

    def __init__(self, directory: str) -> None:
        """Set up before the store is open."""
        self.path: str = directory
        self._seen: os.stat_result | None = None
        self._filled = False

    def settle(self) -> None:
        """Record the directory's identity, as the store is open now.

        Raises:
            StorageError: as mapped from the system's error.
        """
        with os_errors(self.path):
            self._seen = os.stat(self.path)

    def look(self) -> None:
        """Note whether the store has topics by now, so that a later deletion is noticed."""
        self._filled = self._filled or self._has(STORE_FILE)

    def _has(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.path, name))

    def check(self) -> None:
        """Check that the path still leads to the store that was opened.

        Raises:
            StoreNotFoundError: it was renamed or removed; anything at its path now is another one. Or it was emptied,
                as by `rm -rf`, which leaves a directory in which something was made meanwhile.
            StorageError: as mapped from the system's error.
        """
        if self._seen is None:
            return
        try:
            there = os.path.samestat(self._seen, os.stat(self.path))
        except FileNotFoundError:
            there = False
        except OSError as cause:
            raise storage_error(cause, self.path) from cause
        if not there:
            text = "the directory was renamed, removed or replaced while the store was open: open it where it is now"
            raise StoreNotFoundError(text, self.path)
        if self._filled and not self._has(STORE_FILE) and not self._has(LOCK_NAME):
            text = "what was in the directory was deleted while the store was open: open it again to make a new store"
            raise StoreNotFoundError(text, self.path)
