"""The socket by which processes find the owner of a store: a name in the store's directory.

The path of a Unix socket may have 107 bytes, and a store's directory may be longer: so it is always bound and connected
through a descriptor of the directory where the system has `/proc/self/fd`, which also keeps a directory that is renamed
meanwhile from being another one's.
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

from aiodq.errors import ProtocolError, StorageError
from aiodq.shared.inherited import keep_from_children
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.store_layout import SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Listening", "check_client", "connect", "listen"]

_TEMPORARY: Final = ".aiodq-tmp"
_LONGEST: Final = 107
"""Bytes that the path of a socket may have."""

_BACKLOG: Final = 4096
"""Connections that wait to be accepted; the system may bound it further. A thousand processes may begin at once."""

_PEER: Final = struct.Struct("iII")
"""pid, uid, gid, as SO_PEERCRED gives them."""

_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})


class Listening:
    """An owner's end.

    Attributes:
        sock: to be accepted from; it does not block.
        path: the socket's.
        after_crash: an owner before has left its socket, so it was killed: clients may hold messages.
    """

    def __init__(self, sock: socket.socket, directory: str, *, after_crash: bool) -> None:
        """Made by `listen`."""
        self.sock = sock
        self.after_crash = after_crash
        self.path: str = os.path.join(directory, SOCKET)
        self._mine = os.lstat(self.path)

    @property
    def found(self) -> bool:
        """Whether who looks for the owner of the store finds this."""
        try:
            return os.path.samestat(self._mine, os.lstat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        """Be found no more. A socket of this name that is another owner's by now stays."""
        self.sock.close()
        with suppress(FileNotFoundError):
            if self.found:
                os.unlink(self.path)


def listen(directory: str) -> Listening:
    """Be found by those who look for the owner of a store. Only for who holds its lock, and is ready to serve.

    Raises:
        StorageError: the system refused.
    """
    name = f"{SOCKET}-{secrets.token_hex(4)}{_TEMPORARY}"
    sock = keep_from_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        with _short(directory) as base:
            sock.bind(os.path.join(base, name))
            try:
                # Before the name is one that anybody looks for; and bind goes by the umask.
                os.chmod(os.path.join(directory, name), 0o600)
                sock.listen(_BACKLOG)
                sock.setblocking(False)  # noqa: FBT003 - the name of the call says what it is
                # INVARIANT: this is only ever the name of a socket that listens, or of one whose owner is gone.
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


def connect(directory: str) -> socket.socket | None:
    """Return a connection to the owner of a store, which does not block; None where nobody serves it now.

    Raises:
        BlockingIOError: somebody serves it, and too many others wait to be accepted: come back soon.
        ProtocolError: what lies there is no socket, or whoever listens is another user's process.
        StorageError: the system refused.
    """
    path = os.path.join(directory, SOCKET)
    sock = keep_from_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        _check_kind(path)
        # One that does not block never waits for room in the owner's queue.
        sock.setblocking(False)  # noqa: FBT003 - likewise
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
        raise storage_error(cause, path) from cause
    except BaseException:
        sock.close()
        raise
    return sock


def check_client(sock: socket.socket, path: str) -> None:
    """Make sure that who has connected may; no child of this process is to have that connection.

    Raises:
        ProtocolError: it is another user's process.
    """
    _check_peer(keep_from_children(sock), path, os.geteuid())


def _check_kind(path: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ProtocolError(f"{path} is no socket: something lies there that aiodq did not make; move it away")


def _check_peer(sock: socket.socket, path: str, owner: int) -> None:
    if not hasattr(socket, "SO_PEERCRED"):
        return
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid not in {0, owner, os.geteuid()}:
        raise ProtocolError(f"the process at {path} is of user {uid}, and the store of user {owner}")


@contextmanager
def _short(directory: str) -> Iterator[str]:
    """Yield a path of the directory that leaves room for a socket's name.

    Raises:
        StorageError: there is none.
    """
    if not os.path.isdir("/proc/self/fd"):
        if len(os.fsencode(os.path.join(directory, f"{SOCKET}-01234567{_TEMPORARY}"))) > _LONGEST:
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
