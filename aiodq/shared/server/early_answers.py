"""Early answers: the thread that has synced a put answers its client, which saves a turn of the loop."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult

__all__ = ["EarlyAnswers"]

_NO_WAIT: Final = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class EarlyAnswers:
    """The second way into one client's socket, whose first is the loop's transport.

    INVARIANT: packets never mix. A thread sends only between `allow`, when the transport has nothing left to send, and
    `forbid`, after which the loop sends.

    Attributes:
        rest: the end of a packet whose beginning a thread has sent; `forbid` returns it.
    """

    __slots__ = ("_allowed", "_lock", "_over", "_sock", "rest")

    def __init__(self, sock: socket.socket) -> None:
        """Send over this socket, which the transport closes; nothing is allowed yet."""
        self._sock = sock
        self._lock = threading.Lock()
        self._allowed = self._over = False
        self.rest: bytes = b""

    def allow(self) -> None:
        """Let threads send from here on, as the transport has nothing left to send. On the loop."""
        with self._lock:
            self._allowed = not (self.rest or self._over)

    def forbid(self) -> bytes:
        """Let no thread send any more; return what the loop has to send first. On the loop."""
        with self._lock:  # a thread that has the lock is done soon: it does not wait for the socket
            self._allowed = False
            rest, self.rest = self.rest, b""
        return rest

    def end(self) -> None:
        """Let no thread send ever again, as the socket is about to be closed. On the loop."""
        self.forbid()
        self._over = True

    def send(self, packet: bytes, put: ClientPutResult) -> None:
        """Send the answer to a put, from any thread. If it cannot be sent now, the loop has to send it."""
        with self._lock:
            if not self._allowed or put.answered:
                return
            try:
                sent = self._sock.send(packet, _NO_WAIT)
            except OSError:  # the client does not read, or is gone, which the loop will notice, too
                self._allowed = False
                return
            put.answered = True
            if sent < len(packet):
                self._allowed, self.rest = False, packet[sent:]

    def over(self, put: ClientPutResult) -> bool:
        """Return whether a thread has answered a put; from here on none will. On the loop."""
        # INVARIANT: an answered client's next packet, and the report of its put, may come before `send` returns.
        with self._lock:
            answered, put.answered = put.answered, True
        return answered
