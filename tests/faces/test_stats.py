"""Statistics of one store by each way to it, after the same operations."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
import aiodq.opening
import aiodq.sync
from aiodq.testing import FakeClock
from tests.shared.support import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

ALIKE = aiodq.StoreOptions(sync="os", compression=None)
WORK = aiodq.ChannelOptions(
    max_attempts=2, dead_letter="dead", visibility_timeout=1000.0, backoff=aiodq.Backoff(first=50.0, jitter=0)
)
UNLIKE = {"fsyncs", "bytes_read", "disk_bytes", "segments", "held", "put_to_deliver", "put_to_ack"}
"""How a store came to where it is: by how many writes, and what these took."""


class Face:
    """One way to a store, whose calls are awaited whichever way it is."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self.path, self.clock = kind, path, FakeClock()
        self.exit = AsyncExitStack()
        self.store: Any = None

    async def open(self) -> None:
        """Open the store, beside an owner where the way needs one."""
        opened = partial(aiodq.open, self.path, ALIKE, clock=self.clock)
        if self.kind == "sync":
            with mock.patch("aiodq.sync.store.ways.open", partial(aiodq.opening.open, clock=self.clock)):
                self.store = await asyncio.to_thread(aiodq.sync.open, self.path, ALIKE)
            self.exit.push_async_callback(asyncio.to_thread, self.store.close)
            return
        if self.kind == "client":
            await self.exit.enter_async_context(opened(mode="shared"))
        mode: Any = "shared" if self.kind == "owner" else self.kind
        self.store = await self.exit.enter_async_context(opened(mode=mode))

    async def do(self, call: Any, *arguments: Any, **named: Any) -> Any:
        """Call, and wait for what it returns."""
        if self.kind == "sync":
            return await asyncio.to_thread(call, *arguments, **named)
        result = call(*arguments, **named)
        return await result if hasattr(result, "__await__") else result

    async def stats(self) -> dict[str, Any]:
        """Return the statistics of the whole store that ought to be alike, as the owner reports them just now."""
        if self.kind in {"owner", "client"}:
            await self.store._remote.report.look_once()
        found = asdict(await self.do(self.store.stats))
        del found["path"], found["sync_backend"]
        for topic in found["topics"].values():
            for name in UNLIKE & topic.keys():
                del topic[name]
            for channel in topic["channels"].values():
                for name in UNLIKE & channel.keys():
                    del channel[name]
        return found


async def _worked(face: Face) -> list[dict[str, Any]]:
    """Return the statistics after each of some operations."""
    seen: list[dict[str, Any]] = []

    async def look(dead: int = 0) -> None:
        # A letter is synced before its message is settled, while others go on.
        while dead and (await face.stats())["topics"]["jobs"]["channels"]["work"]["dead"] < dead:
            await asyncio.sleep(0.001)
        await face.do(topic.settle_in)
        for each in channels:
            await face.do(each.refresh)
        seen.append(await face.stats())

    await face.open()
    do = face.do
    topic = await do(face.store.topic, "jobs")
    channels = [await do(topic.channel, "work", WORK), await do(topic.channel, "log")]
    work, log = channels
    await do(topic.settle_in)
    await do(topic.put_many, [b"%d" % number for number in range(10)])
    await look()
    await do(topic.put, b"later", delay=100.0)
    await do(topic.put, b"brief", ttl=2000.0, tag="t", key=b"k", headers={"h": "v"})
    await look()
    held = [await do(work.get, 30) for _ in range(6)]
    await look()
    await do(held[0].ack)
    await do(held[1].nack)
    await do(held[2].nack, 0)
    await do(held[3].reject, "why")
    await do(held[4].touch, 500.0)
    await do(held[5].release)
    await look(1)
    again = await do(work.get, 30)
    await do(again.nack)
    await do(log.seek, "latest")
    await look(2)
    await do(log.seek, "earliest")
    await do(log.pause)
    await do(topic.pause)
    await look()
    await do(topic.resume)
    await do(work.purge)
    await look()
    await do(topic.put, b"kept")
    await do(topic.purge)
    await do(topic.put, b"last")
    await look()
    await face.exit.aclose()
    await face.open()
    topic = await do(face.store.topic, "jobs")
    channels = [await do(topic.channel, "work", WORK), await do(topic.channel, "log")]
    await look()
    await face.exit.aclose()
    return seen


@pytest.mark.parametrize("kind", ["owner", "client", "sync"])
async def test_each_way_to_a_store_shows_the_same_of_it(tmp_path: Path, kind: str) -> None:
    async with asyncio.timeout(PATIENCE):
        expected = await _worked(Face("exclusive", tmp_path / "exclusive"))
        found = await _worked(Face(kind, tmp_path / kind))
    for step, (theirs, here) in enumerate(zip(expected, found, strict=True)):
        assert here == theirs, step


@pytest.mark.parametrize("kind", ["exclusive", "owner", "client"])
async def test_a_closed_store_still_names_what_was_open_in_it(tmp_path: Path, kind: str) -> None:
    face = Face(kind, tmp_path)
    async with face.exit:
        await face.open()
        orders = face.store.topic("orders")
        await orders.put(b"tea")
        await orders.channel("work").refresh()
        await orders.channel("gone").refresh()
        await orders.delete_channel("gone")
        await face.store.queue("deleted").put(b"milk")
        await face.store.delete_topic("deleted")
        await face.store.topic("spices").put(b"salt")
        await face.store.aclose()
        assert face.store.topics() == ["orders", "spices"]
        assert orders.channels() == ["work"]
        assert list(face.store.stats().topics) == ["orders", "spices"]
