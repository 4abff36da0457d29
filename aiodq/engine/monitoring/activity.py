"""Activity: in which topics something may have changed, for those who look at all of them regularly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Activity", "Watcher"]

T = TypeVar("T", bound="Hashable")


class Activity(Generic[T]):
    """The topics in which something may have changed, for any number of watchers.

    They look at these topics alone: what a look costs does not grow with what is idle.

    Attributes:
        topics: the engines noted since a watcher last took its own; None without watchers, so that nothing is kept.
    """

    __slots__ = ("_watchers", "topics")

    def __init__(self) -> None:
        """Start without watchers."""
        self.topics: set[T] | None = None
        self._watchers: list[Watcher[T]] = []

    def watch(self) -> Watcher[T]:
        """Return a new watcher, for which activity is noted from now on, until its end."""
        if self.topics is None:
            self.topics = set()
        watcher = Watcher(self)
        self._watchers.append(watcher)
        return watcher

    def note(self, topic: T) -> None:
        """Note that a topic, a channel of it or its options may have changed."""
        if self.topics is not None:
            self.topics.add(topic)

    def hand_over(self) -> None:
        """Hand over to the watchers what was noted."""
        if self.topics:
            for watcher in self._watchers:
                watcher.noted |= self.topics
            self.topics.clear()

    def leave(self, watcher: Watcher[T]) -> None:
        """Note nothing more for a watcher."""
        self._watchers = [other for other in self._watchers if other is not watcher]
        if not self._watchers:
            self.topics = None


class Watcher(Generic[T]):
    """Somebody who looks regularly at what is active.

    Attributes:
        noted: the topics handed over since the last `take`.
    """

    __slots__ = ("_activity", "noted")

    def __init__(self, activity: Activity[T]) -> None:
        """Called by `Activity.watch`."""
        self.noted: set[T] = set()
        self._activity = activity

    def take(self) -> set[T]:
        """Return the topics noted since the last call."""
        self._activity.hand_over()
        taken, self.noted = self.noted, set()
        return taken

    def end(self) -> None:
        """Watch no more."""
        self._activity.leave(self)
