"""What a transaction acks, in any order and in any number of calls, beside a plain model."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

import aiodq
from aiodq.engine.transactions.participants import AckRun, joined_runs
from tests.channels.support import Machine

NUMBER = 60
LARGE = aiodq.ChannelOptions(max_in_flight=1000)


class Scene:
    """Messages in flight of two channels and of another store, and which of them are settled or in the transaction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.messages: list[aiodq.Message] = []
        self.strangers: list[aiodq.Message] = []
        self.settled: set[int] = set()
        self.named: set[int] = set()

    async def fill(self, store: aiodq.Store, other: aiodq.Store) -> None:
        self.messages = await self.taken(store)
        self.strangers = await self.taken(other)
        for place, message in enumerate(self.messages):
            if self.rng.random() < 0.05:
                await message.ack()
                self.settled.add(place)
            elif self.rng.random() < 0.1:
                await message.touch()  # has an entry of its own from now on

    async def taken(self, store: aiodq.Store) -> list[aiodq.Message]:
        taken: list[aiodq.Message] = []
        for name in ("a", "b"):
            queue = store.queue(name, LARGE)
            await queue.put_many([b"%d" % number for number in range(NUMBER)])
            taken += await queue.get_many(self.rng.randrange(1, NUMBER - 10))
            taken += [await queue.get() for _ in range(self.rng.randrange(8))]
            taken += await queue.get_many(NUMBER)
        return taken

    def ack(self, tx: aiodq.Transaction) -> None:
        """Ack some, and find that all of them are in the transaction, or none."""
        rng, everything = self.rng, range(len(self.messages))
        begin = rng.choice(everything)
        those = list(everything[begin : begin + rng.choice([1, 5, 50])])
        if rng.random() < 0.5:
            those = rng.sample(everything, rng.randrange(1, 30))
        gone = self.settled | self.named
        if rng.random() < 0.7:
            those = [place for place in those if place not in gone]
        if those and rng.random() < 0.1:
            those.append(rng.choice(those))
        given = [self.messages[place] for place in those]
        errors: list[type[Exception]] = []
        if len(set(those)) < len(those) or gone & set(those):
            errors.append(aiodq.AlreadySettledError)
        if rng.random() < 0.1:
            given.insert(rng.randrange(len(given) + 1), rng.choice(self.strangers))
            errors.append(aiodq.NotInFlightError)
        if errors:
            with pytest.raises(tuple(errors)):
                tx.ack_many(given)
        else:
            tx.ack_many(given)
            self.named |= set(those)
        assert repr(tx).startswith(f"<Transaction under way, {len(self.named)} to ack, ")


async def left(queue: aiodq.Queue) -> list[bytes]:
    await queue.topic.settle_in()
    messages: list[aiodq.Message] = []
    while len(messages) < queue.depth:
        messages += await queue.get_many(NUMBER)
    return [message.body for message in messages]


@pytest.mark.parametrize("commits", [False, True])
async def test_what_is_acked_is_settled_and_nothing_else(machine: Machine, seed: int, *, commits: bool) -> None:
    scene = Scene(random.Random(seed))
    async with machine.store() as store, Machine().store() as other:
        await scene.fill(store, other)
        with suppress(LookupError):
            async with store.transaction() as tx:
                for _ in range(12):
                    scene.ack(tx)
                if not commits:
                    raise LookupError
        gone = scene.settled | scene.named if commits else scene.settled
        assert [message.settled for message in scene.messages] == [at in gone for at in range(len(scene.messages))]
    machine.crash()
    kept = [message for at, message in enumerate(scene.messages) if at not in gone]
    async with machine.store() as store:
        for name in ("a", "b"):
            expected = sorted(message.body for message in kept if message.topic == name)
            assert sorted(await left(store.queue(name, LARGE))) == expected


async def test_the_first_that_is_no_longer_in_flight_is_named(machine: Machine) -> None:
    async with machine.store() as store:
        queues = [store.queue(name) for name in ("a", "b")]
        for queue in queues:
            await queue.put_many([b"1", b"2"])
        messages = [message for queue in queues for message in await queue.get_many(2)]
        for queue in queues:
            await queue.seek("earliest")
        async with store.transaction() as tx:
            for given in itertools.permutations(messages):
                with pytest.raises(aiodq.NotInFlightError, match=f"message {given[0].offset} "):
                    tx.ack_many(given)
                with pytest.raises(aiodq.NotInFlightError, match=f"message {given[0].offset} "):
                    tx.ack(given[0])


def test_runs_are_joined_where_all_of_them_follows(seed: int) -> None:
    rng = random.Random(seed)
    topic: Any = object()
    channels: list[Any] = ["a", "b"]
    runs: list[AckRun] = []
    channel, stop, delivery = channels[0], 0, 1
    for _ in range(2000):
        channel = rng.choice(channels) if rng.random() < 0.1 else channel
        start, delivery = stop + (rng.random() < 0.1), delivery + (rng.random() < 0.1)
        stop = start + rng.choice([1, 1, 2, 300])
        runs.append(AckRun(topic, channel, start, stop, delivery))
        delivery += stop - start
    joined = list(joined_runs(runs))
    assert [one for run in joined for one in singly(run)] == [one for run in runs for one in singly(run)]
    for run, after in pairwise(joined):
        follows = (run.channel_engine, run.stop, run.delivery + run.stop - run.start) == (after[1:3] + after[4:])
        assert not follows or after.stop - run.start > 1000 - 300
    assert max(run.stop - run.start for run in joined) <= 1000


def singly(run: AckRun) -> list[tuple[object, int, int]]:
    return [(run.channel_engine, offset, run.delivery + offset - run.start) for offset in range(run.start, run.stop)]
