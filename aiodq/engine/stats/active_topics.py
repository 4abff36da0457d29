"""Which topics are active: they may differ from what somebody saw of them when he last looked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq.engine.monitoring.activity import Activity
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["ActiveTopics"]


class ActiveTopics:
    """The active topics, for one who looks at them regularly. Others cost nothing, however many there are.

    Attributes:
        busy: those that may change without a note of it.
    """

    def __init__(self, activity: Activity[TopicEngine], topics: Iterable[TopicEngine]) -> None:
        """Watch from now on, until `end`. At first, all topics count as active; these are there already."""
        self.busy: set[TopicEngine] = set(topics)
        self._watcher = activity.watch()

    def take(self) -> Iterator[TopicEngine]:
        """Yield the topics that may have changed since the last call; there may be turns of the loop in between."""
        active = self._watcher.take() | self.busy
        self.busy = set()
        for topic in active:
            # INVARIANT: a topic is left out next time only if whatever changes it from here on is noted. What comes
            # back through a lease is not, nor a put that follows another one before the next tick, nor what an open
            # lease hands out.
            if not topic.stopped and _changes_unnoticed(topic):
                self.busy.add(topic)
            yield topic

    def end(self) -> None:
        """Watch no more."""
        self._watcher.end()
        self.busy.clear()


def _changes_unnoticed(topic: TopicEngine) -> bool:
    if topic.tick_scheduled:
        return True
    for channel_engine in topic.channel_engines.values():
        if channel_engine.state is not None and channel_engine.state.flying:
            return True
        channel_engine.halt()  # so that the next message handed out is noted
    return False
