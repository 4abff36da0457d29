"""What is asked seldom of a store that is shared, and what does not go well: as of a store that one process has."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.store.opening import open_store
from aiodq.shared.client import owner_report
from aiodq.shared.client.owner_report import OwnerReport
from aiodq.shared.requests.lending import Lending
from aiodq.shared.requests.owner_state import overview
from aiodq.testing import WatchedFileSystem
from aiodq.wire.packets import Want
from tests.shared.support import PATIENCE, QUICK, counts, joined, owned, until
from tests.shared.support import two as stores_of_two

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from aiodq.engine.opened_files import OpenedStore
    from aiodq.shared.requests.lent.lent_runs import LentRun
    from aiodq.testing.watched import Gate
    from aiodq.wire.packets import Call, Done


two = partial(stores_of_two, options=QUICK)


# --- dead letters that are chosen


async def dead(store: aiodq.Store, count: int) -> aiodq.Queue:
    """Have so many letters of a queue; return the queue."""
    queue = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
    await queue.put_many([aiodq.Draft(b"%d" % number, headers={"n": str(number)}) for number in range(count)])
    left = count
    while left:
        messages = await queue.get_many(left)
        await asyncio.gather(*(each.reject("odd" if int(each.body) % 2 else "even") for each in messages))
        left -= len(messages)
    letters = store.queue("dead")
    async with asyncio.timeout(PATIENCE):
        while await counts(letters) != (count, 0, 0):
            await asyncio.sleep(0.002)
    return queue


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_letters_are_chosen_here_and_put_back_there(tmp_path: Path, who: int) -> None:
    async with two(tmp_path / "s") as stores:
        store = stores[who]
        queue = await dead(store, 9)
        seen: list[bytes] = []

        def where(letter: aiodq.Message) -> bool:
            seen.append(letter.body)
            return letter.headers["aiodq-reason"] == "odd"

        assert await store.requeue_dead("dead", where=where, limit=3) == 3
        assert seen == [b"%d" % number for number in range(6)]
        assert await store.requeue_dead("dead", where=where) == 1
        assert seen[6:] == [b"0", b"2", b"4", b"6", b"7", b"8"], "only those that are there still"
        assert await counts(store.queue("dead")) == (5, 0, 0)
        found = {message.body: dict(message.headers) for message in await queue.get_many(9)}
        assert found == {b"%d" % number: {"n": str(number)} for number in (1, 3, 5, 7)}
        assert await store.requeue_dead("none", where=where) == 0
        assert "none" not in store.topics()


async def test_more_letters_than_one_transaction_takes(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store):
        queue = await dead(store, 250)
        assert await store.requeue_dead("dead", where=lambda letter: letter.body != b"7") == 249
        assert (await counts(store.queue("dead")), await counts(queue)) == ((1, 0, 0), (249, 0, 0))


async def test_a_letter_in_somebodys_hands_stays_and_so_does_what_an_exception_leaves(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, store):
        await dead(store, 3)
        letter = await owner.queue("dead").get()
        with pytest.raises(LookupError):
            await store.requeue_dead("dead", where=lambda letter: {b"": True}[letter.body])
        with pytest.raises(aiodq.WrongContextError):
            async with store.transaction():
                await store.requeue_dead("dead", where=lambda _: True)
        assert await store.requeue_dead("dead", where=lambda _: True) == 2
        await letter.ack()
        assert await counts(store.queue("dead")) == (0, 0, 0)


# --- the end of all puts


async def test_a_drain_refuses_puts_of_all_and_ends_their_consumers_once_all_is_done(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, store):
        queues = [each.queue("jobs") for each in (owner, store)]
        await queues[0].put_many([b"%d" % number for number in range(40)])
        done: list[bytes] = []

        async def work(queue: aiodq.Queue) -> None:
            async for message in queue:
                async with message:
                    await asyncio.sleep(0.001)
                    done.append(message.body)

        workers = [asyncio.create_task(work(queue)) for queue in queues]
        await until(lambda: len(done) > 3)
        async with asyncio.timeout(PATIENCE):
            assert await store.drain() is True
            await asyncio.gather(*workers)
        assert len(set(done)) == 40
        for queue in queues:
            with pytest.raises(aiodq.QueueShutDown):
                await queue.put(b"x")
            with pytest.raises(aiodq.QueueShutDown):
                async with asyncio.timeout(PATIENCE):
                    await queue.get()
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as again:
        await again.queue("jobs").put(b"x")


async def test_what_was_accepted_before_a_drain_is_put(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store), asyncio.timeout(PATIENCE):
        topic = store.topic("jobs")
        await topic.settle_in()
        receipts = [topic.put_nowait(b"x") for _ in range(2)]
        assert await store.drain() is True
        assert [await each for each in receipts] == [0, 1]


async def test_a_drain_that_takes_too_long_says_so_and_what_is_requeued_is_worked_off(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (_, store):
        queue = store.queue("jobs")
        await queue.put_many([b"a", b"b"])
        held = await queue.get()
        assert await store.drain(0.05) is False
        await held.nack()
        assert [(await queue.get()).body for _ in range(2)] == [b"a", b"b"]
        with pytest.raises(aiodq.InvalidOptionError):
            await store.drain("soon")  # type: ignore[arg-type]


# --- what happens


async def test_what_happens_is_told_in_every_process(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as stores:
        heard = [store.events() for store in (*stores, stores[1])]
        queue = stores[0].queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await queue.put_many([b"%d" % number for number in range(20)])
        listeners = stores[0]._store_engine.owner.engine.reporter.listeners  # type: ignore[attr-defined]
        await until(lambda: listeners and len(listeners._buffer()._waiting) == len(heard))
        for message in await queue.get_many(20):
            await message.reject("why")
        for events in heard:
            async with asyncio.timeout(PATIENCE):
                found = [await anext(events) for _ in range(20)]
            assert [(event.kind, event.topic, event.channel) for event in found] == [("dead", "jobs", "default")] * 20
            assert sorted(event.offset for event in found if event.offset is not None) == list(range(20))
            assert "why" in found[0].text
            assert events.dropped == 0
        waiting = asyncio.create_task(anext(heard[1], None))
        await asyncio.sleep(0)
        await stores[1].aclose()
        assert await waiting is None
        assert [event async for event in stores[1].events()] == []


async def test_what_an_owner_tells_after_a_stall_is_not_lost(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, client):
        events = client.events()
        engine: Any = owner._store_engine
        await until(lambda: engine.owner.engine.reporter.listeners)
        remote: Any = client._store_engine
        remote.link._note_stall()
        queue = owner.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await queue.put(b"x")
        await (await queue.get()).reject("why")
        async with asyncio.timeout(PATIENCE):
            assert (await anext(events)).kind == "dead"


async def test_who_is_not_referred_to_any_more_is_told_nothing(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, store):
        (listeners,) = (owner._store_engine.owner.engine.reporter.listeners,)  # type: ignore[attr-defined]
        events = store.events()
        await until(lambda: listeners)
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        del events, waiting
        gc.collect()
        await until(lambda: gc.collect() is not None and not listeners)


async def test_the_next_owner_goes_on_telling(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store:
        events = store.events()
        queue = store.queue("jobs")
        await owner.aclose()
        told = asyncio.ensure_future(anext(events))
        async with asyncio.timeout(PATIENCE):
            # What happens before the next owner has heard who listens is told to nobody.
            while not told.done():
                await queue.put(b"x")
                await (await queue.get()).reject("why")
        assert (await told).kind == "dead"


async def test_what_happens_is_told_again_once_there_is_room_for_the_next_owner_on_a_full_disk(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs) as store, asyncio.timeout(PATIENCE):
        server: Any = owner
        events, remote = store.events(), server._remote
        await until(lambda: remote.owner.engine.reporter.listeners)
        link = store._remote.link  # type: ignore[attr-defined]  # it is one of a store that is shared
        await owner.queue("jobs").put(b"x")
        fs.fail(errno.ENOSPC, "write", "open")
        await owner.aclose()
        await until(lambda: isinstance(link.failure, aiodq.DiskFullError))
        with pytest.raises(aiodq.DiskFullError):
            await store.queue("jobs").put(b"x")
        told = asyncio.ensure_future(anext(events))
        fs.heal()
        await until(lambda: link.failure is None)
        queue = store.queue("jobs")
        while not told.done():
            await queue.put(b"x")
            await (await queue.get()).reject("why")
        assert (await told).kind == "dead"


# --- what cannot be had


def hold_up_a_failing_read(fs: WatchedFileSystem) -> Gate:
    """Have the next read fail, once the gate is open."""
    gate = fs.gate("read", match=".seg")
    fs.fail(errno.EIO, "read", match=".seg", times=1)
    return gate


async def open_once_somebody_waits(gate: Gate, owner: aiodq.Store) -> None:
    """Let a read fail when there is somebody to tell: otherwise it is repeated, and perhaps nobody hears of it."""
    store: aiodq.Store = owner._store_engine.owner.store  # type: ignore[attr-defined]  # it stands in its place
    await until(lambda: store.queue("jobs")._channel_engine.waits)
    gate.open()


@pytest.mark.parametrize("who", [0, 1], ids=["owner", "client"])
async def test_a_message_that_cannot_be_read_is_told_to_who_waits_and_can_be_had_later(
    tmp_path: Path, who: int
) -> None:
    async with aiodq.open(tmp_path / "s", QUICK) as before:
        await before.queue("jobs").put_many([b"a", b"b"])
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="client") as client,
    ):
        queue = (owner, client)[who].queue("jobs")
        await queue.topic.settle_in()
        gate = hold_up_a_failing_read(fs)
        getting = asyncio.ensure_future(queue.get())
        await open_once_somebody_waits(gate, owner)
        with pytest.raises(aiodq.StorageError, match=r"\.seg"):
            async with asyncio.timeout(PATIENCE):
                await getting
        assert [(await queue.get(timeout=PATIENCE)).body for _ in range(2)] == [b"a", b"b"]


async def test_one_who_waits_is_told_of_it_and_the_others_get_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.requests.lending._AGAIN", 0.05)
    async with aiodq.open(tmp_path / "s", QUICK) as before:
        await before.queue("jobs").put_many([b"a", b"b"])
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", QUICK, mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="client") as client,
    ):
        queue = client.queue("jobs")
        await queue.topic.settle_in()
        gate = hold_up_a_failing_read(fs)
        getting = [asyncio.ensure_future(queue.get(timeout=PATIENCE)) for _ in range(3)]
        await open_once_somebody_waits(gate, owner)
        found = await asyncio.gather(*getting, return_exceptions=True)
        assert isinstance(found[0], aiodq.StorageError)
        assert [each.body for each in found[1:] if isinstance(each, aiodq.Message)] == [b"a", b"b"]


async def test_who_does_not_ask_why_there_was_nothing_gets_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.requests.lending._AGAIN", 0.001)
    take, errors = Lending._take_more, [aiodq.StorageError("it cannot be read", "seg")] * 4

    def fail_first(lending: Lending, first: LentRun | None = None) -> list[LentRun]:
        if errors:
            raise errors.pop()
        return take(lending, first)

    monkeypatch.setattr(Lending, "_take_more", fail_first)
    async with owned(tmp_path / "s", QUICK) as (store, _):
        await store.queue("jobs").put(b"x")
        client = await joined(tmp_path / "s")
        assert [body for _, _, body in await client.take(2, 1, 1)] == [b"x"]
        assert not errors
        await client.close()


async def put_until_it_has_come(store: aiodq.Store, lending: Lending) -> None:
    """Put a message; return just when it has come to a lending that waits for it."""
    await until(lambda: lending._getting)
    getting = lending._getting
    assert getting is not None
    store.queue("jobs").put_nowait(b"x")
    while not getting.done():
        await asyncio.sleep(0)


async def test_who_wants_again_what_came_just_as_it_was_wanted_no_more_gets_it_and_all_that_follows(
    tmp_path: Path,
) -> None:
    async with owned(tmp_path / "s", QUICK) as (store, owner):
        client = await joined(tmp_path / "s")
        client.send(Want(2, 1))
        lending = owner.clients[0].handles.lendings[2]
        await put_until_it_has_come(store, lending)
        lending.want(0)
        await until(lambda: lending._getting is None)
        assert lending.holding == 0
        assert [body for _, _, body in await client.take(2, 1, 1)] == [b"x"]
        client.send(Want(2, 2))
        await until(lambda: lending._getting)
        await store.queue("jobs").put(b"y")
        await until(lambda: lending.holding == 2)
        await client.close()


async def test_what_came_just_as_its_client_left_is_anothers(tmp_path: Path) -> None:
    async with owned(tmp_path / "s", QUICK) as (store, owner):
        client = await joined(tmp_path / "s")
        client.send(Want(2, 1))
        await put_until_it_has_come(store, lending := owner.clients[0].handles.lendings[2])
        await asyncio.gather(lending.stop(), return_exceptions=True)
        message = await store.queue("jobs").get(timeout=PATIENCE)
        assert (message.body, message.attempts) == (b"x", 1)
        await client.close()


@pytest.mark.slow_on_uvloop
async def test_a_message_larger_than_a_client_may_send_is_delivered_all_the_same(tmp_path: Path) -> None:
    large = aiodq.StoreOptions(sync="os", max_message_bytes=1 << 27)
    body = bytes(65 << 20)
    async with aiodq.open(tmp_path / "s", large) as alone:
        await alone.queue("jobs").put(body)
    async with (
        aiodq.open(tmp_path / "s", mode="shared"),
        aiodq.open(tmp_path / "s", mode="client") as client,
    ):
        queue = client.queue("jobs")
        message = await queue.get(timeout=PATIENCE)
        assert len(message.body) == len(body)
        await message.ack()
        with pytest.raises(aiodq.MessageSizeError, match="takes"):
            await queue.put(body)
        with suppress(aiodq.QueueEmpty):
            queue.get_nowait()


async def test_a_process_that_closes_while_it_takes_over_has_let_go_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slowly(*those: Any, **named: Any) -> OpenedStore:
        began.set()
        assert go_on.wait(PATIENCE)
        return open_store(*those, **named)

    async with aiodq.open(tmp_path / "s", mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
        other = await aiodq.open(tmp_path / "s", mode="shared")
        monkeypatch.setattr("aiodq.engine.store.store_opening.open_store", slowly)
    await until(began.is_set)
    closing = asyncio.ensure_future(other.aclose())
    await asyncio.sleep(0.05)
    go_on.set()
    await closing
    async with aiodq.open(tmp_path / "s") as alone:
        assert alone.topics() == ["jobs"]


async def test_a_cancellation_whose_answer_is_lost_is_not_said_to_have_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Lending.called

    async def gone_before_it_answers(lending: Lending, said: Call, say_figures: Any) -> Done:
        done = await called(lending, said, say_figures)
        if said.name == "cancel":
            lending._wire.end()
            await asyncio.Event().wait()  # until the connection has ended
        return done

    monkeypatch.setattr(Lending, "called", gone_before_it_answers)
    async with two(tmp_path / "s") as stores, asyncio.timeout(PATIENCE):
        for store in stores:
            queue = store.queue("jobs")
            offset = await queue.put(b"late", delay=3600)
            with pytest.raises(aiodq.OwnerLostError):
                await queue.cancel(offset)
            assert await counts(queue) == (0, 0, 0)


async def test_the_health_of_a_store_is_not_as_old_as_what_is_known_of_its_many_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looked = OwnerReport.look_once, 0

    async def slowly(report: OwnerReport, *, anew: bool = True) -> None:
        nonlocal looked
        looked += 1
        await asyncio.sleep(0.2)
        await look(report, anew=anew)

    monkeypatch.setattr(owner_report, "_LOOK", 0.01)
    monkeypatch.setattr(owner_report, "_SHARE", 1000)
    monkeypatch.setattr(overview, "_FRESH", 0.0)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store, asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        monkeypatch.setattr(OwnerReport, "look_once", slowly)
        for _ in range(3):
            offset = await queue.put(b"x")
            while store.health().depth <= offset:
                await asyncio.sleep(0.002)
        assert looked == 1


async def test_more_tags_than_a_packet_takes_are_refused_and_hold_up_nothing_after_an_owner(tmp_path: Path) -> None:
    many = aiodq.ChannelOptions(tags=[f"tag {number}" for number in range(9000)])
    next_owner = aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with two(tmp_path / "s") as (owner, client), next_owner, asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        for _ in range(2):
            with pytest.raises(aiodq.InvalidOptionError, match="bytes as JSON, and in a shared store up to"):
                topic.channel("c", many)
        channel = topic.channel("c")
        with pytest.raises(aiodq.InvalidOptionError, match="bytes as JSON"):
            topic.channel("c", many)
        with pytest.raises(aiodq.InvalidOptionError, match="bytes as JSON"):
            await channel.configure(many)
        await channel.refresh()
        assert channel.options == aiodq.ChannelOptions()
        await owner.aclose()
        await topic.put(b"x")
        assert (await channel.get()).body == b"x"


async def test_a_channel_that_has_nearly_a_packet_of_tags_is_used_by_those_who_name_none(tmp_path: Path) -> None:
    many = aiodq.ChannelOptions(tags=[f"tag {number}" for number in range(5700)])
    async with aiodq.open(tmp_path / "s", QUICK) as store:
        await store.topic("jobs").channel("c", many).refresh()
    async with two(tmp_path / "s") as stores, asyncio.timeout(PATIENCE):
        for store in stores:
            channel = store.topic("jobs").channel("c")
            await store.topic("jobs").put(b"x", tag="tag 5699")
            await (await channel.get()).ack()
            await channel.pause()
            await channel.resume()
            assert channel.options.tags == many.tags
