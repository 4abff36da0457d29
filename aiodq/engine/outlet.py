"""A channel's end of a topic: its state, the messages at hand, and those who wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from aiodq.engine.settle import settle
from aiodq.engine.shelf import Shelf
from aiodq.engine.signals import QueueShutDown
from aiodq.errors import NotInFlightError
from aiodq.options import ChannelOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.delivery.channel import ChannelState
    from aiodq.engine.reader import PrefetchingReader
    from aiodq.engine.tail import TailCache
    from aiodq.format.frames import Batch
    from aiodq.storage.journal import ChannelJournal
    from aiodq.storage.logreader import ReadResult

__all__ = ["Outlet", "OutletHost"]

M = TypeVar("M")

_LONGEST_TURN: Final = 0.001
"""Seconds after which a getter that always finds something gives way to others."""


class OutletHost(Protocol):
    """What an outlet asks of its topic's engine."""

    tail: TailCache
    reader: PrefetchingReader

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

    def settled(self, outlet: Outlet[Any]) -> None:
        """Something was settled or requeued that is not on disk yet."""
        ...


class Outlet(Generic[M]):
    """One channel.

    Attributes:
        name: the channel's.
        state: None until the channel's creation is durable.
        journal: likewise.
        shelf: the messages at hand.
        ack_waiters: who waits for the journal's next commit.
    """

    def __init__(
        self, name: str, host: OutletHost, make: Callable[[Outlet[M] | None, Batch, int, int, int], M], clock: Clock
    ) -> None:
        """Begin without a state; `attach` brings it.

        Args:
            name: the channel's.
            host: the topic's engine.
            make: builds a message of (outlet, batch, number in it, attempts, delivery number).
            clock: tells when a getter had its turn for long enough.
        """
        self.name = name
        self.state: ChannelState | None = None
        self.journal: ChannelJournal | None = None
        self.shelf: Shelf = Shelf(host.tail, 0, host.reader.read_now, lambda: host.reader.want(self))
        self.max_in_flight: int = ChannelOptions().max_in_flight
        self.auto_ack: bool = False
        self.ack_waiters: list[asyncio.Future[None]] = []
        self.shut: bool = False
        self.shut_now: bool = False
        self._host = host
        self._make = make
        self._fetch_error: Exception | None = None
        self._over: Exception | None = None
        self._kept: dict[int, tuple[Batch, int]] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._joiners: list[asyncio.Future[None]] = []
        self._clock = clock
        self._turn_began = 0.0

    def attach(self, journal: ChannelJournal, state: ChannelState) -> None:
        """Begin to deliver."""
        self.journal, self.state = journal, state
        state.max_in_flight = self.max_in_flight
        self.wake()

    # --- getting

    def take(self, *, cold: bool = False) -> M | None:
        """Hand out the next message, or None when nothing may be or nothing is at hand.

        Args:
            cold: read a little from disk at once rather than leave it to the prefetching reader.
        """
        state = self.state
        if state is None or state.credit <= 0 or self.shut_now:
            return None
        offset = state.again()
        if offset is not None:
            batch, number = self._kept.pop(offset)
        else:
            found = self.shelf.fresh(state, cold=cold)
            if found is None:
                return None
            batch, number = found
            offset = batch.first + number
        attempts, delivery = state.deliver(offset)
        return self._make(self, batch, number, attempts, delivery)

    def peek(self) -> M | None:
        """Return the message that `take` would give, made without an outlet, or None."""
        state = self.state
        if state is None:
            return None
        offset = state.again()
        if offset is not None and offset in self._kept:
            batch, number = self._kept[offset]
        else:
            found = self.shelf.fresh(state, cold=True)
            if found is None:
                return None
            batch, number = found
        return self._make(None, batch, number, 0, 0)

    def configure(self, options: ChannelOptions) -> None:
        """Deliver by these options from now on."""
        self.auto_ack = options.auto_ack
        self.max_in_flight = options.max_in_flight
        if self.state is not None:
            self.state.max_in_flight = options.max_in_flight
            self.wake()

    def fetch_offset(self) -> int | None:
        """Return the offset to read from next, or None where nothing needs to be read."""
        return None if self.state is None else self.shelf.fetch_offset(self.state)

    def fetched(self, result: ReadResult | None, offset: int, epoch: int, error: Exception | None = None) -> None:
        """Take what the prefetching reader brought from `offset` on; an error goes to those who wait."""
        self.shelf.fetching = False
        state = self.state
        if state is not None and result is not None and epoch == self.shelf.epoch:
            if self.shelf.feed(state, result, offset):
                self._host.settled(self)
        elif error is not None and self._getters:
            # With nobody waiting it is dropped: the next who asks has it read again.
            self._fetch_error = error
        self.wake(everybody=error is not None)

    def reset(self) -> None:
        """Forget what is at hand: the state was moved."""
        self.shelf.clear()
        self._kept.clear()
        self.wake()

    @property
    def position(self) -> int:
        """The lowest offset that the log's tail is still needed for."""
        state = self.state
        if state is None:
            return 0
        return state.fresh()

    async def get(self) -> M:
        """Wait for the next message.

        Raises:
            QueueShutDown: shut down, and nothing is ready.
            StorageError: it could not be read.

        Cancellation: nothing is taken, and the wake-up goes to the next who waits.
        """
        await self._give_way()
        while True:
            self._host.check()
            item = self.take()
            if item is not None:
                return item
            self._raise_if_over()
            await self._wait()

    async def _give_way(self) -> None:
        now = self._clock.monotonic()
        if now - self._turn_began > _LONGEST_TURN:
            # Before anything is taken, as a cancelled sleep would lose it.
            await asyncio.sleep(0)
            self._turn_began = self._clock.monotonic()

    def _raise_if_over(self) -> None:
        if self._over is not None:
            raise self._over
        if self._fetch_error is not None:
            error, self._fetch_error = self._fetch_error, None
            raise error
        if self.finished:
            raise QueueShutDown("the queue was shut down")

    @property
    def finished(self) -> bool:
        """Shut down, with nothing ready and nothing on its way."""
        if not self.shut:
            return False
        return self.shut_now or not (self._host.pending or (self.state is not None and self.state.ready > 0))

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._getters.append(waiter)
        try:
            await waiter
        except BaseException:
            waiter.cancel()
            if waiter in self._getters:
                self._getters.remove(waiter)
            elif not waiter.cancelled():
                self.wake()
            raise
        self._turn_began = self._clock.monotonic()

    def wake(self, *, everybody: bool = False) -> None:
        """Wake as many getters as there are messages for them."""
        state = self.state
        number = len(self._getters)
        if not everybody and not self.shut:
            number = 0 if state is None else min(number, state.ready, state.credit)
        while number > 0 and self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                number -= 1
        if state is not None and state.depth == 0 and self._joiners:
            self._release_joiners()

    def extend(self, end: int) -> None:
        """The log has grown up to `end`."""
        if self.state is not None:
            self.state.extend(end)
            if self._getters:
                self.wake()

    # --- settling

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        state = self._in_flight(offset, delivery)
        state.ack(offset)
        self._changed(state)

    def nack(self, batch: Batch, number: int, delivery: int, attempts: int) -> None:
        """Make a message ready again, ahead of newer ones.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        offset = batch.first + number
        state = self._in_flight(offset, delivery)
        state.nack(offset, attempts)
        self._kept[offset] = (batch, number)
        self._changed(state)

    def release(self, batch: Batch, number: int, delivery: int, attempts: int) -> None:
        """Make a message ready again as if it had never been handed out.

        Raises:
            NotInFlightError: it is not in flight under that delivery number.
        """
        offset = batch.first + number
        state = self._in_flight(offset, delivery)
        state.release(offset, attempts)
        self._kept[offset] = (batch, number)
        self._changed(state)

    def _in_flight(self, offset: int, delivery: int) -> ChannelState:
        self._host.check_context()
        state = self.state
        if self._over is not None:
            raise self._over
        if state is None or state.in_flight.get(offset) != delivery:
            raise NotInFlightError(f"message {offset} is not in flight here any more")
        return state

    def _changed(self, state: ChannelState) -> None:
        if self._getters:
            self.wake()
        if not state.depth and self._joiners:
            self._release_joiners()
        self._host.settled(self)

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it.

        Cancellation: it will be all the same.
        """
        if self._over is not None:
            raise self._over
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ack_waiters.append(waiter)
        self._host.settled(self)
        await waiter

    async def join(self) -> None:
        """Wait until nothing is ready or in flight.

        Cancellation: nothing changes.
        """
        while not self.shut_now and (self.state is None or self.state.depth):
            self._host.check()
            if self._over is not None:
                raise self._over
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._joiners.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._joiners:
                    self._joiners.remove(waiter)

    def _release_joiners(self) -> None:
        joiners, self._joiners = self._joiners, []
        for waiter in joiners:
            if not waiter.done():
                waiter.set_result(None)

    # --- ending

    def shut_down(self, *, immediate: bool) -> None:
        """Let getters go on until nothing is ready, or end them at once; what is not settled stays on disk."""
        self.shut = True
        self.shut_now = self.shut_now or immediate
        if self.shut_now:
            self._release_joiners()
        self.wake()

    @property
    def error(self) -> Exception | None:
        """Why the channel cannot be used any more, or None."""
        return self._over

    def end_getters(self, error: Exception) -> None:
        """End everyone who waits for a message, or for there to be none."""
        for waiter in (*self._getters, *self._joiners):
            settle(waiter, None, error)
        self._getters.clear()
        self._joiners.clear()

    def refuse(self, error: Exception) -> None:
        """End the getters; from now on `error` goes to everyone who wants something of the channel.

        Who waits for the commit of an ack goes on waiting.
        """
        self._over = error
        self.end_getters(error)

    def end(self, error: Exception) -> None:
        """As `refuse`, and end everyone who waits."""
        self.refuse(error)
        for waiter in self.ack_waiters:
            settle(waiter, None, error)
        self.ack_waiters.clear()
