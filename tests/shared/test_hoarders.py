"""Clients that break the rules, and have an owner keep more and more: it keeps little, and serves the others."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.connection.finding import rendezvous
from aiodq.shared.connection.wires import packet_protocol
from aiodq.shared.requests.owner_state import waiting_bytes
from aiodq.shared.requests.resuming import Resuming
from aiodq.shared.server import incoming, open_handles, requests_in_progress
from aiodq.shared.server import owner as owner_module
from aiodq.storage.log.producer_table import MOST_PENDING
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Call, Done, Fail, Held, Open, Ping, Pong, Put, Resume, Txn
from aiodq.wire.stream import encode_packet
from tests.shared.support import PATIENCE, QUICK, TIME, RawClient, cut, owned, two, until

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.shared.server.owner import Owner

ONE = aiodq.StoreOptions(max_messages=1)
LARGE = 1 << 20
HALF = LARGE // 2
LATE = 3600.0


async def connected(path: Path, producer: int, topic: str = "jobs") -> RawClient:
    client = await RawClient.connected(path)
    await client.hello(producer)
    await client.open(1, topic)
    return client


async def fill(store: aiodq.Store) -> aiodq.Channel:
    topic = store.topic("jobs", ONE)
    channel = topic.channel("c")
    await topic.put(b"x")
    return channel


async def refused(client: RawClient, requests: list[int], count: int) -> list[str]:
    """Wait for so many refusals; return their texts."""
    while len(client.answers) < count:
        await client._hear()
    found = [client.answers.pop(request) for request in requests if request in client.answers]
    assert all(isinstance(said, Fail) and said.name == "QueueFull" for said in found), found
    return [said.text for said in found if isinstance(said, Fail)]


async def test_puts_beyond_the_window_are_refused(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, owner):
        channel = await fill(store)
        client = await connected(tmp_path, 7)
        requests = [client.put(1, number, [b"y"]) for number in range(1, 4 * MOST_PENDING + 4)]
        told = await refused(client, requests[-3:], 3)
        assert told == ["64 puts of this process into the topic wait for room; the owner keeps no more"] * 3
        assert owner.waiting.bytes
        async with await channel.get():
            assert store.topic("jobs").end_offset == 1
        assert isinstance(await client.answer(requests[0]), Done)  # those that it keeps come in their turn
        await client.close()
        await until(lambda: not owner.waiting.bytes)


async def test_what_a_client_was_given_a_receipt_for_and_waits_for_room_is_refused_as_it_closes(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, owner), asyncio.timeout(PATIENCE):
        await fill(store)
        async with aiodq.open(tmp_path, mode="client") as client:
            receipt = client.topic("jobs").put_nowait(b"y")
            await until(lambda: owner.waiting.bytes)
        with pytest.raises(aiodq.QueueShutDown):
            await receipt
        await until(lambda: not owner.waiting.bytes)


async def test_what_one_has_waiting_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_bytes, "_MOST_OF_ONE", LARGE)
    async with owned(tmp_path) as (store, owner):
        await fill(store)
        client, other = await connected(tmp_path, 7), await connected(tmp_path, 8)
        requests = [client.put(1, number, [bytes(HALF)]) for number in (1, 2, 3)]
        [told, _] = await refused(client, requests[1:], 2)
        assert "bytes of this process wait for room; the owner keeps 1048576" in told
        other.put(1, 1, [bytes(HALF)])
        await until(lambda: owner.waiting.bytes > LARGE)
        await client.close()
        await other.close()


async def test_what_all_have_waiting_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_bytes, "_MOST", LARGE)
    async with owned(tmp_path) as (store, owner):
        await fill(store)
        client, other = await connected(tmp_path, 7), await connected(tmp_path, 8)
        client.put(1, 1, [bytes(HALF)])
        await until(lambda: owner.waiting.bytes)
        [told] = await refused(other, [other.put(1, 1, [bytes(HALF)])], 1)
        assert "bytes of all processes wait for room; the owner keeps 1048576" in told
        await other.open(2, "others")
        assert isinstance(await other.answer(other.put(2, 1, [bytes(HALF)])), Done)  # this one need not wait
        await client.close()
        await other.close()


async def test_transactions_that_wait_count_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_bytes, "_MOST_OF_ONE", LARGE)

    async def commit(store: aiodq.Store) -> None:
        async with store.transaction() as tx:
            tx.put("jobs", bytes(HALF))

    async with two(tmp_path) as (owner, client):
        channel = await fill(owner)
        first = asyncio.create_task(commit(client))
        serving: Any = owner._store_engine
        await until(lambda: serving.owner.waiting.bytes)
        with pytest.raises(aiodq.QueueFull, match="bytes of this process wait for room"):
            await commit(client)
        await (await channel.get()).ack()
        await first
        assert not serving.owner.waiting.bytes


async def test_requests_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_in_progress, "_MOST", 9)
    async with owned(tmp_path) as (store, _):
        await fill(store)
        client = await connected(tmp_path, 7)
        await client.open(2, "jobs", "c")
        waiting = [client.send(Call("join", {"handle": 2})) for _ in range(9)]
        [told] = await refused(client, [client.send(Call("join", {"handle": 2}))], 1)
        assert told == (
            "9 requests of this process are not answered yet, the most that an owner takes of one: "
            "wait for some of them first"
        )
        assert isinstance(await client.ask(Call("forget", {"request": waiting[0]})), Done)
        assert isinstance(await client.answer(waiting[0]), Fail)
        assert isinstance(await client.ask(Ping(1)), Pong)
        await client.close()


async def test_what_is_claimed_from_a_new_owner_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a transaction that is repeated meanwhile would be refused, though it may be committed."""
    monkeypatch.setattr(requests_in_progress, "_MOST", 9)
    go_on = asyncio.Event()
    claim = Resuming.claim

    async def claim_late(*args: Any, **named: Any) -> Done:
        await go_on.wait()
        return await claim(*args, **named)

    monkeypatch.setattr(Resuming, "claim", claim_late)
    async with owned(tmp_path) as (store, _):
        await fill(store)
        client = await connected(tmp_path, 7)
        await client.open(2, "jobs", "c")
        claims = [client.send(Resume(2, 99, (Held(offset, 1, 1, 1),) * (offset % 2))) for offset in range(20)]
        others = [client.send(Call("refresh", {"handle": 2})), client.send(Txn(1, (), ()))]
        assert isinstance(await client.ask(Ping(1)), Pong)
        go_on.set()
        for each in (*claims, *others):
            assert isinstance(await client.answer(each), Done)
        await client.close()


def large_put() -> bytes:
    return encode_packet(Put(1, 1, 1, encode_messages(Columns([bytes(LARGE)]), TIME)), 9)


async def begin(client: RawClient, owner: Owner) -> None:
    """Send half of a large packet, and see its turn begin."""
    client.writer.write(large_put()[: HALF + 1])
    await until(lambda: owner.incoming._turns)


async def test_a_large_packet_waits_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "_MOST", LARGE + HALF)
    monkeypatch.setattr(incoming, "_LOOK", LATE)
    # What comes before the packet is handled in a later turn, after which who does not wait is read again.
    monkeypatch.setattr(packet_protocol, "LONGEST_TURN", 0.0)
    async with owned(tmp_path) as (_, owner):
        first, second, third = [await connected(tmp_path, producer) for producer in (7, 8, 9)]
        await begin(first, owner)
        second.writer.write(encode_packet(Ping(1), 8) * 2 + large_put())
        await until(lambda: owner.incoming._line)
        [[waiting, _]] = owner.incoming._line
        assert not waiting._transport.is_reading()  # type: ignore[attr-defined]
        assert isinstance(await third.answer(third.put(1, 1, [b"small"])), Done)
        first.writer.write(large_put()[HALF + 1 :])
        for client in (first, second):
            assert isinstance(await client.answer(9), Done)
        assert not owner.incoming._taken
        for client in (first, second, third):
            await client.close()


async def test_half_a_packet_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(incoming, "_MOST", LARGE + HALF)
    monkeypatch.setattr(incoming, "_LOOK", 0.01)
    caplog.set_level(logging.WARNING)
    async with owned(tmp_path) as (_, owner):
        first, second = [await connected(tmp_path, producer) for producer in (7, 8)]
        await begin(first, owner)
        second.writer.write(large_put())
        assert isinstance(await second.answer(9), Done)
        await first.reader.read()  # counts, perhaps, and the end
        assert "began a packet of" in caplog.text
        await first.close()
        await second.close()


async def test_a_packets_turn_is_over_once_two_looks_in_a_row_have_seen_nothing_new() -> None:
    class Quiet:
        over = False

        def too_slow(self) -> None:
            self.over = True

        def wait(self) -> None:
            """Nothing is read in any case."""

        go_on = wait

    packets, first, second = incoming.Incoming(), Quiet(), Quiet()
    for sender in (first, second):
        packets.arrived(sender, incoming._MOST, anew=True)
    found: list[bool] = []
    for moves in (True, True, False):
        if moves:
            packets.arrived(first, incoming._MOST, anew=False)
        packets._look()
        found.append(first.over)
    assert (found, second.over) == ([False, False, True], False)
    packets.ended(first)
    packets.ended(second)


async def test_half_a_packet_may_take_its_time_while_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "_LOOK", 0.001)
    async with owned(tmp_path) as (_, owner):
        client = await connected(tmp_path, 7)
        await begin(client, owner)
        await asyncio.sleep(0.05)
        client.writer.write(large_put()[HALF + 1 :])
        assert isinstance(await client.answer(9), Done)
        await client.close()


async def test_who_is_gone_waits_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "_MOST", LARGE + HALF)
    monkeypatch.setattr(incoming, "_LOOK", LATE)
    async with owned(tmp_path) as (_, owner):
        first, second = [await connected(tmp_path, producer) for producer in (7, 8)]
        await begin(first, owner)
        await begin(second, owner)
        await until(lambda: owner.incoming._line)
        for client in (second, first):
            client.writer.transport.abort()
        await until(lambda: not (owner.incoming._taken or owner.incoming._line or owner.clients))


async def test_as_many_channels_as_may_be_open_ask_for_more_and_do_so_over_another_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_handles, "_MOST", 21)
    monkeypatch.setattr(requests_in_progress, "_MOST", 21)
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        channels = [topic.channel(f"c{number}", aiodq.ChannelOptions(start="earliest")) for number in range(20)]
        await topic.put(b"x")
        link: Any = client._store_engine.link  # type: ignore[attr-defined]  # it stands in its place
        for _ in range(3):
            for channel in channels:
                await channel.refresh()
                async with asyncio.timeout(PATIENCE):
                    (await channel.get()).release()
            await cut(link)
        with pytest.raises(aiodq.QueueFull, match="spread them over several processes"):
            await topic.channel("one-more").refresh()


async def test_what_one_has_open_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_handles, "_MOST", 3)
    async with owned(tmp_path) as (store, owner):
        client, other = await connected(tmp_path, 7), await connected(tmp_path, 8)
        await client.open(2, "jobs", "c")
        await client.open(3, "others")
        opened = client.send(Open(4, "more", "", {}))
        [told, again] = await refused(client, [opened, client.put(4, 1, [b"x"])], 2)
        assert (
            told
            == again
            == (
                "this process has 3 topics and channels open, the most that an owner opens for one: "
                "spread them over several processes"
            )
        )
        assert store.topics() == ["jobs"]
        await other.open(2, "more")
        await store.delete_topic("others")
        # An owner looks ten times a second for what was deleted.
        await until(lambda: not any(3 in each.handles.topics for each in owner.clients))
        await client.open(5, "more")
        await client.close()
        await other.close()


async def test_connections_leave_descriptors_to_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with owned(tmp_path) as (_, owner):
        client = await connected(tmp_path, 7)
        monkeypatch.setattr(rendezvous, "descriptor_limit", lambda: 4)
        with pytest.raises(aiodq.StorageError, match="too few descriptors for another process") as caught:
            await aiodq.open(tmp_path, mode="client")
        assert (caught.value.errno, caught.value.retriable) == (errno.EMFILE, True)
        assert caught.value.path == str(tmp_path)
        assert isinstance(await client.answer(client.put(1, 1, [b"x"])), Done)
        monkeypatch.undo()
        async with aiodq.open(tmp_path, mode="client") as store:
            assert await store.topic("jobs").put(b"y") == 1
        await client.close()
        await until(lambda: not owner.clients)


async def test_an_owner_without_any_descriptor_says_so_to_those_that_it_cannot_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_FREED", 0.001)
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, mode="shared") as owner:
        # A connection that waits to be accepted looks like an owner that has stopped.
        with monkeypatch.context() as patch:
            patch.setattr(owner_module, "_came", Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
            for _ in range(3):
                with pytest.raises(aiodq.StorageError, match="too few descriptors for another process") as caught:
                    await aiodq.open(tmp_path, mode="client")
                assert (caught.value.errno, caught.value.retriable) == (errno.EMFILE, True)
        async with aiodq.open(tmp_path, mode="client") as store:
            assert await store.topic("jobs").put(b"x") == 0
        assert (await owner.topic("jobs").channel("c").get()).body == b"x"


async def test_an_owner_without_any_descriptor_refuses_many_before_the_last_take_it_for_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_FREED", 0.001)
    came = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr(owner_module, "_came", came)
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path, mode="shared"):
        waiting = [sock for _ in range(20) if (sock := rendezvous.connect(str(tmp_path))) is not None]
        for sock in waiting:
            with sock:
                assert b"too few descriptors" in await asyncio.get_running_loop().sock_recv(sock, 4096)
    assert (len(waiting), came.call_count) == (20, 2)


async def test_who_comes_back_to_an_owner_without_descriptors_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def short(*_: object) -> None:
        refusals.append("")
        raise aiodq.StorageError("too few", str(tmp_path), errno=errno.EMFILE, retriable=True)

    async with owned(tmp_path) as (_, owner), aiodq.open(tmp_path, mode="client", failover=PATIENCE) as store:
        await store.topic("jobs").put(b"x")
        monkeypatch.setattr("aiodq.shared.server.owner.check_room", short)
        for connection in list(owner._connections):
            connection.abort()
        await until(lambda: refusals)
        putting = asyncio.create_task(store.topic("jobs").put(b"y"))
        await until(lambda: len(refusals) > 2)
        assert not putting.done()
        monkeypatch.undo()
        assert await putting == 1


async def test_of_puts_that_are_answered_nothing_is_kept(tmp_path: Path) -> None:
    async with owned(tmp_path) as (_, owner), aiodq.open(tmp_path, mode="client") as client:
        full = client.topic("full", aiodq.StoreOptions(max_messages=1, overflow="reject"))
        full.channel("c")
        for _ in range(2):  # the second time the topic is there
            await asyncio.gather(*(client.topic("jobs").put(b"x") for _ in range(20)))
            await asyncio.gather(*(full.put(b"x") for _ in range(20)), return_exceptions=True)
        assert full.end_offset == 1
        (session_of_it,) = owner.clients
        puts = session_of_it._puts
        # The client may hear of a put from the thread that has synced it, a moment before the owner's loop does.
        await until(lambda: not any((puts._slow, puts._moving, puts._waiting, puts._withdrawn, owner.puts_in_progress)))
