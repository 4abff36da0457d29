"""What a process and the owner of its store say together or ahead, so that many messages cost little."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest

import aiodq
from aiodq.shared.client import owner_report
from aiodq.shared.client.remote_puts import RemotePuts
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.consuming import demand, pace
from aiodq.shared.server.inside import Inside
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.wire.layout import PREFETCHED
from aiodq.wire.packets import Ack, Done, Fail, Gone, Hello, Ping, Put, Range, Want
from tests.shared.support import PATIENCE, QUICK, RawClient, counts, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.shared.connection.sent.sent_puts import SentPut
    from aiodq.wire.packets import Packet


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Packet]:
    """Return what clients say to owners, as it comes."""
    noted: list[Packet] = []
    send = SocketWire.send

    def noting(self: SocketWire, sent: Packet, request: int) -> None:
        noted.append(sent)
        send(self, sent, request)

    monkeypatch.setattr(SocketWire, "send", noting)
    return noted


def take_away(owner: aiodq.Store, offset: int = 0) -> None:
    """Take a message away from who holds it, who is not told."""
    sessions = owner._store_engine.owner.clients  # type: ignore[attr-defined]  # it stands in its place
    [lending] = [one for each in sessions for one in each.handles.lendings.values() if one.holding]
    taken = next(iter(lending._lent)).message(offset)
    taken._take().release(taken._batch(), taken._delivery, taken.attempts)


def kinds(sent: list[Packet], kind: type[Any]) -> list[Any]:
    return [each for each in sent if isinstance(each, kind)]


async def test_what_is_acked_in_one_turn_is_said_in_one_packet_before_what_comes_next(
    tmp_path: Path, sent: list[Packet]
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await owner.queue("jobs").put_many([b"%d" % n for n in range(12)])
        messages = await queue.get_many(10)
        await asyncio.gather(*(message.ack() for message in messages if message.offset != 4))
        assert [[(one.first, one.messages) for one in each.ranges] for each in kinds(sent, Ack)] == [[(0, 4), (5, 5)]]
        messages[4].ack_nowait()
        assert len(kinds(sent, Ack)) == 1
        assert (await queue.get()).offset == 10
        assert [type(each) for each in sent if isinstance(each, (Ack, Want))][-2:] == [Ack, Want]
        assert await counts(queue) == (1, 1, 0)


async def test_of_what_is_acked_together_only_what_was_taken_away_is_refused(
    tmp_path: Path, sent: list[Packet]
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(3)])
        messages = await queue.get_many(3)
        take_away(owner, 1)
        acked = await asyncio.gather(*(message.ack() for message in messages), return_exceptions=True)
        assert len(kinds(sent, Ack)) == 1
        assert (acked[0], acked[2]) == (None, None)
        assert isinstance(acked[1], aiodq.NotInFlightError)
        assert await counts(queue) == (1, 0, 0)


async def test_acks_of_one_turn_are_one_settlement_and_an_ack_that_is_awaited_is_one_of_its_own(
    tmp_path: Path, sent: list[Packet]
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue: Any = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(10)])
        messages = await queue.get_many(10)
        for message in messages:
            if message.offset not in {3, 7}:
                message.ack_nowait()
        assert queue._remote.in_hand == 2
        assert len(queue._remote._settling) == 1
        await messages[3].ack()
        assert [[(one.first, one.messages) for one in each.ranges] for each in kinds(sent, Ack)] == [
            [(0, 3), (4, 3), (8, 2), (3, 1)]
        ]
        assert await counts(queue) == (0, 1, 0)


async def test_an_ack_that_is_awaited_is_not_refused_for_others_of_its_turn(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(3)])
        messages = await queue.get_many(3)
        take_away(owner, 1)
        for message in messages[:2]:
            message.ack_nowait()
        await messages[2].ack()
        assert await counts(queue) == (1, 0, 0)


async def test_who_waits_for_all_that_was_settled_waits_for_acks_of_this_turn_too(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue: Any = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        message.ack_nowait()
        await queue._remote.all_settled()
        assert not queue._remote._counted
        assert not queue._remote._settling


async def test_what_was_taken_away_is_not_acked_by_its_mark(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue: Any = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(4)])
        messages = await queue.get_many(4)
        engine = queue._remote
        gone = [engine.holdings.get(number) for number in (1, 2)]
        messages[1].ack_nowait()  # before that is heard: the owner has to say so
        engine.receive(Gone(0, engine.epoch, tuple(Range(one.offset, one.delivery, 1) for one in gone)), engine.epoch)
        assert (messages[2].held, messages[3].held) == (False, True)
        with pytest.raises(aiodq.NotInFlightError):
            messages[2].ack_nowait()
        messages[3].ack_nowait()
        with pytest.raises(aiodq.AlreadySettledError):
            messages[1].ack_nowait()
        assert await counts(queue) == (0, 2, 0)


async def test_what_a_transaction_is_about_to_settle_is_not_acked_by_its_mark(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue: Any = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        engine = queue._remote
        reserved = engine.begin_commit([range(message._delivery, message._delivery + 1)])
        with pytest.raises(aiodq.NotInFlightError):
            message.ack_nowait()
        engine.end_commit(reserved, settled=False)
        await message.ack()
        assert await counts(queue) == (0, 0, 0)


async def test_nothing_is_acked_by_its_mark_once_the_channel_is_gone(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        channel: Any = client.topic("jobs").channel("c")
        await client.topic("jobs").put_many([b"x", b"y"])
        messages = await channel.get_many(2)
        assert len(messages) == 2
        await owner.topic("jobs").delete_channel("c")
        await until(lambda: channel._channel_engine.error is not None)
        for message in messages:
            with pytest.raises(aiodq.QueueShutDown, match="deleted"):
                message.ack_nowait()


async def test_messages_that_are_iterated_over_are_counted_when_somebody_looks(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.topic("jobs").put_many([b"%d" % n for n in range(12)])
        channel: Any = client.topic("jobs").channel("c")
        engine = channel._channel_engine
        with engine.wanting(9):
            iterating = aiter(channel)
            taken = [await anext(iterating)]
            await until(lambda: len(engine._ready) == 9)
            taken += [await anext(iterating) for _ in range(4)]
            assert len(engine._ready) == engine.open_lease.lease.limit - engine.open_lease.lease.next == 5
            await channel.refresh()
            assert (channel.qsize(), channel.in_flight()) == (7, 5)
            gone = engine.holdings.get(6)
            engine.receive(Gone(0, engine.epoch, (Range(gone.offset, gone.delivery, 2),)), engine.epoch)
            taken += [await anext(iterating) for _ in range(2)]
            taken += await channel.get_many(1)
            assert [int(message.body) for message in taken] == [0, 1, 2, 3, 4, 5, 8, 9]
            await channel.ack_many(message for message in taken)
        await until(lambda: not engine._ready)
        await channel.refresh()
        assert (channel.qsize(), channel.in_flight()) == (2, 2), "what was sent to be gone is not gone at the owner"


async def test_nothing_is_handed_out_of_the_open_lease_after_a_stop(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.topic("jobs").put_many([b"%d" % n for n in range(5)])
        channel: Any = client.topic("jobs").channel("c")
        engine = channel._channel_engine
        with engine.wanting(4):
            iterating = aiter(channel)
            first = await anext(iterating)
            await until(lambda: len(engine._ready) == 4)
            second = await anext(iterating)
            await channel.ack_many([first, second])
            await channel.stop(0)
            assert [message async for message in iterating] == []
        other = owner.topic("jobs").channel("c")
        assert [message.body for message in await other.get_many(5)] == [b"2", b"3", b"4"]


async def test_who_acks_several_is_told_of_nothing_that_is_acked_later(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(3)])
        messages = await queue.get_many(3)
        take_away(owner, 2)
        acking = queue.ack_many(messages[:2])
        with pytest.raises(aiodq.NotInFlightError):
            await messages[2].ack()
        await acking
        assert await counts(queue) == (1, 0, 0)


async def test_what_is_given_up_is_among_the_dead_letters_before_a_sync_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, append = asyncio.Event(), threading.Event(), TransactionFile.append
    loop = asyncio.get_running_loop()

    def slowly(*given: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        go.wait(PATIENCE)
        return append(*given)

    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
        await queue.put(b"x")
        message = await queue.get()
        with monkeypatch.context() as patched:
            patched.setattr(TransactionFile, "append", slowly)
            message.nack_nowait()
            syncing = asyncio.ensure_future(queue.sync())
            try:
                await begun.wait()
                await client.topic("other").put(b"meanwhile")
                assert not syncing.done()
            finally:
                go.set()
            await syncing
        assert await counts(owner.queue("dead")) == (1, 0, 0)


async def test_who_acks_several_is_told_of_one_that_was_taken_away_unheard(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put_many([b"a", b"b", b"c"])
        messages = await queue.get_many(3)
        take_away(owner, 1)
        acking = queue.ack_many(messages)
        with pytest.raises(aiodq.NotInFlightError, match="message 1"):
            await acking
        assert (await queue.get()).body == b"b"
        assert await counts(queue) == (0, 1, 0)


@pytest.mark.parametrize("how", ["ack", "reject"])
async def test_what_the_owner_refuses_to_settle_was_not_settled(tmp_path: Path, how: str) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        take_away(owner)
        for _ in range(2):
            with pytest.raises(aiodq.NotInFlightError):
                await getattr(message, how)()
            assert not message.settled
        for verb in (message.nack, message.touch):
            with pytest.raises(aiodq.NotInFlightError):
                await verb()
        assert await counts(queue) == (1, 0, 0)


async def test_what_is_acked_while_a_new_owner_is_greeted_is_said_once_it_has_left_the_message_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner, AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiodq.open(tmp_path / "s", QUICK, mode="shared"))
        queue = client.queue("jobs")
        await queue.put(b"x")
        message = await queue.get()
        link = queue._remote_topic.link  # type: ignore[attr-defined]  # it is one of a store that is shared
        acking: list[asyncio.Future[None]] = []
        send = Inside.send

        def sending(self: Inside, sent: Packet, request: int) -> None:
            send(self, sent, request)
            if isinstance(sent, Hello) and sent.producer == link.producer:
                acking.append(asyncio.ensure_future(message.ack()))

        def soon(say: Callable[[], None]) -> None:
            link.outbox.append(say)  # what is sent next says that, too

        monkeypatch.setattr(Inside, "send", sending)  # the client becomes the owner
        monkeypatch.setattr(link.outbox, "soon", soon)
        await owner.aclose()
        async with asyncio.timeout(PATIENCE):
            while not acking:
                await asyncio.sleep(0.002)
            await acking[0]
        assert await counts(queue) == (0, 0, 0)


async def test_what_cannot_be_acked_is_named_before_the_answer_and_the_rest_is_settled(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(5)])
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs", "default")
        number = (await client.take(1, 4, 4))[0][1]
        assert await client.ask(Ack(1, owner.epoch, (Range(1, number + 1, 1),))) == Done()
        assert isinstance(await client.ask(Ack(1, owner.epoch, (Range(0, number, 3),))), Fail)
        assert (await client.hear(Gone)).ranges == (Range(1, number + 1, 1),)
        assert (queue.qsize(), queue.in_flight()) == (1, 1)
        # A count that is beyond belief is none of what is looked at one by one.
        assert isinstance(await client.ask(Ack(1, owner.epoch, (Range(2, number + 2, 1 << 31),))), Fail)
        assert [each.messages for each in (await client.hear(Gone)).ranges] == [1, (1 << 31) - 2]
        assert (queue.qsize(), queue.in_flight()) == (1, 0)
        await client.close()


async def test_a_small_put_does_not_overtake_a_large_one_that_waits_for_room(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        topic = store.topic("jobs", aiodq.StoreOptions(max_messages=5))
        queue = store.queue("jobs")
        await topic.put_many([b"0", b"1", b"2"])
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        large, small = client.put(1, 1, [b"large"] * 5), client.put(1, 2, [b"small"])
        await client.ask(Ping(1))
        await queue.ack_many(await queue.get_many(3))
        assert await client.answer(large) == Done((3, 5))
        await queue.ack_many(await queue.get_many(5))
        assert await client.answer(small) == Done((8, 1))
        await client.close()


async def test_who_puts_one_by_one_does_not_wait_for_the_end_of_the_turn_and_a_crowd_goes_together(
    tmp_path: Path, sent: list[Packet]
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        for _ in range(3):
            await queue.put(b"one by one")
        sent.clear()
        putting = asyncio.ensure_future(queue.put(b"at once"))
        asyncio.get_running_loop().call_soon(lambda: sent.append(Ping(0)))
        await putting
        assert [type(each) for each in sent[:2]] == [Put, Ping]
        await asyncio.gather(*(queue.put(b"%d" % n) for n in range(50)))
        sent.clear()
        await asyncio.gather(*(queue.put(b"%d" % n) for n in range(50)))
        assert [each.count for each in kinds(sent, Put)] == [50]


async def take_one_by_one(queue: aiodq.Queue, number: int) -> None:
    async for message in queue:
        message.ack_nowait()
        number -= 1
        if not number:
            return


async def test_who_takes_quickly_has_messages_sent_ahead_and_what_is_not_taken_goes_to_others(
    tmp_path: Path, sent: list[Packet], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any machine is quick by these.
    for module in (pace, demand):
        monkeypatch.setattr(module, "WINDOW", 0.1)
    monkeypatch.setattr(pace, "_AHEAD", 5.0)
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await other.put_many([b"ahead"] * 300)
        async with asyncio.timeout(PATIENCE):
            taken = 0
            while len(kinds(sent, Want)) > taken - 50:
                await other.put_many([b"more"] * 50)
                await take_one_by_one(queue, 50)
                taken += 50
        left = 300
        async with asyncio.timeout(PATIENCE):
            got: list[aiodq.Message] = []
            while len(got) < left:
                found = await other.get_many(left - len(got))
                await other.ack_many(found)
                got += found
        assert sorted(message.offset for message in got) == list(range(taken, taken + left))
        assert {message.attempts for message in got} == {1}


async def test_who_goes_on_more_slowly_keeps_no_more_than_he_takes_soon_and_the_rest_goes_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(demand, "time", SimpleNamespace(monotonic=lambda: now))
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await other.put_many([b"x"] * 1000)
        ready = queue._remote._ready  # type: ignore[attr-defined]  # it is one of a store that is shared
        for message in await queue.get_many(10 * PREFETCHED):
            message.ack_nowait()
        now += 0.01
        (await queue.get()).ack_nowait()
        await until(lambda: len(ready) >= 5 * PREFETCHED)
        now += 0.01
        for _ in range(PREFETCHED):
            queue.get_nowait().ack_nowait()
        taken = 11 * PREFETCHED + 1
        await until(lambda: len(ready) == PREFETCHED // 2)
        assert (await other.get()).offset == taken + PREFETCHED // 2
        assert (await queue.get()).offset == taken


async def test_who_takes_several_wants_no_more_than_these(tmp_path: Path, sent: list[Packet]) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        await owner.queue("jobs").put_many([b"%d" % n for n in range(9)])
        queue, totals = client.queue("jobs"), list[int]()
        for number in (3, 1, 2):
            sent.clear()
            assert len(await queue.get_many(number)) == number
            totals.append(max(each.total for each in kinds(sent, Want)))
        assert totals == [3, 4, 6]


async def test_who_takes_slowly_has_nothing_sent_ahead(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client):
        queue, other = client.queue("jobs"), owner.queue("jobs")
        await other.put_many([b"%d" % n for n in range(100)])
        for _ in range(20):
            async with await queue.get():
                await asyncio.sleep(0.002)
            assert not queue._remote._ready  # type: ignore[attr-defined]  # it is one of a store that is shared


async def test_to_settle_waits_for_what_was_put_before_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"known")
        puts = queue._remote_topic.put_buffer  # type: ignore[attr-defined]  # as above
        under_way: list[SentPut] = []
        monkeypatch.setattr(puts._topic.link, "put", lambda _name, put: under_way.append(put))
        receipts = [queue.put_nowait(b"before"), queue.put_nowait(b"likewise")]
        settling = asyncio.ensure_future(puts.settled())
        await asyncio.sleep(0)
        receipts.append(queue.put_nowait(b"behind"))
        await asyncio.sleep(0.01)
        assert ([put.messages for put in under_way], settling.done()) == ([2, 1], False)
        under_way[0].on_done(range(1, 3))
        async with asyncio.timeout(PATIENCE):
            await settling
        under_way[1].on_done(range(3, 4))
        assert [await receipt for receipt in receipts] == [1, 2, 3]
        await puts.settled()
        assert puts.pending == 0


async def test_each_of_those_that_put_in_one_turn_is_looked_at(tmp_path: Path, sent: list[Packet]) -> None:
    bounds = aiodq.StoreOptions(sync="os", min_message_bytes=2, max_message_bytes=4)
    async with two(tmp_path / "s", bounds) as (owner, client):
        queue, wrong = client.queue("jobs"), cast("Any", 7)
        await queue.put(b"..")
        bodies = [b"one", b"two", b"1", b"three", wrong, bytearray(b"four"), b"five"]
        found = await asyncio.gather(*map(queue.put, bodies), return_exceptions=True)
        kinds_found = [type(each) for each in found]
        size = aiodq.MessageSizeError
        assert kinds_found == [int, int, size, size, aiodq.InvalidMessageTypeError, int, int]
        assert sorted(each for each in found if isinstance(each, int)) == [1, 2, 3, 4]
        assert [each.count for each in kinds(sent, Put)] == [1, 1, 3], "but for one, which nobody joined yet"
        owners = owner.queue("jobs")
        assert sorted([(await owners.get()).body for _ in range(5)]) == [b"..", b"five", b"four", b"one", b"two"]


async def test_who_puts_in_the_turn_of_a_shutdown_is_told_of_it(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"0")

        async def shut() -> None:
            queue.shutdown()

        found = await asyncio.gather(queue.put(b"1"), queue.put(b"2"), shut(), queue.put(b"3"), return_exceptions=True)
        assert (found[0], found[1]) == (1, 2)
        assert isinstance(found[3], aiodq.QueueShutDown)


async def test_what_puts_in_one_turn_is_accepted_as_long_as_there_is_memory(tmp_path: Path) -> None:
    narrow = aiodq.StoreOptions(sync="os", memory_bytes=1 << 20)
    async with two(tmp_path / "s", narrow) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"0")
        puts = [asyncio.ensure_future(queue.put(bytes(100_000))) for _ in range(50)]
        await asyncio.sleep(0)
        assert 400_000 < client._store_engine.topics["jobs"].put_buffer._cost < 700_000  # type: ignore[attr-defined]
        assert await asyncio.gather(*puts) == [*range(1, 51)]


async def test_what_is_put_takes_memory_until_it_is_stored_and_no_longer(tmp_path: Path) -> None:
    """However it is put, and though some of it is given up. Otherwise the bound on memory would drift."""
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"0")
        puts = cast("RemotePuts", client._store_engine.topics["jobs"].put_buffer)
        labels: dict[str, Any] = {"tag": "tag", "key": b"key", "headers": {"name": "value"}}
        under_way = [asyncio.ensure_future(queue.put(bytes(size))) for size in (0, 1, 700_000, 700_000, 7)]
        under_way += [asyncio.ensure_future(queue.put(b"labelled", **labels)) for _ in range(3)]
        many = [asyncio.ensure_future(queue.put_many([b"a", aiodq.Draft(b"b", **labels)])) for _ in range(2)]
        await asyncio.sleep(0)
        receipt = queue.put_nowait(b"now", **labels)
        for given_up in under_way[1], under_way[5], many[1]:
            given_up.cancel()
        assert puts._cost > 1_400_000
        found = await asyncio.gather(*under_way, *many, return_exceptions=True)
        assert sum(isinstance(each, asyncio.CancelledError) for each in found) == 3
        await receipt
        await puts.settled()
        assert (puts.pending, puts._cost) == (0, 0)


async def test_what_puts_in_one_turn_does_not_pass_by_those_that_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue, room = client.queue("jobs"), True
        await queue.put(b"0")
        monkeypatch.setattr(RemotePuts, "_has_room", lambda _: room)

        async def let(*, enter: bool) -> int:
            nonlocal room
            room = enter
            return 0

        puts = [queue.put(b"1"), queue.put(b"2"), let(enter=False), queue.put(b"3"), let(enter=True), queue.put(b"4")]
        assert await asyncio.gather(*puts) == [1, 2, 0, 3, 0, 4]


async def test_who_puts_from_another_thread_in_the_same_turn_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"0")
        errors: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(queue.put(b"3"))
            except aiodq.WrongContextError as error:
                errors.append(error)

        async def meanwhile() -> None:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

        found = await asyncio.gather(queue.put(b"1"), queue.put(b"2"), meanwhile(), queue.put(b"4"))
        assert (*found,) == (1, 2, None, 3)
        assert len(errors) == 1


@pytest.mark.parametrize("sync", ["always", "interval"])
async def test_what_a_call_has_made_durable_is_known_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Literal["always", "interval"]
) -> None:
    monkeypatch.setattr("aiodq.shared.server.owner._FIGURES", 3600)
    options = aiodq.StoreOptions(sync=sync, sync_interval=3600)
    async with two(tmp_path / "s", options) as stores, asyncio.timeout(PATIENCE):
        for name, store in zip("ab", stores, strict=True):
            topic = store.topic(name)
            topic.channel("c")
            await topic.put(b"x")
            assert (topic.end_offset, topic.durable_offset) == (1, int(sync == "always"))
            await topic.put(b"y")
            await topic.sync()
            assert (topic.durable_offset, topic.stats().durable_offset) == (2, 2)
            await topic.purge()
            assert (topic.begin_offset, topic.stats().begin_offset) == (2, 2)


async def test_puts_are_sent_though_an_interrupt_came_instead_of_the_call_that_sends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Ctrl-C in a notebook, whose loop goes on: it forgets the callback that the interrupt came instead of."""
    monkeypatch.setattr(owner_report, "_LOOK", 0.02)
    send, forgotten = RemotePuts._send, asyncio.Event()

    def forgets(self: RemotePuts) -> None:
        if forgotten.is_set():
            send(self)
        forgotten.set()

    async with two(tmp_path / "s", QUICK) as (_, client):
        topic = client.topic("jobs")
        await topic.put_many([b"0", b"1"])
        monkeypatch.setattr(RemotePuts, "_send", forgets)
        async with asyncio.timeout(PATIENCE):
            for first in (2, 5):
                assert await asyncio.gather(*(topic.put(b"x") for _ in range(3))) == [*range(first, first + 3)]
        assert forgotten.is_set()
