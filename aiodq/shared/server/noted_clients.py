"""The clients of a store's owner, as it notes them in `#clients` for the next one, with its own epoch.

The file is a JSON list of the clients, `[producer, pid]`, and of two rows over which other versions step: `[epoch, -1]`
and `[number, -2]`, the number of the namespace in which the pids count, as each container has its own. If the owner
does not know who its clients are, there is `null` in their place.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiodq.shared.connection.finding.rendezvous import UNSEEN
from aiodq.storage.io.belonging import belong
from aiodq.storage.io.processes import pid_namespace
from aiodq.storage.store_layout import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NotedClients"]

_LARGEST: Final = 1 << 20
_MODE: Final = 0o600
_EPOCH: Final = -1
"""In the place of a process: it is the row of the owner's epoch."""
_NAMESPACE: Final = -2
"""The same, for the namespace of the pids."""

# Without O_NOFOLLOW a link there would have another file overwritten, without O_NONBLOCK a FIFO would hang the loop.
_SAFE: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC


class NotedClients:
    """The file of one store.

    Attributes:
        epoch: the epoch of the owner that writes it; 0 for none.
    """

    def __init__(self, directory: str) -> None:
        """Read and write nothing yet."""
        self.epoch: int = 0
        self._path = os.path.join(directory, CLIENTS)
        self._written: dict[int, int] | None = None

    @property
    def certain(self) -> bool:
        """Whether the next owner can read the clients: otherwise it has to wait for any client."""
        return self._written is not None

    def read(self) -> dict[int, int] | None:
        """Return the clients of the previous owner, with their processes or `UNSEEN`; None if it did not note them."""
        rows = self._rows()
        if not all(map(_is_row, rows)):
            return None
        foreign = _value(rows, _NAMESPACE) not in {0, pid_namespace()}
        return {row[0]: UNSEEN if foreign else row[1] for row in rows if row[1] > 0}

    def read_epoch(self) -> int:
        """Return the epoch of the last owner that noted anything; 0 if it is not known."""
        return _value(self._rows(), _EPOCH)

    def _rows(self) -> list[Any]:
        try:
            # An owner that was killed may have left the end of a longer text after its own.
            found, _ = json.JSONDecoder().raw_decode(self._bytes().decode())
        except (OSError, ValueError, RecursionError):
            return [None]
        return found if isinstance(found, list) else [None]

    def _bytes(self) -> bytes:
        with open(os.open(self._path, os.O_RDONLY | _SAFE), "rb") as file:
            return file.read(_LARGEST)

    def write(self, clients: Mapping[int, int]) -> None:
        """Note the clients. Never synced, as a power cut ends the clients, too. If it fails, the next owner waits."""
        if clients == self._written:
            return
        self._written = None
        if self._write([list(row) for row in clients.items()]):
            self._written = dict(clients)

    def forget(self) -> None:
        """Have the next owner wait for any client, if this one leaves its socket, too (`Listening.close`)."""
        self._written = None
        self._write([None])

    def _write(self, rows: list[list[int] | None]) -> bool:
        """Write the file; remove it if that fails, and return whether it was written."""
        about = [[value, kind] for value, kind in ((self.epoch, _EPOCH), (pid_namespace(), _NAMESPACE)) if value]
        data = json.dumps([*rows, *about]).encode()
        # CRASH: a torn file is ignored, and the next owner waits as it does without a file.
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | _SAFE, _MODE), "wb", buffering=0) as file:
                belong(file.fileno(), os.path.dirname(self._path))
                whole = file.write(data) == len(data)  # a full disk may take a part of it
                # Not truncated before: what was empty, ext4 writes to the disk when it is closed.
                file.truncate(len(data))
        except OSError:
            whole = False
        if not whole:
            with suppress(OSError):
                os.unlink(self._path)
        return whole


def _value(rows: list[Any], kind: int) -> int:
    return next((row[0] for row in rows if _is_row(row) and row[1] == kind), 0)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and [type(each) for each in row] == [int, int]
