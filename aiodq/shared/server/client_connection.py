"""The owner's end of one client's connection."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.engine.monitoring.reporter import STORE
from aiodq.errors import StoreFailedError
from aiodq.shared.connection.finding.rendezvous import process_of
from aiodq.shared.connection.wires.packet_protocol import PacketProtocol
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.shared.server.early_answers import EarlyAnswers
from aiodq.shared.server.session import Session
from aiodq.shared.server.session_end import SessionEnd
from aiodq.wire.stream import PacketReader, encode_packet, encode_placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.errors import ProtocolError
    from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult
    from aiodq.shared.requests.serving import Owning
    from aiodq.shared.server.incoming import Incoming
    from aiodq.wire.packets import Packet
    from aiodq.wire.stream import Received

__all__ = ["ClientConnection"]

_MOST_UNREAD: Final = 4 << 20
"""Bytes sent to a client that does not read them, from which on nothing that it asks is read either."""


class ClientConnection(PacketProtocol):
    """The connection of one client; see `Wire` and `Sender`.

    Attributes:
        clogged: see `Wire`.
    """

    def __init__(
        self, owner: Owning, sock: socket.socket, incoming: Incoming, gone: Callable[[ClientConnection], None]
    ) -> None:
        """Set up for an accepted client.

        Args:
            owner: the store's owner.
            sock: the socket of the connection.
            incoming: the packets that the owner's clients have begun.
            gone: called once the connection has ended, and what the client held is given back.
        """
        self.session: Session = Session(owner, self)
        super().__init__(self.session.receive, owner.engine.clock.monotonic)
        self._owner = owner
        self._sock = sock
        self._incoming = incoming
        self._early = EarlyAnswers(sock)
        self._soon: list[bytes] = []
        self.clogged: bool = False
        self._is_unread = False
        self._in_line = False
        self._coming = 0
        self._read = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._end_of_session = SessionEnd(self.session, owner.engine, lambda: gone(self))

    def welcomed(self) -> None:
        """See `Wire`."""
        self.reader.largest = self._owner.largest

    def process(self, said: int) -> int:
        """See `Wire`."""
        return process_of(self._sock, said)

    def _handle(self, packets: Iterator[Received], *, whole: bool = False) -> None:
        try:
            super()._handle(packets, whole=whole)
        except StoreFailedError:
            self.end()
        if self._rest is None:
            before, self._coming = self._coming, self.reader.coming
            read, self._read = self._read, self.reader.packets
            if (before or self._coming) and not self._in_line:
                self._incoming.arrived(self, self._coming, anew=self._read != read)

    def _break_off(self, error: ProtocolError) -> None:
        self.send(fail_of(error))
        self.end()

    def pause_writing(self) -> None:
        """Note that the client does not read: called by the transport."""
        self.clogged = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client reads again: called by the transport."""
        self.clogged = False
        self._writable.set()
        if self._is_unread:
            self._is_unread = False
            self._resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Give back what the client held: called by the transport."""
        self._end_with(error)  # an ack that has arrived counts, even if its sender is gone
        self.clogged = False
        self.reader: PacketReader = PacketReader()  # half a packet may be large, and the connection outlive it
        self._incoming.ended(self)
        self._early.end()
        self._writable.set()
        self._end_of_session.begin()

    async def ended(self) -> None:
        """Wait until the connection is closed, and what the client held is given back."""
        await self._end_of_session.wait()

    def send(self, packet: Packet, request: int = 0) -> None:
        """See `Wire`."""
        self._send_now(encode_packet(packet, request))

    def send_soon(self, packet: Packet, request: int) -> None:
        """See `Wire`."""
        if not self._soon:
            asyncio.get_running_loop().call_soon(self._send_now)
        self._soon.append(encode_packet(packet, request))

    def _send_now(self, *last: bytes) -> None:
        data = b"".join((self._early.forbid(), *self._soon, *last))
        self._soon.clear()
        if data and self._transport is not None and not self._transport.is_closing():
            try:  # as in `SocketWire.send`
                self._transport.write(data)
            except BaseException:
                self._write_failed()
                raise
            if self.clogged:
                self._pause_if_unread()

    def early(self, request: int) -> Callable[[ClientPutResult, int], None] | None:
        """See `Wire`."""
        if self._soon or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return None
        self._early.allow()
        return partial(self._answer, request)

    def _answer(self, request: int, put: ClientPutResult, first: int) -> None:
        self._early.send(encode_placed(first, put.messages, request), put)

    def answered(self, put: ClientPutResult) -> bool:
        """See `Wire`."""
        answered = self._early.over(put)
        if self._early.rest:
            self._send_now()
        return answered

    def _pause_if_unread(self) -> None:
        """Stop reading from a client that does not read what it was sent, as each request adds an answer."""
        # INVARIANT: a client always reads, whatever it sends or waits for, so that the two never wait for each other.
        if self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self._pause_reading()
            self._is_unread = True

    def _may_read(self) -> bool:
        return not (self._is_unread or self._in_line) and super()._may_read()

    def wait(self) -> None:
        """See `Sender`."""
        self._pause_reading()
        self._in_line = True

    def go_on(self) -> None:
        """See `Sender`."""
        self._in_line = False
        self._resume_reading()

    def too_slow(self) -> None:
        """See `Sender`. Without an answer: a client that was only stopped connects again, and repeats its packet."""
        client = self.session.client
        if client is not None and not self._transport.is_closing():
            begun = f"the client with pid {client.pid} began a packet of {self._coming} bytes"
            self._owner.engine.reporter.warn(STORE, f"{begun}, and others wait for its end: it is cut off")
            self.abort()

    async def writable(self) -> None:
        """See `Wire`."""
        await self._writable.wait()

    def end(self) -> None:
        """See `Wire`."""
        if self._transport is not None:
            self._send_now()
            self._transport.close()

    def hang_up(self) -> None:
        """Have the client notice the end, even if the event loop is closed."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
