"""What a process does when its owner changes, while its tasks go on: thousands of things, in turns of the loop."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.errors import ProtocolError
from aiodq.shared.connection import in_turns as turning
from aiodq.shared.connection.in_turns import in_turns
from aiodq.shared.connection.wires import packet_protocol
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.encoding.remote_errors import is_lost
from aiodq.shared.server.session import Session
from aiodq.wire.packets import Open, Ping, Pong, Put
from aiodq.wire.stream import Received, encode_packet
from tests.shared.support import PATIENCE, QUICK, counts, two, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiodq.shared.connection.wires.link_wire import LinkWire

MANY = 40


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every turn be over with its first step."""
    monkeypatch.setattr(turning, "LONGEST_TURN", 0.0)
    monkeypatch.setattr(packet_protocol, "LONGEST_TURN", 0.0)


def link_of(store: aiodq.Store) -> Any:
    return store._store_engine.link  # type: ignore[attr-defined]  # it stands in its place


async def cut(link: Any) -> None:
    """Cut the connection; nobody has looked for another one when this returns."""
    before = link._wire
    before.abort()
    while link._wire is before:
        await asyncio.sleep(0)


@pytest.mark.usefixtures("short")
async def test_what_is_opened_again_and_what_is_answered_no_more_holds_nobody_up(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link = link_of(client)
        for number in range(MANY):
            await client.queue(f"topic-{number}").refresh()
        await cut(link)
        turns = 0
        while not link._lost.is_set():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= MANY
        await until(lambda: link._welcomed)
        turns = 0
        while not link._ready:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= MANY
        await client.queue("topic-0").refresh()


async def test_what_is_asked_while_there_is_no_owner_is_answered_so_at_once(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link = link_of(client)
        await client.queue("jobs").refresh()
        await cut(link)
        for answer in link.ask(lambda _: Ping(1)), link.request(lambda _: Ping(1), "jobs", "default"):
            assert is_lost(await answer)


async def test_numbers_of_requests_begin_anew_and_those_that_wait_for_an_answer_are_passed_over(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link, queue = link_of(client), client.queue("jobs")
        await queue.refresh()
        await until(lambda: link._pending)
        waiting = dict(link._pending)  # for changes, if there ever are any
        link._pending.last = 0xFFFFFFFE
        assert [await queue.put(b"x") for _ in range(50)] == list(range(50))
        assert max(waiting) < link._pending.last < 100
        assert waiting.items() <= link._pending.items()


@pytest.mark.usefixtures("short")
async def test_a_channel_that_is_new_while_all_is_opened_again_is_opened_after_its_topic(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link = link_of(client)
        for number in range(9):
            await client.topic(f"topic-{number}").settle_in()
        await cut(link)
        while not link._welcomed:
            await asyncio.sleep(0)
        assert not link._handles.get(("topic-8", ""))
        await client.topic("topic-8").channel("new").refresh()
        assert 0 < link._handles["topic-8", ""] < link._handles["topic-8", "new"]


@pytest.mark.parametrize("later", range(4))
@pytest.mark.usefixtures("short")
async def test_what_is_put_into_a_new_topic_just_as_all_is_opened_again_is_sent(tmp_path: Path, later: int) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        link = link_of(client)
        await client.topic("first").put(b"x")
        await cut(link)
        while not link.opened.keys() <= link._handles.keys():
            await asyncio.sleep(0)
        for _ in range(later):
            await asyncio.sleep(0)
        topic = client.topic("new")
        topic.channel("c#ephemeral")
        putting = asyncio.ensure_future(topic.put_nowait(b"x"))
        await asyncio.wait([putting], timeout=PATIENCE / 6)
        link._wire.abort()  # what was not sent would be waited for at closing
        assert putting.done()


@pytest.mark.usefixtures("short")
async def test_what_is_done_while_all_is_opened_again_is_done_once_and_in_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with two(tmp_path / "s", QUICK) as (owner, client), asyncio.timeout(PATIENCE):
        link, hand = link_of(client), list[aiodq.Message]()
        for number in range(15):
            await owner.queue(f"topic-{number}").put_many([b"a", b"b", b"c"])
            hand += await client.queue(f"topic-{number}").get_many(3)
        rng.shuffle(hand)
        await cut(link)
        put = defaultdict[str, list[bytes]](list)
        settling, fresh, acked = list[Any](), list[aiodq.Channel](), 0
        while not link._ready:
            topic = client.topic(f"topic-{rng.randrange(15)}")
            match rng.randrange(5):
                case 0 if hand:
                    hand.pop().ack_nowait()
                    acked += 1
                case 1 if hand:
                    settling.append(asyncio.ensure_future(hand.pop().ack()))
                    acked += 1
                case 2:
                    body = b"%d" % len(put[topic.name])
                    put[topic.name].append(body)
                    settling.append(topic.put_nowait(body))
                case 3 if len(fresh) < 20:
                    topic = client.topic(f"fresh-{len(fresh)}")
                    fresh.append(topic.channel("c#ephemeral"))
                    settling.append(topic.put_nowait(b"for it"))
                case _:
                    await asyncio.sleep(0)
        await asyncio.gather(*settling)
        assert (acked > 0, len(fresh) > 0) == (True, True)
        for channel in fresh:
            assert (await channel.get()).body == b"for it"
        for message in hand:
            await message.touch()
            await message.ack()
        for number in range(15):
            topic = owner.topic(f"topic-{number}")
            await client.queue(topic.name).sync()
            assert [each.body async for each in topic.scan(3)] == put[topic.name]
            assert (await counts(owner.queue(topic.name)))[1] == 0


class ReceivingLink:
    """Hears what comes over a connection."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.over = False

    def note_alive(self) -> None:
        """It is counted by `heard`."""

    def receive(self, packet: Received) -> None:
        said, request = packet
        assert isinstance(said, Pong)
        assert not request
        self.tokens.append(said.token)

    def lost(self, _wire: LinkWire) -> None:
        self.over = True


class Transport:
    """Notes whether it is read from."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.reading, self.closing, self._sock = True, False, sock

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self._sock

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def write(self, data: bytes) -> None:
        """Nobody reads it."""


def connected(hearing: ReceivingLink, transport: Transport) -> SocketWire:
    """Return the client's end of a connection that its link knows of, as it has sent something."""
    wire = SocketWire(hearing)
    wire.connection_made(transport)
    wire.send(Ping(0), 0)
    return wire


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("end", ["read", "more", "lost", "closed"])
async def test_packets_that_come_together_are_heard_in_turns_and_in_order(end: str) -> None:
    hearing, transport = ReceivingLink(), Transport()
    wire = connected(hearing, transport)
    wire.data_received(b"".join(encode_packet(Pong(token)) for token in range(MANY)))
    assert (hearing.tokens, transport.reading) == ([0], False)
    await asyncio.sleep(0)
    assert hearing.tokens == [0, 1]
    if end == "more":
        wire.data_received(encode_packet(Pong(MANY)))
        assert hearing.tokens == list(range(MANY + 1))
    elif end == "lost":
        transport.closing = True
        wire.connection_lost(None)
        assert (hearing.tokens, hearing.over) == (list(range(MANY)), True)
    else:
        if end == "closed":
            wire.close()
        await until(lambda: len(hearing.tokens) == MANY)
        assert hearing.tokens == list(range(MANY))
    await asyncio.sleep(0)
    assert transport.reading is (end in {"read", "more"})


@pytest.mark.usefixtures("short")
async def test_what_arrived_before_a_write_failed_is_heard_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        hearing, transport = ReceivingLink(), Transport(here)
        wire = connected(hearing, transport)
        here.settimeout(0)
        there.sendall(b"".join(encode_packet(Pong(token)) for token in range(MANY)))
        heard = list[int]()
        monkeypatch.setattr(hearing, "lost", lambda _: heard.extend(hearing.tokens))
        transport.closing = True
        wire.connection_lost(BrokenPipeError())
        assert heard == list(range(MANY))


@pytest.mark.usefixtures("short")
async def test_what_is_no_packet_ends_the_connection_in_its_turn() -> None:
    hearing, transport = ReceivingLink(), Transport()
    wire = connected(hearing, transport)
    wire.data_received(encode_packet(Pong(1)) * 20 + b"\xff" * 300)
    await until(lambda: transport.closing)
    assert isinstance(wire.reason, ProtocolError)
    assert hearing.tokens == [1] * 20


@pytest.mark.usefixtures("short")
async def test_steps_end_with_an_error_and_are_left_when_nobody_waits() -> None:
    done = list[int]()

    def steps(*, fails: bool = False) -> Iterator[None]:
        for number in range(5):
            done.append(number)
            yield
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_turns(steps(fails=True))
    await in_turns(steps())
    assert done == [*range(5), *range(5)]
    left = in_turns(steps())
    left.cancel()
    await asyncio.sleep(0.01)
    assert done == [*range(5), *range(5), 0]


@pytest.mark.usefixtures("short")
async def test_a_put_given_up_while_the_rest_is_opened_again_is_not_stored(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link, full = link_of(client), client.topic("full", aiodq.StoreOptions(sync="os", max_messages=1))
        channel = full.channel("c")
        await full.put(b"first")
        waiting = [asyncio.ensure_future(full.put(body)) for body in (b"second", b"third")]
        await full.settle_in()
        for number in range(9):
            await client.topic(f"topic-{number}").put(b"x")
        await cut(link)
        while "full" not in link._repeated:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert not link._ready
        await (await channel.get()).ack()
        await waiting[1]
        assert (await channel.get()).body == b"third"


@pytest.mark.usefixtures("short")
async def test_channels_that_are_there_keep_no_put_waiting_until_they_are_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, receive = list[str](), Session.receive

    def note(session: Session, received: Received) -> None:
        packet: Any = received.packet
        if isinstance(packet, Open | Put):
            said.append(f"{packet.topic}/{packet.channel}" if isinstance(packet, Open) else "put")
        receive(session, received)

    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        channels = [topic.channel(f"channel-{number}") for number in range(20)]
        for channel in channels:
            await channel.refresh()
        monkeypatch.setattr(Session, "receive", note)
        await cut(link_of(client))
        putting = asyncio.ensure_future(topic.put(b"x"))
        while "jobs/channel-3" not in said:
            await asyncio.sleep(0)
        await client.topic("new").put(b"y")
        await putting
        for channel in channels:
            assert (await channel.get()).body == b"x"
    assert said.index("put") < said.index("jobs/channel-0")
    assert said.index("put", said.index("new/")) < said.index("jobs/channel-19")


@pytest.mark.usefixtures("short")
async def test_a_channel_that_is_made_while_no_owner_answers_gets_what_was_put_then(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        topic = client.topic("jobs")
        await topic.channel("there").refresh()
        await cut(link_of(client))
        putting = asyncio.ensure_future(topic.put(b"x"))
        latest = aiodq.ChannelOptions(start="latest")
        made = [topic.channel(name, latest) for name in ("late", "made#ephemeral")]
        await putting
        for channel in made:
            assert (await channel.get()).body == b"x"


@pytest.mark.parametrize("held", [0, 1])
async def test_what_was_on_its_way_as_a_connection_ended_comes_before_newer_messages(tmp_path: Path, held: int) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        link, queue = link_of(client), client.queue("jobs")
        remote: Any = queue._channel_engine
        await queue.put_many([b"a", b"b", b"c"])
        hand = [await queue.get() for _ in range(held)]
        getting = asyncio.ensure_future(queue.get())
        while not remote._demand.wanted > held:
            await asyncio.sleep(0)
        await cut(link)  # after what was wanted, which the owner sends all the same
        hand.append(await getting)
        hand.append(await queue.get())
        assert [(each.body, each.attempts) for each in hand] == [(b"a", 1), (b"b", 1), (b"c", 1)][: held + 2]


@pytest.mark.parametrize("what", ["topic", "channel"])
async def test_what_an_owner_refuses_to_open_again_is_settled_by_nobody(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Session._opened

    def refuse(session: Session, said: Open, request: int) -> None:
        if what == "topic" or said.channel:
            raise aiodq.StorageError("the disk is broken", "jobs")
        opened(session, said, request)

    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put_many([b"a", b"b"])
        hand = await queue.get_many(2)
        remote: Any = queue._channel_engine
        monkeypatch.setattr(Session, "_opened", refuse)
        await cut(link_of(client))
        hand[0].ack_nowait()
        with pytest.raises(aiodq.StorageError, match="broken"):
            await hand[-1].ack()
        await remote.all_settled()
