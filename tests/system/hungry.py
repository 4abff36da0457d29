"""The process whose memory test_resources.py looks at. It prints how far its peak rose over what it began with."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiodq

if TYPE_CHECKING:
    from aiodq import Channel, Store, StoreOptions, Topic

MIB: Final = 1 << 20
_AT_ONCE: Final = MIB
_MANY_CHANNELS: Final = 10


def resident(kind: str) -> int:
    """Return VmRSS or VmHWM of this process, bytes."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    """Let the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def produce(topic: Topic, total: int, size: int) -> None:
    """Put `total` bytes, no two messages alike."""
    left, most = total // size, max(_AT_ONCE // size, 1)
    while left:
        number = min(left, most)
        await topic.put_many([os.urandom(size) for _ in range(number)])
        left -= number


async def put_later(topic: Topic, number: int, size: int) -> None:
    """Put so many messages that are due tomorrow, one after the other, in an order of their own."""
    drafts = [aiodq.Draft(os.urandom(size), delay=86_400 + 37 * n % 1000) for n in range(1000)]
    for _ in range(number // len(drafts)):
        await topic.put_many(drafts)


async def flood(topic: Topic, total: int, size: int) -> None:
    """Put as fast as the buffer takes it, waiting only where it is full."""
    for _ in range(total // size):
        body = os.urandom(size)
        try:
            topic.put_nowait(body)
        except aiodq.QueueFull:
            await topic.put(body)
    await topic.sync()


async def consume(channel: Channel, number: int) -> None:
    """Get and ack so many messages."""
    got = 0
    async for message in channel:
        message.ack_nowait()
        got += 1
        if got == number:
            return


async def work(store: Store, manner: str, total: int, size: int) -> None:
    """Do what the manner says; nothing of it may cost memory by the length of the backlog."""
    topic, number = store.topic("t"), total // size
    if manner == "no consumer":
        await produce(topic, total, size)
        return
    many = 1 if manner == "deferred" else _MANY_CHANNELS
    channels = [topic.channel(f"c{n}", aiodq.ChannelOptions(start=0)) for n in range(many)]
    if manner == "far behind unread":
        await produce(topic, total, size)
    elif manner == "many channels":
        await produce(topic, total, size)
        await asyncio.gather(*(consume(channel, number) for channel in channels))
    elif manner == "keeping up":
        await asyncio.gather(produce(topic, total, size), *(consume(channel, number) for channel in channels[:1]))
    elif manner == "far behind":
        await produce(topic, total, size)
        await consume(channels[0], number)
    elif manner == "deferred":
        await put_later(topic, number, size)
        assert channels[0].deferred() == number
    elif manner == "flood":
        await asyncio.gather(flood(topic, total, size), consume(channels[0], number))
    else:
        raise ValueError(manner)


async def main(path: str, manner: str, total: int, size: int, memory: int) -> None:
    """Work, and print the rise of the peak. A second process only opens, and consumes, what the first one left."""
    options: StoreOptions = aiodq.StoreOptions(memory_bytes=memory, segment_bytes=16 * MIB, sync="os")
    async with aiodq.open(path, options) as store:
        # Whatever is allocated once is part of what it begins with.
        warm = store.queue("warm")
        await warm.put(b"x")
        await (await warm.get()).ack()
        if manner == "open":
            forget_peak()
    if manner == "open":
        base = resident("VmRSS")
        async with aiodq.open(path, options) as store:
            opened = resident("VmHWM") - base
            assert store.topic("t").end_offset == total // size
            await store.topic("t").read(total // size // 2)
        print(opened, resident("VmHWM") - base)
        return
    async with aiodq.open(path, options) as store:
        forget_peak()
        base = resident("VmRSS")
        await work(store, manner, total, size)
    print(resident("VmHWM") - base)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *(int(argument) for argument in sys.argv[3:])))
