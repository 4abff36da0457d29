"""Messages that are due later. The due time is on disk: stop the process, and what is due meanwhile comes at the start.

python examples/scheduler.py [DIRECTORY]

Without a directory it uses a temporary one.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time

import aiodq


async def plan(directory: str) -> None:
    """Plan three reminders, and close before any of them is due."""
    async with aiodq.open_queue(directory) as reminders:
        await reminders.put(b"good morning")
        for name, delay in (("tea is ready", 1.5), ("call Ann", 0.5), ("stretch", 1.0)):
            await reminders.put(name.encode(), delay=delay)
        print(f"{reminders.qsize()} now, {reminders.deferred()} later")


async def remind(directory: str) -> None:
    """Open the queue again and deliver each reminder when it is due."""
    async with aiodq.open_queue(directory) as reminders:
        while reminders.depth:
            async with await reminders.get() as reminder:
                print(reminder.body.decode())


def main(directory: str) -> None:
    """Plan and remind, each with an event loop of its own, as two processes would."""
    asyncio.run(plan(directory))
    time.sleep(0.1)
    asyncio.run(remind(directory))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="aiodq-") as temporary:
            main(temporary)
