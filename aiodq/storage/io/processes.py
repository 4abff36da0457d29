"""Which processes there are, as far as can be seen from here: in another container the pids are other ones."""

from __future__ import annotations

import os
import sys

__all__ = ["lives", "pid_namespace"]


def lives(pid: int) -> bool:
    """Return whether a process with that pid exists and has not ended, as far as can be seen from here.

    On Windows, where asking would disturb it, the answer is always yes.
    """
    if sys.platform == "win32":
        return True
    if pid <= 0:
        return False  # no process, but a group of them
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
    except OSError:
        return True  # no such files here
    return state not in {b"Z", b"X"}  # one that has ended stays until its parent has asked how


def pid_namespace() -> int:
    """Return the number of the namespace in which this process's pid counts; 0 if it is unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
