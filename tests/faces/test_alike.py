"""A random program comes to the same through every face of a store: alone, shared, asking its owner, and by threads."""

from __future__ import annotations

import asyncio
import inspect
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
import aiodq.sync
from aiodq.shared.handles import shared_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

PATIENCE: Final = 30.0
OPTIONS: Final = aiodq.StoreOptions(sync="os", max_messages=30, overflow="reject", max_message_bytes=100)
CHANNELS: Final = {
    "a": aiodq.ChannelOptions(start="earliest", max_attempts=3, dead_letter="dead"),
    "b": aiodq.ChannelOptions(start="earliest", max_in_flight=4),
}
STEPS: Final = 50
Call = tuple[str, str, int]
"""The name of a step, of a channel, and the seed of its arguments."""


class Face:
    """A store that is used through one face, and the messages that its user has."""

    def __init__(self, store: Any, thread: ThreadPoolExecutor | None) -> None:
        self.store = store
        self.held: list[Any] = []
        self._thread = thread

    async def do(self, call: Callable[..., Any], *args: object, **options: object) -> Any:
        """Call something, in the thread that has the store if one has it; await what is to be awaited."""
        call = partial(call, *args, **options)
        if self._thread is not None:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        result = call()
        return await result if inspect.isawaitable(result) else result

    async def all_of(self, scan: Callable[[], Any]) -> list[Any]:
        """Return all that an iteration gives."""
        if self._thread is not None:
            return list(await self.do(lambda: list(scan())))
        return [each async for each in scan()]

    async def commit(self, acks: list[Any], bodies: list[bytes]) -> None:
        """Settle and put in one transaction."""

        def fill(transaction: Any) -> None:
            transaction.ack_many(acks)
            for body in bodies:
                transaction.put("jobs", body)

        def by_thread() -> None:
            with self.store.transaction() as transaction:
                fill(transaction)

        if self._thread is not None:
            await self.do(by_thread)
            return
        async with self.store.transaction() as transaction:
            fill(transaction)

    async def join(self, channel: Any) -> None:
        """Wait until everything is settled: not for long where it is not, as nobody settles it meanwhile."""
        await self.do(channel.refresh)
        wait = 0.01 if await self.do(getattr, channel, "depth") else PATIENCE
        if self._thread is not None:
            await self.do(channel.join, timeout=wait)
            return
        async with asyncio.timeout(wait):
            await channel.join()


async def alone(path: Path, _: AsyncExitStack) -> Face:
    return Face(await aiodq.open(path, OPTIONS), None)


async def owner(path: Path, _: AsyncExitStack) -> Face:
    return Face(await aiodq.open(path, OPTIONS, mode="shared"), None)


async def client(path: Path, stack: AsyncExitStack) -> Face:
    await stack.enter_async_context(aiodq.open(path, OPTIONS, mode="shared"))
    return Face(await aiodq.open(path, OPTIONS, mode="client"), None)


async def threads(path: Path, stack: AsyncExitStack) -> Face:
    await stack.enter_async_context(aiodq.open(path, OPTIONS, mode="shared"))
    thread = stack.enter_context(ThreadPoolExecutor(1))
    opening = partial(aiodq.sync.open, path, OPTIONS, mode="client")
    return Face(await asyncio.get_running_loop().run_in_executor(thread, opening), thread)


def shown(message: Any) -> tuple[object, ...]:
    """Return what a message is, but for its time."""
    headers = {name: text for name, text in message.headers.items() if name != "aiodq-time"}
    return message.offset, message.body, message.attempts, message.tag, message.key, headers


def plan(rng: random.Random) -> list[Call]:
    """Return a program: calls by name, with arguments that mean the same through each face."""
    kinds = {"put": 8, "put_many": 4, "put_nowait": 2, "get": 12, "get_many": 3, "settle": 14, "ack_many": 3, "move": 3,
             "commit": 3, "join": 1, "counts": 3, "deferred": 1, "look": 2, "wrong": 6}  # fmt: skip
    names = rng.choices(list(kinds), list(kinds.values()), k=STEPS)
    return [(name, rng.choice("aab"), rng.randrange(1 << 30)) for name in names]


@dataclass
class Step:
    """One call of a program: each method makes one, and returns what it comes to in terms that all faces share."""

    face: Face
    rng: random.Random
    topic: Any
    channel: Any

    def chosen(self) -> list[Any]:
        """Return some of the messages that the user has, settled ones too."""
        return self.rng.sample(self.face.held, min(self.rng.randint(1, 3), len(self.face.held)))

    def body(self) -> bytes:
        """Return some body."""
        return bytes(self.rng.choices(b"abc", k=self.rng.randint(0, 6)))

    async def put(self) -> object:
        rng = self.rng
        parts = {"tag": rng.choice([None, "t"]), "key": rng.choice([None, b"k"]), "headers": {"h": "v"}}
        return await self.face.do(self.topic.put, self.body(), delay=rng.choice([None, None, 3600]), **parts)

    async def put_many(self) -> object:
        bodies = [self.body()] * self.rng.randint(1, 4) + self.rng.choice([[], [], [b"x" * 101]])
        return await self.face.do(self.topic.put_many, bodies)

    async def put_nowait(self) -> object:
        receipt = await self.face.do(self.topic.put_nowait, self.body())
        return receipt if isinstance(receipt, int) else await self.face.do(receipt.result)

    async def get(self) -> object:
        message = await self.face.do(self.channel.get, 0)
        self.face.held.append(message)
        return shown(message)

    async def get_many(self) -> object:
        await self.face.do((await self.face.do(self.channel.get, 0)).release)  # so that there is one
        messages = await self.face.do(self.channel.get_many, 1)
        self.face.held += messages
        return [shown(message) for message in messages]

    async def settle(self) -> object:
        ways: list[tuple[str, tuple[object, ...]]] = [
            ("ack", ()), ("ack", ()), ("nack", ()), ("nack", (3600,)), ("nack", (-1,)), ("reject", ("why",)),
            ("reject", (5,)), ("touch", ()), ("touch", (-1,)),
        ]  # fmt: skip
        way, arguments = self.rng.choice(ways)
        return [await outcome(self.face.do(getattr(each, way), *arguments)) for each in self.chosen()]

    async def ack_many(self) -> object:
        # Of several that cannot be settled for different reasons, any reason may be told.
        chosen = self.chosen()
        held = [each for each in chosen if await self.face.do(getattr, each, "held")]
        return await self.face.do(self.channel.ack_many, held if self.rng.random() < 0.7 else chosen[:1])

    async def move(self) -> object:
        channel, topic = self.channel, self.topic
        moves: list[tuple[Any, ...]] = [
            (channel.seek, "earliest"), (channel.seek, "latest"), (channel.seek, 3), (channel.purge,), (topic.purge,),
            (channel.pause,), (channel.resume,), (channel.resume,),
        ]  # fmt: skip
        return await self.face.do(*self.rng.choice(moves))

    async def commit(self) -> object:
        await self.face.commit(self.chosen(), [self.body()] * self.rng.randint(0, 2))
        return None

    async def join(self) -> object:
        await self.face.join(self.channel)
        return None

    async def deferred(self) -> object:
        found = await self.face.all_of(self.channel.deferred_messages)
        assert [each.due for each in found] == sorted(each.due for each in found)
        # A put's delay begins where it is called, a nack's at the owner: two that follow at once may change places.
        return sorted((shown(each) for each in found), key=lambda each: each[:1])

    async def look(self) -> object:
        return [shown(each) for each in await self.face.all_of(self.topic.scan)]

    async def wrong(self) -> object:
        return await self.face.do(self.rng.choice(WRONG), self.face.store, self.topic, self.channel)

    async def counts(self) -> object:
        await self.face.do(self.channel.refresh)
        return [
            await self.face.do(count) for count in (self.channel.qsize, self.channel.in_flight, self.channel.deferred)
        ]


WRONG: Final[list[Callable[[Any, Any, Any], Any]]] = [
    lambda _, topic, __: topic.put("text"),
    lambda _, topic, __: topic.put(b"x", tag=5),
    lambda _, topic, __: topic.put(b"x", key="k"),
    lambda _, topic, __: topic.put(b"x", delay="1"),
    lambda _, topic, __: topic.put(b"x" * 101),
    lambda _, topic, __: topic.put_many(b"abc"),
    lambda _, topic, __: topic.put_many([b"a", "b"]),
    lambda _, topic, __: topic.read(10**9),
    lambda _, topic, __: topic.scan("a"),
    lambda _, topic, __: topic.channel(".."),
    lambda _, topic, __: topic.channel("a", aiodq.ChannelOptions(max_in_flight=7)),
    lambda _, __, channel: channel.get("x"),
    lambda _, __, channel: channel.get_many(0),
    lambda _, __, channel: channel.seek("newest"),
    lambda _, __, channel: channel.seek(10**9),
    lambda _, __, channel: channel.cancel(10**9),
    lambda _, __, channel: channel.ack_many([5]),
    lambda store, _, __: store.topic("a b"),
    lambda store, _, __: store.delete_topic(".."),
    lambda store, _, __: store.requeue_dead("dead", limit=-1),
]
"""Calls with arguments that are wrong everywhere."""


async def outcome(done: Awaitable[object]) -> object:
    """Return the result of a call, or the kind and the text of its error, as if the call that it advises blocked."""
    try:
        return await done
    except (aiodq.AiodqError, aiodq.QueueFull, TimeoutError) as error:
        return type(error).__name__, str(error).replace("await ", "").replace("async with ", "with ")


async def run(face: Face, program: list[Call]) -> list[object]:
    """Run a program; return what each of its calls, and a look at the end, came to."""
    topic = await face.do(face.store.topic, "jobs")
    channels = {name: await face.do(topic.channel, name, options) for name, options in CHANNELS.items()}
    await face.do(topic.settle_in)
    found: list[object] = []
    for call, channel, seed in program:
        step = Step(face, random.Random(seed), topic, channels[channel])
        found.append(await outcome(getattr(step, call)()))
    for name in ("jobs", "dead"):
        other = await face.do(face.store.topic, name)
        found.append([shown(each) for each in await face.all_of(other.scan)])
    return found


@pytest.mark.parametrize("number", range(2))
async def test_a_program_comes_to_the_same_through_every_face(
    tmp_path: Path, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_channel, "ANSWERED", PATIENCE)  # an owner that the machine holds up has what it has
    program = plan(random.Random(f"{seed} {number}"))
    expected: list[object] | None = None
    for opened in (alone, owner, client, threads):
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            face = await opened(tmp_path / opened.__name__, stack)
            try:
                found = await run(face, program)
            finally:
                await face.do(face.store.close if opened is threads else face.store.aclose)
        expected = expected or found
        for call, one, other in zip([*program, "jobs", "dead"], expected, found, strict=True):
            assert one == other, (opened.__name__, call)
