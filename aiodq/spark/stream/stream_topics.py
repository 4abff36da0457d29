"""The topics of a stream: their keys in offsets, and their logs as they are now."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiodq.errors import StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.planning import beside_its_owner, is_wanted, read_topics, snapshot, topics_of
from aiodq.storage.segments.segment_files import list_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.spark.options import ReadOptions
    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = ["StreamTopics"]

T = TypeVar("T")


class StreamTopics:
    """The topics that a query reads.

    In offsets, a topic has a key: its name, after the path of its store if the query reads several stores.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Set the options that select the topics; this does no I/O."""
        self._options = options
        self._known: dict[str, LogSnapshot] = {}

    def named(self) -> list[str]:
        """Return the topics that were named in full, and the patterns."""
        return [self.key(store, topic) for store in self._options.stores for topic in self._options.topics or ()]

    def logs(self, known: Iterable[str]) -> dict[str, LogSnapshot]:
        """Return the existing topics; those in `known` may be missing, even if they were named in full. Blocking.

        Raises:
            StoreNotFoundError: there is no such store, or no topic of a name that was given in full.
            StorageError: as mapped from the system's error.
        """
        fs = AnyFileSystem()
        found: dict[str, LogSnapshot] = {}
        places = set(map(self.place, known))
        for store in self._options.stores:
            may_miss = {topic for where, topic in places if where == store}
            for topic in read_topics(fs, store, self._options, may_miss):
                key = self.key(store, topic)
                log = self.unless_deleted(key, partial(self.log, key))
                if log is not None:
                    found[key] = log
        return found

    def log(self, topic: str, stop: int | None = None) -> LogSnapshot:
        """Return a topic's log as it is now; only what is new is read. Blocking.

        With `stop`, return it as the trigger saw it if it reached that offset, was undamaged, and still exists: a
        second look would be most of the cost of a batch of many topics.
        """
        log = self._known.get(topic)
        if log is None:
            log = self._known[topic] = snapshot(AnyFileSystem(), *self.place(topic))
        elif stop is None or log.view.stop < stop or _is_doubtful(log):
            log.refresh()
        return log

    def unless_deleted(self, topic: str, look: Callable[[], T]) -> T | None:
        """Return what `look` finds, repeated if the owner has deleted a part meanwhile; None if the topic was deleted.

        Raises:
            StoreNotFoundError: its store is not here.
        """

        def once() -> T | None:
            try:
                return look()
            except StoreNotFoundError:
                # It exists again: it was deleted and created again meanwhile.
                if self.is_there(topic):
                    raise
                return None

        return beside_its_owner(once)

    def is_there(self, topic: str) -> bool:
        """Return whether a topic is still in its store. Blocking.

        Raises:
            StoreNotFoundError: its store is not here.
        """
        store, name = self.place(topic)
        return name in topics_of(AnyFileSystem(), store, None)

    def is_wanted(self, key: str) -> bool:
        """Return whether the options select a topic, whether it exists or not."""
        store, topic = self.place(key)
        return store in self._options.stores and is_wanted(topic, self._options)

    def is_latest(self, topic: str) -> bool:
        """Return whether the query begins at the end of a topic."""
        bound = self._options.starting
        return bound == "latest" or (isinstance(bound, dict) and bound.get(self.place(topic)[1]) == "latest")

    def key(self, store: str, topic: str) -> str:
        """Return the key of a topic of a store in offsets."""
        return topic if len(self._options.stores) == 1 else f"{store}/{topic}"

    def place(self, key: str) -> tuple[str, str]:
        """Return (store, topic) of a key: names of topics have no slash."""
        if len(self._options.stores) == 1:
            return self._options.stores[0], key
        store, _, topic = key.rpartition("/")
        return store or "/", topic

    def places(self, topics: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Return offsets by (store, topic)."""
        return {self.place(topic): offset for topic, offset in topics.items()}


def _is_doubtful(log: LogSnapshot) -> bool:
    """Return whether a topic was damaged when it was read, or a file was deleted since.

    An owner that opens the topic may be repairing it. The task checks whether it is the same topic.
    """
    if log.damages:
        return True
    there = {path for _, path in list_segments(AnyFileSystem(), log.directory)}
    return any(segment.path not in there for segment in log.view.segments)
