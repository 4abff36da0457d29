"""The common part of both ends of a connection over a socket: reading packets."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import twice
from aiodq.errors import ProtocolError
from aiodq.shared.connection.in_turns import LONGEST_TURN
from aiodq.wire.stream import PacketReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.wire.stream import Received

__all__ = ["PacketProtocol"]

_FEW: Final = 256
"""Bytes in which there are so few packets that their time is not looked at: mostly one arrives alone."""

_AT_ONCE: Final = 1 << 16
"""Bytes that are read by one call."""


class PacketProtocol(asyncio.Protocol, ABC):
    """One end of a connection: handles the packets that arrive, in turns of the loop, as there may be thousands.

    Each end defines how a packet is handled, and how an unintelligible connection is ended (`_break_off`).

    Attributes:
        reader: cuts what arrives into packets.
    """

    def __init__(self, receive: Callable[[Received], None], monotonic: Callable[[], float]) -> None:
        """Have `receive` handle packets, which raises ProtocolError for a wrong one; measure turns by this clock."""
        self.reader: PacketReader = PacketReader()
        self._receive = receive
        self._monotonic = monotonic
        self._transport: Any = None
        self._rest: Iterator[Received] | None = None
        self._left = 0

    @abstractmethod
    def _break_off(self, error: ProtocolError) -> None:
        """End a connection that carries something other than packets."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport of whatever loop it is
        """See `asyncio.BaseProtocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._rest is not None:
            self._finish()  # the transport had read this before reading was paused
        try:
            packets = self.reader.feed(data)
        except ProtocolError as error:
            self._break_off(error)
        else:
            self._handle(packets, whole=len(data) <= _FEW)

    def _handle(self, packets: Iterator[Received], *, whole: bool = False) -> None:
        """Handle what has arrived: all of it, or what is not handled within a turn in the next one."""
        end = 0.0 if whole else self._monotonic() + LONGEST_TURN
        self._rest = None
        try:
            for packet in packets:
                self._receive(packet)
                if not whole and self._monotonic() >= end:
                    self._leave(packets)
                    return
        except ProtocolError as error:
            self._break_off(error)

    def _leave(self, packets: Iterator[Received]) -> None:
        """Leave the rest to the next turn of the loop."""
        # INVARIANT: nothing is read meanwhile: the rest comes before it.
        self._pause_reading()
        self._rest = packets
        self._left += 1
        twice(asyncio.get_running_loop().call_soon, partial(self._go_on, self._left))

    def _go_on(self, left: int) -> None:
        if left == self._left and self._rest is not None:
            self._handle(self._rest)
        self._resume_reading()

    def _finish(self) -> None:
        """Handle what was left to the next turn."""
        if self._rest is not None:
            self._handle(self._rest, whole=True)

    def _end_with(self, error: Exception | None) -> None:
        """Handle all that the other end has sent, as the connection was lost."""
        self._finish()
        if not isinstance(error, ConnectionError):
            return
        # A write has failed because the other end is gone: its last packets, such as BYE, are not read yet.
        socket = self._transport.get_extra_info("socket")
        with suppress(OSError):
            while data := os.read(socket.fileno(), _AT_ONCE):
                self.data_received(data)
        self._finish()

    def _may_read(self) -> bool:
        """Return whether this end may read."""
        return self._rest is None and not self._transport.is_closing()

    def _pause_reading(self) -> None:
        """Pause reading; to be called before a change that makes `_may_read` false."""
        if self._may_read():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Resume reading, unless there is another reason not to."""
        if self._may_read():
            self._transport.resume_reading()

    def _write_failed(self) -> None:
        """Abort the connection, as a write has failed.

        For lack of memory, a part of it may be on its way: the other end would take what follows for the rest.
        """
        # First closed: asyncio's `abort` leaves a socket watched for room to write if nothing was kept to write.
        self._transport.close()
        self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
