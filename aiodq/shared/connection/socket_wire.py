"""A link's connection over a socket."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.errors import ProtocolError
from aiodq.wire.layout import FIRST_PACKET, LARGEST
from aiodq.wire.stream import PacketReader, encode_packet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.wire.packets import Message as Said
    from aiodq.wire.stream import Packet

__all__ = ["SocketWire"]

_LONGEST_TURN: Final = 0.001
"""Seconds for which packets are handled in one turn of the loop: thousands may arrive together."""

_FEW: Final = 256
"""Bytes in which there are so few packets that their time is not looked at: mostly one arrives alone."""


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
        self._rest: Iterator[Packet] | None = None
        self.reader: PacketReader = PacketReader()
        self.reader.largest = FIRST_PACKET

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport of whatever loop it is
        """See `asyncio.BaseProtocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._link.received()
        if self._rest is not None:  # the transport had this, too, before reading was paused
            self._handle(self._rest, whole=True)
        try:
            packets = self.reader.feed(data)
        except ProtocolError as error:
            self._break_off(error)
        else:
            self._handle(packets, whole=len(data) <= _FEW)

    def _handle(self, packets: Iterator[Packet], *, whole: bool = False) -> None:
        """Handle what has arrived: all of it, or what is not handled within a turn in the next one."""
        end = 0.0 if whole else monotonic() + _LONGEST_TURN
        self._rest = None
        try:
            for said, request in packets:
                self._link.heard(said, request)
                if not whole and monotonic() >= end:
                    self._leave(packets)
                    return
        except ProtocolError as error:
            self._break_off(error)

    def _leave(self, packets: Iterator[Packet]) -> None:
        """Leave the rest to the next turn of the loop."""
        # INVARIANT: nothing is read meanwhile: the rest comes before it.
        if not self._transport.is_closing():
            self._transport.pause_reading()
        self._rest = packets
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._rest is not None:
            self._handle(self._rest)
        if self._rest is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _break_off(self, error: ProtocolError) -> None:
        self.reason = error
        self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        if self._rest is not None:
            self._handle(self._rest, whole=True)  # what the owner has said counts, though it has ended since
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
