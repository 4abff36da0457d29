"""A transaction's puts into one topic, until it commits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from aiodq.engine.batch.acceptance import DRIFT
from aiodq.engine.batch.put_batch import OVERHEAD, PLAIN, accepted_cost, columns_of
from aiodq.format.columns import Columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.engine.transactions.participants import Topic

__all__ = ["Checked", "PendingPuts", "cost_of", "in_columns"]

Checked: TypeAlias = "tuple[Columns, int] | list[tuple[Accepted, bytes]]"
"""Messages that can be stored: column by column with their cost in bytes of memory, or one by one."""

_AT_ONCE: Final = 500
"""Messages turned into columns in one turn of the event loop: a millisecond's work."""


_TOPICS_AT_ONCE: Final = 100
"""Topics whose messages are turned into columns in one turn of the event loop: a millisecond's work, too."""


class PendingPuts:
    """A transaction's puts into one topic.

    Attributes:
        engine: the topic.
        count: the number of messages.
        cost: their cost in bytes of memory.
    """

    def __init__(self, engine: Topic) -> None:
        """Start without messages."""
        self.engine: Topic = engine
        self.count: int = 0
        self.cost: int = 0
        self._pieces: list[Columns | list[tuple[Accepted, bytes]]] = []
        self._ahead: list[int] = []

    def add(self, added: Checked, cost: int) -> None:
        """Add messages with that cost, as `cost_of` returns it."""
        last = self._pieces[-1] if self._pieces else None
        ahead = self.engine.put_buffer.ahead()
        if isinstance(added, tuple):
            self.count += len(added[0].bodies)
            self._begin(added[0], ahead)
        else:
            self.count += len(added)
            if isinstance(last, list) and abs(ahead - self._ahead[-1]) < DRIFT:
                last += added
            elif added:
                self._begin(added, ahead)
        self.cost += cost

    def _begin(self, piece: Columns | list[tuple[Accepted, bytes]], ahead: int) -> None:
        self._pieces.append(piece)
        self._ahead.append(ahead)

    async def columns(self) -> Columns:
        """Return the messages column by column, by the wall clock of now, if it has jumped since they were put.

        A few in each turn of the loop, as very many would block it.
        """
        parts: list[Columns] = []
        worked, in_time = False, self.engine.put_buffer.in_time
        for piece, ahead in zip(self._pieces, self._ahead, strict=True):
            if isinstance(piece, Columns):
                parts.append(in_time(piece, ahead))
                continue
            for start in range(0, len(piece), _AT_ONCE):
                if worked:
                    await asyncio.sleep(0)
                worked = True
                parts.append(in_time(columns_of(piece[start : start + _AT_ONCE]), ahead))
        return Columns.joined(parts)


async def in_columns(topics: Iterable[PendingPuts]) -> list[tuple[Topic, Columns, int]]:
    """Return what is put into topics column by column, with its cost; a few topics in each turn of the loop."""
    puts: list[tuple[Topic, Columns, int]] = []
    for number, pending in enumerate(topics, 1):
        puts.append((pending.engine, await pending.columns(), pending.cost))
        if not number % _TOPICS_AT_ONCE:
            await asyncio.sleep(0)
    return puts


def cost_of(added: Checked) -> int:
    """Return the cost of messages in bytes of memory."""
    if isinstance(added, tuple):
        return added[1]
    return sum(len(body) + OVERHEAD if accepted is PLAIN else accepted_cost(accepted, body) for accepted, body in added)
