"""The interface between a link and its connection to the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiodq.errors import ProtocolError
    from aiodq.wire.packets import Message
    from aiodq.wire.stream import Packet

__all__ = ["Hearing", "LinkWire"]


class LinkWire(Protocol):
    """A connection to the owner: over a socket, or within its own process.

    Attributes:
        reason: why this end closed it, or None.
    """

    reason: ProtocolError | None

    def send(self, said: Message, request: int) -> None:
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


class Hearing(Protocol):
    """What a connection needs of its link; `aiodq.shared.connection.link.Link` implements it."""

    def received(self) -> None:
        """Note that the owner is alive."""
        ...

    def heard(self, packet: Packet) -> None:
        """Handle a packet from the owner."""
        ...

    def lost(self, wire: LinkWire) -> None:
        """Handle the end of the connection."""
        ...
