"""A descriptor that is kept for those who find none free."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from aiodq.shared.connection.finding.rendezvous import no_room
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.wire.stream import encode_packet

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

__all__ = ["SpareDescriptor"]

_NONE_FREE: Final = frozenset({errno.EMFILE, errno.ENFILE})


class SpareDescriptor:
    """Accepts clients when no descriptor is free, to tell them so: they would wait, and take the owner for stalled."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._fd: int | None = None

    def open(self) -> None:
        """Open it, if that is possible."""
        with suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close it. Repeating it does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @contextmanager
    def _lent(self) -> Iterator[None]:
        self.close()
        try:
            yield
        finally:
            self.open()

    def refuse(self, listening: socket.socket, directory: str, why: OSError, most: int) -> None:
        """Refuse up to `most` clients that wait to be accepted, if `why` none could be was the lack of a descriptor."""
        if why.errno not in _NONE_FREE:
            return
        refusal = encode_packet(fail_of(no_room(directory)))
        # Until none waits. A thread may also have taken the descriptor, or a client be gone: the rest is refused later.
        with suppress(OSError):
            for _ in range(most):
                with self._lent(), listening.accept()[0] as sock:
                    sock.send(refusal)
