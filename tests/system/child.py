"""The process that test_sigkill.py kills: producers and consumers that note, at once, what they were told."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, cast

import aiodq
from tests.loops import LOOPS, run_on
from tests.processes import killer, note, open_notes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq import Channel, Draft, Message, StoreOptions, Topic
    from aiodq.options import SyncPolicy
    from aiodq.storage.io.filesystem import FileSystem

TOPIC: Final = "t"
CHANNELS: Final = ("a", "b")
_PRODUCERS: Final = 4
_CONSUMERS: Final = 3
_LARGEST: Final = 100 * 1024
_MOST_AT_ONCE: Final = 12


def options(policy: SyncPolicy) -> StoreOptions:
    """Return options under which segments roll and go often, and the backlog's bound is reached."""
    return aiodq.StoreOptions(
        sync=policy,
        sync_interval=0.05,
        sync_every=50,
        segment_bytes=300_000,
        max_messages=300,
        memory_bytes=2 << 20,
    )


def digest(body: bytes, tag: str | None, key: bytes | None, headers: Mapping[str, str] | None) -> str:
    """Return what tells one message from another; of those under 8 bytes there may be several."""
    text = repr((body, tag, key, dict(headers or {})))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Worker:
    """What producers and consumers share."""

    notes: int
    rng: random.Random
    topic: Topic
    numbers: count[int]

    def note(self, *what: object) -> None:
        """Note something for good."""
        note(self.notes, *what)

    def draft(self) -> Draft:
        """Make up a message: of 0 bytes to 100 KiB, some with tag, key and headers."""
        rng = self.rng
        size = rng.choice((0, rng.randrange(8), rng.randrange(8, 200), int(10 ** rng.uniform(1, 5)), _LARGEST))
        if rng.random() < 0.5:
            size = min(size, 300)
        body = rng.randbytes(size)
        if rng.random() < 0.7:
            return aiodq.Draft(body)
        mark = f"{rng.getrandbits(64):x}"
        return aiodq.Draft(body, mark, mark.encode(), {"mark": mark})

    async def produce(self, producer: int) -> None:
        """Put, and note before and after."""
        while True:
            many = self.rng.random() < 0.3
            drafts = [self.draft() for _ in range(self.rng.randint(1, _MOST_AT_ONCE) if many else 1)]
            number = next(self.numbers)
            digests = [digest(bytes(d.body), d.tag, None if d.key is None else bytes(d.key), d.headers) for d in drafts]
            self.note("will_put", number, producer, digests)
            if many:
                first = (await self.topic.put_many(drafts)).start
            else:
                draft = drafts[0]
                first = await self.topic.put(draft.body, tag=draft.tag, key=draft.key, headers=draft.headers)
            self.note("put", number, first)

    async def consume(self, channel: Channel) -> None:
        """Get, and mostly ack."""
        async for message in channel:
            self.note(
                "got", channel.name, message.offset, digest(message.body, message.tag, message.key, message.headers)
            )
            with suppress(aiodq.NotInFlightError):  # purged meanwhile
                await self.settle(channel.name, message)

    async def settle(self, channel: str, message: Message) -> None:
        choice = self.rng.random()
        if choice < 0.1:
            self.note("will_nack", channel, message.offset)
            await message.nack()
        elif choice < 0.2:
            self.note("will_ack", channel, message.offset)
            message.ack_nowait()
        elif choice > 0.98:
            await asyncio.sleep(0.01)
            self.note("will_nack", channel, message.offset)
            message.release()
        else:
            self.note("will_ack", channel, message.offset)
            await message.ack()
            self.note("acked", channel, message.offset)

    async def purge(self) -> None:
        """Now and then drop everything."""
        while True:
            await asyncio.sleep(self.rng.expovariate(1.5))
            self.note("will_purge")
            await self.topic.purge()
            self.note("purged")


async def main(path: str, policy: SyncPolicy, seed: int, notes: int, fs: FileSystem | None) -> None:
    """Work until killed."""
    async with aiodq.open(path, options(policy), fs=fs) as store:
        topic = store.topic(TOPIC)
        channels = [topic.channel(name, aiodq.ChannelOptions(start="earliest")) for name in CHANNELS]
        worker = Worker(notes, random.Random(seed), topic, count())
        worker.note("open")
        async with asyncio.TaskGroup() as tasks:
            for producer in range(_PRODUCERS):
                tasks.create_task(worker.produce(producer))
            for channel in channels:
                for _ in range(_CONSUMERS):
                    tasks.create_task(worker.consume(channel))
            tasks.create_task(worker.purge())


def run(path: str, policy: SyncPolicy, seed: int, notes: str, calls: int) -> None:
    """Run on either loop; with `calls` above 0, the end comes at that call of the file system."""
    rng = random.Random(seed)
    fs = killer(calls, rng)
    run_on(rng.choice(sorted(LOOPS)), main(path, policy, seed, open_notes(notes), fs))


if __name__ == "__main__":
    run(sys.argv[1], cast("SyncPolicy", sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
