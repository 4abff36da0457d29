"""What an owner tells its clients of counts: all that changes, and nothing of what is idle."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.server import owner as owner_module
from aiodq.shared.server.open_handles import OpenHandles
from aiodq.shared.server.owner import Owner
from aiodq.wire.packets import Call, Done, Figures
from tests.shared.support import PATIENCE, QUICK, RawClient, joined, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiodq.engine.monitoring.activity import Activity

STEPS = 60
SMALL = 1 << 16
WAITS = timedelta(milliseconds=30)
CHANNEL = aiodq.ChannelOptions(visibility_timeout=0.05, backoff=None)


def options(sync: Any) -> aiodq.StoreOptions:
    return aiodq.StoreOptions(sync=sync, sync_interval=0.02, segment_bytes=SMALL)


class Owning:
    """Somebody in the owner's process, who does anything to one topic."""

    def __init__(self, store: aiodq.Store, choose: random.Random) -> None:
        self.store = store
        self.topic = store.topic("jobs")
        self.channel = self.topic.channel("c", CHANNEL)
        self.choose = choose
        self.held: list[aiodq.Message] = []

    def actions(self) -> list[Callable[[], Awaitable[object]]]:
        actions: list[Callable[[], Awaitable[object]]] = [
            self.put,
            self.put_many,
            self.put_later,
            self.put_much,
            self.take,
            self.take,
            self.take_two,
        ]
        actions += [self.seek, self.purge, self.pause, self.purge_channel, self.sync]
        return actions + [self.ack, self.nack, self.nack_later, self.release, self.transact, self.wait] * 2

    async def put(self) -> None:
        await self.topic.put(b"x")

    async def put_many(self) -> None:
        await self.topic.put_many([b"x"] * 3)

    async def put_later(self) -> None:
        await self.topic.put(b"x", delay=WAITS)

    async def put_much(self) -> None:
        await self.topic.put_many([b"x" * 5000] * 10)

    async def take(self) -> None:
        if self.channel.qsize() and not self.channel.paused:
            self.held.append(await self.channel.get())

    async def take_two(self) -> None:
        if self.channel.qsize() and not self.channel.paused:
            self.held += await self.channel.get_many(2)

    async def ack(self) -> None:
        await self._settle(lambda message: message.ack())

    async def nack(self) -> None:
        await self._settle(lambda message: message.nack())

    async def nack_later(self) -> None:
        await self._settle(lambda message: message.nack(WAITS))

    async def release(self) -> None:
        await self._settle(lambda message: message.nack(0, count_attempt=False))

    async def _settle(self, how: Callable[[aiodq.Message], Awaitable[object]]) -> None:
        if self.held:
            message = self.held.pop(self.choose.randrange(len(self.held)))
            try:
                await how(message)
            except (aiodq.NotInFlightError, aiodq.AlreadySettledError):
                self.held.clear()  # it has timed out, or the channel was moved: so have most others

    async def transact(self) -> None:
        try:
            async with self.store.transaction() as transaction:
                transaction.put("jobs", b"y")
                if self.held:
                    transaction.ack(self.held.pop())
        except (aiodq.NotInFlightError, aiodq.AlreadySettledError):
            self.held.clear()

    async def seek(self) -> None:
        with suppress(aiodq.OffsetError):  # retention may pass it first
            await self.channel.seek(self.choose.randint(self.topic.begin_offset, self.topic.end_offset))

    async def purge(self) -> None:
        await self.topic.purge()

    async def purge_channel(self) -> None:
        await self.channel.purge()

    async def pause(self) -> None:
        await (self.channel.resume() if self.channel.paused else self.channel.pause())

    async def sync(self) -> None:
        await self.topic.sync()

    async def wait(self) -> None:
        await asyncio.sleep(0.1)  # so that what is in hand times out, and what waits is due


def counts(topic: Any, channel: Any) -> tuple[object, ...]:
    of_topic = topic.begin_offset, topic.end_offset, topic.durable_offset
    return *of_topic, channel.qsize(), channel.in_flight(), channel.deferred(), channel.paused


async def idle(owner: Owner) -> None:
    """Wait until the owner takes no topic for active."""
    activity: Activity[Any] = owner.engine.activity
    quiet = 0
    async with asyncio.timeout(PATIENCE):
        while quiet < 5:
            await asyncio.sleep(0.005)
            active = owner._active
            quiet = 0 if activity.topics or active._watcher.noted or active.busy else quiet + 1


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
async def test_whatever_changes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, sync: str) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", 0.001)
    rng = random.Random(seed)
    async with owned(tmp_path / "s", options(sync)) as (store, owner):
        owning = Owning(store, rng)
        await owning.topic.settle_in()
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            topic = client.topic("jobs")
            channel = topic.channel("c")
            await topic.settle_in()
            for step in range(STEPS):
                if rng.random() < 0.5:
                    await idle(owner)
                does = rng.choice(owning.actions())
                await does()
                try:
                    await until(lambda: counts(topic, channel) == counts(owning.topic, owning.channel))
                except TimeoutError:
                    what = f"step {step}, {does.__name__}: told {counts(topic, channel)}"
                    pytest.fail(f"{what}, and it is {counts(owning.topic, owning.channel)}")


async def test_what_is_idle_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", 0.001)
    looked: list[int] = []
    say_figures = OpenHandles.send_figures

    def say(self: OpenHandles, handle: int, **how: Any) -> None:
        looked.append(handle)
        say_figures(self, handle, **how)

    monkeypatch.setattr(OpenHandles, "send_figures", say)
    async with (
        owned(tmp_path / "s", options("os")) as (store, owner),
        aiodq.open(tmp_path / "s", mode="client") as client,
    ):
        for number in range(20):
            topic = store.topic(f"t{number}")
            topic.channel("c")
            await topic.put_many([b"x", b"y"])
            client.topic(f"t{number}").channel("c")
            await client.topic(f"t{number}").settle_in()
        message = await store.topic("t0").channel("c").get()
        await message.ack()
        await idle(owner)
        looked.clear()
        await asyncio.sleep(0.1)
        assert looked == []
        await store.topic("t1").put(b"z")
        await until(lambda: client.topic("t1").end_offset == 3)
        await idle(owner)
        assert len(set(looked)) == 2  # the topic, and its channel


@pytest.mark.parametrize("rests", [False, True])
async def test_an_owner_whose_clients_have_much_to_be_told_rests_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", 0.001)
    monkeypatch.setattr(owner_module, "_APART", 1 << 40 if rests else 0)
    told, tell = list[float](), Owner._tell_outdated

    async def note(self: Owner) -> float:
        told.append(await tell(self))
        return told[-1]

    monkeypatch.setattr(Owner, "_tell_outdated", note)
    async with owned(tmp_path / "s", QUICK) as (store, _):
        await store.topic("jobs").put(b"x")
        await until(lambda: len(told) > (0 if rests else 3))
        await asyncio.sleep(0.05)
        assert (len(told) == 1) == rests
        assert min(told) > 0.0


async def test_offsets_are_known_once_the_topic_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", 3600.0)  # nothing is told but what is asked for
    async with owned(tmp_path / "s", options("os")) as (store, _):
        await store.topic("jobs").put_many([b"x"] * 10)
        raw = await RawClient.connected(tmp_path / "s")
        await raw.hello()
        read = raw.reader.read
        monkeypatch.setattr(raw.reader, "read", lambda _: read(1))
        await raw.open(1, "jobs")
        assert [said.end for said in raw.said if isinstance(said, Figures)] == [10]  # before the answer
        await raw.close()
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            topic = client.topic("jobs")
            await topic.settle_in()
            assert (topic.begin_offset, topic.end_offset) == (0, 10)
            channel = topic.channel("c")
            await store.topic("jobs").put_many([b"x"] * 5)
            await channel.refresh()
            assert (topic.begin_offset, topic.end_offset) == (0, 15)


async def test_what_a_client_assumes_is_corrected_though_it_is_as_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_FIGURES", PATIENCE)
    async with owned(tmp_path / "s", QUICK) as (store, owner):
        topic = store.topic("jobs")
        await topic.put(b"x")
        await topic.pause()
        await topic.resume()
        client = await joined(tmp_path / "s")
        changed = client.send(Call("changed", {"handle": 1}))
        assert isinstance(await client.ask(Call("pause", {"handle": 1, "paused": True})), Done)
        await topic.resume()
        await owner._tell_outdated()
        answer = await client.answer(changed)
        assert isinstance(answer, Done)
        assert (answer.facts or {})["paused"] is False
        await client.close()


# --- that a channel settles what it hands out


async def _polled(channel: aiodq.Channel) -> aiodq.Message:
    while True:
        with suppress(aiodq.QueueEmpty):
            return channel.get_nowait()
        await asyncio.sleep(0)


async def _of_many(channel: aiodq.Channel) -> aiodq.Message:
    [message] = await channel.get_many(5)
    return message


async def _iterated(channel: aiodq.Channel) -> aiodq.Message:
    return await anext(aiter(channel))


WAYS: dict[str, Callable[[aiodq.Channel], Awaitable[aiodq.Message]]] = {
    "get": lambda channel: channel.get(),
    "in time": lambda channel: channel.get(PATIENCE),
    "at once": _polled,
    "many": _of_many,
    "for": _iterated,
}


@pytest.mark.parametrize("way", WAYS)
async def test_who_opens_a_channel_by_its_name_acks_what_it_gets_first_if_that_is_its_option(
    tmp_path: Path, way: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        own = owner.topic("jobs").channel("c", aiodq.ChannelOptions(auto_ack=True))
        await owner.topic("jobs").put(b"x")
        message = await WAYS[way](client.topic("jobs").channel("c"))
        assert message.settled
        await until(lambda: own.depth == 0)


@pytest.mark.parametrize("way", WAYS)
async def test_who_opens_a_channel_by_its_name_requeues_what_it_gets_first_by_its_backoff(
    tmp_path: Path, way: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        waits = aiodq.ChannelOptions(backoff=aiodq.Backoff(first=timedelta(hours=1)))
        await owner.topic("jobs").channel("c", waits).refresh()
        await owner.topic("jobs").put(b"x")
        channel = client.topic("jobs").channel("c")
        await (await WAYS[way](channel)).nack()
        await channel.refresh()
        assert (channel.qsize(), channel.deferred()) == (0, 1)


async def test_all_processes_ack_what_they_get_once_a_channel_was_told_to(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        channel = client.topic("jobs").channel("c")
        await owner.topic("jobs").put_many([b"x", b"y"])
        await (await channel.get()).ack()
        own = owner.topic("jobs").channel("c")
        await own.configure(aiodq.ChannelOptions(auto_ack=True))
        assert (await channel.get()).settled
        await until(lambda: own.depth == 0)
