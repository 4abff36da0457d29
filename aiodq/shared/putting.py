"""The puts of one process into a topic, from the first time they are sent until an owner has answered."""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Putting", "TopicPuts"]


class Putting(NamedTuple):
    """A put on its way into a topic.

    Attributes:
        frames: see `aiodq.wire`.
        messages: the number of messages.
        each: whether every message is a put of its own.
        told: called once: with the offsets when they are as durable as the owner makes them, or with the error.
    """

    frames: bytes
    messages: int
    each: bool
    told: Callable[[range | Exception], None]


class TopicPuts:
    """The unacknowledged puts into a topic, by sequence and so in order, and the puts queued after them."""

    def __init__(self) -> None:
        """Start without any."""
        self.sequence = 0
        self.pending: dict[int, Putting] = {}
        self.behind: deque[Putting] = deque()

    def fail_behind(self, error: Exception) -> None:
        """Tell an error to puts that were never sent."""
        behind = list(self.behind)
        self.behind.clear()
        for put in behind:
            put.told(copy(error))
