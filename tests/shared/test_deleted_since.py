"""What was deleted while a process heard of nothing stays deleted, whatever that process had open or had asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.encoding.options_json import topic_options
from aiodq.shared.requests import calls
from aiodq.shared.server import session
from aiodq.wire.packets import Fail, Hello, Open, Welcome
from tests.processes import WATCHDOG, environment, killed_at_last
from tests.shared.support import NO_PROCESS, PATIENCE, QUICK, RawClient, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def three(stack: AsyncExitStack, path: Path) -> list[aiodq.Store]:
    """Open a store three times; the first one owns it, and the others may after it."""
    return [await stack.enter_async_context(aiodq.open(path, QUICK, mode="shared")) for _ in range(3)]


def link_of(store: aiodq.Store) -> Any:
    return store._store_engine.link  # type: ignore[attr-defined]  # it stands in its place


def channels(store: aiodq.Store, topic: str) -> dict[str, object]:
    """Return the channels of a topic, if this store's process is the owner."""
    owner: Any = store._store_engine
    engine = None if owner.owner is None else owner.owner.engine.topics.get(topic)
    return {} if engine is None else dict(engine.channel_engines)


def owner_of(stores: list[aiodq.Store]) -> aiodq.Store:
    (owner,) = [each for each in stores if each._store_engine.owner is not None]  # type: ignore[attr-defined]  # as above
    return owner


async def meanwhile(store: aiodq.Store, then: Callable[[], Any]) -> None:
    """Cut a client's connection, and have no other one before `then` is done."""
    remote: Any = link_of(store)
    find, may = remote._search.find, asyncio.Event()

    async def later() -> Any:
        await may.wait()
        return await find()

    remote._search.find = later
    before = remote._wire
    before.abort()
    try:
        await until(lambda: remote._wire is None)
        await then()
    finally:
        remote._search.find = find
        may.set()
    await until(lambda: remote._ready and remote._wire is not before)


NAMES = ["topic", "channel", "topic#ephemeral", "channel#ephemeral"]


async def _named(store: aiodq.Store, kind: str) -> tuple[aiodq.Topic, aiodq.Channel]:
    what, _, ephemeral = kind.partition("#")
    tail = f"#{ephemeral}" if ephemeral else ""
    topic = store.topic("jobs" + tail * (what == "topic"))
    channel = topic.channel("c" + tail * (what == "channel"))
    await channel.refresh()
    await topic.put(b"old")
    await until(lambda: store._store_engine.topics[topic.name]._uuid)  # type: ignore[attr-defined]  # as above
    return topic, channel


async def _delete(store: aiodq.Store, kind: str, topic: str, channel: str) -> None:
    if kind.startswith("topic"):
        await store.delete_topic(topic)
    else:
        await store.topic(topic).delete_channel(channel)


@pytest.mark.parametrize("kind", NAMES)
async def test_what_is_deleted_while_a_process_is_cut_off_stays_deleted(tmp_path: Path, kind: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(client, kind)
        message = await channel.get()
        getting = asyncio.create_task(channel.get())
        await asyncio.sleep(0)
        await meanwhile(client, lambda: _delete(owner, kind, topic.name, channel.name))
        for call in (getting, channel.get(), message.ack()):
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await call
        if kind.startswith("topic"):
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await topic.put(b"x")
            assert topic.name not in owner.topics()
        else:
            assert owner.topic(topic.name).channels() == []
            await topic.put(b"x")
        await client.topic(topic.name).channel(channel.name).refresh()
        await client.topic(topic.name).put(b"new")
        # The first channel of a topic begins with the oldest message kept.
        oldest = b"new" if kind.startswith("topic") else b"old"
        assert (await client.topic(topic.name).channel(channel.name).get()).body == oldest


@pytest.mark.parametrize("kind", ["topic", "topic#ephemeral"])
async def test_a_topic_that_was_made_since_is_another_one(tmp_path: Path, kind: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(client, kind)

        async def again() -> None:
            await owner.delete_topic(topic.name)
            await owner.topic(topic.name).channel(channel.name).refresh()
            await owner.topic(topic.name).put(b"new")

        await meanwhile(client, again)
        for call in (channel.get(), topic.put(b"x")):
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await call
        assert (await client.topic(topic.name).channel(channel.name).get()).body == b"new"


@pytest.mark.parametrize("kind", ["channel", "channel#ephemeral", "channel of the next owner"])
async def test_a_message_of_a_channel_that_was_deleted_settles_none_of_one_made_since(
    tmp_path: Path, kind: str
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        topic, channel = await _named(stores[1], kind.partition(" ")[0])
        await topic.put_many([b"new"] * 4)
        acked, nacked, rejected, touched, released = await channel.get_many(5, linger=PATIENCE)

        async def again() -> None:
            await stores[0].topic("jobs").delete_channel(channel.name)
            await stores[0].topic("jobs").channel(channel.name).refresh()
            if kind.endswith("owner"):
                await stores[0].aclose()
                await until(lambda: stores[2]._store_engine.owner)  # type: ignore[attr-defined]  # as above

        acking = asyncio.ensure_future(acked.ack())
        await asyncio.sleep(0)
        await meanwhile(stores[1], again)
        for call in (acking, rejected.reject("bad")):
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await call
        for late in (nacked.nack(), touched.touch()):
            with suppress(aiodq.QueueShutDown):
                await late
        with suppress(aiodq.QueueShutDown):
            released.release()
        anew = stores[1].topic("jobs").channel(channel.name)
        messages = await anew.get_many(5, linger=PATIENCE)
        assert [(message.offset, message.attempts) for message in messages] == [(offset, 1) for offset in range(5)]
        await anew.ack_many(messages)


async def test_a_channel_that_an_earlier_aiodq_has_made_goes_by_its_name(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        _, channel = await _named(client, "channel")
        message = await channel.get()
        engine: Any = channels(owner, "jobs")["c"]
        for made in (None, engine.made):
            engine.made = made
            await meanwhile(client, lambda: asyncio.sleep(0))
            await channel.refresh()
        await message.ack()


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_what_was_deleted_before_an_owner_ends_is_not_made_by_the_next(tmp_path: Path, kind: str) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        topic, channel = await _named(stores[1], kind)

        async def end() -> None:
            await _delete(stores[0], kind, topic.name, channel.name)
            await stores[0].aclose()
            await until(lambda: stores[2]._store_engine.owner)  # type: ignore[attr-defined]  # as above

        await meanwhile(stores[1], end)
        with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
            await channel.get()
        owner = owner_of(stores[1:])
        there = owner._store_engine.owner.engine.topics  # type: ignore[attr-defined]  # as above
        if kind == "topic":
            assert "jobs" not in there
        else:
            assert there["jobs"].channel_engines == {}
            await topic.put(b"x")


@pytest.mark.parametrize("kind", ["topic#ephemeral", "channel#ephemeral"])
async def test_what_was_in_an_owners_memory_is_made_by_the_next(tmp_path: Path, kind: str) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        topic, channel = await _named(stores[1], kind)
        await stores[0].aclose()
        await topic.put(b"new")
        await channel.refresh()
        message = await channel.get()
        while message.body != b"new":
            message = await channel.get()


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_an_owner_of_the_version_before_makes_it_as_it_did(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(client, kind)
        monkeypatch.setattr(session, "VERSION", 1)
        await meanwhile(client, lambda: _delete(owner, kind, topic.name, channel.name))
        await topic.put(b"new")
        assert (await channel.get()).body == (b"new" if kind == "topic" else b"old")


async def test_puts_and_transactions_that_wait_for_an_owner_make_no_deleted_topic(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, _ = await _named(client, "topic")
        puts: list[asyncio.Task[int]] = []

        async def delete() -> None:
            puts.extend(asyncio.create_task(topic.put(b"%d" % number)) for number in range(5))
            await asyncio.sleep(0)
            await owner.delete_topic("jobs")

        await meanwhile(client, delete)
        for put in puts:
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await put
        assert owner.topics() == []


async def test_the_first_put_into_a_topic_makes_it_anew_if_it_was_deleted_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        with monkeypatch.context() as patch:
            patch.setattr(link_of(client)._wire, "_receive", lambda _: None)  # no answer arrives
            putting = asyncio.create_task(client.topic("jobs").put(b"x"))
            await until(lambda: owner.topics() == ["jobs"] and owner.topic("jobs").stats().end_offset == 1)
            await owner.delete_topic("jobs")
            link_of(client)._wire.abort()
        assert await putting == 0
        assert [message.body async for message in owner.topic("jobs").scan()] == [b"x"]


async def test_a_repeated_transaction_makes_a_topic_anew_as_it_names_it(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        await _named(client, "topic")
        committing: list[asyncio.Task[None]] = []

        async def commit() -> None:
            async with client.transaction() as tx:
                tx.put("jobs", b"new")

        async def delete() -> None:
            committing.append(asyncio.create_task(commit()))
            await asyncio.sleep(0)
            await owner.delete_topic("jobs")

        await meanwhile(client, delete)
        await committing[0]
        assert [message.body async for message in owner.topic("jobs").scan()] == [b"new"]


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_owner_opens_what_exists_and_nothing_else(tmp_path: Path, deleted: bool) -> None:
    async with owned(tmp_path / "s") as (store, _):
        client = await RawClient.connected(tmp_path / "s")
        welcome = await client.ask(Hello(2, 1, NO_PROCESS, 7, 0, "test"))
        assert isinstance(welcome, Welcome)
        assert welcome.version == 2
        if not deleted:
            store.topic("jobs").channel("c")
            await store.topic("jobs").put(b"x")
        said = [
            await client.ask(Open(1, "jobs", "", {}, existing=True)),
            await client.ask(Open(2, "jobs", "c", {}, existing=True)),
        ]
        assert [isinstance(each, Fail) for each in said] == [deleted] * 2, said
        assert store.topics() == ([] if deleted else ["jobs"])
        for number, uuid in enumerate(("another", 3), 3):
            refused = await client.ask(Open(number, "jobs", "", {"uuid": uuid}, existing=True))
            assert isinstance(refused, Fail)
            assert (refused.name, refused.text) == ("QueueShutDown", "topic 'jobs' was deleted")
        await client.close()


def held_up(monkeypatch: pytest.MonkeyPatch, kind: str) -> tuple[list[str], asyncio.Event]:
    """Have the first deletion answered only after an event; return what was asked, and the event."""
    table = "_TOPIC" if kind.startswith("channel") else "_STORE"
    before: dict[str, Any] = getattr(calls, table)
    name = "delete_channel" if table == "_TOPIC" else "delete_topic"
    asked: list[str] = []
    go = asyncio.Event()

    async def delete(*given: Any) -> None:
        await before[name](*given)
        asked.append(name)
        await go.wait()

    monkeypatch.setattr(calls, table, {**before, name: delete})
    return asked, go


@pytest.mark.parametrize("kind", NAMES)
async def test_a_deletion_that_is_repeated_to_the_next_owner_leaves_alone_what_was_made_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        topic, channel = await _named(stores[1], kind)
        made: list[object] = []
        asked, go = held_up(monkeypatch, kind)
        deleting = asyncio.create_task(_delete(stores[1], kind, topic.name, channel.name))
        await until(lambda: asked)

        async def make_and_end() -> None:
            go.set()
            if kind.endswith("#ephemeral"):
                await stores[0].aclose()
            await stores[2].topic(topic.name).channel(channel.name).refresh()
            await stores[2].topic(topic.name).put(b"new")
            await stores[0].aclose()
            await until(lambda: channels(stores[2], topic.name))
            made.append(channels(stores[2], topic.name)[channel.name])

        await meanwhile(stores[1], make_and_end)
        await deleting
        assert len(asked) == 2
        assert channels(stores[2], topic.name) == {channel.name: made[0]}
        await stores[2].topic(topic.name).channel(channel.name).refresh()
        await _delete(stores[1], kind, topic.name, channel.name)
        assert channels(stores[2], topic.name) == {}


async def test_a_deletion_that_no_owner_has_made_is_made_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        stores = await three(stack, tmp_path / "s")
        topic, _ = await _named(stores[1], "channel")
        before, asked = calls._TOPIC["delete_channel"], asyncio.Event()

        async def ends(*_: Any) -> None:
            monkeypatch.setattr(calls, "_TOPIC", {**calls._TOPIC, "delete_channel": before})
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(calls, "_TOPIC", {**calls._TOPIC, "delete_channel": ends})
        deleting = asyncio.create_task(topic.delete_channel("c"))
        await asked.wait()
        await stores[0].aclose()
        await deleting
        engines = owner_of(stores[1:])._store_engine.owner.engine.topics  # type: ignore[attr-defined]  # as above
        assert engines["jobs"].channel_engines == {}


@pytest.mark.parametrize("who", ["owner", "client"])
@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_a_getter_of_what_was_deleted_takes_nothing_from_what_is_named_anew(
    tmp_path: Path, kind: str, who: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        channel = topic.channel("c")

        async def consume() -> bytes:
            """Name the channel anew in the very step in which the old one ends."""
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await channel.get()
            while True:
                try:
                    return (await client.topic(topic.name).channel(channel.name).get()).body
                except aiodq.QueueShutDown:  # it has heard of the channel's end, and not yet of the topic's
                    await asyncio.sleep(0)

        consuming = asyncio.create_task(consume())
        await until(lambda: channel._channel_engine._demand.wanted == 1)  # type: ignore[attr-defined]  # as above
        await _delete(owner if who == "owner" else client, kind, topic.name, channel.name)
        await until(lambda: channels(owner, topic.name))
        await owner.topic(topic.name).put(b"new")
        assert await consuming == b"new"


@pytest.mark.parametrize("kind", NAMES)
async def test_what_is_named_anew_before_a_deletion_is_answered_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(client, kind)
        await topic.channel("other").refresh()  # beside it, a channel made anew begins with the next message
        await (await channel.get()).ack()
        asked, go = held_up(monkeypatch, kind)
        deleting = asyncio.create_task(_delete(client, kind, topic.name, channel.name))
        with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
            await channel.get()
        ended: Any = channel if kind.startswith("channel") else topic
        await until(lambda: asked and ended._remote.error is not None)
        anew = client.topic(topic.name)
        getting = asyncio.create_task(anew.channel(channel.name).get())
        await anew.channel(channel.name).refresh()
        go.set()
        await deleting
        await anew.put(b"new")
        message = await getting
        assert message.body == b"new"
        await message.ack()


@pytest.mark.parametrize("kind", NAMES)
async def test_what_is_first_named_while_it_is_being_deleted_is_new_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(owner, kind)
        table = "_TOPIC" if kind.startswith("channel") else "_STORE"
        name = "delete_channel" if table == "_TOPIC" else "delete_topic"
        asked, go, those = asyncio.Event(), asyncio.Event(), getattr(calls, table)

        async def later(*given: Any) -> Any:
            asked.set()
            await go.wait()
            return await those[name](*given)

        monkeypatch.setattr(calls, table, {**those, name: later})
        deleting = asyncio.create_task(_delete(client, kind, topic.name, channel.name))
        await asked.wait()
        before = client.topic(topic.name).channel(channel.name)
        await before.refresh()
        go.set()
        await deleting
        assert before._channel_engine.error is not None
        await client.topic(topic.name).channel(channel.name).refresh()
        await client.topic(topic.name).put(b"new")


async def test_a_channel_of_a_topic_that_is_being_deleted_does_not_make_the_topic_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        _, channel = await _named(client, "topic")
        topics: dict[str, Any] = owner._store_engine.owner.engine.topics  # type: ignore[attr-defined]  # as above
        engine, go = topics["jobs"], asyncio.Event()
        persist = engine.persist

        async def later(*given: Any, **named: Any) -> None:
            await go.wait()
            await persist(*given, **named)

        monkeypatch.setattr(engine, "persist", later)  # the channels have ended by then, and the topic has not
        deleting = asyncio.create_task(owner.delete_topic("jobs"))
        try:
            ended: Any = channel
            await until(lambda: ended._remote.error is not None)
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await asyncio.wait_for(client.topic("jobs").channel("c").get(), 10)
            assert topics == {}
        finally:
            go.set()
            await deleting


async def test_what_comes_for_a_channel_that_was_refused_here_goes_to_others(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        theirs = owner.topic("jobs", QUICK).channel("c")
        channel: Any = client.topic("jobs").channel("c")
        getting = asyncio.create_task(channel.get())
        await until(lambda: channel._remote._demand.wanted == 1)
        client.topic("jobs", aiodq.StoreOptions(sync="os", segment_bytes=1 << 20))
        with pytest.raises(aiodq.InvalidOptionError, match="segment_bytes"):
            await getting
        for number in range(3):
            await owner.topic("jobs").put(b"%d" % number)
            assert (await theirs.get()).body == b"%d" % number


@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_who_deletes_what_it_waits_for_does_not_make_it_anew(tmp_path: Path, kind: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        topic, channel = await _named(client, kind)
        await channel.get()
        getting = asyncio.create_task(channel.get())
        await until(lambda: channel._channel_engine._demand.wanted == 2)  # type: ignore[attr-defined]  # as above
        await _delete(client, kind, topic.name, channel.name)
        with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
            await getting
        await link_of(client).call("given", {"options": topic_options(QUICK)})  # all that was sent before is done
        assert channels(owner, topic.name) == {}


_DELETES = """
import asyncio, os, signal, sys
import aiodq

async def main():
    async with aiodq.open(sys.argv[1], aiodq.StoreOptions(sync="os"), mode="shared") as store:
        print("owns", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if sys.argv[2] == "topic":
            await store.delete_topic("jobs")
        else:
            await store.topic("jobs").delete_channel("c")
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow_on_uvloop  # whom it is about is another process
@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_what_an_owner_deleted_before_it_was_killed_stays_deleted(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", _DELETES, str(tmp_path / "s"), kind]
    pipe = subprocess.PIPE
    with killed_at_last(command, env=environment(), stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "owns\n"
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store, asyncio.timeout(PATIENCE):
            _, channel = await _named(store, kind)
            await channel.get()
            child.stdin.write("go\n")
            child.stdin.flush()
            child.wait(WATCHDOG)  # the loop stands still, so that this process hears of nothing
            with pytest.raises(aiodq.QueueShutDown, match="was deleted"):
                await channel.get()
            await until(lambda: store._store_engine.owner)  # type: ignore[attr-defined]  # as above
            engines = store._store_engine.owner.engine.topics  # type: ignore[attr-defined]  # as above
            assert ("jobs" in engines) == (kind == "channel")
            assert channels(store, "jobs") == {}
