"""diskcache's Deque, a queue in SQLite, which blocks its caller and removes what is taken at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from diskcache import Deque

from benchmarks.harness import Durability, Guarantee, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]


class _Session(Session):
    def __init__(self, queue: Deque) -> None:
        self._queue = queue

    async def put(self, body: bytes) -> None:
        self._queue.append(body)

    async def take(self) -> None:
        self._queue.popleft()

    async def put_many(self, bodies: list[bytes]) -> None:
        with self._queue.transact():
            self._queue.extend(bodies)


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Session]:
    queue = Deque(directory=str(path))
    try:
        yield _Session(queue)
    finally:
        queue.cache.close()


SUBJECTS = [
    Subject(
        name="diskcache Deque",
        package="diskcache",
        durability=Durability.DEFERRED,
        promise="in the kernel; fsync when the WAL is checkpointed; a get removes at once",
        blocking=True,
        operations=frozenset(Operation) - {Operation.MOVE, Operation.ACK},
        open=_open,
        put=Guarantee("kept", "lost since the last checkpoint"),
        take=Guarantee("lost with its handler", "again since the last checkpoint"),
    ),
]
