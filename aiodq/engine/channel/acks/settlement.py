"""Settlement: a channel's messages are acked, requeued, given up or timed out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.delivery.leases import ACKED, APART, MEASURED, SETTLED
from aiodq.delivery.range_set import among
from aiodq.engine.channel.acks.undeliverable import Undeliverable
from aiodq.engine.channel.channel_core import SECOND, ChannelCore
from aiodq.engine.channel.dead_lettering.failure_causes import NO_CAUSE, Cause, header_text
from aiodq.engine.channel.source.message_source import MessageSource
from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.engine.loop.freeing import free_gradually
from aiodq.errors import OffsetError, again, not_in_flight
from aiodq.options import next_wait, seconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.delivery.leases import Lease
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.format.frame import Batch
    from aiodq.options import ChannelOptions
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["Settlement"]

_MOST_AT_A_RING: Final = 300
"""The most messages that have become due, and the most that have timed out, handled in one turn of the loop."""


class Settlement(ChannelCore):
    """The settlement of one channel's messages.

    Attributes:
        source: where messages come from.
        undeliverable: handles messages that are not to be delivered.
        counting: whether deliveries are journaled before the getter gets the message.
    """

    def __init__(self, name: str, host: ChannelEngineHost[ChannelCore], clock: Clock) -> None:
        """Start without a state; `attach` brings it."""
        super().__init__(name, host, clock, self._rung)
        self.counting: bool = False
        self.source: MessageSource = MessageSource(self, host.tail, host.reader, self._supplied)
        self.undeliverable: Undeliverable = Undeliverable(self, host, clock, timer=self._timer, source=self.source)
        self._measured = self.latency.open
        self._timeout: int | None = None
        self._fetch_error: Exception | None = None
        self._renewed: dict[int, int] = {}

    def configure(self, options: ChannelOptions) -> None:
        """Apply these options from now on."""
        self.options = options
        timeout = options.visibility_timeout
        self._timeout = None if timeout is None or options.auto_ack else int(seconds(timeout) * SECOND)
        self.counting = options.max_attempts is not None and not options.auto_ack
        self.undeliverable.filter.tags = None if options.tags is None else frozenset(options.tags)
        if self.state is not None:
            self.state.counting = self.counting
            self.state.close_lease()
            self.undeliverable.look_at_spent(self.state)
            self.state.max_in_flight = options.max_in_flight
            self.wake()
        self._activity.note(self._host)

    def attach(self, journal: ChannelJournal, state: ChannelState) -> None:
        """Start to deliver."""
        self.journal: ChannelJournal | None = journal
        self.state: ChannelState | None = state
        state.free = free_gradually
        state.follow(self._host)
        self._host.moved(state.floor)
        state.max_in_flight = self.options.max_in_flight
        state.counting = self.counting
        self.set_timer(state)
        self.undeliverable.look_at_spent(state)
        self.wake()

    def _supplied(self, error: Exception | None) -> None:
        """Go on: something was read, or could not be read."""
        if error is not None and self._wait_queue.line:
            # If no getter waits, the error is dropped: the next getter repeats the read.
            self._fetch_error = error
        self.undeliverable.supplied(error)
        self.wake(everybody=error is not None)

    # --- time

    def _rung(self) -> int | None:
        """Call `_ring` as a callback of the event loop: any exception stops the store, Ctrl-C included."""
        try:
            return self._ring()
        except BaseException as error:
            self._host.fail_store(error)
            if not isinstance(error, Exception):
                raise
            return None

    def _ring(self) -> int | None:
        """Make due messages ready, and take back those in flight that have timed out."""
        state = self.state
        if state is None or self._over is not None:
            return None
        self._activity.note(self._host)
        due, over = state.tick(monotonic_ns(self._clock), _MOST_AT_A_RING)
        for offset in due:
            self.undeliverable.out_of_turn.due(offset)
        late = [offset for offset in over if state.delivery(offset) not in self._renewed]
        for offset in late:
            state.time_out(offset)
            if not self.undeliverable.out_of_turn.back(offset) and self.undeliverable.is_spent(state, offset):
                self.undeliverable.out_of_turn.add(offset)
        if late:
            self._host.settled(self)
            self._host.reporter.timed_out(self._host.name, self.name, late)
        self.source.prepare(state)
        self.undeliverable.settle_ahead()
        self.wake()
        state.halt()  # the next message handed out sets the timer
        return state.next_moment()

    # --- settling

    def acked(self, lease: Lease) -> None:
        """Note the first ack in a lease since the state was last checked."""
        if self.state is not None:
            self.state.acked(lease)
        try:
            if self._wait_queue.line or self._joiners or self._idlers:
                self.wake()
            self._host.acked(self)
        except RecursionError as error:
            self._host.fail_store(error)  # as in `changed`
            raise

    def ack_run(self, lease: Lease, first: int, count: int) -> None:
        """Settle `count` consecutive messages of a lease: all in flight through it, or all apart from it."""
        if lease.marks[first] == APART:
            self._ack_apart(lease, first, count)
            return
        at = lease.marks.find(MEASURED, first, first + count)
        while at >= 0:
            self.latency.acked(lease.number + at)
            at = lease.marks.find(MEASURED, at + 1, first + count)
        lease.marks[first : first + count] = bytes([ACKED]) * count
        if lease.clean:
            self.acked(lease)

    def ack_marked(self, lease: Lease) -> None:
        """Settle the messages of a lease that are marked as acked."""
        if lease.clean:
            self.acked(lease)

    def _ack_apart(self, lease: Lease, first: int, count: int) -> None:
        start, number = lease.first + first, lease.number + first
        self._in_flight(start, number).ack(start, start + count)
        for delivery in among(self._measured, number, number + count):
            self.latency.acked(delivery)
        lease.marks[first : first + count] = bytes([SETTLED]) * count
        self.changed()

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(offset, delivery)
        state.ack(offset)
        if delivery in self._measured:
            self.latency.acked(delivery)
        self.changed()

    def ack_many(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Settle messages, by offset and delivery number: all of them, or none if one cannot be.

        Raises:
            NotInFlightError: one is not in flight under that delivery number.
        """
        for offset, delivery in deliveries:
            self._in_flight(offset, delivery)
        for offset, delivery in deliveries:
            self._in_flight(offset, delivery).ack(offset)
            if delivery in self._measured:
                self.latency.acked(delivery)
        if deliveries:
            self.changed()

    def cancel(self, offset: int) -> None:
        """Settle a deferred message that is not to be delivered.

        Raises:
            OffsetError: it is not deferred.
            QueueShutDown, StoreFailedError: the channel's end.
        """
        self.check_context()
        if self._over is not None:
            raise again(self._over)
        state = self.state
        if state is None or offset not in state.deferred:
            raise OffsetError(f"message {offset} is not deferred in {self.place}, but {_standing(state, offset)}")
        state.cancel(offset)
        self.source.requeue_cache.discard(offset)
        self.changed()

    def nack(
        self, batch: Batch, delivery: int, attempts: int, delay: int | None = None, cause: Cause = NO_CAUSE
    ) -> int | None:
        """Requeue a message, ahead of newer ones: after `delay` nanoseconds, or by the channel's backoff.

        Returns:
            The nanoseconds until it is ready; None if it was the last attempt, and the message was given up.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        offset, options = batch.first, self.options
        state = self._in_flight(offset, delivery)
        if options.max_attempts is not None and attempts >= options.max_attempts:
            self.undeliverable.give_up(
                state, batch, 0, f"delivered {attempts} times{cause.note}", attempts, error=cause.error
            )
            self.changed()
            return None
        if delay is None and options.backoff is not None:
            delay = int(next_wait(options.backoff, attempts) * SECOND)
        due = monotonic_ns(self._clock) + delay if delay else None
        state.nack(offset, attempts, due)
        if due is None:
            self.source.keep(batch)
        else:
            self._timer.set(due)
        self.changed()
        if self.undeliverable.out_of_turn.back(offset):
            self.undeliverable.settle_ahead()
        return delay or 0

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Requeue a message as if it had never been handed out.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(batch.first, delivery)
        state.release(batch.first, attempts)
        self.source.keep(batch)
        self.changed()
        if self.undeliverable.out_of_turn.back(batch.first):
            self.undeliverable.settle_ahead()

    def reject(
        self, batch: Batch, delivery: int, attempts: int, reason: str, cause: Cause = NO_CAUSE
    ) -> asyncio.Future[None] | None:
        """Give a message up; the future is done once that is durable. None: it is once `committed` returns.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(batch.first, delivery)
        why = header_text(reason) or "rejected"
        done = self.undeliverable.give_up(state, batch, 0, why, attempts, error=cause.error)
        self.changed()
        return done

    def touch(self, offset: int, delivery: int, extend: int | None) -> None:
        """Restart a message's timeout, with `extend` nanoseconds or the channel's own timeout.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(offset, delivery)
        timeout = self._timeout if extend is None else extend
        if timeout is not None:
            deadline = monotonic_ns(self._clock) + timeout
            state.touch(offset, deadline)
            self._timer.set(deadline)

    # --- messages that do not time out

    def renew(self, delivery: int) -> None:
        """Keep a message in flight from timing out, until `renew_no_more` was called as many times.

        No task runs for that: a message whose timeout is over is simply left in flight. So a blocked loop, for however
        long, does not take a message away from its consumer.
        """
        self._renewed[delivery] = self._renewed.get(delivery, 0) + 1

    def renew_no_more(self, delivery: int) -> bool:
        """Let a message time out again; return whether no other `renew` holds, so its timeout is to be restarted."""
        asked = self._renewed.pop(delivery, 1) - 1
        if asked:
            self._renewed[delivery] = asked
        return not asked

    # --- for transactions

    def check(self, offset: int, delivery: int) -> None:
        """Raise unless the message is in flight under that delivery number.

        Raises:
            NotInFlightError: it is not.
        """
        self._in_flight(offset, delivery)

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless the messages from `start` to `stop` are in flight, with delivery numbers from `delivery` on.

        Raises:
            NotInFlightError: one is not.
        """
        state = self._in_flight(start, delivery)
        if stop - start > 1 and not state.is_in_flight(start, stop, delivery):
            for number, offset in enumerate(range(start, stop), delivery):
                self._in_flight(offset, number)

    def unhold(self, start: int, stop: int, delivery: int) -> None:
        """Return held messages to being in flight, with delivery numbers from this one on; their timeout restarts."""
        deadline = None if self._timeout is None else monotonic_ns(self._clock) + self._timeout
        if self.state is not None:
            self.state.unhold(start, stop, delivery, deadline)
            if deadline is not None:
                self._timer.set(deadline)

    def holds_all(self, start: int, stop: int, held: int) -> bool:
        """Return whether all these messages are still held, by consecutive numbers from that one on."""
        return self._over is None and self.state is not None and self.state.is_in_flight(start, stop, held)

    def _in_flight(self, offset: int, delivery: int) -> ChannelState:
        self.check_context()
        state = self.state
        if self._over is not None:
            raise again(self._over)
        if state is None or state.delivery(offset) != delivery:
            raise not_in_flight(f"message {offset}")
        return state


def _standing(state: ChannelState | None, offset: int) -> str:
    """Describe the state of a message that is not deferred."""
    if state is None or offset >= state.end:
        return "not written yet"
    if state.delivery(offset) is not None:
        return "in flight: ack or reject it"
    return "ready to be delivered" if state.is_ready(offset) else "settled already"
