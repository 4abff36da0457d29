"""aiosqlite: a table as a queue, in WAL mode, as one would write it by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import aiosqlite

from benchmarks.harness import BATCH, KEPT, Durability, Guarantee, MovingSession, Operation, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]

Synchronous = Literal["FULL", "NORMAL"]

CREATE = "CREATE TABLE IF NOT EXISTS {} (id INTEGER PRIMARY KEY, body BLOB NOT NULL)"
INSERT = "INSERT INTO queue (body) VALUES (?)"
INSERT_MOVED = "INSERT INTO moved (body) VALUES (?)"
OLDEST = "SELECT id, body FROM queue ORDER BY id LIMIT 1"
SOME = "SELECT id, body FROM queue ORDER BY id LIMIT ?"
DELETE = "DELETE FROM queue WHERE id = ?"
DELETE_TO = "DELETE FROM queue WHERE id <= ?"
DELETE_OLDEST = "DELETE FROM queue WHERE id = (SELECT min(id) FROM queue) RETURNING id, body"


class _Session(MovingSession):
    """Producers share the connection, so one commit covers all inserts before it: a group commit of sorts."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._one_at_a_time = asyncio.Lock()

    async def put(self, body: bytes) -> None:
        await self._connection.execute(INSERT, (body,))
        await self._connection.commit()

    async def put_many(self, bodies: list[bytes]) -> None:
        await self._connection.executemany(INSERT, [(body,) for body in bodies])
        await self._connection.commit()

    async def take(self) -> None:
        # Rows are fetched in the same hop to the thread, the quickest that aiosqlite offers.
        ((number, _body),) = await self._connection.execute_fetchall(OLDEST)
        await self._connection.execute(DELETE, (number,))
        await self._connection.commit()

    async def take_many(self, count: int) -> None:
        left = count
        while left > 0:
            rows = list(await self._connection.execute_fetchall(SOME, (min(left, BATCH),)))
            assert rows
            await self._connection.execute(DELETE_TO, (rows[-1][0],))
            await self._connection.commit()
            left -= len(rows)

    async def ack_each(self, count: int) -> None:
        # Consumers share the connection: taking is one statement, so that none sees another one's message.
        for _ in range(count):
            assert await self._connection.execute_fetchall(DELETE_OLDEST)
            await self._connection.commit()

    async def move(self, count: int) -> None:
        connection = self._connection
        for _ in range(count):
            # A connection has one transaction at a time.
            async with self._one_at_a_time:
                ((number, body),) = await connection.execute_fetchall(OLDEST)
                await connection.execute(DELETE, (number,))
                await connection.execute(INSERT_MOVED, (body,))
                await connection.commit()


@asynccontextmanager
async def _open(path: Path, synchronous: Synchronous) -> AsyncIterator[MovingSession]:
    async with aiosqlite.connect(path / "queue.db") as connection:
        await connection.execute("PRAGMA journal_mode=WAL")
        await connection.execute(f"PRAGMA synchronous={synchronous}")
        for table in ("queue", "moved"):
            await connection.execute(CREATE.format(table))
        await connection.commit()
        yield _Session(connection)


def _subject(
    synchronous: Synchronous, durability: Durability, promise: str, put: Guarantee, take: Guarantee
) -> Subject:
    return Subject(
        name=f"aiosqlite {synchronous}",
        package="aiosqlite",
        durability=durability,
        promise=promise,
        blocking=False,
        operations=frozenset(Operation),
        open=partial(_open, synchronous=synchronous),
        put=put,
        take=take,
    )


SUBJECTS = [
    _subject("FULL", Durability.SYNCED, "WAL fsynced at each commit", KEPT, KEPT),
    _subject(
        "NORMAL",
        Durability.DEFERRED,
        "in the kernel; fsync when the WAL is checkpointed",
        Guarantee("kept", "lost since the last checkpoint"),
        Guarantee("kept", "again since the last checkpoint"),
    ),
]
