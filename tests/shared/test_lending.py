"""What an owner lends by runs and a client settles one by one, in any order."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.requests import lending
from aiodq.testing import FakeClock
from aiodq.wire.frames import decode_messages
from aiodq.wire.packets import Ack, Deliver, Done, Fail, Nack, Release, Want
from aiodq.wire.payload import Item, Range
from aiodq.wire.stream import PacketReader
from tests.shared.support import PATIENCE, QUICK, RawClient, counts, joined, owned, two, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiodq.shared.requests.lending import Lending
    from aiodq.wire.packets import Packet

MANY = aiodq.ChannelOptions(max_in_flight=20_000)


def lending_of(owner: aiodq.Store) -> Lending:
    """Return the one that has lent something."""
    sessions: list[Any] = owner._store_engine.owner.clients  # type: ignore[attr-defined]  # it stands in its place
    lendings: list[Lending] = [one for each in sessions for one in each.handles.lendings.values() if one.holding]
    assert len(lendings) == 1
    return lendings[0]


def draft(rng: random.Random, number: int) -> aiodq.Draft:
    return aiodq.Draft(
        b"%d" % number * rng.randint(1, 30),
        tag=rng.choice([None, None, "a", "b"]),
        key=rng.choice([None, None, b"k"]),
        headers={"h": str(number)} if rng.random() < 0.3 else None,
    )


async def fill(topic: aiodq.Topic, rng: random.Random, most: int) -> int:
    """Put batches of all sorts, and messages alone; return how many."""
    number = 0
    while number < most:
        count = rng.choice([1, 1, 2, 40, 300])
        plain = rng.random() < 0.5
        drafts = [draft(rng, number + place) for place in range(count)]
        if count == 1:
            await topic.put(drafts[0].body, tag=drafts[0].tag, key=drafts[0].key, headers=drafts[0].headers)
        else:
            await topic.put_many([each.body for each in drafts] if plain else drafts)
        number += count
    return number


async def test_all_that_a_message_is_comes_with_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with two(tmp_path / "s", QUICK) as (owner, client):
        count = await fill(owner.topic("jobs"), rng, 900)
        stored = [message async for message in owner.topic("jobs").scan()]
        channel, got = client.topic("jobs").channel("c"), list[aiodq.Message]()
        while len(got) < count:
            messages = await channel.get_many(rng.choice([1, 7, 300]))
            got += messages
            await channel.ack_many(messages)

        def shown(message: aiodq.Message | aiodq.StoredMessage) -> tuple[object, ...]:
            return message.offset, message.body, message.tag, message.key, dict(message.headers), message.timestamp_ns

        assert list(map(shown, got)) == list(map(shown, stored))


async def test_messages_that_are_no_neighbours_are_sent_at_once(tmp_path: Path) -> None:
    async with owned(tmp_path / "s", QUICK) as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"%d" % number for number in range(6)])
        for message in await queue.get_many(6):
            if message.offset % 2:
                await message.ack()
            else:
                message.release()
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs", "default")
        [session] = owner.clients
        connection: Any = session._wire
        written: list[Any] = []
        transport, connection._transport = (
            connection._transport,
            SimpleNamespace(write=lambda data: written.append(PacketReader().feed(data)), is_closing=lambda: False),
        )
        connection.session.handles.lendings[1].want(3)
        connection._transport = transport
        assert [[said.first for said, _ in packets] for packets in written] == [[0, 2, 4]]
        await client.close()


async def test_messages_between_others_that_are_not_wanted_are_lent_with_turns_for_others_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    deliver = lending.Lending._deliver

    def noting(self: Lending, those: list[Any]) -> None:
        runs.append(len(those))
        deliver(self, those)

    monkeypatch.setattr(lending.Lending, "_deliver", noting)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        drafts = [aiodq.Draft(b"%d" % number, tag="xyz"[number % 3]) for number in range(1500)]
        await owner.topic("jobs").put_many(drafts)
        channel = client.topic("jobs").channel("c", aiodq.ChannelOptions(tags=["x"], start="earliest"))
        taken: list[aiodq.Message] = []
        while len(taken) < 500:
            taken += await channel.get_many(1000)
        assert [(message.offset, int(message.body), message.tag) for message in taken] == [
            (number, number, "x") for number in range(0, 1500, 3)
        ]
        await channel.ack_many(taken)
        assert await counts(channel) == (0, 0, 0)
        assert max(runs) == lending._RUNS_AT_ONCE == 100


@pytest.mark.parametrize("back", ["released", "nacked", "at its end"])
async def test_what_is_redelivered_is_lent_and_acked_by_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: str
) -> None:
    """Else a client that ends with thousands in hand has the owner look at each of them, and again when it is acked."""
    alone: list[int] = []
    deliver, ack = ChannelEngine._deliver, ChannelState.ack

    def delivered(engine: Any, state: ChannelState, batch: Any, number: int, *rest: Any) -> Any:
        alone.append(number)
        return deliver(engine, state, batch, number, *rest)

    def acked(state: ChannelState, start: int, stop: int | None = None) -> None:
        if stop is None:
            alone.append(start)
        ack(state, start, stop)

    async with owned(tmp_path / "s", QUICK) as (store, _):
        channel = store.topic("jobs").channel("c", MANY)
        await store.topic("jobs").put_many([b"%d" % number for number in range(1500)])
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            for message in (held := await client.topic("jobs").channel("c").get_many(1500)):
                if back == "released":
                    message.release()
            if back == "nacked":
                await asyncio.gather(*(message.nack() for message in held))
        await until(lambda: channel.qsize() == 1500)
        monkeypatch.setattr(ChannelEngine, "_deliver", delivered)
        monkeypatch.setattr(ChannelState, "ack", acked)
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            again, taken = client.topic("jobs").channel("c"), list[aiodq.Message]()
            while len(taken) < 1500:
                taken += await again.get_many(1500)
            assert [message.body for message in taken] == [b"%d" % number for number in range(1500)]
            assert {message.attempts for message in taken} == {2 if back == "nacked" else 1}
            await again.ack_many(taken)
        assert await counts(channel) == (0, 0, 0)
        assert len(alone) <= 3, "of each piece the first, perhaps, but not all"


@pytest.mark.parametrize("settled", ["acked", "nacked", "released", "left"])
async def test_what_a_client_settles_of_what_has_timed_out_stays_in_the_tail_for_others(
    tmp_path: Path, settled: str
) -> None:
    """An owner forgets the bodies that a client no longer holds: not those that the log's tail has."""
    clock, bodies = FakeClock(), [b"%d" % number for number in range(5)]
    timed = aiodq.ChannelOptions(visibility_timeout=10.0, backoff=None)
    async with owned(tmp_path / "s", QUICK, clock=clock) as (store, _):
        others = store.topic("jobs").channel("others")
        own = store.topic("jobs").channel("c", timed)
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            channel = client.topic("jobs").channel("c")
            await client.topic("jobs").settle_in()
            await store.topic("jobs").put_many(bodies)
            assert len(await channel.get_many(5)) == 5
            clock.advance(11)
            await until(lambda: own.qsize() == 5)
            first, *_ = again = await channel.get_many(5)
            assert [message.attempts for message in again] == [2] * 5
            if settled == "acked":
                await first.ack()
            elif settled == "nacked":
                await first.nack()
            elif settled == "released":
                first.release()
        await until(lambda: own.in_flight() == 0)
        assert [message.body for message in await others.get_many(5)] == bodies
        left = bodies[1:] if settled == "acked" else bodies
        assert [message.body for message in await own.get_many(5)] == left


async def test_whatever_times_out_and_comes_again_each_channel_gets_each_body(tmp_path: Path, seed: int) -> None:
    rng, clock, count = random.Random(seed), FakeClock(), 0
    timed = aiodq.ChannelOptions(visibility_timeout=10.0, backoff=None, max_in_flight=1000)
    async with owned(tmp_path / "s", QUICK, clock=clock) as (store, _):
        topic = store.topic("jobs")
        own = [topic.channel(name, timed) for name in ("a", "b", "c")]
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            await client.topic("jobs").settle_in()
            channels: list[aiodq.Channel] = [*own, *(client.topic("jobs").channel(each.name) for each in own)]
            held = {channel: list[aiodq.Message]() for channel in channels}
            for _ in range(60):
                channel = rng.choice(channels)
                if rng.random() < 0.3:
                    bodies = [b"%d" % number for number in range(count, count + rng.choice([1, 3, 20]))]
                    count = (await topic.put_many(bodies)).stop
                elif rng.random() < 0.3:
                    clock.advance(11)  # all that is in flight times out
                    held = {each: [] for each in channels}
                elif held[channel] and rng.random() < 0.5:
                    some = rng.sample(held[channel], rng.randint(1, len(held[channel])))
                    held[channel] = [message for message in held[channel] if message not in some]
                    await rng.choice([settle_acked, settle_nacked, settle_released])(channel, some)
                else:
                    await channel.refresh()
                    if channel.qsize():
                        taken = await channel.get_many(rng.choice([1, 5, 100]))
                        assert [message.body for message in taken] == [b"%d" % message.offset for message in taken]
                        held[channel] = held[channel] + taken


async def settle_acked(channel: aiodq.Channel, messages: list[aiodq.Message]) -> None:
    with suppress(aiodq.NotInFlightError):
        await channel.ack_many(messages)


async def settle_nacked(_channel: aiodq.Channel, messages: list[aiodq.Message]) -> None:
    for message in messages:
        with suppress(aiodq.NotInFlightError):
            await message.nack()


async def settle_released(_channel: aiodq.Channel, messages: list[aiodq.Message]) -> None:
    for message in messages:
        with suppress(aiodq.NotInFlightError):
            message.release()


@pytest.mark.parametrize("kept", [True, False])
async def test_a_packet_of_what_is_redelivered_is_no_larger_than_others(tmp_path: Path, *, kept: bool) -> None:
    """Whether the owner has it in its requeue cache or in the tail of the log."""
    body = 60_000
    async with owned(tmp_path / "s", QUICK) as (store, _):
        queue = store.queue("jobs")
        await queue.put_many([b"x" * body] * 30)
        for message in await queue.get_many(30):
            message.release()
        if not kept:
            queue._channel_engine.source.requeue_cache.clear()
        client = await joined(tmp_path / "s")
        client.send(Want(2, 30))
        sizes = list[int]()
        while sum(sizes) < 30:
            said = await client.hear(Deliver)
            sizes.append(sum(len(batch.columns.bodies) for batch in decode_messages(said.frames, said.first)))
        assert max(sizes) == -(-lending._PACKET_BYTES // body)
        await client.close()


class Worker:
    """Settles what it gets from a channel at random; knows which offsets are to come again."""

    def __init__(self, store: aiodq.Store, channel: aiodq.Channel, rng: random.Random) -> None:
        self.store = store
        self.channel = channel
        self.rng = rng
        self.hand: list[aiodq.Message] = []
        self.acked: set[int] = set()

    async def step(self) -> None:
        await self.rng.choice(
            [self.take, self.ack, self.ack_many, self.give_back, self.renew, self.fail, self.commit, self.configure]
        )()

    def some(self) -> list[aiodq.Message]:
        """Return neighbours in hand, or others, which are in hand no more."""
        count = min(len(self.hand), self.rng.choice([1, 3, 50]))
        if self.rng.random() < 0.5:
            start = self.rng.randint(0, len(self.hand) - count)
            chosen = self.hand[start : start + count]
        else:
            chosen = self.rng.sample(self.hand, count)
        self.hand = [message for message in self.hand if message not in chosen]
        return chosen

    async def take(self) -> None:
        if self.channel.qsize():
            self.hand += await self.channel.get_many(self.rng.choice([1, 10, 200]))

    async def ack(self) -> None:
        for message in self.some():
            message.ack_nowait()
            self.acked.add(message.offset)

    async def ack_many(self) -> None:
        messages = self.some()
        await self.channel.ack_many(messages)
        self.acked |= {message.offset for message in messages}

    async def give_back(self) -> None:
        for message in self.some()[:20]:
            if self.rng.random() < 0.5:
                await message.nack()
            else:
                message.release()
        # The others of them stay in nobody's list, and in this process's hands, to its end.

    async def configure(self) -> None:
        choice = self.rng.choice
        await self.channel.configure(
            aiodq.ChannelOptions(
                max_in_flight=choice([3_000, 20_000]),  # more than there are: else who wants one would wait for ever
                visibility_timeout=choice([None, 300]),
                max_attempts=choice([None, 1_000]),  # under such, what is delivered is counted
            )
        )

    async def renew(self) -> None:
        for message in self.hand[:5]:
            await message.touch(100)

    async def fail(self) -> None:
        messages = self.some()
        with pytest.raises(ZeroDivisionError):
            async with self.store.transaction() as tx:
                tx.ack_many(messages)
                raise ZeroDivisionError
        self.hand = [*self.hand, *(message for message in messages if message.held)]

    async def commit(self) -> None:
        messages = self.some()[:30]
        full = self.rng.random() < 0.5
        try:
            async with self.store.transaction() as tx:
                tx.ack_many(messages)
                tx.put("full" if full else "made", b"x")
        except aiodq.QueueFull:
            assert full
            self.hand += [message for message in messages if message.held]
        else:
            self.acked |= {message.offset for message in messages}


async def test_settled_at_random_all_others_come_again(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with two(tmp_path / "s", QUICK) as (owner, client):
        full = owner.topic("full", aiodq.StoreOptions(sync="os", max_messages=1, overflow="reject"))
        full.channel("c")
        await full.put(b"x")
        count = await fill(owner.topic("jobs"), rng, 1_500)
        worker = Worker(client, client.topic("jobs").channel("c"), rng)
        await client.topic("jobs").settle_in()
        for _ in range(120):
            await worker.take() if not worker.hand else await worker.step()
        left = set(range(count)) - worker.acked
        assert sum(await counts(worker.channel)) == len(left)
        await client.aclose()
        channel, again = owner.topic("jobs").channel("c"), set[int]()
        await until(lambda: channel.qsize() == len(left))
        async with asyncio.timeout(PATIENCE):
            # Not while some are said to be ready: those on their way here, or back, are not.
            while len(again) < len(left):
                messages = await channel.get_many(500)
                again |= {message.offset for message in messages}
                await channel.ack_many(messages)
        assert again == left
        assert await counts(channel) == (0, 0, 0)


async def test_of_what_is_settled_in_part_the_owner_keeps_the_rest_alone(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(20)])
        messages = await queue.get_many(20)
        await queue.ack_many(messages[3:17])
        [run] = lending_of(owner)._lent
        assert [body for body in run.bodies if body] == [b"0", b"1", b"2", b"17", b"18", b"19"]
        await messages[0].nack()
        messages[19].release()
        await queue.refresh()
        assert [body for body in run.bodies if body] == [b"1", b"2", b"17", b"18"]
        await queue.ack_many([messages[18], messages[1], messages[2], messages[17]])
        assert (await queue.get()).body == b"0"
        async with asyncio.timeout(PATIENCE):
            while await counts(queue) != (1, 1, 0):  # what a quick taker was sent ahead goes back
                await asyncio.sleep(0.002)


async def test_those_out_of_order_are_settled_by_one_call(tmp_path: Path, seed: int) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        channel = client.topic("jobs").channel("c", aiodq.ChannelOptions(max_in_flight=10_000))
        await client.topic("jobs").put_many([b"x"] * 2000)
        messages: list[aiodq.Message] = []
        while len(messages) < 2000:
            messages += await channel.get_many(1000)
        given = random.Random(seed).sample(messages, 1000)
        with pytest.raises(aiodq.AlreadySettledError):
            channel.ack_many([*given, given[3]])
        assert not any(message.settled for message in messages)
        done: Any = channel.ack_many(given)
        # One more if the first of them is the last of its lease: it is settled as a run of its own.
        assert len(done.those) <= len({message._run for message in given}) + 1
        assert sum(message.settled for message in messages) == 1000
        await done
        assert await counts(channel) == (0, 1000, 0)


async def test_of_what_is_lent_already_other_options_take_nothing_and_they_hold_for_what_comes(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.topic("jobs").put_many([b"%d" % n for n in range(30)])
        channel = client.topic("jobs").channel("c", aiodq.ChannelOptions(max_in_flight=20))
        held = await channel.get_many(10)
        await channel.configure(aiodq.ChannelOptions(max_in_flight=1, max_attempts=2, dead_letter="dead"))
        assert lending_of(owner).holding == 10
        getting = asyncio.create_task(channel.get())
        for message in held[:9]:
            await message.ack()
        assert await counts(channel) == (20, 1, 0)
        assert not getting.done()  # one is in flight still
        await held[9].nack()
        async with asyncio.timeout(PATIENCE):
            again = await getting
        assert (again.body, again.attempts) == (b"9", 2)
        await again.nack()  # its last attempt, by the options that hold now
        assert await owner.topic("dead").channel("d").get_many(1)
        await channel.configure(aiodq.ChannelOptions(visibility_timeout=0.05))
        late = await channel.get_many(5)
        await until(lambda: not any(message.held for message in late))
        rest = [message async for message in _taken(channel, 20)]
        assert {message.body for message in rest} == {b"%d" % n for n in range(10, 30)}
        assert await counts(channel) == (0, 0, 0)


async def _taken(channel: aiodq.Channel, count: int) -> AsyncIterator[aiodq.Message]:
    """Yield so many messages, each once, however often their time is up."""
    seen: set[int] = set()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:
            message = await channel.get()
            with suppress(aiodq.NotInFlightError):
                await message.ack()
                seen.add(message.offset)
                yield message


async def test_what_a_transaction_leaves_is_in_hand_again_amid_its_neighbours(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(9)])
        full = owner.topic("full", aiodq.StoreOptions(sync="os", max_messages=1, overflow="reject"))
        full.channel("c")
        await full.put(b"x")
        messages = await queue.get_many(9)
        with pytest.raises(aiodq.QueueFull):
            async with client.transaction() as tx:
                tx.ack_many(messages[3:5])
                tx.put("full", b"b")
        assert lending_of(owner).holding == 9
        await messages[3].nack()
        assert (await queue.get()).body == b"3"
        await queue.ack_many(messages[4:])
        await queue.ack_many(messages[:3])
        assert await counts(queue) == (0, 1, 0)


async def test_of_what_is_given_back_together_the_rest_is_ready_though_some_was_taken_away(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(10)])
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs", "default")
        number = (await client.take(1, 10, 10))[0][1]
        assert await client.ask(Ack(1, owner.epoch, (Range(4, number + 4, 1),))) == Done()
        assert isinstance(await client.ask(Release(1, owner.epoch, (Range(0, number, 10),))), Fail)
        assert (queue.qsize(), queue.in_flight()) == (9, 0)
        assert [message.body for message in await queue.get_many(10)] == [b"%d" % n for n in range(10) if n != 4]
        await client.close()


async def test_what_nobody_wants_any_more_goes_back_a_little_at_a_time_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    send = SocketWire.send

    def noting(self: SocketWire, said: Packet, request: int) -> None:
        released.extend([sum(each.messages for each in said.ranges)] if isinstance(said, Release) else [])
        send(self, said, request)

    monkeypatch.setattr(SocketWire, "send", noting)
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.queue("jobs").put_many([b"%d" % n for n in range(900)])
        queue: Any = client.queue("jobs")
        with queue._remote.wanting(899):
            first = await queue.get()
        second = await queue.get()
        await until(lambda: owner.queue("jobs").qsize() == 898)
        assert (first.body, second.body) == (b"0", b"1")
        assert released == [50] * 17 + [48]
        assert [message.body for message in await queue.get_many(898)] == [b"%d" % n for n in range(2, 900)]


async def test_several_are_as_many_as_are_ready_though_they_do_not_come_at_once(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        await owner.queue("jobs").put_many([bytes(50_000)] * 40)
        # Not the other way round: for a moment a client asks for more than it has got, and it would get the first ones.
        for queue in (owner.queue("jobs"), client.queue("jobs")):
            await queue.refresh()
            messages = await queue.get_many(30)
            assert [message.offset for message in messages] == [*range(30)]
            assert len(await queue.get_many(30)) == 10
            await queue.seek(0)


async def test_what_a_client_held_that_is_gone_comes_back_with_turns_for_others_in_between(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, seen = owner.queue("jobs"), set[int]()
        await queue.put_many([b"%d" % n for n in range(1_000)])
        assert len(await client.queue("jobs").get_many(1_000)) == 1_000
        lending = lending_of(owner)
        closing = asyncio.create_task(client.aclose())
        async with asyncio.timeout(PATIENCE):
            while lending.holding:
                seen.add(lending.holding)
                await asyncio.sleep(0)
        assert seen == set(range(50, 1_001, 50))
        await closing
        assert [message.body for message in await queue.get_many(1_000)] == [b"%d" % n for n in range(1_000)]


@pytest.mark.slow_on_uvloop  # what fits into a packet is the same on each loop
async def test_what_is_in_hand_stays_there_however_scattered_it_is(tmp_path: Path) -> None:
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as client,
    ):
        channel, messages = client.topic("jobs").channel("c", MANY), list[aiodq.Message]()
        await client.topic("jobs").put_many([b"%d" % n for n in range(12_000)])
        while len(messages) < 12_000:
            messages += await channel.get_many(1_000)
        await asyncio.gather(*(message.ack() for message in messages[::2]))
        await owner.aclose()
        async with asyncio.timeout(PATIENCE):
            await channel.ack_many(messages[1::2])
        assert await counts(channel) == (0, 0, 0)


async def test_counts_that_are_the_same_again_are_told_after_what_a_client_gave_back(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        jobs, beside = client.queue("jobs"), owner.queue("jobs")
        await jobs.put(b"x")
        message = await jobs.get()
        assert await counts(jobs) == (0, 1, 0)
        waiting = asyncio.ensure_future(beside.get())
        await asyncio.sleep(0)
        await message.nack()
        await waiting
        settling: Any = jobs._channel_engine
        await until(lambda: not settling._settling)  # it has heard that its message was taken back
        await until(lambda: (jobs.qsize(), jobs.in_flight()) == (0, 1))


async def test_what_times_out_again_and_again_counts_once(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        jobs = client.queue("jobs", aiodq.ChannelOptions(visibility_timeout=0.001))
        await jobs.put(b"x")
        while (await jobs.get()).attempts < 50:
            pass
        await until(lambda: jobs.depth == 1 and jobs.qsize() == 1)


async def test_who_blocks_its_loop_for_too_long_is_told_why_its_acks_come_too_late(tmp_path: Path) -> None:
    options, clock = aiodq.ChannelOptions(visibility_timeout=10), FakeClock()
    async with owned(tmp_path / "s", QUICK, clock=clock) as (store, _), asyncio.timeout(PATIENCE):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        queue = store.queue("jobs", options)
        await client.open(2, "jobs", "default")
        await queue.put_many([b"0", b"1"])
        [[_, number, _], _] = await client.take(2, 2, 2)
        clock.advance(11)
        assert [message.attempts for message in await queue.get_many(2)] == [2, 2]
        for said in (
            Ack(2, client.epoch, (Range(0, number, 2),)),
            Release(2, client.epoch, (Range(0, number, 1),)),
            Nack(2, client.epoch, (Item(0, number, 0, 1),)),
        ):
            fail = await client.ask(said)
            assert isinstance(fail, Fail)
            assert "renewing" in fail.text
        await client.close()
