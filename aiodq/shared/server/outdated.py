"""Which handles of one client are outdated: what the client was told of them may have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["Outdated"]


class Outdated:
    """The outdated handles of one client, in the order in which it is to be told of them."""

    def __init__(self) -> None:
        """Start without handles."""
        self._handles: dict[TopicEngine, set[int]] = {}
        self._engines: dict[int, TopicEngine] = {}
        self._outdated: dict[int, None] = {}

    def add(self, handle: int, topic: TopicEngine) -> None:
        """Add a handle of a topic, or of a channel of it. It is outdated at once: the client was told nothing yet."""
        self._handles.setdefault(topic, set()).add(handle)
        self._engines[handle] = topic
        self._outdated[handle] = None

    def remove(self, handle: int) -> None:
        """Forget a handle."""
        topic = self._engines.pop(handle)
        self._handles[topic].discard(handle)
        if not self._handles[topic]:
            del self._handles[topic]
        self._outdated.pop(handle, None)

    def note(self, handle: int) -> None:
        """Note that a handle is outdated, unless it is none, or was removed."""
        if handle in self._engines:
            self._outdated[handle] = None

    def note_topics(self, topics: Iterable[TopicEngine]) -> None:
        """Note that the handles of these topics and of their channels are outdated."""
        for topic in topics:
            if topic in self._handles:
                self._outdated.update(dict.fromkeys(self._handles[topic]))

    def take(self) -> int | None:
        """Return the next outdated handle, which is then up to date; None if there is none."""
        handle = next(iter(self._outdated), None)
        if handle is not None:
            del self._outdated[handle]
        return handle
