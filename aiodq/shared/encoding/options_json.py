"""Options as the JSON of a packet: those a client gives for a topic or a channel, and those an owner applies."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiodq.errors import InvalidOptionError
from aiodq.options import ChannelOptions, StoreOptions, seconds, time_ns
from aiodq.storage.state.topic.stored_options import (
    StoredOptions,
    decode_channel,
    decode_topic,
    encode_channel,
    encode_topic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.options import Start

__all__ = [
    "State",
    "channel_options",
    "given_channel_options",
    "moment",
    "moment_ns",
    "read_channel_options",
    "read_topic_options",
    "topic_options",
]

_TAGS: Final = 60_000
"""Most bytes of the tags of a channel as JSON: with all else, they have to fit into a packet."""
_OWNERS: Final = ("sync", "sync_every", "memory_bytes", "sync_backend")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WRONG: Final = (KeyError, TypeError, ValueError, OverflowError, AttributeError)


class State(NamedTuple):
    """What an owner tells a client about a topic or a channel besides its messages.

    Attributes:
        options: the effective options.
        paused: whether it is paused.
        stored: whether a topic's options are on disk, as named for it.
        uuid: what tells a topic from another one of its name; None for a channel, and if nothing of it exists yet.
        made: what tells a channel from another one of its name; None for a topic, and if that is not known.
    """

    options: StoreOptions | ChannelOptions
    paused: bool
    stored: bool = False
    uuid: str | None = None
    made: str | None = None

    def facts(self) -> dict[str, Any]:
        """Encode it for JSON."""
        options = self.options
        encoded = topic_options(options) if isinstance(options, StoreOptions) else channel_options(options)
        facts = {"options": encoded, "paused": self.paused, "stored": self.stored}
        known = {"uuid": self.uuid, "made": self.made}
        return facts | {name: value for name, value in known.items() if value is not None}


def topic_options(options: StoreOptions) -> dict[str, Any]:
    """Encode a topic's options for JSON. Alarms are left out: they are each process's own."""
    own = {name: getattr(options, name) for name in _OWNERS}
    stored = encode_topic(StoredOptions(named=True, options=options))
    return {**stored, **own, "sync_interval": seconds(options.sync_interval)}


def read_topic_options(content: Mapping[str, Any]) -> StoreOptions:
    """Decode what `topic_options` encoded.

    Raises:
        InvalidOptionError: it was not encoded by `topic_options`.
    """
    try:
        own = {name: content[name] for name in (*_OWNERS, "sync_interval")}
        return replace(decode_topic(content).options, **own)
    except InvalidOptionError:
        raise
    except _WRONG as cause:
        raise InvalidOptionError(f"these are no options of a topic: {cause!r}") from cause


def channel_options(options: ChannelOptions) -> dict[str, Any]:
    """Encode a channel's options for JSON."""
    start: Any = options.start
    if isinstance(start, datetime):
        start = {"ns": time_ns(start)}
    return {**encode_channel(options), "start": start}


def given_channel_options(options: ChannelOptions) -> dict[str, Any]:
    """Encode the options that a user gives for a channel.

    Raises:
        InvalidOptionError: it has more tags than fit into a packet.
    """
    size = len(json.dumps(options.tags, separators=(",", ":")))
    if size > _TAGS:
        raise InvalidOptionError(
            f"tags take {size} bytes as JSON, and in a shared store up to {_TAGS}: give messages fewer or shorter tags"
        )
    return channel_options(options)


def read_channel_options(content: Mapping[str, Any]) -> ChannelOptions:
    """Decode what `channel_options` encoded.

    Raises:
        InvalidOptionError: it was not encoded by `channel_options`.
    """
    try:
        start: Start = content.get("start")
        if isinstance(start, dict):
            start = moment(start["ns"])
        return replace(decode_channel(content), start=start)
    except InvalidOptionError:
        raise
    except _WRONG as cause:
        raise InvalidOptionError(f"these are no options of a channel: {cause!r}") from cause


def moment(ns: int) -> datetime:
    """Return the time `ns` nanoseconds after 1970, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


def moment_ns(position: object) -> object:
    """Encode a position in a log for JSON."""
    return {"ns": time_ns(position)} if isinstance(position, datetime) else position
