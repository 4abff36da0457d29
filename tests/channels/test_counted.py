"""With `max_attempts`, a delivery counts also if it ends with its process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.format.journal import OpKind
from aiodq.storage.state.channel_files import read_channel
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import SimulatedFileSystem
from tests.channels.support import PATIENCE, Machine, soon, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodq.format.journal import Op

COUNTED = aiodq.ChannelOptions(max_attempts=3)


def killed(machine: Machine) -> Machine:
    """Return a machine that holds what the system has when the process dies now."""
    other = Machine()
    other.fs = SimulatedFileSystem(machine.fs.image())
    return other


def written(machine: Machine) -> list[Op]:
    return read_channel(machine.fs, "/s/jobs/channels/default", 0).ops


def delivered(machine: Machine) -> list[tuple[int, int, int]]:
    """Return what is written of deliveries, as (offset, how many, how often)."""
    return [(op.offset, op.length, op.value) for op in written(machine) if op.kind is OpKind.REQUEUE]


@asynccontextmanager
async def counted(machine: Machine, *bodies: bytes, **options: Any) -> AsyncIterator[aiodq.Queue]:
    async with machine.jobs(**{"max_attempts": 3, **options}) as jobs:
        await jobs.put_many(bodies)
        yield jobs


async def attempts(machine: Machine, number: int) -> list[int]:
    """Return the attempts of the next messages, in a process of their own that is killed too."""
    async with counted(machine) as jobs:
        return [message.attempts for message in await jobs.get_many(number)]


@pytest.mark.parametrize("how", ["get", "get_nowait", "get_many", "async for", "timeout", "consume"])
async def test_it_is_written_before_anybody_has_the_message(machine: Machine, how: str) -> None:
    async with counted(machine, b"a", b"b") as jobs:
        if how == "get":
            await jobs.get()
        elif how == "get_nowait":
            jobs.get_nowait()
        elif how == "get_many":
            await jobs.get_many(1)
        elif how == "consume":
            after = await in_a_handler(machine, jobs)
        elif how == "timeout":
            await jobs.get(timeout=5)
        else:
            async for _ in jobs:
                break
        if how != "consume":
            after = killed(machine)
    assert delivered(after) == [(0, 1, 1)]
    assert await attempts(after, 2) == [2, 1]


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("which", ["oldest", "newest", "any"])
async def test_a_kill_at_any_moment_finds_what_was_acked_settled_and_counts_what_was_in_hand(
    machine: Machine, seed: int, which: str, window: int
) -> None:
    rng, bodies = Random(seed), [str(number).encode() for number in range(20)]
    async with counted(machine, *bodies) as jobs:
        held, left = list[aiodq.Message](), set(bodies)
        async for message in jobs:
            held.append(message)
            async with counted(killed(machine)) as again:
                found = {each.body: each.attempts for each in await again.get_many(len(bodies))}
            in_hand = {each.body for each in held}
            assert found == {body: 2 if body in in_hand else 1 for body in left}
            if message.body == bodies[-1]:
                break
            while len(held) >= window:
                acked = held.pop({"oldest": 0, "newest": -1}.get(which, rng.randrange(len(held))))
                acked.ack_nowait()
                left.remove(acked.body)
            if rng.random() < 0.1:
                await jobs.topic.sync()


async def in_a_handler(machine: Machine, jobs: aiodq.Queue) -> Machine:
    """Return what a handler's process leaves that is killed with its first message."""
    images: asyncio.Queue[Machine] = asyncio.Queue()

    async def handler(_: aiodq.Message) -> None:
        images.put_nowait(killed(machine))

    consuming = asyncio.ensure_future(jobs.consume(handler))
    first = await soon(images.get())
    consuming.cancel()
    await asyncio.wait([consuming])
    return first


async def test_a_message_that_kills_the_process_is_dead_after_its_last_attempt(machine: Machine) -> None:
    options: dict[str, Any] = {"dead_letter": "dead", "max_in_flight": 1}
    async with counted(machine, b"poison", b"good", **options) as jobs:
        assert (await jobs.get()).attempts == 1
        machine = killed(machine)
    for attempt in (2, 3):
        async with counted(machine, **options) as jobs:
            assert (await jobs.get()).attempts == attempt
            machine = killed(machine)
    async with machine.store() as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=3, **options))
        assert (await soon(jobs.get())).body == b"good"
        letter = await soon(store.queue("dead").get())
        assert (letter.body, letter.headers["aiodq-attempts"]) == (b"poison", "3")


async def test_a_run_is_one_record(machine: Machine) -> None:
    async with counted(machine, *[b"%d" % number for number in range(10)]) as jobs:
        await jobs.get_many(4)
        await jobs.get()
        await (await jobs.get()).nack()
        await jobs.sync()  # or the record of that may be spared, if its next delivery is written as soon
        taken = await jobs.get_many(9)
        assert [message.attempts for message in taken] == [2, 1, 1, 1, 1]
        after = killed(machine)
    assert delivered(after) == [(0, 4, 1), (4, 1, 1), (5, 1, 1), (5, 1, 1), (5, 1, 2), (6, 4, 1)]
    assert await attempts(after, 10) == [2, 2, 2, 2, 2, 3, 2, 2, 2, 2]


async def test_what_was_only_read_ahead_does_not_count(machine: Machine) -> None:
    async with counted(machine, b"a", b"b", b"c") as jobs:
        await jobs.get()
        await jobs.peek()
        after = killed(machine)
    assert await attempts(after, 3) == [2, 1, 1]


async def test_a_release_takes_it_back(machine: Machine) -> None:
    async with counted(machine, b"a") as jobs:
        (await jobs.get()).release()
        await jobs.sync()
        after = killed(machine)
    assert await attempts(after, 1) == [1]


async def test_a_cancelled_get_many_takes_it_back(machine: Machine) -> None:
    async with counted(machine, b"a") as jobs:
        lingering = asyncio.ensure_future(jobs.get_many(2, linger=60))
        await until(lambda: jobs.in_flight() == 1)
        lingering.cancel()
        await asyncio.wait([lingering])
        await jobs.sync()
        after = killed(machine)
    assert delivered(after) == [(0, 1, 0)]
    assert await attempts(after, 1) == [1]


async def test_a_clean_close_counts_what_nobody_settled(machine: Machine) -> None:
    async with counted(machine, b"a", b"b") as jobs:
        (await jobs.get_many(2))[1].release()
    assert await attempts(machine, 2) == [2, 1]


async def test_without_max_attempts_nothing_is_written(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", b"b"])
        await jobs.get()
        after = killed(machine)
        assert not written(after)
    async with after.jobs() as jobs:
        assert [message.attempts for message in await jobs.get_many(2)] == [1, 1]


async def test_with_auto_ack_nothing_is_counted(machine: Machine) -> None:
    async with counted(machine, b"a", auto_ack=True) as jobs:
        await jobs.get()
        await jobs.sync()
        assert not delivered(machine)


async def test_after_a_power_cut_it_is_no_more_than_really_was(machine: Machine) -> None:
    async with counted(machine, b"a", b"b") as jobs:
        await (await jobs.get()).nack()
        await jobs.sync()
        await jobs.get()
        machine.crash()
    assert await attempts(machine, 2) == [2, 1]


async def test_a_timeout_counts_once(machine: Machine) -> None:
    async with counted(machine, b"a", visibility_timeout=5) as jobs:
        await jobs.get()
        machine.clock.advance(5)
        await until(lambda: jobs.qsize() == 1)
        await jobs.sync()
        after = killed(machine)
    assert await attempts(after, 1) == [2]


async def test_after_a_seek_it_begins_anew_and_counts(machine: Machine) -> None:
    async with counted(machine, b"a") as jobs:
        await jobs.get()
        await jobs.seek("earliest")
        assert (await jobs.get()).attempts == 1
        after = killed(machine)
    assert await attempts(after, 1) == [2]


async def test_a_checkpoint_has_what_is_in_flight(machine: Machine) -> None:
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 2):
        async with counted(machine, *[b"%d" % number for number in range(8)]) as jobs:
            held = await jobs.get()
            for _ in range(5):
                await (await jobs.get()).ack()
            assert not held.settled
            await jobs.sync()
            after = killed(machine)
    assert await attempts(after, 3) == [2, 1, 1]


async def test_what_is_handed_out_while_a_checkpoint_is_written_counts(machine: Machine) -> None:
    fold, taken, handed = ChannelJournal.fold, list[int](), threading.Event()
    after: list[Machine] = []
    loop = asyncio.get_running_loop()

    def take() -> None:
        taken.append(jobs.get_nowait().offset)
        handed.set()

    def beside(journal: ChannelJournal, image: Any) -> None:
        if not handed.is_set():
            loop.call_soon_threadsafe(take)
            assert handed.wait(PATIENCE)
        fold(journal, image)
        after.append(killed(machine))

    with (
        mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 2),
        mock.patch.object(ChannelJournal, "fold", beside),
    ):
        async with counted(machine, *[b"%d" % number for number in range(8)]) as jobs:
            for _ in range(3):
                await (await jobs.get()).ack()
            await until(lambda: after)
    assert await attempts(after[0], 1) == [2]


async def test_a_full_disk_holds_no_delivery_up(machine: Machine) -> None:
    async with counted(machine, b"a", b"b") as jobs:
        with mock.patch.object(ChannelJournal, "append", side_effect=aiodq.DiskFullError("no space")):
            assert (await jobs.get()).body == b"a"
        assert not delivered(machine)
        await jobs.sync()
        after = killed(machine)
    assert await attempts(after, 2) == [2, 1]


async def test_what_is_switched_on_counts_from_then_on(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        await jobs.get()
        store.topic("jobs").channel("default", COUNTED)
        await jobs.get()
        after = killed(machine)
    assert await attempts(after, 2) == [1, 2]


async def test_nobody_waits_for_a_thread_that_writes_the_journal(machine: Machine) -> None:
    async with counted(machine, b"a", b"b") as jobs:
        journal = jobs._channel_engine.journal
        assert journal is not None
        with journal._mutex:
            assert jobs.get_nowait().body == b"a"
        await jobs.sync()
        assert jobs.get_nowait().body == b"b"
        after = killed(machine)
    assert await attempts(after, 2) == [2, 2]
