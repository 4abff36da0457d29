"""Owners that hang or fail, and clients that do not listen: nobody waits for ever, and what is said is true."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.connection import link
from aiodq.shared.connection.finding import owner_search, rendezvous
from aiodq.shared.connection.finding.rendezvous import connect
from aiodq.shared.connection.finding.store_directory import StoreDirectory
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.shared.server import owner as owner_module
from aiodq.shared.server.noted_clients import NotedClients
from aiodq.storage.log.producer_table import MOST_PENDING
from aiodq.storage.store_layout import CLIENTS, SOCKET
from aiodq.testing import WatchedFileSystem
from aiodq.wire.packets import Done, Fail, Hello, Open, Ping, Want
from aiodq.wire.stream import encode_packet
from tests.processes import killed_at_last
from tests.shared.child import TOPIC
from tests.shared.support import PATIENCE, RawClient, owned, two, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from aiodq.wire.packets import Packet

QUICK = aiodq.StoreOptions(sync="os")
TICK, TICKS, ENDLESS = 0.04, 5, 10**6
"""An owner counts as stalled after so many of these, while it is stopped and otherwise."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an owner's silence count only while it is `stopped`: on a busy machine, one that runs may be silent, too."""
    monkeypatch.setattr(link, "_STALL", TICK * ENDLESS)
    monkeypatch.setattr(link, "_TICKS", ENDLESS)


@contextmanager
def stopped(child: subprocess.Popen[str]) -> Iterator[None]:
    """Stop an owner's process meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "_STALL", TICK * TICKS)
        patch.setattr(link, "_TICKS", TICKS)
        child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            child.send_signal(signal.SIGCONT)


@asynccontextmanager
async def owner_process(path: Path, puts: int) -> AsyncIterator[subprocess.Popen[str]]:
    """Yield a process that owns a store, once it has put so many messages."""
    command = [sys.executable, "-m", "tests.shared.child", str(path), "p", str(puts)]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(puts):
            assert await asyncio.to_thread(child.stdout.readline)
        yield child


@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_a_last_attempt_is_not_given_up_while_its_holder_lives_though_its_owner_is_killed(tmp_path: Path) -> None:
    last = aiodq.ChannelOptions(max_attempts=1, dead_letter="dead")
    async with owner_process(tmp_path / "s", 2) as child, aiodq.open(tmp_path / "s", mode="shared") as store:
        queue, dead = store.queue(TOPIC, last), store.queue("dead")
        messages = await queue.get_many(2, linger=PATIENCE)
        child.kill()
        for message in messages:
            async with asyncio.timeout(PATIENCE):
                await message.ack()
        await queue.refresh()
        await dead.refresh()
        assert (queue.depth, dead.depth, queue.topic.stats().channels["default"].dead) == (0, 0, 0)


@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_what_nobody_had_taken_was_not_attempted_though_its_owner_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.consuming.demand._KEPT", 3600)
    last = aiodq.ChannelOptions(max_attempts=1, dead_letter="dead")
    async with owner_process(tmp_path / "s", 2) as child, aiodq.open(tmp_path / "s", mode="shared") as store:
        queue, dead = store.queue(TOPIC, last), store.queue("dead")
        await queue.refresh()
        with pytest.raises(aiodq.QueueEmpty):
            queue.get_nowait()
        await until(lambda: queue._remote._ready)  # type: ignore[attr-defined]  # it is one of a store that is shared
        child.kill()
        await queue.refresh()  # by the next owner
        messages = await queue.get_many(2, linger=PATIENCE)
        assert [(message.offset, message.attempts) for message in messages] == [(0, 1), (1, 1)]
        await dead.refresh()
        assert dead.depth == 0


def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have no descriptor left for a socket to the owner; return what counts the attempts."""
    attempts: list[int] = []

    def none_free(sock: socket.socket) -> socket.socket:
        sock.close()
        attempts.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(rendezvous, "keep_from_children", none_free)
    return attempts


@asynccontextmanager
async def left_without_descriptors(
    path: Path, monkeypatch: pytest.MonkeyPatch, failover: float
) -> AsyncIterator[tuple[aiodq.Store, list[int]]]:
    """Open a store whose owner is lost then, when no descriptor is free to find another; with the tries to."""
    async with owned(path) as (_, owner), aiodq.open(path, mode="client", failover=failover) as store:
        await store.topic("jobs").put(b"x")
        attempts = without_descriptors(monkeypatch)
        for connection in list(owner._connections):
            connection.abort()
        await until(lambda: attempts)
        yield store, attempts


async def test_who_has_no_descriptor_to_find_an_owner_with_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with left_without_descriptors(tmp_path, monkeypatch, PATIENCE) as (store, attempts):
        putting = asyncio.create_task(store.topic("jobs").put(b"y"))
        await until(lambda: len(attempts) > 2)
        assert not putting.done()
        monkeypatch.undo()
        assert await putting == 1


async def test_who_has_no_descriptor_for_too_long_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with left_without_descriptors(tmp_path, monkeypatch, 0.2) as (store, _):
        with pytest.raises(aiodq.StorageError, match="too many open files") as caught:
            await store.topic("jobs").put(b"y")
        assert (caught.value.errno, caught.value.retriable) == (errno.EMFILE, True)
        with pytest.raises(aiodq.StorageError, match="too many open files"):
            await aiodq.open(tmp_path, mode="client")
        monkeypatch.undo()
        await until(lambda: store._remote.link.failure is None)  # type: ignore[attr-defined]
        assert await store.topic("jobs").put(b"z") == 1


@pytest.mark.usefixtures("patient")
async def test_an_owner_that_hangs_is_named_and_nobody_takes_over(tmp_path: Path) -> None:
    async with owner_process(tmp_path / "s", 1) as child, aiodq.open(tmp_path / "s", mode="shared") as store:
        queue = store.queue(TOPIC)
        message = await queue.get()
        with stopped(child):
            waiting = asyncio.create_task(queue.get())
            names = store.topic("new").settle_in(), queue.topic.channel("new").refresh()
            opening = [asyncio.create_task(each) for each in names]
            asked: list[Awaitable[object]] = [queue.put(b"x"), queue.sync(), waiting, message.ack(), *opening]
            for doing in (*asked, aiodq.open(tmp_path / "s", mode="client")):
                with pytest.raises(aiodq.OwnerStalledError) as raised:
                    async with asyncio.timeout(PATIENCE):
                        await doing
                assert raised.value.pid == child.pid
                assert raised.value.retriable
            for again in (queue.get(), message.ack()):
                with pytest.raises(aiodq.OwnerStalledError):
                    await again
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await queue.refresh()
                    break
                except aiodq.OwnerStalledError:
                    await asyncio.sleep(0.01)
        assert await queue.put(b"y") in {1, 2}
        await store.topic("new").settle_in()
        await queue.topic.channel("new").refresh()
        assert not message.held
        await message.ack()
        assert message.settled
        with pytest.raises(aiodq.AlreadySettledError):
            await message.ack()


@pytest.mark.usefixtures("patient")
@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_a_store_whose_owner_hangs_or_is_gone_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_search, "_LATE", 0.1)
    async with (
        owner_process(tmp_path / "s", 1) as child,
        aiodq.open(tmp_path / "s", mode="client", failover=3600) as store,
        asyncio.timeout(PATIENCE),
    ):
        events = aiter(store.events())
        hearing = asyncio.ensure_future(anext(events))
        assert store.health()
        with stopped(child):
            while store.health():
                await asyncio.sleep(0.01)
            assert f"process {child.pid}, does not answer" in store.health().reasons[0]
        while not store.health():
            await asyncio.sleep(0.01)
        child.kill()
        while store.health():
            await asyncio.sleep(0.01)
        assert "s nobody has served the store" in store.health().reasons[0]
        assert not hearing.done()
        hearing.cancel()
        await store.aclose()
        assert store.health().reasons == ("the store is closed",)


async def nobody_comes(store: aiodq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everybody told that nobody serves the store; nobody is told a second time."""
    seeking = store._remote.link  # type: ignore[attr-defined]  # it is one that is shared
    seeking._search._failover = 0.0
    await until(lambda: seeking.failure)
    monkeypatch.setattr(owner_search.OwnerSearch, "find", lambda _: asyncio.Event().wait())


async def test_who_begins_to_wait_once_nobody_serves_the_store_is_told_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with owned(tmp_path):
            store = await aiodq.open(tmp_path, mode="client")
            queue = store.queue("jobs")
            await queue.put_many([b"x"] * 3)
            messages = await queue.get_many(3, linger=PATIENCE)
        await nobody_comes(store, monkeypatch)
        acks: list[Callable[[], Awaitable[None]]] = [
            messages[0].ack,
            messages[0].ack,
            partial(queue.ack_many, messages[1:]),
        ]
        for doing in (*acks, queue.sync, store.aclose):
            with pytest.raises(aiodq.OwnerLostError, match="or run aiodq serve"):
                await doing()


async def test_a_transaction_ends_though_no_owner_has_said_what_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with owned(tmp_path):
            store = await aiodq.open(tmp_path, mode="client")
            queue = store.queue("jobs")
            await queue.put(b"x")
            message = await queue.get()
        monkeypatch.setattr(RemoteChannel, "_claimed", lambda *_: None)
        async with owned(tmp_path):
            acking = asyncio.create_task(ack_in_transaction(store, message))
            await until(lambda: queue._remote._claimers)  # type: ignore[attr-defined]  # likewise
        await nobody_comes(store, monkeypatch)
        with pytest.raises(aiodq.OwnerLostError):
            await acking
        await store.aclose()


async def ack_in_transaction(store: aiodq.Store, message: aiodq.Message) -> None:
    async with store.transaction() as tx:
        tx.ack(message)


@pytest.mark.usefixtures("patient")
@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_several_messages_are_acked_again_after_nobody_has_answered(tmp_path: Path) -> None:
    async with (
        owner_process(tmp_path / "s", 9) as child,
        aiodq.open(tmp_path / "s", mode="client") as store,
        asyncio.timeout(PATIENCE),
    ):
        queue = store.queue(TOPIC)
        messages = [await queue.get() for _ in range(9)]
        await messages[8].nack()
        with stopped(child):
            for those in (messages[:4], messages[:6], messages[2:7]):
                with pytest.raises(aiodq.OwnerStalledError):
                    await queue.ack_many(those)
        while not all(message.settled for message in messages[:7]):
            with suppress(aiodq.OwnerStalledError):
                await queue.ack_many(iter(messages[:7]))
            await asyncio.sleep(0.01)
        with pytest.raises(aiodq.AlreadySettledError):
            await queue.ack_many(messages)
        await queue.refresh()
        assert (queue.qsize(), queue.in_flight()) == (1, 1)


@pytest.mark.usefixtures("patient")
@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_a_message_is_rejected_again_after_nobody_has_answered(tmp_path: Path) -> None:
    async with (
        owner_process(tmp_path / "s", 2) as child,
        aiodq.open(tmp_path / "s", mode="client") as store,
        asyncio.timeout(PATIENCE),
    ):
        queue, dead = store.queue(TOPIC, aiodq.ChannelOptions(dead_letter="dead")), store.queue("dead")
        await dead.refresh()
        rejected, acked = await queue.get_many(2, linger=PATIENCE)
        with stopped(child):
            for doing in (rejected.reject("bad"), acked.ack(), rejected.reject("worse")):
                with pytest.raises(aiodq.OwnerStalledError):
                    await doing
            with pytest.raises(aiodq.NotInFlightError, match="was rejected before: reject it again"):
                await rejected.ack()
            with pytest.raises(aiodq.NotInFlightError, match="was acked before: ack it again"):
                await acked.reject()
        for message, again in ((rejected, rejected.reject), (acked, acked.ack)):
            while not message.settled:
                with suppress(aiodq.OwnerStalledError):
                    await again()
            with pytest.raises(aiodq.AlreadySettledError):
                await again()
        async with await dead.get() as letter:
            assert letter.headers["aiodq-reason"] == "bad"
        await queue.refresh()
        await dead.refresh()  # the owner may have sent its counts before the ack
        assert (queue.depth, dead.depth) == (0, 0)


async def test_a_rejection_does_not_raise_what_becomes_of_another_message(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with owned(path) as (_, owner), aiodq.open(path, mode="client") as client, asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put_many([b"x"] * 2)
        gone, message = await queue.get_many(2, linger=PATIENCE)
        settlement = owner.engine.topics["jobs"].channel_engines["default"]
        assert settlement.state is not None
        settlement.ack(gone.offset, settlement.state.delivery(gone.offset) or 0)
        rejecting = asyncio.ensure_future(message.reject())
        await asyncio.sleep(0)
        gone.ack_nowait()
        await rejecting
        with pytest.raises(aiodq.AlreadySettledError):
            await message.reject()


@pytest.mark.usefixtures("patient")
@pytest.mark.slow_on_uvloop  # whom it is about is another process
async def test_all_who_put_are_told_at_once_that_the_owner_hangs(tmp_path: Path) -> None:
    async with (
        owner_process(tmp_path / "s", 1) as child,
        aiodq.open(tmp_path / "s", mode="client") as store,
        asyncio.timeout(PATIENCE),
    ):
        topic = store.topic(TOPIC)
        await topic.settle_in()
        with stopped(child):
            putting = [asyncio.create_task(topic.put_many([b"x"])) for _ in range(5 * MOST_PENDING)]
            await asyncio.wait(putting, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(10):
                await asyncio.sleep(0)
            waiting = [each for each in putting if not each.done()]
        assert not waiting
        assert {type(each.exception()) for each in putting} == {aiodq.OwnerStalledError}


async def test_a_store_that_fails_is_opened_anew_and_the_put_counts_once(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path / "s", mode="shared") as other,
    ):
        queue = other.queue("jobs")
        await queue.put(b"a")
        fs.fail(errno.EIO, "sync", match=".seg", times=1)
        async with asyncio.timeout(PATIENCE):
            assert await queue.put(b"b") == 1
            assert await owner.queue("jobs").put(b"c") == 2
        assert [message.body async for message in queue.scan()] == [b"a", b"b", b"c"]


async def test_what_an_owner_has_in_hand_stays_there_when_its_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_producer: int) -> bool:
        return False

    fs = WatchedFileSystem()
    async with (
        aiodq.open(tmp_path / "s", mode="shared", fs=fs) as owner,
        aiodq.open(tmp_path / "s", mode="shared") as other,
    ):
        assert isinstance(owner, SharedStore)
        jobs, remote = owner.queue("jobs"), other.queue("jobs")
        await jobs.put_many([b"held", b"next"])
        held = await jobs.get()
        monkeypatch.setattr(owner._remote._ownership, "_take", never)  # the other one is to be the next owner
        fs.fail(errno.EIO, "sync", match=".seg", times=1)
        async with asyncio.timeout(PATIENCE):
            await remote.put(b"more")
            assert [(await remote.get()).body for _ in range(2)] == [b"next", b"more"]
            await held.ack()
            await jobs.refresh()
        assert jobs.in_flight() == 2


async def test_what_a_failed_sync_may_have_lost_is_not_said_to_be_there_when_it_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path / "s", fs=fs) as store:
        owner = owner_module.Owner(store._store_engine)
        await owner.start()
        monkeypatch.setattr(owner, "failed", lambda: None)  # it would end before the second put arrives
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        assert isinstance(await client.answer(client.put(1, 1, [b"a"])), Done)
        fs.fail(errno.EIO, "sync", match=".seg", times=1)
        for _ in range(2):
            said = await client.answer(client.put(1, 2, [b"b"]))
            assert isinstance(said, Fail)
            assert said.name == "OwnerLostError"  # the next one is to answer
        await client.close()
        await owner.close()


async def test_a_store_that_fails_again_at_once_is_said_to_have_failed(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with aiodq.open(tmp_path / "s", mode="shared", fs=fs) as owner:
        queue = owner.queue("jobs")
        await queue.put(b"a")
        fs.fail(errno.EIO, "sync", match=".seg")
        with pytest.raises(aiodq.StorageError):
            async with asyncio.timeout(PATIENCE):
                await queue.put(b"b")
        fs.heal()


async def test_an_owner_ends_though_a_client_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for longest in ("_LONGEST_END", "_LONGEST_RECLAIM"):
        monkeypatch.setattr(f"aiodq.shared.server.owner.{longest}", 0.1)
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    queue = owner.queue("jobs")
    await queue.put_many([b"x" * 100_000] * 60)
    deaf = connect(str(tmp_path / "s"))
    assert deaf is not None
    said: list[Packet] = [Hello(1, 1, 1, 7, 0, "deaf"), Open(1, "jobs", "default", {}), Want(1, 60)]
    deaf.settimeout(PATIENCE)
    deaf.sendall(b"".join(encode_packet(each, number) for number, each in enumerate(said, 1)))
    async with asyncio.timeout(PATIENCE):
        while not queue.in_flight():
            await asyncio.sleep(0.01)
        await owner.aclose()
    deaf.close()
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as again:
        assert (await again.queue("jobs").get(timeout=PATIENCE)).attempts == 1


async def test_a_call_that_nobody_knows_is_answered(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        remote = owner._store_engine
        for arguments in ({}, {"topic": 3}, {"options": 1}):
            for name in ("none", "given", "stats", "delete_topic", "seek"):
                with pytest.raises(aiodq.AiodqError):
                    async with asyncio.timeout(PATIENCE):
                        await remote.link.call(name, arguments)  # type: ignore[attr-defined]  # it stands in its place
        assert await owner.queue("jobs").put(b"x") == 0
        with pytest.raises(aiodq.ProtocolError):
            await remote.link.call("seek", {"handle": 99})  # type: ignore[attr-defined]  # likewise
        offset = None
        async with asyncio.timeout(PATIENCE):
            while offset is None:
                try:
                    offset = await owner.queue("jobs").put(b"y")
                except aiodq.ProtocolError:
                    await asyncio.sleep(0.01)


async def test_what_an_owner_leaves_behind(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
        async with aiodq.open(tmp_path / "s", QUICK, mode="client") as other:
            assert await other.queue("jobs").put(b"y")
            await until(NotedClients(str(tmp_path / "s")).read)
        assert (tmp_path / "s" / SOCKET).is_socket()
    assert not (tmp_path / "s" / SOCKET).exists()
    async with aiodq.open(tmp_path / "s", create=False) as alone:
        assert (await alone.queue("jobs").get()).body == b"x"


async def test_an_owner_whose_socket_was_deleted_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owner_module, "_LOOK", 0.02)
    path = tmp_path / "s"
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(path, QUICK, mode="shared") as owner,
        aiodq.open(path, QUICK, mode="client") as client,
    ):
        for number in range(3):
            (path / SOCKET).unlink()
            async with aiodq.open(path, QUICK, mode="shared") as newcomer:
                await newcomer.queue("jobs").put(b"new %d" % number)
            await client.queue("jobs").put(b"old %d" % number)
            assert not newcomer._remote.owner  # type: ignore[attr-defined]
        assert [m.body async for m in owner.queue("jobs").scan()] == [
            b"%s %d" % (who, number) for number in range(3) for who in (b"new", b"old")
        ]
    assert not (path / SOCKET).exists()
    assert caplog.text.count("the socket of the store was deleted") == 3


async def test_nothing_is_written_to_a_connection_that_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner,
        aiodq.open(tmp_path / "s", QUICK, mode="client") as client,
    ):
        await client.queue("jobs").put(b"x")
        wire = client._store_engine.link._wire  # type: ignore[attr-defined]  # it is connected
        for session in owner._remote.owner.clients:  # type: ignore[attr-defined]  # it owns the store
            session._wire.abort()
        for number in range(100):
            wire.send(Ping(0), 1_000_000 + number)
            if not number % 10:
                await asyncio.sleep(0)
        await client.queue("jobs").put(b"y")
    assert "socket.send()" not in caplog.text


async def test_no_socket_is_made_in_another_store_that_has_the_name_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_LOOK", 0.02)
    looks, check = asyncio.Semaphore(0), StoreDirectory.check

    def checked(place: StoreDirectory) -> None:
        looks.release()
        check(place)

    async with asyncio.timeout(PATIENCE), aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
        (tmp_path / "s").rename(tmp_path / "elsewhere")
        (tmp_path / "s").mkdir()
        monkeypatch.setattr(StoreDirectory, "check", checked)
        for _ in range(3):
            await looks.acquire()
        assert not os.listdir(tmp_path / "s")
        (tmp_path / "s").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "s")


@pytest.mark.parametrize("junk", [b"", b"[", b"{}", b'["x", null, 1e400]', b"[" * 100_000, b"\xff" * 1000])
async def test_whatever_is_written_of_clients_is_no_trouble(tmp_path: Path, junk: bytes) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
    (tmp_path / "s" / CLIENTS).write_bytes(junk)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        assert (await owner.queue("jobs").get(timeout=PATIENCE)).body == b"x"


@pytest.mark.parametrize("kind", ["link", "fifo"])
async def test_clients_are_noted_in_a_file_of_ones_own(tmp_path: Path, kind: str) -> None:
    """A link leads to somebody's file, and who opens a FIFO waits for its other end."""
    async with aiodq.open(tmp_path / "s", QUICK) as owner:
        await owner.queue("jobs").put(b"x")
    (tmp_path / "theirs").write_bytes(b"[[7, 1]]")
    if kind == "link":
        (tmp_path / "s" / CLIENTS).symlink_to(tmp_path / "theirs")
    else:
        os.mkfifo(tmp_path / "s" / CLIENTS)
    for _ in range(2):
        async with (
            aiodq.open(tmp_path / "s", QUICK, mode="shared"),
            aiodq.open(tmp_path / "s", QUICK, mode="client") as other,
        ):
            assert await other.queue("jobs").put(b"y")
            await until(NotedClients(str(tmp_path / "s")).read)
    assert (tmp_path / "s" / CLIENTS).lstat().st_mode == stat.S_IFREG | 0o600
    assert (tmp_path / "theirs").read_bytes() == b"[[7, 1]]"


async def test_clients_are_not_noted_where_another_directory_is_now(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
        (tmp_path / "s").rename(tmp_path / "moved")
        (tmp_path / "s").mkdir()
        client = await RawClient.connected(tmp_path / "moved")
        await client.hello()
        await client.open(1, "jobs")
        await client.open(2, "jobs", "default")
        await client.close()
        assert not list((tmp_path / "s").iterdir())
        (tmp_path / "s").rmdir()
        (tmp_path / "moved").rename(tmp_path / "s")


async def test_a_failed_owner_lets_the_store_go_though_nobody_asks_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "_LOOK", 0.01)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as store:
        remote = store._store_engine
        before = remote.owner  # type: ignore[attr-defined]  # it stands in its place
        before.engine.fail(OSError(errno.EIO, "Input/output error"))
        async with asyncio.timeout(PATIENCE):
            while remote.owner in {before, None}:  # type: ignore[attr-defined]  # likewise
                await asyncio.sleep(0.002)
        assert await store.queue("jobs").put(b"x") == 0


async def test_only_those_are_waited_for_who_were_there(tmp_path: Path) -> None:
    """Killed alone, an owner left its socket, and nobody who could hold a message."""
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
    sock = socket.socket(socket.AF_UNIX)
    os.chdir(tmp_path / "s")
    sock.bind(SOCKET)
    sock.close()
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        serving = owner._store_engine.owner  # type: ignore[attr-defined]  # it stands in its place
        assert serving._reclaiming is None
        assert (await owner.queue("jobs").get()).body == b"x"
    (tmp_path / "s" / CLIENTS).write_bytes(b"[[12345, 99999999]]")
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        serving = owner._store_engine.owner  # type: ignore[attr-defined]  # likewise
        assert serving._reclaiming is not None
        assert not owner.queue("jobs").paused
        assert (await owner.queue("jobs").get(timeout=PATIENCE)).body == b"x"


AGAIN: dict[str, Callable[[aiodq.Queue], Awaitable[object]]] = {
    "put": lambda queue: queue.put(b"y"),
    "put with a tag": lambda queue: queue.put(b"y", tag="t"),
    "put_many": lambda queue: queue.put_many([b"y"]),
    "get": lambda queue: queue.get(),
    "get_many": lambda queue: queue.get_many(3),
    "refresh": lambda queue: queue.refresh(),
    "sync": lambda queue: queue.sync(),
}


@pytest.mark.parametrize("what", AGAIN)
async def test_who_tries_again_at_once_hears_of_the_owner_at_last(tmp_path: Path, what: str) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        queue = client.queue("jobs")
        await queue.put(b"x")
        link = client._store_engine.link  # type: ignore[attr-defined]  # it stands in its place
        link.failure = aiodq.OwnerStalledError("it does not answer", str(tmp_path))
        asyncio.get_running_loop().call_soon(link.note_alive)
        for _ in range(10_000):
            try:
                await AGAIN[what](queue)
            except aiodq.OwnerStalledError:
                continue
            break
        assert link.failure is None
