"""One of many processes on a shared store, all of whose work is transactions, and which may die anywhere in them.

`python -m tests.shared.transacting STORE NAME COUNT CALLS SEED`: two tasks put COUNT pairs each, one message into `a`
and one into `b`; three work off what is in `jobs`, and put what they make of it into `made`. A line to standard output
for each that is committed: `put NAME/TASK NUMBER`, `made BODY`; `done` once all pairs are; then it works until its
standard input ends. With CALLS it dies at about that many changes to files, if it comes to own the store.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Final

import aiodq
from tests.loops import run_on
from tests.processes import killer
from tests.shared.child import say, until_input_ends

__all__ = ["OPTIONS", "PUTTING", "work"]

OPTIONS: Final = aiodq.StoreOptions(segment_bytes=20_000, retention=aiodq.Retention(consumed="keep"))
PUTTING: Final = 2
_WORKING: Final = 3


async def work(store: aiodq.Store) -> None:
    """Make something of every job, for ever."""
    async for message in store.queue("jobs"):
        async with message.transaction() as tx:
            tx.put("made", message.body)
        say(f"made {message.body.decode()}")


async def put(store: aiodq.Store, name: str, count: int) -> None:
    """Put pairs, one after the other."""
    for number in range(count):
        async with store.transaction() as tx:
            tx.put("a", f"{name} {number}".encode())
            tx.put("b", f"{name} {number}".encode())
        say(f"put {name} {number}")


async def main(path: str, name: str, count: int, calls: int, seed: int) -> None:
    """Do what the test wants."""
    fs = killer(calls, random.Random(seed)) if calls else None
    async with aiodq.open(path, OPTIONS, mode="shared", fs=fs) as store:
        workers = [asyncio.create_task(work(store)) for _ in range(_WORKING)]
        await asyncio.gather(*(put(store, f"{name}/{task}", count) for task in range(PUTTING)))
        say("done")
        await until_input_ends()
        for task in workers:
            task.cancel()
        for error in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(error, Exception):
                raise error


if __name__ == "__main__":
    run_on(
        ("asyncio", "uvloop")[int(sys.argv[5]) % 2],
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])),
    )
