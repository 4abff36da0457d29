"""Giving a message up: it is settled for good, once it is in the dead-letter topic if the channel has one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.engine.channel.acks.out_of_turn import MOST_LETTERS
from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter, send_dead_letter
from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.acks.out_of_turn import OutOfTurn
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.engine.loop.clock_timer import ClockTimer
    from aiodq.options import ChannelOptions

__all__ = ["EXPIRED", "GivenUpChannel", "GivingUp"]

EXPIRED: Final = "expired"
"""The reason for giving up a message that has expired."""

_RETRY_NS: Final = 1_000_000_000
"""Nanoseconds until another try to give up a message for which the dead-letter topic had no room."""


class GivenUpChannel(Protocol):
    """What giving up needs of a channel: `aiodq.engine.channel.acks.settlement.Settlement` is one."""

    name: str
    options: ChannelOptions

    @property
    def over(self) -> bool:
        """Whether nothing is delivered or settled any more."""
        ...

    def settle_ahead(self) -> None:
        """Settle out-of-attempts and expired messages before anybody asks for them."""
        ...

    def wake(self) -> None:
        """Wake those who wait for what the state has now."""
        ...


class GivingUp:
    """How the messages of one channel are given up."""

    __slots__ = ("_changed", "_channel", "_clock", "_host", "_out_of_turn", "_timer")

    def __init__(
        self,
        channel: GivenUpChannel,
        host: ChannelEngineHost[Any],
        clock: Clock,
        *,
        timer: ClockTimer,
        out_of_turn: OutOfTurn,
        changed: Callable[[], None],
    ) -> None:
        """Give messages of a channel up.

        Args:
            channel: the channel.
            host: the topic's engine.
            clock: the store's clock.
            timer: the channel's.
            out_of_turn: counts the dead letters on their way.
            changed: called when the channel's state has changed after `give_up` has returned.
        """
        self._channel = channel
        self._host = host
        self._clock = clock
        self._timer = timer
        self._out_of_turn = out_of_turn
        self._changed = changed

    def give_up(
        self,
        state: ChannelState,
        batch: Batch,
        number: int,
        reason: str,
        attempts: int | None = None,
        *,
        error: str = "",
    ) -> asyncio.Future[None]:
        """Settle a message for good, once it is in the dead-letter topic if there is one.

        Args:
            state: the channel's.
            batch: a batch with the message in it.
            number: which of its messages.
            reason: in words.
            attempts: how often it was delivered, if a consumer gives it up that has it in hand.
            error: type and text of the exception that the last attempt ended with, or empty.

        Returns:
            A future, done once that is durable.
        """
        offset, target = batch.first + number, self._channel.options.dead_letter
        delivered = state.attempts(offset) if attempts is None else attempts
        if target is None:
            state.hold(offset)
            state.send_dead_letter(offset)
            self._host.reporter.dead(self._host.name, self._channel.name, offset, delivered, reason, target=None)
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            settled.set_result(None)
            return settled
        columns = batch.columns.slice(number, number + 1)
        time_ns = batch.time_ns if columns.times is None else columns.times[0]
        alone = Batch(offset, time_ns, columns)
        if attempts is not None:
            # If the process is killed before the letter is put, the message is not redelivered more often than allowed.
            state.count(offset, attempts)

        def failed() -> None:
            # It counts as expired only once it is settled. With `attempts`, a consumer gave it up that had it in hand.
            state.counters.expired -= attempts is None and reason == EXPIRED
            if not self._channel.over:
                self._try_again_later(state, offset, delivered)

        letter = DeadLetter(target, self._host.name, self._channel.name, alone, delivered, reason, error)
        self._out_of_turn.letters += 1
        put = send_dead_letter(state, letter, self._host.send_dead_letter, failed, self._changed)
        put.add_done_callback(self._posted)
        return put

    def _try_again_later(self, state: ChannelState, offset: int, attempts: int) -> None:
        due = monotonic_ns(self._clock) + _RETRY_NS
        state.nack(offset, attempts, due)
        self._out_of_turn.hinder(due, 1)
        self._out_of_turn.wait(offset, state)
        self._timer.set(due)

    def _posted(self, _: asyncio.Future[None]) -> None:
        """Go on after a dead letter was put or failed: others may follow."""
        self._out_of_turn.letters -= 1
        self._channel.settle_ahead()
        if self._out_of_turn.letters == MOST_LETTERS - 1:
            self._channel.wake()
