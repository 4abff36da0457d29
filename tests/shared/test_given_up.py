"""A message that its processes do not survive, or leave unsettled, is given up in the end, as in an exclusive store."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.connection.finding.rendezvous import UNSEEN
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.wire.layout import PREFETCHED
from aiodq.wire.packets import Bye, Call, Done, Nack, Want
from aiodq.wire.payload import Item
from tests.containers import in_a_container
from tests.shared.support import PATIENCE, QUICK, RawClient, until

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

COUNTED = aiodq.ChannelOptions(max_attempts=3, dead_letter="dead")
WORKER = """
import asyncio, os, signal, sys, aiodq

async def main():
    async with aiodq.open(sys.argv[1], mode="client") as store:
        message = await store.queue("jobs").get(30)
        print(message.body.decode(), message.attempts, flush=True)
        if message.body == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
            os._exit(9)  # the first process of a PID namespace may ignore signals from inside

asyncio.run(main())
"""


@pytest.mark.slow_on_uvloop  # that a client is gone shows on both loops where its connection is closed
@pytest.mark.parametrize("apart", [False, True])
async def test_a_message_that_kills_whoever_has_it_is_given_up(tmp_path: Path, *, apart: bool) -> None:
    """Also if the pids that they know mean other processes where the owner is, as the first one of a container."""
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    command = in_a_container(command) if apart else command
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs, dead = store.queue("jobs", COUNTED), store.queue("dead")
        await jobs.put_many([b"poison", b"good"])
        said = []
        for _ in range(4):
            worker = await asyncio.create_subprocess_exec(*command, stdout=-1)
            said.append((await worker.communicate())[0].split())
        assert said == [[b"poison", b"1"], [b"poison", b"2"], [b"poison", b"3"], [b"good", b"1"]]
        letter = await dead.get(PATIENCE)
        assert (letter.body, letter.headers["aiodq-attempts"]) == (b"poison", "3")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_what_is_in_hand_at_closing_counts_as_delivered(
    tmp_path: Path, mode: Literal["exclusive", "shared"]
) -> None:
    for attempts in (1, 2, 3):
        async with aiodq.open(tmp_path, QUICK, mode=mode) as store:
            jobs = store.queue("jobs", COUNTED)
            if attempts == 1:
                await jobs.put_many([b"left", b"released"])
            left, released = await jobs.get_many(2, linger=PATIENCE)
            assert (left.attempts, released.attempts) == (attempts, 1)
            released.release()
    async with aiodq.open(tmp_path, QUICK, mode=mode) as store:
        assert (await store.queue("jobs").get(PATIENCE)).body == b"released"
        assert (await store.queue("dead").get(PATIENCE)).body == b"left"


async def test_what_is_in_hand_counts_where_the_owner_closes_before_its_holder(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path, QUICK, mode="shared")
    holder = await aiodq.open(tmp_path, QUICK, mode="client")
    await owner.queue("jobs", COUNTED).put(b"job")
    assert (await holder.queue("jobs").get(PATIENCE)).attempts == 1
    await owner.aclose()
    await holder.aclose()
    async with aiodq.open(tmp_path, QUICK) as store:
        assert store.queue("jobs").get_nowait().attempts == 2


async def test_what_nobody_had_taken_does_not_count_when_a_client_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.consuming.demand._KEPT", 3600)
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put(b"taken")
        async with aiodq.open(tmp_path, mode="client") as client:
            theirs = client.queue("jobs")
            await theirs.get()
            with pytest.raises(aiodq.QueueEmpty):
                theirs.get_nowait()
            await jobs.put(b"sent")
            await until(lambda: theirs._remote._ready)  # type: ignore[attr-defined]  # a shared queue's
        messages = await jobs.get_many(2, linger=PATIENCE)
        assert [(message.body, message.attempts) for message in messages] == [(b"taken", 2), (b"sent", 1)]


async def test_what_was_on_its_way_as_a_client_closed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.consuming.demand._KEPT", 3600)
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put(b"settled")
        await (await jobs.get()).ack()
        async with aiodq.open(tmp_path, mode="client") as client:
            with pytest.raises(aiodq.QueueEmpty):
                client.queue("jobs").get_nowait()
            monkeypatch.setattr(RemoteChannel, "_delivered", lambda *_: None)
            await jobs.put(b"sent")
            await until(lambda: jobs.in_flight() == 1)
        monkeypatch.undo()
        message = await jobs.get(PATIENCE)
        assert (message.body, message.attempts) == (b"sent", 1)


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("wanted", [PREFETCHED - 1, PREFETCHED])
async def test_of_a_killed_client_only_what_it_had_for_sure_counts(
    tmp_path: Path, wanted: int, *, leaves: bool
) -> None:
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put_many([b"%d" % number for number in range(4)])
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs", "default")
        await client.take(1, wanted, 4)
        if leaves:
            client.send(Bye())
        await client.close()
        counted = [2] * 4 if leaves or wanted < PREFETCHED else [2, 1, 1, 1]
        assert [message.attempts for message in await jobs.get_many(4, linger=PATIENCE)] == counted


async def test_of_what_a_client_was_sent_that_counts_which_it_took_whatever_its_delivery_number(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put_many([b"%d" % number for number in range(4)])
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs", "default")
        [(offset, number, _)] = await client.take(1, 1, 1)
        assert await client.ask(Nack(1, client.epoch, (Item(offset, number, 0, 1),))) == Done()
        [again] = await client.take(1, 2, 1)
        sent = await client.take(1, 4, 2)
        assert again[0] == 0
        assert all(again[1] > number for _, number, _ in sent), "a lease has its numbers when it begins"
        client.send(Want(1, 2))  # so many were taken
        client.send(Bye())
        await client.close()
        messages = await jobs.get_many(4, linger=PATIENCE)
        assert {message.offset: message.attempts for message in messages} == {0: 3, 1: 1, 2: 1, 3: 1}


async def test_nothing_counts_of_a_client_that_is_alive_and_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.shared.server.cut_off._LONGEST", 0.0)
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put(b"a")
        client = await RawClient.connected(tmp_path)
        await client.hello(pid=os.getpid())
        await client.open(1, "jobs", "default")
        await client.take(1, 1, 1)
        await client.close()
        assert (await jobs.get(PATIENCE)).attempts == 1


@pytest.mark.parametrize("comes_back", [False, True])
async def test_what_a_client_has_that_cannot_be_seen_counts_unless_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    monkeypatch.setattr("aiodq.shared.server.client_connection.process_of", lambda *_: UNSEEN)
    monkeypatch.setattr("aiodq.shared.server.cut_off._LONGEST", PATIENCE if comes_back else 0.0)
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs", COUNTED)
        await jobs.put(b"a")
        client = await RawClient.connected(tmp_path)
        await client.hello()
        await client.open(1, "jobs", "default")
        await client.take(1, 1, 1)
        await client.close()
        if comes_back:
            client = await RawClient.connected(tmp_path)
            await client.hello()
            await client.open(1, "jobs", "default")
            await client.ask(Call("back", {}))
        assert (await jobs.get(PATIENCE)).attempts == (1 if comes_back else 2)
        await client.close()


async def test_without_max_attempts_nothing_is_counted(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
        jobs = store.queue("jobs")
        await jobs.put(b"a")
        async with aiodq.open(tmp_path, mode="client") as client:
            await client.queue("jobs").get()
        assert (await jobs.get(PATIENCE)).attempts == 1
