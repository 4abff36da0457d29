"""Owners and clients of a shared store that talk to anything: right packets, wrong ones, and what is not one at all.

`python -m tests.fuzz.conversations [--packets N] [--seed N]` says so many to owners and to clients. Meanwhile others
are served, what they put is there, and nothing fails but with an error of aiodq.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.connection import link
from aiodq.shared.connection.finding.rendezvous import listen
from aiodq.shared.encoding.options_json import topic_options
from aiodq.shared.encoding.remote_errors import error_facts
from aiodq.shared.server.owner import Owner
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import (
    Ack,
    Call,
    Deliver,
    Done,
    Fail,
    Figures,
    Gone,
    Handover,
    Hello,
    Item,
    Nack,
    Open,
    Packet,
    Pong,
    Put,
    Range,
    Release,
    Resume,
    Touch,
    Txn,
    Want,
    Welcome,
)  # fmt: skip
from aiodq.wire.stream import PacketReader, encode_packet
from tests.shared.support import NO_PROCESS, NO_SOCKET, PATIENCE, RawClient, as_said
from tests.wire.support import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
    from random import Random

    from aiodq.shared.server.client_connection import ClientConnection

__all__ = ["EVERY", "cut_short", "nothing_unexpected", "say_to_clients", "say_to_owner"]

_OPTIONS: Final = aiodq.StoreOptions(sync="os", segment_bytes=100_000)
_A_STORE: Final = 20_000
"""Packets after which there is another store: what they say makes topics."""

_TALK: Final = 40
_WRONG: Final = 0.3
_TURNS: Final = 3
_FRAMES: Final = encode_messages(Columns([b"one", b"two"]), 1)

EVERY: Final = [encode_packet(said, 5) for said in EXAMPLES.values()]
"""A packet of every kind."""


# --- what is said


def wrong(rng: Random, data: bytes) -> bytes:
    """Return bytes that are no longer right, or not those that were meant."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at : at + 4] = rng.choice((b"\0" * 4, b"\xff" * 4, b"\0\0\0\x80", b"\xff\xff\xff\x7f"))
            case 3:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
            case 4:
                del changed[at : at + rng.randint(1, 9)]
                changed = changed or bytearray(b"\0")
            case _:  # the length still fits: it gets deeper
                changed[12 + at % max(len(changed) - 12, 1) :] = rng.randbytes(len(changed[12:]) // 2)
                changed[:4] = len(changed).to_bytes(4, "little")
    return bytes(changed)


def small(rng: Random, said: Any) -> Any:
    """Return a packet with other numbers, most of which mean something."""
    changes: dict[str, Any] = {}
    for field in fields(said):
        value = getattr(said, field.name)
        if field.name == "handle":
            changes["handle"] = rng.choice((1, 1, 2, 2, 2, 3, 0))
        elif field.name == "epoch":
            changes["epoch"] = rng.choice((value, 1, 0))
        elif isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.3:
            changes[field.name] = rng.choice((0, 1, 2, value, rng.randrange(20)))
    return replace(said, **changes)


def said_by_client(rng: Random, epoch: int) -> bytes:
    """Return something that a client might say, or might not."""
    runs = tuple(Range(rng.randrange(9), rng.randrange(20), rng.randint(1, 3)) for _ in range(rng.randint(1, 2)))
    items = tuple(Item(one.first, one.delivery, rng.choice((-1, 0, 10**6)), 1) for one in runs)
    known: list[Packet] = [
        Put(1, rng.randrange(50), 2, _FRAMES), Want(2, rng.randrange(30)), Ack(2, epoch, runs), Release(2, epoch, runs),
        Nack(2, epoch, items), Touch(2, epoch, items), Resume(2, epoch, ()), Open(rng.randrange(5), "theirs", "", {}),
        Open(rng.randrange(9), rng.choice(("theirs", "gone")), rng.choice(("", "c", "d")), {}, rng.random() < 0.7),
        Open(rng.randrange(9), "theirs", "", {"uuid": rng.choice(("another", 3, None))}, existing=True),
        Open(rng.randrange(9), "theirs", "c", {"made": rng.choice(("another", 3, None))}, existing=True),
        Txn(rng.choice((1, 2, 1 << 40, 7)), (Ack(2, epoch, runs),)[: rng.randrange(2)], (Put(1, 0, 2, _FRAMES),)),
        Call("withdraw", {"sequence": rng.choice((1, 2, 1 << 40))}), Call("events", {"listener": rng.randrange(3)}),
        Call("deaf", {"listener": rng.randrange(3)}), Call("letters", {"topic": "theirs", "from": rng.randrange(3)}),
        Call("requeue_these", {"topic": "theirs", "offsets": [rng.randrange(9)]}), Call("ended", {"handle": 2}),
        Call(rng.choice(("refresh", "purge", "stats", "seek", "back", "who", "commit")), {"handle": rng.randrange(4)}),
    ]  # fmt: skip
    return _encoded(rng, rng.choice(known) if rng.random() < 0.6 else rng.choice(list(EXAMPLES.values())))


def said_by_owner(rng: Random, epoch: int) -> bytes:
    """Return something that an owner might say, or might not."""
    runs = (Range(rng.randrange(9), rng.randrange(20), rng.randint(1, 3)),)
    known: list[Packet] = [
        Deliver(rng.randint(1, 4), 1, rng.randrange(50), rng.randrange(50), _FRAMES),
        Gone(rng.randint(1, 4), epoch, runs),
        Figures(rng.randint(1, 4), *(rng.randrange(9) for _ in range(6))),
        *(Pong(1), Done(), Done((rng.randrange(9), 2)), Handover(epoch)),
        Done(None, error_facts(aiodq.CorruptionError("x", "p", 3))),
        Done(None, {"result": {"events": rng.choice(([], [{}], [{"kind": "dead"}])), "dropped": 0}}),
        Done(None, {"held": [[rng.randrange(9)] * rng.randrange(4)]}),
        Done(None, {"result": rng.choice((None, {}, [], 3))}),
        Fail("QueueFull", retriable=True, errno=0, position=-1, pid=0, path="", text="no room"),
    ]
    return _encoded(rng, rng.choice(known) if rng.random() < 0.7 else rng.choice(list(EXAMPLES.values())))


def _encoded(rng: Random, said: Packet) -> bytes:
    try:
        data = encode_packet(small(rng, said), rng.randrange(40))
    except Exception:  # noqa: BLE001 - numbers that fit no packet
        data = encode_packet(said, rng.randrange(40))
    return wrong(rng, data) if rng.random() < _WRONG else data


# --- to an owner


class _Pipe:
    """The transport of a connection at whose other end nobody reads."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._closing = False
        self.sent = 0
        connection.connection_made(self)

    def write(self, data: bytes) -> None:
        self.sent += len(data)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 1  # the loop is to answer

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close


async def _talk_to(owner: Owner, rng: Random, pieces: Sequence[bytes], *, introduced: bool) -> None:
    """Say these bytes over a connection of their own, and be gone."""
    connection = owner._connected(NO_SOCKET)
    pipe = _Pipe(connection)
    begin: list[Packet] = [Hello(1, 1, NO_PROCESS, rng.randrange(3), 0, "")]
    begin += [Open(1, "theirs", "", {}), Open(2, "theirs", "c", {})]
    for number, said in enumerate(begin if introduced else (), 1):
        connection.data_received(encode_packet(said, number))
    for piece in pieces:
        if pipe.is_closing():
            break
        connection.data_received(piece)
        for _ in range(rng.randrange(_TURNS)):
            await asyncio.sleep(0)
    pipe.close()
    async with asyncio.timeout(PATIENCE):
        await connection.ended()


async def say_to_owner(packets: int, rng: Random) -> int:
    """Say so many packets to owners, of which some are none; return how many it were."""
    said = 0
    while said < packets:
        async with _store() as (directory, store, owner):
            good = await RawClient.connected(directory)
            await good.hello(99)
            await good.open(1, "mine")
            most, number = said + min(_A_STORE, packets - said), 0
            while said < most:
                pieces = [said_by_client(rng, owner.epoch) for _ in range(min(rng.randint(1, _TALK), most - said))]
                await _talk_to(owner, rng, pieces, introduced=rng.random() < 0.9)
                said += len(pieces)
                if not number or rng.random() < 0.05:
                    number += 1
                    assert await good.answer(good.put(1, number, [b"%d" % number])) == Done((number - 1, 1))
            mine = [int(message.body) async for message in store.topic("mine").scan()]
            assert mine == list(range(1, number + 1))
            await good.close()
    return said


async def cut_short(rng: Random) -> int:
    """Say every beginning of every packet to an owner, and be gone; return how many those are."""
    said = 0
    async with _store() as (_, store, owner):
        for data in EVERY:
            for size in range(len(data)):
                await _talk_to(owner, rng, [data[:size]], introduced=size % 2 == 0)
                said += 1
        assert await store.topic("mine").put(b"x") == 0
        assert not owner.clients
    return said


@asynccontextmanager
async def _store() -> AsyncIterator[tuple[Path, aiodq.Store, Owner]]:
    with tempfile.TemporaryDirectory(dir=_memory(), ignore_cleanup_errors=True) as name:
        directory = Path(name) / "s"
        async with aiodq.open(directory, _OPTIONS) as store:
            owner = Owner(store._store_engine)
            await owner.start()
            try:
                with as_said():
                    yield directory, store, owner
            finally:
                await owner.close()


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of its own is made there


# --- to a client


class _NoOwner:
    """Is an owner as long as it takes to be welcome, and then says anything; once that was so much, it is gone.

    Attributes:
        said: how many packets.
    """

    def __init__(self, rng: Random, most: int) -> None:
        self.said = 0
        self._random = rng
        self._most = most

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets, epoch = PacketReader(), self._random.randrange(1, 9)
        packets.largest = 1 << 26
        with suppress(OSError, aiodq.ProtocolError):
            while self.said < self._most and (data := await reader.read(1 << 16)):
                for said, request in packets.feed(data):
                    if isinstance(said, Hello):
                        writer.write(encode_packet(Welcome(1, os.getpid(), epoch, 1 << 26, 0), request))
                    elif self._random.random() < 0.8:
                        writer.write(_answer(self._random, said, request))
                writer.write(b"".join(said_by_owner(self._random, epoch) for _ in range(_TALK)))
                self.said += _TALK
        writer.close()


_HEALTH: Final = {
    "ok": True, "reasons": [], "failed": None, "oldest_age": None, "depth": 0, "disk_free": None, "sync_latency": 0.0,
}  # fmt: skip
_STORE: Final = {"topics": ["theirs"], "more": False, "failed": None, "transactions": 0, "health": _HEALTH}
_OTHERWISE: Final[tuple[Any, ...]] = (None, 5, -1, "x", [], {}, [1], {"x": 1}, 1 << 70, True, [[1, 2, 3]])


def _answer(rng: Random, said: Packet, request: int) -> bytes:
    """Return an answer as an owner gives it, or one of which something is otherwise."""
    if isinstance(said, Put):
        return encode_packet(Done((rng.randrange(9), 1)), request)
    if isinstance(said, Open):
        facts: dict[str, Any] = {"window": 10, "options": topic_options(_OPTIONS) if rng.random() < 0.5 else {}}
        return encode_packet(Done(None, _otherwise(rng, facts)), request)
    if isinstance(said, Call):
        result = _otherwise(rng, _STORE) if said.name == "store" else rng.choice(_OTHERWISE)
        return encode_packet(Done(None, {"result": result}), request)
    return encode_packet(Done(None, _otherwise(rng, {"held": [[0, 1, 1]]})), request)


def _otherwise(rng: Random, facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts of which one is otherwise, mostly."""
    return facts if rng.random() < 0.4 else {**facts, rng.choice(list(facts)): rng.choice(_OTHERWISE)}


async def _use(path: Path) -> None:
    """Do what a program does; what becomes of it is for the owner to say, and it is said in time."""
    with suppress(aiodq.AiodqError, asyncio.QueueFull, asyncio.QueueEmpty, TimeoutError):
        async with asyncio.timeout(0.05), aiodq.open(path, mode="client", failover=0.02) as store:
            queue = store.queue("theirs")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_quietly(queue.put(b"x")))
                tasks.create_task(_quietly(_take(queue)))
                tasks.create_task(_quietly(queue.refresh()))


async def _take(queue: aiodq.Queue) -> None:
    while True:
        await (await queue.get()).ack()


async def _quietly(doing: Any) -> None:
    with suppress(aiodq.AiodqError, asyncio.QueueFull, asyncio.QueueEmpty):
        await doing


async def say_to_clients(packets: int, rng: Random) -> int:
    """Say so many packets to clients, of which some are none; return how many it were."""
    said = 0
    with tempfile.TemporaryDirectory(dir=_memory(), ignore_cleanup_errors=True) as name:
        path = Path(name) / "s"
        async with aiodq.open(path, _OPTIONS) as store:
            await store.queue("theirs").put(b"x")
        while said < packets:
            listening, nobody = listen(str(path)), _NoOwner(rng, rng.randint(1, 30 * _TALK))
            server = await asyncio.start_unix_server(nobody.talk, sock=listening.sock)
            async with asyncio.timeout(PATIENCE):
                await _use(path)
            server.close()
            listening.close()
            said += nobody.said
    return said


# --- as a program


@contextmanager
def nothing_unexpected() -> Iterator[None]:
    """Have what nobody caught be an error."""
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    yield
    assert unexpected == []


async def _watched(saying: Coroutine[Any, Any, int]) -> int:
    with nothing_unexpected():
        return await saying


def main() -> int:
    """Say as much as is wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.conversations", description="Say anything.")
    parser.add_argument("--packets", type=int, default=10_000_000, help="of which half to owners, half to clients")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with mock.patch.object(link, "_STALL", 0.5):
        _say(options.packets, options.seed)
    return 0


def _say(packets: int, seed: int) -> None:
    for name, say in (("owners", say_to_owner), ("clients", say_to_clients)):
        began = time.perf_counter()
        said = asyncio.run(_watched(say(packets // 2, random.Random(seed))))
        print(f"{said:,} packets to {name} in {time.perf_counter() - began:,.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
