"""One of a crowd on a shared store (`tests.shared.crowd`) that settles messages in every way there is.

Each message is in three channels, which lines name by their number in `CHANNELS`. NUMBER is the process's own of one
delivery, DELIVERY and EPOCH are the owner's. Each line ends with the time, in microseconds of the monotonic clock:

    NAME got CHANNEL OFFSET NUMBER ATTEMPTS DELIVERY EPOCH  it holds a message
    NAME back CHANNEL OFFSET NUMBER         it is about to make it ready again
    NAME frees CHANNEL OFFSET NUMBER        likewise, and this delivery is not to count
    NAME gives CHANNEL OFFSET NUMBER        it is about to reject it
    NAME did CHANNEL OFFSET NUMBER EPOCH    it is acked or rejected, by that owner, and is never delivered again
    NAME either CHANNEL OFFSET NUMBER       it is acked, or was taken away before that
    NAME lost CHANNEL OFFSET NUMBER         it was taken away before that
    NAME owner PID EPOCH                    it talks to another owner
    NAME stalled                            it was told that the owner does not answer
    NAME drained                            the channels are empty, as it was to wait for by SIGUSR1
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, TypeVar

import aiodq
from aiodq.shared.connection import link
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.server import cut_off, owner
from tests.shared.talking import say, unless

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

T = TypeVar("T")

__all__ = ["AUDIT", "CHANNELS", "DEAD", "MOST_ATTEMPTS", "PLAIN", "SHORT", "STRICT", "UNWANTED", "options_of", "settle"]

CHANNELS: Final = ("plain", "strict", "audit")
PLAIN, STRICT, AUDIT = range(3)
DEAD: Final = ("plain.dead", "strict.dead")
"""Where what is given up ends; nothing of `audit` is."""

UNWANTED: Final = "unwanted"
MOST_ATTEMPTS: Final = 4
SHORT: Final = 1.5
_ENDLESS: Final = 600.0
"""Seconds until messages of `strict` are redelivered, and of the others: what is left in flight there is never."""

_STALL: Final = 1.0
"""Seconds without an answer after which an owner counts as stalled."""

_BACKLOG: Final = 100
"""Messages that are ready in a channel before no more are put for a while."""

_SYNCED: Final = 20
"""Messages acked by `ack_nowait` before a sync."""


def options_of(channel: int) -> aiodq.ChannelOptions:
    """Return the options of a channel."""
    if channel == STRICT:
        return aiodq.ChannelOptions(
            start="earliest", visibility_timeout=SHORT, max_attempts=MOST_ATTEMPTS, dead_letter=DEAD[STRICT]
        )
    dead = DEAD[PLAIN] if channel == PLAIN else None
    return aiodq.ChannelOptions(start="earliest", visibility_timeout=_ENDLESS, dead_letter=dead)


class Settling:
    """A child: it puts, takes and settles until it is to end; what it holds then it still settles."""

    def __init__(
        self, name: str, topic: aiodq.Topic, link: link.Link, ending: asyncio.Event, draining: asyncio.Event
    ) -> None:
        self.name = name
        self.topic = topic
        self.link = link
        self.epoch = 0
        self.channels = [topic.channel(each, options_of(number)) for number, each in enumerate(CHANNELS)]
        self.ending = ending
        self.draining = draining
        self.random = random.Random(name)
        self.unsynced: list[tuple[int, aiodq.Message]] = []

    def say(self, word: str, *numbers: int) -> None:
        if self.epoch != self.link.epoch:
            self.epoch = self.link.epoch
            self.say("owner", self.link.owner_pid, self.epoch)
        say(" ".join([self.name, word, *map(str, numbers), str(time.monotonic_ns() // 1000)]))

    def say_of(self, word: str, channel: int, message: aiodq.Message, *numbers: int) -> None:
        self.say(word, channel, message.offset, message._delivery, *numbers)

    def say_done(self, channel: int, message: aiodq.Message) -> None:
        self.say_of("did", channel, message, self.link.epoch)

    async def surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until an owner answers."""
        while True:
            try:
                return await call()
            except (aiodq.OwnerStalledError, aiodq.OwnerLostError):
                await self._stalled()

    async def _stalled(self) -> None:
        self.say("stalled")
        await asyncio.sleep(0.01)  # a call raises that at once, in the caller's own step

    def _got(self, channel: int, messages: Sequence[aiodq.Message]) -> None:
        for message in messages:
            engine = message._channel_engine
            assert isinstance(engine, RemoteChannel)
            held = engine.holdings.get(message._delivery)
            numbers = (-1, 0) if held is None else (held.delivery, engine._numbered)
            self.say_of("got", channel, message, message.attempts, *numbers)

    # --- what tasks do

    async def put(self) -> None:
        number = 0
        while not (self.ending.is_set() or self.draining.is_set()):
            try:
                offset = await self.topic.put(f"{self.name} {number}".encode())
                self.say("put", number, offset)
            except (aiodq.OwnerStalledError, aiodq.OwnerLostError):
                await self._stalled()  # it may be stored all the same, and is not put again
            number += 1
            while max(each.qsize() for each in self.channels) > _BACKLOG and not self.ending.is_set():
                await asyncio.sleep(0.01)

    async def iterate(self, channel: int) -> None:
        """Take by `async for`, ack by `ack_nowait`, and now and then have it made durable."""
        while not self.ending.is_set():
            try:
                await self._work_off(channel, aiter(self.channels[channel]))
            except (aiodq.OwnerStalledError, aiodq.OwnerLostError):
                await self._stalled()

    async def _work_off(self, channel: int, messages: AsyncIterator[aiodq.Message]) -> None:
        async def following() -> aiodq.Message | None:
            return await anext(messages, None)

        own = self.unsynced
        while (message := await unless(self.ending, following())) is not None:
            self._got(channel, [message])
            if channel != AUDIT and self._draws(0.1):
                self._back(channel, message, (None, 0.05))
            else:
                if self._draws(0.05):
                    await asyncio.sleep(self.random.random() * 0.05)
                message.ack_nowait()
                own.append((channel, message))
            if len(own) >= _SYNCED:
                await self.surely(self.topic.sync)
                while own:
                    self.say_done(*own.pop())

    def _back(self, channel: int, message: aiodq.Message, delays: Sequence[float | None]) -> None:
        """Make a message ready again, at once or later; now and then as if it had never been delivered."""
        counts = self.random.random() < 0.5
        self.say_of("back" if counts else "frees", channel, message)
        message.nack_nowait(self.random.choice(delays), count_attempt=counts)

    async def take_many(self, channel: int) -> None:
        """Take by `get_many`, ack by `ack_many`."""
        taking = self.channels[channel]
        while not self.ending.is_set():
            messages = await unless(self.ending, self.surely(lambda: taking.get_many(self.random.randint(1, 12))))
            if messages is None:
                break
            self._got(channel, messages)
            await asyncio.sleep(self.random.random() * 0.02)
            try:
                await self.surely(lambda: taking.ack_many(messages))
            except aiodq.NotInFlightError:  # at once: none is acked; later: one was taken away, the others are acked
                for message in messages:
                    await self._ack_left(channel, message)
            else:
                for message in messages:
                    self.say_done(channel, message)

    async def _ack_left(self, channel: int, message: aiodq.Message) -> None:
        try:
            await self.surely(message.ack)
        except aiodq.NotInFlightError:
            self.say_of("lost", channel, message)
        except aiodq.AlreadySettledError:
            self.say_of("either", channel, message)
        else:
            self.say_done(channel, message)

    async def take_each(self, channel: int) -> None:
        """Take by `get`; ack, reject, or make ready again."""
        while not self.ending.is_set():
            message = await unless(self.ending, self.surely(self.channels[channel].get))
            if message is None:
                break
            self._got(channel, [message])
            await asyncio.sleep(self.random.random() * 0.02)
            try:
                await self._settle(channel, message)
            except aiodq.NotInFlightError:
                self.say_of("lost", channel, message)

    async def _settle(self, channel: int, message: aiodq.Message) -> None:
        if self._draws(0.3):
            self._back(channel, message, (None, 0, 0.05, 0.3))
            return
        if self._draws(0.1):
            self.say_of("gives", channel, message)
            await self.surely(lambda: message.reject(UNWANTED))
        else:
            await self.surely(message.ack)
        self.say_done(channel, message)

    def _draws(self, chance: float) -> bool:
        return self.random.random() < chance and not self.draining.is_set()

    async def drain(self, channels: Sequence[int]) -> None:
        await self.draining.wait()
        for each in channels:
            await unless(self.ending, self.surely(self.channels[each].join))
        if not self.ending.is_set():
            self.say("drained")


async def settle(
    name: str, path: str, options: aiodq.StoreOptions, ended: asyncio.Event, *, audits: bool, patience: float
) -> None:
    """Put and settle until SIGTERM, or only take what is in `audit`, which one process at a time does.

    An owner keeps for `patience` seconds what a process holds that is alive and does not come for it.
    """
    link._STALL = _STALL  # type: ignore[misc]  # so that a test need not wait for long
    owner._LONGEST_RECLAIM = cut_off._LONGEST = patience  # type: ignore[misc]  # as long as the test says
    draining = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, draining.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    async with AsyncExitStack() as stack:
        store: aiodq.Store | None = None
        while store is None:
            try:
                store = await stack.enter_async_context(aiodq.open(path, options, mode="shared", failover=300))
            except aiodq.OwnerStalledError:
                say(f"{name} stalled {time.monotonic_ns() // 1000}")
        found: link.Link = store._remote.link  # type: ignore[attr-defined]  # of a store that is shared
        child = Settling(name, store.topic("jobs"), found, ended, draining)
        async with asyncio.TaskGroup() as tasks:
            if audits:
                tasks.create_task(child.iterate(AUDIT))
                tasks.create_task(child.drain([AUDIT]))
            else:
                tasks.create_task(child.put())
                tasks.create_task(child.iterate(PLAIN))
                for channel in (PLAIN, STRICT):
                    tasks.create_task(child.take_many(channel))
                    tasks.create_task(child.take_each(channel))
                tasks.create_task(child.drain([PLAIN, STRICT]))
            await ended.wait()
            draining.set()
    for each in child.unsynced:
        child.say_done(*each)
