"""The iterator behind `async for` over a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.delivery.leases import ACKED
from aiodq.engine.channel.lease.open_lease import Taking
from aiodq.engine.loop.home_loop import task_of
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.format.many import COMPILED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from aiodq.engine.channel.lease.held_by_task import HeldByTask, TakenByTask
    from aiodq.engine.channel.open_channel import OpenChannel
    from aiodq.message import Message

__all__ = ["iterate"]


def iterate(
    channel_engine: OpenChannel[Message],
    store_ref: object,
    handed: Callable[[Message], Message],
    held_by_task: HeldByTask[Message] | None,
) -> AsyncIterator[Message]:
    """Yield messages until shutdown.

    Args:
        channel_engine: the channel's engine, which hands them out.
        store_ref: the reference that each message holds to keep the store open.
        handed: called with each message before it is yielded, if the channel engine is `special`.
        held_by_task: notes which task got a message; None if that is not needed.
    """
    return (_called if COMPILED else _inlined)(channel_engine, store_ref, handed, held_by_task)


async def _called(
    channel_engine: OpenChannel[Message],
    store_ref: object,
    handed: Callable[[Message], Message],
    held_by_task: HeldByTask[Message] | None,
) -> AsyncIterator[Message]:
    """Do as `iterate`, with calls for each message: the fastest way if the called functions are compiled."""
    channel_engine.check_context()
    take = Taking(channel_engine.open_lease, channel_engine.kind, store_ref, held_by_task).next
    while True:
        message = take()
        if message is None:
            message = channel_engine.take_next(store_ref)
            if message is None:
                try:
                    message = await channel_engine.get(store_ref)
                except QueueShutDown:
                    return
            if held_by_task is not None and not channel_engine.special:
                held_by_task.note(message)
        if channel_engine.special:
            handed(message)
        yield message


# The bodies of other functions instead of calls: all of this runs for every message.
# ruff: noqa: SLF001
async def _inlined(
    channel_engine: OpenChannel[Message],
    store_ref: object,
    handed: Callable[[Message], Message],
    held_by_task: HeldByTask[Message] | None,
) -> AsyncIterator[Message]:
    """Do as `iterate`, with the called functions written out: the fastest way if they are not compiled."""
    opened, kind = channel_engine.open_lease, channel_engine.kind
    monotonic = opened.monotonic
    taken: TakenByTask[Message] | None = None
    loop = None if held_by_task is None else held_by_task.loop
    task: asyncio.Task[Any] | None = None
    channel_engine.check_context()
    while True:
        lease = opened.lease
        index = lease.next
        # The bodies of `ChannelEngine.take_next` and `message_of`.
        if index < lease.limit and (now := monotonic()) < opened.until:
            lease.next, lease.last = index + 1, now
            message = kind()
            message._run, message._index, message.body = lease, index, opened.bodies[index]
            message._store_ref = store_ref
        elif (found := channel_engine.take_next(store_ref)) is not None:
            message = found
        else:
            try:
                message = await channel_engine.get(store_ref)
            except QueueShutDown:
                return
        if channel_engine.special:
            handed(message)
        elif held_by_task is not None:
            # The body of `HeldByTask.note`; usually it is the same task as before. No weak reference, which has to be
            # called: only a task that has ended, and shared its iterator, is kept until the next message is taken.
            if taken is None or task_of(loop) is not task:
                taken, task = held_by_task.note(message), task_of(loop)
            elif (last := taken.last)._run.marks[last._index] >= ACKED:
                taken.last = message
            else:
                taken.add(message)
        yield message
