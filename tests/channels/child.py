"""The process that test_sigkill.py kills: jobs are delayed, acked, requeued with a delay, given up, or forgotten."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import suppress
from typing import Final

import aiodq
from tests.loops import run_on
from tests.processes import killer, note, open_notes

__all__ = ["CHANNEL", "DEAD", "OPTIONS", "TOPIC"]

TOPIC: Final = "jobs"
CHANNEL: Final = "work"
DEAD: Final = "jobs.dead"
OPTIONS: Final = aiodq.ChannelOptions(visibility_timeout=0.1, max_attempts=4, dead_letter=DEAD)
SEGMENTS: Final = aiodq.StoreOptions(segment_bytes=4096)
_LONGEST: Final = 0.15


class Worker:
    """One life of the process."""

    def __init__(self, store: aiodq.Store, notes: int, rng: random.Random) -> None:
        self.topic = store.topic(TOPIC)
        self.channel = self.topic.channel(CHANNEL, OPTIONS)
        self.notes = notes
        self.rng = rng

    def note(self, *what: object) -> None:
        """Note something for good."""
        note(self.notes, *what)

    async def produce(self) -> None:
        """Put jobs, each of which says itself when it is due."""
        while True:
            delay = self.rng.choice((0.0, self.rng.random() * _LONGEST))
            body = f"{self.rng.getrandbits(48):012x} {time.time_ns() + int(delay * 1e9)}"
            self.note("putting", body)
            await self.topic.put(body.encode(), delay=delay or None)
            self.note("put", body)
            await asyncio.sleep(self.rng.random() * 0.01)

    async def consume(self) -> None:
        """Take jobs, and do this or that with each."""
        async for message in self.channel:
            body = message.body.decode()
            self.note("got", body, message.attempts, time.time_ns())
            with suppress(aiodq.NotInFlightError):
                await self.settle(message, body)

    async def settle(self, message: aiodq.Message, body: str) -> None:
        """Settle a message in one way or another, or leave it to its time."""
        way = self.rng.choice(("ack", "ack", "nack", "nack", "reject", "forget"))
        if way == "ack":
            self.note("acking", body)
            await message.ack()
            self.note("acked", body)
        elif way == "nack":
            due = time.time_ns() + 50_000_000
            await message.nack(0.05)
            await self.topic.sync()
            self.note("nacked", body, message.attempts, due)
        elif way == "reject":
            self.note("rejecting", body)
            await message.reject("by chance")
            self.note("rejected", body)


async def main(path: str, notes: str, seed: int, calls: int) -> None:
    """Work until killed."""
    rng = random.Random(seed)
    async with aiodq.open(path, SEGMENTS, fs=killer(calls, rng)) as store:
        worker = Worker(store, open_notes(notes), rng)
        await asyncio.gather(*(worker.produce() for _ in range(3)), *(worker.consume() for _ in range(3)))


if __name__ == "__main__":
    store, notes, seed, calls = sys.argv[1:]
    run_on(("asyncio", "uvloop")[int(seed) % 2], main(store, notes, int(seed), int(calls)))
