"""A workload on a simulated machine, whose trace tells one interleaving from another."""

from __future__ import annotations

import asyncio
import hashlib
import sys

import aiodq
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, run
from aiodq.testing.disk import Operation, Wrote

PRODUCERS = 8
PATH = "/store"


async def workload(fs: SimulatedFileSystem, seed: int) -> list[bytes]:
    """Let producers put, sleep and put again beside a consumer; return the bodies in the order of the log."""
    executor = SimulatedExecutor(asyncio.get_running_loop(), fs, seed)

    async def produce(producer: int) -> None:
        for number in range(3):
            await queue.put(b"%d:%d" % (producer, number))
            await asyncio.sleep(0.001 * producer)

    async def consume() -> None:
        async for message in queue:
            await message.ack()

    async with aiodq.open_queue(PATH, fs=fs, clock=FakeClock(), executor=executor) as queue:
        consumer = asyncio.create_task(consume())
        await asyncio.gather(*(produce(producer) for producer in range(PRODUCERS)))
        await queue.join()
        found = [message.body async for message in queue.scan()]
        queue.shutdown()
        await consumer
    return found


def trace_of(seed: int) -> tuple[list[bytes], str]:
    """Return what the log holds, and a digest of what became of the files, without what a topic's uuid decides."""
    fs = SimulatedFileSystem(record=True)
    found = run(lambda: workload(fs, seed))
    assert fs.trace is not None
    text = "\n".join(shape(operation) for operation in fs.trace[fs.laid_out :])
    return found, hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def shape(operation: Operation) -> str:
    """Return an operation with the size instead of the bytes: those carry a random uuid and its salt."""
    if isinstance(operation, Wrote):
        return f"Wrote {operation.node} {operation.position} {len(operation.data)}"
    return str(operation)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(given, *trace_of(int(given)))
