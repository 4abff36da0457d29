"""One of many processes on a store that is shared: it puts numbered messages, or works them off.

`python -m tests.shared.child STORE NAME COUNT`: a line to standard output for each put that was acknowledged, and
`done` at the end; then it serves until its standard input ends. With a COUNT of 0 it works messages off instead, three
at a time: `got OFFSET` and `did OFFSET` for each, the latter once its ack is durable; until its standard input ends.
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


async def work(queue: aiodq.Queue) -> None:
    """Work messages off."""

    async def worker() -> None:
        while True:
            message = await queue.get()
            say(f"got {message.offset}")
            await asyncio.sleep(0.005)
            await message.ack()
            say(f"did {message.offset}")

    workers = [asyncio.create_task(worker()) for _ in range(3)]
    await until_input_ends()
    for task in workers:
        task.cancel()
    for error in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(error, Exception):
            raise error


async def put(queue: aiodq.Queue, name: str, count: int) -> None:
    """Put, and say what was acknowledged."""

    async def put(number: int) -> None:
        say(f"{number} {await queue.put(f'{name} {number}'.encode())}")

    for start in range(0, count, _TOGETHER):
        await asyncio.gather(*(put(number) for number in range(start, min(start + _TOGETHER, count))))
    say(f"done {os.getpid()}")
    await until_input_ends()


async def main(path: str, name: str, count: int) -> None:
    """Do what the test wants."""
    options = aiodq.StoreOptions(segment_bytes=20_000)
    async with aiodq.open(path, options, mode="shared") as store:
        queue = store.queue(TOPIC)
        await (put(queue, name, count) if count else work(queue))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
