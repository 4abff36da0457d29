"""`aiodq pause` and `resume`: stopping the deliveries of a topic or a channel, and letting them go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE
from aiodq.cli.loop import run_command
from aiodq.cli.names import known_channel, known_topic
from aiodq.cli.opening import open_store
from aiodq.cli.show import print_json, stdout

if TYPE_CHECKING:
    from aiodq.storage.offline.store_reader import TopicReader

__all__ = ["pause", "resume"]


def pause(store: Place, topic: str, /, *, channel: str | None = None, json: bool = False) -> int:
    """Deliver nothing from a topic or from one of its channels, until `resume`; puts go on.

    Messages in flight can still be acked. It stays paused when programs and the machine restart.

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: pause only this channel.
        json: print what is paused now as JSON.
    """
    return _change(store, topic, channel, paused=True, json=json)


def resume(store: Place, topic: str, /, *, channel: str | None = None, json: bool = False) -> int:
    """Deliver again from a topic, or from one of its channels.

    Channels that were paused themselves stay paused when their topic is resumed, and the other way round.

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: resume only this channel.
        json: print what is still paused as JSON.
    """
    return _change(store, topic, channel, paused=False, json=json)


def _change(store: str, topic: str, channel: str | None, *, paused: bool, json: bool) -> int:
    reader = known_topic(store, topic)
    if channel is not None:
        known_channel(store, reader, channel)

    async def go() -> int:
        async with open_store(store) as opened:
            found = opened.topic(topic)
            whole = found if channel is None else found.channel(channel)
            await (whole.pause() if paused else whole.resume())
        stopped = _paused(reader, channel)
        if json:
            print_json({"topic": topic, "channel": channel, "paused": stopped}, indent=None)
            return DONE
        place = topic if channel is None else f"channel {channel} of {topic}"
        stdout().print(f"{'paused' if paused else 'resumed'} {place}{'' if paused else _still(stopped, channel)}")
        return DONE

    return run_command(go())


def _paused(topic: TopicReader, channel: str | None) -> list[str]:
    """Return the channels that deliver nothing; only this one, if one is given."""
    found = topic.stats().channels
    return [name for name, shown in found.items() if shown.paused and channel in {None, name}]


def _still(stopped: list[str], channel: str | None) -> str:
    """Return what else has to be resumed before messages are delivered, to go on a sentence with."""
    if not stopped:
        return ""
    if channel is not None:
        return "; its topic is still paused"
    return f"; still paused: {', '.join(stopped)}"
