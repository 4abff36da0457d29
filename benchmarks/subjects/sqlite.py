"""SQLite inline: the standard library's sqlite3 in the loop's own thread, which it blocks; one transaction a call."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Durability, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]

CREATE = "CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, body BLOB NOT NULL)"
INSERT = "INSERT INTO queue (body) VALUES (?)"
OLDEST = "SELECT id, body FROM queue ORDER BY id LIMIT ?"
DELETE = "DELETE FROM queue WHERE id = ?"
DELETE_TO = "DELETE FROM queue WHERE id <= ?"


class _Session(Session):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._connection = connection

    async def put(self, body: bytes) -> None:
        self._execute(INSERT, (body,))

    async def put_many(self, bodies: list[bytes]) -> None:
        self._execute("BEGIN")
        self._connection.executemany(INSERT, [(body,) for body in bodies])
        self._execute("COMMIT")

    async def take(self) -> None:
        ((number, _body),) = self._execute(OLDEST, (1,)).fetchall()
        self._execute(DELETE, (number,))

    async def take_many(self, count: int) -> None:
        left = count
        while left > 0:
            rows = self._execute(OLDEST, (min(left, 1000),)).fetchall()
            assert rows
            self._execute(DELETE_TO, (rows[-1][0],))
            left -= len(rows)

    async def produce(self, body: bytes, count: int) -> None:
        execute = self._execute
        for _ in range(count):
            execute(INSERT, (body,))


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Session]:
    # No isolation level: every statement is a transaction of its own.
    connection = sqlite3.connect(path / "queue.db", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(CREATE)
        yield _Session(connection)
    finally:
        connection.close()


SUBJECTS = [
    Subject(
        name="SQLite FULL inline",
        package="sqlite",
        durability=Durability.SYNCED,
        promise="WAL fsynced at each statement, in the loop's own thread",
        blocking=True,
        operations=frozenset(Operation) - {Operation.MOVE},
        open=_open,
    ),
]
