"""The rendezvous: a socket in the store's directory, by which processes find the owner.

The path of a Unix socket may have 107 bytes, and a store's directory may be longer: so the socket is always bound and
connected through a descriptor of the directory if the system has `/proc/self/fd`, which also prevents confusion with
another directory after a rename.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import NotAStoreError, ProtocolError, ReadOnlyError, StorageError
from aiodq.shared.connection.finding.inherited import keep_from_children
from aiodq.storage.io.belonging import socket_belongs
from aiodq.storage.io.descriptor_limit import descriptor_limit
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.lock import lock_holder
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.storage.store_layout import NO_DIRECTORY, SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "UNSEEN", "Listening", "check_client", "check_room", "connect", "is_served", "listen", "no_room", "of_user",
    "owner_of", "process_of",
]  # fmt: skip

UNSEEN: Final = 1
"""In the place of a process that cannot be seen from here, such as one in another container: always alive."""

_LONGEST: Final = 107
"""Most bytes of a socket's path."""

_BACKLOG: Final = 4096
"""Connections that may wait to be accepted; the system may limit it further. A thousand processes may start at once."""

_KEPT: Final = 64
"""Descriptors that clients leave to the rest of the owner's process; a quarter of all where there are few."""

_PEER: Final = struct.Struct("iII")
"""pid, uid, gid, as SO_PEERCRED gives them."""

_ONE_USER: Final = "have all processes run as one user"

_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})


class Listening:
    """The owner's end.

    Attributes:
        sock: the listening socket; it does not block.
        path: the socket's path.
        user: the user who owns the store.
        after_crash: whether the previous owner left its socket, because it was killed or could not note its clients:
            they may hold messages.
    """

    def __init__(self, sock: socket.socket, directory: str, *, after_crash: bool) -> None:
        """Made by `listen`."""
        self.sock = sock
        self.after_crash = after_crash
        self.path: str = os.path.join(directory, SOCKET)
        self.user: int = os.stat(directory).st_uid
        self._mine = os.lstat(self.path)

    def is_found(self) -> bool:
        """Return whether the socket's path still leads to this socket. Blocking."""
        try:
            return os.path.samestat(self._mine, os.lstat(self.path))
        except OSError:
            return False

    def stop(self) -> None:
        """Stop listening. The name stays."""
        self.sock.close()

    def close(self, *, leave: bool = False) -> None:
        """Stop listening, and delete the name. A socket of another owner under this name stays.

        A name that cannot be deleted, as on a device that fails, stays as after a kill: nobody listens behind it.

        Args:
            leave: leave this one, too, as a killed owner does, so that the next owner waits for clients.
        """
        self.sock.close()
        with suppress(OSError):
            if self.is_found() and not leave:
                os.unlink(self.path)


def listen(directory: str) -> Listening:
    """Listen for clients of a store. The caller must hold its lock and be ready to serve.

    Raises:
        StorageError: the system refused.
    """
    name = f"{SOCKET}-{secrets.token_hex(4)}{TEMPORARY}"
    sock = _socket(os.path.join(directory, SOCKET))
    try:
        with _short(directory) as base:
            _sweep(directory)
            sock.bind(os.path.join(base, name))
            try:
                # Before the socket has its final name, as bind uses the umask.
                os.chmod(os.path.join(directory, name), 0o600)
                socket_belongs(os.path.join(directory, name), directory)
                sock.listen(_BACKLOG)
                sock.settimeout(0)
                # INVARIANT: this name always belongs to a socket that listens, or to one whose owner is gone.
                after_crash = os.path.lexists(os.path.join(directory, SOCKET))
                os.rename(os.path.join(directory, name), os.path.join(directory, SOCKET))
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
                raise
        return Listening(sock, directory, after_crash=after_crash)
    except OSError as cause:
        sock.close()
        raise storage_error(cause, os.path.join(directory, SOCKET)) from cause
    except BaseException:
        sock.close()
        raise


def _sweep(directory: str) -> None:
    """Delete the sockets that owners left which were killed before theirs had its final name."""
    for name in os.listdir(directory):
        if name.startswith(f"{SOCKET}-") and name.endswith(TEMPORARY):
            with suppress(OSError):  # nobody listens behind it, wherever it stays
                os.unlink(os.path.join(directory, name))


def connect(directory: str) -> socket.socket | None:
    """Return a non-blocking connection to the owner of a store; None if no process serves it now.

    Raises:
        BlockingIOError: it is served, and too many others wait to be accepted: try again soon.
        ProtocolError: there is something other than a socket, or the listener is another user's process.
        NotAStoreError: the path is not a directory.
        ReadOnlyError: the store is another user's.
        StorageError: the system refused.
    """
    path = os.path.join(directory, SOCKET)
    sock = _socket(path)
    try:
        _check_kind(path)
        # A non-blocking socket never waits for room in the owner's backlog.
        sock.settimeout(0)
        with _short(directory) as base:
            sock.connect(os.path.join(base, SOCKET))
        _check_peer(sock, path, os.stat(directory).st_uid)
    except BlockingIOError:
        sock.close()
        raise
    except OSError as cause:
        sock.close()
        if cause.errno in _NOBODY:
            return None
        if cause.errno == errno.ENOTDIR:
            raise NotAStoreError(NO_DIRECTORY, directory) from cause
        raise of_user(storage_error(cause, path), directory) from cause
    except BaseException:
        sock.close()
        raise
    return sock


def _socket(path: str) -> socket.socket:
    with os_errors(path):
        return keep_from_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def is_served(directory: str) -> bool:
    """Return whether an owner listens for other processes, as far as that is known here."""
    try:
        sock = connect(directory)
    except (BlockingIOError, ReadOnlyError):
        return True  # another user's socket may not be reached: an owner that has the store for itself makes none
    except (ProtocolError, StorageError):
        return False
    if sock is not None:
        sock.close()
    return sock is not None


def owner_of(directory: str) -> int:
    """Return the process that owns a store, whether or not it serves others; 0 if it is unknown."""
    try:
        holder = lock_holder(directory)
    except StorageError:
        return 0  # the directory is gone, for instance
    return holder.pid if holder else 0


def check_client(sock: socket.socket, path: str, user: int) -> None:
    """Check that the client may connect to the store of this user; keep the connection from children of this process.

    Raises:
        ProtocolError: it is another user's process.
    """
    _check_peer(keep_from_children(sock), path, user)


def process_of(sock: socket.socket, said: int) -> int:
    """Return the process at the other end by the pid that it has here, or `UNSEEN`.

    Args:
        sock: the connection.
        said: its pid as it says; in another container, pids are counted apart.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return said
    try:
        return _peer(sock)[0] or UNSEEN
    except OSError:
        return UNSEEN  # disconnected


def check_room(sock: socket.socket, directory: str) -> None:
    """Check that there are descriptors left for another client: without any, the owner could open no file.

    Raises:
        StorageError: there are too few.
    """
    limit = descriptor_limit()
    # The system gives the lowest number that is free.
    if limit > 0 and sock.fileno() >= limit - min(_KEPT, limit // 4):
        raise no_room(directory)


def no_room(directory: str) -> StorageError:
    """Return the error for a client for which this process, the owner, has too few descriptors."""
    text = (
        f"the owner of the store, process {os.getpid()}, has too few descriptors for another process beside those "
        f"that have it open: raise its limit of open files, which is {descriptor_limit()} (ulimit -n), or close some"
    )
    return StorageError(text, directory, errno=errno.EMFILE, retriable=True)


def of_user(error: StorageError, directory: str) -> StorageError:
    """Return the error of a store that cannot be reached; another one if that is because it is another user's."""
    path = error.path or directory
    if error.errno != errno.EACCES or (user := _user(path, directory)) == os.geteuid():
        return error
    text = f"the store is user {user}'s, and this process is of user {os.geteuid()}: {_ONE_USER}"
    return ReadOnlyError(text, path, errno=error.errno)


def _user(*paths: str) -> int:
    """Return the user of the first of these that can be looked at; this process's user if none can."""
    for path in paths:
        with suppress(OSError):
            return os.lstat(path).st_uid
    return os.geteuid()


def _check_kind(path: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ProtocolError(f"{path} is no socket: something lies there that aiodq did not make; move it away")


def _check_peer(sock: socket.socket, path: str, owner: int) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        return
    _, uid = _peer(sock)
    if uid not in {0, owner, os.geteuid()}:
        raise ProtocolError(f"the process at {path} is of user {uid}, and the store of user {owner}: {_ONE_USER}")


def _peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and the user of the process at the other end; as pid 0 if it cannot be seen from here."""
    pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


@contextmanager
def _short(directory: str) -> Iterator[str]:
    """Yield a path of the directory that is short enough for a socket's name.

    Raises:
        StorageError: there is none.
    """
    if not os.path.isdir("/proc/self/fd"):
        if len(os.fsencode(os.path.join(directory, f"{SOCKET}-01234567{TEMPORARY}"))) > _LONGEST:
            text = (
                f"the path of a store that is shared has up to 80 bytes on this system, and this one {len(directory)}"
            )
            raise StorageError(text, directory)
        yield directory
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
