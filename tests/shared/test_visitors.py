"""Who has a store open."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console, RenderableType

import aiodq
from aiodq.cli.commands.who import facts_of, table
from aiodq.shared.connection import link
from aiodq.shared.connection.finding import rendezvous
from aiodq.shared.requests.owner_state import visitors as asking
from aiodq.shared.requests.owner_state.visitors import ask_visitors, visitors
from aiodq.storage.io.lock import StoreLock
from aiodq.wire.packets import Done, Hello
from aiodq.wire.stream import encode_packet

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_owner_tells_who_is_there_and_what_they_hold(tmp_path: Path) -> None:
    async with (
        aiodq.open_queue(tmp_path, mode="shared") as owner,
        aiodq.open_queue(tmp_path, mode="client") as client,
    ):
        await client.put_many([b"a", b"b", b"c"])
        held = await client.get_many(2)
        mine = await owner.get()
        facts = await ask_visitors(str(tmp_path))
        assert facts["owner"]["pid"] == os.getpid()
        assert [one["pid"] for one in facts["clients"]] == [os.getpid()] * 2  # and not who asks
        assert [one["owner"] for one in facts["clients"]] == [True, False]  # as in two containers, where pids are equal
        assert sorted(sum(one["holds"].values()) for one in facts["clients"]) == [1, 2]
        await client.ack_many(held)
        await mine.ack()
        facts = await ask_visitors(str(tmp_path))
        assert [one["holds"] for one in facts["clients"]] == [{}, {}]


async def test_a_loop_that_is_blocked_is_late() -> None:
    asking = asyncio.ensure_future(visitors(1, (), asking=0, own=0))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 0.3)
    assert (await asking)["owner"]["lag"] > 0.1


async def test_an_owner_at_which_nobody_is_accepted_any_more_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_BACKLOG", 0)
    monkeypatch.setattr(asking, "_STALL", 0.4)
    monkeypatch.setattr(link, "_STALL", 0.4)
    lock = StoreLock.acquire(str(tmp_path))
    listening = rendezvous.listen(str(tmp_path))
    with suppress(BlockingIOError):
        while (sock := rendezvous.connect(str(tmp_path))) is not None:
            sock.close()
    with pytest.raises(aiodq.OwnerStalledError, match=f"process {os.getpid()}, does not answer") as caught:
        await facts_of(str(tmp_path))
    assert caught.value.pid == os.getpid()
    with pytest.raises(aiodq.OwnerStalledError):
        await aiodq.open(tmp_path, mode="client", failover=0.1)
    listening.close()
    lock.release()


class Many:
    """One of many clients, which holds something of as many channels as there may be."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.client: Hello | None = Hello(1, 1, number, number, 0, "p" * 1000)

    def holds(self) -> dict[str, int]:
        return {f"{'t' * 60}/{number}": number for number in range(1, 1001)} if self.number < 5 else {}


async def test_of_a_crowd_as_many_are_listed_as_fit_into_a_packet() -> None:
    facts = await visitors(1, [Many(number) for number in range(1, 3001)], asking=3000, own=1)
    encode_packet(Done(None, {"result": facts}))
    listed = facts["clients"]
    assert [each["pid"] for each in listed] == list(range(1, len(listed) + 1))
    assert len(listed) > 100
    assert len(listed) + facts["unlisted"] == 2999
    assert {sum(each["holds"].values()) for each in listed[:4]} == {1000 * 1001 // 2}
    assert listed[0]["holds"][f"{'t' * 60}/1000"] == 1000
    assert f"and {facts['unlisted']:,} others" in printed(table(facts))
    assert "serves 2,998 others" in printed(table(facts))


def printed(table: RenderableType) -> str:
    console = Console(width=200, file=StringIO())
    console.print(table)
    found = console.file
    assert isinstance(found, StringIO)
    return found.getvalue()


async def test_nobody_is_there(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path):
        with pytest.raises(aiodq.OwnerLostError):
            await ask_visitors(str(tmp_path))
