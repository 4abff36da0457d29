"""The iterator behind `async for` over a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.leases import ACKED
from aiodq.engine.home_loop import task_of
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.message import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiodq.engine.channel.handing import HandingChannel
    from aiodq.engine.channel.held_by_task import HeldByTask, TakenByTask

__all__ = ["iterate"]


# One function with the bodies of others instead of calls to them: all of this runs for every message.
# ruff: noqa: SLF001
async def iterate(
    channel_engine: HandingChannel[Message],
    store_ref: object,
    handed: Callable[[Message], Message],
    held_by_task: HeldByTask[Message] | None,
) -> AsyncIterator[Message]:
    """Yield messages until shutdown.

    Args:
        channel_engine: the channel's engine, which hands them out.
        store_ref: the reference that each message holds to keep the store open.
        handed: called with each message before it is yielded, if the channel engine is `special`.
        held_by_task: notes which task got a message; None if nobody needs to know.
    """
    monotonic = channel_engine.monotonic
    taken: TakenByTask[Message] | None = None
    channel_engine.check_context()
    while True:
        lease = channel_engine.lease
        index = lease.next
        # The bodies of `ChannelEngine.take_next` and `message_of`.
        if index < lease.limit and (now := monotonic()) < channel_engine.until:
            lease.next, lease.last = index + 1, now
            message = Message()
            message._run, message._index, message.body = lease, index, channel_engine.bodies[index]
            message._store_ref = store_ref
        else:
            try:
                message = await channel_engine.get(store_ref)
            except QueueShutDown:
                return
        if channel_engine.special:
            handed(message)
        elif held_by_task is not None:
            # The body of `HeldByTask.note`; usually it is the same task as before.
            if taken is None or taken.whose() is not task_of(held_by_task.loop):
                taken = held_by_task.note(message)
            elif (last := taken.last)._run.marks[last._index] >= ACKED:
                taken.last = message
            else:
                taken.add(message)
        yield message
