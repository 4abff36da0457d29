"""One of a crowd on a shared store (`tests.shared.crowd`) that rejects messages, and has or puts back letters.

NAME put NUMBER OFFSET  a put was acknowledged
NAME got OFFSET         it holds a message
NAME did OFFSET         its ack was
NAME holds OFFSET       it holds a letter
NAME frees OFFSET       it is about to make it ready again
NAME took OFFSET        its ack was
NAME lost OFFSET        its ack was refused, as that of another one's
NAME back COUNT         so many letters were put back
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, TypeVar

import aiodq
from aiodq.shared.server import cut_off, owner
from tests.shared.talking import say, unless

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

__all__ = ["LETTERS", "work_off"]

LETTERS: Final = "letters"

_ENDLESS: Final = 600.0
"""Seconds until a message is redelivered: never."""

_BACKLOG: Final = 60
"""Messages that are ready before no more are put for a while."""


class Lettering:
    """A child: it works off what it has, until it is to end."""

    def __init__(self, name: str, store: aiodq.Store, topic: str, ending: asyncio.Event) -> None:
        self.name = name
        self.store = store
        options = aiodq.ChannelOptions(dead_letter=LETTERS, visibility_timeout=_ENDLESS)
        self.queue = store.queue(topic, options)
        self.letters = store.queue(LETTERS, aiodq.ChannelOptions(visibility_timeout=_ENDLESS))
        self.ending = ending
        self.random = random.Random(name)

    def say(self, word: str, *numbers: int) -> None:
        say(" ".join([self.name, word, *map(str, numbers)]))

    async def surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until an owner answers, as often as a slow machine makes one seem to hang."""
        while True:
            try:
                return await call()
            except aiodq.OwnerStalledError:
                await asyncio.sleep(0.01)

    async def put(self) -> None:
        number = 0
        while not self.ending.is_set():
            try:
                self.say("put", number, await self.queue.put(f"{self.name} {number}".encode()))
            except aiodq.OwnerStalledError:
                await asyncio.sleep(0.01)  # it may be stored all the same, and is not put again
            number += 1
            while self.queue.qsize() > _BACKLOG and not self.ending.is_set():
                await asyncio.sleep(0.01)

    async def work(self) -> None:
        while (message := await unless(self.ending, self.surely(self.queue.get))) is not None:
            self.say("got", message.offset)
            if self.random.random() < 0.4:
                await self.surely(lambda: message.reject("unwanted"))
            else:
                await self.surely(message.ack)
                self.say("did", message.offset)

    async def read(self) -> None:
        """Hold a letter for a while; then it is done, or ready again."""
        while (letter := await unless(self.ending, self.surely(self.letters.get))) is not None:
            self.say("holds", letter.offset)
            await asyncio.sleep(self.random.random() * 0.1)
            if self.random.random() < 0.5:
                self.say("frees", letter.offset)
                letter.release()
                continue
            try:
                await self.surely(letter.ack)
            except aiodq.NotInFlightError:
                self.say("lost", letter.offset)
            else:
                self.say("took", letter.offset)

    async def put_back(self) -> None:
        while not self.ending.is_set():
            try:
                self.say("back", await self.store.requeue_dead(LETTERS))
            except (aiodq.OwnerLostError, aiodq.OwnerStalledError):
                self.say("back", 0)  # or some: nobody knows
            await asyncio.sleep(self.random.random() * 0.05)


async def work_off(
    name: str, path: str, topic: str, options: aiodq.StoreOptions, ended: asyncio.Event, *, patience: float
) -> None:
    """Do all of that until SIGTERM; owners wait for `patience` seconds for a process that is alive and late."""
    owner._LONGEST_RECLAIM = cut_off._LONGEST = patience  # type: ignore[misc]  # as long as the test says
    async with aiodq.open(path, options, mode="shared", failover=300) as store:
        child = Lettering(name, store, topic, ended)
        async with asyncio.TaskGroup() as tasks:
            for each in (child.put, child.work, child.work, child.read, child.read, child.put_back):
                tasks.create_task(each())
