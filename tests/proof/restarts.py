"""What a process does that is started after another one was killed: a little of everything, with whatever it finds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiodq
from tests.proof.clients import clients

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.proof.world import World

__all__ = ["go_on"]

_OPTIONS = aiodq.StoreOptions(segment_bytes=700)
_A_WHILE = 1.5
"""Seconds after which a store has tidied up behind transactions."""


async def go_on(world: World) -> None:
    """Open the store and do a few things."""
    async with world.store(_OPTIONS) as store:
        async with clients(world, store):
            pass  # what they put before counts by now
        for _ in range(world.random.randrange(5)):
            await world.random.choice(_ACTIONS)(world, store)
        if world.random.random() < 0.2:
            await asyncio.sleep(_A_WHILE)


def _topic(world: World, store: aiodq.Store) -> aiodq.Topic | None:
    names = store.topics()
    return store.topic(world.random.choice(names)) if names else None


def _channel(world: World, store: aiodq.Store) -> aiodq.Channel | None:
    """Return a channel that has something ready."""
    topics = [store.topic(name) for name in store.topics()]
    channels = [topic.channel(name) for topic in topics for name in topic.channels()]
    ready = [channel for channel in channels if not channel.empty() and not channel.paused]
    return world.random.choice(ready) if ready else None


async def _put(world: World, store: aiodq.Store) -> None:
    topic = _topic(world, store)
    await (world.put(topic, "g") if topic is not None else _make(world, store))


async def _put_some(world: World, store: aiodq.Store) -> None:
    topic = _topic(world, store)
    if topic is not None:
        await world.put_many(topic, "g", 3, 40)


async def _make(world: World, store: aiodq.Store) -> None:
    await world.put(world.queue(store, "another"), "g")


async def _ack(world: World, store: aiodq.Store) -> None:
    channel = _channel(world, store)
    if channel is not None:
        await world.ack(await channel.get())


async def _requeue(world: World, store: aiodq.Store) -> None:
    channel = _channel(world, store)
    if channel is not None:
        await (await channel.get()).nack()


async def _transact(world: World, store: aiodq.Store) -> None:
    channel, topic = _channel(world, store), _topic(world, store)
    if channel is not None and topic is not None:
        await world.transact(store, [await channel.get()], {topic.name: 1, "another": 1})


async def _delete(world: World, store: aiodq.Store) -> None:
    topic = _topic(world, store)
    if topic is not None:
        await world.delete(store, topic.name)


async def _close_channel(world: World, store: aiodq.Store) -> None:
    topic = _topic(world, store)
    if topic is not None and topic.channels():
        await world.close_channel(topic, world.random.choice(topic.channels()))


async def _purge(world: World, store: aiodq.Store) -> None:
    topic = _topic(world, store)
    if topic is not None:
        await world.purge(topic)


async def _wait(_: World, __: aiodq.Store) -> None:
    await asyncio.sleep(_A_WHILE)


_ACTIONS: tuple[Callable[[World, aiodq.Store], Awaitable[None]], ...] = (
    _put, _put, _put_some, _make, _ack, _ack, _requeue, _transact, _delete, _close_channel, _purge, _wait,
)  # fmt: skip
