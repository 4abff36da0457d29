"""The process that is killed: `python -m aiodq.cli.demo.writer STORE PRODUCERS CONSUMERS [LIMIT]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.cli.demo.sources import Library, standard_library
from aiodq.cli.demo.traffic import CHANNEL, TOPIC, channel_options, consume, produce, store_options, take_and_hold
from aiodq.cli.demo.wire import Acknowledged, Delivered, Settled, pack
from aiodq.cli.loop import Aside
from aiodq.opening import open as open_store
from aiodq.running import loop_factory

if TYPE_CHECKING:
    from aiodq.cli.demo.wire import Event
    from aiodq.message import Message
    from aiodq.topic import Topic

__all__ = ["main"]

_IN: Final = 0
_OUT: Final = 1


def _tell(event: Event) -> None:
    """Write all of an event to the pipe, where it outlives this process, before anything is done because of it."""
    view = memoryview(pack(event))
    while view:
        view = view[os.write(_OUT, view) :]


def _took(messages: list[Message]) -> None:
    _tell(Delivered([(message.offset, message.body) for message in messages]))


def _acked(messages: list[Message]) -> None:
    _tell(Settled([message.offset for message in messages]))


def _reached(topic: Topic, producer: int, position: int) -> None:
    _tell(Acknowledged(producer, position, topic.stats().fsyncs))


async def _end_with_parent() -> None:
    """Exit when the parent has died: nothing else would end this process."""
    with Aside() as aside:
        await aside.call(lambda: os.read(_IN, 1))
    os._exit(1)


async def _write(path: str, library: Library, consumers: int) -> None:
    """Put three quarters of each producer's lines, consume some of them, and wait to be killed."""
    async with open_store(path, store_options()) as store, asyncio.TaskGroup() as tasks:
        tasks.create_task(_end_with_parent())
        topic = store.topic(TOPIC)
        channel = topic.channel(CHANNEL, channel_options(consumers))
        # Whenever the kill comes, a consumer is processing messages.
        tasks.create_task(take_and_hold(channel, _took))
        for _ in range(consumers - 1):
            tasks.create_task(consume(channel, _took, _acked))
        for number, share in enumerate(library.shares):
            stop = -(-3 * len(share) // 4)
            tasks.create_task(produce(topic, share, number, partial(_reached, topic), stop=stop))


def main() -> None:
    """Run with the arguments of the process."""
    # The terminal's interrupt goes to the parent as well, and the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, producers, consumers, *limit = sys.argv[1:]
    library = Library(standard_library(), int(producers), int(limit[0]) if limit else None)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_write(path, library, int(consumers)))


if __name__ == "__main__":
    main()
