"""One of a crowd on a shared store (`tests.shared.crowd`) that settles messages in every way there is.

Each message is in three channels, which lines name by their number in `CHANNELS`:

    NAME got CHANNEL OFFSET ATTEMPTS  it holds a message
    NAME back CHANNEL OFFSET          it is about to make it ready again
    NAME gives CHANNEL OFFSET         it is about to reject it
    NAME did CHANNEL OFFSET           it is acked or rejected, and is never delivered again
    NAME lost CHANNEL OFFSET          it was taken away before that
    NAME stalled                      it was told that the owner does not answer
    NAME drained                      the channels are empty, as it was to wait for by SIGUSR1
"""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiodq
from aiodq.shared.connection import link
from tests.shared.child import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

T = TypeVar("T")

__all__ = ["AUDIT", "CHANNELS", "DEAD", "MOST_ATTEMPTS", "PLAIN", "STRICT", "UNWANTED", "options_of", "settle"]

CHANNELS: Final = ("plain", "strict", "audit")
PLAIN, STRICT, AUDIT = range(3)
DEAD: Final = ("plain.dead", "strict.dead")
"""Where what is given up ends; nothing of `audit` is."""

UNWANTED: Final = "unwanted"
MOST_ATTEMPTS: Final = 4
_SHORT: Final = 1.5
_ENDLESS: Final = 600.0
"""Seconds until messages of `strict` are redelivered, and of the others: what is left in flight there is never."""

_STALL: Final = 1.0
"""Seconds without an answer after which an owner counts as stalled."""

_BACKLOG: Final = 100
"""Messages that are ready before no more are put for a while."""

_SYNCED: Final = 20
"""Messages acked by `ack_nowait` before a sync."""


def options_of(channel: int) -> aiodq.ChannelOptions:
    """Return the options of a channel."""
    if channel == STRICT:
        return aiodq.ChannelOptions(
            start="earliest", visibility_timeout=_SHORT, max_attempts=MOST_ATTEMPTS, dead_letter=DEAD[STRICT]
        )
    dead = DEAD[PLAIN] if channel == PLAIN else None
    return aiodq.ChannelOptions(start="earliest", visibility_timeout=_ENDLESS, dead_letter=dead)


class Settling:
    """A child: it puts, takes and settles until it is to end; what it holds then it still settles."""

    def __init__(self, name: str, topic: aiodq.Topic, ending: asyncio.Event, draining: asyncio.Event) -> None:
        self.name = name
        self.topic = topic
        self.channels = [topic.channel(each, options_of(number)) for number, each in enumerate(CHANNELS)]
        self.ending = ending
        self.draining = draining
        self.random = random.Random(name)
        self.unsynced: list[tuple[int, int]] = []

    def say(self, word: str, *numbers: int) -> None:
        say(" ".join([self.name, word, *map(str, numbers)]))

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

    async def _unless_ending(self, getting: asyncio.Future[T] | Coroutine[Any, Any, T]) -> T | None:
        getting = asyncio.ensure_future(getting)
        ending = asyncio.ensure_future(self.ending.wait())
        await asyncio.wait((getting, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not getting.done():
            getting.cancel()
        with suppress(asyncio.CancelledError):
            return await getting
        return None

    def _got(self, channel: int, messages: Sequence[aiodq.Message]) -> None:
        for message in messages:
            self.say("got", channel, message.offset, message.attempts)

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
            while self.channels[PLAIN].qsize() > _BACKLOG and not self.ending.is_set():
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
        while (message := await self._unless_ending(following())) is not None:
            self._got(channel, [message])
            if channel != AUDIT and self._draws(0.1):
                self.say("back", channel, message.offset)
                message.nack_nowait(self.random.choice((None, 0.05)))
            else:
                if self._draws(0.05):
                    await asyncio.sleep(self.random.random() * 0.05)
                message.ack_nowait()
                own.append((channel, message.offset))
            if len(own) >= _SYNCED:
                await self.surely(self.topic.sync)
                while own:
                    self.say("did", *own.pop())

    async def take_many(self, channel: int) -> None:
        """Take by `get_many`, ack by `ack_many`."""
        taking = self.channels[channel]
        while not self.ending.is_set():
            messages = await self._unless_ending(self.surely(lambda: taking.get_many(self.random.randint(1, 12))))
            if messages is None:
                break
            self._got(channel, messages)
            await asyncio.sleep(self.random.random() * 0.02)
            try:
                await self.surely(lambda: taking.ack_many(messages))
            except aiodq.NotInFlightError:
                for message in messages:
                    self.say("lost", channel, message.offset)
                    with suppress(aiodq.DeliveryError):
                        message.ack_nowait()
            else:
                for message in messages:
                    self.say("did", channel, message.offset)

    async def take_each(self, channel: int) -> None:
        """Take by `get`; ack, reject, or make ready again."""
        while not self.ending.is_set():
            message = await self._unless_ending(self.surely(self.channels[channel].get))
            if message is None:
                break
            self._got(channel, [message])
            await asyncio.sleep(self.random.random() * 0.02)
            try:
                await self._settle(channel, message)
            except aiodq.NotInFlightError:
                self.say("lost", channel, message.offset)

    async def _settle(self, channel: int, message: aiodq.Message) -> None:
        if self._draws(0.2):
            self.say("back", channel, message.offset)
            await message.nack(self.random.choice((None, 0, 0.05, 0.3)))
        elif self._draws(0.1):
            self.say("gives", channel, message.offset)
            await self.surely(lambda: message.reject(UNWANTED))
            self.say("did", channel, message.offset)
        else:
            await self.surely(message.ack)
            self.say("did", channel, message.offset)

    def _draws(self, chance: float) -> bool:
        return self.random.random() < chance and not self.draining.is_set()

    async def drain(self, channels: Sequence[int]) -> None:
        await self.draining.wait()
        for each in channels:
            await self._unless_ending(self.surely(self.channels[each].join))
        if not self.ending.is_set():
            self.say("drained")


async def settle(name: str, path: str, options: aiodq.StoreOptions, ended: asyncio.Event, *, audits: bool) -> None:
    """Put and settle until SIGTERM, or only take what is in `audit`, which one process at a time does."""
    link._STALL = _STALL  # type: ignore[misc]  # so that a test need not wait for long
    draining = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, draining.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    async with AsyncExitStack() as stack:
        store: aiodq.Store | None = None
        while store is None:
            try:
                store = await stack.enter_async_context(aiodq.open(path, options, mode="shared"))
            except aiodq.OwnerStalledError:
                say(f"{name} stalled")
        child = Settling(name, store.topic("jobs"), ended, draining)
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
        child.say("did", *each)
