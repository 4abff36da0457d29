"""What an owner does for its clients, whatever they say and however they end."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import random
import socket
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import aiodq
from aiodq.shared.connection.finding.rendezvous import UNSEEN, connect, listen
from aiodq.shared.requests.lent.epochs import began_later, new_epoch
from aiodq.shared.server import owner as owner_module
from aiodq.shared.server.noted_clients import NotedClients
from aiodq.shared.server.owner import Owner
from aiodq.storage.store_layout import CLIENTS
from aiodq.testing import WatchedFileSystem
from aiodq.wire.layout import UNSET
from aiodq.wire.packets import (
    Ack,
    Bye,
    Call,
    Deliver,
    Done,
    Fail,
    Figures,
    Gone,
    Handover,
    Held,
    Hello,
    Item,
    Nack,
    Open,
    Packet,
    Ping,
    Pong,
    Put,
    Range,
    Reject,
    Release,
    Resume,
    Touch,
    Want,
)
from aiodq.wire.stream import Received, encode_packet
from tests.shared.support import NO_PROCESS, PATIENCE, RawClient, joined, owned, until
from tests.wire.support import EXAMPLES

if TYPE_CHECKING:
    import socket
    from pathlib import Path


async def test_a_client_puts_takes_and_acks(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        client = await joined(tmp_path / "s")
        assert await client.answer(client.put(1, 1, [b"a", b"b", b"c"])) == Done((0, 3))
        assert await queue.put(b"d") == 3
        found = await client.take(2, 4, 4)
        assert [(offset, body) for offset, _, body in found] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
        assert queue.in_flight() == 4
        ranges = tuple(Range(offset, delivery, 1) for offset, delivery, _ in found)
        assert await client.ask(Ack(2, owner.epoch, ranges)) == Done()
        assert queue.depth == 0
        await client.close()
    async with aiodq.open(tmp_path / "s") as again:
        assert again.queue("jobs").depth == 0


async def test_a_put_that_comes_again_counts_once_by_any_connection_and_any_owner(tmp_path: Path) -> None:
    async with owned(tmp_path / "s"):
        client = await joined(tmp_path / "s")
        requests = [client.put(1, sequence, [b"%d" % sequence]) for sequence in (1, 2, 2, 1, 3)]
        assert [await client.answer(each) for each in requests] == [Done((n, 1)) for n in (0, 1, 1, 0, 2)]
        other, stranger = await joined(tmp_path / "s"), await joined(tmp_path / "s", producer=8)
        assert await other.answer(other.put(1, 3, [b"3"])) == Done((2, 1))
        assert await stranger.answer(stranger.put(1, 3, [b"of another"])) == Done((3, 1))
        for each in (client, other, stranger):
            await each.close()
    async with owned(tmp_path / "s") as (store, _):
        client = await joined(tmp_path / "s")
        assert [await client.answer(client.put(1, n, [b"%d" % n])) for n in (2, 3, 4)] == [
            Done((1, 1)), Done((2, 1)), Done((4, 1)),
        ]  # fmt: skip
        assert [message.body async for message in store.topic("jobs").scan()] == [b"1", b"2", b"3", b"of another", b"4"]
        await client.close()


async def test_a_put_that_comes_again_while_it_waits_for_room_counts_once(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        topic = store.topic("jobs", aiodq.StoreOptions(max_messages=1))
        queue = store.queue("jobs")
        await topic.put(b"a")
        client, again = await joined(tmp_path / "s"), await joined(tmp_path / "s")
        requests = [(each, each.put(1, 1, [b"b"])) for each in (client, again)]
        for each in (client, again):
            await each.ask(Ping(1))
        await client.close()
        await until(lambda: len(owner.clients) == 1)
        async with await queue.get():
            pass
        assert await again.answer(requests[1][1]) == Done((1, 1))
        assert [message.body async for message in topic.scan()] == [b"a", b"b"]
        await again.close()


async def test_what_a_client_held_that_is_gone_goes_back_uncounted_and_in_order(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(10)])
        client = await joined(tmp_path / "s")
        found = await client.take(2, 6, 6)
        await client.ask(Ack(2, owner.epoch, (Range(1, found[1][1], 1),)))
        await client.close()
        await until(lambda: not owner.clients)
        assert (queue.in_flight(), queue.qsize()) == (0, 9)
        messages = await queue.get_many(9)
        assert [message.body for message in messages] == [b"0", *(b"%d" % n for n in range(2, 10))]
        assert {message.attempts for message in messages} == {1}


async def test_no_more_is_given_than_is_wanted_and_a_want_can_be_withdrawn(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        client = await joined(tmp_path / "s")
        client.send(Want(2, 5))
        await client.ask(Ping(1))
        client.send(Want(2, 0))
        await client.ask(Ping(2))
        await queue.put_many([b"a", b"b", b"c"])
        await client.ask(Ping(3))
        assert queue.qsize() == 3
        assert not any(isinstance(each, Deliver) for each in client.said)
        assert len(await client.take(2, 2, 2)) == 2
        await client.ask(Ping(4))
        assert (queue.qsize(), queue.in_flight()) == (1, 2)
        await client.close()
        await until(lambda: not owner.clients)


async def test_what_is_withdrawn_and_wanted_again_at_once_is_given(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        client = await joined(tmp_path / "s")
        client.send(Want(2, 1))
        await client.ask(Ping(1))
        client.send(Want(2, 0))
        client.send(Want(2, 2))
        await client.ask(Ping(2))
        await store.queue("jobs").put_many([b"a", b"b"])
        assert [body for *_, body in await client.take(2, 2, 2)] == [b"a", b"b"]
        await client.close()


async def test_what_cannot_be_requeued_as_said_stays_in_hand(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put(b"a")
        client = await joined(tmp_path / "s")
        [(offset, delivery, _)] = await client.take(2, 1, 1)
        assert isinstance(await client.ask(Nack(2, owner.epoch, (Item(offset, delivery, (1 << 63) - 1, 1),))), Fail)
        assert [session.holds() for session in owner.clients] == [{"jobs/default": 1}]
        await client.close()
        assert (await queue.get(timeout=PATIENCE)).attempts == 1


@pytest.mark.parametrize("kind", [Nack, Touch])
async def test_one_of_several_that_is_held_no_more_keeps_nothing_from_the_others(
    tmp_path: Path, kind: type[Nack | Touch]
) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=PATIENCE))
        await queue.put(b"a")
        client = await joined(tmp_path / "s")
        [(offset, delivery, _)] = await client.take(2, 1, 1)
        items = Item(offset, delivery + 1, 0, 1), Item(offset, delivery, 0, 1), Item(offset, delivery + 1, 0, 1)
        assert isinstance(fail := await client.ask(kind(2, owner.epoch, items)), Fail)
        assert fail.name == "NotInFlightError"
        await until(queue.qsize)
        await client.close()


async def test_what_is_asked_without_a_number_is_refused_without_a_word(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await joined(tmp_path / "s")
        client.writer.write(encode_packet(Touch(2, owner.epoch, (Item(0, 1, UNSET, 1),))))
        assert await client.ask(Ping(1)) == Pong(1)
        assert [said for said in client.said if isinstance(said, Fail)] == []
        await client.close()


async def test_every_way_to_settle(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue, client = store.queue("jobs"), None
        await queue.put_many([b"a", b"b", b"c", b"d"])
        client = await joined(tmp_path / "s")
        a, b, c, d = await client.take(2, 4, 4)
        hour = 3600 * 10**9
        assert await client.ask(Nack(2, owner.epoch, (Item(a[0], a[1], hour, 1),))) == Done()
        assert await client.ask(Release(2, owner.epoch, (Range(b[0], b[1], 1),))) == Done()
        assert await client.ask(Reject(2, 1, owner.epoch, c[0], c[1], "no", "")) == Done()
        assert await client.ask(Touch(2, owner.epoch, (Item(d[0], d[1], UNSET, 1),))) == Done()
        assert (queue.qsize(), queue.in_flight(), queue.deferred(), queue.depth) == (1, 1, 1, 3)
        assert await client.ask(Nack(2, owner.epoch, (Item(d[0], d[1], UNSET, 1),))) == Done()
        assert [(m.body, m.attempts) for m in await queue.get_many(2)] == [(b"b", 1), (b"d", 2)]
        assert await client.ask(Call("refresh", {"handle": 2})) == Done()
        assert Figures(2, 0, 2, 1, 0, 4, 4) in client.said
        await client.close()


async def test_what_a_client_does_not_hold_it_cannot_settle(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"a", b"b"])
        client, other = await joined(tmp_path / "s"), await joined(tmp_path / "s", 8)
        [(offset, delivery, _)] = await client.take(2, 1, 1)
        wrong: list[Packet] = [
            Ack(2, owner.epoch + 1, (Range(offset, delivery, 1),)),
            Ack(2, owner.epoch, (Range(offset + 1, delivery, 1),)),
            Ack(2, owner.epoch, (Range(offset, delivery + 1, 1),)),
            Ack(2, owner.epoch, (Range(0, 0, 2**32 - 1),)),
            Nack(2, owner.epoch, (Item(offset + 1, delivery, 0, 1),)),
            Nack(2, owner.epoch + 1, (Item(offset, delivery, 0, 1),)),
        ]
        for said in wrong:
            assert isinstance(fail := await client.ask(said), Fail)
            assert fail.name == "NotInFlightError"
        assert isinstance(fail := await other.ask(Ack(2, owner.epoch, (Range(offset, delivery, 1),))), Fail)
        assert fail.name == "NotInFlightError"
        assert (queue.qsize(), queue.in_flight()) == (1, 1)
        assert await client.ask(Ack(2, owner.epoch, (Range(offset, delivery, 1),))) == Done()
        assert isinstance(await client.ask(Ack(2, owner.epoch, (Range(offset, delivery, 1),))), Fail)
        for each in (client, other):
            await each.close()


async def test_errors_come_as_what_they_are(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        store.queue("small", options=aiodq.StoreOptions(max_message_bytes=10, max_messages=2, overflow="reject"))
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "small")
        await client.open(2, "small", "default")
        assert await client.answer(client.put(1, 1, [b"a", b"b"])) == Done((0, 2))
        for sequence, body, name in ((2, b"x" * 11, "MessageSizeError"), (3, b"x", "QueueFull")):
            fail = await client.answer(client.put(1, sequence, [body]))
            assert isinstance(fail, Fail)
            assert fail.name == name
        assert isinstance(fail := await client.ask(Open(5, "../x", "", {})), Fail)
        assert fail.name == "InvalidNameError"
        assert isinstance(fail := await client.ask(Call("nonsense", {"handle": 2})), Fail)
        await client.close()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("hello")])
async def test_nothing_but_hello_comes_first(tmp_path: Path, name: str) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await RawClient.connected(tmp_path / "s")
        client.send(EXAMPLES[name])
        assert "comes before HELLO" in (await client.hear(Fail)).text
        await until(lambda: not owner.clients)
        await client.close()


async def test_a_version_that_nobody_speaks_is_refused(tmp_path: Path) -> None:
    async with owned(tmp_path / "s"):
        client = await RawClient.connected(tmp_path / "s")
        client.send(Hello(9, 8, 1, 7, 0, ""))
        assert "speaks versions 1 to 2, the client 8 to 9" in (await client.hear(Fail)).text
        await client.close()


async def test_whatever_a_client_sends_others_notice_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with owned(tmp_path / "s") as (_, owner):
        good = await joined(tmp_path / "s")
        examples = [encode_packet(said, 5) for name, said in EXAMPLES.items() if name != "bye"]
        for number in range(60):
            bad = await RawClient.connected(tmp_path / "s")
            if rng.random() < 0.7:
                await bad.hello(rng.randrange(3))
                await bad.open(1, "theirs")
                await bad.open(2, "theirs", "default")
            for _ in range(rng.randrange(6)):
                data = bytearray(rng.choice(examples))
                if rng.random() < 0.5:
                    data[rng.randrange(len(data))] = rng.randrange(256)
                bad.writer.write(bytes(data[: rng.randint(1, len(data))]) if rng.random() < 0.2 else bytes(data))
            if rng.random() < 0.3:
                bad.writer.write(rng.randbytes(50))
            await bad.close()
            assert await good.answer(good.put(1, number + 1, [b"x"])) == Done((number, 1))
        await until(lambda: len(owner.clients) == 1)
        assert await good.ask(Ping(3)) == Pong(3)
        await good.close()


async def test_an_owner_that_closes_says_so_and_leaves_no_socket(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await joined(tmp_path / "s")
        await client.take(2, 0, 0)
    assert await client.hear(Handover) == Handover(owner.epoch)
    assert "socket" not in os.listdir(tmp_path / "s")
    await client.close()


async def test_a_client_that_says_goodbye_is_let_go(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        client = await joined(tmp_path / "s")
        client.send(Bye())
        await until(lambda: not owner.clients)
        await client.close()


async def test_a_handle_is_what_it_was_opened_as(tmp_path: Path) -> None:
    async with owned(tmp_path / "s"):
        for said in (Put(2, 1, 1, b"x" * 32), Put(9, 1, 1, b"x" * 32), Want(1, 5), Open(1, "jobs", "", {})):
            client = await joined(tmp_path / "s")
            client.send(said)
            assert "handle" in (await client.hear(Fail)).text
            await client.close()


async def test_after_a_crash_nothing_is_delivered_before_those_who_hold_it_were_heard(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put_many([b"0", b"1", b"2", b"3"])
    listen(str(tmp_path / "s")).sock.close()  # as a kill leaves it
    async with owned(tmp_path / "s", reclaim=3600) as (store, owner):
        queue = store.queue("jobs")
        getting = asyncio.ensure_future(queue.get_many(4, linger=0.2))
        client = await joined(tmp_path / "s")
        done = await client.ask(Resume(2, 99, (Held(1, 5, 2, 3), Held(50, 1, 1, 1))))
        assert isinstance(done, Done)
        assert done.facts is not None
        [[offset, delivery, count]] = done.facts["held"]
        assert (offset, count, getting.done()) == (1, 2, False), "nobody has got anything before"
        assert not any(isinstance(each, Deliver) for each in client.said)
        assert (queue.in_flight(), queue.qsize()) == (2, 2)
        owner._look_for_late()  # as it does when the time is over
        assert [message.offset for message in await getting] == [0, 3]
        assert await client.ask(Ack(2, owner.epoch, (Range(1, delivery, 1),))) == Done()
        assert await client.ask(Release(2, owner.epoch, (Range(2, delivery + 1, 1),))) == Done()
        message = await queue.get(timeout=PATIENCE)
        assert (message.offset, message.body, message.attempts) == (2, b"2", 3), "released, so as it was"
        late = await client.ask(Resume(2, 99, (Held(0, 5, 3, 1),)))
        assert late == Done(None, {"held": [], "elsewhere": [0, 2]}), "these are others' by now, and 1 is settled"
        await client.close()


async def test_a_put_that_may_drop_nothing_until_then_goes_on(tmp_path: Path) -> None:
    one = aiodq.StoreOptions(max_messages=1, overflow="drop_oldest")
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs", options=one).put(b"0")
    listen(str(tmp_path / "s")).sock.close()  # as a kill leaves it
    async with owned(tmp_path / "s", reclaim=3600) as (store, owner):
        putting = asyncio.ensure_future(store.queue("jobs", options=one).put(b"1"))
        await until(lambda: store.topic("jobs")._engine.put_buffer._waiting.line)
        assert not putting.done()
        owner._look_for_late()
        async with asyncio.timeout(PATIENCE):
            assert await putting == 1


async def test_counts_wait_until_those_who_hold_something_were_heard(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put_many([b"0", b"1", b"2"])
    (tmp_path / "s" / CLIENTS).write_text(json.dumps([[7, 1], [8, 1]]))
    async with owned(tmp_path / "s", reclaim=3600):
        client, other = await joined(tmp_path / "s"), await joined(tmp_path / "s", producer=8)
        client.send(Resume(2, 99, (Held(0, 1, 1, 1),)))
        client.send(Call("back", {}))
        asked = client.send(Call("refresh", {"handle": 2}))
        await client.ask(Ping(1))
        assert asked not in client.answers
        other.send(Resume(2, 99, (Held(1, 1, 1, 1),)))
        assert await other.ask(Call("back", {})) == Done()
        assert await client.answer(asked) == Done()
        figures = [each for each in client.said if isinstance(each, Figures) and each.handle == 2]
        assert (figures[-1].ready, figures[-1].flying) == (1, 2)
        await client.close()
        await other.close()


async def test_who_is_back_has_said_all_that_it_holds(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put_many([b"%d" % n for n in range(500)])
    listen(str(tmp_path / "s")).sock.close()  # as a kill leaves it
    async with owned(tmp_path / "s", reclaim=PATIENCE) as (store, _):
        client = await joined(tmp_path / "s")
        few = client.send(Resume(2, 99, (Held(0, 5, 1, 1),)))
        # Each of these is looked for alone: it takes far longer.
        many = client.send(Resume(2, 99, tuple(Held(first, 5, 1, 1) for first in range(499, 0, -1))))
        back = client.send(Call("back", {}))
        done = await client.answer(few)
        assert isinstance(done, Done)
        assert done.facts is not None
        # Deliveries are numbered as they are found, and some of the many may be found before.
        assert [(offset, count) for offset, _, count in done.facts["held"]] == [(0, 1)]
        assert back not in client.answers
        await client.answer(back)
        assert many in client.answers
        assert (store.queue("jobs").qsize(), store.queue("jobs").in_flight()) == (0, 500)
        await client.close()


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "dead"])
async def test_who_is_late_is_waited_for_as_long_as_it_lives(tmp_path: Path, *, alive: bool) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put(b"0")
    (tmp_path / "s" / CLIENTS).write_text(json.dumps([[7, os.getpid() if alive else 2**22 + 1]]))
    async with owned(tmp_path / "s", reclaim=0.01) as (store, _):
        getting = asyncio.ensure_future(store.queue("jobs").get())
        if alive:
            await asyncio.sleep(0.1)
            client = await joined(tmp_path / "s")
            assert not getting.done()
            assert await client.ask(Call("back", {})) == Done()
            await client.close()
        async with asyncio.timeout(PATIENCE):
            assert (await getting).body == b"0"


async def test_who_only_puts_or_asks_is_not_waited_for(tmp_path: Path) -> None:
    noted = NotedClients(str(tmp_path / "s"))
    async with owned(tmp_path / "s"):
        client = await RawClient.connected(tmp_path / "s")
        await client.hello(9)
        await client.open(1, "jobs")
        assert isinstance(await client.ask(Call("who", {"asking": 9})), Done)
        assert noted.read() == {}
        await client.open(2, "jobs", "default")
        assert noted.read() == {9: NO_PROCESS}
        await client.close()
        await until(lambda: noted.read() == {})


async def test_who_has_not_come_back_is_known_to_the_next_owner_too(tmp_path: Path) -> None:
    """An owner that is killed while others look for it leaves nobody out."""
    clients, noted = tmp_path / "s" / CLIENTS, NotedClients(str(tmp_path / "s"))
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put(b"0")
    clients.write_text(json.dumps([[7, 1], [8, 1]]))
    async with owned(tmp_path / "s", reclaim=3600):
        client = await joined(tmp_path / "s")
        assert await client.ask(Call("back", {})) == Done()
        assert set(noted.read() or ()) == {7, 8}
        late = await joined(tmp_path / "s", producer=8)
        assert await late.ask(Call("back", {})) == Done()
        await client.close()
        await until(lambda: list(noted.read() or ()) == [8])
        await late.close()
    clients.unlink()
    listen(str(tmp_path / "s")).sock.close()  # as a kill leaves it
    async with owned(tmp_path / "s", reclaim=3600):
        client = await joined(tmp_path / "s")
        assert noted.read() is None, "it may be anybody"
        await client.close()


async def test_who_holds_nothing_as_an_owner_closes_is_not_waited_for(tmp_path: Path) -> None:
    """It may close as well before there is another owner, and its process live on."""
    fs, noted = WatchedFileSystem(), NotedClients(str(tmp_path / "s"))
    store = await aiodq.open(tmp_path / "s", fs=fs)
    owner = Owner(store._store_engine)
    await owner.start()
    await store.queue("jobs").put_many([b"0", b"1", b"2"])
    joining = [await joined(tmp_path / "s", producer) for producer in (7, 8, 9)]
    idle, _, acking = joining
    for client in joining:
        assert len(await client.take(2, 1, 1)) == 1
    assert await idle.ask(Ack(2, owner.epoch, (Range(0, 1, 1),))) == Done()
    gate = fs.gate("sync", match="journal")
    asking = asyncio.create_task(acking.ask(Ack(2, owner.epoch, (Range(2, 3, 1),))))
    try:
        await gate.wait()
        assert set(noted.read() or ()) == {7, 8, 9}
        closing = asyncio.create_task(owner.close())
        await until(lambda: set(noted.read() or ()) == {8, 9})
    finally:
        gate.open()
    await asyncio.gather(asking, return_exceptions=True)
    await closing
    for client in joining:
        await client.close()
    await store.aclose()


async def test_who_could_not_be_noted_is_waited_for_after_an_owner_that_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str, *rest: int) -> int:
        if str(path).endswith(CLIENTS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, *rest)

    with monkeypatch.context() as patch:
        async with owned(tmp_path / "s") as (store, _):
            await store.queue("jobs").put(b"0")
            patch.setattr("aiodq.shared.server.noted_clients.os.open", refuse)
            client = await joined(tmp_path / "s")
            assert len(await client.take(2, 1, 1)) == 1
    async with owned(tmp_path / "s", reclaim=3600) as (store, owner):
        assert owner._reclaiming is not None
        assert store.queue("jobs").qsize() == 1
        with pytest.raises(aiodq.QueueEmpty):
            store.queue("jobs").get_nowait()
    await client.close()


@pytest.mark.parametrize("written", [0, 3])
def test_clients_of_whom_only_a_part_is_written_are_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            return super().write(data[:written])

    noted = NotedClients(str(tmp_path))
    noted.write({7: 1})
    assert noted.certain
    with monkeypatch.context() as patch:
        patch.setattr("aiodq.shared.server.noted_clients.open", lambda file, *_, **__: Full(file, "wb"), raising=False)
        noted.write({7: 1, 8: 1})
    assert not noted.certain
    assert noted.read() is None


@pytest.mark.parametrize(
    "error", [aiodq.StorageError("input/output error"), aiodq.StoreNotFoundError("it was renamed")]
)
async def test_clients_are_noted_unless_another_directory_has_taken_the_place_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: aiodq.StorageError
) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        await owner.noted()
        monkeypatch.setattr(owner._place, "check", Mock(side_effect=error))
        owner._noting.note({7: 1})
        await owner.noted()
        found = NotedClients(str(tmp_path / "s")).read()
    assert found == ({} if isinstance(error, aiodq.StoreNotFoundError) else {7: 1})


def test_clients_are_noted_though_the_owner_is_killed_before_it_truncates_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(io.FileIO):
        def truncate(self, _size: int | None = None, /) -> int:
            raise KeyboardInterrupt

    noted = NotedClients(str(tmp_path))
    noted.write({7: 1, 8: 1})
    with monkeypatch.context() as patch:
        patch.setattr(
            "aiodq.shared.server.noted_clients.open", lambda file, *_, **__: Killed(file, "wb"), raising=False
        )
        with pytest.raises(KeyboardInterrupt):
            noted.write({8: 1})
    assert (tmp_path / CLIENTS).read_bytes().count(b"]]") == 2, "the end of the longer text is still there"
    assert NotedClients(str(tmp_path)).read() == {8: 1}


@pytest.mark.parametrize("clients", [{}, {7: 1, 8: 2}, None])
def test_other_versions_step_over_the_epoch_that_an_owner_notes(tmp_path: Path, clients: dict[int, int] | None) -> None:
    noted, epoch = NotedClients(str(tmp_path)), new_epoch(10**18)
    assert (noted.read(), noted.read_epoch()) == (None, 0)
    noted.epoch = epoch
    if clients is None:
        noted.forget()
    else:
        noted.write(clients)
    again = NotedClients(str(tmp_path))
    assert (again.read(), again.read_epoch()) == (clients, epoch)
    rows = json.loads((tmp_path / CLIENTS).read_bytes())
    whole = all(isinstance(row, list) and [type(each) for each in row] == [int, int] for row in rows)
    assert ({producer: pid for producer, pid in rows if pid > 0} if whole else None) == clients, "as they read it"


def test_pids_that_an_owner_in_another_container_noted_are_not_taken_for_those_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("aiodq.shared.server.noted_clients.pid_namespace", lambda: 7)
        NotedClients(str(tmp_path)).write({7: NO_PROCESS})
        assert NotedClients(str(tmp_path)).read() == {7: NO_PROCESS}
    assert NotedClients(str(tmp_path)).read() == {7: UNSEEN}
    (tmp_path / CLIENTS).write_text(json.dumps([[7, NO_PROCESS]]))
    assert NotedClients(str(tmp_path)).read() == {7: NO_PROCESS}, "an older version notes no namespace"


@pytest.mark.parametrize("epoch", [1 << 62, -2, 99, "1", None])
async def test_an_owner_begins_later_than_the_one_before_whatever_the_clock_says(tmp_path: Path, epoch: object) -> None:
    """Also if what is on disk is no epoch of this version."""
    async with aiodq.open(tmp_path / "s"):
        (tmp_path / "s" / CLIENTS).write_text(json.dumps([[epoch, -1]]))
    async with owned(tmp_path / "s") as (_, first):
        assert 0 < first.epoch < new_epoch(time.time_ns()) + (1 << 40)
    ahead = new_epoch(time.time_ns() + 10**18)
    (tmp_path / "s" / CLIENTS).write_text(json.dumps([[7, NO_PROCESS], [ahead, -1]]))
    epochs = [ahead]
    for _ in range(3):
        async with owned(tmp_path / "s") as (_, owner):
            epochs.append(owner.epoch)
    assert all(began_later(after, before) for before, after in pairwise(epochs))


async def test_who_may_be_anybody_is_waited_for_by_the_owner_after_next_too(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put(b"0")
    listen(str(tmp_path / "s")).sock.close()  # as a kill leaves it
    for _ in range(2):
        async with owned(tmp_path / "s", reclaim=3600) as (_, owner):
            assert owner._reclaiming is not None


async def test_who_comes_back_as_the_owner_closes_has_nothing_given_up(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put(b"0")
    (tmp_path / "s" / CLIENTS).write_text(json.dumps([[7, os.getpid()]]))
    async with owned(tmp_path / "s", reclaim=3600) as (store, owner):
        client = await joined(tmp_path / "s")
        (session,) = owner.clients
        session.receive(Received(Call("back", {}), 99))
        await owner.close()
        assert store._store_engine.reclaiming
        await client.close()


async def test_after_an_owner_that_closed_nobody_waits(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, _):
        await store.queue("jobs").put(b"0")
    async with owned(tmp_path / "s", reclaim=3600) as (store, _):
        assert (await store.queue("jobs").get(timeout=PATIENCE)).body == b"0"


@pytest.mark.parametrize("moved", ["seek", "purge", None])
async def test_what_was_held_under_an_owner_before_is_held_no_more_once_the_channel_is_moved(
    tmp_path: Path, moved: str | None
) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        channel = store.topic("jobs").channel("c")
        await store.topic("jobs").put_many([b"0", b"1"])
        if moved == "seek":
            await channel.seek("earliest")
        elif moved == "purge":
            await channel.purge()
            await store.topic("jobs").put_many([b"2", b"3"])
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs", "c")
        before = await client.ask(Resume(1, owner.epoch ^ 1, (Held(0, 5, 1, 1),)))
        assert isinstance(before, Done)
        assert (before.facts or {})["held"] == ([] if moved else [[0, 1, 1]])
        now = await client.ask(Resume(1, owner.epoch, (Held(1, 6, 1, 1),)))
        assert isinstance(now, Done)
        assert [row[0] for row in (now.facts or {})["held"]] == ([] if moved == "purge" else [1])
        await client.close()


@pytest.mark.parametrize(("call", "handle"), [("seek", 1), ("purge", 1), ("purge", 2)])
@pytest.mark.parametrize("waits", [True, False])
async def test_who_holds_messages_is_told_before_the_answer_of_what_takes_them_away(
    tmp_path: Path, waits: bool, call: str, handle: int
) -> None:
    async with owned(tmp_path / "s") as (store, _):
        await store.topic("jobs").channel("c").seek("latest")
        await store.topic("jobs").put_many([b"0", b"1"])
        holder, mover = [await RawClient.connected(tmp_path / "s") for _ in range(2)]
        for number, client in enumerate((holder, mover), 7):
            await client.hello(number)
            await client.open(1, "jobs", "c")
            await client.open(2, "jobs")
        [(offset, delivery, _)] = await holder.take(1, 1, 1)
        if waits:  # and has what the other one held before the answer of the seek
            mover.send(Want(1, 3))
        assert isinstance(await mover.ask(Call(call, {"handle": handle, "position": "earliest"})), Done)
        await holder.ask(Ping(1))
        gone = [said for said in holder.said if isinstance(said, Gone)]
        assert [said.ranges for said in gone] == [(Range(offset, delivery, 1),)]
        for client in (holder, mover):
            await client.close()


async def test_who_comes_in_the_turn_in_which_the_owner_accepts_no_more_is_no_error(tmp_path: Path) -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    came: list[socket.socket | None] = []
    async with owned(tmp_path / "s") as (_, owner):
        await asyncio.sleep(0)
        assert owner._watching is not None
        # In the next turn the loop notices who came, and `close` goes on.
        owner._watching.add_done_callback(lambda _: came.append(connect(owner.engine.path)))
        await owner.close()
    assert len(came) == 1
    for each in came:
        assert each is not None
        each.close()
    assert not reported


async def test_where_a_child_s_copy_of_the_loop_ends_the_parent_keeps_its_socket(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        await asyncio.sleep(0)
        assert owner._accepting is not None
        assert owner._listening is not None
        owner.pid += 1  # as in a child that was forked from it
        owner._accepting.cancel()
        await asyncio.gather(owner._accepting, return_exceptions=True)
        assert owner._listening.is_found()


async def test_a_crowd_is_taken_in_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All look for the next owner at the same moment: those that come late are told that it hangs."""
    rounds: list[socket.socket] = []
    readable = owner_module._readable

    async def counted(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        rounds.append(sock)
        await readable(loop, sock)

    monkeypatch.setattr(owner_module, "_readable", counted)
    async with owned(tmp_path / "s") as (_, owner):
        crowd = [connect(str(tmp_path / "s")) for _ in range(100)]
        await until(lambda: len(owner._connections) == len(crowd))
        assert len(rounds) < 10
        for sock in crowd:
            assert sock is not None
            sock.close()
        await until(lambda: not owner._connections)
