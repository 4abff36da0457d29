"""A client that knows nothing but the pages of `aiodq.wire` and `aiodq.format`: plain sockets and structs."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

from tests.shared.support import PATIENCE, owned

if TYPE_CHECKING:
    from pathlib import Path

HELLO, OPEN, PUT, WANT, ACK, TXN, CALL, RESUME, PING, BYE = 1, 2, 3, 4, 5, 10, 11, 12, 13, 14
WELCOME, DONE, FAIL, DELIVER, GONE, FIGURES, PONG = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x88


def frame(body: bytes, number: int) -> bytes:
    padding = -(32 + len(body)) % 8
    length = 32 + len(body) + padding
    rest = struct.pack("<BBHIIq", 0xC5, padding, 0, number, number, 1) + body + bytes(padding)
    rest += struct.pack("<I", length)
    return struct.pack("<II", length, zlib.crc32(rest)) + rest


def bodies(frames: bytes) -> list[bytes]:
    found: list[bytes] = []
    while frames:
        length, crc, kind, padding, flags = struct.unpack_from("<IIBBH", frames)
        assert zlib.crc32(frames[8:length]) == crc
        if kind == 0xC5:
            found.append(frames[28 : length - 4 - padding])
        else:
            count, stored, _ = struct.unpack_from("<III", frames, 28)
            payload = frames[40 : 40 + stored]
            at = 8 * count if flags & 1 else 0
            sizes = struct.unpack_from(f"<{count}I", payload, at)
            at += 4 * count
            for size in sizes:
                found.append(payload[at : at + size])
                at += size
        frames = frames[length:]
    return found


class Stranger:
    """Its end of the connection. Counts are not listened to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.number = reader, writer, 0

    def say(self, op: int, payload: bytes, flags: int = 0, request: int = 0) -> None:
        self.writer.write(struct.pack("<IBBHI", 12 + len(payload), op, flags, 0, request) + payload)

    async def hear(self) -> tuple[int, int, int, bytes]:
        """Return operation, flags, request and payload of the next packet."""
        while True:
            length, op, flags, zero, request = struct.unpack("<IBBHI", await self.reader.readexactly(12))
            payload = await self.reader.readexactly(length - 12)
            assert zero == 0
            if op != FIGURES:
                return op, flags, request, payload

    async def ask(self, op: int, payload: bytes, flags: int = 0) -> tuple[int, int, bytes]:
        """Return operation, flags and payload of the answer, which is the next packet."""
        self.number += 1
        self.say(op, payload, flags, self.number)
        said, flags, request, payload = await self.hear()
        assert request == self.number
        return said, flags, payload


async def asked(client: Stranger, op: int, payload: bytes) -> Any:
    said, flags, payload = await client.ask(op, payload)
    assert (said, flags) == (DONE, 2)
    return json.loads(payload)


async def test_what_the_page_says_is_enough_for_a_client(tmp_path: Path) -> None:
    async with owned(tmp_path / "s"), asyncio.timeout(PATIENCE):
        client = Stranger(*await asyncio.open_unix_connection(tmp_path / "s" / "#socket"))
        said, _, payload = await client.ask(HELLO, struct.pack("<HHIQQI", 1, 1, 1, 77, 0, 0) + b"stranger")
        assert (said, len(payload)) == (WELCOME, 32)
        version, _, _, epoch, largest, _, _ = struct.unpack("<HHIQIIq", payload)
        assert (version, largest) == (1, 64 << 20)
        assert (await asked(client, OPEN, struct.pack("<IBBH", 1, 4, 0, 0) + b"jobs"))["window"] > 0
        channel = await asked(client, OPEN, struct.pack("<IBBH", 2, 4, 1, 0) + b'jobsc{"start":"earliest"}')
        assert channel["paused"] is False
        put = struct.pack("<IQI", 1, 5, 2) + frame(b"one", 0) + frame(b"two", 1)
        for _ in range(2):  # it counts once, and each is answered once
            assert await client.ask(PUT, put, 1) == (DONE, 1, struct.pack("<QI", 0, 2))
        client.say(WANT, struct.pack("<IQ", 2, 2))
        delivered: list[tuple[int, bytes]] = []
        while len(delivered) < 2:
            op, _, request, payload = await client.hear()
            handle, attempts, first, delivery = struct.unpack_from("<IIQQ", payload)
            assert (op, request, handle, attempts) == (DELIVER, 0, 2, 1)
            assert first == len(delivered)
            delivered += [(delivery + at, body) for at, body in enumerate(bodies(payload[24:]))]
        assert [body for _, body in delivered] == [b"one", b"two"]
        ack = struct.pack("<IIQQQI", 2, 1, epoch, 0, delivered[0][0], 2)
        assert await client.ask(ACK, ack) == (DONE, 0, b"")
        client.say(ACK, ack, request=100)
        assert (await client.hear()) == (GONE, 0, 0, ack)
        assert (await client.hear())[::2] == (FAIL, 100)
        assert await asked(client, RESUME, struct.pack("<IIQ", 2, 0, epoch)) == {"held": [], "elsewhere": []}
        part = struct.pack("<IQI", 1, 0, 1) + frame(b"three", 0)
        txn = struct.pack("<QHHI", 1 << 40 | 1, 0, 1, len(part)) + part
        for _ in range(2):
            assert await client.ask(TXN, txn) == (DONE, 0, b"")
        assert await asked(client, CALL, struct.pack("<H", 4) + b'view{"handle":1}') == {"result": [0, 3]}
        assert await client.ask(PING, bytes(8)) == (PONG, 0, bytes(8))
        client.say(BYE, b"")
        assert await client.reader.read() == b""
        client.writer.close()
