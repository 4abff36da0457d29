"""queuelib, Scrapy's disk queue, which blocks its caller."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from queuelib import FifoDiskQueue

from benchmarks.harness import Durability, Guarantee, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]


class _Session(Session):
    def __init__(self, queue: FifoDiskQueue) -> None:
        self._queue = queue

    async def put(self, body: bytes) -> None:
        self._queue.push(body)

    async def take(self) -> None:
        self._queue.pop()

    async def put_many(self, bodies: list[bytes]) -> None:
        push = self._queue.push
        for body in bodies:
            push(body)

    async def produce(self, body: bytes, count: int) -> None:
        push = self._queue.push
        for _ in range(count):
            push(body)

    async def consume(self, count: int) -> None:
        pop = self._queue.pop
        body = None
        for _ in range(count):
            body = pop()
        # An empty queue answers None, and quickly: that would be no measurement.
        assert body is not None

    async def put_get(self, body: bytes, count: int) -> None:
        push, pop = self._queue.push, self._queue.pop
        for _ in range(count):
            push(body)
            pop()


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Session]:
    queue = FifoDiskQueue(path)
    try:
        yield _Session(queue)
    finally:
        queue.close()


SUBJECTS = [
    Subject(
        name="queuelib FifoDiskQueue",
        package="queuelib",
        durability=Durability.KERNEL,
        promise="in the process's own buffer, and the index is saved at close: a kill loses its place",
        blocking=True,
        operations=frozenset(Operation) - {Operation.TIMED_PUT, Operation.LAG, Operation.MOVE, Operation.ACK},
        open=_open,
        put=Guarantee("lost: all since it was opened", "lost: all since it was opened"),
        take=Guarantee("again: all since it was opened", "again: all since it was opened"),
    ),
]
