"""The type of file system on a device, by its name in the kernel."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["file_system_type"]

_MOUNTS: Final = "/proc/self/mountinfo"


def file_system_type(device: int) -> str | None:
    """Return the type of the file system of a device (`os.stat_result.st_dev`); None if unknown (Linux only)."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read().splitlines()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in mounts:
        # number, parent, major:minor, root, where, options, …, -, kind, …
        before, _, after = mount.partition(" - ")
        if before.split(" ")[2:3] == [number]:
            return after.partition(" ")[0]
    return None
