"""A topic that is full, in a process that does not own it: who waits for room holds up nobody, and may give up."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import pytest

import aiodq
from aiodq.shared.client.remote_topic import RemoteTopic
from aiodq.wire.packets import Call, Done, Fail
from tests.shared.support import PATIENCE, QUICK, RawClient, counts, owned, two, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
    from pathlib import Path
    from typing import Any

    from aiodq.wire.packets import Packet

TWO = aiodq.StoreOptions(sync="os", max_messages=2)
MANY = aiodq.StoreOptions(sync="os", max_messages=1000)
TRIES = aiodq.ChannelOptions(max_attempts=4)
COUNT = 40
"""More puts than a process has unanswered at once."""

OPERATIONS: dict[str, Callable[[aiodq.Topic, aiodq.Channel], Coroutine[Any, Any, object]]] = {
    "purge the topic": lambda topic, _: topic.purge(),
    "purge": lambda _, channel: channel.purge(),
    "seek": lambda _, channel: channel.seek("latest"),
    "configure": lambda _, channel: channel.configure(TRIES),
    "configure the topic": lambda topic, _: topic.configure(MANY),
    "peek": lambda _, channel: channel.peek(),
    "refresh": lambda _, channel: channel.refresh(),
    "sync": lambda topic, _: topic.sync(),
    "settle in": lambda topic, _: topic.settle_in(),
    "delete": lambda topic, _: topic.delete_channel("other"),
    "look back": lambda topic, _: topic.offset_at(datetime.now(UTC)),
}


@asynccontextmanager
async def full(topic: aiodq.Topic) -> AsyncIterator[list[asyncio.Task[int]]]:
    """Fill a topic that takes two messages, and have many more wait for room."""
    await topic.channel("c").refresh()
    await topic.put_many([b"first", b"second"])
    puts = [asyncio.ensure_future(topic.put(b"%d" % number)) for number in range(COUNT)]
    await asyncio.sleep(0)
    await topic.settle_in()
    assert not any(put.done() for put in puts)
    try:
        yield puts
    finally:
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)


async def bodies(channel: aiodq.Channel) -> list[bytes]:
    """Take all there is, and whatever comes in its place."""
    found: list[bytes] = []
    while (await counts(channel))[0]:
        async with await channel.get() as message:
            found.append(message.body)
    return found


@pytest.mark.parametrize("what", OPERATIONS)
async def test_no_operation_waits_for_the_room_that_puts_wait_for(tmp_path: Path, what: str) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs", TWO)
        async with full(topic) as puts:
            await OPERATIONS[what](topic, topic.channel("c"))
            if "purge" in what or what == "configure the topic":
                await until(puts[0].done)
                assert await puts[0] == 2


@pytest.mark.parametrize("options", [QUICK, MANY, aiodq.StoreOptions(sync="always")])
async def test_an_operation_comes_after_what_was_accepted_before(tmp_path: Path, options: aiodq.StoreOptions) -> None:
    async with two(tmp_path / "s") as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs", options)
        channel = topic.channel("c")
        await channel.refresh()
        puts = [asyncio.ensure_future(topic.put_many([b"x"] * 3)) for _ in range(COUNT)]
        await asyncio.sleep(0)
        receipts = [topic.put_nowait(b"y") for _ in range(COUNT)]
        await channel.refresh()
        assert channel.qsize() == 4 * COUNT
        receipts += [topic.put_nowait(b"y") for _ in range(COUNT)]
        assert await topic.purge() == 5 * COUNT
        assert await counts(channel) == (0, 0, 0)
        await asyncio.gather(*puts, *receipts)


async def test_with_an_owner_that_does_not_know_the_order_an_operation_waits_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = RemoteTopic.opened

    def opened_before(topic: RemoteTopic, facts: Mapping[str, Any]) -> None:
        opened(topic, {name: value for name, value in facts.items() if name != "orderly"})

    monkeypatch.setattr(RemoteTopic, "opened", opened_before)
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        receipts = [topic.put_nowait(b"y") for _ in range(COUNT)]
        purging = asyncio.ensure_future(topic.purge())
        await asyncio.gather(*receipts)
        assert await purging == COUNT


@pytest.mark.parametrize("how", ["task", "asyncio", "anyio"])
async def test_a_put_that_is_cancelled_while_it_waits_for_room_is_not_stored(tmp_path: Path, how: str) -> None:
    stored: list[list[bytes]] = []
    for mode in ("exclusive", "shared"):
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
            store = await stack.enter_async_context(aiodq.open(tmp_path / mode, mode=mode))
            if mode == "shared":
                store = await stack.enter_async_context(aiodq.open(tmp_path / mode, mode="client"))
            topic = store.topic("jobs", TWO)
            async with full(topic) as puts:
                for put in puts[: COUNT - 5]:
                    put.cancel()
                with suppress(TimeoutError):
                    await GIVEN_UP[how](topic)
                assert await bodies(topic.channel("c")) == [b"first", b"second", *(b"%d" % n for n in range(35, 40))]
                stored.append([message.body async for message in topic.scan()])
    assert stored[0] == stored[1]


async def _cancelled(topic: aiodq.Topic) -> None:
    put = asyncio.ensure_future(topic.put_many([b"x", b"y"]))
    await asyncio.sleep(0)
    await topic.settle_in()
    put.cancel()
    await asyncio.wait([put])


async def _out_of_time(topic: aiodq.Topic) -> None:
    async with asyncio.timeout(0.02):
        await topic.put(b"x")


async def _moved_on(topic: aiodq.Topic) -> None:
    with anyio.move_on_after(0.02):
        await topic.put(b"x", tag="t")


GIVEN_UP = {"task": _cancelled, "asyncio": _out_of_time, "anyio": _moved_on}


async def test_what_was_given_up_is_not_put_by_the_next_owner_either(tmp_path: Path) -> None:
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as other,
        asyncio.timeout(PATIENCE),
    ):
        topic, link = other.topic("jobs", TWO), other._store_engine.link  # type: ignore[attr-defined]  # in its place
        async with full(topic) as puts:
            link._wire._transport.pause_reading()  # it does not hear that they are withdrawn
            for put in puts[:-2]:
                put.cancel()
            await asyncio.wait(puts[:-2])
            await owner.aclose()
            assert await bodies(topic.channel("c")) == [b"first", b"second", b"38", b"39"]


async def test_who_waits_for_room_is_told_of_the_shutdown(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs", options=TWO)
        async with full(queue._topic) as puts:
            queue.shutdown()
            for put in puts:
                with pytest.raises(aiodq.QueueShutDown):
                    await put
        assert await counts(queue) == (2, 0, 0)


@pytest.mark.parametrize("room", [False, True])
async def test_who_waits_for_room_at_a_shutdown_hears_of_a_put_that_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    """The connection ends before the owner hears that it is withdrawn, and before its answer is heard, if any."""
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs", options=TWO)
        await queue.put_many([b"first", b"second"])
        putting = asyncio.ensure_future(queue.put(b"third"))
        await asyncio.sleep(0)
        await queue.topic.settle_in()
        wire, withdrawing = client._store_engine.link._wire, asyncio.Event()  # type: ignore[attr-defined]  # in its place
        send = wire.send

        def cut_off(said: Packet, request: int) -> None:
            if isinstance(said, Call) and said.name == "withdraw":
                wire._transport.pause_reading()
                withdrawing.set()
            else:
                send(said, request)

        monkeypatch.setattr(wire, "send", cut_off)
        queue.shutdown()
        await withdrawing.wait()
        if room:
            await (await owner.queue("jobs").get()).ack()
            assert (await owner.queue("jobs").get()).offset == 1
            assert (await owner.queue("jobs").get()).body == b"third"
        wire.abort()
        if room:
            assert await putting == 2
        else:
            with pytest.raises(aiodq.QueueShutDown):
                await putting
            assert await counts(owner.queue("jobs")) == (2, 0, 0)


async def test_what_was_accepted_is_stored_though_the_queue_is_shut_down_behind_it(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs", options=MANY)
        await queue.refresh()
        puts = [asyncio.ensure_future(queue.put_many([b"x"] * 3)) for _ in range(COUNT)]
        await asyncio.sleep(0)
        queue.shutdown()
        assert sum(map(len, await asyncio.gather(*puts))) == 3 * COUNT


async def test_only_what_waits_is_withdrawn_and_by_who_put_it(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        topic = store.topic("jobs", TWO)
        client, other = await RawClient.connected(tmp_path / "s"), await RawClient.connected(tmp_path / "s")
        await client.hello(7)
        await other.hello(8)
        await client.open(1, "jobs")
        await other.open(1, "jobs")
        puts = [client.put(1, number, [b"%d" % number]) for number in range(1, 6)]
        assert [await client.answer(put) for put in puts[:2]] == [Done((0, 1)), Done((1, 1))]
        assert await other.ask(Call("withdraw", {"handle": 1, "sequences": [4]})) == Done()
        assert await client.ask(Call("withdraw", {"handle": 1, "sequences": [1, 4, 9]})) == Done()
        refused = await client.answer(puts[3])
        assert isinstance(refused, Fail)
        assert (refused.name, "waited for room" in refused.text) == ("QueueFull", True)
        wrong = await client.ask(Call("withdraw", {"handle": 1, "sequences": "4"}))
        assert isinstance(wrong, Fail)
        assert wrong.name == "ProtocolError"
        await topic.purge()
        assert [await client.answer(puts[place]) for place in (2, 4)] == [Done((2, 1)), Done((3, 1))]
        # A withdrawn put may come again: it was never stored.
        await topic.purge()
        assert await client.answer(client.put(1, 4, [b"4"])) == Done((4, 1))
        await client.close()
        await other.close()


@pytest.mark.parametrize("end", ["aclose", "sync"])
async def test_no_end_waits_for_the_room_that_a_dead_letter_waits_for(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.consuming.sent_settlements._FOR_REJECTIONS", 0.1)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        letters = owner.topic("dead", aiodq.StoreOptions(max_messages=1)).channel("read")
        await letters.refresh()
        jobs = client.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await jobs.put_many([b"first", b"second"])
        first, second = await jobs.get_many(2)
        await first.reject("bad")
        rejecting = asyncio.ensure_future(second.reject("worse"))
        await asyncio.sleep(0.1)
        assert not rejecting.done()
        await (client.aclose() if end == "aclose" else jobs.sync())
        for body in (b"first", b"second"):
            letter = await letters.get()
            assert letter.body == body
            await letter.ack()
        await asyncio.gather(rejecting, return_exceptions=True)
        assert await counts(owner.queue("jobs")) == (0, 0, 0)
        assert await counts(letters) == (0, 0, 0)


async def test_who_closes_while_letters_wait_for_room_is_told_that_the_store_is_closed(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        one = aiodq.StoreOptions(max_messages=1)
        jobs = client.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"), options=one)
        await jobs.put(b"first")
        await (await jobs.get()).reject("bad")
        await jobs.put(b"second")
        requeuing = asyncio.ensure_future(client.requeue_dead("dead"))
        await asyncio.sleep(0.1)
        assert not requeuing.done()
        await client.aclose()
        with pytest.raises(aiodq.QueueShutDown, match="the store is closed"):
            await requeuing
