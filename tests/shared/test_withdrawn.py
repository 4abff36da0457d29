"""What is no longer wanted as it is on its way to a process: it comes again before anything newer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.consuming import demand
from aiodq.wire.packets import Deliver, Packet, Ping, Range, Release, Want
from tests.shared.support import PATIENCE, RawClient, owned, until
from tests.shared.test_resume import Owner, queue_of

if TYPE_CHECKING:
    from pathlib import Path


class Crossing(Owner):
    """Sends message 0 as soon as nothing is wanted any more, and message 1 as soon as something is wanted again.

    Both were on their way before: it answers no PING until then.
    """

    quick = False

    def __init__(self) -> None:
        super().__init__()
        self.wants: list[int] = []
        self.released: list[Range] = []

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        match said:
            case Want():
                self.wants.append(said.total)
                if said.total == 0:
                    return [self._deliver(0)]
                return [self._deliver(1)] if 0 in self.wants else []
            case Release():
                self.released += said.ranges
            case Ping() if 0 in self.wants and len(self.wants) < 3:
                return []
        return super()._answers(said, request, epoch)


async def test_what_comes_after_it_was_withdrawn_is_not_given_back_before_it_is_known_that_nothing_newer_comes(
    tmp_path: Path,
) -> None:
    owner = Crossing()
    async with queue_of(owner, tmp_path / "s") as queue:
        getting = asyncio.create_task(queue.get())
        await until(lambda: owner.wants)
        getting.cancel()
        await until(lambda: 0 in owner.wants)
        await until(lambda: queue._remote._demand.got)  # type: ignore[attr-defined]  # of a store that is shared
        first, second = await queue.get(), await queue.get()
        assert (first.body, second.body, owner.released) == (b"0", b"1", [])


async def test_what_comes_after_it_was_withdrawn_goes_back_once_nothing_newer_comes(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            theirs = client.queue("jobs")
            await theirs.refresh()
            getting = asyncio.create_task(theirs.get())
            await until(lambda: owner.clients and any(each._wanted for each in owner.clients[0].shares))
            await queue.put(b"0")
            getting.cancel()
            assert (await queue.get()).body == b"0"


async def test_one_of_several_getters_waits_for_no_more_goes_to_another_process_in_its_order(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            theirs = client.queue("jobs")
            await theirs.refresh()
            leaving, staying = asyncio.create_task(theirs.get()), asyncio.create_task(theirs.get())
            await until(lambda: owner.clients and any(each._wanted == 2 for each in owner.clients[0].shares))
            leaving.cancel()
            await until(lambda: not any(each._wanted == 2 for each in owner.clients[0].shares))
            mine = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            await queue.put_many([b"0", b"1", b"2"])
            got = {(await staying).body, (await mine).body}
            assert (got, (await queue.get()).body) == ({b"0", b"1"}, b"2")


async def test_what_was_asked_for_in_vain_is_not_left_to_come_though_another_getter_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "_KEPT", 0.02)
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            theirs = client.queue("jobs")
            await theirs.refresh()
            waiting = asyncio.create_task(theirs.get())
            await asyncio.sleep(0)
            with pytest.raises(asyncio.QueueEmpty):
                theirs.get_nowait()
            await until(lambda: owner.clients and any(each._wanted == 2 for each in owner.clients[0].shares))
            await until(lambda: not any(each._wanted == 2 for each in owner.clients[0].shares))
            mine = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            await queue.put_many([b"0", b"1"])
            assert {(await waiting).body, (await mine).body} == {b"0", b"1"}


async def test_only_one_message_is_kept_for_get_nowait_and_none_for_getters_that_were_cancelled_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "_KEPT", 10 * PATIENCE)
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        queue = store.queue("jobs")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            theirs = client.queue("jobs")
            await theirs.refresh()
            leaving = [asyncio.create_task(theirs.get()) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(asyncio.QueueEmpty):
                theirs.get_nowait()
            await until(lambda: owner.clients and any(each._wanted == 4 for each in owner.clients[0].shares))
            for getting in leaving:
                getting.cancel()
            await asyncio.wait(leaving)
            await until(lambda: not any(each._wanted == 4 for each in owner.clients[0].shares))
            mine = [asyncio.create_task(queue.get()) for _ in range(2)]
            await asyncio.sleep(0)
            await queue.put_many([b"0", b"1", b"2"])
            got = {(await theirs.get()).body, *[(await getting).body for getting in mine]}
            assert got == {b"0", b"1", b"2"}


@pytest.mark.parametrize("turns", range(12))
async def test_what_an_owner_has_taken_for_who_wants_no_more_is_not_sent_before_what_comes_back(
    tmp_path: Path, turns: int
) -> None:
    async with owned(tmp_path / "s", aiodq.StoreOptions(sync="os")) as (store, owner):
        queue = store.queue("jobs")
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        await client.open(2, "jobs", "default")
        await queue.put(b"0")
        [(_, delivery, _)] = await client.take(2, 2, 1)
        [session] = owner.clients
        [lending] = session.shares
        await until(lambda: lending._getting is not None)
        queue.put_nowait(b"1")
        for _ in range(turns):
            await asyncio.sleep(0)
        before = lending._given
        for said in (Want(2, 1), Release(2, owner.epoch, (Range(0, delivery, 1),)), Want(2, before + 1)):
            session._handlers[type(said)](said, 0)
        expected = ([1] if before == 2 else []) + [0]
        found = [(await client.hear(Deliver)).first for _ in expected]
        assert found == expected
        await client.close()
