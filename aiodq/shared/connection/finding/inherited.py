"""Sockets and stores that forked children must not keep.

A child shares its parent's connections. The lock ends with the parent (`aiodq.storage.io.lock`), but other processes
would keep waiting for answers on a connection that never ends, or connect to a socket on which no process accepts.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    import socket

__all__ = ["keep_from_children", "leave_in_children"]


class _Store(Protocol):
    def after_fork(self) -> None:
        """Mark it as unusable in a forked child."""
        ...


_GUARD: Final = threading.RLock()
"""A fork waits until no thread is registering a socket."""

_LIVE: Final[WeakSet[socket.socket]] = WeakSet()
_STORES: Final[WeakSet[_Store]] = WeakSet()


def keep_from_children(sock: socket.socket) -> socket.socket:
    """Register a socket, so that forked children do not keep it; return it."""
    with _GUARD:
        _LIVE.add(sock)
    return sock


def leave_in_children(store: _Store) -> None:
    """Register a store, so that it is unusable in forked children."""
    with _GUARD:
        _STORES.add(store)


def _let_go_in_child() -> None:
    """Mark the stores, and replace each socket by /dev/null, as its holder may still close the descriptor."""
    for store in list(_STORES):
        store.after_fork()
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
