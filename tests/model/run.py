"""One random run: the store, the model beside it, and what compares the two."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiodq
from tests.model.model import Channel, Entry, Hold, Letter, Sent, Topic, channels_of
from tests.model.threads import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from aiodq.storage.bulk.commits import CommitKey
    from aiodq.storage.read.stored_message import StoredMessage
    from tests.model.world import World

__all__ = ["CANCELLED", "PATIENCE", "Run", "again_if_lost"]

PATIENCE: Final = 30.0
"""Seconds after which something that waits is taken for hanging. Never reached by what works."""

_QUEUES: Final = 0.3
"""How often a topic is used through a queue."""

CANCELLED: Final = object()
"""What a call gives whose task was cancelled."""


@dataclass
class Run:
    """What the steps share.

    Attributes:
        topics: the model, by name.
        done: what was done, in words.
        bodies: how many bodies were made; each is another one.
        loaded: the keys of bulk loads that may be repeated.
    """

    world: World
    rng: Random
    topics: dict[str, Topic]
    done: list[str]
    bodies: int = 0
    cancels: float = 0.1
    loaded: list[CommitKey] = field(default_factory=list)

    @property
    def now(self) -> float:
        return self.world.clock.monotonic()

    def say(self, *words: object) -> None:
        """Note what is done, for whoever has to understand a failure."""
        self.done.append(" ".join(map(str, words)))

    # --- choosing

    def body(self) -> bytes:
        """Return a body that no other message has."""
        self.bodies += 1
        return b"%d:" % self.bodies + b"x" * self.rng.choice((0, 3, 60, 400))

    def some_topic(self) -> Topic | None:
        return self.rng.choice([*self.topics.values()]) if self.topics else None

    def some_channel(self) -> Channel | None:
        channels = [*channels_of(self.topics.values())]
        return self.rng.choice(channels) if channels else None

    def some_held(self, most: int = 1) -> tuple[Channel, list[Hold]] | None:
        """Return a channel with messages in hand, and some of these, all of one member."""
        # Where another process or thread has the store, it is known only later what retention has taken away.
        channels = [
            channel
            for channel in channels_of(self.topics.values())
            if channel.held() and (self.world.still or not channel.topic.lossy)
        ]
        if not channels:
            return None
        channel = self.rng.choice(channels)
        if channel.topic.lossy:
            channel.topic.begins(self.topic(channel.topic).begin_offset)
        holds = [*channel.held().values()]
        if not holds:
            return None
        member = self.rng.choice(holds).member
        mine = [hold for hold in holds if hold.member is member]
        return channel, self.rng.sample(mine, min(len(mine), self.rng.randint(1, most)))

    # --- handles

    def topic(self, topic: Topic, member: aiodq.Store | None = None) -> aiodq.Topic:
        return (member or self.world.any()).topic(topic.name)

    def channel(self, channel: Channel, member: aiodq.Store | None = None, *, queue: bool = True) -> aiodq.Channel:
        """Return a handle of a channel; with `queue` perhaps a queue, of which it is the channel."""
        member = member or self.world.any()
        if queue and channel.name == "default" and self.rng.random() < _QUEUES:
            return member.queue(channel.topic.name)
        return self.topic(channel.topic, member).channel(channel.name)

    # --- calling

    async def attempt(self, call: Callable[[], Awaitable[Any]], *, cancels: float | None = None) -> Any:
        """Return what a call gives, or `CANCELLED` if its task was cancelled amid it."""
        if self.rng.random() >= (self.cancels if cancels is None else cancels):
            async with asyncio.timeout(PATIENCE):
                return await call()
        if self.world.kind == "threads":
            return await self._attempt_shortly(call)

        async def run() -> Any:
            return await call()

        task = asyncio.ensure_future(run())
        for _ in range(self.rng.choice((1, 1, 2, 3, 5, 8, 20))):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.done(), "hangs when cancelled"
        if task.cancelled():
            self.done[-1] += " (cancelled)"
            return CANCELLED
        return task.result()

    async def _attempt_shortly(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what a call gives, or `CANCELLED` if it is a put that has timed out."""
        with within(self.rng.choice((0.0, 0.0001, 0.001, 0.01))):
            try:
                return await call()
            except TimeoutError:
                self.done[-1] += " (timed out)"
                return CANCELLED

    async def until(self, condition: Callable[[], Awaitable[object]]) -> None:
        """Wait until something holds that need not hold at once; raise its own complaint if it never does."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    with suppress(AssertionError):
                        await condition()
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            await condition()

    # --- what was handed out

    async def took(self, channel: Channel, messages: Sequence[aiodq.Message], member: aiodq.Store) -> None:
        """Check messages that were just handed out, and note in whose hand they are."""
        timeout, settled = channel.options.visibility_timeout, channel.options.auto_ack
        if not self.world.exact and timeout is not None and messages and not settled:
            # Read ahead for this process, they may have been on their way for some time.
            for message in messages:
                with suppress(aiodq.NotInFlightError):
                    await message.touch()
            await self.channel(channel, member).refresh()
        begin = self.topic(channel.topic, member).begin_offset
        for message in messages:
            self.check_taken(channel, message, begin)
            entry = channel.entries[message.offset]
            if settled:
                assert message.settled, f"{channel} {message.offset} is not acked"
                channel.settle(message.offset)
                continue
            if not self.world.exact and not message.held:
                entry.high, entry.moved = message.attempts, True
                continue
            deadline = self.now + float(timeout) if isinstance(timeout, float) else float("inf")
            entry.unsure = False
            entry.held = Hold(message, member, deadline)
            held = [offset for offset in channel.held() if offset >= begin]
            # What a process has read ahead, it may hand out even if fewer may be in flight by now.
            assert not self.world.exact or len(held) <= channel.options.max_in_flight, f"{channel}: {held} in flight"

    def check_taken(self, channel: Channel, message: aiodq.Message, begin: int) -> None:
        offset, what = message.offset, f"{channel} {message.offset}"
        entry, sent = channel.entries.get(offset), channel.topic.log.get(offset)
        assert sent is not None, f"{what} was never put"
        assert entry is not None, f"{what} was settled before"
        assert entry.held is None, f"{what} is in somebody's hand"
        self.check_content(sent, message)
        assert channel.wants(sent), f"{what} is not for this channel"
        assert sent.expiry > self.now, f"{what} has expired"
        assert entry.due <= self.now, f"{what} is not due before {entry.due}"
        least, most = entry.low + 1, entry.high + 1
        assert least <= message.attempts <= most, f"{what} has attempts {message.attempts}, not {least} to {most}"
        if self.world.exact:
            assert not channel.is_paused(), f"{what} was handed out by a paused channel"
            self._check_order(channel, offset, begin)

    def _check_order(self, channel: Channel, offset: int, begin: int) -> None:
        earlier = [one for one in channel.ready(self.now) if begin <= one < offset]
        assert not earlier, f"{channel} handed out {offset} before {earlier}"
        for one, entry in [*channel.entries.items()]:
            if one < offset and entry.unsure and entry.held is None and entry.late <= self.now:
                channel.settle(one)  # if it were still there, it would have come first

    @staticmethod
    def check_content(sent: Sent, message: StoredMessage) -> None:
        """Check that a message is as it was put."""
        assert message.body == sent.body, f"{message!r} is not {sent.body!r}"
        assert message.tag == sent.tag, f"{message!r} has another tag"
        if sent.letter is not None:
            assert letter_of(message) == sent.letter, f"{message!r} is another letter"

    # --- what is given up, or ends

    def give_up(self, channel: Channel, offset: int, *, sure: bool = True) -> None:
        """Note that a message is settled for good, and comes to the dead letters if there are any."""
        sent, target = channel.sent(offset), channel.options.dead_letter
        entry = channel.entries[offset]
        # What a lossy topic drops first is no dead letter.
        sure = sure and not entry.unsure and (entry.held is not None or not channel.topic.lossy)
        entry.held = None
        if target is not None:
            letter = Letter(channel.topic.name, channel.name, offset)
            dead = self.topics.setdefault(target, Topic(target, self.world.options, not self.world.exact))
            dead.letters[letter] = Sent(sent.body, sent.tag, letter=letter), sure
        if sure:
            channel.settle(offset)
        else:
            channel.entries[offset].unsure = True

    def failed(self, channel: Channel, offset: int, attempts: int) -> None:
        """Note that a message was requeued without a delay, after so many deliveries that count."""
        backoff = channel.options.backoff
        due = 0.0 if backoff is None else self.now + backoff.seconds(max(attempts, 1), 0.5)
        self.given_back(channel, offset, attempts, due)

    def given_back(self, channel: Channel, offset: int, attempts: int, due: float = 0.0) -> None:
        """Note that a message was requeued, or given up if that was its last attempt."""
        channel.requeue(offset, attempts, due)
        self.look_at(channel, offset)

    def look_at(self, channel: Channel, offset: int) -> None:
        """Note what becomes of a message in nobody's hand: it may have expired, or have had all its attempts."""
        entry, most = channel.entries[offset], channel.options.max_attempts
        if entry.held is not None or not channel.wants(channel.sent(offset)):
            return
        if channel.sent(offset).expiry <= self.now or (most is not None and entry.low >= most):
            self.give_up(channel, offset)
        elif most is not None and entry.high >= most:
            self.give_up(channel, offset, sure=False)

    def time_passed(self, seconds: float) -> None:
        """Note what ends by that."""
        for channel in channels_of(self.topics.values()):
            timeout = channel.options.visibility_timeout
            for offset, entry in [*channel.entries.items()]:
                if entry.held is not None and entry.held.deadline <= self.now:
                    attempts = entry.held.message.attempts
                    channel.take_away(offset)
                    channel.requeue(offset, attempts)
                elif entry.held is None and not self.world.exact and timeout is not None:
                    entry.high += 1  # read ahead for a process, it may have timed out there
                self.look_at(channel, offset)
        del seconds

    # --- what can be learned

    async def learn(self, topic: Topic) -> None:
        """Find out what came to a log that was not known to come, and wait for what must come."""
        member = self.world.any()
        await self.until(lambda: self._learn(topic, member))
        for group in topic.perhaps:
            there = [one for one in group if one in topic.log.values()]
            assert there in ([], group), f"{topic.name} has {there} of {group}"
        topic.perhaps.clear()

    async def _learn(self, topic: Topic, member: aiodq.Store) -> None:
        await self._catch_up(topic, member)
        missing = [letter for letter, (_, sure) in topic.letters.items() if sure]
        assert not missing, f"{topic.name} lacks the letters {missing}"
        assert not topic.returning, f"{topic.name} lacks {topic.returning}"

    async def _catch_up(self, topic: Topic, member: aiodq.Store, stop: int | None = None) -> None:
        async for message in self.topic(topic, member).scan(topic.end, stop):
            topic.append(message.offset, self._recognised(topic, message))

    async def append(self, topic: Topic, first: int, group: Sequence[Sent]) -> None:
        """Note that these messages came to a log; dead letters may have come before them."""
        if first > topic.end and topic.letters:
            await self._catch_up(topic, self.world.any(), first)
        for number, sent in enumerate(group):
            topic.append(first + number, sent)

    def _recognised(self, topic: Topic, message: aiodq.Message) -> Sent:
        letter = letter_of(message)
        if letter is not None:
            assert letter in topic.letters, f"{topic.name} got {letter}, which nobody gave up"
            sent, sure = topic.letters[letter]
            if sure:
                del topic.letters[letter]  # one that need not come may come again, after a seek
            channel = self.topics[letter.topic].channels.get(letter.channel) if letter.topic in self.topics else None
            if channel is not None and letter.offset in channel.entries:
                entry = channel.entries[letter.offset]
                if entry.back:
                    entry.unsure, entry.back = True, False
                else:
                    channel.settle(letter.offset)
        else:
            candidates = [*topic.returning, *topic.loaded, *(one for group in topic.perhaps for one in group)]
            sent = next((one for one in candidates if one.body == message.body), Sent(b""))
            assert sent.body, f"{topic.name} got {message!r}, which nobody put"
            for coming in (topic.returning, topic.loaded):
                if sent in coming:
                    coming.remove(sent)
        self.check_content(sent, message)
        return sent

    async def await_letters(self) -> None:
        """Wait until what was given up is a dead letter."""
        for topic in [*self.topics.values()]:
            if topic.letters:
                await self.learn(topic)

    # --- at rest

    async def settle_in(self) -> None:
        """Wait until nothing is under way: what was accepted is in the logs, and what was settled is known to all."""
        for topic in [*self.topics.values()]:
            for member in self.world.members:
                await self.topic(topic, member).sync()
        for topic in [*self.topics.values()]:
            await self.learn(topic)

    async def all_told(self) -> None:
        """Have all processes read what they were sent, as they are told of a deletion before it is answered."""
        for member in self.world.members:
            await member.requeue_dead("none", where=lambda _: False)

    async def check(self) -> None:
        """Compare all that can be seen with the model."""
        await self.settle_in()
        if self.world.exact:
            found = set(self.world.any().topics())
            assert found <= set(self.topics), f"there are {found}, not only {set(self.topics)}"
        for topic in self.topics.values():
            member = self.world.any()
            await self.until(lambda topic=topic, member=member: self._check_topic(topic, member))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults

    async def _check_topic(self, topic: Topic, member: aiodq.Store) -> None:
        handle = self.topic(topic, member)
        await self._learn(topic, member)
        for channel in topic.channels.values():
            await self.channel(channel, member).refresh()
        assert handle.channels() == sorted(topic.channels), f"{topic.name} has {handle.channels()}"
        topic.begins(handle.begin_offset)
        assert handle.end_offset == topic.end or not topic.log, (
            f"{topic.name} ends at {handle.end_offset}, not {topic.end}"
        )
        await self._check_log(topic, handle)
        for channel in topic.channels.values():
            self._check_counts(channel, self.channel(channel, member))

    async def _check_log(self, topic: Topic, handle: aiodq.Topic) -> None:
        found = [message async for message in handle.scan(reverse=self.rng.random() < 0.3)]
        offsets = sorted(message.offset for message in found)
        assert len(set(offsets)) == len(offsets), f"{topic.name} has a message twice"
        topic.begins(handle.begin_offset)
        missing = topic.needed() - set(offsets)
        assert not missing, f"{topic.name} lacks {sorted(missing)}"
        for message in found:
            self.check_content(topic.log[message.offset], message)

    def _check_counts(self, channel: Channel, handle: aiodq.Channel) -> None:
        low, high = channel.depths()
        ready, in_flight, deferred, depth = handle.qsize(), handle.in_flight(), handle.deferred(), handle.depth
        numbers = f"{channel}: {ready} ready, {in_flight} in flight, {deferred} deferred; {low} to {high} expected"
        assert min(ready, in_flight, deferred) >= 0, numbers
        assert depth == ready + in_flight + deferred, numbers
        assert low <= depth <= high, numbers
        assert in_flight >= len(channel.held()), numbers
        if self.world.exact:
            assert in_flight == len(channel.held()), numbers
            assert deferred >= len(channel.deferred(self.now)), numbers
            stats = handle.stats()
            assert (stats.ready, stats.in_flight, stats.deferred, stats.depth) == (ready, in_flight, deferred, depth)
            assert handle.paused == channel.is_paused()


async def again_if_lost(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call what is not repeated by itself when the connection is cut, until its outcome is known.

    Returns:
        What it gave; None if an earlier call may have done it.
    """
    unsure = False
    while True:
        try:
            found = await call()
        except aiodq.OwnerLostError:
            unsure = True
        else:
            return None if unsure else found


def letter_of(message: StoredMessage) -> Letter | None:
    """Return where a dead letter comes from; None if it is none."""
    headers = message.headers
    if "aiodq-offset" not in headers:
        return None
    return Letter(headers["aiodq-topic"], headers["aiodq-channel"], int(headers["aiodq-offset"]))


def entry_of(channel: Channel, message: aiodq.Message) -> Entry | None:
    """Return what is known of a message in hand; None if it was taken away."""
    entry = channel.entries.get(message.offset)
    return entry if entry is not None and entry.held is not None and entry.held.message is message else None
