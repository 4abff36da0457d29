"""Every fixed layout of the wire protocol as `struct` objects and constants. The tables are in `aiodq.wire`."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

__all__ = [
    "ACK",
    "CALL",
    "CHANGES",
    "DELIVER",
    "EACH",
    "EXISTING",
    "FACTS",
    "FAIL",
    "FIGURES",
    "FIRST_PACKET",
    "HELD",
    "HELLO",
    "ITEM",
    "JSON",
    "LARGEST",
    "OLDEST",
    "OPEN",
    "PACKET",
    "PLACED",
    "PLACES",
    "PREFETCHED",
    "PUT",
    "RANGE",
    "REJECT",
    "SIZE",
    "TEXT",
    "TOKEN",
    "TXN",
    "UNSET",
    "VERSION",
    "WANT",
    "WELCOME",
    "Op",
]

VERSION: Final = 2
"""The newest version of the protocol that this code speaks."""

OLDEST: Final = 1
"""The oldest one."""

FIRST_PACKET: Final = 65536
PREFETCHED: Final = 16
LARGEST: Final = 0x7FFFFFFF
JSON: Final = 65536
TEXT: Final = 65536
CHANGES: Final = 1 << 62
UNSET: Final = -1
EACH: Final = 0x01
EXISTING: Final = 0x01
PLACES: Final = 0x01
FACTS: Final = 0x02


class Op(IntEnum):
    """The operation of a packet."""

    HELLO = 0x01
    OPEN = 0x02
    PUT = 0x03
    WANT = 0x04
    ACK = 0x05
    NACK = 0x06
    TOUCH = 0x07
    RELEASE = 0x08
    REJECT = 0x09
    TXN = 0x0A
    CALL = 0x0B
    RESUME = 0x0C
    PING = 0x0D
    BYE = 0x0E
    WELCOME = 0x81
    DONE = 0x82
    FAIL = 0x83
    DELIVER = 0x84
    GONE = 0x85
    FIGURES = 0x86
    HANDOVER = 0x87
    PONG = 0x88


PACKET: Final = struct.Struct("<IBBHI")
"""length, op, flags, 0, request."""

HELLO: Final = struct.Struct("<HHIQQI")
"""newest version, oldest version, pid, producer, epoch, 0."""

WELCOME: Final = struct.Struct("<HHIQIIq")
"""version, 0, pid, epoch, largest, 0, reclaim."""

OPEN: Final = struct.Struct("<IBBH")
"""handle, bytes of the topic's name, bytes of the channel's name, 0."""

PUT: Final = struct.Struct("<IQI")
"""handle, sequence, count."""

WANT: Final = struct.Struct("<IQ")
"""handle, total."""

ACK: Final = struct.Struct("<IIQ")
"""handle, count, epoch: the beginning of packets of ranges and of items."""

RANGE: Final = struct.Struct("<QQI")
"""first offset, its delivery number, count."""

HELD: Final = struct.Struct("<QQII")
"""The fields of RANGE, and attempts."""

ITEM: Final = struct.Struct("<QQqII")
"""offset, delivery number, span, attempts, 0."""

REJECT: Final = struct.Struct("<IIQQQ")
"""handle, attempts, epoch, offset, delivery number."""

TXN: Final = struct.Struct("<QHH")
"""sequence, acks, puts."""

CALL: Final = struct.Struct("<H")
"""bytes of the name."""

PLACED: Final = struct.Struct("<QI")
"""first offset, count."""

FAIL: Final = struct.Struct("<BBHiqII")
"""bytes of the name, retriable, bytes of the path, errno, position, pid, bytes of the text."""

DELIVER: Final = struct.Struct("<IIQQ")
"""handle, attempts, first offset, its delivery number."""

FIGURES: Final = struct.Struct("<IIQQQQQQ")
"""handle, 0, ready, in flight, deferred, begin, end, durable."""

TOKEN: Final = struct.Struct("<Q")
"""The token of PING and PONG, and the epoch of HANDOVER."""

SIZE: Final = struct.Struct("<I")
"""bytes of what follows."""
