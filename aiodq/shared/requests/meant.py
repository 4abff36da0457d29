"""Which topic or channel of a name a client means: one that was made since is another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.shared.encoding.options_json import read_channel_options, read_topic_options
from aiodq.storage.log.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.channel import Channel
    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.topic import Topic
    from aiodq.wire.packets import Open

__all__ = ["check_existing", "open_channel", "open_topic", "topic_uuid"]

_NO_OPTIONS: Final = {"made", "uuid"}
"""The keys of an OPEN that are no options."""


def topic_uuid(engine: TopicEngine) -> str | None:
    """Return what tells a topic from another one of its name; None if nothing of it exists yet."""
    return str(engine.log.meta.uuid) if isinstance(engine.log, TopicLog) else None


def check_existing(packet: Open, topics: Mapping[str, TopicEngine]) -> None:
    """Raise if a client opens only what exists, and what it means was deleted.

    Raises:
        QueueShutDown: as from a handle of what was deleted.
    """
    engine = topics.get(packet.topic)
    if not packet.existing or (engine is not None and engine.unusable is not None):
        return  # opening it says what is wrong with it
    uuid = None if engine is None else topic_uuid(engine)
    if engine is None or uuid is None or packet.options.get("uuid", uuid) != uuid:
        raise QueueShutDown(f"topic {packet.topic!r} was deleted")
    if packet.channel:
        channel = engine.channel_engines.get(packet.channel)
        # What an earlier aiodq has made, or has told the client of, counts as what is meant.
        if channel is None or (channel.made and packet.options.get("made", channel.made) != channel.made):
            raise QueueShutDown(f"channel {packet.channel!r} was deleted")


def open_topic(packet: Open, engine: StoreEngine) -> TopicEngine:
    """Return the engine of a topic that a client opens, with the options that it names, or has from an earlier owner.

    Raises:
        InvalidOptionError: other options were named before.
    """
    named = read_topic_options(packet.options) if packet.options.keys() - _NO_OPTIONS else None
    if named is not None and packet.options.get("recalled") is True:
        engine.unnamed(packet.topic).effective_options.recall(named)
        named = None
    elif named is not None and packet.options.get("stored") is True:
        named = engine.unnamed(packet.topic).effective_options.named_again(named)
    return engine.engine(packet.topic, named)


def open_channel(packet: Open, topic: Topic) -> Channel:
    """Do as `open_topic` for a channel."""
    named = read_channel_options(packet.options) if packet.options.keys() - _NO_OPTIONS else None
    if named is not None and packet.options.get("recalled") is True:
        return topic._recalled_channel(packet.channel, named)  # noqa: SLF001 - only an owner recalls
    return topic.channel(packet.channel, named)
