"""A link's connection over a socket."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from aiodq.shared.connection.wires.packet_protocol import PacketProtocol
from aiodq.wire.layout import FIRST_PACKET, LARGEST
from aiodq.wire.stream import encode_packet

if TYPE_CHECKING:
    from aiodq.errors import ProtocolError
    from aiodq.shared.connection.wires.link_wire import ReceivingLink
    from aiodq.wire.packets import Packet

__all__ = ["SocketWire"]


class SocketWire(PacketProtocol):
    """One connection to an owner.

    Attributes:
        reason: why this end closed it, or None.
    """

    def __init__(self, link: ReceivingLink) -> None:
        """Serve this link."""
        super().__init__(link.receive, monotonic)
        self.reason: ProtocolError | None = None
        self._link = link
        self._begun = False
        self._early = b""
        self.reader.largest = FIRST_PACKET

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._link.note_alive()
        if self._begun:
            super().data_received(data)
        else:
            self._early += data

    def _break_off(self, error: ProtocolError) -> None:
        self.reason = error
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._end_with(error)  # packets that the owner sent before it ended still count
        self._link.lost(self)

    def welcomed(self) -> None:
        """Take packets of any size from an owner that has welcomed this process."""
        self.reader.largest = LARGEST

    def send(self, packet: Packet, request: int) -> None:
        """Send a packet."""
        if not self._transport.is_closing():  # what a closed connection loses is sent again, or answered by `lost`
            data = encode_packet(packet, request)
            try:  # here and not in a function: each call counts for a put
                self._transport.write(data)
            except BaseException:
                self._write_failed()
                raise
        if not self._begun:
            # INVARIANT: the link knows of this connection. On uvloop, an owner's refusal may arrive before that.
            self._begun = True
            early, self._early = self._early, b""
            if early:
                super().data_received(early)

    def close(self) -> None:
        """Close, once what was sent is on its way."""
        if self._transport is not None:
            self._transport.close()
