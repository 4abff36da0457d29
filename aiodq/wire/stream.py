"""Packets from and to a stream of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import ProtocolError
from aiodq.wire.layout import FIRST_PACKET, LARGEST, PACKET, PLACED, PLACES, Op
from aiodq.wire.packets import read_common, read_packet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.format.layout import BytesLike
    from aiodq.wire.packets import Packet

__all__ = ["PacketReader", "Received", "encode_packet", "encode_placed"]

_ANSWER: Final = PACKET.size + PLACED.size


class Received(NamedTuple):
    """A packet, and the number of the request that it is or answers; 0 for none."""

    packet: Packet
    request: int = 0


def encode_packet(packet: Packet, request: int = 0) -> bytes:
    """Encode a packet.

    Raises:
        ProtocolError: a text or JSON in it is too long, or the packet is.
    """
    flags, payload = packet.payload()
    length = PACKET.size + len(payload)
    if length > LARGEST:
        raise ProtocolError(f"{packet.op.name}: a packet of {length} bytes")
    return PACKET.pack(length, packet.op, flags, 0, request) + payload


def encode_placed(first: int, messages: int, request: int) -> bytes:
    """Encode the answer to a put, of which there is one for each: as `encode_packet` of `Done`, in one step."""
    return PACKET.pack(_ANSWER, Op.DONE, PLACES, 0, request) + PLACED.pack(first, messages)


class PacketReader:
    """The receiving end of one connection.

    Attributes:
        largest: bytes of the largest packet accepted; to be raised once HELLO and WELCOME are exchanged.
        packets: how many were complete.
    """

    def __init__(self) -> None:
        """Start before the first packet."""
        self.largest: int = FIRST_PACKET
        self.packets: int = 0
        self._data = bytearray()
        self._broken: ProtocolError | None = None

    @property
    def waiting(self) -> int:
        """The bytes of an incomplete packet."""
        return len(self._data)

    @property
    def coming(self) -> int:
        """The bytes of the packet that is incomplete, once it is complete; 0 if there is none, or not known yet."""
        if len(self._data) < PACKET.size:
            return 0
        length: int = PACKET.unpack_from(self._data)[0]
        return length

    def feed(self, data: BytesLike) -> Iterator[Received]:
        """Return an iterator over the packets that are complete now; the caller must exhaust it.

        Raises:
            ProtocolError: something is not a packet; nothing after it is ever read.
        """
        if not self._data and len(data) >= PACKET.size and self._broken is None:
            length, op, flags, zero, request = PACKET.unpack_from(data)
            if length == len(data) <= self.largest and not zero:  # a packet usually arrives alone
                self.packets += 1
                common = read_common(op, flags, data, PACKET.size) if type(data) is bytes else None
                received = self._whole(op, flags, data, request) if common is None else Received(common, request)
                return iter((received,))
        return self._feed(data)

    def _whole(self, op: int, flags: int, data: BytesLike, request: int) -> Received:
        try:
            return Received(read_packet(op, flags, memoryview(data)[PACKET.size :]), request)
        except ProtocolError as error:
            self._broken = error
            raise

    def _feed(self, data: BytesLike) -> Iterator[Received]:
        self._data += data
        at = 0
        try:
            while (received := self._next(at)) is not None:
                at, found = received
                self.packets += 1
                yield found
        except ProtocolError as error:
            # The error's traceback may hold views of the buffer, which then cannot be resized.
            self._broken, self._data, at = error, bytearray(), 0
            raise
        finally:
            del self._data[:at]

    def _next(self, at: int) -> tuple[int, Received] | None:
        if self._broken is not None:
            raise self._broken
        if len(self._data) - at < PACKET.size:
            return None
        length, op, flags, zero, request = PACKET.unpack_from(self._data, at)
        if not PACKET.size <= length <= self.largest:
            raise ProtocolError(f"a packet of {length} bytes, not {PACKET.size} to {self.largest}")
        if zero:
            raise ProtocolError("a packet whose reserved bytes are not 0")
        if len(self._data) - at < length:
            return None
        with memoryview(self._data) as view, view[at + PACKET.size : at + length] as payload:
            return at + length, Received(read_packet(op, flags, payload), request)
