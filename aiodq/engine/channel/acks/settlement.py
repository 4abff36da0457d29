"""Settlement: acks, requeues and dead letters of a channel's messages, and when they are durable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from aiodq.delivery.leases import ACKED, APART, MEASURED, SETTLED
from aiodq.delivery.range_set import among
from aiodq.engine.channel.acks.giving_up import GivingUp
from aiodq.engine.channel.acks.out_of_turn import OutOfTurn
from aiodq.engine.channel.acks.transaction_holds import TransactionHolds
from aiodq.engine.channel.dead_lettering.failure_causes import NO_CAUSE, Cause, header_text
from aiodq.engine.channel.loop_turn import LoopTurn
from aiodq.engine.channel.source.message_source import MessageSource
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.loop.clock_timer import ClockTimer, monotonic_ns
from aiodq.engine.loop.letting_go import let_go
from aiodq.engine.monitoring.latency import LatencyMeter
from aiodq.engine.store_refs import nobody
from aiodq.errors import OffsetError, again, not_in_flight
from aiodq.options import ChannelOptions, next_wait

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.delivery.leases import Lease
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.format.frame import Batch
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["SECOND", "Settlement"]

SECOND: Final = 1_000_000_000
_MOST_AT_A_RING: Final = 300
"""The most messages that have become due, and the most that have timed out, handled in one turn of the loop."""


class Settlement(ABC):
    """One channel's state, and the operations of those who hold its messages.

    Attributes:
        name: the channel's name.
        options: how it delivers.
        state: None until the channel's creation is durable.
        journal: likewise.
        preview: where it begins, while it is being created; None if that has to be read first.
        source: where messages come from.
        ack_waiters: those who wait for the journal's next commit.
        store_ref: returns the reference that a handle holds to keep the store open.
        latency: how long messages take.
        turn: how long the getters have held the event loop.
        transactions: the open transactions of the store.
        transaction_holds: the messages that transactions are about to settle.
        crash_suspects: those of the store.
        counting: whether deliveries are written down before the getter has the message.
        passed: the end of the oldest segment when everything in it was last found to be settled (`TopicRetention`).
    """

    def __init__(self, name: str, host: ChannelEngineHost[Settlement], clock: Clock) -> None:
        """Start without a state."""
        self.name = name
        self.options: ChannelOptions = ChannelOptions()
        self.state: ChannelState | None = None
        self.journal: ChannelJournal | None = None
        self.preview: int | None = None
        self.source: MessageSource = MessageSource(self, host.tail, host.reader)
        self.ack_waiters: list[asyncio.Future[None]] = []
        self.counting: bool = False
        self.passed: int = 0
        self.latency: LatencyMeter = LatencyMeter(clock)
        self._measured = self.latency.open
        self.transaction_holds: TransactionHolds = TransactionHolds(self)
        self.check_context: Callable[[], None] = host.check_context
        self.transactions: OpenTransactions = host.transactions
        self.crash_suspects: CrashSuspects = host.crash_suspects
        self._host = host
        self._clock = clock
        self._timer = ClockTimer(clock, self._rung)
        self._over: Exception | None = None
        self._timeout: int | None = None
        self._wait_queue = WaitQueue(self.wake)
        self.store_ref: Callable[[], object] = nobody
        self._joiners: dict[asyncio.Future[None], None] = {}
        self._idlers: dict[asyncio.Future[None], None] = {}
        self._renewed: dict[int, int] = {}
        self._out_of_turn = OutOfTurn()
        self._giving_up = GivingUp(
            self, host, clock, timer=self._timer, out_of_turn=self._out_of_turn, changed=self._changed
        )
        self.turn: LoopTurn = LoopTurn(clock.monotonic)

    @property
    def place(self) -> str:
        """The channel and its topic, in words."""
        return f"{self._host.name!r}, channel {self.name!r}"

    def attach(self, journal: ChannelJournal, state: ChannelState) -> None:
        """Start to deliver."""
        self.journal = journal
        self.state = state
        state.let_go = let_go
        state.follow(self._host)
        self._host.moved(state.floor)
        state.max_in_flight = self.options.max_in_flight
        state.counting = self.counting
        self._set_timer(state)
        self._look_at_spent(state)
        self.wake()

    def ended(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that messages have expired, whatever their state."""
        state = self.state
        if state is not None and self._over is None and ranges[-1][1] > state.floor:
            self._out_of_turn.ended.append(ranges)
            self.settle_ahead()

    def settle_ahead(self) -> None:
        """Settle out-of-attempts and expired messages before anybody asks for them, some in each turn of the loop."""
        if not self._out_of_turn.asked and (self._out_of_turn.ranges or self._out_of_turn.ended):
            self._out_of_turn.asked = True
            self._host.expirations.in_turn(self._settle_some)

    @abstractmethod
    def _settle_some(self) -> None:
        """Settle some of the messages that are out of attempts or expired."""

    def _look_at_spent(self, state: ChannelState) -> None:
        """Check the messages delivered as often as allowed: in an earlier run, or under other options."""
        most = self.options.max_attempts
        for offset in () if most is None else state.delivered_as_often(most):
            self._out_of_turn.add(offset)
        self.settle_ahead()

    @abstractmethod
    def wake(self, *, everybody: bool = False) -> None:
        """Wake those who wait for what the state has now."""

    @abstractmethod
    def supplied(self, error: Exception | None) -> None:
        """See `MessageSourceUser.supplied`."""

    def lost(self, count: int, offset: int) -> None:
        """See `MessageSourceUser.lost`."""
        self.noted()
        self._host.reporter.lost(self._host.name, self.name, count, offset)

    def noted(self) -> None:
        """Note that something is to be written down."""
        self._host.settled(self)

    # --- time

    def times(self) -> tuple[int, int]:
        """Return the wall time and the monotonic time, in nanoseconds, with which a state is noted."""
        return self._clock.now_ns(), monotonic_ns(self._clock)

    def _set_timer(self, state: ChannelState) -> None:
        moment = state.next_moment()
        if moment is not None and self._over is None:
            self._timer.set(moment)

    def _rung(self) -> int | None:
        """Do as `_ring` for the event loop: an exception stops the store, and so does Ctrl-C."""
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
        due, over = state.tick(monotonic_ns(self._clock), _MOST_AT_A_RING)
        for offset in due:
            self._out_of_turn.due(offset)
        late = [offset for offset in over if state.delivery(offset) not in self._renewed]
        for offset in late:
            state.time_out(offset)
            if not self._out_of_turn.back(offset) and self._is_spent(state, offset):
                self._out_of_turn.add(offset)
        if late:
            self.noted()
            self._host.reporter.timed_out(self._host.name, self.name, late)
        self.source.prepare(state)
        self.settle_ahead()
        self.wake()
        state.halt()  # the next message handed out sets the timer
        return state.next_moment()

    def _is_spent(self, state: ChannelState, offset: int) -> bool:
        """Return whether a message was delivered as often as allowed."""
        most = self.options.max_attempts
        return most is not None and state.attempts(offset) >= most

    def note_deliveries(self) -> None:
        """Write deliveries down before anybody has the messages: they count even if that kills the process."""
        try:
            self._host.write_now(self)
        except RecursionError as error:
            # What was taken to be written is in no file, and those who wait for it must not be told that it is.
            self._host.fail_store(error)
            raise

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
            self._host.fail_store(error)  # those who are to know of it would wait for ever
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

    def _ack_apart(self, lease: Lease, first: int, count: int) -> None:
        start, number = lease.first + first, lease.number + first
        self._in_flight(start, number).ack(start, start + count)
        for delivery in among(self._measured, number, number + count):
            self.latency.acked(delivery)
        lease.marks[first : first + count] = bytes([SETTLED]) * count
        self._changed()

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(offset, delivery)
        state.ack(offset)
        if delivery in self._measured:
            self.latency.acked(delivery)
        self._changed()

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
            self._changed()

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
        self._changed()

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
            self._giving_up.give_up(
                state, batch, 0, f"delivered {attempts} times{cause.note}", attempts, error=cause.error
            )
            self._changed()
            return None
        if delay is None and options.backoff is not None:
            delay = int(next_wait(options.backoff, attempts) * SECOND)
        due = monotonic_ns(self._clock) + delay if delay else None
        state.nack(offset, attempts, due)
        if due is None:
            self.source.keep(batch)
        else:
            self._timer.set(due)
        self._changed()
        if self._out_of_turn.back(offset):
            self.settle_ahead()
        return delay or 0

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Requeue a message as if it had never been handed out.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(batch.first, delivery)
        state.release(batch.first, attempts)
        self.source.keep(batch)
        self._changed()
        if self._out_of_turn.back(batch.first):
            self.settle_ahead()

    def reject(
        self, batch: Batch, delivery: int, attempts: int, reason: str, cause: Cause = NO_CAUSE
    ) -> asyncio.Future[None]:
        """Give a message up; the future is done once that is durable.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(batch.first, delivery)
        why = header_text(reason) or "rejected"
        done = self._giving_up.give_up(state, batch, 0, why, attempts, error=cause.error)
        self._changed()
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
        """Let a message in flight not time out until `renew_no_more` was called as often.

        No task runs for that: a message whose timeout is over is simply left in flight. So nothing that holds up the
        loop, for however long, takes a message away from its consumer.
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
        if not state.is_in_flight(start, stop, delivery):
            for number, offset in enumerate(range(start, stop), delivery):
                self._in_flight(offset, number)

    def holds(self, offset: int, held: int) -> bool:
        """Return whether a message is still held by that number."""
        return self._over is None and self.state is not None and self.state.delivery(offset) == held

    def holds_all(self, start: int, stop: int, held: int) -> bool:
        """Return whether all these messages are still held, by consecutive numbers from that one on."""
        return self._over is None and self.state is not None and self.state.is_in_flight(start, stop, held)

    @property
    def over(self) -> bool:
        """Whether nothing is delivered or settled any more."""
        return self._over is not None

    def settled_elsewhere(self) -> None:
        """Note that something was settled that is durable though not yet in the channel's journal."""
        if self._wait_queue.line or self._joiners or self._idlers:
            self.wake()
        self._host.settled_elsewhere(self)

    def _in_flight(self, offset: int, delivery: int) -> ChannelState:
        self.check_context()
        state = self.state
        if self._over is not None:
            raise again(self._over)
        if state is None or state.delivery(offset) != delivery:
            raise not_in_flight(f"message {offset}")
        return state

    def _changed(self) -> None:
        try:
            if self._wait_queue.line or self._joiners or self._idlers:
                self.wake()
            self._host.settled(self)
        except RecursionError as error:
            self._host.fail_store(error)  # as in `acked`
            raise

    def commit(self, _lease: object = None, _index: int = 0, /) -> asyncio.Future[None]:
        """Return a future, done once everything settled before is as durable as the store's policy makes it.

        If the future is cancelled, it becomes durable all the same.
        """
        if self._over is not None:
            raise again(self._over)
        waiter: asyncio.Future[None] = self._host.loop.create_future()
        self.ack_waiters.append(waiter)
        if len(self.ack_waiters) == 1:
            try:
                self._host.awaited(self)
            except RecursionError as error:
                self._host.fail_store(error)  # as in `acked`
                raise
        return waiter

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it.

        Cancellation: it becomes durable all the same.
        """
        await self.commit()


def _standing(state: ChannelState | None, offset: int) -> str:
    """Return the state, in words, of a message that is not deferred."""
    if state is None or offset >= state.end:
        return "not written yet"
    if state.delivery(offset) is not None:
        return "in flight: ack or reject it"
    return "ready to be delivered" if state.is_ready(offset) else "settled already"
