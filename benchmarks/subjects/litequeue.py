"""litequeue: a queue in SQLite with a status a message, which blocks its caller."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from litequeue import LiteQueue

from benchmarks.harness import Durability, Guarantee, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]


class _Session(Session):
    def __init__(self, queue: LiteQueue) -> None:
        self._queue = queue

    async def put(self, body: bytes) -> None:
        self._queue.put(body)

    async def take(self) -> None:
        message = self._queue.pop()
        self._queue.done(message.message_id)

    async def put_many(self, bodies: list[bytes]) -> None:
        put = self._queue.put
        with self._queue.transaction():
            for body in bodies:
                put(body)


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Session]:
    queue = LiteQueue(path / "queue.db")
    try:
        yield _Session(queue)
    finally:
        queue.close()


SUBJECTS = [
    Subject(
        name="litequeue",
        package="litequeue",
        durability=Durability.DEFERRED,
        promise="in the kernel; fsync when the WAL is checkpointed; what is done stays until it is pruned",
        blocking=True,
        operations=frozenset(Operation) - {Operation.MOVE},
        open=_open,
        put=Guarantee("kept", "lost since the last checkpoint"),
        take=Guarantee("kept", "again since the last checkpoint"),
    ),
]
