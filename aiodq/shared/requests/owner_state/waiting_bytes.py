"""The memory for clients' puts and transactions that wait for room at an owner: it is bounded."""

from __future__ import annotations

from typing import Final

from aiodq.engine.queue_errors import QueueFull
from aiodq.storage.log.producer_table import MOST_PENDING

__all__ = ["ClientsBytes", "WaitingBytes"]

_MOST: Final = 1 << 30
_MOST_OF_ONE: Final = 256 << 20
"""Bytes of all clients, and of one: several times what a client has under way that keeps to its own `memory_bytes`."""

_MOST_PUTS: Final = 4 * MOST_PENDING
"""Puts of one client into one topic: a client may give up a window of them, as after a stall, and send another."""

_EACH: Final = 4096
"""Bytes that one costs besides its messages: its task, above all."""


class WaitingBytes:
    """The waiting bytes of all clients of an owner.

    Attributes:
        bytes: of all clients.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self.bytes: int = 0


class ClientsBytes:
    """The waiting bytes of one client."""

    def __init__(self, all_of_them: WaitingBytes) -> None:
        """Count for this owner."""
        self._all = all_of_them
        self._bytes = 0
        self._puts: dict[str, int] = {}

    def check(self, cost: int, topic: str | None = None) -> None:
        """Check that messages of this cost, put into the topic, may wait; None for a transaction.

        Raises:
            QueueFull: it is too much, so that the owner does not keep it.
        """
        if topic is not None and self._puts.get(topic, 0) >= _MOST_PUTS:
            raise QueueFull(f"{_MOST_PUTS} puts of this process into the topic wait for room; the owner keeps no more")
        if self._bytes and self._bytes + cost > _MOST_OF_ONE:
            raise QueueFull(f"{self._bytes} bytes of this process wait for room; the owner keeps {_MOST_OF_ONE}")
        if self._all.bytes and self._all.bytes + cost > _MOST:
            raise QueueFull(f"{self._all.bytes} bytes of all processes wait for room; the owner keeps {_MOST}")

    def keep(self, cost: int, topic: str | None = None) -> None:
        """Count a waiting put or transaction, until `drop`."""
        self._count(cost + _EACH)
        if topic is not None:
            self._puts[topic] = self._puts.get(topic, 0) + 1

    def drop(self, cost: int, topic: str | None = None) -> None:
        """Stop counting it."""
        self._count(-cost - _EACH)
        if topic is not None:
            self._puts[topic] -= 1
            if not self._puts[topic]:
                del self._puts[topic]

    def _count(self, cost: int) -> None:
        self._bytes += cost
        self._all.bytes += cost
