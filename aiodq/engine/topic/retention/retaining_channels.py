"""The channels for which a topic keeps messages: not the ephemeral ones, unless the topic is ephemeral too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.names import is_ephemeral

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.whole_topic import WholeTopic

__all__ = ["has_retaining_channels", "retaining_channels"]


def has_retaining_channels(engine: WholeTopic) -> bool:
    """Return whether there are any, without a look at all channels: naming a channel calls this."""
    names = engine.channel_engines
    return bool(names) and (is_ephemeral(engine.name) or not all(map(is_ephemeral, names)))


def retaining_channels(engine: WholeTopic) -> list[ChannelEngine[Any]]:
    """Return them."""
    channel_engines = list(engine.channel_engines.values())
    if is_ephemeral(engine.name):
        return channel_engines
    return [one for one in channel_engines if not is_ephemeral(one.name)]
