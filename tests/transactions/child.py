"""The process that test_sigkill.py kills: jobs become products in two steps, each step one transaction."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import aiodq
from tests.loops import run_on
from tests.processes import killer

if TYPE_CHECKING:
    from aiodq.options import SyncPolicy

__all__ = ["COPIES", "STEPS", "options"]

STEPS: Final = ("jobs", "parts", "products")
COPIES: Final = 2
"""Messages that a step makes of each."""

_JOBS: Final = 40
_WORKERS: Final = 4
_MOST: Final = 100
"""Messages that wait for a step: beyond, no new jobs are put, as on a slow disk the work would never end."""


def options(policy: SyncPolicy) -> aiodq.StoreOptions:
    """Return options that keep everything, in segments that roll often."""
    keep = aiodq.Retention(consumed="keep")
    return aiodq.StoreOptions(sync=policy, sync_interval=0.05, segment_bytes=4096, retention=keep)


async def work(store: aiodq.Store, source: aiodq.Channel, target: str) -> None:
    """Make what is to be made of each message, for ever."""
    async for message in source:
        async with store.transaction() as tx:
            tx.ack(message)
            for number in range(COPIES):
                tx.put(target, message.body + b".%d" % number)


async def main(path: str, policy: SyncPolicy, seed: int, calls: int, *, finish: bool) -> None:
    """Put new jobs and work until killed, or, with `finish`, until nothing is left to do."""
    rng = random.Random(seed)
    async with aiodq.open(path, options(policy), fs=killer(calls, rng)) as store:
        channels = [store.topic(step).channel("work") for step in STEPS[:2]]
        workers = [
            asyncio.ensure_future(work(store, channel, target))
            for channel, target in zip(channels, STEPS[1:], strict=True)
            for _ in range(_WORKERS)
        ]
        while True:
            await store.topic("jobs").put_many([b"%08x" % rng.getrandbits(32) for _ in range(_JOBS)])
            if finish:
                break
            await asyncio.sleep(rng.random() * 0.05)
            while any(channel.depth > _MOST for channel in channels):
                await asyncio.sleep(0.005)
        for channel in channels:
            await channel.join()
        for worker in workers:
            worker.cancel()


def run(path: str, policy: SyncPolicy, seed: int, calls: int, *, finish: bool = False) -> Any:
    """Run it on one loop or the other."""
    run_on(("asyncio", "uvloop")[seed % 2], main(path, policy, seed, calls, finish=finish))


if __name__ == "__main__":
    run(sys.argv[1], cast("SyncPolicy", sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
