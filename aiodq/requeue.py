"""Puts dead letters back to the channels that gave them up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.consuming.handlers import chooses
from aiodq.engine.batch.draft import Draft
from aiodq.engine.channel.dead_lettering.dead_letters import HEADERS
from aiodq.engine.channel.lease.in_flight import message_of
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.errors import InvalidOptionError
from aiodq.message import Message
from aiodq.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.channel import Channel
    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.topic import Topic

__all__ = ["AT_ONCE", "letters_channel", "requeue_letters", "requeue_these", "waiting_letters"]

AT_ONCE: Final = 100
"""The most letters put back in one transaction."""

_IN_A_TURN: Final = 30
"""Letters that are taken, or put, in one turn of the loop: a millisecond's work."""

_TOPIC, _CHANNEL = HEADERS[:2]
_DEFAULT: Final = "default"


async def letters_channel(topic: Topic) -> Channel | None:
    """Return the channel whose letters are put back: the topic's only channel, or `default`.

    A topic without channels gets the channel `default` if it holds a letter; otherwise this returns None.

    Raises:
        InvalidOptionError: the topic has several channels, none of which is `default`.
        StorageError: a letter could not be read.
    """
    names = topic.channels()
    if len(names) == 1:
        return topic.channel(names[0])
    if names and _DEFAULT not in names:
        raise InvalidOptionError(
            f"topic {topic.name!r} has the channels {', '.join(sorted(names))} and none called {_DEFAULT!r}: the "
            f"letters of a dead-letter topic are taken from its only channel, or from {_DEFAULT!r}; is it one?"
        )
    if not names:
        async for letter in topic.scan():
            if _CHANNEL in letter.headers:
                break
        else:
            return None
    return topic.channel(_DEFAULT)


async def requeue_letters(
    store_engine: StoreEngine, topic: Topic, where: Callable[[Message], bool] | None, limit: int | None
) -> int:
    """See `Store.requeue_dead`."""
    channel = await letters_channel(topic)
    if channel is None:
        return 0
    await topic.settle_in()
    office = _Office(store_engine, channel)
    moved = 0
    group: list[Message] = []
    async for letter in topic.scan(channel.stats().floor):
        if limit is not None and moved + len(group) >= limit:
            break
        if office.may_return(letter) and (where is None or chooses(where, letter)):
            group.append(letter)
        if len(group) == AT_ONCE:
            moved += await office.send_back(group)
            group = []
    return moved + await office.send_back(group)


async def waiting_letters(
    store_engine: StoreEngine, topic: Topic, first: int, most: int
) -> tuple[list[int], int | None]:
    """Return the offsets of up to `most` letters, from `first` on, that may be put back, and where to look next.

    None in place of the latter: there are no more.
    """
    channel = await letters_channel(topic)
    found: list[int] = []
    if channel is None:
        return found, None
    await topic.settle_in()
    office = _Office(store_engine, channel)
    async for letter in topic.scan(max(first, channel.stats().floor)):
        if office.may_return(letter):
            found.append(letter.offset)
        if len(found) == most:
            return found, letter.offset + 1
    return found, None


async def requeue_these(store_engine: StoreEngine, topic: Topic, offsets: Iterable[int]) -> int:
    """Put back those of these letters that still may be, in one transaction; return how many."""
    channel = await letters_channel(topic)
    if channel is None:
        return 0
    office = _Office(store_engine, channel)
    await topic.settle_in()
    letters: list[Message] = []
    for offset in offsets:
        letters += [letter async for letter in topic.scan(offset, offset + 1)]
    return await office.send_back([letter for letter in letters if office.may_return(letter)])


class _Office:
    """Puts back the letters of one channel of a dead-letter topic."""

    def __init__(self, store_engine: StoreEngine, channel: Channel) -> None:
        self._store_engine = store_engine
        self._channel_engine = channel._channel_engine  # noqa: SLF001 - letters are taken out of their turn

    def may_return(self, letter: Message) -> bool:
        """Return whether a letter is ready to be delivered here, and the channel that gave it up exists and takes it.

        A channel whose `tags` have changed since would filter the letter out, and it would be lost.
        """
        state, headers = self._channel_engine.state, letter.headers
        topic = self._store_engine.topics.get(headers.get(_TOPIC, ""))
        origin = None if topic is None else topic.channel_engines.get(headers.get(_CHANNEL, ""))
        if origin is None or state is None or not state.is_ready(letter.offset):
            return False
        tags = origin.options.tags
        return tags is None or letter.tag in tags

    async def send_back(self, letters: list[Message]) -> int:
        """Put letters back and settle them, in one transaction; return how many."""
        # INVARIANT: the transaction makes all changes: after a kill, each letter is in one place only.
        held: list[Message] = []
        try:
            for first in range(0, len(letters), _IN_A_TURN):
                some = letters[first : first + _IN_A_TURN]
                held += [taken for letter in some if (taken := self._taken(letter)) is not None]
                await asyncio.sleep(0)
            async with Transaction(self._store_engine) as transaction:
                transaction._ack_taken(held)  # noqa: SLF001 - as below
                for number, letter in enumerate(held, 1):
                    if not number % _IN_A_TURN:
                        await asyncio.sleep(0)
                    kept = {name: text for name, text in letter.headers.items() if name not in HEADERS}
                    channel, origin = letter.headers[_CHANNEL], letter.headers[_TOPIC]
                    draft = Draft(b"", letter.tag, letter.key, kept)
                    transaction._put_for(channel, origin, letter.body, draft)  # noqa: SLF001 - only this may set the header
        except BaseException:
            for letter in held:
                letter._given_back(None)  # noqa: SLF001 - as a block of its own would
            raise
        return len(held)

    def _taken(self, letter: Message) -> Message | None:
        """Take a letter: return it as a message in flight; None if another consumer has taken it."""
        state = self._channel_engine.state
        if state is None or not self.may_return(letter):
            return None
        attempts, delivery = state.pick(letter.offset)
        lease = MessageLease.of_one(
            letter.topic, letter._batch(), 0, number=delivery, attempts=attempts, channel_engine=self._channel_engine,  # noqa: SLF001 - the same message
        )  # fmt: skip
        return message_of(Message, lease, 0, letter.body, self._channel_engine.store_ref())
