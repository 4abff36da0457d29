"""Puts of several processes share a sync: who usually puts again soon is waited for, a moment."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.topic.commit.commit_delay import CommitDelay
from aiodq.engine.topic.puts.put_buffer import PutBuffer
from aiodq.wire.packets import Done, Ping
from tests.shared.support import PATIENCE, RawClient, owned, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aiodq.engine.batch.put_batch import Part
    from aiodq.engine.topic.topic_engine import TopicEngine


class Scene:
    """Those who return, a clock that is moved by hand, and how often what waited was told to go on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.again = 0
        self.delay = CommitDelay(asyncio.get_running_loop(), lambda: self.now, self.go_on)

    def go_on(self) -> None:
        self.again += 1

    def sync(self, seconds: float) -> None:
        self.delay.sync_began()
        self.now += seconds
        self.delay.sync_ended()

    def rounds(self, *who: str, count: int = 4, after: float = 0.0001) -> None:
        """Have these put, share a sync, be told, and put again so much later; in the end they were told."""
        for _ in range(count):
            self.sync(0.0002)
            for each in who:
                self.delay.answered(each)
            self.now += after
            for each in who:
                self.delay.put_arrived(each)
        self.sync(0.0002)
        for each in who:
            self.delay.answered(each)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("last", ["put_arrived", "disconnected"])
async def test_who_puts_again_soon_each_time_is_waited_for_until_all_did_or_are_gone(scene: Scene, last: str) -> None:
    scene.rounds("a", "b")
    assert scene.delay.expected
    scene.delay.put_arrived("a")
    assert scene.delay.should_wait()
    getattr(scene.delay, last)("b")
    assert not scene.delay.should_wait()
    await asyncio.sleep(0)
    assert scene.again == 1


async def test_who_puts_for_the_first_few_times_or_late_is_not_waited_for(scene: Scene) -> None:
    scene.rounds("a", "b", count=3)
    assert not scene.delay.expected
    scene.rounds("a", "b")
    scene.now += 0.00025
    scene.delay.put_arrived("a")
    assert not scene.delay.should_wait(), "it is over a sync since they were told"
    assert not scene.delay.expected
    scene.delay.put_arrived("b")
    scene.sync(0.0002)
    scene.delay.answered("a")
    assert not scene.delay.expected, "they have been late"


async def test_who_does_not_come_is_waited_for_once_and_not_long(scene: Scene) -> None:
    scene.rounds("a", "b")
    scene.delay.put_arrived("a")
    assert scene.delay.should_wait()
    scene.now += 0.001
    await until(lambda: scene.again)
    assert not scene.delay.should_wait()
    scene.delay.answered("a")
    scene.delay.put_arrived("a")
    assert not scene.delay.should_wait()


async def test_one_of_many_is_waited_for_but_a_share_of_the_time(scene: Scene) -> None:
    many = [str(number) for number in range(40)]
    scene.rounds(*many)
    for each in many[1:]:
        scene.delay.put_arrived(each)
    assert scene.delay.should_wait()
    scene.now += 0.00003  # of 0.0002, a tenth is over
    assert not scene.delay.should_wait()


async def test_a_device_that_hangs_once_makes_nobody_wait_for_long(scene: Scene) -> None:
    scene.rounds("a", "b")
    for each in "ab":
        scene.delay.put_arrived(each)
    scene.sync(5.0)
    for each in "ab":
        scene.delay.answered(each)
    scene.delay.put_arrived("a")
    scene.now += 0.0006
    assert not scene.delay.should_wait()


# --- at an owner


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[tuple[TopicEngine, RawClient, RawClient]]:
    """Return a topic, and two clients of it that have put in turn, each as soon as it was told."""
    async with owned(tmp_path / "s") as (store, owner):
        topic = store.topic("jobs")
        pair = [await RawClient.connected(tmp_path / "s") for _ in range(2)]
        for number, each in enumerate(pair):
            await each.hello(number + 1)
            await each.open(1, "jobs")
        for sequence in range(1, 6):
            for each in pair:
                assert isinstance(await each.answer(each.put(1, sequence, [b"x"])), Done)
        for each in pair:
            await each.ask(Ping(1))  # a thread told them of their puts, perhaps before the loop knew
        assert owner.clients
        yield topic._engine, pair[0], pair[1]
        for each in pair:
            await each.close()


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it be soon for as long as a test takes, however fast this machine is."""

    def ended(self: CommitDelay) -> None:
        self._soon = 60.0

    monkeypatch.setattr(CommitDelay, "sync_ended", ended)


@pytest.mark.usefixtures("_patient")
async def test_two_processes_that_put_in_turn_come_to_share_their_syncs(
    clients: tuple[TopicEngine, RawClient, RawClient],
) -> None:
    engine, one, other = clients
    syncs = engine.syncer.count
    first = one.put(1, 6, [b"one"])
    await one.ask(Ping(1))
    assert (engine.put_buffer.pending, engine.log.end) == (1, 10), "it waits for the other"
    second = other.put(1, 6, [b"other"])
    assert await one.answer(first) == Done((10, 1))
    assert await other.answer(second) == Done((11, 1))
    assert engine.syncer.count == syncs + 1


@pytest.mark.usefixtures("_patient")
async def test_a_process_that_is_gone_keeps_no_put_of_another_waiting(
    clients: tuple[TopicEngine, RawClient, RawClient],
) -> None:
    _, one, other = clients
    put = one.put(1, 6, [b"one"])
    await one.ask(Ping(1))
    await other.close()
    assert await one.answer(put) == Done((10, 1))


@pytest.mark.usefixtures("_patient")
async def test_who_asks_for_a_sync_has_what_waits_written(clients: tuple[TopicEngine, RawClient, RawClient]) -> None:
    engine, one, _ = clients
    put = one.put(1, 6, [b"one"])
    await one.ask(Ping(1))
    async with asyncio.timeout(PATIENCE):
        await engine.sync()
    assert await one.answer(put) == Done((10, 1))


async def test_a_process_that_stops_putting_keeps_nobody_waiting(
    clients: tuple[TopicEngine, RawClient, RawClient],
) -> None:
    _, one, _ = clients
    for sequence in range(6, 16):
        assert isinstance(await one.answer(one.put(1, sequence, [b"one"])), Done)


def recorded(batched: list[object], accept: Callable[[PutBuffer, Part], None]) -> Callable[[PutBuffer, Part], None]:
    def accept_part(self: PutBuffer, part: Part) -> None:
        batched.append(part)
        accept(self, part)

    return accept_part


async def test_nobody_is_waited_for_where_a_put_waits_for_no_sync_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(tmp_path / "s") as (store, _):
        topic = store.topic("jobs")
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        commit = topic._engine.group_commit
        for sequence in range(1, 8):
            assert isinstance(await client.answer(client.put(1, sequence, [b"x"])), Done)
        assert commit.delay is not None
        commit.delay.expected.add("a client that does not come back")
        await topic.configure(aiodq.StoreOptions(sync="os"))
        await client.ask(Ping(1))
        batched: list[object] = []
        monkeypatch.setattr(PutBuffer, "accept_part", recorded(batched, PutBuffer.accept_part))
        assert await client.answer(client.put(1, 8, [b"x"])) == Done((7, 1))
        assert not batched, "it is written at once, as there is nobody to share a sync with"
        await client.close()


async def test_a_connection_keeps_nothing_of_a_deleted_topic(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        deleted: list[weakref.ref[TopicEngine]] = []
        for number in range(1, 4):
            await client.open(number, f"t{number}")
            assert isinstance(await client.answer(client.put(number, 1, [b"x"])), Done)
            deleted.append(weakref.ref(store._store_engine.topics[f"t{number}"]))
            await store.delete_topic(f"t{number}")
        await until(lambda: not owner.clients[0].handles.topics)

        def gone() -> bool:
            gc.collect()
            return [each() for each in deleted[:-1]] == [None, None]

        await until(gone)  # what looks at active topics each second has let go of them
        await client.close()
