"""Messages that are not to be delivered: expired, out of attempts, for other channels, or not due yet.

Some are found when it is their turn; expired messages and those that have had their last attempt are settled ahead of
it. A message that is given up is settled at once, or if there is a dead-letter topic, in the transaction that puts it
there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from aiodq.engine.channel.acks.out_of_turn import MOST_LETTERS, OutOfTurn
from aiodq.engine.channel.channel_core import SECOND
from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter, send_dead_letter
from aiodq.engine.channel.source.delivery_filter import DeliveryFilter
from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.engine.loop.futures import surely
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.engine.channel.source.message_source import MessageSource
    from aiodq.engine.loop.clock_timer import ClockTimer

__all__ = ["Undeliverable"]

_EXPIRED: Final = "expired"
"""The reason for giving up a message that has expired."""

_RETRY_NS: Final = SECOND
"""Nanoseconds until another try to give up a message for which the dead-letter topic had no room."""

_MOST_AT_ONCE: Final = 100
"""The most messages that are out of attempts or expired to be settled in one turn of the loop."""

_MOST_HELD: Final = 2000
"""The most expired messages to be settled in one turn of the loop if some may be in flight: a millisecond's work."""


class Undeliverable:
    """Handles the messages of one channel that are not to be delivered.

    Attributes:
        filter: what the channel delivers.
        out_of_turn: the messages to be given up ahead of their turn.
    """

    __slots__ = ("_channel", "_clock", "_host", "_source", "_timer", "filter", "out_of_turn")

    def __init__(
        self,
        channel: ChannelCore,
        host: ChannelEngineHost[ChannelCore],
        clock: Clock,
        *,
        timer: ClockTimer,
        source: MessageSource,
    ) -> None:
        """Handle the messages of this channel.

        Args:
            channel: the channel.
            host: the topic's engine.
            clock: the store's clock.
            timer: the channel's.
            source: where its messages come from.
        """
        self._channel = channel
        self._host = host
        self._clock = clock
        self._timer = timer
        self._source = source
        self.filter: DeliveryFilter = DeliveryFilter(channel.name, host.lifetimes, clock)
        self.out_of_turn: OutOfTurn = OutOfTurn()

    # --- at their turn

    def wanted(self, state: ChannelState, batch: Batch, number: int) -> bool:
        """Return whether the message is to be delivered now; if not, it is settled, deferred or given up."""
        channel, columns, offset = self._channel, batch.columns, batch.first + number
        wall, now = channel.times()
        if (
            columns.dues is not None
            and columns.dues[number] > wall
            and not (state.passed(offset) or self.filter.is_over(batch, number, now))
        ):
            # Setting the wall clock back does not prolong any wait.
            put = batch.time_ns if columns.times is None else columns.times[number]
            state.defer(offset, now + columns.dues[number] - max(wall, put))
            channel.set_timer(state)
        elif self.filter.is_for_others(columns, number):
            count = max(state.plain_run(offset, batch.stop), 1)
            state.skip(offset, offset + self.filter.others(columns, number, count))
        elif self.filter.is_over(batch, number, now):
            if channel.options.dead_letter is None:
                state.expire(offset)
            else:
                state.counters.expired += 1
                self.give_up(state, batch, number, _EXPIRED)
        elif self.is_spent(state, offset):
            self.give_up(state, batch, number, f"delivered {state.attempts(offset)} times")
        else:
            return True
        self._source.requeue_cache.discard(offset)
        channel.changed()
        return False

    def is_held_up(self, state: ChannelState, batch: Batch, number: int) -> bool:
        """Return whether a message is to become a dead letter, and so waits while `MOST_LETTERS` are on their way."""
        if self.out_of_turn.letters < MOST_LETTERS or self._channel.options.dead_letter is None:
            return False
        offset = batch.first + number
        return self.is_spent(state, offset) or self.filter.is_over(batch, number, monotonic_ns(self._clock))

    def is_spent(self, state: ChannelState, offset: int) -> bool:
        """Return whether a message was delivered as often as allowed."""
        most = self._channel.options.max_attempts
        return most is not None and state.attempts(offset) >= most

    # --- ahead of it

    def look_at_spent(self, state: ChannelState) -> None:
        """Check the messages delivered as often as allowed: in an earlier run, or under other options."""
        most = self._channel.options.max_attempts
        for offset in () if most is None else state.delivered_as_often(most):
            self.out_of_turn.add(offset)
        self.settle_ahead()

    def ended(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that messages have expired, whatever their state."""
        state = self._channel.state
        if state is not None and not self._channel.over and ranges[-1][1] > state.floor:
            self.out_of_turn.ended.append(ranges)
            self.settle_ahead()

    def settle_ahead(self) -> None:
        """Settle messages that are out of attempts or expired ahead of their turn, some in each turn of the loop."""
        if not self.out_of_turn.asked and (self.out_of_turn.ranges or self.out_of_turn.ended):
            self.out_of_turn.asked = True
            self._host.expirations.in_turn(self._settle_some)

    def _settle_some(self) -> None:
        channel, out_of_turn = self._channel, self.out_of_turn
        state = channel.state
        out_of_turn.asked = False
        if state is None or channel.over or channel.reclaiming or channel.held:
            return
        out_of_turn.sort(each=channel.options.dead_letter is not None or self.filter.tags is not None)
        if ended := out_of_turn.take_ended(_MOST_HELD if state.flying else sys.maxsize):
            out_of_turn.outlived(state.expire_ranges(ended), state)
            self._source.requeue_cache.discard_within(ended)
            channel.changed()
        now = monotonic_ns(self._clock)
        if out_of_turn.may_go_on(now):
            self._settle_out_of_turn(state)
        elif out_of_turn.until > now:
            self._timer.set(out_of_turn.until)
        if out_of_turn.ended or (out_of_turn.ranges and out_of_turn.may_go_on(now)):
            self.settle_ahead()

    def _settle_out_of_turn(self, state: ChannelState) -> None:
        """Give up some of the messages to be checked, as far as they qualify. Those not in memory are read first."""
        missing: list[int] = []
        for offset in self.out_of_turn.take(state, _MOST_AT_ONCE):
            batch = self._source.in_memory(offset)
            if batch is None:
                missing.append(offset)
            else:
                self._look_at(state, batch, offset - batch.first)
        if missing:
            self.out_of_turn.put_back(missing)
            self._source.bring(missing)

    def _look_at(self, state: ChannelState, batch: Batch, number: int) -> None:
        offset = batch.first + number
        if offset in state.deferred:
            if not self.filter.is_over(batch, number, monotonic_ns(self._clock)):
                self.out_of_turn.wait(offset, state)
                return
            state.recall(offset)
        self.wanted(state, batch, number)

    def supplied(self, error: Exception | None) -> None:
        """Go on: what was to be checked next was read, or could not be read."""
        if self.out_of_turn.reading:
            self.out_of_turn.reading = False
            if error is not None:
                # A disk that cannot be read is not asked again at once, in an endless loop.
                self.out_of_turn.hinder(monotonic_ns(self._clock) + SECOND, MOST_LETTERS)
            self.settle_ahead()

    # --- giving up

    def give_up(
        self,
        state: ChannelState,
        batch: Batch,
        number: int,
        reason: str,
        attempts: int | None = None,
        *,
        error: str = "",
    ) -> asyncio.Future[None] | None:
        """Settle a message for good, and put it into the dead-letter topic if there is one.

        Args:
            state: the channel's.
            batch: a batch with the message in it.
            number: which of its messages.
            reason: as text.
            attempts: how often it was delivered, if it is in flight and its consumer gives it up.
            error: type and text of the exception that the last attempt ended with, or empty.

        Returns:
            A future, done once the dead letter is put and the message settled, both durably; None if it is settled
            without one.
        """
        channel, offset = self._channel, batch.first + number
        target = channel.options.dead_letter
        delivered = state.attempts(offset) if attempts is None else attempts
        if target is None:
            state.hold(offset)
            state.send_dead_letter(offset)
            self._host.reporter.dead(self._host.name, channel.name, offset, delivered, reason, target=None)
            return None
        columns = batch.columns.slice(number, number + 1)
        time_ns = batch.time_ns if columns.times is None else columns.times[0]
        alone = Batch(offset, time_ns, columns)
        if attempts is not None:
            # If the process is killed before that is committed, the message is not redelivered more often than allowed.
            state.count(offset, attempts)

        def failed() -> None:
            # It counts as expired only once it is settled. With `attempts`, its consumer gave it up.
            state.counters.expired -= attempts is None and reason == _EXPIRED
            if not channel.over:
                self._try_again_later(state, offset, delivered)
                channel.changed()

        letter = DeadLetter(target, self._host.name, channel.name, alone, state.hold(offset), delivered, reason, error)
        self.out_of_turn.letters += 1
        put = send_dead_letter(state, letter, self._host.send_dead_letter, failed)
        surely(put, self._posted)
        return put

    def _try_again_later(self, state: ChannelState, offset: int, attempts: int) -> None:
        due = monotonic_ns(self._clock) + _RETRY_NS
        state.nack(offset, attempts, due)
        self.out_of_turn.hinder(due, 1)
        self.out_of_turn.wait(offset, state)
        self._timer.set(due)

    def _posted(self, _: asyncio.Future[None]) -> None:
        """Go on after a dead letter was put or failed: others may follow."""
        self.out_of_turn.letters -= 1
        self.settle_ahead()
        if self.out_of_turn.letters == MOST_LETTERS - 1:
            self._channel.wake()
