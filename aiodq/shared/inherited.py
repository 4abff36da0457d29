"""Sockets that no forked child keeps: as long as it had them, nobody would see that the process they belong to is gone.

A child shares its parent's connections. The lock goes with the parent (`aiodq.storage.io.lock`), but others would go on
waiting for answers on a connection that never ends, or connect to a socket at which nobody accepts.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    import socket

__all__ = ["keep_from_children"]

_GUARD: Final = threading.RLock()
"""A fork waits for whoever is noting a socket."""

_LIVE: Final[WeakSet[socket.socket]] = WeakSet()


def keep_from_children(sock: socket.socket) -> socket.socket:
    """Return a socket that a child made by fork does not have."""
    with _GUARD:
        _LIVE.add(sock)
    return sock


def _let_go_in_child() -> None:
    """Put nothing in the place of each; its number stays in use, as whoever holds the socket closes that some day."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for sock in list(_LIVE):
            number = sock.fileno()
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
        os.close(nothing)
    _GUARD.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_let_go_in_child)
