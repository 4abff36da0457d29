"""One random run: the store on a disk that fails now and then, and what is known of each message beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiodq
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem
from tests.faults.drawn import drawn_faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from tests.faults.known import Joined, Sent, Topic

__all__ = ["DEAD", "PATH", "PATIENCE", "Ended", "Hand", "Run", "options_of"]

PATH: Final = "/store"
DEAD: Final = "dead"
"""The topic of the dead letters of the channels "z"."""

PATIENCE: Final = 1000.0
"""Simulated seconds after which a call counts as hanging."""

_FULL: Final = 300.0
"""Simulated seconds after which there is room again for what a deletion may have to wait for."""

_CANCELS: Final = 0.08


def options_of(channel: str) -> aiodq.ChannelOptions:
    """Return the options of a channel."""
    return aiodq.ChannelOptions(start="earliest", visibility_timeout=None, dead_letter=DEAD if channel == "z" else None)


@dataclass
class Hand:
    """Messages of one channel in a consumer's hand."""

    topic: Topic
    channel: str
    messages: list[tuple[Sent, aiodq.Message]]


@dataclass
class Ended:
    """How a call ended: with a value, or with an error, which may be `CancelledError`."""

    value: Any = None
    error: BaseException | None = None


@dataclass
class Run:
    """What the steps share.

    Attributes:
        topics: those that are there, by name.
        doubtful: the names of those whose deletion failed.
        hands: what consumers have in hand.
        joined: the transactions since the store was opened.
        letters: by body, everything that was rejected.
        faulty: whether calls may fail now.
        was_faulty: whether calls may have failed since the store was opened.
        refused: whether a call has failed since the last step.
        stopped: whether the store has said that it stopped.
        unsynced: whether a sync may have failed since the store was opened.
    """

    rng: Random
    options: aiodq.StoreOptions
    store: aiodq.Store = field(init=False)
    fs: SimulatedFileSystem = field(default_factory=SimulatedFileSystem)
    clock: FakeClock = field(default_factory=FakeClock)
    topics: dict[str, Topic] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    hands: list[Hand] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    letters: dict[bytes, Sent] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    bodies: int = 0
    faulty: bool = False
    was_faulty: bool = False
    refused: bool = False
    stopped: bool = False
    unsynced: bool = False

    def say(self, *words: object) -> None:
        """Note what is done, for whoever has to understand a failure."""
        self.done.append(" ".join(map(str, words)))

    # --- choosing

    def body(self) -> bytes:
        """Return a body that no other message has."""
        self.bodies += 1
        return b"%d:" % self.bodies + b"x" * self.rng.choice((0, 20, 400))

    def some_topic(self) -> Topic | None:
        return self.topics[self.rng.choice(sorted(self.topics))] if self.topics else None

    def some_channel(self) -> tuple[Topic, str] | None:
        topic = self.some_topic()
        return None if topic is None or not topic.channels else (topic, self.rng.choice(sorted(topic.channels)))

    def channel(self, topic: Topic, channel: str) -> aiodq.Channel:
        return self.store.topic(topic.name).channel(channel, options_of(channel))

    def all_sent(self) -> Iterator[Sent]:
        for topic in self.topics.values():
            yield from topic.sent.values()

    # --- the disk

    def break_disk(self) -> None:
        """Have calls fail from now on."""
        faults = drawn_faults(self.rng)
        self.say("faults:", *map(str, faults))
        self.fs.plan.add(*faults)
        self.faulty = self.was_faulty = True
        self.unsynced = self.unsynced or any(fault.call.startswith("sync") for fault in faults)

    def heal_disk(self) -> None:
        """Have no call fail any more."""
        if self.faulty:
            self.say("healed")
        self.fs.plan.clear()
        self.faulty = False

    async def open(self) -> aiodq.Store:
        """Open the store."""
        executor = SimulatedExecutor(asyncio.get_running_loop(), self.fs, self.rng.getrandbits(32))
        return await aiodq.open(PATH, self.options, fs=self.fs, clock=self.clock, executor=executor)

    # --- calling

    async def call(self, what: str, call: Callable[[], Awaitable[Any]], *, cancels: float = _CANCELS) -> Ended:
        """Return how a call ends: no way but with the errors that it may raise, and in time."""
        task = asyncio.ensure_future(_awaited(call))
        if self.rng.random() < cancels:
            for _ in range(self.rng.choice((1, 2, 3, 5, 8, 20))):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task], timeout=_FULL)
        if not task.done():
            self.heal_disk()  # a deletion waits for room for what transactions put into other topics
            await asyncio.wait([task], timeout=PATIENCE)
        assert task.done(), f"{what} hangs"
        if task.cancelled():
            self.say(what, "-> cancelled")
            return Ended(error=asyncio.CancelledError())
        error = task.exception()
        if error is None:
            return Ended(task.result())
        self.say(what, "->", repr(error), getattr(error, "path", ""))
        if not isinstance(error, aiodq.AiodqError) or (isinstance(error, aiodq.StorageError) and not self.was_faulty):
            raise error
        self.refused = True
        self.stopped = self.stopped or isinstance(error, aiodq.StoreFailedError)
        return Ended(error=error)


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()
