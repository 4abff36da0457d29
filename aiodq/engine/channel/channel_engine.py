"""The engine of a channel: how its messages are handed out, and how it is configured, moved and ended."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from functools import cached_property
from secrets import token_hex
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from aiodq.delivery.deferrals import later_than
from aiodq.delivery.leases import LONGEST
from aiodq.engine.channel.acks.settlement import Settlement
from aiodq.engine.channel.acks.transaction_holds import TransactionHolds
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.channel.channel_core import SECOND
from aiodq.engine.channel.lease.held_by_task import HeldByTask
from aiodq.engine.channel.lease.in_flight import InFlight, message_of, messages_of
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.channel.lease.open_lease import OpenLease, fitting
from aiodq.engine.channel.loop_turn import LONGEST_TURN
from aiodq.engine.channel.source.delivery_filter import NEVER
from aiodq.engine.loop.futures import release, settle_all
from aiodq.engine.loop.home_loop import BY_THREAD
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import again

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.engine.channel.seek_target import SeekTarget
    from aiodq.engine.loop.home_loop import HomeLoop
    from aiodq.format.frame import Batch
    from aiodq.options import ChannelOptions

__all__ = ["ChannelEngine"]

M = TypeVar("M", bound=InFlight)

_FEW: Final = 64
"""Messages in a run below which a lease goes on behind the gap that follows."""

_SPAN: Final = 128
"""Messages of a lease with gaps, these included, if the one before it was ended early or could have none."""

_MARK: Final = 6
"""Random bytes by which channels of one name are told apart."""


class ChannelEngine(Settlement, Generic[M]):
    """The engine of one channel.

    Attributes:
        sought: how often it was moved by `seek`, which forgets what is in flight.
        seeking: held by a `seek` until it has ended.
        made: what tells it from other ones of its name; None if an earlier aiodq has made it.
        held_by_task: which task holds which messages, as far as a `Queue` handed them out.
        kind: the class of its messages.
        open_lease: the lease handed out from.
        special: whether each message needs further work before the getter gets it.
        transaction_holds: the messages that transactions are about to settle.
    """

    def __init__(
        self,
        name: str,
        host: ChannelEngineHost[ChannelCore],
        kind: type[M],
        clock: Clock,
        home: HomeLoop,
    ) -> None:
        """Start without a state; `attach` brings it.

        Args:
            name: the channel's name.
            host: the topic's engine.
            kind: the class of its messages.
            clock: the store's clock.
            home: the store's event loop.
        """
        super().__init__(name, host, clock)
        self._shut_error = QueueShutDown("the queue was shut down")
        self.transaction_holds: TransactionHolds = TransactionHolds(self)
        self.held_by_task: HeldByTask[Any] = HeldByTask()
        self.kind: type[M] = kind
        self._own_pause = False
        self.sought: int = 0
        self.seeking: asyncio.Lock = asyncio.Lock()
        self.made: str | None = token_hex(_MARK)
        self._plain = True
        self._ends = NEVER
        self._span = _SPAN
        self._unfinished = False
        self._home = home
        self._turn = LONGEST_TURN
        self.open_lease: OpenLease = OpenLease(host.name, clock.monotonic)
        self._measure_at = 0
        self.configure(self.options)

    @cached_property
    def ending(self) -> asyncio.Event:
        """Set once it is to end; made when a consumer first waits for that."""
        ending = asyncio.Event()
        if self.shut:
            ending.set()
        return ending

    def configure(self, options: ChannelOptions) -> None:
        """Apply these options from now on."""
        self._plain = options.tags is None and options.max_attempts is None
        super().configure(options)
        self._turn = LONGEST_TURN if self._timeout is None else min(LONGEST_TURN, self._timeout / SECOND / 20)
        self.special: bool = self.counting or options.auto_ack
        self.open_lease.special = self.special

    # --- getting

    def halt(self) -> None:
        """Hand out nothing more before the state has been checked, as something has changed."""
        if self.state is not None:
            self.state.halt()

    def take_next(self, store_ref: object) -> M | None:
        """Hand out the next message of the open lease; None if more than the lease has to be checked."""
        opened = self.open_lease
        lease = opened.lease
        index = lease.next
        at_gap = index >= lease.room
        if (at_gap and not lease.before_gap()) or (now := opened.monotonic()) >= opened.until:
            return None
        home = self._home
        if not (get_ident() == home.thread and home.is_running() if BY_THREAD else _get_running_loop() is home.loop):
            return None
        if at_gap:
            lease.leap()
            index = lease.next
        if index >= lease.limit:
            self._measure_at = opened.measure(self.latency, self._measure_at, index + 1)
        lease.next, lease.last = index + 1, now
        return message_of(self.kind, lease, index, opened.bodies[index], store_ref)

    def take_run(self, most: int, store_ref: object) -> list[M]:
        """Hand out up to `most` messages of the open lease, or else of the neighbours that are redelivered next.

        The caller's context is known to be right.
        """
        opened = self.open_lease
        lease, (first, stop) = opened.lease, self.lend(most)
        if first < stop:
            taken = messages_of(self.kind, lease, first, opened.bodies[first:stop], store_ref)
            while lease.runs and first < stop:
                first, stop = self.lend(most - len(taken))
                taken += messages_of(self.kind, lease, first, opened.bodies[first:stop], store_ref)
            return taken
        again = self.lend_again(most)
        return [] if again is None else messages_of(self.kind, again[0], 0, again[1], store_ref)

    def lend_again(self, most: int, size: int | None = None) -> tuple[MessageLease, list[bytes]] | None:
        """Hand out neighbours that are redelivered next and in memory, without making messages.

        Args:
            most: how many at most.
            size: bytes that their bodies take together at most; None for any.

        Returns:
            A lease of just these, and their bodies, a list not to be modified; None if the next message is none, or has
            to be handled by itself.
        """
        state, limit = self.state, self.options.max_attempts
        first = None if state is None else state.requeued.first()
        over = self.shut_now or self.withheld
        if state is None or first is None or over or self.undeliverable.filter.tags is not None:
            return None
        if limit is not None and state.attempts(first) >= limit:
            return None
        # No more than a lease has: whoever takes more gives way in between.
        found = self.source.deliver_again(
            state,
            min(most, LONGEST),
            self.undeliverable.filter,
            self._deadline(self._clock.monotonic()),
            size=size,
        )
        if found is None:
            return None
        self._activity.note(self._host)
        batch, attempts, number = found
        lease = MessageLease.of_apart(self._host.name, batch, number=number, attempts=attempts, channel_engine=self)
        while self._measure_at < number + len(lease.marks):
            at = max(self._measure_at - number, 0)
            self._measure_at = self.latency.delivered(number + at, lease.first + at, lease.since(at), attempts)
        return lease, batch.columns.bodies

    def _deadline(self, now: float) -> int | None:
        """Return the deadline of what is handed out now, and set the timer for it."""
        if self._timeout is None:
            return None
        deadline = round(now * SECOND) + self._timeout
        if self._timer.at is None or self._timer.at > deadline:
            self._timer.set(deadline)
        return deadline

    def lend(self, most: int, size: int | None = None) -> tuple[int, int]:
        """Hand out neighbours of the open lease without making messages.

        Args:
            most: how many at most.
            size: bytes that their bodies take together at most; None for any.

        Returns:
            The first index in the lease and the one after the last; equal if there is none.
        """
        opened = self.open_lease
        lease = opened.lease
        at_gap = lease.next >= lease.room
        if not most or (at_gap and not lease.before_gap()) or (now := opened.monotonic()) >= opened.until:
            return 0, 0
        if size is not None and len(opened.bodies[lease.runs[-1][0] if at_gap else lease.next]) > size:
            return 0, 0
        if at_gap:
            lease.leap()
        first, stop = lease.next, min(lease.next + most, lease.room)
        if size is not None:
            stop = first + fitting(opened.bodies[first:stop], size)
        if stop > lease.limit:
            self._measure_at = opened.measure(self.latency, self._measure_at, stop)
        lease.next, lease.last = stop, now
        return first, stop

    def take(
        self, store_ref: object, *, cold: bool = False, now: float | None = None, thorough: bool = False
    ) -> M | None:
        """Hand out the next message, or None if none may be delivered or none is in memory.

        Args:
            store_ref: the reference that the message holds to keep the store open.
            cold: read a little from disk at once instead of leaving it to the prefetching reader.
            now: the clock's monotonic time, if the caller has just read it.
            thorough: go on for as long as there are messages that are not to be delivered; otherwise stop after a
                millisecond, and let the next call go on.
        """
        state, undeliverable, self._unfinished = self.state, self.undeliverable, False
        if state is None or self.shut_now or self.withheld:
            return None
        while state.credit > 0 and not self._unfinished:
            found = self.source.next(state, cold=cold)
            if found is None or undeliverable.is_held_up(state, *found):
                self.open_lease.let_go()
                return None
            now = self._clock.monotonic() if now is None else now
            message = self._hand_out(state, *found, now, store_ref)
            if message is not None:
                return message
            self._unfinished = not thorough and self.turn.is_over
        return None

    def _hand_out(self, state: ChannelState, batch: Batch, number: int, now: float, store_ref: object) -> M | None:
        """Hand out a ready message, or settle it, defer it or give it up if it is not to be delivered."""
        if self._lease(state, batch, number, round(now * SECOND)):
            return self._take_of_lease(state, now, store_ref)
        columns = batch.columns
        simple = columns.dues is None and columns.expiries is None
        simple = simple and self._plain and (columns.headers is None or FOR not in columns.headers[number])
        if simple or self.undeliverable.wanted(state, batch, number):
            return self._deliver(state, batch, number, now, store_ref)
        return None

    def _lease(self, state: ChannelState, batch: Batch, number: int, now: int) -> bool:
        """Open a lease whose next message is this one, unless it is open; return whether that is possible."""
        lease, offset = self.open_lease.lease, batch.first + number
        if lease.open and now < self._ends and lease.goes_on_with(offset):
            return True
        count = state.plain_run(offset, batch.stop)
        if count:
            count, self._ends = self.undeliverable.filter.deliverable(batch, number, count)
        if not count:
            return False
        marks = None
        if count < _FEW and offset + count < batch.stop:
            marks = self._run_with_gaps(state, batch, number, count)
        run, opened = batch.cut(offset, offset + (count if marks is None else len(marks))), self.open_lease
        opened.until = min(opened.until, self._ends / SECOND)
        opened.lease = MessageLease(self._host.name, run, timeout=self._timeout, channel_engine=self, home=self._home)
        opened.bodies = run.columns.bodies
        if marks is not None:
            opened.lease.leave_out(marks)
        state.begin(opened.lease)
        return True

    def _run_with_gaps(self, state: ChannelState, batch: Batch, number: int, count: int) -> bytearray | None:
        """Return the marks of a lease that goes on behind the next `count` messages, or None if there is none."""
        offset = batch.first + number
        # What ends a lease early would do so again: then each costs as little as it is used.
        self._span = min(self._span * 2, LONGEST) if self.open_lease.lease.open else _SPAN
        marks = state.run_with_gaps(offset, min(batch.stop, offset + self._span))
        ends = self.undeliverable.filter.leave_out(batch, number, marks)
        if len(marks) <= count:
            self._span = _SPAN // 2
            return None
        self._ends = ends
        return marks

    def _take_of_lease(self, state: ChannelState, now: float, store_ref: object) -> M:
        """Hand out the next message of the lease, and allow those after it to be handed out without a check."""
        opened = self.open_lease
        lease = opened.lease
        if now >= opened.until:
            lease.turn()
            opened.until = min(now + self._turn, self._ends / SECOND)
        self._deadline(now)
        self._activity.note(self._host)
        state.reach(lease)
        index = lease.next
        self._measure_at = opened.measure(self.latency, self._measure_at, index + 1)
        lease.next, lease.last = index + 1, now
        return message_of(self.kind, lease, index, opened.bodies[index], store_ref)

    def _deliver(self, state: ChannelState, batch: Batch, number: int, now: float, store_ref: object) -> M:
        offset = batch.first + number
        if (active := self._activity.topics) is not None:
            active.add(self._host)
        attempts, delivery = state.deliver(offset, self._deadline(now))
        if self.source.requeue_cache.batches:
            self.source.requeue_cache.discard(offset)
        lease = MessageLease.of_one(
            self._host.name, batch, number, number=delivery, attempts=attempts, channel_engine=self
        )
        if delivery >= self._measure_at:
            self._measure_at = self.latency.delivered(delivery, offset, lease.since(0), attempts)
        return message_of(self.kind, lease, 0, batch.columns.bodies[number], store_ref)

    async def peek(self) -> M | None:
        """Return the message that `take` would hand out, made without a channel engine, or None.

        Cancellation: nothing changes.
        """
        undeliverable = self.undeliverable
        while self._over is None and (state := self.state) is not None and not self.held:
            found = self.source.next(state, cold=False)
            if found is None:
                if not await self.was_read():
                    return None
            elif undeliverable.is_held_up(state, *found):
                return None
            elif undeliverable.wanted(state, *found):
                lease = MessageLease.of_one(self._host.name, *found)
                return message_of(self.kind, lease, 0, found[0].columns.bodies[found[1]])
            elif self.turn.is_over:
                await self.turn.leave()
        self._raise_if_over()
        return None

    @property
    def read_here(self) -> int:
        """Bytes read on the event loop so far."""
        return self.source.read_ahead.read_here

    async def was_read(self) -> bool:
        """See `MessageSource.was_read`."""
        return await self.source.was_read()

    def pause(self, *, paused: bool | None = None) -> None:
        """Pause or resume delivery; None keeps the channel's own pause, and applies a change of the topic's."""
        self._own_pause = self._own_pause if paused is None else paused
        self.withheld: bool = self._own_pause or self._host.paused or self.held or self.reclaiming
        self._activity.note(self._host)
        self.halt()
        self.wake()

    @property
    def paused(self) -> bool:
        """Whether a user has paused the channel or its topic."""
        return self._own_pause or self._host.paused

    def reclaim(self, *, under_way: bool) -> None:
        """Stop or resume delivery and settlement while messages in flight under an earlier owner may be claimed."""
        self.reclaiming = under_way
        self.pause()
        self.undeliverable.settle_ahead()

    def hold_back(self, *, held: bool) -> None:
        """Stop or resume delivery and settlement while options are written."""
        if held != self.held:
            self.held = held
            self.pause()
            self.undeliverable.settle_ahead()

    def seek(self, target: SeekTarget) -> None:
        """Continue at another place in the log."""
        if self.state is not None:
            target.apply(self.state)
            if target.change and self.journal is not None:
                self.journal.sought(target.change)
            self.sought += 1
            self._host.moved(target.offset)
            self.set_timer(self.state)
            self.reset()
            self.changed()

    def reset(self) -> None:
        """Drop what is in memory: the state was moved."""
        self.source.reset()
        self.wake()

    @property
    def position(self) -> int:
        """The lowest offset for which the log's tail is still needed."""
        return 0 if self.state is None else self.state.fresh()

    async def get(self, store_ref: object) -> M:
        """Wait for the next message, which is to hold `store_ref`.

        Raises:
            QueueShutDown: the channel is shut down, and nothing is ready.
            StorageError: the message could not be read, or the channel's files could not be created.

        Cancellation: nothing is taken, and the wake-up goes to the next getter.
        """
        now = self._clock.monotonic()
        if now - self.turn.began > LONGEST_TURN:
            # Before anything is taken, as a cancelled sleep would lose it. Of the getters that come meanwhile, the
            # first checks the state, and the others get what it has found.
            await self.turn.leave()
            item = self.take_next(store_ref)
            if item is not None:
                return item
            now = self._clock.monotonic()
        while True:
            self._host.check()
            item = self.take(store_ref, now=now)
            if item is not None:
                return item
            self._raise_if_over()
            if self._unfinished:
                now = await self.turn.leave()
                continue
            if self.state is None or self.held:
                self._host.retry()
            self._host.waiting[self] = None
            await self._wait_queue.wait()
            now = self.turn.begin()

    def _raise_if_over(self) -> None:
        if self._over is not None:
            raise again(self._over)
        if self._fetch_error is not None:
            error, self._fetch_error = self._fetch_error, None
            raise error
        if self.finished:
            raise again(self._shut_error)

    def note_dues(self, batch: Batch) -> None:
        """Defer the messages of a new batch that are due later."""
        state, dues = self.state, batch.columns.dues
        wall, now = self.times()
        wall = max(wall, batch.time_ns)  # a clock set back while this was written does not prolong the wait
        offsets, later = ((), ()) if dues is None else later_than(wall, batch.first, dues)
        if state is None or not offsets:
            return
        state.defer_all(offsets, later, now - wall)
        self._spread_dues()
        self.source.keep_deferred(batch, offsets)
        if self._joiners:
            self.wake()  # one told late may have seemed to have more that is ready

    def _spread_dues(self) -> None:
        """Enter the due times of new messages: where they are very many, some in each turn of the loop."""
        state = self.state
        if state is not None and self._over is None:
            if state.deferred.spread():
                self._host.expirations.in_turn(self._spread_dues)
            self.set_timer(state)

    def pass_over(self, addressed: list[tuple[int, str]]) -> None:
        """Settle new messages that are addressed to other channels."""
        state = self.state
        others = [offset for offset, name in addressed if name != self.name]
        if state is not None and others:
            for offset in others:
                state.skip(offset, offset + 1)
            self.changed()

    # --- the end

    def shut_down(self, *, immediate: bool, over: QueueShutDown | None = None) -> None:
        """Let getters go on until nothing is ready, or end them at once; unsettled messages stay on disk."""
        self._shut_error = over or self._shut_error
        self.shut = True
        self.shut_now: bool = self.shut_now or immediate
        self.halt()
        if "ending" in vars(self):
            self.ending.set()
        self.wake()

    def end_getters(self, error: Exception) -> None:
        """Fail the getters, and those that wait for the channel to be empty."""
        self.halt()
        self._wait_queue.end(error)
        release(self._joiners, error)
        self.source.end(error)

    def refuse(self, error: Exception) -> None:
        """Fail the getters; from now on, every call on the channel raises `error`.

        Calls that wait for the commit of an ack go on waiting.
        """
        self._over = error
        self._activity.note(self._host)
        if self.state is not None:
            self.state.detach()  # so that settling a message raises the error
        self._timer.stop()
        self.end_getters(error)
        release(self._idlers)

    def end(self, error: Exception) -> None:
        """Refuse, as `refuse` does, and fail all waiters."""
        if self._over is not error:
            self.refuse(error)
        waiters = list(self.ack_waiters)
        self.ack_waiters.clear()
        settle_all(waiters, error)
