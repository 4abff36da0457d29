"""Calls: a client's rare requests to the owner, by name. Each does what the public method of that name does.

A call with a handle concerns the handle's topic or channel, any other the store. The client decides on `once`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.topic_stats import channel_stats
from aiodq.engine.store.channel_management import pause_channel, pause_topic
from aiodq.errors import InvalidOptionError, ProtocolError
from aiodq.names import check_name, check_topic_name, is_ephemeral
from aiodq.options import check_dead_letter
from aiodq.requeue import requeue_these, waiting_letters
from aiodq.shared.encoding.options_json import moment, read_channel_options, read_topic_options
from aiodq.shared.encoding.stats_json import CHANNELS, channel_facts, health_facts, topic_facts
from aiodq.shared.requests.meant import topic_uuid
from aiodq.shared.requests.owner_state.made_changes import is_noted, is_sought, is_superseded
from aiodq.shared.requests.owner_state.visitors import visitors
from aiodq.storage.state.topic.stored_options import differences
from aiodq.topic import Topic
from aiodq.values import check_position
from aiodq.wire.layout import CHANGES
from aiodq.wire.packets import Done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiodq.channel import Channel
    from aiodq.shared.encoding.answers import Json
    from aiodq.shared.requests.serving import Owning

    Arguments = Mapping[str, Json]

__all__ = ["answer", "call_channel", "call_store", "call_topic", "whole", "whole_numbers"]

_PAGE: Final = 500
"""Most names, or deferred messages, in an answer."""


async def answer(asking: Awaitable[Any]) -> Done:
    """Return the answer to a call."""
    return Done(None, {"result": await asking})


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"CALL: {name} is a text, not {value!r:.100}")
    return value


def whole(arguments: Arguments, name: str) -> int:
    """Return an argument that must be an integer.

    Raises:
        ProtocolError: it is something else.
    """
    value = arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"CALL: {name} is a whole number, not {value!r:.100}")
    return value


def whole_numbers(arguments: Arguments, name: str) -> list[int]:
    """Return an argument that must be a list of integers.

    Raises:
        ProtocolError: it is something else.
    """
    value = arguments.get(name)
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise ProtocolError(f"CALL: {name} is a list of whole numbers, not {value!r:.100}")
    return value


def _change(arguments: Arguments) -> int:
    """Return the number of a change; 0 if it has none, as from a client of an earlier aiodq."""
    number = whole(arguments, "change") if "change" in arguments else 0
    if not 0 <= number < CHANGES:
        raise ProtocolError(f"CALL: no change has the number {number!r:.100}")
    return number


def _facts(arguments: Arguments, name: str) -> Arguments:
    value = arguments.get(name)
    if not isinstance(value, dict):
        raise ProtocolError(f"CALL: {name} is an object, not {value!r:.100}")
    return value


# --- the store


async def call_store(owner: Owning, name: str, arguments: Arguments) -> Json:
    """Run a call that concerns the store; return its result.

    Raises:
        InvalidOptionError: there is no such call.
        AiodqError: the request cannot be done.
    """
    does = _STORE.get(name)
    if does is None:
        raise InvalidOptionError(f"this owner knows no call {name!r}")
    return await does(owner, arguments)


async def _given(owner: Owning, arguments: Arguments) -> None:
    theirs = read_topic_options(_facts(arguments, "options"))
    for field, (here, there) in differences(owner.engine.options, theirs).items():
        raise InvalidOptionError(
            f"the store is owned by process {owner.pid} with {field}={here!r}, and was opened here with "
            f"{field}={there!r}: name the same everywhere"
        )


async def _look(owner: Owning, arguments: Arguments) -> dict[str, Json]:
    after, stamps = str(arguments.get("after", "")), arguments.get("stamps")
    if stamps and not after:
        await owner.overview.renew()
    names = [name for name in owner.store.topics() if name > after]
    engine = owner.engine
    return {
        "topics": names[:_PAGE],
        "stamps": owner.overview.stamps(names[:_PAGE]) if stamps else None,
        "more": len(names) > _PAGE,
        "failed": None if engine.failure is None else str(engine.failure),
        "transactions": engine.committer.committed,
        "sync_backend": engine.syncs.name,
        # Who asks for stamps, or says that it does not, does so once a second: what he gets may be a moment old.
        "health": health_facts(owner.store.health()) if stamps is None else owner.overview.health(),
    }


async def _stats(owner: Owning, arguments: Arguments) -> dict[str, Json] | None:
    engine, after = owner.engine.topics.get(_text(arguments, "topic")), str(arguments.get("after", ""))
    if engine is None:
        return None
    those = engine.channel_engines
    names = sorted(name for name in those if name > after)
    # A client of an earlier aiodq expects all of them at once, which fails if they are too many.
    page = names[:CHANNELS] if "after" in arguments else names
    facts: dict[str, Json] = {"more": len(names) > len(page)}
    if after:
        return {**facts, "channels": channel_facts(channel_stats(engine, those[name]) for name in page)}
    stats = Topic(owner.engine, engine).stats()
    channels = channel_facts(stats.channels[name] for name in page)
    return {**topic_facts(stats), **facts, "channels": channels, "stamp": owner.overview.stamp(stats)}


async def _delete_topic(owner: Owning, arguments: Arguments) -> None:
    name = _text(arguments, "topic")
    engine = owner.engine.topics.get(name)
    number, meant = _change(arguments), arguments.get("uuid")
    # A client that repeats this names the topic that it means: it may be gone, and there may be another one by now.
    is_other = not (meant is None or engine is None or engine.unusable is not None or topic_uuid(engine) == meant)

    async def delete() -> None:
        await owner.store.delete_topic(name)
        # INVARIANT: by the time of the answer, each client was told, and a name that it uses later is of a new topic.
        await owner.moved(name)

    await owner.changes.make(number, delete, known=is_other or _is_over(owner, arguments, name))


def _is_over(owner: Owning, arguments: Arguments, *names: str) -> bool:
    """Return whether a deletion was first asked of an earlier owner, with which what it means has ended anyway."""
    return any(map(is_ephemeral, names)) and arguments.get("asked", owner.epoch) != owner.epoch


async def _drain(owner: Owning, arguments: Arguments) -> bool:
    timeout = arguments.get("timeout")
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise ProtocolError(f"CALL: timeout is a number, not {timeout!r:.100}")
    return await owner.store.drain(timeout)


async def _backup(owner: Owning, arguments: Arguments) -> tuple[str, int, int, int]:
    made = await owner.store.backup(_text(arguments, "path"))
    return made.path, made.topics, made.messages, made.bytes


async def _letters(owner: Owning, arguments: Arguments) -> dict[str, Json]:
    name = _text(arguments, "topic")
    if name not in owner.store.topics():
        return {"offsets": [], "next": None}
    await owner.reclaimed()
    first, engine = whole(arguments, "from"), owner.engine
    offsets, following = await waiting_letters(engine, owner.store.topic(name), first, _PAGE)
    return {"offsets": offsets, "next": following}


async def _requeue_these(owner: Owning, arguments: Arguments) -> int:
    offsets = whole_numbers(arguments, "offsets")
    await owner.reclaimed()
    topic = owner.store.topic(_text(arguments, "topic"))
    return await requeue_these(owner.engine, topic, offsets)


async def _requeue_dead(owner: Owning, arguments: Arguments) -> int:
    limit = None if arguments.get("limit") is None else whole(arguments, "limit")
    # INVARIANT: a letter that a client holds since an earlier owner is not ready.
    await owner.reclaimed()
    return await owner.store.requeue_dead(_text(arguments, "topic"), limit=limit)


async def _who(owner: Owning, arguments: Arguments) -> dict[str, Json]:
    return await visitors(owner.pid, owner.clients, arguments.get("asking"), owner.own)


_STORE: Final[Mapping[str, Callable[[Owning, Arguments], Awaitable[Json]]]] = {
    "given": _given,
    "store": _look,
    "stats": _stats,
    "delete_topic": _delete_topic,
    "drain": _drain,
    "backup": _backup,
    "letters": _letters,
    "requeue_these": _requeue_these,
    "requeue_dead": _requeue_dead,
    "who": _who,
}


# --- a topic


async def call_topic(owner: Owning, topic: Topic, name: str, arguments: Arguments) -> Json:
    """Run a call that concerns a topic, as `call_store` does."""
    does = _TOPIC.get(name)
    if does is None:
        raise InvalidOptionError(f"this owner knows no call {name!r} for a topic")
    topic._engine.check()  # noqa: SLF001 - a session is a topic's other half
    return await does(owner, topic, arguments)


async def _sync(_owner: Owning, topic: Topic, _arguments: Arguments) -> None:
    await topic.sync()


async def _purge(_owner: Owning, topic: Topic, _arguments: Arguments) -> int:
    return await topic.purge()


async def _pause_topic(owner: Owning, topic: Topic, arguments: Arguments) -> None:
    engine, number, paused = topic._engine, _change(arguments), bool(arguments.get("paused"))  # noqa: SLF001 - as above

    async def pause() -> None:
        await pause_topic(engine, paused=paused, change=number)

    await owner.changes.make(number, pause, known=is_noted(engine, number))


async def _configure_topic(owner: Owning, topic: Topic, arguments: Arguments) -> None:
    options, number = read_topic_options(_facts(arguments, "options")), _change(arguments)
    engine = topic._engine  # noqa: SLF001 - as above

    async def configure() -> None:
        await engine.effective_options.configure(options, number)

    await owner.changes.make(number, configure, known=is_superseded(engine, number))


async def _name_topic(owner: Owning, topic: Topic, arguments: Arguments) -> None:
    check_topic_name(topic.name, (topic.name,))
    owner.engine.engine(topic.name, read_topic_options(_facts(arguments, "options")))


async def _delete_channel(owner: Owning, topic: Topic, arguments: Arguments) -> None:
    name, number = check_name(_text(arguments, "channel"), "channel"), _change(arguments)
    engine = topic._engine  # noqa: SLF001 - as above

    async def delete() -> None:
        await owner.engine.deletions.channel(engine, name, number)
        await owner.moved(f"{topic.name}/{name}")  # as above

    over = is_noted(engine, number) or _is_over(owner, arguments, topic.name, name)
    await owner.changes.make(number, delete, known=over)


async def _offset_at(_owner: Owning, topic: Topic, arguments: Arguments) -> int:
    return await topic.offset_at(moment(whole(arguments, "ns")))


async def _view(_owner: Owning, topic: Topic, _arguments: Arguments) -> tuple[int, int]:
    topic._engine.catch_up()  # noqa: SLF001 - as above
    return topic.begin_offset, topic._engine.visible  # noqa: SLF001 - as above


_TOPIC: Final[Mapping[str, Callable[[Owning, Topic, Arguments], Awaitable[Json]]]] = {
    "sync": _sync,
    "purge": _purge,
    "pause": _pause_topic,
    "configure": _configure_topic,
    "name": _name_topic,
    "delete_channel": _delete_channel,
    "offset_at": _offset_at,
    "view": _view,
}


# --- a channel


async def call_channel(owner: Owning, topic: Topic, channel: Channel, name: str, arguments: Arguments) -> Json:
    """Run a call that concerns a channel, as `call_store` does."""
    does = _CHANNEL.get(name)
    if does is None:
        raise InvalidOptionError(f"this owner knows no call {name!r} for a channel")
    channel.check()
    return await does(owner, topic, channel, arguments)


async def _seek(owner: Owning, _topic: Topic, channel: Channel, arguments: Arguments) -> None:
    sent: Json = arguments.get("position")  # of any type that a client sends: this refuses invalid ones
    position = moment(whole(sent, "ns")) if isinstance(sent, dict) else sent
    number, channel_engine = _change(arguments), channel._channel_engine  # noqa: SLF001 - as above
    check_position("position", position)

    async def seek() -> None:
        await channel._seek(position, number)  # noqa: SLF001 - as above

    await owner.changes.make(number, seek, known=is_sought(channel_engine, number))


async def _pause_channel(owner: Owning, _topic: Topic, channel: Channel, arguments: Arguments) -> None:
    engine, channel_engine = channel._engine, channel._channel_engine  # noqa: SLF001 - as above
    number, paused = _change(arguments), bool(arguments.get("paused"))

    async def pause() -> None:
        await pause_channel(engine, channel_engine, paused=paused, change=number)

    await owner.changes.make(number, pause, known=is_noted(engine, number))


async def _configure(owner: Owning, topic: Topic, channel: Channel, arguments: Arguments) -> None:
    options, number = read_channel_options(_facts(arguments, "options")), _change(arguments)
    check_dead_letter(topic.name, options)
    engine, channel_engine = topic._engine, channel._channel_engine  # noqa: SLF001 - as above

    async def configure() -> None:
        await engine.effective_options.configure_channel(channel_engine, options, number)

    await owner.changes.make(number, configure, known=is_noted(engine, number))


async def _purge_channel(_owner: Owning, _topic: Topic, channel: Channel, _arguments: Arguments) -> int:
    return await channel.purge()


async def _name(_owner: Owning, topic: Topic, channel: Channel, arguments: Arguments) -> None:
    topic.channel(channel.name, read_channel_options(_facts(arguments, "options")))


async def _cancel(_owner: Owning, _topic: Topic, channel: Channel, arguments: Arguments) -> None:
    await channel.cancel(whole(arguments, "offset"))


async def _join(_owner: Owning, _topic: Topic, channel: Channel, _arguments: Arguments) -> None:
    await channel.join()


async def _peek(_owner: Owning, _topic: Topic, channel: Channel, _arguments: Arguments) -> int | None:
    message = await channel.peek()
    return None if message is None else message.offset


async def _deferred(_owner: Owning, topic: Topic, channel: Channel, arguments: Arguments) -> Json:
    engine = channel._channel_engine  # noqa: SLF001 - as above
    if engine.state is None:
        await topic.settle_in()
    state = engine.state
    if state is None:
        raise QueueShutDown("the channel is not there")
    wall, now = engine.times()
    # By place, as earlier ones may no longer be deferred. A client of an earlier aiodq sends their number.
    after = whole(arguments, "after") if "after" in arguments else -1
    first = whole(arguments, "from") if after < 0 else 0
    page = list(islice(state.deferred.in_order(after), first, first + _PAGE))
    rows = [(offset, wall + due - now, state.attempts(offset)) for offset, due in page]
    if "after" not in arguments:
        return rows
    return {"rows": rows, "last": state.deferred.place(*page[-1]) if page else after}


_CHANNEL: Final[Mapping[str, Callable[[Owning, Topic, Channel, Arguments], Awaitable[Json]]]] = {
    "seek": _seek,
    "purge": _purge_channel,
    "pause": _pause_channel,
    "configure": _configure,
    "name": _name,
    "cancel": _cancel,
    "join": _join,
    "peek": _peek,
    "deferred": _deferred,
}
