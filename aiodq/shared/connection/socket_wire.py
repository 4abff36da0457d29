"""A link's connection over a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from aiodq.errors import ProtocolError
from aiodq.wire.layout import FIRST_PACKET, LARGEST
from aiodq.wire.stream import PacketReader, encode_packet

if TYPE_CHECKING:
    from aiodq.wire.packets import Message as Said

__all__ = ["SocketWire"]


class Hearing(Protocol):
    """What is needed of the link; `aiodq.shared.connection.link.Link` implements it."""

    def received(self) -> None:
        """Note that the owner is alive."""
        ...

    def heard(self, said: Said, request: int) -> None:
        """Handle a packet from the owner."""
        ...

    def lost(self, wire: SocketWire) -> None:
        """Handle the end of the connection."""
        ...


class SocketWire(asyncio.Protocol):
    """One connection to an owner.

    Attributes:
        reason: why this end closed it, or None.
    """

    def __init__(self, link: Hearing) -> None:
        """Serve this link."""
        self.reason: ProtocolError | None = None
        self._link = link
        self._transport: Any = None
        self.reader: PacketReader = PacketReader()
        self.reader.largest = FIRST_PACKET

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport of whatever loop it is
        """See `asyncio.BaseProtocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._link.received()
        try:
            for said, request in self.reader.feed(data):
                self._link.heard(said, request)
        except ProtocolError as error:
            self.reason = error
            self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._link.lost(self)

    def welcomed(self) -> None:
        """Take packets of any size from an owner that has welcomed this process."""
        self.reader.largest = LARGEST

    def send(self, said: Said, request: int) -> None:
        """Send a packet."""
        if not self._transport.is_closing():  # what a closed connection loses is sent again, or answered by `lost`
            self._transport.write(encode_packet(said, request))

    def close(self) -> None:
        """Close, once what was sent is on its way."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
