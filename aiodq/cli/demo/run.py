"""The demonstration itself: kill, recover, go on, consume, prove."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.cli.demo.proof import Ledger, Verdict
from aiodq.cli.demo.traffic import CHANNEL, TOPIC, channel_options, consume, produce, store_options
from aiodq.cli.demo.wire import Acknowledged, Delivered, Settled, Unpacker
from aiodq.cli.exits import WRONG, CommandError
from aiodq.opening import open as open_store
from aiodq.opening import open_reader
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store

if TYPE_CHECKING:
    from aiodq.cli.demo.progress import Narrator
    from aiodq.cli.demo.sources import Library
    from aiodq.cli.demo.wire import Event
    from aiodq.message import Message
    from aiodq.topic import Topic

__all__ = ["Demonstration", "Figures", "Outcome"]

_CHUNK: Final = 1 << 18


@dataclass(slots=True)
class Figures:
    """What is counted and timed. Times are seconds, sizes bytes.

    Attributes:
        acknowledged: by producer, the position before which everything was known to be durable at the kill.
        consumed: deliveries before the kill.
        recovered: messages found in the store after it.
        opening: how long opening the store after it took.
        fsyncs: of the log, by both processes.
        put_time: how long producers were at it.
        taken, taken_bytes, taken_time: deliveries, and how long consumers were at it.
        not_acked: messages that the store would still deliver at the end.
        damages: what `aiodq verify` finds wrong with it then.
    """

    acknowledged: list[int]
    consumed: int = 0
    recovered: int = 0
    opening: float = 0.0
    fsyncs: int = 0
    put_time: float = 0.0
    taken: int = 0
    taken_bytes: int = 0
    taken_time: float = 0.0
    not_acked: int = -1
    damages: int = -1


class Outcome(NamedTuple):
    """The outcome.

    Attributes:
        figures: what was counted.
        recovery: whether what was acknowledged before the kill was there after it.
        verdict: whether consumers got everything.
    """

    figures: Figures
    recovery: Verdict
    verdict: Verdict

    @property
    def ok(self) -> bool:
        """True when the proof holds, and the store's files say that nothing is left and nothing is wrong."""
        return self.recovery.ok and self.verdict.ok and not self.figures.not_acked and not self.figures.damages


class Demonstration:
    """One run."""

    def __init__(self, store: str, library: Library, *, consumers: int, limit: int | None, told: Narrator) -> None:
        """Prepare.

        Args:
            store: a directory that is empty or not there.
            library: what to put.
            consumers: how many, after the kill; before it, half of them.
            limit: as it was given to `library`.
            told: what to tell of it.
        """
        self._path = store
        self._library = library
        self._consumers = consumers
        self._limit = limit
        self._told = told
        self._figures = Figures([0] * len(library.shares))
        self._positions = [0] * len(library.shares)
        self._stored = Ledger(library.shares, library.locate)
        self._delivered = Ledger(library.shares, library.locate)

    async def run(self) -> Outcome:
        """Do all of it.

        Raises:
            CommandError: the other process ended before it was killed.
            StorageError: the store could not be used.
        """
        await self._until_killed()
        recovery = await self._go_on()
        self._told.say("holding what was consumed against the sources")
        verdict = self._delivered.verdict()
        self._figures.not_acked = open_reader(self._path).stats().topics[TOPIC].channels[CHANNEL].depth
        self._figures.damages = len(verify_store(self._path, OsFileSystem()).damages)
        return Outcome(self._figures, recovery, verdict)

    # --- the process that is killed

    async def _until_killed(self) -> None:
        """Have another process put and consume, and kill it when half of the lines are acknowledged."""
        process = await self._start()
        unpacker, began, killed = Unpacker(), 0.0, False
        try:
            while chunk := await _output(process).read(_CHUNK):
                began = began or time.monotonic()
                for event in unpacker.feed(chunk):
                    self._note(event)
                if not killed and self._half_way:
                    process.kill()
                    killed = True
                    self._figures.put_time = self._figures.taken_time = time.monotonic() - began
            code = await process.wait()
            self._figures.consumed = self._figures.taken
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not killed:
            raise CommandError(f"the writing process {process.pid} ended by itself, with exit code {code}", WRONG)
        self._told.say(
            f"process {process.pid} killed with SIGKILL: {self._told.put:,} lines acknowledged, "
            f"{self._told.consumed:,} consumed"
        )

    async def _start(self) -> asyncio.subprocess.Process:
        arguments = [self._path, str(len(self._library.shares)), str(max(self._consumers // 2, 1))]
        if self._limit is not None:
            arguments.append(str(self._limit))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "aiodq.cli.demo.writer",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._told.say(f"process {process.pid} puts {self._library.lines:,} lines of {self._library.files:,} files")
        return process

    def _note(self, event: Event) -> None:
        match event:
            case Acknowledged():
                self._figures.acknowledged[event.producer] = event.position
                self._figures.fsyncs = event.fsyncs
                self._told.put = sum(self._figures.acknowledged)
            case Delivered():
                for offset, body in event.messages:
                    self._take(offset, body)
            case Settled():
                self._delivered.settled(event.offsets)

    def _take(self, offset: int, body: bytes) -> None:
        self._delivered.deliver(offset, body)
        self._figures.taken += 1
        self._figures.taken_bytes += len(body)
        self._told.consumed = self._delivered.delivered

    @property
    def _half_way(self) -> bool:
        return 2 * self._told.put >= self._library.lines and self._figures.taken > 0

    # --- after it

    async def _go_on(self) -> Verdict:
        """Open the store again, see what it holds, put the rest and consume everything."""
        began = time.monotonic()
        async with open_store(self._path, store_options()) as store:
            self._figures.opening = time.monotonic() - began
            self._told.say(f"opened again in {self._figures.opening * 1000:.0f} ms; reading what is there")
            topic = store.topic(TOPIC)
            recovery = await self._take_stock(topic)
            await self._put_and_consume(topic)
            self._figures.fsyncs += topic.stats().fsyncs
        return recovery

    async def _take_stock(self, topic: Topic) -> Verdict:
        """Read what the store holds: where each producer is to go on, and whether anything acknowledged is missing."""
        async for message in topic.scan():
            self._stored.deliver(message.offset, message.body)
        self._figures.recovered = topic.end_offset - topic.begin_offset
        acknowledged = sum(self._figures.acknowledged)
        self._positions = [self._stored.reached(number) for number in range(len(self._positions))]
        self._told.put = sum(self._positions)
        self._told.say(
            f"recovered {self._figures.recovered:,} messages, "
            f"{self._figures.recovered - acknowledged:,} more than acknowledged"
        )
        return self._stored.verdict(self._figures.acknowledged)

    async def _put_and_consume(self, topic: Topic) -> None:
        channel = topic.channel(CHANNEL, channel_options(self._consumers))
        began = time.monotonic()
        async with asyncio.TaskGroup() as consumers:
            tasks = [consumers.create_task(consume(channel, self._took, self._acked)) for _ in range(self._consumers)]
            async with asyncio.TaskGroup() as producers:
                for number, (share, start) in enumerate(zip(self._library.shares, self._positions, strict=True)):
                    producers.create_task(produce(topic, share, number, self._reached, start=start))
            self._figures.put_time += time.monotonic() - began
            await channel.join()
            self._figures.taken_time += time.monotonic() - began
            for task in tasks:
                task.cancel()

    def _reached(self, producer: int, position: int) -> None:
        self._told.put += position - self._positions[producer]
        self._positions[producer] = position

    def _took(self, messages: list[Message]) -> None:
        for message in messages:
            self._take(message.offset, message.body)

    def _acked(self, messages: list[Message]) -> None:
        self._delivered.settled(message.offset for message in messages)


def _output(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    if process.stdout is None:
        raise RuntimeError("the process was started without a pipe")
    return process.stdout
