"""Who holds very many messages does not hold up the owner: they are claimed, given back and lost in small parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.shared.connection import in_turns
from aiodq.shared.consuming.sent_settlements import SentSettlement, Settling
from aiodq.shared.consuming.settlement_sender import SettlementSender
from aiodq.shared.requests import resuming
from aiodq.shared.requests.resuming import Resuming
from aiodq.shared.server.client_connection import ClientConnection
from aiodq.shared.server.session import Session
from aiodq.wire.packets import Gone, Release
from aiodq.wire.payload import Range
from tests.shared.support import PATIENCE, QUICK, counts, two, until

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.wire.packets import Packet

MANY = 500


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each packet gives back."""
    sizes: list[int] = []
    release = Session._release

    def noting(self: Session, packet: Release, request: int) -> None:
        sizes.append(sum(each.messages for each in packet.ranges))
        release(self, packet, request)

    monkeypatch.setattr(Session, "_release", noting)
    return sizes


async def taken(queue: aiodq.Queue, count: int) -> list[aiodq.Message]:
    """Put so many messages, and take them."""
    await queue.put_many([b"x"] * count)
    found: list[aiodq.Message] = []
    while len(found) < count:
        found += await queue.get_many(count - len(found))
    return found


async def test_who_loses_many_messages_is_told_of_them_together(tmp_path: Path) -> None:
    told: list[Gone] = []
    send = ClientConnection.send

    def heard(self: ClientConnection, packet: Packet, request: int = 0) -> None:
        if isinstance(packet, Gone):
            told.append(packet)
        send(self, packet, request)

    with mock.patch.object(ClientConnection, "send", heard):
        async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
            queue = client.queue("jobs")
            messages = await taken(queue, MANY)
            await queue.ack_many(messages[::100])
            await queue.seek("latest")
            assert not any(message.held for message in messages)
            lost = [offset for packet in told for each in packet.ranges for offset in range(each[0], each[0] + each[2])]
            assert lost == [message.offset for message in messages if not message.settled]
            assert len(told) == 1


async def test_where_nothing_is_in_flight_any_more_no_single_message_is_looked_at(tmp_path: Path) -> None:
    class Sought:
        """The state of a channel after a seek; nobody asks it for more than this."""

        flying = 0

    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        messages = await taken(queue, MANY)
        await queue.ack_many(messages[100:200])
        server: Any = owner
        [share] = [share for each in server._remote.owner.clients for share in each.shares if share.holding]
        share.has_changed()
        [gone] = share._lent.drop_lost(Sought())
        assert [(each.first, each.messages) for each in gone] == [(0, 100), (200, MANY - 200)]
        assert (share.holding, list(share._lent), share.has_changed()) == (0, [], True)


async def test_who_loses_messages_here_and_there_is_told_of_a_hundred_places_at_once(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        messages = await taken(queue, MANY)
        server: Any = owner
        [share] = [share for each in server._remote.owner.clients for share in each.shares if share.holding]
        state = share._channel_engine.state
        for message in messages[::2]:
            state.nack(message.offset, 1)
        gone = share._lent.drop_lost(state)
        assert [len(ranges) for ranges in gone] == [100, 100, 50]
        assert [each.first for ranges in gone for each in ranges] == [message.offset for message in messages[::2]]
        assert share._lent.drop_lost(state) == []
        assert share.holding == MANY // 2


async def test_what_a_refused_transaction_was_to_settle_is_lent_again_as_it_was(tmp_path: Path) -> None:
    full = aiodq.StoreOptions(sync="os", max_messages=1, overflow="reject")
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), client.topic("other", full)
        await other.channel("c").refresh()
        await other.put(b"x")
        messages = await taken(queue, MANY)
        server: Any = owner
        [share] = [share for each in server._remote.owner.clients for share in each.shares if share.holding]
        before = [(run.number, run.left) for run in share._lent]
        for those in (messages, messages[10:20], messages[::2]):
            with pytest.raises(aiodq.QueueFull):
                async with client.transaction() as tx:
                    tx.ack_many(those)
                    tx.put("other", b"x")
            assert [(run.number, run.left) for run in share._lent] == before
        for message in messages[:3]:
            assert share._lent.place_of(share._owner.epoch, message.offset, before[0][0] + message.offset)[0].bodies
        await queue.ack_many(messages)
        assert await counts(queue) == (0, 0, 0)


async def test_of_what_a_transaction_leaves_those_are_not_lent_again_that_are_no_longer_in_flight(
    tmp_path: Path,
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        messages = await taken(queue, 5)
        server: Any = owner
        [share] = [share for each in server._remote.owner.clients for share in each.shares if share.holding]
        [run] = share._lent
        [part] = share.held.reserve(share._owner.epoch, [Range(run.offset, run.number, 5)])
        assert share.holding == 0
        share._channel_engine.state.nack(messages[2].offset, 1)
        share.held.keep(part)
        assert share.holding == 4
        await until(lambda: [message.held for message in messages] == [True, True, False, True, True])


async def test_what_waits_for_the_outcome_of_a_cancelled_transaction_is_sent_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    full = aiodq.StoreOptions(sync="os", max_messages=1)
    turn = most = sent = 0
    send = SettlementSender.send

    def sending(self: SettlementSender, settling: SentSettlement) -> None:
        nonlocal most, sent, turn
        if settling.make is not None and self._settling.decided(settling.numbers):
            sent, turn = sent + 1, turn + 1
            most = max(most, turn)
        send(self, settling)

    async def others() -> None:
        nonlocal turn
        while True:
            turn = 0
            await asyncio.sleep(0)

    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), client.topic("other", full)
        await other.channel("c").refresh()
        await other.put(b"x")
        messages = await taken(queue, MANY)

        async def commit() -> None:
            async with client.transaction() as tx:
                tx.ack_many(messages)
                tx.put("other", b"x")

        committing = asyncio.create_task(commit())
        await until(lambda: not messages[0].held)
        await queue.refresh()  # by now the owner waits for room
        monkeypatch.setattr(SettlementSender, "send", sending)
        committing.cancel()
        await asyncio.wait([committing])
        other_turns = asyncio.create_task(others())
        for message in messages:
            message.nack_nowait()
        await until(lambda: sent == MANY)
        await queue.sync()
        assert await counts(queue) == (MANY, 0, 0)
        other_turns.cancel()
    assert most == 1


async def test_what_waits_for_the_outcome_of_a_cancelled_transaction_is_sent_though_one_turn_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does without memory for a packet: all of it is sent again over another connection."""
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    full = aiodq.StoreOptions(sync="os", max_messages=1)
    send, left = SettlementSender.send, 3

    def sending(self: SettlementSender, settling: SentSettlement) -> None:
        nonlocal left
        if settling.make is not None and self._settling.decided(settling.numbers):
            left -= 1
            if not left:
                raise MemoryError
        send(self, settling)

    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue, other = client.queue("jobs"), client.topic("other", full)
        await other.channel("c").refresh()
        await other.put(b"x")
        messages = await taken(queue, 10)

        async def commit() -> None:
            async with client.transaction() as tx:
                tx.ack_many(messages)
                tx.put("other", b"x")

        committing = asyncio.create_task(commit())
        await until(lambda: not messages[0].held)
        await queue.refresh()  # by now the owner waits for room
        monkeypatch.setattr(SettlementSender, "send", sending)
        committing.cancel()
        await asyncio.wait([committing])
        await asyncio.gather(*(message.nack() for message in messages))
        await queue.sync()
        assert await counts(queue) == (10, 0, 0)
    assert left < 0


async def test_what_waits_is_sent_though_the_connection_ends_amid_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue: Any = client.queue("jobs")
        await client.topic("other").channel("c").refresh()
        messages = await taken(queue, MANY)

        async def commit() -> None:
            async with client.transaction() as tx:
                tx.ack_many(messages)
                tx.put("other", b"x")

        committing = asyncio.create_task(commit())
        while messages[0].held:
            await asyncio.sleep(0)
        for _ in range(4):  # by now the owner has it, and commits it
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        for message in messages:
            message.nack_nowait()
        while not queue._remote._settling.later:
            await asyncio.sleep(0)
        assert not queue._remote.holdings
        queue._remote._topic.link._wire.close()
        await queue.sync()
        assert await counts(queue) == (0, 0, 0)


async def test_very_many_messages_are_given_back_in_parts_that_come_to_all_of_them(
    tmp_path: Path, released: list[int]
) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue: Any = client.queue("jobs")
        messages = await taken(queue, MANY)
        await messages[7].ack()
        first = messages[0]._delivery
        queue._remote.give_back([range(first, first + MANY)])
        await queue._remote.all_settled()
        assert await counts(queue) == (MANY - 1, 0, 0)
    assert sum(released) == MANY - 1
    assert max(released) == 50


async def test_what_comes_for_a_channel_that_has_ended_is_given_back_in_parts(
    tmp_path: Path, released: list[int]
) -> None:
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue: Any = client.queue("jobs")
        await queue.refresh()
        with queue._remote.wanting(MANY):
            queue._remote._demand.want()
            await queue.refresh()
            client._store_engine.link.detach("jobs", "default", queue._remote)  # type: ignore[attr-defined]
            await owner.queue("jobs").put_many([b"%d" % number for number in range(MANY)])
            await until(lambda: sum(released) == MANY)
        assert max(released) == 50
        found: list[bytes] = []
        while len(found) < MANY:
            found += [message.body for message in await owner.queue("jobs").get_many(MANY)]
        assert found == [b"%d" % number for number in range(MANY)]


async def test_others_have_their_turns_while_very_many_messages_are_claimed(tmp_path: Path) -> None:
    turns, most = 0, 0
    grant = Resuming._grant

    def granted(self: Resuming, *args: Any, **named: Any) -> int | None:
        nonlocal most, turns
        turns += 1
        most = max(most, turns)
        return grant(self, *args, **named)

    async def others() -> None:
        nonlocal turns
        while True:
            turns = 0
            await asyncio.sleep(0)

    path = tmp_path / "s"
    async with two(path, QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        queue: Any = client.queue("jobs")
        await taken(queue, MANY)
        async with aiodq.open(path, QUICK, mode="shared"):
            other = asyncio.create_task(others())
            with mock.patch.object(resuming, "LONGEST_TURN", 0.0), mock.patch.object(Resuming, "_grant", granted):
                await owner.aclose()
                await queue._remote.known()
                await queue.refresh()
            other.cancel()
            assert queue._remote.in_hand == MANY
        assert most == 1


async def test_what_is_sent_in_turns_is_sent_once_and_nothing_of_it_once_an_owner_is_told_anew_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    settling, sent = Settling(), list[SentSettlement]()
    those = [SentSettlement([range(number, number + 1)], None) for number in range(3)]
    settling.send_in_turns(those, sent.append)
    settling.send_in_turns(those[1:], sent.append)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == those
    settling.send_in_turns(those, sent.append)
    settling.later.clear()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == [*those, those[0]]
