"""A simulated machine: one disk, one clock, one event loop, and a program whose promises go into the disk's trace."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias
from unittest import mock
from uuid import UUID

import aiodq
from aiodq.engine.loop import sync_backend
from aiodq.engine.topic.no_log import NoLog
from aiodq.format.columns import Columns
from aiodq.storage.bulk.commits import Commit, commit_staged
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, SimulatedLoop
from tests.proof.bodies import body_of, id_of
from tests.proof.ledger import (
    Changed,
    Changing,
    Chosen,
    Closed,
    Closing,
    Committed,
    Committing,
    Counted,
    Created,
    Deferred,
    Deleted,
    Deleting,
    EffectiveOptions,
    Elapsed,
    Found,
    Handing,
    Moved,
    Moving,
    Note,
    Outliving,
    Purged,
    Purging,
    Put,
    Putting,
    Requeued,
    Requeueing,
    Returned,
    Returning,
    Seeking,
    Settled,
    Settlement,
    Sought,
    TopicFound,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from aiodq.storage.bulk.commits import CommitKey
    from aiodq.storage.state.topic.topic_meta import TopicMeta
    from aiodq.testing import FaultPlan, Image, Operation, Ordering

__all__ = ["PATH", "SAFETY", "Program", "World", "found_in", "run_world"]

PATH = "/store"
SAFETY = 3600.0
"""Simulated seconds after which a program counts as hanging."""

Program: TypeAlias = "Callable[[World], Awaitable[None]]"


class World:
    """What a workload is given.

    Attributes:
        fs, clock, random: all that may differ between two runs comes from here.
        life: how often the machine, or the process, was started before.
        killed: the process before was killed, and the power was not cut.
    """

    def __init__(
        self,
        seed: int,
        *,
        image: Image | None = None,
        ordering: Ordering = "posix",
        life: int = 0,
        plan: FaultPlan | None = None,
        killed: Sequence[Operation] | None = None,
    ) -> None:
        """Begin with an image, or with what a process wrote that was killed after so many operations."""
        self.random = Random(seed)
        # Whatever is proven is proven of both, half of the seeds each.
        self.sync_backend: Literal["thread", "aio"] = "aio" if seed % 2 else "thread"
        if killed is None:
            self.fs = SimulatedFileSystem(image, ordering=ordering, record=True, plan=plan)
        else:
            self.fs = SimulatedFileSystem.resume(killed, ordering=ordering, record=True)
        self.clock = FakeClock()
        self.life = life
        self.killed = killed is not None
        self._numbers = 0
        self._written: list[tuple[str, int]] = []

    @property
    def trace(self) -> list[Operation]:
        """Everything so far, with what came before where a process was killed."""
        assert self.fs.trace is not None
        return self.fs.trace

    def note(self, note: Note) -> None:
        """Put a promise into the trace."""
        self.fs.mark(note)

    @asynccontextmanager
    async def store(self, options: aiodq.StoreOptions | None = None) -> AsyncIterator[aiodq.Store]:
        """Open the store; what it shows then is promised to stay."""
        loop = asyncio.get_running_loop()
        executor = SimulatedExecutor(loop, self.fs, self.random.getrandbits(32), longest=6)
        async with aiodq.open(PATH, options, fs=self.fs, clock=self.clock, executor=executor) as store:
            found = await found_in(store)
            damages = {name: topic.damages for name, topic in store.stats().topics.items() if topic.damages}
            self.note(Found(found, damages))
            yield store

    def channel(
        self, topic: aiodq.Topic, name: str, *, earliest: bool = True, dead_letter: str | None = None
    ) -> aiodq.Channel:
        """Name a channel."""
        if name not in topic.channels():
            self.note(Created(topic.name, name, earliest))
        options = aiodq.ChannelOptions(start="earliest" if earliest else "latest", dead_letter=dead_letter)
        return topic.channel(name, options)

    def queue(self, store: aiodq.Store, name: str) -> aiodq.Queue:
        """Name a queue."""
        if name not in store.topics() or "default" not in store.topic(name).channels():
            self.note(Created(name, "default", earliest=True))
        return store.queue(name)

    def message(self, producer: object, size: int | None = None) -> tuple[str, bytes]:
        """Make up a message: its name, and its body. Names of one producer count up."""
        self._numbers += 1
        name = f"{producer}:{self.life}:{self._numbers}"
        return name, body_of(name, self.random.choice((0, 3, 40, 200)) if size is None else size)

    async def put(self, topic: aiodq.Topic | aiodq.Queue, producer: object, size: int | None = None) -> None:
        """Put one message."""
        name, body = self.message(producer, size)
        self.note(Putting(_name(topic), (name,)))
        offset = await topic.put(body, key=_key_of(name))
        self.note(Put(_name(topic), (name,), (offset,)))

    async def write(self, topic: aiodq.Topic | aiodq.Queue, producer: object, size: int | None = None) -> None:
        """Put one message that nobody is promised before `sync`."""
        name, body = self.message(producer, size)
        self.note(Putting(_name(topic), (name,)))
        offset = await topic.put(body, key=_key_of(name))
        self.note(Outliving(_name(topic), Put(_name(topic), (name,), (offset,))))
        self._written.append((name, offset))

    async def write_many(self, topic: aiodq.Topic | aiodq.Queue, producer: object, count: int, size: int) -> None:
        """Put several at once that nobody is promised before `sync`."""
        made = [self.message(producer, size) for _ in range(count)]
        names = [name for name, _ in made]
        self.note(Putting(_name(topic), tuple(names)))
        offsets = await topic.put_many([body for _, body in made])
        self.note(Outliving(_name(topic), Put(_name(topic), tuple(names), tuple(offsets))))
        self._written += zip(names, offsets, strict=True)

    async def sync(self, topic: aiodq.Topic | aiodq.Queue) -> None:
        """Make durable what was written."""
        written, self._written = self._written, []
        await topic.sync()
        names, offsets = tuple(name for name, _ in written), tuple(offset for _, offset in written)
        self.note(Put(_name(topic), names, offsets))

    async def put_many(self, topic: aiodq.Topic | aiodq.Queue, producer: object, count: int, size: int) -> None:
        """Put several at once."""
        await self.put_bodies(topic, [self.message(producer, size)[1] for _ in range(count)])

    async def put_bodies(self, topic: aiodq.Topic | aiodq.Queue, bodies: list[bytes]) -> None:
        """Put at once what was made up before."""
        names = tuple(map(name_in, bodies))
        self.note(Putting(_name(topic), names, atomic=True))
        offsets = await topic.put_many(bodies)
        self.note(Put(_name(topic), names, tuple(offsets)))

    async def ack(self, message: aiodq.Message) -> None:
        """Ack durably."""
        name = self.name_of(message)
        self.note(Settlement(message.topic, message.channel, name))
        await message.ack()
        self.note(Settled(message.topic, message.channel, name))

    def ack_soon(self, message: aiodq.Message) -> None:
        """Ack without waiting for the disk."""
        self.note(Settlement(message.topic, message.channel, self.name_of(message)))
        message.ack_nowait()

    async def transact(self, store: aiodq.Store, messages: list[aiodq.Message], puts: dict[str, int]) -> None:
        """Ack messages and put so many into each topic, in one transaction."""
        acks = tuple((message.topic, message.channel, self.name_of(message)) for message in messages)
        bodies = [(topic, *self.message(f"t-{topic}")) for topic, count in puts.items() for _ in range(count)]
        note = Committing(acks, tuple((topic, name) for topic, name, _ in bodies))
        self.note(note)
        async with store.transaction() as transaction:
            for message in messages:
                transaction.ack(message)
            for topic, _, body in bodies:
                transaction.put(topic, body)
        self.note(Committed(note.acks, note.puts))
        for topic in puts:
            await self._find(store.topic(topic), {name for at, name, _ in bodies if at == topic})

    async def join(self, store: aiodq.Store, channels: list[aiodq.Channel], puts: dict[str, int]) -> None:
        """Put so many into each topic in one transaction, and take a message of each channel in a block that joins."""
        bodies = [(topic, *self.message(f"j-{topic}")) for topic, count in puts.items() for _ in range(count)]
        async with store.transaction() as transaction:
            messages = [await channel.get() for channel in channels]
            acks = tuple((message.topic, message.channel, self.name_of(message)) for message in messages)
            note = Committing(acks, tuple((topic, name) for topic, name, _ in bodies))
            self.note(note)
            for message in messages:
                async with message:
                    await self.rest()
            for topic, _, body in bodies:
                transaction.put(topic, body)
            await self.rest()
        self.note(Committed(note.acks, note.puts))
        for topic in puts:
            await self._find(store.topic(topic), {name for at, name, _ in bodies if at == topic})

    def load(self, key: CommitKey, puts: dict[str, int], size: int | None = None) -> list[tuple[str, str]]:
        """Stage so many messages for each topic and commit them, as a writer beside the store does."""
        bodies = [(topic, *self.message(f"b-{topic}", size)) for topic, count in puts.items() for _ in range(count)]
        writer = StagingWriter(self.fs, self.clock, PATH, key.name, segment_bytes=700)
        for topic, _, body in bodies:
            writer.put(topic, Columns([body]))
        note = Committing((), tuple((topic, name) for topic, name, _ in bodies))
        self.note(note)
        staged = {topic: tuple(files) for topic, files in writer.finish().items()}
        self.clock.advance(0.001)  # in the order of their times they are adopted
        commit = Commit(key, staged, self.clock.now_ns())
        assert commit_staged(self.fs, PATH, commit)
        assert not commit_staged(self.fs, PATH, commit)
        self.note(Committed(note.acks, note.puts))
        return list(note.puts)

    async def find(self, store: aiodq.Store, puts: list[tuple[str, str]]) -> None:
        """Note where messages are that may have come by now."""
        for topic in dict.fromkeys(topic for topic, _ in puts):
            await self._find(store.topic(topic), {name for at, name in puts if at == topic})

    async def _find(self, topic: aiodq.Topic, names: set[str]) -> None:
        """Note where messages are, as soon as they can be seen."""
        for _ in range(20):
            found = {_read(message): message.offset async for message in topic.scan()}
            if names <= found.keys():
                ordered = sorted(names)
                self.note(Put(topic.name, tuple(ordered), tuple(found[name] for name in ordered)))
                return
            await self.rest()

    async def defer(self, topic: aiodq.Topic | aiodq.Queue, message: aiodq.Message, delay: float) -> None:
        """Requeue with a delay, durably."""
        name = self.name_of(message)
        await message.nack(delay)
        await topic.sync()
        self.note(Deferred(message.topic, message.channel, name))

    def let_pass(self, topic: aiodq.Topic | aiodq.Queue, seconds: float) -> None:
        """Let time go by, and what is deferred become due."""
        self.note(Elapsed(_name(topic)))
        self.clock.advance(seconds)

    async def put_later(self, topic: aiodq.Topic | aiodq.Queue, producer: object, delay: float) -> None:
        """Put one message that nobody is to see before."""
        name, body = self.message(producer)
        self.note(Putting(_name(topic), (name,)))
        offset = await topic.put(body, delay=delay)
        self.note(Put(_name(topic), (name,), (offset,)))
        for channel in (topic.topic if isinstance(topic, aiodq.Queue) else topic).channels():
            self.note(Deferred(_name(topic), channel, name))

    async def reject(self, message: aiodq.Message, target: str) -> None:
        """Give a message up, to a dead-letter topic."""
        name = self.name_of(message)
        self.note(Moving(message.topic, message.channel, name, target))
        await message.reject()
        self.note(Moved(message.topic, message.channel, name))

    async def put_mortal(self, topic: aiodq.Topic, producer: str, ttl: float) -> None:
        """Put one message that lives so long; `let_die` ends it."""
        name, body = self.message(producer)
        self.note(Putting(_name(topic), (name,)))
        offset = await topic.put(body, ttl=ttl)
        self.note(Put(_name(topic), (name,), (offset,)))

    async def let_die(self, topic: aiodq.Topic, producer: str, seconds: float) -> None:
        """Let time go by, after which no channel need deliver what this producer put."""
        names = [name async for message in topic.scan() if (name := _read(message)).startswith(f"{producer}:")]
        for channel in topic.channels():
            for name in names:
                self.note(Settlement(topic.name, channel, name))
        self.clock.advance(seconds)

    @asynccontextmanager
    async def going_by(self, store: aiodq.Store, topic: str, options: aiodq.StoreOptions) -> AsyncIterator[None]:
        """Name options for a topic; they are on disk at the end of the block at the latest."""
        self.note(EffectiveOptions(topic, options))
        store.topic(topic, options)
        yield
        await store.topic(topic).settle_in()
        self.note(Chosen(topic, options))

    async def choose(self, topic: aiodq.Topic, options: aiodq.StoreOptions) -> None:
        """Change a topic's options."""
        self.note(EffectiveOptions(topic.name, options))
        await topic.configure(options)
        self.note(Chosen(topic.name, options))

    async def pause(self, topic: aiodq.Topic, channel: str = "", *, paused: bool) -> None:
        """Pause or resume a channel, or the topic."""
        was = dict(_settings(topic)).get((channel, "paused"), False)
        self.note(Changing(topic.name, channel, "paused", was, paused))
        whole = topic.channel(channel) if channel else topic
        await (whole.pause() if paused else whole.resume())
        self.note(Changed(topic.name, channel, "paused", was, paused))

    async def configure(self, topic: aiodq.Topic, channel: str, options: aiodq.ChannelOptions) -> None:
        """Change a channel's options."""
        was = dict(_settings(topic)).get((channel, "options"))
        self.note(Changing(topic.name, channel, "options", was, options))
        await topic.channel(channel).configure(options)
        self.note(Changed(topic.name, channel, "options", was, options))

    async def close_channel(self, topic: aiodq.Topic, channel: str) -> None:
        """Delete a channel."""
        self.note(Closing(topic.name, channel))
        await topic.delete_channel(channel)
        self.note(Closed(topic.name, channel))

    async def seek(self, channel: aiodq.Channel, topic: str, offset: int) -> None:
        """Let a channel go to an offset."""
        self.note(Seeking(topic, channel.name, offset))
        await channel.seek(offset)
        self.note(Sought(topic, channel.name, offset))

    async def seek_to_begin(self, queue: aiodq.Queue) -> None:
        """Let a queue go to what its log begins with, which retention may move between the look and the seek."""
        while True:
            begin = queue.begin_offset
            try:
                await self.seek(queue, _name(queue), begin)
            except aiodq.OffsetError:
                if queue.begin_offset == begin:
                    raise
            else:
                return

    async def hand_out(self, queue: aiodq.Queue) -> aiodq.Message:
        """Take the next message of a queue that counts."""
        seen = await queue.peek()
        assert seen is not None
        self.note(Handing(_name(queue), queue.name, self.name_of(seen)))
        message = await queue.get()
        assert message.offset == seen.offset
        return message

    async def count(self, queue: aiodq.Queue, *messages: aiodq.Message) -> None:
        """Make durable how often messages were delivered."""
        await queue.sync()
        for message in messages:
            self.note(Counted(message.topic, message.channel, self.name_of(message)))

    async def give_back(self, queue: aiodq.Queue, message: aiodq.Message) -> None:
        """Release a message, durably."""
        self.note(Returning(message.topic, message.channel, self.name_of(message)))
        message.release()
        await queue.sync()
        self.note(Returned(message.topic, message.channel, self.name_of(message)))

    async def requeue(self, store: aiodq.Store, dead: str) -> None:
        """Put all letters back that wait in a dead-letter topic."""
        state = store.queue(dead)._channel_engine.state
        assert state is not None
        letters = [letter async for letter in store.topic(dead).scan() if state.is_ready(letter.offset)]
        origins = [(letter.headers["aiodq-topic"], letter.headers["aiodq-channel"]) for letter in letters]
        for letter, origin in zip(letters, origins, strict=True):
            self.note(Requeueing(dead, "default", self.name_of(letter), *origin))
        assert await store.requeue_dead(dead) == len(letters)
        for letter, origin in zip(letters, origins, strict=True):
            self.note(Requeued(dead, "default", self.name_of(letter), *origin))

    async def purge(self, topic: aiodq.Topic | aiodq.Queue) -> None:
        """Drop the backlog."""
        self.note(Purging(_name(topic)))
        await topic.purge()
        self.note(Purged(_name(topic)))

    async def delete(self, store: aiodq.Store, topic: str) -> None:
        """Delete a topic."""
        self.note(Deleting(topic))
        await store.delete_topic(topic)
        self.note(Deleted(topic))

    @staticmethod
    def name_of(message: aiodq.Message) -> str:
        """Return a message's name. Its key has to be the one that it was put with, if it was put with one."""
        name = name_in(message.body)
        assert message.key in {None, _key_of(name)}, f"{name} was delivered with the key {message.key!r}"
        return name

    async def rest(self) -> None:
        """Let a little time go by, or a few turns of the loop."""
        if self.random.random() < 0.2:
            await asyncio.sleep(self.random.random() * 0.02)
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)


def name_in(body: bytes) -> str:
    """Return the name in a body that has to be as it was made up."""
    name = id_of(body)
    assert name is not None, f"wrong bytes were delivered: {body!r}"
    return name


def _key_of(name: str) -> bytes | None:
    """Return the key of a message that is put alone: every third has one, and so another kind of frame."""
    return None if int(name.rpartition(":")[2]) % 3 else name.encode()


def _name(topic: aiodq.Topic | aiodq.Queue) -> str:
    return topic.topic.name if isinstance(topic, aiodq.Queue) else topic.name


async def found_in(store: aiodq.Store) -> dict[str, TopicFound]:
    """Return what a store shows, leaving it as it is. A topic of which nothing was ever stored is none."""
    topics: dict[str, TopicFound] = {}
    for name in store.topics():
        topic = store.topic(name)
        log = {message.offset: _read(message) async for message in topic.scan()}
        channels = {channel: await _ready(topic.channel(channel)) for channel in topic.channels()}
        deferred = {channel: _later(topic.channel(channel), log) for channel in topic.channels()}
        if log or channels:
            later = {channel: names for channel, names in deferred.items() if names}
            attempts = {channel: _attempts(topic.channel(channel), log) for channel in topic.channels()}
            end, settings = topic.end_offset, dict(_settings(topic))
            topics[name] = TopicFound(log, channels, later, end, attempts, _named(topic), settings)
    return topics


def _meta(topic: aiodq.Topic) -> TopicMeta | None:
    log = topic._engine.log
    return None if isinstance(log, NoLog) else log.meta


def _settings(topic: aiodq.Topic) -> Iterator[tuple[tuple[str, str], object]]:
    meta = _meta(topic)
    if meta is not None:
        yield ("", "paused"), "" in meta.paused
        for channel in meta.channels:
            yield (channel, "paused"), channel in meta.paused
            yield (channel, "options"), meta.channel_options.get(channel)


def _named(topic: aiodq.Topic) -> aiodq.StoreOptions | None:
    meta = _meta(topic)
    stored = None if meta is None else meta.options
    return stored.options if stored is not None and stored.named else None


def _later(channel: aiodq.Channel, log: dict[int, str]) -> frozenset[str]:
    state = channel._channel_engine.state
    return frozenset(log[offset] for offset, _ in state.deferred) if state is not None else frozenset()


def _attempts(channel: aiodq.Channel, log: dict[int, str]) -> dict[str, int]:
    state = channel._channel_engine.state
    found = () if state is None else state.snapshot().attempt_rows()
    return {log[offset]: number for offset, number in found if offset in log}


async def _ready(channel: aiodq.Channel) -> tuple[str, ...]:
    """Take everything that is ready, and give it back as if it had never been taken."""
    taken: list[aiodq.Message] = []
    channel_engine = channel._channel_engine
    options = channel_engine.options
    channel_engine.configure(replace(options, max_attempts=None))  # else to look would use up an attempt, or give up
    if paused := channel_engine.paused:
        channel_engine.withheld = False
    while not channel.empty():
        taken.append(await channel.get())
    for message in taken:
        message.release()
    channel_engine.configure(options)
    if paused:
        channel_engine.pause()
    return tuple(_read(message) for message in taken)


def _read(message: aiodq.Message) -> str:
    return id_of(message.body) or f"wrong bytes at {message.offset}: {message.body!r}"


def run_world(world: World, program: Program) -> None:
    """Run a program to its end, always in the same way for the same world."""

    async def main() -> None:
        async with asyncio.timeout(SAFETY):
            await program(world)

    uuids = Random(world.random.getrandbits(32))

    def made_up() -> UUID:
        return UUID(int=uuids.getrandbits(128), version=4)

    with (
        mock.patch("aiodq.storage.state.topic.topic_meta.uuid4", made_up),
        mock.patch("aiodq.storage.state.store_identity.uuid4", made_up),
        mock.patch("aiodq.storage.bulk.staging.uuid4", made_up),
        mock.patch("aiodq.engine.channel.channel_engine.token_hex", lambda size: uuids.randbytes(size).hex()),
        # Not by an option: a store that is opened without any goes by what it has on disk.
        mock.patch.object(sync_backend, "_AUTO", world.sync_backend),
        asyncio.Runner(loop_factory=SimulatedLoop) as runner,
    ):
        runner.run(main())
