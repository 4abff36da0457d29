"""The core of a channel: its state, and the tasks that wait for a change of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.channel.loop_turn import LoopTurn
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.loop.clock_timer import ClockTimer, monotonic_ns
from aiodq.engine.loop.futures import release, wait_in
from aiodq.engine.monitoring.latency import LatencyMeter
from aiodq.engine.store_refs import nobody
from aiodq.errors import StoreFailedError, again
from aiodq.options import ChannelOptions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_host import ChannelEngineHost
    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.graceful_stop import Stoppable
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["SECOND", "ChannelCore"]

SECOND: Final = 1_000_000_000


class ChannelCore:
    """The core of one channel.

    Attributes:
        name: the channel's name.
        options: how it delivers.
        state: None until the channel's creation is durable.
        journal: likewise.
        preview: where it begins, while it is being created; None if that has to be read first.
        ack_waiters: the futures of calls that wait for the journal's next commit.
        store_ref: returns the reference that a handle holds to keep the store open.
        latency: how long messages take.
        transactions: the open transactions of the store.
        crash_suspects: those of the store.
        passed: the end of the oldest segment when everything in it was last found to be settled (`TopicRetention`).
        withheld: whether nothing is delivered.
        held: whether the channel waits for new options to be on disk, which might settle messages.
        reclaiming: whether messages in flight under an earlier owner may still be claimed.
        turn: how long the getters have held the event loop.
        shut: whether it ends once nothing is ready; `shut_now`: at once.
        consumers: the consumers that process its messages.
    """

    def __init__(
        self, name: str, host: ChannelEngineHost[ChannelCore], clock: Clock, ring: Callable[[], int | None]
    ) -> None:
        """Start without a state; `ring` is called when the state has something to do, and returns when it has next."""
        self.name = name
        self.options: ChannelOptions = ChannelOptions()
        self.state: ChannelState | None = None
        self.journal: ChannelJournal | None = None
        self.preview: int | None = None
        self.ack_waiters: list[asyncio.Future[None]] = []
        self.passed: int = 0
        self.latency: LatencyMeter = LatencyMeter(clock, self.holds)
        self.check_context: Callable[[], None] = host.check_context
        self.transactions: OpenTransactions = host.transactions
        self.crash_suspects: CrashSuspects = host.crash_suspects
        self.store_ref: Callable[[], object] = nobody
        self.withheld: bool = host.paused
        self.held: bool = False
        self.reclaiming: bool = False
        self.shut: bool = False
        self.shut_now: bool = False
        self.consumers: set[Stoppable] = set()
        self._host = host
        self._activity = host.activity
        self._clock = clock
        self._timer = ClockTimer(clock, ring)
        self._over: Exception | None = None
        self._wait_queue = WaitQueue(self.wake)
        self.turn: LoopTurn = LoopTurn(clock.monotonic)
        self._joiners: dict[asyncio.Future[None], None] = {}
        self._idlers: dict[asyncio.Future[None], None] = {}

    @property
    def place(self) -> str:
        """The channel and its topic, for messages."""
        return f"{self._host.name!r}, channel {self.name!r}"

    @property
    def error(self) -> Exception | None:
        """Why the channel can no longer be used, or None."""
        return self._over

    @property
    def over(self) -> bool:
        """Whether nothing is delivered or settled any more."""
        return self._over is not None

    # --- time

    def times(self) -> tuple[int, int]:
        """Return the wall time and the monotonic time, in nanoseconds, with which a state is noted."""
        return self._clock.now_ns(), monotonic_ns(self._clock)

    def holds(self, offset: int, held: int) -> bool:
        """Return whether a message is still in flight by that delivery number."""
        return self._over is None and self.state is not None and self.state.delivery(offset) == held

    def set_timer(self, state: ChannelState) -> None:
        """Have the timer ring when the state has something to do next."""
        moment = state.next_moment()
        if moment is not None and self._over is None:
            self._timer.set(moment)

    # --- what is to be written

    def changed(self) -> None:
        """Announce a change of the state to its waiters and to the ack persister."""
        try:
            if self._wait_queue.line or self._joiners or self._idlers:
                self.wake()
            self._host.settled(self)
        except RecursionError as error:
            self._host.fail_store(error)  # otherwise the waiters would wait for ever
            raise

    def settled_elsewhere(self) -> None:
        """Note that something was settled that is durable though not yet in the channel's journal."""
        if self._wait_queue.line or self._joiners or self._idlers:
            self.wake()
        self._host.settled_elsewhere(self)

    def lost(self, count: int, offset: int) -> None:
        """Note that `count` messages from `offset` on are lost, and have that journaled."""
        self._host.settled(self)
        self._host.reporter.lost(self._host.name, self.name, count, offset)

    def note_deliveries(self) -> None:
        """Journal deliveries before the messages are handed out: they count even if a message kills the process."""
        try:
            self._host.write_now(self)
        except (RecursionError, StoreFailedError) as error:
            # What was taken to be written is in no file, and its waiters must not be told that it is.
            self._host.fail_store(error)
            raise

    def commit(self, _lease: object = None, _index: int = 0, /) -> asyncio.Future[None]:
        """Return a future, done once everything settled before is as durable as the store's policy makes it.

        If the future is cancelled, it becomes durable anyway.
        """
        if self._over is not None:
            raise again(self._over)
        waiter: asyncio.Future[None] = self._host.loop.create_future()
        self.ack_waiters.append(waiter)
        if len(self.ack_waiters) == 1:
            try:
                self._host.awaited(self)
            except RecursionError as error:
                self._host.fail_store(error)  # as in `changed`
                raise
        return waiter

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it.

        Cancellation: it becomes durable anyway.
        """
        await self.commit()

    # --- those who wait

    def wake(self, *, everybody: bool = False) -> None:
        """Wake as many getters as there are messages for them."""
        state, waiting = self.state, len(self._wait_queue.line)
        number = 0 if state is None or self.withheld else min(waiting, state.ready, state.credit)
        # After a shutdown, all: those for which there is none end. But while none can be taken they would wait again,
        # and of thousands, some would be woken in each turn of the loop.
        if everybody or (self.shut and (number or self.finished)):
            number = waiting
        self._wait_queue.wake(number)
        if self._joiners and self._is_through(state, deferred=False):
            release(self._joiners)  # each checks for itself
        release(self._idlers)  # likewise

    @property
    def waits(self) -> int:
        """The number of getters that wait for a message."""
        return len(self._wait_queue.line)

    async def join(self, *, deferred: bool = True) -> None:
        """Wait until nothing is ready or in flight, and with `deferred` nothing deferred either.

        After an immediate shutdown, wait only for what is in flight: the rest is left for the next opening.

        Cancellation: nothing changes.
        """
        while not self._is_through(self.state, deferred=deferred):
            self._host.check()
            if self._over is not None:
                raise again(self._over)
            await wait_in(self._joiners)

    def _is_through(self, state: ChannelState | None, *, deferred: bool) -> bool:
        if state is None or self.shut_now:
            return self.shut_now and not (state and state.flying)
        return state.depth == 0 or (not deferred and state.depth == len(state.deferred))

    async def idle(self, *, handlers_only: bool = False) -> None:
        """Wait until no message is processed any more: no consumer runs, and nothing is in flight.

        Args:
            handlers_only: wait for the consumers only.

        Cancellation: nothing changes.
        """
        while self.consumers or (not handlers_only and self._over is None and self.state and self.state.flying):
            await wait_in(self._idlers)

    @property
    def finished(self) -> bool:
        """Whether the channel is shut down, with nothing ready and nothing about to be."""
        left = self._host.pending or (self.state is not None and self.state.ready > 0)
        return self.shut and (self.shut_now or not left)
