"""Thousands of packets that arrive together are handled in turns of the loop: nobody is held up by them for long."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.connection import in_turns
from aiodq.shared.connection.wires import packet_protocol
from aiodq.shared.server import cut_off, inside, open_handles, owner
from aiodq.shared.server.client_connection import ClientConnection
from aiodq.wire.packets import Ack, Bye, Done, Fail, Open, Ping, Pong
from aiodq.wire.payload import Range
from aiodq.wire.stream import encode_packet
from tests.shared.support import PATIENCE, QUICK, RawClient, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = 40
PUTS = 20


@pytest.fixture(autouse=True)
def _one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is over after one packet."""
    for module in (inside, in_turns, packet_protocol, owner):
        monkeypatch.setattr(module, "LONGEST_TURN", 0.0)


async def growth(size: Callable[[], int], end: int) -> set[int]:
    """Return how much something grows from one turn of the loop to the next, until it has that size."""
    steps, before = set[int](), size()
    async with asyncio.timeout(PATIENCE):
        while before < end:
            await asyncio.sleep(0)
            steps.add(size() - before)
            before = size()
    return steps - {0}


async def test_an_owner_gives_way_amid_what_a_client_has_sent_at_once(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, _):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        asked = [client.send(Open(number, f"t{number}", "", {})) for number in range(1, MANY + 1)]
        await growth(lambda: len(store._store_engine.topics), 1)
        asked += [client.send(Open(number, f"t{number}", "", {})) for number in range(MANY + 1, 2 * MANY + 1)]
        asked.append(client.send(Ping(5)))
        assert await growth(lambda: len(store._store_engine.topics), 2 * MANY) == {1}
        assert isinstance(await client.answer(asked[-1]), Pong)
        told = [await client.answer(request) for request in asked[:-1]]
        assert all(isinstance(said, Done) for said in told), told
        assert isinstance(await client.ask(Ping(6)), Pong)  # it is read on
        await client.close()


async def test_an_owner_gives_way_amid_what_its_own_process_asks(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as first:
        other = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        await first.aclose()
        await other.queue("jobs").put(b"x")
        engine = other._store_engine.owner.engine  # type: ignore[attr-defined]  # it stands in its place
        topics = [other.topic(f"t{number}") for number in range(MANY)]
        assert await growth(lambda: len(engine.topics), MANY + 1) == {1}
        assert [await topic.put(b"x") for topic in topics] == [0] * MANY
        await other.aclose()


async def test_acks_that_have_arrived_count_though_their_client_is_gone(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, served):
        channel = store.topic("jobs").channel("c")
        await store.topic("jobs").put_many([b"x"] * MANY)
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs")
        await client.open(2, "jobs", "c")
        for offset, delivery, _ in await client.take(2, MANY, MANY):
            client.send(Ack(2, client.epoch, (Range(offset, delivery, 1),)))
        [connection] = served._connections
        assert isinstance(connection, ClientConnection)
        await growth(lambda: MANY - channel.depth, 1)
        assert channel.depth
        connection._transport.abort()  # as after a write that failed
        await until(lambda: not served._connections)
        assert (channel.depth, channel.in_flight()) == (0, 0)
        await client.close()


async def test_what_a_client_said_last_counts_though_the_owner_was_just_telling_it_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_off, "_LONGEST", float("inf"))
    async with owned(tmp_path) as (store, served), asyncio.timeout(PATIENCE):
        channel = store.topic("jobs").channel("c")
        await store.topic("jobs").put_many([b"acked", b"held"])
        client = await RawClient.connected(tmp_path)
        await client.hello(pid=os.getpid())
        await client.open(1, "jobs", "c")
        offset, delivery, _ = (await client.take(1, 2, 2))[0]
        said = Ack(1, client.epoch, (Range(offset, delivery, 1),)), Bye()
        [connection] = served._connections
        assert isinstance(connection, ClientConnection)
        with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as sock:
            sock.sendall(b"".join(encode_packet(each, 0) for each in said))
            sock.shutdown(socket.SHUT_RDWR)
        connection.send(Pong(0))  # fails, before any of that is read
        message = await channel.get()
        assert (message.body, channel.depth) == (b"held", 1)
        await client.close()


async def test_what_a_transport_had_read_already_is_handled_after_what_came_before_it(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, served):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        asked = [client.send(Open(number, f"t{number}", "", {})) for number in range(1, MANY + 1)]
        await growth(lambda: len(store._store_engine.topics), 1)
        [connection] = served._connections
        assert isinstance(connection, ClientConnection)
        connection.data_received(encode_packet(Ping(9), MANY + 9))
        assert list(store._store_engine.topics) == [f"t{number}" for number in range(1, MANY + 1)]
        assert isinstance(await client.answer(MANY + 9), Pong)
        assert asked == list(client.answers)  # they were answered before
        await client.close()


async def test_what_an_owner_that_ends_has_not_handled_is_left_to_the_next_one(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, served):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs")
        for number in range(1, PUTS + 1):
            client.put(1, number, [b"%d" % number])
        await growth(lambda: store._store_engine.topics["jobs"].put_buffer.pending, 1)
        await served.close()
        assert store.topic("jobs").end_offset < PUTS
        await client.close()
    async with owned(tmp_path) as (store, _):
        begun = store.topic("jobs").end_offset
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs")
        asked = [client.put(1, number, [b"%d" % number]) for number in range(1, PUTS + 1)]
        told = [await client.answer(request) for request in asked]
        assert [said.placed for said in told if isinstance(said, Done)] == [(number, 1) for number in range(PUTS)]
        assert 0 < begun < PUTS == store.topic("jobs").end_offset
        await client.close()


async def test_what_breaks_the_rules_ends_the_connection_in_its_turn(tmp_path: Path) -> None:
    async with owned(tmp_path) as (store, served):
        client = await RawClient.connected(tmp_path)
        await client.hello()
        client.send(Open(1, "a", "", {}))
        client.send(Open(1, "b", "", {}))  # the handle is in use
        client.send(Open(2, "c", "", {}))
        await until(lambda: not served._connections)
        assert list(store._store_engine.topics) == ["a"]
        with pytest.raises(ConnectionResetError):
            await client.answer(0)  # of a request that was never made: it hears all there is
        assert [said.name for said in client.said if isinstance(said, Fail)] == ["ProtocolError"]
        await client.close()


async def test_counts_of_many_channels_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_FIGURES", PATIENCE)  # nobody else looks
    async with two(tmp_path / "s", QUICK) as (first, client):
        topics = [client.topic(f"t{number}") for number in range(MANY)]
        channels = [topic.channel("c") for topic in topics]
        await asyncio.gather(*(topic.put(b"x") for topic in topics))
        looked: list[int] = []
        look = open_handles.OpenHandles._look_at

        def look_at(which: open_handles.OpenHandles, handle: int) -> None:
            looked.append(handle)
            look(which, handle)

        monkeypatch.setattr(open_handles.OpenHandles, "_look_at", look_at)
        telling = asyncio.ensure_future(first._store_engine.owner._tell_outdated())  # type: ignore[attr-defined]  # it stands in its place
        assert await growth(lambda: len(looked), MANY) == {1}
        assert not telling.done()
        await first.delete_topic("t3")
        await telling
        assert len(looked) >= 2 * MANY - 2
        with pytest.raises(aiodq.QueueShutDown):
            await channels[3].get()
        await until(lambda: [channel.depth for channel in channels[:3]] == [1, 1, 1])


async def test_clients_are_told_in_turns_and_before_the_answer_that_all_channels_of_a_topic_are_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_FIGURES", PATIENCE)  # nobody else looks
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("t")
        channels = [topic.channel(f"c{number}") for number in range(MANY)]
        await asyncio.gather(*(channel.refresh() for channel in channels))
        looked: list[int] = []
        look = open_handles.OpenHandles._look_at

        def look_at(which: open_handles.OpenHandles, handle: int) -> None:
            looked.append(handle)
            look(which, handle)

        monkeypatch.setattr(open_handles.OpenHandles, "_look_at", look_at)
        pausing = asyncio.ensure_future(topic.pause())
        assert await growth(lambda: len(looked), MANY) == {1}
        assert not pausing.done()
        await pausing
        assert all(channel.paused for channel in channels)
