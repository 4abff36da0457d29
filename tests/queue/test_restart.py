"""What is there after a restart, and after a crash at any moment: the directory as it is then, opened elsewhere."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.queue.support import (
    CHANGES,
    Camera,
    Tasks,
    bodies_of,
    crash_image,
    drain,
    fill,
    numbered,
    odd_files,
    queue,
    ready_now,
    segments,
    soon,
    store,
    take,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


LOST_JOURNALS: dict[str, Callable[[Path], object]] = {
    "gone": lambda directory: (directory / "journal").unlink(),
    "zeros": lambda directory: _zero(directory / "journal"),
    "empty": lambda directory: os.truncate(directory / "journal", 0),
    "directory gone": shutil.rmtree,
    "channels gone": lambda directory: shutil.rmtree(directory.parent),
}
"""What somebody or a disk may do to a channel's only file: there is a checkpoint only later."""


class TestRestart:
    @pytest.mark.parametrize("lose", LOST_JOURNALS.values(), ids=LOST_JOURNALS)
    async def test_acks_that_went_with_a_young_channel_s_journal_are_reported(
        self, path: Path, tmp_path: Path, lose: Callable[[Path], object]
    ) -> None:
        async with store(path) as opened:
            channel = opened.topic("orders").channel("mail")
            await fill(opened.topic("orders"), numbered(3))
            await channel.ack_many(await take(channel, 3))
            image, whole = (crash_image(path, tmp_path / name) for name in ("image", "whole"))
        assert verify_store(str(whole), OsFileSystem()).ok
        journal = image / "orders" / "channels" / "mail" / "journal"
        assert journal.exists()
        assert not journal.with_name("checkpoint").exists()
        lose(journal.parent)
        assert [finding.path for finding in verify_store(str(image), OsFileSystem()).damages] == [str(journal)]
        mended = crash_image(image, tmp_path / "mended")
        assert [done.path for done in repair_store(str(mended), OsFileSystem())] == [
            str(mended / journal.relative_to(image))
        ]
        assert verify_store(str(mended), OsFileSystem()).ok
        async with store(image) as opened:
            events, topic = opened.events(), opened.topic("orders")
            assert topic.stats().damages == 1
            event = await soon(anext(events))
            assert (event.kind, event.topic) == ("damage", "orders")
            assert bodies_of(await take(topic.channel("mail"), 3)) == numbered(3)
        for copy, left in ((whole, 0), (image, 3), (mended, 3)):
            async with store(copy) as opened:
                topic = opened.topic("orders")
                assert (topic.stats().damages, topic.channel("mail").depth) == (0, left)

    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_unacked_come_again_in_order_and_acked_never(self, path: Path, policy: str) -> None:
        left = numbered(100)
        for _ in range(6):
            async with queue(path, sync=policy, segment_bytes=500) as jobs:
                if not jobs.end_offset:
                    await fill(jobs, left)
                assert jobs.depth == len(left)
                held = await take(jobs, len(left))
                assert bodies_of(held) == left
                for message in held[::2]:
                    message.ack_nowait()
                for message in held[1::4]:
                    await message.nack()
                left = left[1::2]
        async with queue(path) as jobs:
            assert await drain(jobs) == left

    async def test_in_flight_come_again_and_their_attempts_count_only_if_they_were_told(self, path: Path) -> None:
        async with queue(path) as jobs:
            await fill(jobs, numbered(3))
            held = await take(jobs, 3)
            await held[1].nack()
            await jobs.get()
        async with queue(path) as jobs:
            assert [(message.body, message.attempts) for message in await take(jobs, 3)] == [
                (b"0", 1), (b"1", 2), (b"2", 1),
            ]  # fmt: skip

    async def test_nothing_happening_changes_nothing(self, path: Path) -> None:
        async with queue(path, segment_bytes=500) as jobs:
            await fill(jobs, numbered(50))
            for message in (await take(jobs, 50))[::3]:
                await message.ack()
            depth, end = jobs.depth, jobs.end_offset
        for _ in range(5):
            async with queue(path, segment_bytes=500) as jobs:
                assert (jobs.depth, jobs.end_offset) == (depth, end)
                stats = jobs.topic_stats()
                assert (stats.damages, stats.recovered_bytes) == (0, 0)
        assert odd_files(path) == []

    async def test_with_other_options(self, path: Path) -> None:
        expected: list[bytes] = []
        number = 0
        for segment_bytes in (300, 10_000, 200, 100, 1000):
            async with queue(path, segment_bytes=segment_bytes) as jobs:
                bodies = numbered(20, number)
                number += 20
                await fill(jobs, bodies)
                expected += bodies
                held = await take(jobs, 7)
                assert bodies_of(held) == expected[:7]
                for message in held:
                    await message.ack()
                expected = expected[7:]
        async with queue(path) as jobs:
            assert await drain(jobs) == expected

    async def test_offsets_are_never_given_twice(self, path: Path, seed: int) -> None:
        rng = random.Random(seed)
        seen: set[int] = set()
        for _ in range(10):
            async with queue(path, segment_bytes=200) as jobs:
                for _ in range(rng.randrange(6)):
                    offset = await jobs.put(b"x")
                    assert offset not in seen
                    seen.add(offset)
                if rng.random() < 0.3:
                    await jobs.purge()
                else:
                    await drain(jobs)
        assert seen == set(range(len(seen)))

    async def test_a_journal_is_folded_and_says_the_same(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 20)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs) as jobs:
            await jobs.put_many(numbered(300))
            held = await take(jobs, 300)
            for number, message in enumerate(held):
                if number % 3:
                    await message.ack()
            folds = fs.named("rename", match="checkpoint")
            assert len(folds) >= 3
            image = path.with_name("image")
            crash_image(path, image, fs)
        for copy in (path, image):
            async with queue(copy) as jobs:
                assert ready_now(jobs) == numbered(300)[::3]

    async def test_with_many_holes_a_journal_is_folded_less_often(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A checkpoint has all of them: how much is written for an ack does not go by their number."""
        monkeypatch.setattr("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 20)
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os") as jobs:
            await jobs.put_many(numbered(1000))
            for message in (await take(jobs, 1000))[1::2]:
                message.ack_nowait()
                await jobs.sync()
            assert len(fs.named("rename", match="checkpoint")) <= 20
        async with queue(path) as jobs:
            assert ready_now(jobs) == numbered(1000)[::2]


@dataclass(slots=True)
class Ledger:
    """What was promised so far, and what might have been.

    Attributes:
        asked: bodies given to a put, in order of their producer.
        put: bodies whose put has returned.
        acking: bodies whose ack was called.
        acked: bodies whose ack has returned.
    """

    asked: list[bytes] = field(default_factory=list)
    put: set[bytes] = field(default_factory=set)
    acking: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)

    def promised(self) -> tuple[set[bytes], set[bytes]]:
        """Return what an image taken after this must hold, and what it must not."""
        return set(self.put), set(self.acked)

    def possible(self) -> tuple[set[bytes], set[bytes]]:
        """Return what an image taken before this may hold, and what it need not."""
        return set(self.asked), set(self.acking)


def check(found: list[bytes], promised: tuple[set[bytes], set[bytes]], possible: tuple[set[bytes], set[bytes]]) -> None:
    """Hold what a crash left against what was promised."""
    (put, acked), (asked, acking), there = promised, possible, set(found)
    assert len(found) == len(there), "twice in one recovery"
    assert there <= asked, "from nowhere"
    assert not there & acked, "acked, and there again"
    assert put - acking <= there, "promised, and gone"
    for name in {body.split(b"-")[0] for body in found}:
        numbers = [int(body.split(b"-")[1]) for body in found if body.split(b"-")[0] == name]
        assert numbers == sorted(numbers), "out of order"


class TestCrash:
    @pytest.mark.slow_on_uvloop
    async def test_at_every_write_of_a_life(self, path: Path, tmp_path: Path, seed: int) -> None:
        """G3: before every call that changes the disk, an image; each must open, with everything promised by then."""
        fs, ledger = WatchedFileSystem(), Ledger()
        rng = random.Random(seed)
        camera = Camera(fs, path, tmp_path, *CHANGES, before=ledger.promised, after=ledger.possible)
        async with queue(path, fs=fs, segment_bytes=250) as jobs:
            fs.add(camera)
            for number in range(25):
                bodies = [b"%d-%d" % (0, number * 3 + more) for more in range(rng.randint(1, 3))]
                ledger.asked += bodies
                await jobs.put_many(bodies)
                ledger.put |= set(bodies)
                while jobs.qsize() > 4 or (jobs.qsize() and rng.random() < 0.5):
                    message = jobs.get_nowait()
                    if rng.random() < 0.3:
                        await message.nack()
                        break
                    if rng.random() < 0.9:
                        ledger.acking.add(message.body)
                        await message.ack()
                        ledger.acked.add(message.body)
            await soon(jobs.sync())
            fs.heal()
        assert len(camera.images) > 80
        for copy, promised, possible in rng.sample(camera.images, 25):
            async with queue(copy, segment_bytes=250) as jobs:
                depth = jobs.depth
                found = ready_now(jobs)
                assert len(found) == depth
                check(found, promised, possible)
                assert jobs.topic_stats().damages == 0
                await jobs.put(b"1-1")
                assert ready_now(jobs) == [b"1-1"]

    async def test_under_load_at_any_moment(self, path: Path, tmp_path: Path, seed: int) -> None:
        """G5: eight producers, four consumers, images in between; the order of each producer holds in every one."""
        fs, ledger = WatchedFileSystem(), Ledger()
        rng = random.Random(seed)
        camera = Camera(fs, path, tmp_path, before=ledger.promised, after=ledger.possible)
        async with queue(path, fs=fs, segment_bytes=2000) as jobs:

            async def produce(name: int) -> None:
                for number in range(40):
                    body = b"%d-%d" % (name, number)
                    ledger.asked.append(body)
                    await jobs.put(body)
                    ledger.put.add(body)

            async def consume() -> None:
                async for message in jobs:
                    if rng.random() < 0.2:
                        await message.nack()
                    elif rng.random() < 0.6:
                        ledger.acking.add(message.body)
                        await message.ack()
                        ledger.acked.add(message.body)
                    else:
                        ledger.acking.add(message.body)
                        message.ack_nowait()

            consuming = [asyncio.create_task(consume()) for _ in range(4)]
            producing = asyncio.gather(*(produce(name) for name in range(8)))
            while not producing.done():
                await turns(rng.randrange(1, 30))
                if len(camera.images) < 25:
                    camera.take()
            await producing
            await soon(jobs.join())
            jobs.shutdown()
            await soon(asyncio.gather(*consuming))
        assert camera.images
        for copy, promised, possible in camera.images:
            async with queue(copy) as jobs:
                check(ready_now(jobs), promised, possible)
                assert jobs.topic_stats().damages == 0

    async def test_again_and_again(self, path: Path, tmp_path: Path, seed: int) -> None:
        """A crash of a crash of a crash: each life begins where an image of the one before left off."""
        rng = random.Random(seed)
        expected: list[bytes] = []
        current, number = path, 0
        for life in range(12):
            fs = WatchedFileSystem()
            async with queue(current, fs=fs, segment_bytes=rng.choice([200, 500, 5000])) as jobs:
                assert jobs.depth == len(expected)
                held = await take(jobs, len(expected))
                assert bodies_of(held) == expected
                for message in rng.sample(held, len(held) // 2):
                    await message.ack()
                    expected.remove(message.body)
                for _ in range(rng.randrange(12)):
                    body = b"%d" % number
                    number += 1
                    await jobs.put(body)
                    expected.append(body)
                current = crash_image(current, tmp_path / f"life{life}", fs)

    @pytest.mark.parametrize("policy", ["always", "interval", "os"])
    async def test_a_torn_tail_costs_only_what_was_never_promised(
        self, path: Path, tmp_path: Path, policy: str, seed: int
    ) -> None:
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync=policy, sync_interval=3600) as jobs:
            await fill(jobs, numbered(10))
            await jobs.sync()
            size = segments(path)[0].stat().st_size
            if policy == "always":
                durable = 10
            else:
                await fill(jobs, numbered(5, start=10))
                durable = jobs.durable_offset
            for message in await take(jobs, 8):
                await message.ack()
            crash_image(path, tmp_path / "image", fs)
        assert durable == 10
        rng = random.Random(seed)
        whole = segments(tmp_path / "image")[0].read_bytes()
        for _ in range(12):
            cut = rng.randint(size, len(whole))
            tail = rng.choice([b"", bytes(rng.randrange(200)), rng.randbytes(rng.randrange(200))])
            copy = crash_image(tmp_path / "image", tmp_path / "torn")
            segments(copy)[0].write_bytes(whole[:cut] + tail)
            async with queue(copy) as jobs:
                found = [int(body) for body in ready_now(jobs)]
                assert found == list(range(8, 8 + len(found)))
                assert len(found) >= 2
                assert jobs.topic_stats().damages == 0
                offset = await jobs.put(b"new")
                assert offset == 8 + len(found)
            async with queue(copy) as jobs:
                assert ready_now(jobs)[-1] == b"new"
            shutil.rmtree(copy)

    async def test_acks_of_messages_that_the_log_lost_settle_no_others(self, path: Path, tmp_path: Path) -> None:
        """Under "os" an ack may reach the disk and its message not: the number is given again, and delivered."""
        fs = WatchedFileSystem()
        async with queue(path, fs=fs, sync="os") as jobs:
            await fill(jobs, numbered(3))
            await jobs.sync()
            size = segments(path)[0].stat().st_size
            await fill(jobs, numbered(5, start=3))
            for message in await take(jobs, 8):
                await message.ack()
            crash_image(path, tmp_path / "image", fs)
        found = segments(tmp_path / "image")[0]
        found.write_bytes(found.read_bytes()[:size])
        async with queue(tmp_path / "image") as jobs:
            assert (jobs.depth, jobs.end_offset) == (0, 3)
            assert await fill(jobs, [b"new", b"newer"]) == [3, 4]
            assert ready_now(jobs) == [b"new", b"newer"]
        async with queue(tmp_path / "image") as jobs:
            assert ready_now(jobs) == [b"new", b"newer"]

    async def test_a_channel_that_was_being_made(self, path: Path, tmp_path: Path) -> None:
        fs = WatchedFileSystem()
        camera = Camera(fs, path, tmp_path, *CHANGES)
        async with store(path, fs=fs) as opened:
            topic = opened.topic("a")
            await fill(topic, numbered(3))
            fs.add(camera)
            topic.channel("c")
            await topic.settle_in()
            fs.heal()
        assert len(camera.copies) > 3
        for copy in camera.copies:
            async with store(copy) as opened:
                topic = opened.topic("a")
                channel = topic.channel("c")
                assert (await soon(channel.get())).body == b"0"
                assert channel.depth == 3

    async def test_a_store_that_was_being_made(self, path: Path, tmp_path: Path) -> None:
        """Whatever a kill leaves of a store's first moments opens, and works."""
        fs = WatchedFileSystem()
        camera = fs.add(Camera(fs, path, tmp_path, *CHANGES))
        async with queue(path, fs=fs) as jobs:
            await jobs.put(b"a")
            fs.heal()
        assert len(camera.copies) > 8
        for copy in camera.copies:
            async with queue(copy) as jobs:
                with suppress(aiodq.QueueEmpty):
                    assert jobs.get_nowait().body == b"a"
                await jobs.put(b"b")
                assert ready_now(jobs) == [b"b"]
                assert jobs.topic_stats().damages == 0


async def test_an_ending_loop_finishes_what_was_accepted(path: Path, tasks: Tasks) -> None:
    """Cancelling everything, as `asyncio.run` does at its end, must not lose a message that was accepted."""
    async with queue(path) as jobs:
        putting = [tasks.start(jobs.put(body)) for body in numbered(5)]
        await asyncio.gather(*putting)
        jobs.put_nowait(b"accepted")
    async with queue(path) as jobs:
        assert ready_now(jobs) == [*numbered(5), b"accepted"]
