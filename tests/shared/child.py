"""One of many processes on a store: it puts numbered messages, and owns the store where nobody else does.

`python -m tests.shared.child STORE NAME COUNT`: a line to standard output for each put that was acknowledged, and
`done` at the end; then it serves until its standard input ends. With a COUNT of 0 it works messages off instead, three
at a time: `got OFFSET` and `did OFFSET` for each, the latter once its ack is durable; until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.link import Link
from aiodq.shared.owner import Owner
from aiodq.shared.remote import RemoteChannel
from aiodq.wire.frames import encode_messages

TOPIC = "jobs"
_TOGETHER = 8


class Peer:
    """A process's part in a store."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.store: aiodq.Store | None = None
        self.owner: Owner | None = None
        self.link = Link(path, self.own)

    async def own(self) -> bool:
        """Own the store if nobody does."""
        try:
            self.store = await aiodq.open(self.path, aiodq.StoreOptions(segment_bytes=20_000))
        except aiodq.StoreLockedError:
            return False
        self.owner = Owner(self.store._store_engine)
        await self.owner.start()
        return True

    async def close(self) -> None:
        """End, handing over."""
        await self.link.close()
        if self.owner is not None and self.store is not None:
            await self.owner.close()
            await self.store.aclose()


def say(text: str) -> None:
    """Have it known, whatever becomes of this process."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def work(peer: Peer) -> None:
    """Work messages off."""
    channel = RemoteChannel(peer.link, TOPIC, "default")
    await peer.link.open_channel(TOPIC, "default", channel)

    async def worker() -> None:
        while True:
            message = await channel.get(None)
            say(f"got {message.offset}")
            await asyncio.sleep(0.005)
            await message.ack()
            say(f"did {message.offset}")

    workers = [asyncio.create_task(worker()) for _ in range(3)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in workers:
        task.cancel()
    for error in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(error, Exception):
            raise error
    await peer.close()


async def main(path: str, name: str, count: int) -> None:
    """Put, and say what was acknowledged."""
    peer = Peer(path)
    await peer.link.start()
    if not count:
        await work(peer)
        return

    async def put(number: int) -> None:
        frames = encode_messages(Columns([f"{name} {number}".encode()]), time.time_ns())
        [offset] = await peer.link.put(TOPIC, frames, 1)
        say(f"{number} {offset}")

    for start in range(0, count, _TOGETHER):
        await asyncio.gather(*(put(number) for number in range(start, min(start + _TOGETHER, count))))
    say(f"done {os.getpid()}")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await peer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
