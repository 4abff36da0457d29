"""A channel just named: its counts are right at once, and it delivers once it is on disk."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
from aiodq.delivery import deferrals
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.engine.stats import topic_stats
from aiodq.engine.store import channel_management
from aiodq.engine.topic.creation import _ChannelGroup
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.testing import Fault
from tests.channels.support import PATIENCE, Machine, counts, ready, soon
from tests.compiled import is_compiled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MESSAGES = [b"%d" % number for number in range(20)]
HOUR = 3600


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what has no wait to spare be waited for, however late a busy machine begins a thread."""
    if not is_compiled(channel_management):
        monkeypatch.setattr(channel_management, "_LONGEST_HOLD", PATIENCE)


def named(topic: aiodq.Topic, name: str = "new", start: Any = "earliest") -> aiodq.Channel:
    return topic.channel(name, aiodq.ChannelOptions(start=start))


@pytest.mark.parametrize(
    ("start", "before"), [("earliest", 20), ("latest", 0), (0, 20), (7, 13), (20, 0), (99, 0), (None, 20)]
)
@pytest.mark.parametrize("again", [False, True])
async def test_it_counts_what_is_before_it(machine: Machine, start: Any, before: int, again: bool) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        if not again:
            await check(topic, start, before)
    if again:
        async with machine.store() as store:
            await check(store.topic("t"), start, before)


async def check(topic: aiodq.Topic, start: Any, before: int) -> None:
    new = named(topic, start=start)
    assert counts(new) == (before, 0, 0)
    assert (new.depth, new.empty(), new.stats().ready) == (before, not before, before)
    assert f"{before} ready" in repr(new)
    found = await soon(new.peek())
    assert (found and found.body) == (MESSAGES[20 - before] if before else None)
    assert counts(new) == (before, 0, 0)
    assert ready(new) == MESSAGES[20 - before :]


async def test_a_later_channel_begins_behind_what_was_accepted(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        first = named(topic, "first")
        await topic.put_many(MESSAGES)
        receipt = topic.put_nowait(b"accepted")
        second = topic.channel("second")
        later = topic.put_nowait(b"later")
        assert second.depth == 0
        assert await receipt == 20
        assert second.depth == later.done()
        assert await later == 21
        assert (first.depth, second.depth) == (22, 1)
        assert ready(second) == [b"later"]


@pytest.mark.parametrize("known", ["tail", "other channel"])
async def test_what_is_deferred(machine: Machine, known: str) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        first = named(topic, "first")
        await topic.put(b"delayed", delay=HOUR)
        await topic.put(b"ready")
        if known == "other channel":
            assert ready(first) == [b"ready"]
            await topic.put(b"again")
            await (await first.get()).nack(delay=HOUR)
        else:
            await topic.put(b"again")
        new = named(topic)
        assert counts(new) == (2, 0, 1)
        await topic.settle_in()
        assert counts(new) == (2, 0, 1)
        assert ready(new) == [b"ready", b"again"]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("start", ["earliest", 0, datetime(1990, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("busy", [False, True])
async def test_what_counts_is_delivered_in_the_same_step(
    machine: Machine, sync: Literal["always", "interval", "os"], start: Any, busy: bool
) -> None:
    async with machine.store(sync=sync) as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        if busy:
            topic.put_nowait(b"on its way")
        assert named(topic, start=start).get_nowait().body == b"0"
        machine.crash()
    async with machine.store() as store:
        # What delivers is there to stay.
        assert "new" in store.topic("t").channels()


async def test_for_statistics_of_many_the_others_are_looked_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[object](), topic_stats._deferred_elsewhere

    def counted(engine: Any) -> Any:
        looks.append(engine)
        return look(engine)

    monkeypatch.setattr(topic_stats, "_deferred_elsewhere", counted)
    async with machine.store() as store:
        topic = store.topic("t")
        old = topic.channel("old")
        await topic.put_many([b"later"] * 3, delay=HOUR)
        assert old.deferred() == 3
        new = [named(topic, f"new-{number}") for number in range(20)]
        looks.clear()
        found = topic.stats().channels
        assert [found[each.name].deferred for each in new] == [3] * 20
        assert len(looks) == 1
        await soon(new[0].peek())
        looks.clear()
        assert topic.stats().channels["new-7"].deferred == 3
        assert not looks


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each set of deferred messages that is gone through from now on."""
    looked, deferred = list[int](), deferrals.Deferrals.__iter__

    def counted(self: deferrals.Deferrals) -> Iterator[tuple[int, int]]:
        looked.append(len(self))
        return deferred(self)

    monkeypatch.setattr(deferrals.Deferrals, "__iter__", counted)
    return looked


@pytest.mark.skipif(is_compiled(deferrals), reason="compiled code cannot be patched")
async def test_of_very_many_deferred_elsewhere_not_all_are_looked_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_stats, "_MOST_DEFERRED", 10)
    async with machine.store() as store:
        topic = store.topic("t")
        for number in range(8):
            topic.channel(f"old-{number}")
        await topic.put_many([b"later"] * 4, delay=HOUR)
        looked = counting(monkeypatch)
        assert counts(named(topic)) == (0, 0, 4)
        assert looked == [4, 4] * 3  # for each of the three


@pytest.mark.skipif(is_compiled(deferrals), reason="compiled code cannot be patched")
async def test_a_channel_that_is_being_created_does_not_look_at_each_of_very_many_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        old = [topic.channel(f"old-{number}") for number in range(150)]
        await topic.put(b"later", delay=HOUR)
        for each in old:
            await each.refresh()
        looked = counting(monkeypatch)
        assert counts(named(topic)) == (0, 0, 1)
        assert looked == [1] * 100 * 3  # for each of the three


async def test_several_at_once(machine: Machine) -> None:
    async with machine.store() as store:
        topic, other = store.topic("t"), store.topic("other")
        await topic.put_many(MESSAGES)
        await other.put_many(MESSAGES)
        channels = [named(each, str(number)) for number in range(5) for each in (topic, other)]
        for channel in channels:
            assert ready(channel) == MESSAGES
        for channel in channels:
            assert counts(channel) == (0, 20, 0)


async def test_a_disk_that_hangs_holds_the_loop_for_a_moment_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, add_channels = threading.Event(), TopicDescription.add_channels

    def hanging(self: TopicDescription, *args: Any) -> None:
        go_on.wait(PATIENCE)
        add_channels(self, *args)

    monkeypatch.setattr(channel_management, "_LONGEST_HOLD", 0.05)
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        monkeypatch.setattr(TopicDescription, "add_channels", hanging)
        new = named(topic)
        with pytest.raises(aiodq.QueueEmpty, match="just named"):
            new.get_nowait()
        assert counts(new) == (20, 0, 0)
        go_on.set()
        assert (await soon(new.get())).body == b"0"
        assert ready(new) == MESSAGES[1:]


@pytest.mark.slow_on_uvloop  # fewer are created on both loops
async def test_very_many_are_created_in_several_groups(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, made = list[int](), _ChannelGroup.made

    def noted(group: _ChannelGroup, *outcome: Any) -> None:
        groups.append(len(group._channels))
        made(group, *outcome)

    monkeypatch.setattr(_ChannelGroup, "made", noted)
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        channels = [named(topic, str(number)) for number in range(600)]
        await topic.put(b"later")
        assert all(channel.qsize() == len(MESSAGES) + 1 for channel in channels)
        assert sum(groups) == len(channels)
        assert max(groups) <= 256
        assert len(groups) <= 3 + 1, "or the description is written too often"


async def test_a_paused_one_delivers_nothing(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        await soon(topic.pause())
        with pytest.raises(aiodq.QueueEmpty, match="may be delivered now"):
            named(topic).get_nowait()


async def test_power_cut_before_it_is_on_disk(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        assert named(topic).depth == 20
        machine.crash()
    async with machine.store() as store:
        assert "new" not in store.topic("t").channels()
        new = named(store.topic("t"))
        assert new.depth == 20
        await store.topic("t").settle_in()
        assert ready(new) == MESSAGES


async def test_the_backlog_is_dropped_meanwhile(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        new = named(topic)
        await topic.purge()
        assert counts(new) == (0, 0, 0)
        await topic.put(b"x")
        assert ready(new) == [b"x"]


async def test_deleted_before_it_is_there(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        new = named(topic)
        await topic.delete_channel("new")
        with pytest.raises(aiodq.QueueShutDown):
            await new.get()
        assert named(topic).depth == 20


async def test_on_a_full_disk(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        machine.fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, match="new"))
        new = named(topic)
        assert new.depth == 20
        with pytest.raises(aiodq.DiskFullError):
            new.get_nowait()
        with pytest.raises(aiodq.DiskFullError):
            await soon(new.peek())
        assert counts(new) == (20, 0, 0)
        machine.fs.plan.clear()
        found = await soon(new.peek())
        assert found is not None
        assert found.body == b"0"
        assert ready(new) == MESSAGES


async def test_from_a_moment_on_it_counts_once_it_is_there(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("t")
        await topic.put_many(MESSAGES)
        new = named(topic, start=datetime(1990, 1, 1, tzinfo=UTC))
        found = await soon(new.peek())
        assert found is not None
        assert (found.body, new.depth) == (b"0", 20)


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
async def test_settling_in_asks_no_thread_for_anything_unless_something_is_under_way(
    sync: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[object](), WorkerThreads.start

    def note(threads: WorkerThreads, function: Any, report: Any, then: Any = None) -> None:
        started.append(function)
        start(threads, function, report, then)

    async with aiodq.open(tmp_path, aiodq.StoreOptions(sync=sync, sync_interval=HOUR)) as store:
        topic = store.topic("jobs")
        await topic.put(b"x")
        await topic.settle_in()
        monkeypatch.setattr(WorkerThreads, "start", note)
        for _ in range(3):
            await topic.settle_in()
        assert not started
        topic.put_nowait(b"y")
        channel = topic.channel("new")
        await topic.settle_in()
        assert started
        assert channel.depth == 2
        assert topic.end_offset == 2
