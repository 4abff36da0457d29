"""The interface between a link and its connection to the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiodq.errors import ProtocolError
    from aiodq.wire.packets import Packet
    from aiodq.wire.stream import Received

__all__ = ["LinkWire", "ReceivingLink"]


class LinkWire(Protocol):
    """A connection to the owner: over a socket, or within its own process.

    Attributes:
        reason: why this end closed it, or None.
    """

    reason: ProtocolError | None

    def send(self, packet: Packet, request: int) -> None:
        """Send a packet."""
        ...

    def welcomed(self) -> None:
        """Take packets of any size from an owner that has welcomed this process."""
        ...

    def close(self) -> None:
        """Close, once everything sent is on its way."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class ReceivingLink(Protocol):
    """What a connection needs of its link; `aiodq.shared.connection.link.Link` implements it."""

    def note_alive(self) -> None:
        """Note that the owner is alive."""
        ...

    def receive(self, received: Received) -> None:
        """Handle a packet from the owner."""
        ...

    def lost(self, wire: LinkWire) -> None:
        """Handle the end of the connection."""
        ...
