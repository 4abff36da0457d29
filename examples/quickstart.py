"""A queue that outlives its process: put, work, fail, try again, restart.

    python examples/quickstart.py [DIRECTORY]

Without a directory it uses a temporary one. With one, run it twice and see what the first run left behind.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import aiodq

JOBS = ("cat.png", "dog.png", "broken.png", "fox.png", "owl.png")


class BrokenImageError(Exception):
    """This image cannot be resized at the first try."""


def resize(job: aiodq.Message) -> None:
    """Do the work; one of the images succeeds only when it is tried again."""
    if job.body == b"broken.png" and job.attempts == 1:
        raise BrokenImageError
    print(f"  resized {job.body.decode()}, attempt {job.attempts}")


async def first_run(directory: str) -> None:
    """Put five jobs, work off three of them, and close with two left."""
    async with aiodq.open_queue(directory) as jobs:
        print(f"opened {directory}: {jobs.qsize()} jobs in it")
        for name in JOBS:
            offset = await jobs.put(name.encode())
            print(f"  put {name}: on disk as message {offset}")

        worked_off = 0
        while worked_off < 3:  # noqa: PLR2004 - so that something is left for the second run
            job = await jobs.get()
            try:
                async with job:  # acks when the block ends well, requeues when it raises
                    resize(job)
                    worked_off += 1
            except BrokenImageError:
                print(f"  failed {job.body.decode()}, attempt {job.attempts}: back in the queue")
        print(f"closing with {jobs.qsize()} jobs left")


async def second_run(directory: str) -> None:
    """Open the same directory again and finish what is left."""
    async with aiodq.open_queue(directory) as jobs:
        print(f"opened again: {jobs.qsize()} jobs left")
        jobs.shutdown()  # no more puts; the loop below ends when nothing is left
        async for job in jobs:
            async with job:
                resize(job)
        print(f"all done: {jobs.depth} jobs left")


def main(directory: str) -> None:
    """Run twice, each time with an event loop and a queue of its own, as two processes would."""
    asyncio.run(first_run(directory))
    asyncio.run(second_run(directory))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="aiodq-") as temporary:
            main(temporary)
