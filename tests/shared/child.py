"""One of many processes on a store that is shared: `python -m tests.shared.child STORE NAME COUNT` puts messages.

A line to standard output for each put that was acknowledged, and `done` at the end; then it serves until its standard
input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiodq

TOPIC = "jobs"
_TOGETHER = 8


def say(text: str) -> None:
    """Have it known, whatever becomes of this process."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def until_input_ends() -> None:
    """Wait for the test to have had enough."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def put(queue: aiodq.Queue, name: str, count: int) -> None:
    """Put, and say what was acknowledged."""

    async def put(number: int) -> None:
        say(f"{number} {await queue.put(f'{name} {number}'.encode())}")

    for start in range(0, count, _TOGETHER):
        await asyncio.gather(*(put(number) for number in range(start, min(start + _TOGETHER, count))))
    say(f"done {os.getpid()}")


async def main(path: str, name: str, count: int) -> None:
    """Do what the test wants."""
    options = aiodq.StoreOptions(segment_bytes=20_000)
    async with aiodq.open(path, options, mode="shared") as store:
        await put(store.queue(TOPIC), name, count)
        await until_input_ends()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
