"""Puts that are answered by the thread that has synced them, before the owner's loop knows."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

import aiodq
from aiodq.engine.batch.put_batch import Part
from aiodq.errors import StoreFailedError
from aiodq.format.columns import Columns
from aiodq.shared.connection.finding.rendezvous import connect
from aiodq.shared.requests.owner_state.client_put_result import ClientPutResult
from aiodq.shared.server.early_answers import EarlyAnswers
from aiodq.storage.io import durable_io
from aiodq.storage.log import active_segment
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Done, Hello, Open, Ping, Put
from aiodq.wire.stream import PacketReader, encode_packet
from tests.shared.support import PATIENCE, TIME, RawClient, owned, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiodq.storage.io.filesystem import File

BY_THREADS = aiodq.StoreOptions(sync_backend="thread")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    for each in (one, other):
        each.settimeout(0)
    with one, other:
        yield one, other


def asked() -> ClientPutResult:
    """Return a put that is to be answered."""
    return ClientPutResult(1, lambda _: None, None)


def said(answers: EarlyAnswers, packet: bytes) -> bool:
    """Have a thread answer a put; return whether it did."""
    answers.send(packet, put := asked())
    return answers.over(put)


def test_a_thread_sends_only_while_it_may(pair: tuple[socket.socket, socket.socket]) -> None:
    answers = EarlyAnswers(pair[0])
    assert not said(answers, b"before")
    answers.allow()
    assert said(answers, b"one")
    assert said(answers, b"two")
    assert answers.forbid() == b""
    assert not said(answers, b"later")
    answers.end()
    answers.allow()
    assert not said(answers, b"behind the end")
    assert pair[1].recv(100) == b"onetwo"


def test_a_client_that_reads_nothing_is_left_to_the_loop(pair: tuple[socket.socket, socket.socket]) -> None:
    answers = EarlyAnswers(pair[0])
    answers.allow()
    for _ in range(1_000_000):
        if not said(answers, bytes(1000)):
            break
    pair[1].recv(1 << 20)
    assert not said(answers, b"out of turn"), "the loop has something to send first"
    pair[1].close()
    answers.allow()
    assert not said(answers, b"to nobody")


def test_what_a_socket_took_half_of_is_sent_to_the_end_before_anything_else() -> None:
    class Half:
        def send(self, packet: bytes, _flags: int) -> int:
            return len(packet) // 2

    answers = EarlyAnswers(cast("socket.socket", Half()))
    answers.allow()
    assert said(answers, b"packet")
    assert not said(answers, b"next")
    answers.allow()
    assert not said(answers, b"next")
    assert answers.forbid() == b"ket"
    answers.allow()
    assert said(answers, b"next")


def test_a_put_whose_answer_a_thread_is_about_to_send_is_not_answered_by_the_loop() -> None:
    sending, go_on = threading.Event(), threading.Event()

    class Slow:
        def send(self, packet: bytes, _flags: int) -> int:
            sending.set()
            assert go_on.wait(PATIENCE)
            return len(packet)

    answers, put, found = EarlyAnswers(cast("socket.socket", Slow())), asked(), list[bool]()
    answers.allow()
    thread = threading.Thread(target=answers.send, args=(b"packet", put))
    loop = threading.Thread(target=lambda: found.append(answers.over(put)))
    thread.start()
    assert sending.wait(PATIENCE)
    loop.start()
    go_on.set()
    for each in (thread, loop):
        each.join(PATIENCE)
    assert found == [True]


class Blocking:
    """A client in a thread: it goes on while the loop does not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._packets = PacketReader()
        self.heard = threading.Event()

    def put(self, sequence: int) -> object:
        """Put one message, and return the answer."""
        sock = connect(str(self._directory))
        assert sock is not None
        with sock:
            sock.settimeout(PATIENCE)
            sock.sendall(encode_packet(Hello(1, 1, 1, 99, 0, "test"), 1))
            sock.sendall(encode_packet(Open(1, "jobs", "", {}), 2))
            sock.sendall(encode_packet(Put(1, sequence, 1, encode_messages(Columns([b"x"]), TIME)), 3))
            while True:
                for said, request in self._packets.feed(sock.recv(1 << 16)):
                    if request == 3:
                        self.heard.set()
                        return said


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return what has something done before each sync of a log."""
    sync = durable_io.sync_file

    def before(do: Callable[[], object]) -> None:
        def doing(file: File, path: str) -> None:
            do()
            sync(file, path)

        monkeypatch.setattr(active_segment, "sync_file", doing)

    return before


async def test_a_put_is_answered_once_it_is_synced_though_the_loop_does_something_else(
    tmp_path: Path, syncs: Callable[[Callable[[], object]], None]
) -> None:
    async with owned(tmp_path / "s", BY_THREADS) as (store, _):
        topic = store.topic("jobs")
        await topic.put(b"first")
        began, go_on, client = threading.Event(), threading.Event(), Blocking(tmp_path / "s")

        def wait() -> None:
            began.set()
            assert go_on.wait(PATIENCE)

        syncs(wait)
        putting = asyncio.create_task(asyncio.to_thread(client.put, 1))
        await until(began.is_set)
        assert not client.heard.is_set()
        go_on.set()
        assert client.heard.wait(PATIENCE / 3), "the loop had to answer, which it did not, as it stood here"
        assert await putting == Done((1, 1))
        assert await topic.put(b"last") == 2


class Late:
    """A loop that, once deaf, hears of nothing from threads until it is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deaf = False
        self._loop = loop
        self._missed: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, *call: Any) -> None:
        if self.deaf:
            self._missed.append(call)
        else:
            self._loop.call_soon_threadsafe(*call)

    def wake(self) -> None:
        self.deaf = False
        for call in self._missed:
            self._loop.call_soon(*call)


@contextmanager
def late(store: aiodq.Store) -> Iterator[None]:
    """Have the loop hear of nothing from threads, from when one of them tells a client to the end of the block."""
    loop, say = Late(asyncio.get_running_loop()), EarlyAnswers.send

    def saying(answers: EarlyAnswers, packet: bytes, put: ClientPutResult) -> None:
        loop.deaf = True
        say(answers, packet, put)

    with (
        mock.patch.object(store._store_engine.threads, "_loop", loop),
        mock.patch.object(EarlyAnswers, "send", saying),
    ):
        yield
    loop.wake()


async def test_whoever_was_told_early_finds_the_put_in_whatever_is_asked_next(tmp_path: Path) -> None:
    async with owned(tmp_path / "s", BY_THREADS) as (store, _):
        topic = store.topic("jobs")
        await topic.put(b"first")
        engine = store._store_engine
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        with late(store):
            for number in range(1, 11):  # whether the loop is late enough is chance, but not each time
                assert await client.answer(client.put(1, number, [b"x"])) == Done((number, 1))
                await client.ask(Ping(number))
                assert engine.topics["jobs"].visible == number + 1
        assert await topic.put(b"last") == 11
        await client.close()


FINDINGS: dict[str, tuple[Callable[[aiodq.Topic, aiodq.Channel], object], object]] = {
    "qsize": (lambda _, channel: channel.qsize(), 2),
    "depth": (lambda _, channel: channel.depth, 2),
    "a channel's stats": (lambda _, channel: channel.stats().depth, 2),
    "a topic's stats": (lambda topic, _: topic.stats().channels["c"].depth, 2),
    "get_nowait": (lambda _, channel: [channel.get_nowait().body, channel.get_nowait().body], [b"first", b"x"]),
    "scan": (lambda topic, _: topic.scan(), [b"first", b"x"]),
    "read": (lambda topic, _: topic.read(1), b"x"),
    "peek": (lambda _, channel: channel.peek(), b"first"),
    "offset_at": (lambda topic, _: topic.offset_at(datetime(9999, 1, 1, tzinfo=UTC)), 2),
}


@pytest.mark.parametrize("how", FINDINGS)
async def test_whoever_hears_from_a_client_that_was_told_early_finds_the_put_in_the_owner(
    tmp_path: Path, how: str
) -> None:
    find, expected = FINDINGS[how]
    async with owned(tmp_path / "s", BY_THREADS) as (store, _):
        topic = store.topic("jobs")
        channel = topic.channel("c")
        await topic.put(b"first")
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        with late(store):
            assert await client.answer(client.put(1, 1, [b"x"])) == Done((1, 1))
            found = find(topic, channel)
        if isinstance(found, AsyncIterator):
            found = [message.body async for message in found]
        elif isinstance(found, Awaitable):
            found = getattr(message := await found, "body", message)
        assert found == expected
        await client.close()


@pytest.mark.parametrize("waiting", [0, 2])
async def test_whoever_hears_of_it_finds_the_put_by_a_get_that_is_not_to_wait(tmp_path: Path, waiting: int) -> None:
    async with owned(tmp_path / "s", BY_THREADS) as (store, _), aiodq.open(tmp_path / "s", mode="client") as other:
        channel = other.topic("jobs").channel("c")
        await channel.refresh()
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        getting = [asyncio.create_task(channel.get()) for _ in range(waiting)]
        await channel.refresh()
        with late(store):
            assert await client.answer(client.put(1, 1, [b"%d" % n for n in range(waiting + 1)])) == Done(
                (0, waiting + 1)
            )
            found = [await channel.get(0), *[await each for each in getting]]
        assert sorted(message.body for message in found) == [b"%d" % n for n in range(waiting + 1)]
        await client.close()


async def test_a_put_that_the_loop_has_answered_is_not_answered_by_a_thread_that_comes_late(tmp_path: Path) -> None:
    go_on, over, durable = threading.Event(), threading.Event(), Part.durable

    def late(part: Part) -> None:
        if part.first == 1:
            assert go_on.wait(PATIENCE)
        durable(part)
        if part.first == 1:
            over.set()

    async with owned(tmp_path / "s", BY_THREADS) as (store, _):
        await store.topic("jobs").put(b"first")
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        with mock.patch.object(Part, "durable", late):
            request = client.put(1, 1, [b"x"])
            while request not in client.answers:
                await client.ask(Ping(1))  # the owner looks what has ended
            assert client.answers.pop(request) == Done((1, 1))
            assert await client.answer(client.put(1, 2, [b"y"])) == Done((2, 1))
            go_on.set()
            await until(over.is_set)
        await client.ask(Ping(2))
        assert client.answers == {}
        await client.close()


async def test_nothing_is_answered_early_of_which_the_sync_failed(
    tmp_path: Path, syncs: Callable[[Callable[[], object]], None]
) -> None:
    async with owned(tmp_path / "s", BY_THREADS) as (store, _):
        await store.topic("jobs").put(b"first")
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")

        def fail() -> None:
            raise StoreFailedError("the device is gone")

        syncs(fail)
        request = client.put(1, 1, [b"x"])
        try:
            assert not isinstance(await client.answer(request), Done)
        except ConnectionResetError:
            assert request not in client.answers
        await client.close()
