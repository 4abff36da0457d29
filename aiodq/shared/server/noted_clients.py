"""The clients of a store's owner, as it notes them in `#clients` for the next one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiodq.storage.io.belonging import belong
from aiodq.storage.store_layout import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NotedClients"]

_LARGEST: Final = 1 << 20
_MODE: Final = 0o600
# Without O_NOFOLLOW a link there would have another file overwritten, without O_NONBLOCK a FIFO would hang the loop.
_SAFE: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC


class NotedClients:
    """The file of one store."""

    def __init__(self, directory: str) -> None:
        """Read and write nothing yet."""
        self._path = os.path.join(directory, CLIENTS)
        self._written: dict[int, int] | None = None

    @property
    def certain(self) -> bool:
        """Whether the next owner can read the clients: otherwise it has to wait for any client."""
        return self._written is not None

    def read(self) -> dict[int, int] | None:
        """Return the clients of the previous owner, with their processes; None if it did not note them."""
        try:
            # An owner that was killed may have left the end of a longer text after its own.
            found, _ = json.JSONDecoder().raw_decode(self._bytes().decode())
        except (OSError, ValueError, RecursionError):
            return None
        rows: list[Any] = found if isinstance(found, list) else [None]
        if not all(isinstance(row, list) and [type(each) for each in row] == [int, int] for row in rows):
            return None
        return {producer: pid for producer, pid in rows if pid > 0}

    def _bytes(self) -> bytes:
        with open(os.open(self._path, os.O_RDONLY | _SAFE), "rb") as file:
            return file.read(_LARGEST)

    def write(self, clients: Mapping[int, int]) -> None:
        """Note the clients. Never synced, as a power cut ends the clients, too. If it fails, the next owner waits."""
        if clients == self._written:
            return
        data = json.dumps(list(clients.items())).encode()
        # CRASH: a torn file is ignored, and the next owner waits as it does without a file.
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | _SAFE, _MODE), "wb", buffering=0) as file:
                belong(file.fileno(), os.path.dirname(self._path))
                whole = file.write(data) == len(data)  # a full disk may take a part of it
                # Not truncated before: what was empty, ext4 writes to the disk when it is closed.
                file.truncate(len(data))
        except OSError:
            whole = False
        if whole:
            self._written = dict(clients)
        else:
            self.forget()

    def forget(self) -> None:
        """Have the next owner wait for any client, if this one leaves its socket, too (`Listening.close`)."""
        self._written = None
        with suppress(OSError):
            os.unlink(self._path)
