"""One random run: the store on a disk that fails now and then, and what is known of each message beside it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiodq
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.faults.drawn import drawn_faults
from tests.faults.processes import Process, Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from random import Random

    from aiodq.opening import Mode
    from aiodq.testing import Fault
    from tests.faults.known import Joined, Sent, Topic

__all__ = ["DEAD", "PATIENCE", "Ended", "Hand", "Run", "options_of"]

DEAD: Final = "dead"
"""The topic of the dead letters of the channels "z"."""

PATIENCE: Final = 1000.0
"""Simulated seconds after which a call counts as hanging."""

_FULL: Final = 300.0
"""Simulated seconds after which there is room again for what a deletion may have to wait for."""

_SLOW: Final = 5.0
"""Simulated seconds after which the clock goes on, which stands still otherwise."""

_CANCELS: Final = 0.08
_ONE: Final = 0.4
"""How often only one process's calls fail."""


def options_of(channel: str) -> aiodq.ChannelOptions:
    """Return the options of a channel."""
    return aiodq.ChannelOptions(start="earliest", visibility_timeout=None, dead_letter=DEAD if channel == "z" else None)


@dataclass
class Hand:
    """Messages of one channel in the hand of a process's consumer."""

    process: Process
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
        path: of the store's directory.
        modes: those in which processes open it.
        fs: the machine's disk.
        threads: the machine's.
        processes: those that have it open.
        faults: what fails now, for all processes.
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
    path: str
    modes: Sequence[Mode]
    options: aiodq.StoreOptions
    fs: SimulatedFileSystem
    threads: Threads
    processes: list[Process] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
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

    @property
    def now(self) -> float:
        """The seconds of the clock."""
        return self.clock.monotonic()

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

    def some_process(self) -> Process:
        return self.rng.choice(self.processes)

    @staticmethod
    def channel(process: Process, topic: Topic, channel: str) -> aiodq.Channel:
        return process.store.topic(topic.name).channel(channel, options_of(channel))

    def all_sent(self) -> Iterator[Sent]:
        for topic in self.topics.values():
            yield from topic.sent.values()

    # --- the disk

    @property
    def shared(self) -> bool:
        """Whether several processes have the store open."""
        return len(self.modes) > 1

    def break_disk(self) -> None:
        """Have calls fail from now on: of all processes, or of one."""
        faults = drawn_faults(self.rng)
        one = self.some_process() if self.shared and self.processes and self.rng.random() < _ONE else None
        self.say("faults:", "all" if one is None else one, *map(str, faults))
        for process in self.processes if one is None else [one]:
            process.disk.plan.add(*faults)
        if one is None:
            self.fs.plan.add(*faults)
            self.faults += faults
        self.faulty = self.was_faulty = True
        self.unsynced = self.unsynced or any(fault.call.startswith("sync") for fault in faults)

    def heal_disk(self) -> None:
        """Have no call fail any more."""
        if self.faulty:
            self.say("healed")
        for process in self.processes:
            process.disk.plan.clear()
        self.fs.plan.clear()
        self.faults.clear()
        self.faulty = False

    def forget_unsynced(self) -> None:
        """Once a sync may have failed, or the power, nothing is sure but what waited for its own sync."""
        if self.unsynced and self.options.sync != "always":
            for sent in self.all_sent():
                sent.may_be_lost()

    async def open(self, mode: Mode) -> Process:
        """Have a process open the store."""
        process = Process(mode, self.fs, self.threads)
        process.disk.plan.add(*self.faults)
        await process.open(self.path, self.options, self.clock)
        return process

    async def open_all(self) -> list[Process]:
        """Have all processes open the store, or none."""
        opened: list[Process] = []
        try:
            for mode in self.modes:
                opened += [await self.open(mode)]
        except BaseException:
            for process in opened[::-1]:
                with suppress(aiodq.StorageError):
                    await process.close()
            raise
        return opened

    # --- calling

    async def call(
        self, process: Process | None, what: str, call: Callable[[], Awaitable[Any]], *, cancels: float = _CANCELS
    ) -> Ended:
        """Return how a call ends: no way but with the errors that it may raise, and in time.

        Of one of a process that was killed meanwhile, nothing is known.
        """
        task = asyncio.ensure_future(_awaited(call))
        if self.rng.random() < cancels:
            for _ in range(self.rng.choice((1, 2, 3, 5, 8, 20))):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task], timeout=_SLOW)
        if not task.done():
            self.clock.advance(1.0)  # an owner waits a moment, by this clock, for others that may put, too
        await asyncio.wait([task], timeout=_FULL)
        if not task.done():
            self.heal_disk()  # a deletion waits for room for what transactions put into other topics
            await asyncio.wait([task], timeout=PATIENCE)
        assert task.done(), f"{what} hangs"
        if task.cancelled():
            self.say(what, "-> cancelled")
            return Ended(error=asyncio.CancelledError())
        error = task.exception()
        if process is not None and process.killed:
            return Ended(error=asyncio.CancelledError())
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
