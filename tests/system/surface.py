"""Every public method, as a call; a test says what becomes of it. A method that is missing here fails a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiodq

if TYPE_CHECKING:
    from aiodq import Channel, Message, Queue, Store, Topic

__all__ = ["ENDS", "VALUES", "Surface", "calls", "settlements", "uncovered"]

Call: TypeAlias = Callable[[], Any]

VALUES: Final = {
    "Store": {"path", "topics", "stats", "events", "health"},
    "Topic": {"name", "options", "channels", "stats", "begin_offset", "end_offset", "durable_offset"},
    "Channel": {"name", "options", "qsize", "in_flight", "deferred", "depth", "empty", "paused", "stats"},
    "Queue": {"topic", "maxsize", "full", "topic_stats", "channels", "begin_offset", "end_offset", "durable_offset"},
    "Message": {
        "attempts",
        "body",
        "channel",
        "headers",
        "held",
        "id",
        "key",
        "offset",
        "settled",
        "tag",
        "timestamp",
        "timestamp_ns",
        "topic",
    },
}
"""What is a question: answered at any time, from what was last known."""

ENDS: Final = {"Store": {"aclose", "stop"}, "Channel": {"stop"}, "Queue": {"aclose", "shutdown", "stop"}}
"""What may be repeated."""

_NOW: Final = datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Surface:
    """One of each thing that a user may hold."""

    store: Store
    topic: Topic
    channel: Channel
    queue: Queue


def calls(surface: Surface) -> dict[str, Call]:
    """Return every method that does something, apart from those that settle a message."""
    store, topic, channel, queue = surface.store, surface.topic, surface.channel, surface.queue
    return {
        "Store.topic": lambda: store.topic("another"),
        "Store.queue": lambda: store.queue("another"),
        "Store.drain": lambda: store.drain(0),
        "Store.transaction": store.transaction,
        "Store.requeue_dead": lambda: store.requeue_dead("another"),
        "Store.delete_topic": lambda: store.delete_topic("another"),
        "Store.backup": lambda: store.backup(f"{store.path}.backup"),
        **{f"Topic.{name}": call for name, call in _of_log(topic).items()},
        "Topic.channel": lambda: topic.channel("another"),
        "Topic.delete_channel": lambda: topic.delete_channel("another"),
        "Topic.settle_in": topic.settle_in,
        "Topic.configure": lambda: topic.configure(aiodq.StoreOptions()),
        **{f"Channel.{name}": call for name, call in _of_channel(channel).items()},
        **{f"Queue.{name}": call for name, call in _of_log(queue).items()},
        **{f"Queue.{name}": call for name, call in _of_channel(queue).items()},
        "Queue.channel": lambda: queue.channel("another"),
        "Queue.delete_channel": lambda: queue.delete_channel("another"),
        "Queue.task_done": lambda: queue.task_done(None),
    }


def _of_log(log: Topic | Queue) -> dict[str, Call]:
    return {
        "put": lambda: log.put(b"x"),
        "put_many": lambda: log.put_many([b"x"]),
        "put_nowait": lambda: log.put_nowait(b"x"),
        "sync": log.sync,
        "read": lambda: log.read(0),
        "scan": log.scan,
        "offset_at": lambda: log.offset_at(_NOW),
        "purge": log.purge,
        "pause": log.pause,
        "resume": log.resume,
    }


def _of_channel(channel: Channel | Queue) -> dict[str, Call]:
    found: dict[str, Call] = {
        "get": channel.get,
        "get_nowait": channel.get_nowait,
        "get_many": lambda: channel.get_many(1),
        "ack_many": lambda: channel.ack_many([]),
        "deferred_messages": channel.deferred_messages,
        "cancel": lambda: channel.cancel(0),
        "peek": channel.peek,
        "refresh": channel.refresh,
        "join": channel.join,
        "seek": lambda: channel.seek("earliest"),
        "configure": lambda: channel.configure(aiodq.ChannelOptions()),
        "consume": lambda: channel.consume(_nothing),
        "pause": channel.pause,
        "resume": channel.resume,
    }
    if not isinstance(channel, aiodq.Queue):
        found["purge"] = channel.purge
        found["check"] = channel.check
    return found


async def _nothing(_: Message) -> None:
    await asyncio.sleep(0)


def settlements(message: Message) -> dict[str, Call]:
    """Return every way of settling a message."""
    return {
        "Message.ack": message.ack,
        "Message.ack_nowait": message.ack_nowait,
        "Message.nack": message.nack,
        "Message.nack_nowait": message.nack_nowait,
        "Message.release": message.release,
        "Message.reject": message.reject,
        "Message.touch": message.touch,
        "Message.transaction": lambda: message.transaction().__aenter__(),
        "Message.renewing": lambda: message.renewing().__aenter__(),
    }


def uncovered(surface: Surface, message: Message) -> set[str]:
    """Return the public names that are in none of the above."""
    things = (surface.store, surface.topic, surface.channel, surface.queue, message)
    public = {f"{type(thing).__name__}.{name}" for thing in things for name in dir(thing) if not name.startswith("_")}
    known = {f"{kind}.{name}" for table in (VALUES, ENDS) for kind, names in table.items() for name in names}
    known |= calls(surface).keys() | settlements(message).keys()
    # A queue is a channel.
    known |= {name.replace("Channel.", "Queue.") for name in known if name.startswith("Channel.")}
    return public - known
