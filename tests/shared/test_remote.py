"""Messages and puts of a process that does not own the store: as an owner's, as far as there is anything yet."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.clock import SystemClock
from aiodq.shared.link import Link
from aiodq.shared.remote import RemoteChannel, RemotePuts
from tests.shared.support import PATIENCE, owned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


async def never() -> bool:
    return False


@asynccontextmanager
async def remote(path: Path) -> AsyncIterator[tuple[aiodq.Queue, RemotePuts, RemoteChannel]]:
    """Give the owner's queue, and a client's puts and channel of it."""
    async with owned(path) as (store, _):
        queue = store.queue("jobs")
        link = Link(str(path), never)
        await link.start()
        channel = RemoteChannel(link, "jobs", "default")
        await link.open_channel("jobs", "default", channel)
        yield queue, RemotePuts(link, "jobs", SystemClock()), channel
        await link.close()


async def until(queue: aiodq.Queue, ready: int, flying: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (queue.qsize(), queue.in_flight()) != (ready, flying):
            await asyncio.sleep(0.001)


async def test_a_message_is_settled_by_its_own_methods(tmp_path: Path) -> None:
    async with remote(tmp_path / "s") as (queue, _, channel):
        await queue.put(b"a", tag="t", key=b"k", headers={"h": "v"})
        await queue.put_many([b"b", b"c", b"d", b"e"])
        message = await channel.get(None)
        assert (message.body, message.offset, message.tag, message.key, message.attempts) == (b"a", 0, "t", b"k", 1)
        assert (dict(message.headers), message.channel) == ({"h": "v"}, "default")
        await message.ack()
        assert queue.depth == 4
        with pytest.raises(aiodq.AlreadySettledError):
            await message.ack()
        async with await channel.get(None):
            pass
        with pytest.raises(KeyError):
            async with await channel.get(None):
                raise KeyError
        await channel.commit()
        again = await channel.get(None)
        assert (again.body, again.attempts) == (b"c", 2)
        again.release()
        await (await channel.get(None)).reject("no")
        assert queue.depth == 2


async def test_a_get_that_is_cancelled_takes_nothing(tmp_path: Path) -> None:
    async with remote(tmp_path / "s") as (queue, _, channel):
        for _ in range(20):
            getting = asyncio.ensure_future(channel.get(None))
            await asyncio.sleep(0)
            offset = await queue.put(b"x")
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            message = getting.result() if not getting.cancelled() else await queue.get()
            assert message.offset == offset
            await message.ack()
        await until(queue, 0, 0)
        assert queue.depth == 0


async def test_those_who_wait_get_one_each_and_no_more_is_taken(tmp_path: Path) -> None:
    async with remote(tmp_path / "s") as (queue, _, channel):
        getting = [asyncio.ensure_future(channel.get(None)) for _ in range(5)]
        await asyncio.sleep(0.01)
        await queue.put_many([b"%d" % n for n in range(9)])
        messages = await asyncio.gather(*getting)
        assert [message.body for message in messages] == [b"%d" % n for n in range(5)]
        await until(queue, 4, 5)


async def test_puts_of_one_turn_go_together(tmp_path: Path) -> None:
    async with remote(tmp_path / "s") as (queue, puts, _):
        plain = aiodq.Draft(b"")
        waiters = [puts.accept(puts.accepted(plain), b"%d" % n) for n in range(50)]
        many = puts.accept_plain([b"x", b"y"], 0)
        tagged = puts.accept(puts.accepted(aiodq.Draft(b"", tag="t")), b"z")
        assert await asyncio.gather(*waiters) == list(range(50))
        assert (await many, await tagged) == (range(50, 52), 52)
        assert (await queue.read(52)).tag == "t"
        with pytest.raises(aiodq.InvalidMessageError):
            puts.body("text")  # type: ignore[arg-type]
