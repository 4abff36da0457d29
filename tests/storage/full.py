"""A disk with little room."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from aiodq.testing import WatchedFileSystem

if TYPE_CHECKING:
    from aiodq.testing import Passed


class FullFileSystem(WatchedFileSystem):
    """Has room for so many bytes more; what a file gives up is room for others."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 1 << 30
        self.add(self._account)

    def _account(self, call: Passed) -> None:
        size = os.stat(call.path).st_size if os.path.exists(call.path) else 0
        if call.kind in {"remove", "rename"}:
            self.room += size
        elif call.kind == "write":
            grows = min(max(call.position + len(call.data) - size, 0), self.room)
            call.takes = min(size + grows - call.position, len(call.data))
            if call.data and call.takes <= 0:
                raise OSError(errno.ENOSPC, "full")
            self.room -= grows
        elif call.kind == "truncate":
            self.room += max(size - call.position, 0)
