"""What one process changes of a topic or channel, the others know soon, without asking."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.shared.consuming import remote_channel
from aiodq.shared.consuming.timeouts import Timeouts
from aiodq.shared.server.session import Session
from aiodq.wire.packets import Call
from tests.shared.support import PATIENCE, QUICK, counts, two, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

MOST = aiodq.StoreOptions(sync="os", max_messages=7)
TRIES = aiodq.ChannelOptions(max_attempts=4, visibility_timeout=5)


async def test_the_options_of_a_topic_are_what_another_process_made_them(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        topics = [store.topic("jobs") for store in stores]
        for topic in topics:
            await topic.settle_in()
        await topics[0].configure(MOST)
        await until(lambda: topics[1].options == MOST)
        await topics[1].configure(QUICK)
        await until(lambda: topics[0].options == QUICK)
        await topics[0].configure(MOST)
        await until(lambda: topics[1].options == MOST)


@pytest.mark.parametrize("how", ["given", "named", "configured"])
async def test_an_ephemeral_topic_drops_its_oldest_whatever_options_it_is_given(tmp_path: Path, how: str) -> None:
    options = aiodq.StoreOptions(sync="os", max_messages=3, overflow="reject")
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        for number, store in enumerate(stores):
            name = f"t{number}#ephemeral"
            topic = store.topic(name, options if how == "given" else None)
            if how == "named":
                store.topic(name, options)
            elif how == "configured":
                await topic.configure(options)
            for receipt in [topic.put_nowait(b"%d" % each) for each in range(5)]:
                await receipt
            assert topic.options.overflow == "drop_oldest"


@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
async def test_the_options_of_a_channel_are_what_another_process_made_them(tmp_path: Path, name: str) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        channels = [store.topic("jobs").channel(name) for store in stores]
        for channel in channels:
            await channel.refresh()
        await channels[0].configure(TRIES)
        await until(lambda: channels[1].options == TRIES)
        # By these it renews the time of what is worked on.
        await channels[1].configure(aiodq.ChannelOptions())
        await until(lambda: channels[0].options == aiodq.ChannelOptions())


@pytest.mark.parametrize("before", [None, 3600])
async def test_what_is_worked_on_is_kept_by_a_shorter_timeout_as_soon_as_there_is_one(
    tmp_path: Path, before: float | None
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        jobs = client.queue("jobs", channel=aiodq.ChannelOptions(visibility_timeout=before))
        await jobs.put_many([b"0", b"1"])
        async with await jobs.get() as first, first.renewing():
            await owner.queue("jobs").configure(aiodq.ChannelOptions(visibility_timeout=0.3))
            async with await jobs.get() as second:
                with mock.patch.object(Timeouts, "_touch", autospec=True, side_effect=Timeouts._touch) as touch:
                    async with second.renewing():
                        await until(lambda: touch.call_count > 1)
                        assert {number for call in touch.mock_calls for number in call.args[1]} == {0, 1}


async def test_a_channel_is_paused_for_all_who_hold_it(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        channels = [store.topic("jobs").channel("c") for store in stores]
        for channel in channels:
            await channel.refresh()
        await channels[0].pause()
        await until(lambda: channels[1].paused)
        await stores[1].topic("jobs").pause()
        await channels[1].resume()
        await until(lambda: all(channel.paused for channel in channels))
        await stores[0].topic("jobs").resume()
        await until(lambda: not any(channel.paused for channel in channels))


@pytest.mark.parametrize("who", ["this process", "another", "another, all of the topic"])
async def test_what_is_here_and_not_taken_is_not_handed_out_once_the_channel_is_paused(
    tmp_path: Path, who: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        jobs: Any = client.queue("jobs")
        await jobs.put_many([b"%d" % number for number in range(9)])
        by: Any = {"this process": jobs, "another": owner.queue("jobs")}.get(who, owner.topic("jobs"))
        with jobs._remote.wanting(7):
            jobs._remote._demand.want()
            await until(lambda: len(jobs._remote._ready) == 7)
            assert (await jobs.get()).body == b"0"
            await by.pause()
            await until(lambda: jobs._remote._demand.held_back)
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            getting = asyncio.create_task(jobs.get())
            others = asyncio.create_task(jobs.get_many(9))
            await until(lambda: not jobs._remote._ready)
            assert await counts(jobs) == (8, 1, 0)
            assert not getting.done()
            assert not others.done()
        await by.resume()
        bodies = [(await getting).body, *(message.body for message in await others)]
        while len(bodies) < 8:
            bodies.append((await jobs.get()).body)
        assert bodies == [b"%d" % number for number in range(1, 9)]


async def test_what_came_as_a_channel_was_resumed_for_a_moment_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_channel, "_UNTOLD", 0.01)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        jobs: Any = client.queue("jobs")
        await jobs.put(b"x")
        await owner.queue("jobs").pause()
        await until(lambda: jobs._remote._demand.held_back)
        getting = asyncio.create_task(jobs.get())
        await jobs.refresh()  # by now the owner knows of it
        server: Any = owner
        engine = server._remote.owner.engine.topics["jobs"].channel_engines["default"]
        engine.pause(paused=False)
        await until(lambda: len(jobs._remote._ready))
        engine.pause(paused=True)
        await until(lambda: not jobs._remote._ready)
        assert await counts(jobs) == (1, 0, 0)
        assert not getting.done()
        await owner.queue("jobs").resume()
        assert (await getting).attempts == 1


@pytest.mark.parametrize("who", [0, 1])
async def test_who_waits_in_a_channel_that_is_paused_is_told_of_the_end_of_a_drain(tmp_path: Path, who: int) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        jobs: Any = stores[who].queue("jobs")
        getting = asyncio.create_task(jobs.get())
        await until(lambda: jobs._remote._demand.wanted)
        await stores[0].queue("jobs").pause()
        await until(lambda: jobs._remote._demand.held_back)
        await stores[1].drain(PATIENCE)
        with pytest.raises(aiodq.QueueShutDown):
            await getting


@pytest.mark.parametrize("who", [0, 1])
async def test_what_is_here_and_not_taken_is_not_handed_out_once_it_has_none_of_the_tags(
    tmp_path: Path, who: int
) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        jobs: Any = stores[1].queue("jobs")
        await jobs.put_many([aiodq.Draft((tag or "none").encode(), tag=tag) for tag in ("a", "b", None) * 3])
        with jobs._remote.wanting(7):
            jobs._remote._demand.want()
            await until(lambda: len(jobs._remote._ready) == 7)
            assert (await jobs.get()).body == b"a"
            await stores[who].queue("jobs").configure(aiodq.ChannelOptions(tags=["b"]))
            await until(lambda: jobs.options.tags)
            assert [(await jobs.get()).body for _ in range(3)] == [b"b"] * 3
        assert await counts(jobs) == (0, 4, 0)


async def test_who_pauses_a_channel_gets_nothing_that_was_asked_for_before(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        jobs = client.queue("jobs")
        await jobs.put(b"x")
        for _ in range(3):
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            await jobs.refresh()
            await jobs.pause()
            with pytest.raises(aiodq.QueueEmpty):
                jobs.get_nowait()
            assert await counts(jobs) == (1, 0, 0)
            await jobs.resume()
        async with await jobs.get() as message:
            assert message.attempts == 1


@pytest.mark.parametrize("steps", [1, 2, 4])
async def test_a_pause_whose_caller_is_cancelled_is_made_all_the_same(tmp_path: Path, steps: int) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topics = [store.topic("jobs") for store in (owner, client)]
        channels = [topic.channel("c") for topic in topics]
        for channel in channels:
            await channel.refresh()
        for pause, paused in ((channels[1].pause, True), (channels[1].resume, False), (topics[1].pause, True)):

            async def call(pause: Callable[[], Awaitable[None]] = pause) -> None:
                await pause()

            calling = asyncio.ensure_future(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
            await until(lambda: channels[0].paused == paused)


async def test_a_topic_that_another_process_deleted_is_told_without_a_call(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.put(b"x")
        await owner.delete_topic("jobs")
        await until(lambda: "deleted" in repr(topic))
        with pytest.raises(aiodq.QueueShutDown, match="deleted"):
            topic.put_nowait(b"y")
        assert await client.topic("jobs").put(b"z") == 0


async def test_an_owner_that_tells_of_no_changes_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Call] = []
    call = Session._call

    def call_before(session: Session, said: Call, request: int) -> None:
        if said.name == "changed":
            asked.append(said)
            said = Call("unknown", said.arguments)
        call(session, said, request)

    monkeypatch.setattr(Session, "_call", call_before)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.channel("c").refresh()
        await owner.topic("jobs").configure(MOST)
        await topic.put(b"x")
        await topic.channel("c").refresh()
        assert len(asked) == 3


async def test_the_counts_of_a_channel_are_known_as_soon_as_it_is_named(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner, asyncio.timeout(PATIENCE):
        topic = owner.topic("jobs")
        await topic.channel("c").refresh()
        await topic.put_many([b"x"] * 5)
        await topic.put(b"later", delay=1000)
        message = await topic.channel("c").get()
        async with aiodq.open(tmp_path / "s", QUICK, mode="client") as client:
            channel = client.topic("jobs").channel("c")
            assert (channel.qsize(), channel.in_flight(), channel.deferred(), channel.stats().depth) == (4, 1, 1, 6)
            assert client.topic("jobs").channel("new").depth == 0
            await message.ack()
            await channel.refresh()
            assert (channel.qsize(), channel.in_flight(), channel.deferred(), channel.depth) == (4, 0, 1, 5)


async def test_who_has_asked_so_often_that_numbers_come_again_is_told_of_changes_all_the_same(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as stores, asyncio.timeout(PATIENCE):
        channels = [store.topic("jobs").channel("c") for store in stores]
        for channel in channels:
            await channel.refresh()
        stores[1]._remote.link._pending.last = 0xFFFFFFFF - 3  # type: ignore[attr-defined]  # as after days
        for _ in range(20):
            await channels[1].refresh()
        await channels[0].configure(TRIES)
        await until(lambda: channels[1].options == TRIES)
