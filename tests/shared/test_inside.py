"""The owner's own process: it talks to itself without a socket, and nothing else is different."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.topic.commit.syncer import Syncer
from aiodq.shared.connection import link
from aiodq.shared.server.client_connection import ClientConnection
from aiodq.shared.server.inside import Inside, _Direction
from aiodq.shared.server.session import Session
from aiodq.wire.packets import Call, Done, Fail, Ping, Pong, Want
from aiodq.wire.stream import encode_packet
from tests.shared.support import NO_SOCKET, PATIENCE, QUICK, RawClient, owned, until

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.engine.loop.sync_backend import Synced
    from aiodq.shared.connection.wires.link_wire import LinkWire
    from aiodq.shared.server.owner import Owner
    from aiodq.wire.packets import Packet
    from aiodq.wire.stream import Received


class Heard:
    """A link's half of a connection, and all that it hears."""

    def __init__(self) -> None:
        self.said: list[Received] = []
        self.ended = False

    def note_alive(self) -> None:
        """Every packet says so."""

    def receive(self, packet: Received) -> None:
        self.said.append(packet)

    def lost(self, _wire: LinkWire) -> None:
        self.ended = True


class Transport:
    """Notes what is written to a connection, and what else is done."""

    def __init__(self, done: list[object]) -> None:
        self.done = done

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")


def wire_of(store: aiodq.Store) -> Any:
    return store._store_engine.link._wire  # type: ignore[attr-defined]  # it stands in its place


def connected(owner: Owner, link: Heard) -> Inside:
    inside = owner.connect(link)
    assert inside is not None
    return inside


async def test_the_owner_asks_itself_without_a_socket_and_goes_on_with_the_next_one(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path / "s", QUICK, mode="shared") as other:
        first = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
        assert isinstance(wire_of(other), Inside)
        assert not isinstance(wire_of(first), Inside)
        await other.queue("jobs").put(b"0")
        message = await first.queue("jobs").get()
        await other.aclose()
        await message.ack()
        assert isinstance(wire_of(first), Inside)
        assert await first.queue("jobs").put(b"1") == 1
        assert [each["owner"] for each in (await first._remote.link.call("who"))["result"]["clients"]] == [True]  # type: ignore[attr-defined]  # of the shared half
        await first.aclose()


async def test_both_ends_have_no_object_in_common_that_one_may_change(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        link, facts = Heard(), {"rows": [1]}
        inside = connected(owner, link)
        inside.other.send(Done(None, facts), 1)
        inside.other.send(Done((0, 1)), 2)
        facts["rows"].append(2)
        await until(lambda: len(link.said) == 2)
        assert link.said == [(Done(None, {"rows": [1]}), 1), (Done((0, 1)), 2)]
        with pytest.raises(aiodq.ProtocolError, match="JSON"):
            inside.send(Call("x", {"y": "z" * (1 << 21)}), 3)
        inside.close()
        await inside.other.ended()
        assert link.ended
        assert not owner.clients


async def test_what_was_sent_before_the_end_is_handed_over_and_nothing_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Packet] = []
    monkeypatch.setattr(Session, "receive", lambda _, received: taken.append(received.packet))
    for by_owner in (False, True):
        taken.clear()
        async with owned(tmp_path / f"s{by_owner}") as (_, owner):
            link = Heard()
            inside = connected(owner, link)
            inside.send(Ping(1), 1)
            inside.other.send(Pong(1))
            (inside.other.end if by_owner else inside.close)()
            inside.send(Ping(2), 2)
            inside.other.send(Pong(2))
            await inside.other.ended()
            assert taken == ([] if by_owner else [Ping(1)])
            assert link.said == ([(Pong(1), 0)] if by_owner else [])


async def test_an_owner_that_closes_connects_nobody(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        await owner.close()
        assert owner.connect(Heard()) is None


async def test_what_is_against_the_protocol_ends_the_connection(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        link = Heard()
        inside = connected(owner, link)
        inside.send(Want(1, 1), 1)
        inside.send(Ping(1), 2)
        await inside.other.ended()
        [(said, request)] = link.said
        assert (isinstance(said, Fail) and said.name, request, link.ended) == ("ProtocolError", 0, True)


async def test_an_accident_ends_the_connection_and_the_put_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store, asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        await queue.put(b"0")

        def fails(_: Session, packet: Received) -> None:
            raise RuntimeError(repr(packet))

        monkeypatch.setattr(Session, "receive", fails)
        putting = asyncio.ensure_future(queue.put(b"1"))
        while not reported:
            await asyncio.sleep(0)
        monkeypatch.undo()
        assert await putting == 1
        assert [message.body async for message in queue.scan()] == [b"0", b"1"]
    assert [type(each["exception"]) for each in reported] == [RuntimeError]


async def test_what_is_sent_soon_goes_before_all_else_and_before_the_end(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (_, owner):
        done: list[object] = []
        connection = ClientConnection(owner, NO_SOCKET, owner.incoming, owner.gone)
        connection.connection_made(Transport(done))
        connection.send_soon(Done((0, 1)), 1)
        connection.send_soon(Done((1, 1)), 2)
        assert not done
        connection.send(Pong(1), 3)
        connection.send_soon(Done((2, 1)), 4)
        await asyncio.sleep(0)
        connection.send_soon(Done((3, 1)), 5)
        connection.end()
        packets = [encode_packet(Done((number, 1)), request) for number, request in enumerate((1, 2, 4, 5))]
        pong = encode_packet(Pong(1), 3)
        assert done == [packets[0] + packets[1] + pong, packets[2], packets[3], "closed"]


async def test_the_next_sync_begins_before_those_are_told_whose_puts_the_last_one_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        await store.queue("jobs").put(b"0")
        first, second = [await RawClient.connected(tmp_path / "s") for _ in range(2)]
        for number, client in enumerate((first, second), 7):
            await client.hello(number)
            await client.open(1, "jobs")
        done: list[str] = []
        held: list[tuple[Synced, int]] = []
        start, send, send_now = Syncer.start, ClientConnection.send, ClientConnection._send_now

        def starting(self: Syncer, log: Synced, end: int, _then: object = None) -> None:
            done.append("sync")
            if held:
                start(self, log, end)
            else:
                held.append((log, end))
                self.busy = True

        def telling(self: ClientConnection, said: Packet, request: int = 0) -> None:
            done.extend(["told"] if isinstance(said, Done) else [])
            send(self, said, request)

        def telling_soon(self: ClientConnection, *last: bytes) -> None:
            done.extend(["told"] if self._soon else [])
            send_now(self, *last)

        monkeypatch.setattr(Syncer, "start", starting)
        monkeypatch.setattr(ClientConnection, "send", telling)
        monkeypatch.setattr(ClientConnection, "_send_now", telling_soon)
        engine = owner.engine.topics["jobs"]
        answers = [first.put(1, 1, [b"1"])]
        await until(lambda: held)
        answers.append(second.put(1, 1, [b"2", b"3"]))
        await until(lambda: engine.put_buffer.next_batch() is not None)
        start(engine.syncer, *held[0])
        for client, number in zip((first, second), answers, strict=True):
            assert isinstance(await client.answer(number), Done)
            await client.close()
        assert done == ["sync", "sync", "told", "told"]


@pytest.mark.parametrize("direction", ["_there", "_back"])
async def test_a_connection_goes_on_though_an_interrupt_came_instead_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    """As of Ctrl-C in a notebook, whose loop goes on: it forgets the callback that the interrupt came instead of."""
    monkeypatch.setattr(link, "_STALL", 0.5)
    turn, forgotten = _Direction._turn, asyncio.Event()

    def forgets(self: _Direction) -> None:
        if forgotten.is_set() or self is not getattr(wire_of(store), direction):
            turn(self)
        else:
            forgotten.set()

    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path / "s", mode="shared") as store:
        jobs = store.queue("jobs")
        assert await jobs.put(b"0") == 0
        monkeypatch.setattr(_Direction, "_turn", forgets)
        putting = asyncio.create_task(jobs.put(b"1"))
        await forgotten.wait()
        assert await putting == 1
        assert [(await jobs.get()).body for _ in range(2)] == [b"0", b"1"]


async def test_a_handler_that_holds_up_the_loop_keeps_its_message(tmp_path: Path) -> None:
    attempts: list[int] = []

    async def compute(message: aiodq.Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 5:  # else it would be handed out anew for ever
            time.sleep(0.3)  # noqa: ASYNC251 - what a handler is not to do, and does

    options = aiodq.ChannelOptions(visibility_timeout=0.1)
    async with aiodq.open_queue(tmp_path, QUICK, options, mode="shared") as jobs:
        await jobs.put(b"a")
        consuming = asyncio.create_task(jobs.consume(compute))
        async with asyncio.timeout(PATIENCE):
            await jobs.join()
            await jobs.stop()
            await consuming
        assert attempts == [1]
