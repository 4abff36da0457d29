"""The owner of files that root creates in another user's store: that user, as for everything else there.

Otherwise an administrator's command on the store of a service would leave files that the service may not open.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

__all__ = ["belong", "socket_belongs"]


def belong(fd: int, directory: str | int) -> None:
    """Give what root has just created in a directory to the directory's user and group, if that is not root.

    Args:
        fd: a descriptor of the new file. Its name is not used: another process could put a different file under it.
        directory: its path or descriptor.
    """
    with suppress(OSError):  # then root keeps it, as where the system has its own rules
        if (whose := _whose(directory)) is not None and os.fstat(fd).st_uid == 0:
            os.fchown(fd, whose.st_uid, whose.st_gid)


def socket_belongs(path: str, directory: str) -> None:
    """Do as `belong` does with a socket, which cannot be opened."""
    if not hasattr(os, "O_PATH"):
        return
    with suppress(OSError):  # as above
        if (whose := _whose(directory)) is None:
            return
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == 0:
                os.chown(f"/proc/self/fd/{fd}", whose.st_uid, whose.st_gid)
        finally:
            os.close(fd)


def _whose(directory: str | int) -> os.stat_result | None:
    """Return the user and group of a directory, if this process is root's and the directory is not."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    found = os.stat(directory)
    return found if found.st_uid != 0 else None
