"""`aiodq channels`, `peek`, `seek` and `requeue-dead`: looking at channels, and moving them."""

from __future__ import annotations

import json as json_text
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE, CommandError
from aiodq.cli.loop import run_command
from aiodq.cli.names import known_channel, known_topic
from aiodq.cli.opening import check_kept, figures_of, open_store
from aiodq.cli.show import body_form, counted, message_fields, print_json, stdout
from aiodq.options import ChannelOptions
from aiodq.requeue import letters_channel

if TYPE_CHECKING:
    from aiodq.options import Position

__all__ = ["channels", "peek", "requeue_dead", "seek"]


def channels(
    store: Place,
    topic: str,
    /,
    *,
    create: str | None = None,
    start: str | None = None,
    delete: str | None = None,
    json: bool = False,
) -> int:
    """Show a topic's channels, create one, or delete one. To show them, the store may be open in another process.

    Args:
        store: the store's directory.
        topic: the topic's name.
        create: the name of a channel to create; an existing one is left as it is.
        start: where it begins: earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00. By default, a
            topic's first channel begins at its first message, a later one at its end. An offset that the topic does not
            have means the nearest end.
        delete: the name of a channel to delete for good; messages that were kept only for it may be deleted.
        json: print them as JSON.
    """
    if create is not None and delete is not None:
        raise CommandError("--create and --delete exclude each other")
    if start is not None and create is None:
        raise CommandError("--start says where a channel begins that --create makes")
    reader = known_topic(store, topic)
    if create is not None:
        return run_command(_create(store, topic, create, None if start is None else _position(start), json=json))
    if delete is not None:
        return run_command(_delete(store, topic, known_channel(store, reader, delete), json=json))
    found = reader.stats().channels
    if json:
        print_json(found)
        return DONE
    for name, channel in found.items():
        paused = ", paused" if channel.paused else ""
        stdout().print(f"{name}: {counted(channel.depth, 'message')} to come, from offset {channel.floor} on{paused}")
    return DONE


async def _create(store: str, topic: str, name: str, start: Position | None, *, json: bool) -> int:
    async with open_store(store) as opened:
        check_kept(opened, name, "channel")
        found = opened.topic(topic)
        new = name not in found.channels()
        # Where it begins is not a stored option: without --start, no options are named.
        channel = found.channel(name, None if start is None or not new else ChannelOptions(start=start))
        await found.settle_in()
        figures = await figures_of(opened, channel)
    if json:
        fields = {"topic": topic, "channel": name, "created": new, "depth": figures.depth, "floor": figures.floor}
        print_json(fields, indent=None)
    else:
        to_come = f"{counted(figures.depth, 'message')} to come, from offset {figures.floor} on"
        asked = _elsewhere(start, figures.floor) if new else ""
        stdout().print(f"{name}: {'' if new else 'was there; '}{to_come}{asked}")
    return DONE


def _elsewhere(start: Position | None, floor: int) -> str:
    """Return why a channel does not begin at the offset that was asked for, to go on a sentence with."""
    if not isinstance(start, int) or start == floor:
        return ""
    return f": the topic {'ends there' if start > floor else 'begins there by now'}, not at {start}"


async def _delete(store: str, topic: str, name: str, *, json: bool) -> int:
    async with open_store(store) as opened:
        found = opened.topic(topic)
        depth = (await figures_of(opened, found.channel(name))).depth
        await found.delete_channel(name)
    if json:
        print_json({"topic": topic, "channel": name, "deleted": True, "depth": depth}, indent=None)
    else:
        stdout().print(f"{name}: deleted, with {counted(depth, 'message')} to come")
    return DONE


def peek(
    store: Place,
    topic: str,
    /,
    *,
    channel: str = "default",
    number: Annotated[int, Parameter(name="-n", converter=whole, validator=validators.Number(gte=0))] = 1,
    json: bool = False,
) -> int:
    """Write a channel's next messages to standard output, without taking them.

    Messages in flight and deferred ones are included. The store may be open in another process.

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: the channel's name.
        number: the most messages to write.
        json: write each message as a line of JSON, with its offset, time, tag, key and headers.
    """
    reader = known_topic(store, topic)
    left, form = number, body_form()
    for message in reader.waiting(known_channel(store, reader, channel)):
        if left <= 0:
            break
        line = json_text.dumps(message_fields(message)).encode() + b"\n" if json else form(message.body)
        sys.stdout.buffer.write(line)
        left -= 1
    return DONE


def seek(store: Place, topic: str, channel: str, position: str, /, *, json: bool = False) -> int:
    """Move a channel to another position: earlier messages count as acked, later ones are delivered (again).

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: the channel's name.
        position: earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00.
        json: print the new position as JSON.
    """
    target = _position(position)
    known_channel(store, known_topic(store, topic), channel)

    async def go() -> int:
        async with open_store(store) as opened:
            found = opened.topic(topic).channel(channel)
            await found.seek(target)
            figures = await figures_of(opened, found)
        if json:
            print_json(
                {"topic": topic, "channel": channel, "depth": figures.depth, "floor": figures.floor}, indent=None
            )
        else:
            stdout().print(f"{channel}: {counted(figures.depth, 'message')} to come, from offset {figures.floor} on")
        return DONE

    return run_command(go())


def _position(text: str) -> Position:
    if text in {"earliest", "latest"}:
        return "earliest" if text == "earliest" else "latest"
    try:
        if text.isdecimal():
            return int(text)  # which refuses thousands of digits
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text!r:.80} is neither earliest, latest, an offset, nor a time") from None
    if moment.tzinfo is None:
        raise CommandError(f"{text!r} needs a time zone, for example {moment.isoformat()}+00:00")
    return moment


def requeue_dead(
    store: Place,
    topic: str,
    /,
    *,
    number: Annotated[int | None, Parameter(name="-n", converter=whole, validator=validators.Number(gte=0))] = None,
    json: bool = False,
) -> int:
    """Put dead letters back for the channels that gave them up, and ack them in the dead-letter topic.

    Other channels do not get them again. After an interruption, each letter is in one of the two places. Letters stay
    if their headers do not name a channel, or if that channel no longer exists.

    Args:
        store: the store's directory.
        topic: the dead-letter topic's name.
        number: the most letters to put back.
        json: print how many were put back, and how many stayed, as JSON.
    """
    known_topic(store, topic)

    async def go() -> int:
        async with open_store(store) as opened:
            moved = await opened.requeue_dead(topic, limit=number)
            letters = None if moved == number else await letters_channel(opened.topic(topic))
            stayed = 0 if letters is None else (await figures_of(opened, letters)).ready
        if json:
            print_json({"topic": topic, "requeued": moved, "stayed": stayed}, indent=None)
            return DONE
        stay = f"; {stayed:,} without a channel to go to {'stays' if stayed == 1 else 'stay'}"
        stdout().print(f"put back {counted(moved, 'message')}" + stay * (stayed > 0))
        return DONE

    return run_command(go())
