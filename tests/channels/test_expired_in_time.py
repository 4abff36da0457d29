"""What outlived its time to live is settled then: wherever it stands, and though nobody asks for a message."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.delivery.end_times import EndTimes
from aiodq.engine.channel.acks.out_of_turn import MOST_LETTERS
from aiodq.testing import Fault, FaultPlan, WatchedFileSystem
from tests.channels.support import counts, ready, soon, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.channels.support import Machine

LETTERS = pytest.mark.parametrize("dead_letter", [None, "dead"])


def jobs_of(store: aiodq.Store, dead_letter: str | None, **options: Any) -> aiodq.Queue:
    return store.queue("jobs", aiodq.ChannelOptions(dead_letter=dead_letter, **options))


async def letters(store: aiodq.Store, dead_letter: str | None, number: int) -> list[bytes]:
    """Return the bodies that became letters, sorted."""
    if dead_letter is None:
        return []
    return sorted([(await soon(store.queue(dead_letter).get())).body for _ in range(number)])


@LETTERS
@pytest.mark.parametrize("tags", [None, ("red",)])
async def test_behind_what_may_be_delivered(
    machine: Machine, dead_letter: str | None, tags: tuple[str, ...] | None
) -> None:
    async with machine.store(max_messages=6, overflow="reject") as store:
        jobs = jobs_of(store, dead_letter, tags=tags)
        bodies = [aiodq.Draft(b"%d" % number, tag="red", ttl=(number % 3) * 5 or None) for number in range(6)]
        await jobs.put_many(bodies)
        assert jobs.full()
        machine.clock.advance(5)
        await until(lambda: jobs.depth == 4)
        assert not jobs.full()
        machine.clock.advance(5)
        await until(lambda: jobs.depth == 2)
        assert jobs.stats().expired == 4
        assert counts(jobs) == (2, 0, 0)
        assert await letters(store, dead_letter, 4) == ([] if dead_letter is None else [b"1", b"2", b"4", b"5"])
        assert ready(jobs) == [b"0", b"3"]


@LETTERS
@pytest.mark.parametrize("crash", [False, True])
async def test_what_ended_while_nobody_had_the_store_open(
    machine: Machine, dead_letter: str | None, *, crash: bool
) -> None:
    """In many segments, of which few are in memory: behind a message that lives, nobody comes to them."""
    options = {"segment_bytes": 65_536, "memory_bytes": 65_536}
    async with machine.store(**options) as store:
        jobs = jobs_of(store, dead_letter)
        await jobs.put(b"head")
        for number in range(40):
            await jobs.put_many([b"%d" % number + bytes(4_000)] * 5, ttl=10 if number % 2 else None)
            await jobs.put_many([b"ends later"] * 5, ttl=100)
        if crash:
            machine.crash()
    machine.clock.advance(10)
    async with machine.store(**options) as store:
        jobs = jobs_of(store, dead_letter)
        await until(lambda: jobs.depth == 1 + 100 + 200)
        assert len(await letters(store, dead_letter, 100)) == (0 if dead_letter is None else 100)
        machine.clock.advance(90)
        await until(lambda: jobs.depth == 1 + 100)
        assert jobs.stats().expired == 300
        assert jobs.get_nowait().body == b"head"


@LETTERS
@pytest.mark.parametrize("back", ["nack", "later", "release", "timeout", "transaction"])
async def test_what_was_in_hand_then_and_comes_back(machine: Machine, dead_letter: str | None, back: str) -> None:
    async with machine.store() as store:
        jobs = jobs_of(store, dead_letter, visibility_timeout=100)
        await jobs.put_many([aiodq.Draft(b"%d" % number, ttl=10 if number else None) for number in range(4)])
        head, one, other, acked = await jobs.get_many(4)
        head.release()
        if back == "transaction":
            transaction = await store.transaction().__aenter__()
            for message in (one, other):
                transaction.ack(message)
        machine.clock.advance(10)
        await until(lambda: counts(jobs) == (1, 3, 0))
        await acked.ack()
        if back == "timeout":
            machine.clock.advance(90)
        elif back == "transaction":
            await transaction.__aexit__(ValueError, ValueError(), None)
        for message in (one, other):
            if back == "release":
                message.release()
            elif back in {"nack", "transaction"}:
                await message.nack()
            elif back == "later":
                await message.nack(1_000)
        await until(lambda: counts(jobs) == (1, 0, 0))
        assert jobs.stats().expired == 2
        assert await letters(store, dead_letter, 2) == ([] if dead_letter is None else [b"1", b"2"])
        assert ready(jobs) == [b"0"]


@LETTERS
async def test_what_is_deferred_then(machine: Machine, dead_letter: str | None) -> None:
    """It would never be delivered: by the log, and by whoever requeued it."""
    async with machine.store() as store:
        jobs = jobs_of(store, dead_letter)
        await jobs.put_many([b"head", aiodq.Draft(b"a", ttl=10, delay=20), aiodq.Draft(b"b", ttl=10)])
        head, requeued = await jobs.get_many(2)
        head.release()
        await requeued.nack(30)
        assert counts(jobs) == (1, 0, 2)
        machine.clock.advance(10)
        await until(lambda: counts(jobs) == (1, 0, 0))
        assert set(jobs._channel_engine.source.requeue_cache.batches) == {head.offset}
        assert await letters(store, dead_letter, 2) == ([] if dead_letter is None else [b"a", b"b"])


@LETTERS
async def test_what_a_seek_or_a_new_channel_brings_back(machine: Machine, dead_letter: str | None) -> None:
    keep = aiodq.Retention(consumed="keep")
    async with machine.store(retention=keep) as store:
        jobs = jobs_of(store, dead_letter)
        await jobs.put_many([b"head", aiodq.Draft(b"a", ttl=10), b"b", aiodq.Draft(b"c", ttl=20)])
        machine.clock.advance(10)
        await until(lambda: jobs.depth == 3)
        await jobs.seek("earliest")
        await until(lambda: jobs.depth == 3)
        late = jobs.topic.channel("late", aiodq.ChannelOptions(start="earliest", dead_letter=dead_letter))
        await jobs.topic.settle_in()
        await until(lambda: late.depth == 3)
        machine.clock.advance(10)
        await until(lambda: late.depth == jobs.depth == 2)
        assert await letters(store, dead_letter, 5) == ([] if dead_letter is None else [b"a", b"a", b"a", b"c", b"c"])
        assert ready(jobs) == ready(late) == [b"head", b"b"]


async def test_it_waits_while_the_channel_is_paused_or_full_as_little_as_ever(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = jobs_of(store, None, max_in_flight=1)
        await jobs.put_many([b"held", b"head", aiodq.Draft(b"x", ttl=10), aiodq.Draft(b"y", ttl=20)])
        await jobs.get()
        machine.clock.advance(10)
        await until(lambda: counts(jobs) == (2, 1, 0))
        await jobs.pause()
        machine.clock.advance(10)
        await until(lambda: counts(jobs) == (1, 1, 0))


def within(jobs: aiodq.Queue, least: int, most: int) -> bool:
    assert jobs.depth >= least
    return jobs.depth <= most


@pytest.mark.parametrize("dead_letter", [None, "dead"])
async def test_many_of_all_lifetimes(machine: Machine, dead_letter: str | None, seed: int) -> None:
    """More than are entered, or given up, in a turn of the loop."""
    draw = random.Random(seed)
    lives = [draw.choice([None, 1, draw.uniform(1, 50), draw.uniform(1, 5_000)]) for _ in range(3_000)]
    async with machine.store(sync="os") as store:
        jobs = jobs_of(store, dead_letter)
        await jobs.put(b"head")
        await jobs.put_many([aiodq.Draft(b"x", ttl=life) for life in lives[:2_000]])
        for life in lives[2_000:]:
            await jobs.put(b"x", ttl=life)
        for moment in (1, 20, 50, 2_500, 5_000):
            machine.clock.advance(moment - machine.clock.monotonic())
            least = 1 + sum(life is None or life > moment for life in lives)
            # What has just ended may be taken together with what ends soon: within a thousandth of its life.
            most = least + sum(life is not None and moment - 1.1 <= life <= moment for life in lives)
            await until(partial(within, jobs, least, most))
        machine.clock.advance(2)
        await until(lambda: jobs.depth == 1 + lives.count(None))


async def test_more_moments_than_are_kept_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends later is read again as the time comes."""
    monkeypatch.setattr("aiodq.engine.topic.expirations.EndTimes", partial(EndTimes, 5))
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await jobs.put(b"head")
        for number in range(40):
            await jobs.put(b"%d" % number, ttl=10 * (number % 20 + 1))
        for left in range(38, -1, -2):
            machine.clock.advance(10)
            await until(partial(_has_depth, jobs, 1 + left))
        assert jobs.stats().expired == 40


def _has_depth(jobs: aiodq.Queue, depth: int) -> bool:
    assert jobs.depth >= depth, "it came too early"
    return jobs.depth == depth


async def test_a_letter_that_finds_no_room_is_tried_again(machine: Machine) -> None:
    async with machine.store() as store:
        dead = store.queue("dead", options=aiodq.StoreOptions(max_messages=1, overflow="reject"))
        await dead.put(b"in the way")
        jobs = jobs_of(store, "dead")
        await jobs.put_many([b"head", aiodq.Draft(b"x", ttl=10)])
        machine.clock.advance(10)
        await until(lambda: counts(jobs) == (1, 0, 1))
        for tries in range(2, 5):
            machine.clock.advance(1)
            await until(lambda: jobs.stats().requeued == tries)
        await (await dead.get()).ack()
        machine.clock.advance(1)
        assert (await soon(dead.get())).body == b"x"
        await until(lambda: counts(jobs) == (1, 0, 0))
        assert (jobs.stats().expired, jobs.stats().dead) == (1, 1)


async def test_so_many_letters_are_on_their_way_at_once(machine: Machine) -> None:
    """Where the dead-letter topic has no room: what waits for it is not all in memory, and others are delivered."""
    async with machine.store(sync="os") as store:
        dead = store.queue("dead", options=aiodq.StoreOptions(max_messages=1))
        await dead.put(b"in the way")
        jobs = jobs_of(store, "dead")
        await jobs.put(b"head")
        await jobs.put_many([b"x"] * (MOST_LETTERS + 200), ttl=10)
        machine.clock.advance(10)
        await until(lambda: jobs.in_flight() == MOST_LETTERS)
        await jobs.sync()
        assert counts(jobs) == (201, MOST_LETTERS, 0)
        assert jobs.get_nowait().body == b"head"
        for _ in range(MOST_LETTERS + 201):
            await (await soon(dead.get())).ack()
        await until(lambda: counts(jobs) == (0, 1, 0))


async def test_letters_that_are_refused_hold_up_no_more_than_as_many_others(machine: Machine) -> None:
    async with machine.store(sync="os") as store:
        dead = store.queue("dead", options=aiodq.StoreOptions(max_messages=1, overflow="reject"))
        await dead.put(b"in the way")
        jobs = jobs_of(store, "dead")
        await jobs.put(b"head")
        await jobs.put_many([b"x"] * 1_000, ttl=10)
        machine.clock.advance(10)
        await until(lambda: jobs.deferred() == MOST_LETTERS)
        await jobs.sync()
        assert jobs.stats().requeued == MOST_LETTERS
        await dead.topic.configure(aiodq.StoreOptions())
        machine.clock.advance(1)
        await until(lambda: counts(jobs) == (1, 0, 0))
        assert jobs.stats().expired == jobs.stats().dead == dead.depth - 1 == 1_000


@pytest.mark.parametrize(("tags", "most"), [(None, 500), (("red",), 100)])
async def test_a_turn_of_the_loop_is_short_however_many_there_are(
    machine: Machine, tags: tuple[str, ...] | None, most: int
) -> None:
    """However many channels, too: one of them is dealt with in each turn."""
    async with machine.store(sync="os") as store:
        topic = store.topic("jobs")
        channels = [topic.channel(f"c{number}", aiodq.ChannelOptions(tags=tags)) for number in range(5)]
        await topic.settle_in()
        await topic.put_many([aiodq.Draft(b"x", tag="red", ttl=10 * (at % 2) or None) for at in range(3_000)])
        machine.clock.advance(10)
        depth = 5 * 3_000
        while depth > 5 * 1_500:
            await asyncio.sleep(0)
            before, depth = depth, sum(channel.depth for channel in channels)
            assert before - depth <= most


async def test_a_disk_that_cannot_be_read_is_asked_again_each_second(machine: Machine) -> None:
    async with machine.store(retention=aiodq.Retention(consumed="keep")) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"head", aiodq.Draft(b"x", ttl=10)])
        machine.clock.advance(10)
        await until(lambda: jobs.depth == 1)
        before = machine.fs.calls.get("read", 0)
        machine.fs.plan = FaultPlan([Fault("read", 1, "EIO", lasting=True)])
        await jobs.seek("earliest")
        await until(lambda: machine.fs.calls.get("read", 0) > before)
        await asyncio.sleep(0.1)
        for _ in range(20):
            await jobs.put(b"y", ttl=5)
        assert machine.fs.calls["read"] < before + 10
        assert jobs.depth == 22
        machine.fs.plan = FaultPlan()
        machine.clock.advance(1)
        await until(lambda: jobs.depth == 21)


@pytest.mark.parametrize("deleted", [False, True])
async def test_no_file_is_left_open_where_the_log_is_looked_through_at_the_end(
    tmp_path: Path, *, deleted: bool
) -> None:
    fs = WatchedFileSystem()
    names = [f"t{number}" for number in range(3)]
    async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=65_536, sync="os"), fs=fs) as store:
        for name in names:
            topic = store.topic(name)
            for _ in range(20):
                await topic.put_many([bytes(4_000)] * 20, ttl=1_000)
    for turns in range(0, 20, 4):
        async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os"), fs=fs) as store:
            for name in names:
                store.queue(name, aiodq.ChannelOptions(start="earliest"))
            for _ in range(turns):
                await asyncio.sleep(0)
            if deleted:
                await store.delete_topic(names.pop())
                if not names:
                    break
        await until(lambda: fs.open_files == 0)


async def test_nor_is_it_for_more_letters_than_are_made_in_a_turn(machine: Machine) -> None:
    async with machine.store(memory_bytes=65_536) as store:
        jobs = jobs_of(store, "dead")
        await jobs.put(b"head")
        for _ in range(10):
            await jobs.put_many([bytes(1_000)] * 100, ttl=10)
        before = machine.fs.calls.get("read", 0)
        machine.fs.plan = FaultPlan([Fault("read", 1, "EIO", lasting=True)])
        machine.clock.advance(10)
        await until(lambda: machine.fs.calls.get("read", 0) > before)
        await asyncio.sleep(0.1)
        assert machine.fs.calls["read"] < before + 10
        machine.fs.plan = FaultPlan()
        machine.clock.advance(1)
        await until(lambda: jobs.depth == 1)


@pytest.mark.parametrize("crash", [False, True])
async def test_last_attempts_behind_a_live_message_are_letters_at_the_next_opening(
    machine: Machine, *, crash: bool
) -> None:
    options = aiodq.ChannelOptions(max_attempts=2, dead_letter="dead")
    async with machine.store() as store:
        jobs = store.queue("jobs", options)
        await jobs.put_many([b"head", b"a", b"b", b"c"])
        for _ in range(2):
            head, *dying = await jobs.get_many(3)
            for message in (head, *dying)[: 3 if _ == 0 else 1]:
                message.release() if message is head else await message.nack()
        del head, message
        if crash:
            await jobs.sync()
            machine.crash()
        del dying
    async with machine.store() as store:
        jobs = store.queue("jobs", options)
        assert await letters(store, "dead", 2) == [b"a", b"b"]
        await until(lambda: jobs.depth == 2)
        assert ready(jobs) == [b"head", b"c"]


async def test_so_they_are_by_fewer_attempts_from_now_on(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=5))
        await jobs.put_many([b"head", b"a"])
        head, message = await jobs.get_many(2)
        head.release()
        await message.nack()
        await jobs.configure(aiodq.ChannelOptions(max_attempts=1))
        await until(lambda: jobs.depth == 1)
        assert jobs.stats().dead == 1


@LETTERS
@pytest.mark.parametrize("held", [False, True])
async def test_nothing_is_settled_before_those_who_held_messages_were_heard(
    machine: Machine, dead_letter: str | None, *, held: bool
) -> None:
    """Nor while options are being written."""
    async with machine.store() as store:
        jobs = jobs_of(store, dead_letter)
        await jobs.put_many([b"head", aiodq.Draft(b"a", ttl=10), aiodq.Draft(b"b", ttl=10)])
        channel_engine = jobs._channel_engine
        if held:
            channel_engine.hold_back(held=True)
        else:
            channel_engine.reclaim(under_way=True)
        machine.clock.advance(10)
        for _ in range(20):
            await asyncio.sleep(0)
        assert jobs.depth == 3
        if held:
            channel_engine.hold_back(held=False)
        else:
            channel_engine.reclaim(under_way=False)
        await until(lambda: jobs.depth == 1)
        assert await letters(store, dead_letter, 2) == ([] if dead_letter is None else [b"a", b"b"])


async def test_letters_that_nobody_waits_for_any_more_are_forgotten(machine: Machine) -> None:
    async with machine.store() as store:
        dead = store.queue("dead", options=aiodq.StoreOptions(max_messages=1, overflow="reject"))
        await dead.put(b"in the way")
        jobs = jobs_of(store, "dead")
        for number in range(30):
            await jobs.put_many([aiodq.Draft(b"x", ttl=10)] * 10)
            machine.clock.advance(10)
            await until(lambda: jobs.deferred() == 10)
            assert await jobs.purge() == 10
            assert len(jobs._channel_engine.undeliverable.out_of_turn.unsent) < 100, number
