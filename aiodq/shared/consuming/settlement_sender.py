"""Sends the settlements of one channel to the owner, and to each next one, until one confirms them."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Protocol

from aiodq.awaited import twice
from aiodq.errors import NotInFlightError, not_in_flight
from aiodq.shared.consuming.unanswered import Unanswered
from aiodq.shared.encoding.remote_errors import error_of, is_lost
from aiodq.wire.packets import Ack, Fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.shared.connection.link import Link
    from aiodq.shared.consuming.counts import Counts
    from aiodq.shared.consuming.holdings import Holdings
    from aiodq.shared.consuming.sent_settlements import SentSettlement, Settling, Together
    from aiodq.wire.packets import Packet
    from aiodq.wire.payload import Range

__all__ = ["HoldingChannel", "SettlementSender"]


class HoldingChannel(Protocol):
    """What is needed of the channel; `RemoteSettlement` implements it."""

    epoch: int
    counts: Counts

    @property
    def holdings(self) -> Holdings:
        """What is held here."""
        ...

    def request(self, make: Callable[[int], Packet]) -> asyncio.Future[Packet]:
        """Send the owner a request, built with the channel's handle."""
        ...

    def dropped(self) -> None:
        """Note that fewer messages are held."""
        ...


class SettlementSender:
    """The settlements of one channel on their way. All acks of a turn of the loop are sent in one packet.

    Attributes:
        claimed: whether the owner has said which messages are still held. Until then, nothing is sent.
        last: the settlement that was begun last, or None.
        together: what gathers the settlements of a call, or None.
        unanswered: acks and rejections whose outcome is unknown.
    """

    def __init__(self, channel: HoldingChannel, link: Link, settling: Settling) -> None:
        """Start without settlements.

        Args:
            channel: the channel.
            link: the link to the owner.
            settling: the channel's settlements without an answer.
        """
        self.claimed: bool = True
        self.last: SentSettlement | None = None
        self.together: Together | None = None
        self.unanswered: Unanswered = Unanswered()
        self._channel = channel
        self._link = link
        self._settling = settling
        self._unsent: list[SentSettlement] = []
        self._sending = False

    def begin(self, settling: SentSettlement) -> SentSettlement:
        """Send a settlement, now or once the messages are claimed; return it."""
        self.last, settling.awaited = settling, self._awaited
        if self.together is not None:
            self.together.those.append(settling)
        self._settling[settling] = None
        if self.claimed:
            self.send(settling)
        return settling

    def send(self, settling: SentSettlement) -> None:
        """Send a settlement, unless a cancelled transaction may settle the same messages."""
        make = settling.make
        if not self._settling.decided(settling.numbers):
            return
        if make is None:
            self._unsent.append(settling)
            self.send_acks_soon()
        elif self._channel.holdings.any_of(settling.numbers):
            settling.counts_version = self._channel.counts.version
            answer = self._channel.request(make)
            twice(answer.add_done_callback, lambda done: self._answered([settling], done.result()))
        else:
            self._end(settling, None)  # done unheard by an earlier owner, or taken away

    def send_again(self) -> None:
        """Send everything to another owner, which has answered what is still held."""
        self._unsent.clear()
        for settling in list(self._settling):
            settling.lost = False
            self.send(settling)

    def send_acks_soon(self) -> None:
        """Send the acks at the end of this turn of the loop."""
        if not self._sending:
            self._sending = True
            self._link.outbox.soon(self._send_acks)

    def _send_acks(self) -> None:
        """Send all acks of this turn of the loop in one packet."""
        channel, holdings = self._channel, self._channel.holdings
        self._sending = False
        unsent, self._unsent = self._unsent, []
        if not self.claimed:
            return  # they are sent once the next owner has left them here
        together: list[SentSettlement] = []
        ranges: list[Range] = []
        for settling in unsent:
            if settling.over:
                continue
            if holdings.gather(settling.numbers, ranges):
                settling.counts_version = channel.counts.version
                together.append(settling)
            else:
                self._end(settling, None)  # done unheard by an earlier owner, or taken away
        if together:
            answer = channel.request(lambda handle: Ack(handle, channel.epoch, tuple(ranges)))
            twice(answer.add_done_callback, lambda done: self._answered(together, done.result()))

    # --- the outcome

    def _answered(self, together: list[SentSettlement], answer: Packet) -> None:
        if isinstance(answer, Fail) and is_lost(answer):
            return  # it is sent again to the next owner
        refusal = error_of(answer) if isinstance(answer, Fail) else None
        # Of acks sent together, the owner has already reported which were no longer in flight.
        reported = len(together) > 1 and isinstance(refusal, NotInFlightError)
        for settling in together:
            self._end(settling, None if reported and not settling.lost else copy(refusal))

    def _end(self, settling: SentSettlement, refusal: Exception | None) -> None:
        if settling.over:
            return
        channel = self._channel
        self._settling.pop(settling, None)
        for each in settling.numbers:
            channel.holdings.drop(each)
        if refusal is None and settling.superseded is not None:
            refusal = not_in_flight(f"message {settling.superseded}")
        # Counts sent since then may include it; if not, the next ones will, which the owner sends for it.
        if refusal is None and channel.counts.version == settling.counts_version:
            channel.counts.settled(sum(map(len, settling.numbers)), back=settling.back)
        settling.end(refusal)
        channel.dropped()

    def end_all(self, error: Exception) -> None:
        """End every settlement with this error: no owner will answer."""
        for settling in list(self._settling):
            self._end(settling, copy(error))

    def tell(self, error: Exception) -> None:
        """Fail the waiters of settlements, as no owner answers; the messages may be settled nevertheless."""
        for settling in list(self._settling):
            self._tell(settling, self._link.undecided(error))

    def _tell(self, settling: SentSettlement, error: Exception) -> None:
        if settling.final and settling.waiters:
            self.unanswered.note(settling)
        settling.tell(error)

    def _awaited(self, settling: SentSettlement) -> None:
        """Fail the tasks, too, that began to wait after the others were told that no owner answers."""
        if (failure := self._link.failure) is not None:
            asyncio.get_running_loop().call_soon(self._tell, settling, self._link.undecided(failure))
