"""A channel as those see it who hold its messages: what they ack, requeue, give up, and when that is durable."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.delivery.leases import ACKED, APART, MEASURED, SETTLED
from aiodq.delivery.range_set import among
from aiodq.engine.channel.dead_letters import DeadLetter, send_dead_letter
from aiodq.engine.channel.failure_causes import NO_CAUSE, Cause, header_text
from aiodq.engine.channel.loop_turn import LoopTurn
from aiodq.engine.channel.message_source import MessageSource
from aiodq.engine.channel.out_of_turn import MOST_LETTERS, OutOfTurn
from aiodq.engine.channel.transaction_holds import TransactionHolds
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.clock_timer import Alarm, monotonic_ns
from aiodq.engine.monitoring.latency import LatencyMeter
from aiodq.engine.store_refs import nobody
from aiodq.errors import NotInFlightError, OffsetError
from aiodq.format.frame import Batch
from aiodq.options import ChannelOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.delivery.leases import Lease
    from aiodq.engine.channel.crash_suspects import CrashSuspects
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["EXPIRED", "SECOND", "ChannelEngineHost", "Settlement"]

SECOND: Final = 1_000_000_000
EXPIRED: Final = "expired"
"""Why a message was given up whose time to live had ended."""

_MOST_AT_A_RING: Final = 300
"""So many messages that have become due, and so many whose time is up, are dealt with in a turn of the loop."""

_DEAD_LETTER_RETRY_SECONDS: Final = 1.0
"""Seconds after which a message is given up again for which the dead-letter topic had no room."""


class _Creation(Protocol):
    """See `aiodq.engine.topic.creation.Creation`."""

    def again(self) -> None: ...


class _Expirations(Protocol):
    """See `aiodq.engine.topic.expirations.Expirations`."""

    def in_turn(self, work: Callable[[], None]) -> None: ...


class ChannelEngineHost(Protocol):
    """What a channel engine asks of its topic's engine.

    Attributes:
        visible: the offset up to which channels may deliver.
        waiting: the channels in which somebody waits for a message: they are woken when one is visible.
    """

    name: str
    paused: bool
    visible: int
    waiting: dict[Any, None]
    tail: TailCache
    reader: PrefetchingReader
    reporter: Reporter
    lifetimes: Lifetimes
    transactions: OpenTransactions
    crash_suspects: CrashSuspects

    @property
    def creation(self) -> _Creation:
        """What makes the topic's files and channels."""
        ...

    @property
    def expirations(self) -> _Expirations:
        """What tells when times to live have ended."""
        ...

    @property
    def pending(self) -> int:
        """Messages accepted and not yet visible to channels."""
        ...

    def check(self) -> None:
        """Raise if the store has failed or is closed to this caller."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process than the caller's."""
        ...

    def acked(self, channel_engine: Settlement) -> None:
        """Something was acked: the first since anybody looked."""
        ...

    def awaited(self, channel_engine: Settlement) -> None:
        """Somebody waits for what was settled to be durable."""
        ...

    def settled(self, channel_engine: Settlement) -> None:
        """Something was settled or requeued that is not on disk yet."""
        ...

    def moved(self, offset: int) -> None:
        """A channel delivers from now on, or goes on elsewhere: from this offset."""
        ...

    def write_now(self, channel_engine: Settlement) -> None:
        """Write what the channel has to say, without a sync."""
        ...

    def settled_elsewhere(self, channel_engine: Settlement) -> None:
        """Something was settled that is durable though not yet in the channel's journal."""
        ...

    def fail_store(self, error: Exception) -> None:
        """Stop the store for this reason."""
        ...

    def send_dead_letter(self, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """Put a message into its dead-letter topic; `done` is told once it is durable there, or why it is not."""
        ...


class Settlement(ABC):
    """One channel's state, and what changes it from outside.

    Attributes:
        name: the channel's.
        options: how it delivers.
        state: None until the channel's creation is durable.
        journal: likewise.
        preview: where it begins, while it is being made; None where that has to be read first.
        source: where messages come from.
        ack_waiters: who waits for the journal's next commit.
        store_ref: returns what a handle is to hold, so that the store stays open.
        latency: how long messages take.
        turn: how long those who get messages have held the event loop.
        transactions: those under way in the store.
        transaction_holds: what they are about to settle.
        crash_suspects: the store's.
        counting: deliveries are written down before whoever asked has the message.
    """

    def __init__(self, name: str, host: ChannelEngineHost, clock: Clock) -> None:
        """Begin without a state."""
        self.name = name
        self.options: ChannelOptions = ChannelOptions()
        self.state: ChannelState | None = None
        self.journal: ChannelJournal | None = None
        self.preview: int | None = None
        self.source: MessageSource = MessageSource(self, host.tail, host.reader)
        self.ack_waiters: list[asyncio.Future[None]] = []
        self.counting: bool = False
        self.latency: LatencyMeter = LatencyMeter(clock)
        self._measured = self.latency.open
        self.transaction_holds: TransactionHolds = TransactionHolds(self)
        self.check_context: Callable[[], None] = host.check_context
        self.transactions: OpenTransactions = host.transactions
        self.crash_suspects: CrashSuspects = host.crash_suspects
        self._host = host
        self._clock = clock
        self._alarm = Alarm(clock, self._rung)
        self._over: Exception | None = None
        self._timeout: int | None = None
        self.until: float = 0.0
        self._wait_queue = WaitQueue(self.wake)
        self.store_ref: Callable[[], object] = nobody
        self._joiners: list[asyncio.Future[None]] = []
        self._idlers: list[asyncio.Future[None]] = []
        self._renewed: dict[int, int] = {}
        self._out_of_turn = OutOfTurn()
        self.turn: LoopTurn = LoopTurn(clock.monotonic)

    @property
    def place(self) -> str:
        """Which channel of which topic this is, in words."""
        return f"{self._host.name!r}, channel {self.name!r}"

    def attach(self, journal: ChannelJournal, state: ChannelState) -> None:
        """Begin to deliver."""
        self.journal = journal
        self.state = state
        state.follow(self._host)
        self._host.moved(state.floor)
        state.max_in_flight = self.options.max_in_flight
        state.counting = self.counting
        self._set_alarm(state)
        self._look_at_spent(state)
        self.wake()

    def ended(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The times to live of messages have ended, wherever they stand."""
        state = self.state
        if state is not None and self._over is None and ranges[-1][1] > state.floor:
            self._out_of_turn.ended.append(ranges)
            self.settle_ahead()

    def settle_ahead(self) -> None:
        """Have what is dead or expired settled, unasked, some of it in a turn of the loop; then others have theirs."""
        if not self._out_of_turn.asked and (self._out_of_turn.ranges or self._out_of_turn.ended):
            self._out_of_turn.asked = True
            self._host.expirations.in_turn(self._settle_some)

    @abstractmethod
    def _settle_some(self) -> None:
        """Settle some of what is dead or expired."""

    def _look_at_spent(self, state: ChannelState) -> None:
        """Look at what was delivered as often as it may be: in an earlier run, or by other options."""
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
        """Something is to be written down."""
        self._host.settled(self)

    # --- time

    def times(self) -> tuple[int, int]:
        """Return wall time and the monotonic one, nanoseconds: what a state is noted with."""
        return self._clock.now_ns(), monotonic_ns(self._clock)

    def _set_alarm(self, state: ChannelState) -> None:
        moment = state.next_moment()
        if moment is not None and self._over is None:
            self._alarm.set(moment)

    def _rung(self) -> int | None:
        """As `_ring`, as the event loop calls it: what it raises stops the store."""
        try:
            return self._ring()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is left waiting
            self._host.fail_store(error)
            return None

    def _ring(self) -> int | None:
        """Make ready what is due, and take back what was in flight for too long."""
        state = self.state
        if state is None or self._over is not None:
            return None
        due, over = state.tick(monotonic_ns(self._clock), _MOST_AT_A_RING)
        for offset in due:
            self._out_of_turn.due(offset)
        late = [offset for offset in over if not self._kept_on(state, offset)]
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
        self.until = 0.0  # what is handed out from now on sets the alarm
        return state.next_moment()

    def _is_spent(self, state: ChannelState, offset: int) -> bool:
        """Return whether a message was delivered as often as it may be."""
        most = self.options.max_attempts
        return most is not None and state.attempts(offset) >= most

    def note_deliveries(self) -> None:
        """Write down what was handed out, before it is in anybody's hands: it counts even if that kills the process."""
        self._host.write_now(self)

    # --- settling

    def acked(self, lease: Lease) -> None:
        """A message of a lease was acked, for the first time since anybody looked at the state."""
        if self.state is not None:
            self.state.acked(lease)
        if self._wait_queue.line or self._joiners or self._idlers:
            self.wake()
        self._host.acked(self)

    def ack_run(self, lease: Lease, first: int, count: int) -> None:
        """Settle so many messages of a lease, one behind the other: all in flight by it, or all apart from it."""
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
        """Settle messages, by offset and delivery number: all of them, or, where one cannot be, none.

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
        """Settle a deferred message that nobody is to get.

        Raises:
            OffsetError: it is not deferred.
        """
        self.check_context()
        if self._over is not None:
            raise self._over
        state = self.state
        if state is None or offset not in state.deferred:
            raise OffsetError(f"message {offset} is not deferred in {self.place}, but {_standing(state, offset)}")
        state.cancel(offset)
        self.source.requeue_cache.discard(offset)
        self._changed()

    def nack(
        self, batch: Batch, delivery: int, attempts: int, delay: int | None = None, cause: Cause = NO_CAUSE
    ) -> int | None:
        """Make a message ready again, ahead of newer ones; after `delay` nanoseconds, or as the channel's backoff says.

        Returns:
            The nanoseconds until it is; None where it was its last attempt, and it was given up.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        offset, options = batch.first, self.options
        state = self._in_flight(offset, delivery)
        if options.max_attempts is not None and attempts >= options.max_attempts:
            state.counters.requeued += 1
            self._give_up(state, batch, 0, f"delivered {attempts} times{cause.note}", attempts, error=cause.error)
            self._changed()
            return None
        if delay is None and options.backoff is not None:
            wait = options.backoff.seconds(max(attempts, 1), random.random())  # noqa: S311 - no secret
            delay = int(wait * SECOND)
        due = monotonic_ns(self._clock) + delay if delay else None
        state.nack(offset, attempts, due)
        if due is None:
            self.source.keep(batch)
        else:
            self._alarm.set(due)
        self._changed()
        if self._out_of_turn.back(offset):
            self.settle_ahead()
        return delay or 0

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Make a message ready again as if it had never been handed out.

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
        """Give a message up; the future ends once that is durable.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(batch.first, delivery)
        done = self._give_up(state, batch, 0, header_text(reason or "rejected"), attempts, error=cause.error)
        self._changed()
        return done

    def touch(self, offset: int, delivery: int, extend: int | None) -> None:
        """Begin a message's time anew, with `extend` nanoseconds or the channel's own timeout.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(offset, delivery)
        timeout = self._timeout if extend is None else extend
        if timeout is not None:
            deadline = monotonic_ns(self._clock) + timeout
            state.touch(offset, deadline)
            self._alarm.set(deadline)

    # --- messages that do not time out

    def renew(self, delivery: int) -> None:
        """Begin the time of a message in flight anew whenever it is up, until `renew_no_more` was called as often.

        Nothing runs for that: what times messages out leaves this one alone. So nothing that holds up the loop, for
        however long, takes a message away from whoever works on it.
        """
        self._renewed[delivery] = self._renewed.get(delivery, 0) + 1

    def renew_no_more(self, delivery: int) -> bool:
        """Let a message time out again; return whether that is so by now, and a whole time is to begin."""
        asked = self._renewed.pop(delivery, 1) - 1
        if asked:
            self._renewed[delivery] = asked
        return not asked

    def _kept_on(self, state: ChannelState, offset: int) -> bool:
        """Return whether a message whose time is up is renewed, and do so."""
        delivery = state.delivery(offset)
        if delivery is None or delivery not in self._renewed:
            return False
        self.touch(offset, delivery, None)
        return True

    # --- for transactions

    def check(self, offset: int, delivery: int) -> None:
        """Raise unless the message is in flight under that delivery number.

        Raises:
            NotInFlightError: it is not.
        """
        self._in_flight(offset, delivery)

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless the messages from `start` to `stop` are in flight under that delivery number and those behind.

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
        """Return whether all these messages are still held, by that number and those that follow."""
        return self._over is None and self.state is not None and self.state.is_in_flight(start, stop, held)

    @property
    def over(self) -> bool:
        """Whether nothing is delivered or settled any more."""
        return self._over is not None

    def settled_elsewhere(self) -> None:
        """Something was settled that is durable though not yet in the channel's journal."""
        if self._wait_queue.line or self._joiners or self._idlers:
            self.wake()
        self._host.settled_elsewhere(self)

    def _give_up(
        self,
        state: ChannelState,
        batch: Batch,
        number: int,
        reason: str,
        attempts: int | None = None,
        *,
        error: str = "",
    ) -> asyncio.Future[None]:
        """Settle a message for good, once it is in the dead-letter topic if there is one."""
        offset, target = batch.first + number, self.options.dead_letter
        delivered = state.attempts(offset) if attempts is None else attempts
        if target is None:
            state.hold(offset)
            state.send_dead_letter(offset)
            self._host.reporter.dead(self._host.name, self.name, offset, delivered, reason, target=None)
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            settled.set_result(None)
            return settled
        columns = batch.columns.slice(number, number + 1)
        time_ns = batch.time_ns if columns.times is None else columns.times[0]
        alone = Batch(offset, time_ns, columns)
        if attempts is not None:
            # Killed before the letter is put, the message comes back, but no more often than it may.
            state.count(offset, attempts)

        def failed() -> None:
            # It counts as expired once it is settled. With `attempts`, it is somebody's who had it in hand.
            state.counters.expired -= attempts is None and reason == EXPIRED
            if self._over is None:
                due = monotonic_ns(self._clock) + int(_DEAD_LETTER_RETRY_SECONDS * SECOND)
                state.nack(offset, delivered, due)
                self._out_of_turn.hinder(due, 1)
                self._out_of_turn.wait(offset, state)
                self._alarm.set(due)

        letter = DeadLetter(target, self._host.name, self.name, alone, delivered, reason, error)
        self._out_of_turn.letters += 1
        put = send_dead_letter(state, letter, self._host.send_dead_letter, failed, self._changed)
        put.add_done_callback(self._posted)
        return put

    def _posted(self, _: asyncio.Future[None]) -> None:
        """A letter is put, or is not; others may follow."""
        self._out_of_turn.letters -= 1
        self.settle_ahead()
        if self._out_of_turn.letters == MOST_LETTERS - 1:
            self.wake()

    def _in_flight(self, offset: int, delivery: int) -> ChannelState:
        self.check_context()
        state = self.state
        if self._over is not None:
            raise self._over
        if state is None or state.delivery(offset) != delivery:
            raise NotInFlightError(f"message {offset} is not in flight here any more")
        return state

    def _changed(self) -> None:
        if self._wait_queue.line or self._joiners or self._idlers:
            self.wake()
        self._host.settled(self)

    def commit(self) -> asyncio.Future[None]:
        """Return what ends once everything settled before is as durable as the store's policy makes it.

        Cancelled, it will be all the same.
        """
        if self._over is not None:
            raise self._over
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ack_waiters.append(waiter)
        if len(self.ack_waiters) == 1:
            self._host.awaited(self)
        return waiter

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it.

        Cancellation: it will be all the same.
        """
        await self.commit()


def _standing(state: ChannelState | None, offset: int) -> str:
    """Return what a message is that is not deferred."""
    if state is None or offset >= state.end:
        return "not written yet"
    if state.delivery(offset) is not None:
        return "in flight: ack or reject it"
    return "ready to be delivered" if state.is_ready(offset) else "settled already"
