"""The messages of one channel that transactions are about to settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.range_set import among
from aiodq.errors import NotInFlightError

if TYPE_CHECKING:
    from aiodq.engine.channel.acks.settlement import Settlement

__all__ = ["TransactionHolds"]


class TransactionHolds:
    """The holds of one channel. Messages are held and settled in runs: neighbours delivered one after the other.

    A held message does not time out, and has another delivery number, so that only its transaction can settle it.
    """

    __slots__ = ("_channel",)

    def __init__(self, channel: Settlement) -> None:
        """Hold messages of this channel."""
        self._channel = channel

    def hold(self, start: int, stop: int, delivery: int) -> int:
        """Keep messages from timing out until they are settled or released.

        Args:
            start: the first offset.
            stop: the offset after the last.
            delivery: the first delivery number; the others follow it.

        Returns:
            The number by which the first message is held; the others follow it.

        Raises:
            NotInFlightError: one is not in flight under its delivery number; nothing changed.
        """
        channel = self._channel
        channel.check_all(start, stop, delivery)
        state = channel.state
        if state is None:
            raise NotInFlightError(f"messages {start} to {stop - 1} are not in flight here any more")
        held = state.hold(start, stop)
        for number in among(channel.latency.open, delivery, delivery + stop - start):
            channel.latency.moved(number, number - delivery + held)
        return held

    def holds(self, start: int, stop: int, held: int) -> bool:
        """Return whether messages are still held, by consecutive numbers from that one on."""
        state = self._channel.state
        return not self._channel.over and state is not None and state.is_in_flight(start, stop, held)

    def settle(self, start: int, stop: int, held: int) -> None:
        """Settle messages whose settlement is durable already; the journal may record it later.

        Messages that are no longer held are left as they are.
        """
        channel, state = self._channel, self._channel.state
        if channel.over or state is None:
            return
        if state.is_in_flight(start, stop, held):
            state.ack(start, stop)
        else:
            for offset in range(start, stop):
                if state.delivery(offset) == held + offset - start:
                    state.ack(offset)
        for number in among(channel.latency.open, held, held + stop - start):
            channel.latency.acked(number)
        channel.settled_elsewhere()

    def settle_dead(self, offset: int, held: int) -> None:
        """Do as `settle` for a message that is given up, whose dead letter is durable as well."""
        channel, state = self._channel, self._channel.state
        if not channel.over and state is not None and state.delivery(offset) == held:
            state.send_dead_letter(offset)
            channel.settled_elsewhere()

    def release(self, start: int, stop: int, held: int, delivery: int) -> None:
        """Return messages to being in flight as before they were held, with their timeout restarted."""
        channel, state = self._channel, self._channel.state
        if channel.over or state is None:
            return
        runs = [(start, stop)]
        if stop - start == 1 or not state.is_in_flight(start, stop, held):
            runs = [(at, at + 1) for at in range(start, stop) if state.delivery(at) == held + at - start]
        for first, end in runs:
            channel.unhold(first, end, delivery + first - start)
            for number in among(channel.latency.open, held + first - start, held + end - start):
                channel.latency.moved(number, number - held + delivery)
