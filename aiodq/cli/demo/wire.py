"""Events that the process to be killed sends to its parent, over a pipe, in frames: an incomplete one is ignored."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Acknowledged", "Delivered", "Event", "Settled", "Unpacker", "pack"]

_HEAD: Final = struct.Struct("<BI")
_ACKNOWLEDGED: Final = struct.Struct("<IQQ")
_ONE: Final = struct.Struct("<QI")


class Acknowledged(NamedTuple):
    """A producer's messages before `position` are durable; the log has been synced `fsyncs` times."""

    producer: int
    position: int
    fsyncs: int


class Delivered(NamedTuple):
    """A consumer has taken these messages, by (offset, body), and will ack them."""

    messages: list[tuple[int, bytes]]


class Settled(NamedTuple):
    """The acks of the messages at these offsets are durable."""

    offsets: list[int]


Event: TypeAlias = Acknowledged | Delivered | Settled


def pack(event: Event) -> bytes:
    """Return an event's frame."""
    match event:
        case Acknowledged():
            kind, payload = 1, _ACKNOWLEDGED.pack(*event)
        case Delivered():
            pieces = (piece for offset, body in event.messages for piece in (_ONE.pack(offset, len(body)), body))
            kind, payload = 2, b"".join(pieces)
        case Settled():
            kind, payload = 3, array("Q", event.offsets).tobytes()
    return _HEAD.pack(kind, len(payload)) + payload


class Unpacker:
    """Turns what is read from the pipe into events."""

    def __init__(self) -> None:
        """Begin at a frame's start."""
        self._data = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that the chunk completes."""
        self._data += chunk
        at = 0
        while len(self._data) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._data, at)
            end = at + _HEAD.size + length
            if end > len(self._data):
                break
            yield _unpack(kind, bytes(self._data[at + _HEAD.size : end]))
            at = end
        del self._data[:at]


def _unpack(kind: int, payload: bytes) -> Event:
    if kind == 1:
        return Acknowledged(*_ACKNOWLEDGED.unpack(payload))
    if kind == 2:  # noqa: PLR2004 - as `pack` numbers them
        return Delivered(list(_messages(payload)))
    return Settled(array("Q", payload).tolist())


def _messages(payload: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at < len(payload):
        offset, size = _ONE.unpack_from(payload, at)
        at += _ONE.size
        yield offset, payload[at : at + size]
        at += size
