"""aiodq itself, under each of its sync policies."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import aiodq
from aiodq import Store, StoreOptions
from benchmarks.harness import BATCH, KEPT, Durability, Guarantee, MovingSession, Operation, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]

Sync = Literal["always", "interval", "os"]
SyncBackend = Literal["auto", "thread"]


class _Session(MovingSession):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue = store.queue("queue")

    async def put(self, body: bytes) -> None:
        await self._queue.put(body)

    async def take(self) -> None:
        message = await self._queue.get()
        message.ack_nowait()

    async def put_many(self, bodies: list[bytes]) -> None:
        await self._queue.put_many(bodies)

    async def produce(self, body: bytes, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            await queue.put(body)

    async def consume(self, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            message = await queue.get()
            message.ack_nowait()

    async def iterate(self, count: int) -> None:
        left = count
        async for message in self._queue:
            message.ack_nowait()
            left -= 1
            if not left:
                return

    async def take_many(self, count: int) -> None:
        queue = self._queue
        left = count
        while left > 0:
            messages = await queue.get_many(min(left, BATCH))
            await queue.ack_many(messages)
            left -= len(messages)

    async def ack_each(self, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            message = await queue.get()
            await message.ack()

    async def put_get(self, body: bytes, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            await queue.put(body)
            message = await queue.get()
            message.ack_nowait()

    async def move(self, count: int) -> None:
        store, queue = self._store, self._queue
        for _ in range(count):
            message = await queue.get()
            async with store.transaction() as transaction:
                transaction.ack(message)
                transaction.put("moved", message.body)


@asynccontextmanager
async def _open(path: Path, sync: Sync, sync_backend: SyncBackend = "auto") -> AsyncIterator[MovingSession]:
    async with aiodq.open(path, StoreOptions(sync=sync, sync_backend=sync_backend)) as store:
        yield _Session(store)


def _subject(sync: Sync, durability: Durability, promise: str, put: Guarantee, ack: Guarantee) -> Subject:
    return Subject(
        name=f"aiodq {sync}",
        package="aiodq",
        durability=durability,
        promise=promise,
        blocking=False,
        operations=frozenset(Operation),
        open=partial(_open, sync=sync),
        put=put,
        take=Guarantee("again: some ms", "again: some ms" if sync == "always" else ack.power),
        ack=ack,
    )


_ALWAYS = _subject("always", Durability.SYNCED, "fdatasync, shared by puts that wait together", KEPT, KEPT)

SUBJECTS = [
    _ALWAYS,
    replace(
        _ALWAYS,
        name="aiodq always, by threads",
        package="aiodq thread",
        promise="the same, by threads that call fdatasync",
        open=partial(_open, sync="always", sync_backend="thread"),
    ),
    _subject(
        "interval",
        Durability.DEFERRED,
        "in the kernel; fsync every 2500 messages or 2 s",
        Guarantee("kept", "lost: up to 2500 messages or 2 s"),
        Guarantee("kept", "again since the last sync"),
    ),
    _subject(
        "os",
        Durability.KERNEL,
        "in the kernel",
        Guarantee("kept", "lost: what the kernel had not written"),
        Guarantee("kept", "again: what the kernel had not written"),
    ),
]
