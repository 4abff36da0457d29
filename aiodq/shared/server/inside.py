"""The connection of the owner's own process: packets are handed over in the next turn of the loop, without a socket."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from aiodq.awaited import twice
from aiodq.errors import ProtocolError, StoreFailedError
from aiodq.shared.connection.in_turns import LONGEST_TURN
from aiodq.shared.server.session import Session
from aiodq.shared.server.session_end import SessionEnd
from aiodq.wire.layout import UNSET
from aiodq.wire.packets import (
    Ack,
    Deliver,
    Done,
    Fail,
    Figures,
    Gone,
    Nack,
    Packet,
    Ping,
    Pong,
    Put,
    Release,
    Touch,
    Want,
    read_packet,
)
from aiodq.wire.stream import Received

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.shared.connection.wires.link_wire import ReceivingLink
    from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult
    from aiodq.shared.requests.serving import Owning

__all__ = ["Inside", "OwnEnd"]

_AS_IT_IS: Final = frozenset({Ack, Deliver, Figures, Gone, Nack, Ping, Pong, Put, Release, Touch, Want})
"""Packets of numbers and bytes, which no end changes. Others are encoded: the ends are to have no object in common."""

_REGULAR: Final = frozenset({Ping, Pong})
"""Packets that are sent every few seconds."""

_Encoded: TypeAlias = "tuple[int, int, bytes]"


class _Direction:
    """Packets on their way to one end, in order."""

    def __init__(self, take: Callable[[Received], None], monotonic: Callable[[], float]) -> None:
        """Hand packets over to `take`, for as long as a turn of the loop lasts by this clock."""
        self._take = take
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._packets: deque[tuple[Packet | _Encoded, int]] = deque()
        self._shut = self._dropped = False

    def send(self, packet: Packet, request: int) -> None:
        """Hand a packet over in the next turn of the loop, or a later one if there are many.

        Raises:
            ProtocolError: a text or JSON in it is too long.
        """
        if self._shut:
            return  # what a closed connection loses is sent again, or answered by `lost`
        as_it_is = type(packet) in _AS_IT_IS or (type(packet) is Done and packet.facts is None)
        passed = packet if as_it_is else (int(packet.op), *packet.payload())
        # An interrupt, as of Ctrl-C, may have come instead of a turn that was scheduled, and the loop forgets that one.
        if not self._packets or type(packet) in _REGULAR:
            self._loop.call_soon(self._turn)
        self._packets.append((passed, request))

    def _turn(self) -> None:
        """Hand over what was sent; what does not fit into a turn is left to the next one."""
        packets = self._packets
        if len(packets) == 1:  # as mostly
            packet, request = packets.popleft()
            if not self._dropped:
                self._take(Received(_decoded(packet), request))
            return
        end = self._monotonic() + LONGEST_TURN
        try:
            for _ in range(len(packets)):
                self._hand_over(*packets.popleft())
                if self._monotonic() >= end:
                    break
        finally:
            if packets:
                self._loop.call_soon(self._turn)

    def flush(self) -> None:
        """Hand over all that was sent."""
        while self._packets:
            self._hand_over(*self._packets.popleft())

    def _hand_over(self, packet: Packet | _Encoded, request: int) -> None:
        if not self._dropped:
            self._take(Received(_decoded(packet), request))

    def shut(self, *, drop: bool = False) -> None:
        """Take no more packets; with `drop`, hand over none either."""
        self._shut = True
        self._dropped = self._dropped or drop


def _decoded(packet: Packet | _Encoded) -> Packet:
    if isinstance(packet, tuple):
        op, flags, payload = packet
        return read_packet(op, flags, memoryview(payload))
    return packet


class Inside:
    """The link's end.

    Attributes:
        reason: why this end closed it, or None.
        other: the owner's end.
    """

    def __init__(self, link: ReceivingLink, owner: Owning, gone: Callable[[OwnEnd], None]) -> None:
        """Connect; `gone` is called once the owner's end is closed, and what was held is given back."""
        self.reason: ProtocolError | None = None
        self.other: OwnEnd = OwnEnd(owner, self, gone)
        self._link = link
        monotonic = owner.engine.clock.monotonic
        self._there, self._back = _Direction(self.other.take, monotonic), _Direction(self._take, monotonic)
        self._ending = self._over = False

    def _take(self, received: Received) -> None:
        self._link.note_alive()
        try:
            self._link.receive(received)
        except ProtocolError as error:
            self.reason = error
            self.close()

    def send(self, packet: Packet, request: int) -> None:
        """Send a packet to the owner."""
        self._there.send(packet, request)

    def answer(self, packet: Packet, request: int) -> None:
        """Send a packet of the owner to the link."""
        self._back.send(packet, request)

    def welcomed(self) -> None:
        """Do nothing: no size is too large here."""

    def close(self) -> None:
        """Close, once the owner has everything that was sent."""
        self._there.shut()
        self._back.shut(drop=True)
        self._end_soon()

    abort = close

    def hang_up(self) -> None:
        """Close, once the link has what the owner sent."""
        self._there.shut(drop=True)
        self._back.shut()
        self._end_soon()

    def _end_soon(self) -> None:
        if not self._ending:
            self._ending = True
            twice(asyncio.get_running_loop().call_soon, self._end)

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._there.flush()
        self._back.flush()
        self._link.lost(self)
        self.other.lost()


class OwnEnd:
    """The owner's end; see `Wire`."""

    clogged: bool = False

    def __init__(self, owner: Owning, inside: Inside, gone: Callable[[OwnEnd], None]) -> None:
        """Made by `Inside`."""
        self.session: Session = Session(owner, self)
        self._owner = owner
        self._inside = inside
        self._end_of_session = SessionEnd(self.session, owner.engine, lambda: gone(self))

    def take(self, received: Received) -> None:
        """Handle a packet of the link."""
        try:
            self.session.receive(received)
        except ProtocolError as error:
            self.send(Fail("ProtocolError", retriable=False, errno=0, position=UNSET, pid=0, path="", text=str(error)))
            self.end()
        except StoreFailedError:
            self.end()
        except BaseException:
            self.end()
            raise

    def welcomed(self) -> None:
        """See `Wire`. What the link sends is of any size from the first packet on."""

    def process(self, said: int) -> int:
        """Return this process."""
        return said

    def send(self, packet: Packet, request: int = 0) -> None:
        """Send a packet to the link."""
        self._inside.answer(packet, request)

    send_soon = send

    def early(self, _request: int) -> None:
        """Return None: only the loop answers."""

    def answered(self, _put: ClientPutResult) -> bool:
        """Return False: the loop answers everything."""
        return False

    async def writable(self) -> None:
        """Return: the link takes everything in the next turn."""

    def end(self) -> None:
        """Close, once everything sent is handed over."""
        self._inside.hang_up()

    abort = end

    def lost(self) -> None:
        """Give back the messages held; in a forked child, where the owner is the parent's, do nothing."""
        if self._owner.engine.inherited:
            self._end_of_session.leave()
            return
        self._end_of_session.begin()

    async def ended(self) -> None:
        """Wait until the connection is closed, and what was held is given back."""
        await self._end_of_session.wait()
