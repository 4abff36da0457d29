"""Others than aiodq on a store's socket, or another aiodq: each is named in words, and disturbs nobody."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.errors import ProtocolError
from aiodq.shared.administration import visitors_of
from aiodq.shared.connection import link
from aiodq.shared.connection.finding.rendezvous import connect, listen
from aiodq.shared.encoding.answers import read_held, understood
from aiodq.shared.encoding.options_json import topic_options
from aiodq.shared.server import owner
from aiodq.wire.layout import PACKET, VERSION
from aiodq.wire.packets import Call, Done, Fail, Hello, Open, Ping, Pong, Welcome
from aiodq.wire.stream import PacketReader, encode_packet
from tests.shared.support import PATIENCE, RawClient

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from aiodq.wire.packets import Packet

    Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

pytestmark = pytest.mark.slow_on_uvloop  # what is said and understood is the same on each loop

QUICK = aiodq.StoreOptions(sync="os")
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
UNKNOWN = PACKET.pack(PACKET.size, 0x7F, 0, 0, 1)
FOREIGN = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", TLS, b"\0", bytes(60_000), UNKNOWN]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Return a store that nobody has open."""
    async with aiodq.open(tmp_path / "s", QUICK) as store:
        await store.queue("jobs").put(b"x")
    return tmp_path / "s"


@asynccontextmanager
async def served(store: Path, talk: Talk) -> AsyncIterator[None]:
    """Have something that is no owner answer where the owner would be."""
    listening = listen(str(store))

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # who hears that may be gone before the end
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(closing, sock=listening.sock)
    try:
        yield
    finally:
        server.close()
        listening.close()


async def heard(reader: asyncio.StreamReader) -> Hello:
    """Return how a client introduces itself."""
    packets = PacketReader()
    while not (found := list(packets.feed(await reader.read(1 << 16)))):
        pass
    said = found[0].packet
    assert isinstance(said, Hello)
    return said


async def test_who_closes_at_once_is_no_owner(store: Path) -> None:
    async def talk(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        return

    async with served(store, talk):
        with pytest.raises(aiodq.OwnerLostError, match=r"0\.2 s") as raised:
            async with asyncio.timeout(PATIENCE):
                await aiodq.open(store, mode="client", failover=0.2)
        assert raised.value.retriable


async def test_who_says_nothing_is_stalled(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_STALL", 0.2)

    async def talk(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with served(store, talk):
        with pytest.raises(aiodq.OwnerStalledError):
            async with asyncio.timeout(PATIENCE):
                await aiodq.open(store, mode="client")


async def test_another_user_is_told_why_it_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions of the socket keep others away, unless somebody changes them."""

    def refuse(_: socket.socket, path: str, __: int) -> None:
        raise ProtocolError(f"the process at {path} is of user 1, and the store of user 2")

    async with aiodq.open(tmp_path, QUICK, mode="shared"):
        monkeypatch.setattr(owner, "check_client", refuse)
        for mode in "client", "shared":
            with pytest.raises(ProtocolError, match="is of user 1, and the store of user 2"):
                async with asyncio.timeout(PATIENCE):
                    await aiodq.open(tmp_path, mode=mode, failover=0.2)


@pytest.mark.parametrize("said", FOREIGN, ids=["http", "tls", "one byte", "zeros", "unknown"])
async def test_who_talks_otherwise_is_named(store: Path, said: bytes) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with served(store, talk):
        with pytest.raises(aiodq.OwnerLostError if said == b"\0" else aiodq.ProtocolError):
            async with asyncio.timeout(PATIENCE):
                await aiodq.open(store, mode="client", failover=0.2)


async def test_an_owner_of_a_version_that_was_not_offered_is_refused(store: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(encode_packet(Welcome(VERSION + 1, 1, 2, 1 << 20, 0), 1))
        await reader.read()

    async with served(store, talk):
        with pytest.raises(aiodq.ProtocolError, match=f"speaks version {VERSION}, and the owner version {VERSION + 1}"):
            async with asyncio.timeout(PATIENCE):
                await aiodq.open(store, mode="client", failover=0.2)


async def test_what_an_owner_of_another_version_says_is_told(store: Path) -> None:
    text = "this owner speaks version 9, the client 1 to 1"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await heard(reader)).newest == VERSION
        writer.write(
            encode_packet(Fail("ProtocolError", retriable=False, errno=0, position=-1, pid=0, path="", text=text), 0)
        )

    async with served(store, talk):
        with pytest.raises(aiodq.ProtocolError, match=text):
            async with asyncio.timeout(PATIENCE):
                await aiodq.open(store, mode="client", failover=0.2)


async def test_a_client_of_another_version_is_told_what_to_do(store: Path) -> None:
    async with aiodq.open(store, mode="shared"):
        client = await RawClient.connected(store)
        client.send(Hello(VERSION + 2, VERSION + 1, 1, 7, 0, "newer"))
        said = await client.hear(Fail)
        assert "have all processes run one version of aiodq, or one and the next" in said.text
        await client.close()


async def test_strangers_that_connect_disturb_nobody(store: Path) -> None:
    async with aiodq.open(store, mode="shared") as owner, aiodq.open(store, mode="client") as other:
        strangers = []
        for said in (b"", *FOREIGN):
            reader, writer = await asyncio.open_unix_connection(sock=connect(str(store)))
            writer.write(said)
            strangers.append((reader, writer, said))
        good = await RawClient.connected(store)
        await good.hello()
        assert await good.ask(Ping(3)) == Pong(3)
        assert await other.queue("jobs").put(b"y") == 1
        assert await owner.queue("jobs").put(b"z") == 2
        for reader, writer, said in strangers:
            if len(said) > 1:  # less is the beginning of a packet
                async with asyncio.timeout(PATIENCE):
                    assert b"ProtocolError" in await reader.read()
            writer.close()
        await good.close()


HEALTH = {
    "ok": True, "reasons": [], "failed": None, "oldest_age": None, "depth": 0, "disk_free": None, "sync_latency": 0.0,
}  # fmt: skip
STORE: dict[str, Any] = {"topics": [], "more": False, "failed": None, "transactions": 0, "health": HEALTH}
TOPIC: dict[str, Any] = {"window": 10, "options": topic_options(QUICK)}


async def answer(said: Packet, wrong: dict[str, Any]) -> Packet:
    """Answer as an owner does, but for what is said to be wrong."""
    if isinstance(said, Hello):
        return Welcome(VERSION, 1, 7, 1 << 26, 0)
    if isinstance(said, Open):
        key = "channel" if said.channel else "topic"
        return Done(None, wrong.get(key, {"options": {}, "paused": False} if said.channel else TOPIC))
    if isinstance(said, Call):
        return Done(None, {"result": wrong.get(said.name, STORE if said.name == "store" else None)})
    return Done(None, wrong.get(type(said).__name__, {}))


@asynccontextmanager
async def wrongly_answered(store: Path, wrong: dict[str, Any]) -> AsyncIterator[None]:
    """Have an owner there that gives such answers."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets = PacketReader()
        packets.largest = 1 << 26
        while data := await reader.read(1 << 16):
            for said, request in packets.feed(data):
                if request:
                    writer.write(encode_packet(await answer(said, wrong), request))

    async with served(store, talk):
        yield


@pytest.mark.parametrize(
    "said",
    [
        {}, [], None, 5, {**STORE, "topics": 5}, {**STORE, "topics": [5]}, {**STORE, "topics": [], "more": True},
        {**STORE, "more": 1}, {"more": False},
    ],
    ids=str,
)  # fmt: skip
async def test_a_store_described_wrongly_is_refused_in_words(said: object, store: Path) -> None:
    async with wrongly_answered(store, {"store": said}), asyncio.timeout(PATIENCE):
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to store"):
            await aiodq.open(store, mode="client", failover=5)


@pytest.mark.parametrize(
    ("otherwise", "ask"),
    [
        ({"health": {}}, aiodq.Store.health),
        ({"health": None}, aiodq.Store.health),
        ({"transactions": "x"}, aiodq.Store.stats),
        ({"transactions": None}, aiodq.Store.stats),
    ],
    ids=["no health", "none at all", "transactions in words", "no number"],
)
async def test_what_is_seldom_asked_is_looked_at_then(
    otherwise: dict[str, Any], ask: Callable[[aiodq.Store], object], store: Path
) -> None:
    async with (
        wrongly_answered(store, {"store": {**STORE, **otherwise}}),
        asyncio.timeout(PATIENCE),
        aiodq.open(store, mode="client", failover=5) as client,
    ):
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to store"):
            getattr(client, ask.__name__)()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"store": {**STORE, "topics": ["t"]}, "stats": 5}, "stats"),
        ({"store": {**STORE, "topics": ["t"]}, "stats": {"held": [[1]]}}, "stats"),
    ],
    ids=["a number", "half of it"],
)
async def test_a_topic_described_wrongly_is_refused_in_words(wrong: dict[str, Any], what: str, store: Path) -> None:
    async with wrongly_answered(store, wrong), asyncio.timeout(PATIENCE):
        with pytest.raises(aiodq.ProtocolError, match=f"this is no answer to {what}"):
            await aiodq.open(store, mode="client", failover=5)


@pytest.mark.parametrize("said", [{"options": 5}, {"options": {"sync": 5}}, {"options": []}], ids=str)
async def test_who_waits_for_a_topic_opened_wrongly_is_told(said: object, store: Path) -> None:
    async with (
        wrongly_answered(store, {"topic": said, "channel": said}),
        asyncio.timeout(PATIENCE),
        aiodq.open(store, mode="client", failover=5) as client,
    ):
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to OPEN"):
            await client.queue("jobs").get()
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to OPEN"):
            await client.topic("jobs").settle_in()


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("view", lambda store: store.topic("jobs").read(0)),
        ("requeue_dead", lambda store: store.requeue_dead("jobs")),
        ("letters", lambda store: store.requeue_dead("jobs", where=bool)),
        ("drain", lambda store: store.drain()),
        ("who", visitors_of),
        ("purge", lambda store: store.topic("jobs").purge()),
        ("offset_at", lambda store: store.topic("jobs").offset_at(datetime.now(UTC))),
        ("peek", lambda store: store.queue("jobs").peek()),
        ("deferred", lambda store: anext(store.queue("jobs").deferred_messages())),
    ],
    ids=["view", "requeue_dead", "letters", "drain", "who", "purge", "offset_at", "peek", "deferred"],
)  # fmt: skip
@pytest.mark.parametrize("said", [{}, "x", [1], [1.5, 2], {"owner": {"pid": 1}, "clients": [{}]}], ids=str)
async def test_what_is_answered_wrongly_is_told_in_words(
    name: str, ask: Callable[[Any], Awaitable[object]], said: object, store: Path
) -> None:
    async with (
        wrongly_answered(store, {name: said}),
        asyncio.timeout(PATIENCE),
        aiodq.open(store, mode="client", failover=5) as client,
    ):
        with pytest.raises(aiodq.ProtocolError, match=f"this is no answer to {name}"):
            await ask(client)


@pytest.mark.parametrize(
    "said",
    [
        *({"held": rows} for rows in (5, [[1]], [[0, 1, 2]], [[0, 1, 1 << 62]], [["a", 1, 1]])),
        *({"elsewhere": offsets} for offsets in (5, [[1]], ["a"])),
    ],
    ids=str,
)
def test_no_owner_leaves_more_with_a_client_than_that_asked_for(said: object) -> None:
    with pytest.raises(aiodq.ProtocolError, match="this is no answer to RESUME"):
        understood(partial(read_held, most=1), [said], "RESUME")
    said = [{"held": [[0, 7, 2]], "elsewhere": [3]}, {"held": [[5, 9, 1]], "elsewhere": [6, 8]}, {}]
    assert understood(partial(read_held, most=3), said, "RESUME") == ({0: 7, 1: 8, 5: 9}, {3, 6, 8})
