"""What a reader that is no channel asks to be kept is kept, as long as it asks for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.holds import HOLDS, Hold, read_hold, read_holds, release_hold, write_hold
from aiodq.testing import Fault
from tests.bulk.support import STORE, numbered, shown
from tests.channels.support import Machine, soon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "spark/daily"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for holds whenever there is a reason."""
    monkeypatch.setattr("aiodq.engine.topic.retention.topic_retention._LOOK_EVERY", 0.0)
    monkeypatch.setattr("aiodq.engine.topic.retention.segment_deletion._RETRY", 0.0)


def held(machine: Machine, offsets: dict[str, int], patterns: tuple[str, ...] | None = ()) -> None:
    write_hold(machine.fs, STORE, NAME, Hold(offsets, patterns))


async def consumed(store: aiodq.Store, count: int = 40) -> aiodq.Queue:
    """Put messages over several segments, and have all of them acked."""
    queue = store.queue("jobs")
    for body in numbered(count):
        await queue.put(body)
    for message in await soon(queue.get_many(count, linger=20)):
        message.ack_nowait()
    await queue.sync()
    return queue


async def nudged(queue: aiodq.Queue, count: int) -> None:
    """Wait until no more than so many messages are left, giving retention occasion to delete."""

    async def few() -> bool:
        await queue.sync()
        queue.topic._engine.retain_soon()
        return len(await shown(queue)) <= count

    for _ in range(200):
        if await few():
            return
    raise AssertionError(f"{len(await shown(queue))} messages are left")


SMALL = {"segment_bytes": 1000}


async def test_what_it_keeps_outlives_the_channels(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, {"jobs": 12})
        queue = await consumed(store)
        await nudged(queue, 34)
        kept = await shown(queue)
        assert kept[-28:] == numbered(40)[12:]
        assert len(kept) < 40
        assert {name for segment in store.stats().topics["jobs"].held for name in segment.by} == {f"hold {NAME}"}
        found = TopicReader(machine.fs, f"{STORE}/jobs", "jobs").stats().held
        assert {name for segment in found for name in segment.by} == {f"hold {NAME}"}
        held(machine, {"jobs": 30})
        await nudged(queue, 16)
        assert (await shown(queue))[-10:] == numbered(40)[30:]
        assert release_hold(machine.fs, STORE, NAME)
        assert not release_hold(machine.fs, STORE, NAME)
        await nudged(queue, 8)
    assert store.path == STORE


@pytest.mark.parametrize(("offsets", "patterns"), [({}, None), ({"other": 3}, ("j*",)), ({"jobs": 0}, ())])
async def test_a_topic_it_did_not_know_yet_is_kept_whole(
    machine: Machine, offsets: dict[str, int], patterns: tuple[str, ...] | None
) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, offsets, patterns)
        queue = await consumed(store)
        with pytest.raises(AssertionError, match="40 messages are left"):
            await nudged(queue, 39)
    async with machine.store(**SMALL) as store:
        assert len(await shown(store.topic("jobs"))) == 40


async def test_one_that_was_made_after_a_look_of_long_ago_keeps_as_well(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look(*_: object) -> dict[str, Hold]:
        nonlocal looks
        found = read_holds(machine.fs, STORE)
        looks += 1
        if looks == 1:
            held(machine, {"jobs": 12})
            machine.clock.advance(1)
        return found

    monkeypatch.setattr("aiodq.engine.topic.retention.topic_holds.read_holds", look)
    async with machine.store(**SMALL) as store:
        queue = await consumed(store)
        await nudged(queue, 34)
        assert (await shown(queue))[-28:] == numbered(40)[12:]
    assert looks > 1


def files(machine: Machine) -> list[int]:
    """Return the offsets at which the files begin that a reader of the topic finds."""
    return [int(name.removesuffix(".seg")) for name in machine.fs.listdir(f"{STORE}/jobs") if name.endswith(".seg")]


async def come_to(queue: aiodq.Queue, condition: Callable[[], bool]) -> None:
    """Give retention occasion to delete until this holds."""
    for _ in range(200):
        if condition():
            return
        await queue.sync()
        queue.topic._engine.retain_soon()
    raise AssertionError("it never came to that")


async def test_one_made_while_a_backup_keeps_files_keeps_those_after_it_too(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        deletion = store.topic("jobs")._engine.segment_deletion
        deletion.keep_files()
        queue = await consumed(store)
        await nudged(queue, 8)
        assert min(files(machine)) == 0
        held(machine, {"jobs": 12})
        deletion.release_files()
        await come_to(queue, lambda: min(files(machine)) > 0)
        for _ in range(5):
            await queue.sync()
            queue.topic._engine.retain_soon()
        reader = TopicReader(machine.fs, f"{STORE}/jobs", "jobs")
        assert [message.body for message in reader.scan()][-28:] == numbered(40)[12:]
        assert reader.stats().damages == ()
        held(machine, {"jobs": 30})
        await come_to(queue, lambda: 12 < min(files(machine)) <= 30)
        release_hold(machine.fs, STORE, NAME)
        await come_to(queue, lambda: len(files(machine)) <= 2)


async def test_files_that_one_keeps_after_their_deletion_was_decided_are_looked_at_once_a_second(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.topic.retention.segment_deletion._RETRY", 1.0)
    async with machine.store(**SMALL | {"sync_interval": 0.1}) as store:
        engine = store.topic("jobs")._engine
        engine.segment_deletion.keep_files()
        queue = await consumed(store)
        await nudged(queue, 8)
        held(machine, {"jobs": 0})
        engine.segment_deletion.release_files()
        await come_to(queue, lambda: engine.segment_deletion.next_try() == 1.0)
        assert engine.retention.next_look() == 1.0
        machine.clock.advance(0.4)
        assert engine.retention.next_look() == pytest.approx(0.6)


async def test_one_made_while_very_many_files_are_deleted_keeps_the_rest(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    removes = machine.fs.remove

    def slowly(path: str) -> None:
        removes(path)
        if path.endswith(".seg"):
            machine.clock.advance(1)
            held(machine, {"jobs": 20})

    async with machine.store(**SMALL) as store:
        deletion = store.topic("jobs")._engine.segment_deletion
        deletion.keep_files()
        queue = await consumed(store)
        await nudged(queue, 8)
        monkeypatch.setattr(machine.fs, "remove", slowly)
        deletion.release_files()
        await come_to(queue, lambda: min(files(machine)) > 0)
        for _ in range(5):
            await queue.sync()
            queue.topic._engine.retain_soon()
        reader = TopicReader(machine.fs, f"{STORE}/jobs", "jobs")
        assert [message.body for message in reader.scan()][-20:] == numbered(40)[20:]


async def test_a_purge_deletes_what_one_keeps_after_its_deletion_was_decided(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        deletion = store.topic("jobs")._engine.segment_deletion
        deletion.keep_files()
        queue = await consumed(store)
        await nudged(queue, 8)
        held(machine, {"jobs": 12})
        deletion.release_files()
        await come_to(queue, lambda: min(files(machine)) > 0)
        await queue.purge()
        await come_to(queue, lambda: files(machine) == [40])


async def test_a_file_that_cannot_be_deleted_at_first_is_deleted_later(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        queue = store.queue("jobs")
        machine.fs.plan.add(Fault("remove", 1, "EIO", match=".seg"))
        await nudged(await consumed(store), 8)
        await come_to(queue, lambda: len(files(machine)) <= 2)


async def test_another_topics_hold_keeps_nothing_here(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, {"other": 0}, ("x*",))
        await nudged(await consumed(store), 8)


async def test_a_purge_does_not_ask_it(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, {"jobs": 0})
        queue = await consumed(store)
        await queue.purge()
        assert await shown(queue) == []


async def test_one_that_cannot_be_read_keeps_everything_until_it_is_mended(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, {"other": 0})
        (name,) = (file for file in machine.fs.listdir(f"{STORE}/{HOLDS}") if file.endswith(".json"))
        file = machine.fs.open(f"{STORE}/{HOLDS}/{name}", write=True)
        file.write_at([b"#"], 20)
        file.close()
        queue = await consumed(store)
        with pytest.raises(AssertionError, match="40 messages are left"):
            await nudged(queue, 39)
    with pytest.raises(aiodq.CorruptionError):
        read_hold(machine.fs, STORE, NAME)
    assert [damage.path for damage in verify_store(STORE, machine.fs).damages] == [f"{STORE}/{HOLDS}/{name}"]
    assert len(repair_store(STORE, machine.fs)) == 1
    assert verify_store(STORE, machine.fs).ok
    assert read_holds(machine.fs, STORE) == {}
    async with machine.store(**SMALL) as store:
        await nudged(store.queue("jobs"), 8)


async def test_where_holds_cannot_be_looked_for_nothing_goes(machine: Machine) -> None:
    async with machine.store(**SMALL) as store:
        held(machine, {"jobs": 0})
        machine.fs.plan.add(Fault("listdir", 1, "EIO", lasting=True, match=HOLDS))
        queue = await consumed(store)
        with pytest.raises(AssertionError, match="40 messages are left"):
            await nudged(queue, 39)
        machine.fs.plan.clear()
        release_hold(machine.fs, STORE, NAME)
        await nudged(queue, 8)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 200])
def test_names_that_cannot_be(machine: Machine, name: str) -> None:
    machine.fs.make_directory(STORE)
    with pytest.raises(aiodq.InvalidOptionError):
        write_hold(machine.fs, STORE, name, Hold())


@pytest.mark.parametrize("step", ["rename", "sync_directory"])
async def test_two_that_write_one_at_once_do_so_in_turn(
    machine: Machine, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take the other's temporary file for what a killed one has left."""
    monkeypatch.setattr("aiodq.storage.io.filesystem._PAUSES", ())
    async with machine.store():
        held(machine, {"jobs": 1})
    before, refused = getattr(machine.fs, step), list[aiodq.StoreLockedError]()

    def meanwhile(path: str, *rest: str) -> None:
        if HOLDS in path and not refused:
            with pytest.raises(aiodq.StoreLockedError) as caught:
                held(machine, {"jobs": 3})
            refused.append(caught.value)
        before(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(machine.fs, step, meanwhile)
        held(machine, {"jobs": 2})
    assert refused
    assert read_holds(machine.fs, STORE) == {NAME: Hold({"jobs": 2})}
    held(machine, {"jobs": 3})
    assert read_holds(machine.fs, STORE) == {NAME: Hold({"jobs": 3})}


def test_many_that_write_one_at_once_all_come_to_it(tmp_path: Path) -> None:
    fs, store = OsFileSystem(), str(tmp_path)

    def write(writer: int) -> None:
        for number in range(25):
            write_hold(fs, store, NAME, Hold({"jobs": 100 * writer + number}))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, range(4)))
    assert read_holds(fs, store)[NAME].offsets["jobs"] % 100 == 24
    assert not list(tmp_path.rglob("*.aiodq-tmp"))
