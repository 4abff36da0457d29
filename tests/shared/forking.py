"""A process on a store that is shared, which leaves a child behind: `python -m tests.shared.forking STORE`.

It puts a message, holds it, forks, and puts another one. Both processes say what became of that, and wait for their
standard input to end.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiodq
from tests.shared.child import TOPIC, say


def leave_child(queue: aiodq.Queue) -> None:
    """Fork a child that tries to use what it has inherited, and then does nothing."""
    if os.fork():
        return
    try:
        queue.put_nowait(b"a child's")
    except aiodq.WrongContextError:
        say("the child may not")
    sys.stdin.read()
    os._exit(0)


async def main(path: str) -> None:
    """Do what the test wants."""
    async with aiodq.open(path, mode="shared") as store:
        queue = store.queue(TOPIC)
        await queue.put(b"held")
        message = await queue.get()
        leave_child(queue)
        say(f"the parent holds {message.offset} and puts {await queue.put(b'another')}")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
