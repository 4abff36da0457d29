"""Activity: in which topics something may have changed, for an owner that tells other processes of their counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Activity"]

T = TypeVar("T", bound="Hashable")


class Activity(Generic[T]):
    """The topics in which something may have changed since they were last taken.

    An owner of many topics looks at these alone: what it costs to tell of changes does not grow with what is idle.

    Attributes:
        topics: their engines; None as long as nobody asks, so that nothing is kept for nobody.
    """

    __slots__ = ("topics",)

    def __init__(self) -> None:
        """Start with nobody who asks."""
        self.topics: set[T] | None = None

    def watch(self) -> None:
        """Note activity from now on; whoever calls this calls `take` regularly."""
        if self.topics is None:
            self.topics = set()

    def ignore(self) -> None:
        """Note activity no more."""
        self.topics = None

    def note(self, topic: T) -> None:
        """Note that a topic, a channel of it or its options may have changed."""
        if self.topics is not None:
            self.topics.add(topic)

    def take(self) -> set[T]:
        """Return the topics noted since the last call."""
        if self.topics is None:
            return set()
        taken, self.topics = self.topics, set()
        return taken
