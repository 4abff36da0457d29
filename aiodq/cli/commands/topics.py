"""`aiodq purge` and `delete-topic`: dropping what a topic holds."""

from __future__ import annotations

import os
import sys

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, MISUSE, CommandError, complain
from aiodq.cli.loop import run_command
from aiodq.cli.names import known_channel, known_topic
from aiodq.cli.opening import open_store
from aiodq.cli.show import counted, print_json, stdout
from aiodq.storage.io.quarantine import is_quarantined

__all__ = ["delete_topic", "purge"]


def purge(store: Place, topic: str, /, *, channel: str | None = None, json: bool = False) -> int:
    """Drop every message of a topic, or settle all unsettled messages of one channel.

    The topic and its channels stay. All of it is done or nothing, even if the machine crashes meanwhile.

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: settle the messages only in this channel; the topic keeps them for the others.
        json: print the number of messages as JSON.
    """
    reader = known_topic(store, topic)
    if channel is not None:
        known_channel(store, reader, channel)

    async def go() -> int:
        async with open_store(store) as opened:
            found = opened.topic(topic)
            count = await (found if channel is None else found.channel(channel)).purge()
        if json:
            print_json({"topic": topic, "channel": channel, "messages": count}, indent=None)
        else:
            place = topic if channel is None else f"channel {channel} of {topic}"
            stdout().print(f"dropped {counted(count, 'message')} from {place}")
        return DONE

    return run_command(go())


def delete_topic(store: Place, topic: str, /, *, yes: bool = False, json: bool = False) -> int:
    """Delete a topic with its channels, its options and every message in it, for good.

    Quarantined files are deleted, too. On a terminal it asks first; elsewhere it needs --yes.

    Args:
        store: the store's directory.
        topic: the topic's name.
        yes: do not ask.
        json: print what was deleted as JSON.
    """
    summary = known_topic(store, topic).stats()
    parts = [counted(summary.messages, "message"), counted(len(summary.channels), "channel")]
    aside = sum(is_quarantined(name) for *_, names in os.walk(os.path.join(store, topic)) for name in names)
    if aside:
        parts.append(f"{counted(aside, 'quarantined file')}")
    what = f"{', '.join(parts[:-1])} and {parts[-1]}"
    if not yes and not _confirmed(f"Delete topic {topic} of {store} with {what}? [y/N] "):
        complain("nothing was deleted")
        return MISUSE

    async def go() -> int:
        async with open_store(store) as opened:
            await opened.delete_topic(topic)
        if json:
            channels = sorted(summary.channels)
            print_json({"topic": topic, "messages": summary.messages, "channels": channels}, indent=None)
        else:
            stdout().print(f"deleted {topic} with {what}")
        return DONE

    return run_command(go())


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise CommandError("delete-topic deletes for good: pass --yes where it cannot ask")
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
