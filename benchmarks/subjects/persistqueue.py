"""persist-queue: its file queue and its two SQLite queues, which block their caller."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from persistqueue import Queue, SQLiteAckQueue, SQLiteQueue

from benchmarks.harness import Durability, Guarantee, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]


class _Session(Session):
    def __init__(self, queue: Queue | SQLiteQueue) -> None:
        self._queue = queue

    async def put(self, body: bytes) -> None:
        self._queue.put(body)

    async def take(self) -> None:
        self._queue.get()

    async def produce(self, body: bytes, count: int) -> None:
        put = self._queue.put
        for _ in range(count):
            put(body)

    async def consume(self, count: int) -> None:
        get = self._queue.get
        for _ in range(count):
            get()

    async def put_get(self, body: bytes, count: int) -> None:
        put, get = self._queue.put, self._queue.get
        for _ in range(count):
            put(body)
            get()


class _AckSession(Session):
    def __init__(self, queue: SQLiteAckQueue) -> None:
        self._queue = queue

    async def put(self, body: bytes) -> None:
        self._queue.put(body)

    async def take(self) -> None:
        message = self._queue.get(raw=True)
        self._queue.ack(message)


@asynccontextmanager
async def _open_file(path: Path) -> AsyncIterator[Session]:
    queue = Queue(str(path), tempdir=str(path), autosave=True)
    try:
        yield _Session(queue)
    finally:
        queue.headf.close()
        queue.tailf.close()


@asynccontextmanager
async def _open_sqlite(path: Path) -> AsyncIterator[Session]:
    queue = SQLiteQueue(str(path))
    try:
        yield _Session(queue)
    finally:
        queue.close()


@asynccontextmanager
async def _open_ack(path: Path) -> AsyncIterator[Session]:
    queue = SQLiteAckQueue(str(path))
    try:
        yield _AckSession(queue)
    finally:
        queue.close()


TAKING = frozenset({Operation.GET, Operation.ITERATE, Operation.GET_MANY, Operation.PUT_GET})

SUBJECTS = [
    Subject(
        name="persist-queue Queue",
        package="persistqueue",
        durability=Durability.DEFERRED,
        promise="in the kernel; data fsynced every 100 messages, the index never",
        blocking=True,
        operations=TAKING | {Operation.PUT, Operation.PUT_MANY},
        open=_open_file,
        put=Guarantee("kept", "lost: perhaps all, its index is never synced"),
        take=Guarantee("lost with its handler", "again: perhaps all, its index is never synced"),
    ),
    Subject(
        name="persist-queue SQLiteQueue",
        package="persistqueue",
        durability=Durability.SYNCED,
        promise="WAL fsynced at each call; a get removes at once",
        blocking=True,
        operations=TAKING | {Operation.PUT, Operation.TIMED_PUT, Operation.LAG},
        open=_open_sqlite,
        take=Guarantee("lost with its handler", "kept"),
    ),
    Subject(
        name="persist-queue SQLiteAckQueue",
        package="persistqueue",
        durability=Durability.SYNCED,
        promise="WAL fsynced at each call; get and ack are two",
        blocking=True,
        operations=TAKING | {Operation.ACK},
        open=_open_ack,
    ),
]
