"""The target for what comes over a shared store's socket, from a client or from an owner."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aiodq.errors import ProtocolError
from aiodq.format.columns import Columns
from aiodq.wire.frames import decode_messages, encode_messages
from aiodq.wire.layout import PACKET
from aiodq.wire.packets import Deliver, Put, Txn
from aiodq.wire.stream import PacketReader, encode_packet
from tests.wire.support import EXAMPLES

if TYPE_CHECKING:
    from aiodq.wire.packets import Packet

_TIME = 1_700_000_000_000_000_000


def packets(data: bytes) -> bool:
    """What one end of a connection receives, in two pieces."""
    reader, found = PacketReader(), []
    half = len(data) // 2
    try:
        for piece in (data[:half], data[half:]):
            found += list(reader.feed(piece))
    except ProtocolError:
        return False
    for packet in found:
        assert list(PacketReader().feed(encode_packet(*packet))) == [packet]
        for frames in _frames(packet.packet):
            with suppress(ProtocolError):
                batches = decode_messages(frames, 5)
                assert batches[0].first == 5
    return bool(found) and not reader.waiting


def _frames(message: Packet) -> list[bytes]:
    if isinstance(message, Txn):
        return [put.frames for put in message.puts]
    return [message.frames] if isinstance(message, Put | Deliver) else []


def mend_packets(data: bytes) -> bytes:
    """Lengths that fit what is there: the last packet's ends with the bytes."""
    fixed, at = bytearray(data), 0
    while at + PACKET.size <= len(fixed):
        length = int.from_bytes(fixed[at : at + 4], "little")
        if not PACKET.size <= length <= len(fixed) - at:
            length = len(fixed) - at
            fixed[at : at + 4] = length.to_bytes(4, "little")
        at += length
    return bytes(fixed)


def packet_seeds() -> list[bytes]:
    """Return valid inputs."""
    frames = encode_messages(Columns([b"one", b"", b"x" * 50], tags=["t", None, ""]), _TIME)
    real: list[Packet] = [Put(1, 1, 3, frames), Deliver(2, 1, 5, 100, frames), Txn(1, (), (Put(1, 2, 3, frames),))]
    said: list[Packet] = [*EXAMPLES.values(), *real]
    every = [encode_packet(message, number) for number, message in enumerate(said)]
    return [b"".join(every[start : start + 4]) for start in range(0, len(every), 4)]
