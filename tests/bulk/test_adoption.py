"""What is staged and committed beside a store comes to its channels, once, whoever owns the store and when."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.store.bulk_adoption import Adopting
from aiodq.engine.store.opening import adopt_without_owner, open_store
from aiodq.format.columns import Columns
from aiodq.storage.bulk.adoption import unadoptable
from aiodq.storage.bulk.commits import (
    COMMITS,
    STAGING,
    Commit,
    CommitKey,
    commit_staged,
    decode_commit,
    read_commits,
    staging_directory,
    write_commit,
)
from aiodq.storage.bulk.staging import StagingWriter
from aiodq.storage.io.durable_io import ensure_directory
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.json_file import encode_checked
from aiodq.testing import Fault, WatchedFileSystem
from tests.bulk.support import STORE, STREAM, adopted, left, load, numbered, shown, staged
from tests.channels.support import Machine, counts, ready, soon
from tests.queue.support import until
from tests.transactions.test_commit import transact
from tests.watching.support import at_hand, flip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aiodq.testing.faults import Call

ONCE = CommitKey("once", once=True)
DAY = 86_400


async def test_a_running_owners_consumers_receive_it(machine: Machine, store: aiodq.Store) -> None:
    queue = store.queue("jobs")
    await queue.put(b"before")
    waiting = asyncio.create_task(queue.get_many(13, linger=20))
    assert load(machine, ONCE, {"jobs": numbered(12)})
    messages = await soon(waiting)
    assert [message.body for message in messages] == [b"before", *numbered(12)]
    assert [message.offset for message in messages] == list(range(13))
    assert await queue.put(b"after") == 13
    assert (await soon(queue.get())).body == b"after"
    await adopted(machine)
    assert left(machine) == []


async def test_without_an_owner_it_waits_for_the_next(machine: Machine) -> None:
    async with machine.store() as store:
        await store.queue("jobs").put(b"before")
    assert load(machine, ONCE, {"jobs": numbered(12), "new": [b"x"]})
    machine.crash()
    async with machine.store() as store:
        assert ready(store.queue("jobs")) == [b"before", *numbered(12)]
        assert await shown(store.topic("new")) == [b"x"]
        late = store.topic("new").channel("late", aiodq.ChannelOptions(start="earliest"))
        await store.topic("new").settle_in()
        assert ready(late) == [b"x"]
    assert read_commits(machine.fs, STORE).commits == []


async def test_an_owner_that_is_closing_leaves_it_to_the_next_one_without_a_warning(
    machine: Machine, store: aiodq.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, closing, closed = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await store.aclose()
        closed.set()

    def held_up(*args: Any) -> list[str]:
        if not closing.is_set():
            asyncio.run_coroutine_threadsafe(close(), loop)
            closing.wait(20)
        return unadoptable(*args)

    monkeypatch.setattr("aiodq.engine.store.bulk_adoption.unadoptable", held_up)
    for number in range(3):
        load(machine, CommitKey(f"load {number}", once=True), {"jobs": numbered(5)})
    await closed.wait()
    assert "waits" not in caplog.text
    async with machine.store() as again:
        await adopted(machine)
        assert len(await shown(again.topic("jobs"))) == 15


async def test_what_has_a_time_to_live_is_settled_when_that_ends(machine: Machine, store: aiodq.Store) -> None:
    queue = store.queue("jobs")
    await queue.put(b"head")
    writer = StagingWriter(machine.fs, machine.clock, STORE, ONCE.name, segment_bytes=1000)
    for number in range(40):
        expiry = (machine.clock.now_ns() + 10_000_000_000) * (number % 2)
        writer.put("jobs", Columns([bytes(100)], expiries=[expiry]))
    files = tuple(writer.finish()["jobs"])
    assert commit_staged(machine.fs, STORE, Commit(ONCE, {"jobs": files}, machine.clock.now_ns()))
    await until(lambda: queue.depth == 41)
    await adopted(machine)
    machine.clock.advance(10)
    await until(lambda: queue.depth == 21)
    assert ready(queue) == [b"head", *[bytes(100)] * 20]


async def test_a_store_may_begin_with_it(machine: Machine) -> None:
    machine.fs.make_directory(STORE)
    assert load(machine, ONCE, {"new": numbered(9)})
    async with machine.store() as store:
        assert store.topics() == ["new"]
        assert await shown(store.topic("new")) == numbered(9)


async def test_a_topic_in_memory_only_so_far_is_made(machine: Machine, store: aiodq.Store) -> None:
    topic = store.topic("named")
    assert load(machine, ONCE, {"named": numbered(3)})
    await adopted(machine)
    assert await shown(topic) == numbered(3)
    assert topic.end_offset == 3


async def test_a_key_adds_its_messages_once(machine: Machine, store: aiodq.Store) -> None:
    for name in ("a", "b"):
        assert load(machine, CommitKey(name), {"jobs": [name.encode()]})
        assert not load(machine, CommitKey(name), {"jobs": [b"again"]})
        await adopted(machine)
        assert not load(machine, CommitKey(name), {"jobs": [b"again"]})
    assert await shown(store.topic("jobs")) == [b"a", b"b"]
    assert left(machine) == []


async def test_of_a_stream_only_what_is_newer_counts(machine: Machine) -> None:
    async with machine.store() as store:
        for number in (0, 1, 5):
            assert load(machine, CommitKey(STREAM, number), {"jobs": [b"%d" % number]})
            await adopted(machine)
        assert load(machine, CommitKey(STREAM, 6), {"jobs": [b"6"]})
        for number in (0, 4, 5, 6):
            assert not load(machine, CommitKey(STREAM, number), {"jobs": [b"again"]})
        assert load(machine, CommitKey("other", 0), {"jobs": [b"other"]})
        await adopted(machine)
        assert await shown(store.topic("jobs")) == [b"0", b"1", b"5", b"6", b"other"]
    assert [c.key.number for c in read_commits(machine.fs, STORE).commits if c.key.name == STREAM] == [6]


async def test_of_many_records_that_stay_only_what_is_new_is_read_again(machine: Machine) -> None:
    def records() -> set[str]:
        return {passed.path.rsplit("/", 1)[1] for passed in fs.passed if passed.path.endswith(".json")} - {"topic.json"}

    fs = WatchedFileSystem(machine.fs)
    async with aiodq.open(STORE, fs=fs, clock=machine.clock) as store:
        for name in ("a", "b", "c", "d"):
            assert load(machine, CommitKey(name), {"jobs": [name.encode()]})
            await adopted(machine)
        fs.reset()
        assert load(machine, CommitKey("e"), {"jobs": [b"e"]})
        await adopted(machine)
        assert "e.json" in records()
        assert records() <= {"d.json", "e.json"}, "an owner knows the rest to be done"
        assert await shown(store.topic("jobs")) == [b"a", b"b", b"c", b"d", b"e"]
        fs.reset()
        commit = replace(staged(machine, "f", {"jobs": [b"f"]}), key=CommitKey("f"))
        assert commit_staged(fs, STORE, commit)
        assert records() == {"f.json"}, "of writers, only what is their own is read"
        await adopted(machine)


async def test_opening_reads_records_that_stay_once(machine: Machine) -> None:
    async with machine.store():
        for name in ("a", "b"):
            assert load(machine, CommitKey(name), {"jobs": [name.encode()]})
            await adopted(machine)
    assert load(machine, CommitKey("c"), {"jobs": [b"c"]})
    fs = WatchedFileSystem(machine.fs)
    opened = open_store(fs, machine.clock, STORE, None)
    reads = [passed.path for passed in fs.passed if passed.kind == "read"]
    assert [reads.count(f"{STORE}/{COMMITS}/{name}.json") for name in ("a", "b")] == [1, 1]
    opened.abandon()
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"a", b"b", b"c"]


async def test_an_owner_reads_records_that_stay_once(machine: Machine) -> None:
    async with machine.store():
        for name in ("a", "b"):
            assert load(machine, CommitKey(name), {"jobs": [name.encode()]})
            await adopted(machine)
    fs = WatchedFileSystem(machine.fs)
    async with aiodq.open(STORE, fs=fs, clock=machine.clock) as store:
        assert load(machine, CommitKey("c"), {"jobs": [b"c"]})
        await adopted(machine)
        assert await shown(store.topic("jobs")) == [b"a", b"b", b"c"]
    reads = [passed.path for passed in fs.passed if passed.kind == "read"]
    assert [reads.count(f"{STORE}/{COMMITS}/{name}.json") for name in ("a", "b")] == [1, 1]


async def test_a_writer_reads_records_that_stay_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """And still tells of one that is damaged."""
    async with machine.store():
        for name in ("a", "b"):
            assert load(machine, CommitKey(name), {"jobs": [name.encode()]})
            await adopted(machine)
    assert load(machine, CommitKey("c"), {"jobs": [b"c"]})
    file = machine.fs.open(f"{STORE}/{COMMITS}/d.json", create=True)
    file.write_at([b"damaged"], 0)
    file.close()
    fs = WatchedFileSystem(machine.fs)
    assert adopt_without_owner(fs, machine.clock, STORE, None)
    reads = [passed.path for passed in fs.passed if passed.kind == "read"]
    assert [reads.count(f"{STORE}/{COMMITS}/{name}.json") for name in ("a", "b")] == [1, 1]
    assert "the commit's record" in caplog.text
    machine.fs.remove(f"{STORE}/{COMMITS}/d.json")
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"a", b"b", b"c"]


async def test_a_name_whose_record_was_removed_is_a_new_one(machine: Machine) -> None:
    done: set[str] = set()
    async with machine.store() as store:
        assert load(machine, CommitKey("a"), {"jobs": [b"1"]})
        await adopted(machine)
        assert len(read_commits(machine.fs, STORE, done=done).commits) == 1
        assert (read_commits(machine.fs, STORE, done=done).commits, done) == ([], {"a.json"})
        machine.fs.remove(f"{STORE}/{COMMITS}/a.json")
        read_commits(machine.fs, STORE, done=done)
        assert not done
        assert await shown(store.topic("jobs")) == [b"1"]


async def test_nothing_at_all_is_committed_without_a_trace(machine: Machine, store: aiodq.Store) -> None:
    assert store.topics() == []
    assert commit_staged(machine.fs, STORE, staged(machine, "none", {}))
    assert read_commits(machine.fs, STORE).commits == []


async def test_commits_are_adopted_in_the_order_of_their_times(machine: Machine) -> None:
    async with machine.store():
        pass
    for name, number in (("z", None), ("a", 1), ("a", 2), ("b", None)):
        machine.clock.jump(1 if number != 2 else -100)
        assert load(machine, CommitKey(name, number), {"jobs": [f"{name}{number}".encode()]})
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"bNone", b"zNone", b"a1", b"a2"]


async def test_what_is_consumed_goes_and_stays_away(machine: Machine) -> None:
    async with machine.store() as store:
        queue = store.queue("jobs")
        await queue.put(b"first")
        assert load(machine, ONCE, {"jobs": numbered(20)})
        for message in await soon(queue.get_many(21, linger=20)):
            await message.ack()
        await queue.sync()
        await until(lambda: len([n for n in machine.fs.listdir(f"{STORE}/jobs") if n.endswith(".seg")]) == 1)
        machine.crash()
    async with machine.store() as store:
        assert counts(store.queue("jobs")) == (0, 0, 0)
        assert await store.topic("jobs").put(b"next") == 21


async def test_a_full_disk_puts_it_off(machine: Machine) -> None:
    async with machine.store() as store:
        queue = store.queue("jobs")
        await queue.put(b"before")
        assert load(machine, ONCE, {"jobs": numbered(5)})
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True))
        await asyncio.sleep(0.1)
        assert ready(queue) == [b"before"]
        machine.fs.plan.clear()
        assert [message.body for message in await soon(queue.get_many(5, linger=20))] == numbered(5)


@pytest.mark.parametrize("call", ["rename", "sync_directory"])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_cut_short_by_a_fault_it_is_finished_at_the_next_open(machine: Machine, call: Call, at: int) -> None:
    async with machine.store() as store:
        await store.queue("jobs").put(b"before")
    assert load(machine, ONCE, {"jobs": numbered(12), "made": [b"x"]})
    machine.fs.plan.add(Fault(call, at, "EIO"))
    try:
        async with machine.store():
            pass
    except aiodq.StorageError:
        machine.crash()
    machine.fs.plan.clear()
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"before", *numbered(12)]
        assert ready(store.queue("jobs")) == [b"before", *numbered(12)]
        assert await shown(store.topic("made")) == [b"x"]


async def test_a_finished_one_that_could_not_be_noted_does_not_keep_a_full_store_shut(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise aiodq.DiskFullError("no space", STORE)

    async with machine.store():
        pass
    assert load(machine, CommitKey(STREAM, 0), {"jobs": numbered(3)})
    with monkeypatch.context() as patched:
        for place in ("aiodq.storage.bulk.adoption", "aiodq.engine.store.bulk_adoption"):
            patched.setattr(f"{place}.finish_commit", full)
        async with machine.store() as store:
            assert await shown(store.topic("jobs")) == numbered(3)
    for place in (COMMITS, STAGING):
        for call in ("create", "write", "sync"):
            machine.fs.plan.add(Fault(call, 1, "ENOSPC", lasting=True, match=place))
    async with machine.store() as store:
        queue = store.queue("jobs")
        assert [(await soon(queue.get())).body for _ in range(3)] == numbered(3)
        assert read_commits(machine.fs, STORE).pending
        machine.fs.plan.clear()
        await adopted(machine)
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == numbered(3)


async def test_more_topics_than_a_process_may_have_files(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.storage.bulk.staging._MOST_OPEN", 3)
    async with machine.store():
        pass
    writer = StagingWriter(machine.fs, machine.clock, STORE, "many", segment_bytes=1000)
    order = [0, 1, 2, 3, 0, 4, 5, 0, 1, 6, 0, 0, 2]
    for number, topic in enumerate(order):
        writer.put(f"t{topic}", Columns([b"%d" % number]))
        assert len(writer._open) <= 3
    topics = {topic: tuple(files) for topic, files in writer.finish().items()}
    # What is put to again and again stays open.
    assert [file.records for file in topics["t0"]] == [1, 4]
    assert [file.records for file in topics["t1"]] == [1, 1]
    assert commit_staged(machine.fs, STORE, Commit(CommitKey("many", once=True), topics, machine.clock.now_ns()))
    async with machine.store() as store:
        for topic in range(7):
            expected = [b"%d" % number for number, one in enumerate(order) if one == topic]
            assert await shown(store.topic(f"t{topic}")) == expected


async def test_no_staged_file_is_larger_than_its_segment_may_be(machine: Machine) -> None:
    async with machine.store():
        pass
    for segment_bytes in (1000, 10_000):
        writer = StagingWriter(machine.fs, machine.clock, STORE, "sized", segment_bytes=segment_bytes)
        for number in range(200):
            writer.put("t", Columns([bytes(number)] * (number % 3)))
        records = {file.file: file.records for file in writer.finish()["t"]}
        found = {path.rsplit("/", 1)[1]: len(data or b"") for path, data in machine.fs.image().items()}
        assert len(records) > 1
        assert all(found[name] <= segment_bytes for name in records)
        writer.discard()


async def test_what_is_staged_is_written_as_it_comes_and_discarded_whole(machine: Machine) -> None:
    async with machine.store():
        pass
    writer = StagingWriter(machine.fs, machine.clock, STORE, "large", segment_bytes=1 << 26)
    for _ in range(40):
        writer.put("t", Columns([bytes(50_000)]))
    (name,) = left(machine)
    image = machine.fs.image()[f"{STORE}/{STAGING}/large/{name}"]
    assert image is not None
    assert len(image) > 40 * 50_000 - 400_000, "what is in memory is bounded"
    writer.discard()
    assert left(machine) == []


async def test_no_batch_of_a_stream_overtakes_one_there_was_no_room_for(machine: Machine) -> None:
    async with machine.store():
        pass
    for number in range(3):
        assert load(machine, CommitKey(STREAM, number), {"jobs": [b"%d" % number]})
    machine.fs.plan.add(Fault("write", 1, "ENOSPC", match=COMMITS))
    async with machine.store() as store:
        await adopted(machine)
        assert await shown(store.topic("jobs")) == [b"0", b"1", b"2"]


async def test_what_a_transaction_put_into_the_same_new_topic_is_there_as_well(machine: Machine) -> None:
    async with machine.store() as store:
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="/made/"))
        await transact(store, {"made": [b"by transaction"]})
        machine.crash()
    assert load(machine, ONCE, {"made": [b"by load"]})
    machine.fs.plan.clear()
    machine.fs.plan.add(Fault("write", 1, "ENOSPC", match="/made/"))
    async with machine.store() as store:
        await adopted(machine)
        await until(lambda: store.topic("made").end_offset == 2)
        assert sorted(await shown(store.topic("made"))) == [b"by load", b"by transaction"]
    async with machine.store() as store:
        assert sorted(await shown(store.topic("made"))) == [b"by load", b"by transaction"]


async def test_beside_an_owner_a_reader_sees_it_as_it_comes(machine: Machine) -> None:
    async with machine.store() as store:
        queue = store.queue("jobs")
        await queue.put(b"before")
        reader = TopicReader(machine.fs, f"{STORE}/jobs", "jobs")
        assert [message.body for message in reader.scan()] == [b"before"]
        for round_ in range(3):
            assert load(machine, CommitKey(STREAM, round_), {"jobs": numbered(9)})
            await adopted(machine)
            assert [message.body for message in reader.scan()] == await shown(queue)
            await queue.put(b"between")
            assert [message.body for message in reader.scan()] == await shown(queue)
        assert len(await shown(queue)) == 31


async def test_damage_to_what_is_staged_is_told_and_set_aside(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"before")
    commit = staged(machine, "damaged", {"jobs": numbered(12)})
    assert commit_staged(machine.fs, STORE, commit)
    second = f"{STORE}/#staging/damaged/{commit.topics['jobs'][1].file}"
    file = machine.fs.open(second, write=True)
    file.truncate(200)
    file.close()
    assert load(machine, ONCE, {"jobs": [b"whole"]})
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"before", b"whole"]
        await store.topic("jobs").put(b"after")
    (damage,) = verify_store(STORE, machine.fs).damages
    assert "messages for topic 'jobs' are not what was staged" in damage.reason
    (action,) = repair_store(STORE, machine.fs)
    assert action.kept
    assert verify_store(STORE, machine.fs).ok
    machine.clock.advance(3 * DAY)
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"before", b"whole", b"after"]
    assert len(left(machine)) == len(commit.topics["jobs"])


async def test_verify_takes_an_adoption_under_way_for_no_damage(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner takes over everything between the look at the records and the look at what is staged."""
    async with machine.store() as store:
        await store.topic("jobs").put(b"before")
    assert load(machine, ONCE, {"jobs": numbered(12), "made": [b"x"]})
    assert load(machine, CommitKey(STREAM, 0), {"jobs": [b"y"]})
    reading = [read_commits(machine.fs, STORE)]
    async with machine.store():
        await adopted(machine)
    monkeypatch.setattr(
        "aiodq.storage.offline.verify.read_commits", lambda *where: reading.pop() if reading else read_commits(*where)
    )
    assert verify_store(STORE, machine.fs).ok
    assert not reading


async def test_a_record_that_cannot_be_read_is_told_and_set_aside(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.store.bulk_adoption._INTERVAL", 0.01)
    async with machine.store() as store:
        await store.topic("jobs").put(b"before")
    assert load(machine, CommitKey("junk"), {"jobs": numbered(2)})
    file = machine.fs.open(f"{STORE}/{COMMITS}/junk.json", write=True)
    file.write_at([b"#"], 30)
    file.close()
    machine.clock.advance(3 * DAY)
    async with machine.store() as store:
        events = store.events()
        assert await shown(store.topic("jobs")) == [b"before"]
        for _ in range(2):
            assert load(machine, ONCE, {"jobs": [b"whole"]})
            await adopted(machine)
        (event,) = [event for event in at_hand(events) if event.kind == "damage"]
        assert "junk.json" in event.text
    assert [damage.path for damage in verify_store(STORE, machine.fs).damages] == [f"{STORE}/{COMMITS}/junk.json"]
    assert len(repair_store(STORE, machine.fs)) == 1
    assert verify_store(STORE, machine.fs).ok
    assert repair_store(STORE, machine.fs) == []
    assert len(left(machine)) == 1


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 151, "ä" * 26])
def test_a_name_that_is_no_directorys_is_no_writers(name: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match="no name for a writer"):
        staging_directory(STORE, name)
    assert staging_directory(STORE, "ä" * 25) == f"{STORE}/{STAGING}/{'%C3%A4' * 25}"


@pytest.mark.parametrize("base", [-1, 0])
def test_a_record_with_an_offset_below_zero_makes_no_sense(base: int) -> None:
    commit = Commit(CommitKey("x"), {"a": (), "b": ()}, bases={"a": 7, "b": base})
    content = {"key": ["x", None, False], "topics": commit.topics, "time_ns": 0, "bases": commit.bases, "done": False}
    data = encode_checked("commit", 1, content)
    if base < 0:
        with pytest.raises(aiodq.CorruptionError, match="no sense"):
            decode_commit(data, "x.json")
    else:
        assert decode_commit(data, "x.json") == commit


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"jobs": 2}, {"jobs": 1, "more": 1}], ids=str)
async def test_a_record_without_segments_or_with_one_twice_is_damage(machine: Machine, wrong: dict[str, int]) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"before")
    commit = staged(machine, "x", {"jobs": [b"new"]})
    [one] = commit.topics["jobs"]
    assert commit_staged(machine.fs, STORE, commit)
    write_commit(machine.fs, STORE, replace(commit, topics={topic: (one,) * times for topic, times in wrong.items()}))
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"before"]
        assert store.topics() == ["jobs"]
    assert [damage.path for damage in verify_store(STORE, machine.fs).damages] == [f"{STORE}/{COMMITS}/x.json"]


async def test_a_newer_record_keeps_the_store_shut_and_untouched(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"before")
    assert load(machine, ONCE, {"jobs": numbered(2)})
    path = f"{STORE}/{COMMITS}/once.json"
    file = machine.fs.open(path, write=True)
    file.truncate(0)
    file.write_at([encode_checked("commit", 2, {})], 0)
    file.close()
    before = machine.fs.image()
    with pytest.raises(aiodq.FormatVersionError, match="upgrade"):
        async with machine.store():
            pass
    after = machine.fs.image()
    assert {path: data for path, data in after.items() if not path.endswith("LOCK")} == {
        path: data for path, data in before.items() if not path.endswith("LOCK")
    }


async def test_a_failed_sync_as_a_backup_has_a_load_taken_over_stops_the_store(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.store.bulk_adoption._INTERVAL", 3600)
    async with machine.store() as store:
        await store.topic("jobs").put(b"0")
        assert load(machine, CommitKey("daily"), {"jobs": [b"a"]})
        # The first notes the offset; the second, that everything is in its place.
        machine.fs.plan.add(Fault("sync_directory", 2, match=COMMITS))
        with pytest.raises(aiodq.StoreFailedError):
            await store.backup("/b")
        assert not store.health().ok
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"0", b"a"]


async def test_what_nobody_committed_is_swept(machine: Machine) -> None:
    async with machine.store():
        pass
    staged(machine, "gone", {"jobs": numbered(2)})
    machine.clock.advance(DAY - 60)
    staged(machine, "busy", {"jobs": numbered(2)})
    machine.clock.advance(120)
    async with machine.store() as store:
        assert store.topics() == []
    assert len(left(machine)) == 1
    staged(machine, "busy", {"jobs": numbered(3)})
    assert commit_staged(machine.fs, STORE, staged(machine, "busy", {"jobs": [b"x"]}))
    assert len(left(machine)) == 1
    async with machine.store() as store:
        assert await shown(store.topic("jobs")) == [b"x"]
    assert left(machine) == []


async def test_what_a_killed_writer_left_is_swept_by_an_owner_that_stays(machine: Machine) -> None:
    async with machine.store():
        staged(machine, "killed", {"jobs": numbered(2)})
        staged(machine, "at work", {"jobs": numbered(2)})
        machine.clock.advance(DAY - 60)
        working = staged(machine, "at work", {"jobs": numbered(1)})
        (killed,) = (name for name in left(machine) if name not in names_of(machine, "at work"))
        machine.clock.advance(120)
        await until(lambda: killed not in left(machine))
        assert len(left(machine)) == 2, "what a writer at work staged long ago may be committed still"
        assert commit_staged(machine.fs, STORE, working)
        await adopted(machine)
        assert left(machine) == []


async def test_a_wall_clock_that_is_ahead_for_a_while_has_nothing_of_writers_at_work_swept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.store():
        working = staged(machine, "at work", {"jobs": numbered(2)})
        looks: list[int] = []
        monkeypatch.setattr("aiodq.engine.store.bulk_adoption._INTERVAL", 0.01)
        monkeypatch.setattr(Adopting, "look", counted(Adopting.look, looks))
        machine.clock.jump(3650 * DAY)
        await until(lambda: len(looks) > 3)
        machine.clock.jump(-3650 * DAY)
        assert commit_staged(machine.fs, STORE, working)
        await adopted(machine)


def counted(look: Callable[[Adopting], Awaitable[None]], looks: list[int]) -> Callable[[Adopting], Awaitable[None]]:
    async def counting(self: Adopting) -> None:
        looks.append(1)
        await look(self)

    return counting


def names_of(machine: Machine, writer: str) -> list[str]:
    return machine.fs.listdir(staging_directory(STORE, writer))


def test_tasks_that_begin_at_once_do_not_stand_in_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find that there is no directory yet; one makes it first."""
    fs, made = OsFileSystem(), OsFileSystem.make_directory

    def second(self: OsFileSystem, path: str) -> None:
        made(self, path)
        made(self, path)

    monkeypatch.setattr(OsFileSystem, "make_directory", second)
    assert not ensure_directory(fs, str(tmp_path / "a"))
    assert (tmp_path / "a").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(aiodq.StorageError, match="File exists"):
        ensure_directory(fs, str(tmp_path / "file"))


async def test_commits_that_are_found_are_durable_before_anything_is_moved(machine: Machine) -> None:
    async with machine.store() as store:
        await store.queue("jobs").put(b"before")
    assert load(machine, ONCE, {"jobs": numbered(12)})
    calls: list[tuple[str, str]] = []
    machine.fs.before = lambda call, path: calls.append((call, path))
    async with machine.store() as store:
        await adopted(machine)
        assert ready(store.queue("jobs")) == [b"before", *numbered(12)]
    moved = next(
        at for at, (call, path) in enumerate(calls) if call == "rename" and path.startswith(f"{STORE}/{COMMITS}")
    )
    assert ("sync_directory", f"{STORE}/{COMMITS}") in calls[:moved]


async def test_what_is_damaged_is_told_where_no_owner_runs_too(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a job of Spark has its rows taken in."""
    async with machine.store() as store:
        await store.topic("jobs").put_many(numbered(9))
    (segment,) = [path for path in machine.fs.image() if path.endswith(".seg")]
    flip(machine.fs, segment, 400)
    commit = staged(machine, "cut", {"jobs": numbered(2)})
    assert commit_staged(machine.fs, STORE, commit)
    file = machine.fs.open(f"{STORE}/#staging/cut/{commit.topics['jobs'][0].file}", write=True)
    file.truncate(100)
    file.close()
    assert load(machine, CommitKey("junk"), {"jobs": numbered(2)})
    flip(machine.fs, f"{STORE}/{COMMITS}/junk.json", 30)
    assert load(machine, ONCE, {"jobs": [b"whole"]})
    assert adopt_without_owner(machine.fs, machine.clock, STORE, None)
    told = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert [
        told[0].startswith(f"topic 'jobs' is damaged: {segment} at byte "),
        told[-2].startswith(f"the store is damaged: {STORE}/{COMMITS}/junk.json at byte 0: "),
        told[-1].startswith("the bulk load 'cut' is left to the next owner: 2 messages for topic 'jobs' are not what "),
    ] == [True] * 3
