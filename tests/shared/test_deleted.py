"""What was deleted or taken away: an owner keeps nothing of it, and a client hands nothing of it out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.client.history import History
from aiodq.shared.connection.opened import handle_numbers
from aiodq.shared.connection.sent import sent_puts
from aiodq.shared.requests import calls
from aiodq.shared.requests.lending import Lending
from aiodq.shared.server import refusals
from aiodq.shared.server.refusals import Refusals
from aiodq.testing import WatchedFileSystem
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Ack, Call, Done, Fail, Gone, Open, Ping, Pong, Put, Txn, Want
from aiodq.wire.payload import Range
from aiodq.wire.stream import Received
from tests.shared.support import PATIENCE, QUICK, TIME, RawClient, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aiodq.shared.server.owner import Owner
    from aiodq.shared.server.session import Session


def session_of(owner: Owner) -> Session:
    (session,) = owner.clients
    return session


def kept(session: Session) -> tuple[int, int]:
    """Return how many topics and channels are kept for a client."""
    return len(session.handles.topics), len(session.handles.lendings)


def _ended(tasks: int, lent: Sequence[weakref.ref[Lending]]) -> bool:
    """Return whether there are fewer tasks by now, and none of those."""
    gc.collect()
    return len(asyncio.all_tasks()) < tasks and not any(each() for each in lent)


async def test_of_a_channel_that_was_deleted_an_owner_keeps_neither_bodies_nor_tasks(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        topic = client.topic("jobs")
        sessions: list[Session] = owner._store_engine.owner.clients  # type: ignore[attr-defined]  # it stands in its place
        for number in range(4):
            channel = topic.channel(f"c{number}")
            await topic.put_many([b"x" * 1000] * 10)
            held = await channel.get_many(10)
            tasks = len(asyncio.all_tasks())
            lent = [weakref.ref(each) for one in sessions for each in one.handles.lendings.values()]
            await owner.topic("jobs").delete_channel(f"c{number}")
            await until(lambda: not any(one.handles.lendings for one in sessions))
            with pytest.raises(aiodq.AiodqError):
                await held[0].ack()
            with pytest.raises(aiodq.QueueShutDown):
                await channel.get()
            with pytest.raises(aiodq.QueueShutDown):
                held[1].ack_nowait()
            await until(partial(_ended, tasks, lent))
        await topic.channel("c0").get_many(1)


async def test_who_has_a_handle_of_what_was_deleted_is_told_so_and_goes_on(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        await client.open(2, "jobs", "c")
        await client.answer(client.put(1, 1, [b"x", b"y"]))
        (_, number, _), _ = await client.take(2, 2, 2)
        await store.delete_topic("jobs")
        session = session_of(owner)
        await until(lambda: kept(session) == (0, 0))
        for said in (
            Put(1, 2, 1, encode_messages(Columns([b"z"]), TIME)),
            Ack(2, owner.epoch, (Range(0, number, 1),)),
            Want(2, 5),
            Call("refresh", {"handle": 2}),
            Call("sync", {"handle": 1}),
        ):
            answer = await client.ask(said)
            assert isinstance(answer, Fail), said
            assert answer.name == "QueueShutDown", answer
        assert await client.ask(Ping(4)) == Pong(4)
        assert store.topics() == []
        await client.close()


async def test_a_transaction_makes_a_topic_anew_by_its_old_handle(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        await client.answer(client.put(1, 1, [b"x"]))
        await store.delete_topic("jobs")
        await until(lambda: kept(session_of(owner)) == (0, 0))
        assert await client.ask(Txn(1 << 40, (), (Put(1, 0, 1, encode_messages(Columns([b"anew"]), TIME)),))) == Done()
        assert [message.body async for message in store.topic("jobs").scan()] == [b"anew"]
        await client.close()


def test_so_many_handles_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_MOST", 3)
    those = Refusals()
    for handle in range(5):
        those.add(handle, aiodq.QueueShutDown(f"{handle}"), f"t{handle}")
    assert [handle in those for handle in range(5)] == [False, False, True, True, True]
    those.check(0)
    with pytest.raises(aiodq.QueueShutDown, match="4"):
        those.check(4)
    assert (those.topic(1), those.topic(2)) == ("", "t2")


async def test_the_names_of_topics_are_remembered_as_long_as_their_handles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_MOST", 3)
    async with owned(tmp_path / "s") as (store, owner):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        session = session_of(owner)
        for handle in range(1, 9):
            await client.open(handle, f"t{handle}")
            await client.answer(client.put(handle, 1, [b"x"]))
            await store.delete_topic(f"t{handle}")
            await until(lambda: kept(session) == (0, 0))
        assert list(session.handles._last) == ["t6", "t7", "t8"]
        await client.close()


async def test_a_client_keeps_nothing_of_topics_that_others_deleted(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        remote: Any = client._store_engine
        deleted: list[weakref.ref[Any]] = []
        for number in range(3):
            topic = client.topic(f"t{number}")
            await topic.put(b"x")
            await (await topic.channel("c").get()).ack()
            deleted += [weakref.ref(topic._engine), weakref.ref(topic.channel("c")._channel_engine)]
            await owner.delete_topic(topic.name)
            with pytest.raises(aiodq.QueueShutDown):
                await topic.channel("c").get()
            del topic
        await until(lambda: not remote.topics)

        def gone() -> bool:
            gc.collect()
            return [each() for each in deleted] == [None] * 6

        await until(gone)
        assert await client.topic("t0").put(b"y") == 0
        assert (await client.topic("t0").channel("c").get()).body == b"y"


async def test_a_client_forgets_channels_that_another_process_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle_numbers, "_MOST_RELEASED", 2)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.put(b"x")
        engine: Any = topic._engine
        for number in range(3):
            channel = topic.channel(f"c{number}")
            await channel.refresh()
            await owner.topic("jobs").delete_channel(f"c{number}")
            await until(lambda: not engine.channel_engines)
            with pytest.raises(aiodq.QueueShutDown, match="deleted"):
                await channel.get()
        assert list(engine.link._handles) == [("jobs", ""), ("jobs", "c1"), ("jobs", "c2")]
        await until(lambda: topic.channels() == [])
        assert (await topic.channel("c0").get()).body == b"x"


async def test_a_client_forgets_the_puts_into_topics_that_it_uses_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_puts, "_MANY", 3)
    async with two(tmp_path / "s", QUICK) as (owner, client):
        remote: Any = client._store_engine
        for number in range(20):
            assert await client.topic(f"t{number % 10}").put(b"%d" % number) == number // 10
            assert len(remote.link._topics) <= 3
        for number in range(10):
            found = [message.body async for message in owner.topic(f"t{number}").scan()]
            assert found == [b"%d" % number, b"%d" % (number + 10)]


def test_puts_that_are_under_way_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_puts, "_MANY", 2)
    sent: list[tuple[str, int]] = []
    puts = sent_puts.PutsByTopic(lambda topic, sequence, _: sent.append((topic, sequence)))
    put = sent_puts.SentPut(b"", 1, each=False, on_done=lambda _: None, given_up=lambda: False, cancelled=lambda: False)
    for topic in ("idle", "idle", "busy"):
        puts.of(topic).put(put)
    puts.of("idle").answered(1, Done((0, 1)))
    puts.of("idle").answered(2, Done((1, 1)))
    puts.of("new")
    assert list(puts) == ["busy", "new"]
    for topic in ("busy", "idle"):
        puts.of(topic).put(put)
    assert sent == [("idle", 1), ("idle", 2), ("busy", 1), ("busy", 2), ("idle", 3)]


async def test_what_was_taken_away_before_anybody_took_it_is_not_handed_out(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.topic("jobs").put_many([b"a", b"b", b"c"])
        channel: Any = client.topic("jobs").channel("c")
        engine = channel._channel_engine
        await channel.refresh()
        with pytest.raises(aiodq.QueueEmpty):
            channel.get_nowait()  # it asks for one that a later call may find
        await until(lambda: len(engine._ready) == 1)
        assert await owner.topic("jobs").channel("c").purge() == 3
        await until(lambda: not engine.holdings)
        assert len(engine._ready) == 0
        with pytest.raises(aiodq.QueueEmpty):
            channel.get_nowait()
        await owner.topic("jobs").put(b"d")
        message = await channel.get()
        assert message.body == b"d"
        await message.ack()


async def test_of_what_came_together_only_what_was_taken_away_is_not_handed_out(tmp_path: Path) -> None:
    """Seven messages are sent ahead of who takes them, and two of them are another's by then."""
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.topic("jobs").put_many([b"%d" % n for n in range(8)])
        channel: Any = client.topic("jobs").channel("c")
        engine = channel._channel_engine
        with engine.wanting(7):
            first = await channel.get()
            await until(lambda: len(engine._ready) == 7)
            gone = engine.holdings.get(2)
            engine.receive(Gone(0, engine.epoch, (Range(gone.offset, gone.delivery, 2),)), engine.epoch)
            left = channel._channel_engine.take_run(10, owner)
        assert [message.body for message in [first, *left]] == [b"0", b"1", b"4", b"5", b"6", b"7"]
        assert len(engine._ready) == 0


@pytest.mark.parametrize("how", ["put", "sync"])
async def test_a_topic_that_another_process_deleted_can_be_put_into_anew(tmp_path: Path, how: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.put(b"old")
        await owner.delete_topic("jobs")
        with pytest.raises(aiodq.QueueShutDown, match="deleted"):
            await (topic.put(b"x") if how == "put" else topic.sync())
        assert await client.topic("jobs").put(b"new") == 0
        with pytest.raises(aiodq.QueueShutDown, match="deleted"):
            await topic.put(b"x")
        assert [message.body async for message in owner.topic("jobs").scan()] == [b"new"]


async def test_messages_of_a_client_that_leaves_go_to_others_though_a_channel_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, deleted, give_back = asyncio.Event(), asyncio.Event(), Lending.give_back

    async def giving_back(lending: Lending, *given: Any, **named: Any) -> None:
        begun.set()
        await deleted.wait()
        await give_back(lending, *given, **named)

    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        topic, client = owner.topic("jobs"), await aiodq.open(tmp_path / "s", mode="client")
        await topic.put(b"x")
        earliest = aiodq.ChannelOptions(start="earliest")
        for name in "abc":
            await client.topic("jobs").channel(name, earliest).get()
        monkeypatch.setattr(Lending, "give_back", giving_back)
        await client.aclose()
        await begun.wait()
        await topic.delete_channel("a")
        deleted.set()
        left = [topic.channel(name) for name in "bc"]
        await until(lambda: [channel.qsize() for channel in left] == [1, 1])


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_what_another_process_deleted_can_be_named_with_other_options_at_once(tmp_path: Path, kind: str) -> None:
    async with (
        two(tmp_path / "s", QUICK) as (owner, client),
        aiodq.open(tmp_path / "s", mode="client") as other,
        asyncio.timeout(PATIENCE),
    ):
        for deleting in (owner, other):
            topic = client.topic("jobs", aiodq.StoreOptions(max_messages=3))
            await topic.put(b"x")
            await topic.channel("c", aiodq.ChannelOptions(max_in_flight=3)).refresh()
            await (deleting.delete_topic("jobs") if kind == "topic" else deleting.topic("jobs").delete_channel("c"))
            await client.requeue_dead("none")  # by its answer, the client has read what it was sent before
            anew = client.topic("jobs", aiodq.StoreOptions(max_messages=5)) if kind == "topic" else client.topic("jobs")
            await anew.channel("c", aiodq.ChannelOptions(max_in_flight=5)).refresh()
            await client.delete_topic("jobs")


async def test_a_deletion_that_is_repeated_leaves_a_topic_alone_that_was_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, tried = aiodq.Store.delete_topic, 0

    async def deleting(store: aiodq.Store, name: str) -> None:
        nonlocal tried
        tried += 1
        await plain(store, name)
        if tried == 1:
            await store.topic(name).put(b"new")
            client._store_engine.link._wire.abort()  # type: ignore[attr-defined]  # before the answer is sent

    async with two(tmp_path / "s") as (owner, client):
        await client.topic("jobs").put(b"old")
        monkeypatch.setattr(aiodq.Store, "delete_topic", deleting)
        await client.delete_topic("jobs")
        assert [message.body async for message in owner.topic("jobs").scan()] == [b"new"]
        assert tried == 1
        await client.delete_topic("jobs")
        assert "jobs" not in client.topics()


def answer_is_lost(monkeypatch: pytest.MonkeyPatch, kind: str, client: aiodq.Store, then: Callable[[], Any]) -> None:
    """Have the client's connection cut after the owner's first deletion and `then`, before the answer is sent."""
    table: dict[str, Any] = getattr(calls, kind)
    name = "delete_channel" if kind == "_TOPIC" else "delete_topic"
    left = [then]

    async def delete(*given: Any) -> None:
        await table[name](*given)
        if left:
            await left.pop()()
            client._store_engine.link._wire.abort()  # type: ignore[attr-defined]  # it stands in its place

    monkeypatch.setattr(calls, kind, {**table, name: delete})


async def test_a_deletion_that_is_repeated_leaves_a_channel_alone_that_was_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.channel("c").refresh()

        async def make() -> None:
            await owner.topic("jobs").channel("c").refresh()
            await owner.topic("jobs").put(b"new")

        answer_is_lost(monkeypatch, "_TOPIC", client, make)
        await topic.delete_channel("c")
        assert (await owner.topic("jobs").channel("c").get()).body == b"new"
        await topic.delete_channel("c")
        assert "c" not in topic.channels()


@pytest.mark.parametrize("kind", ["_TOPIC", "_STORE"])
async def test_who_deletes_something_makes_it_not_anew_by_opening_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.put(b"x")
        await topic.channel("c").refresh()
        answer_is_lost(monkeypatch, kind, client, partial(asyncio.sleep, 0))
        await (topic.delete_channel("c") if kind == "_TOPIC" else client.delete_topic("jobs"))
        engines = owner._store_engine.owner.engine.topics  # type: ignore[attr-defined]  # as above
        assert [name for name, engine in engines.items() if "c" in engine.channel_engines] == []
        assert ("jobs" in engines) == (kind == "_TOPIC")
        await client.topic("jobs").channel("c").refresh()  # a new one


async def test_what_could_not_be_deleted_is_open_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        channel = topic.channel("c")
        await channel.refresh()
        table = calls._TOPIC
        tried: list[int] = []

        async def refuse(*_: Any) -> None:
            tried.append(1)
            if len(tried) == 1:
                client._store_engine.link._wire.abort()  # type: ignore[attr-defined]  # as above
            raise aiodq.StorageError("no", "path")

        monkeypatch.setattr(calls, "_TOPIC", {**table, "delete_channel": refuse})
        getting = asyncio.create_task(channel.get())
        await asyncio.sleep(0)
        with pytest.raises(aiodq.StorageError, match="no"):
            await topic.delete_channel("c")
        assert len(tried) == 2
        await topic.put(b"x")
        assert (await getting).body == b"x"


async def test_a_topic_that_could_not_be_deleted_is_one_again_once_it_was(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs),
        aiodq.open(tmp_path / "s", mode="client") as client,
        aiodq.open(tmp_path / "s", mode="client") as other,
    ):
        await client.topic("jobs").put(b"x")
        # By its name a topic is the new one as soon as a process has heard of that, which it may at any moment.
        before = other.topic("jobs")
        await before.settle_in()
        fs.fail(errno.EIO, "rename", match="#deleted")
        with pytest.raises(aiodq.StorageError):
            await client.delete_topic("jobs")
        with pytest.raises(aiodq.StorageError, match="half deleted: delete it again"):
            await client.topic("jobs").put(b"y")  # not that it was deleted
        fs.heal()
        with pytest.raises(aiodq.QueueShutDown):
            await before.put(b"y")
        with pytest.raises(aiodq.StorageError, match="half deleted"):
            await other.topic("jobs").put(b"y")
        before = other.topic("jobs")
        await client.delete_topic("jobs")
        assert await client.topic("jobs").put(b"y") == 0
        with pytest.raises(aiodq.QueueShutDown):
            await before.put(b"z")
        assert await other.topic("jobs").put(b"z") == 1


async def test_puts_that_a_drain_refuses_delete_no_topic(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        assert await owner.drain(0.05) is False
        with pytest.raises(aiodq.QueueShutDown, match="shut down"):
            await queue.put(b"y")
        await message.ack()
        await queue.refresh()
        assert queue.depth == 0


async def test_what_a_client_asked_last_is_given_up_quietly_when_it_goes_at_once(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        session = session_of(owner)
        session.receive(Received(Open(2, "jobs", "c", {}), 9))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await session.end()
            gc.collect()
        assert not caught
        await client.close()


async def test_who_asks_for_the_counts_of_a_channel_that_is_deleted_meanwhile_is_told_so(tmp_path: Path) -> None:
    async with owned(tmp_path / "s", QUICK) as (store, owner), asyncio.timeout(PATIENCE):
        topic = store.topic("jobs")
        await topic.channel("c").refresh()
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        await client.open(2, "jobs", "c")
        session = session_of(owner)
        lending = session.handles.lendings[2]
        lending.resuming.begin()  # it has claimed nothing yet, for which the counts wait
        request = client.send(Call("refresh", {"handle": 2}))
        assert await client.ask(Ping(1)) == Pong(1)
        await topic.delete_channel("c")
        await until(lambda: not session.handles.lendings)
        lending.resuming.over.set()
        said = await client.answer(request)
        assert isinstance(said, Fail)
        assert (said.name, said.text) == ("QueueShutDown", "channel 'c' was deleted")
        await client.close()


async def test_who_has_not_heard_of_a_deletion_makes_nothing_anew(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        channel = topic.channel("c")
        await channel.refresh()
        await owner.topic("jobs").delete_channel("c")
        with pytest.raises(aiodq.QueueShutDown, match="deleted"):
            await channel.refresh()
        await topic.put(b"x")
        await owner.delete_topic("jobs")
        with pytest.raises(aiodq.QueueShutDown, match="deleted"):
            await topic.channel("d").refresh()
        assert owner._store_engine.owner.store.topics() == []  # type: ignore[attr-defined]  # it stands in its place
        await client.topic("jobs").channel("d").refresh()
        assert await client.topic("jobs").put(b"y") == 0


@pytest.mark.parametrize("what", ["scan", "read"])
async def test_who_reads_a_topic_that_is_deleted_meanwhile_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    refresh, there, gone = History._refresh, threading.Event(), threading.Event()

    def late(history: History) -> None:
        there.set()
        assert gone.wait(PATIENCE)
        refresh(history)

    async with two(tmp_path / "s", QUICK) as (owner, client):
        jobs = client.topic("jobs")
        await jobs.put(b"a")
        monkeypatch.setattr(History, "_refresh", late)
        reading = asyncio.ensure_future(anext(jobs.scan()) if what == "scan" else jobs.read(0))
        await until(there.is_set)
        await owner.delete_topic("jobs")
        gone.set()
        with pytest.raises(aiodq.QueueShutDown, match="'jobs' was deleted"):
            await reading


@pytest.mark.parametrize("kind", ["exclusive", "here", "there"])
async def test_a_handle_keeps_the_numbers_of_what_was_deleted_also_if_there_is_another_one(
    tmp_path: Path, kind: str
) -> None:
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        if kind == "exclusive":
            other = store = await stack.enter_async_context(aiodq.open(tmp_path / "s", QUICK))
        else:
            other, store = await stack.enter_async_context(two(tmp_path / "s", QUICK))
        deleting = other if kind == "there" else store
        topic = store.topic("jobs")
        channels = [topic.channel(name) for name in "ab"]
        for channel in channels:
            await channel.refresh()
        await topic.put_many([b"x"] * 5)
        for channel in channels:
            await channel.get()
            await channel.refresh()
        before = channels[0].stats()
        assert (before.ready, before.in_flight, before.depth) == (4, 1, 5)
        await deleting.topic("jobs").delete_channel("a")
        await until(lambda: "deleted" in repr(channels[0]))
        await store.topic("jobs").channel("a").refresh()
        assert channels[0].stats() == before
        before, whole = channels[1].stats(), topic.stats()
        await deleting.delete_topic("jobs")
        await until(lambda: "deleted" in repr(topic))
        await store.topic("jobs").put(b"x")
        await store.topic("jobs").channel("b").refresh()
        assert channels[1].stats() == before
        assert topic.stats().end_offset == whole.end_offset == 5


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_a_look_that_began_before_a_deletion_does_not_bring_back_what_was_deleted(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        store: Any = client
        remote = store._remote
        for name in "jobs", "other":
            await client.topic(name).channel("c").refresh()
        result, read, over = remote.link.result, asyncio.Event(), asyncio.Event()

        async def slowly(name: str, *args: Any, **named: Any) -> Any:
            found = await result(name, *args, **named)
            if name == "stats" and args[1]["topic"] == "other":
                read.set()
                await over.wait()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(remote.link, "result", slowly)
            look = asyncio.create_task(remote.report.look_once())
            await read.wait()
        await (client.delete_topic("jobs") if kind == "topic" else client.topic("jobs").delete_channel("c"))
        over.set()
        await look
        assert client.topics() == (["other"] if kind == "topic" else ["jobs", "other"])
        assert client.topic("jobs").channels() == []
        assert client.topic("other").channels() == ["c"]
