"""The topics of a stream: how offsets name them, and what is there of them now."""

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
    """Those that a query reads.

    Offsets know a topic by its key: its name, behind its store's where the query reads several.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Know of the topics that these options name; nothing is looked at yet."""
        self._options = options
        self._known: dict[str, LogSnapshot] = {}

    def named(self) -> list[str]:
        """Return the topics that were named in full, and whatever else stands beside them."""
        return [self.key(store, topic) for store in self._options.stores for topic in self._options.topics or ()]

    def logs(self, known: Iterable[str]) -> dict[str, LogSnapshot]:
        """Return the topics that there are; those `known` need not be there any more, even if named in full. Blocking.

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
        """Return a topic's log as it is now; only what is new is looked at. Blocking.

        With `stop`, as it was when the trigger looked at it, if it went as far, was whole, and is still there: to look
        again is most of what a batch of many topics costs.
        """
        log = self._known.get(topic)
        if log is None:
            log = self._known[topic] = snapshot(AnyFileSystem(), *self.place(topic))
        elif stop is None or log.view.stop < stop or _is_doubtful(log):
            log.refresh()
        return log

    def unless_deleted(self, topic: str, look: Callable[[], T]) -> T | None:
        """Return what `look` finds, anew where the owner has deleted some of it; None where the topic is there no more.

        Raises:
            StoreNotFoundError: its store is not here.
        """

        def once() -> T | None:
            try:
                return look()
            except StoreNotFoundError:
                # There again, it was made anew meanwhile.
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
        """Return whether the query is told to read a topic, be it there or not."""
        store, topic = self.place(key)
        return store in self._options.stores and is_wanted(topic, self._options)

    def is_latest(self, topic: str) -> bool:
        """Return whether the query is told to begin at the end of a topic."""
        bound = self._options.starting
        return bound == "latest" or (isinstance(bound, dict) and bound.get(self.place(topic)[1]) == "latest")

    def key(self, store: str, topic: str) -> str:
        """Return what offsets call a topic of a store."""
        return topic if len(self._options.stores) == 1 else f"{store}/{topic}"

    def place(self, key: str) -> tuple[str, str]:
        """Return (store, topic) of what offsets name: no topic's name has a slash."""
        if len(self._options.stores) == 1:
            return self._options.stores[0], key
        store, _, topic = key.rpartition("/")
        return store or "/", topic

    def places(self, topics: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Return offsets by (store, topic)."""
        return {self.place(topic): offset for topic, offset in topics.items()}


def _is_doubtful(log: LogSnapshot) -> bool:
    """Return whether something was wrong when a topic was looked at, or a file was deleted since.

    An owner that opens the topic may be putting it right. Whether it is the same topic, a task finds out.
    """
    if log.damages:
        return True
    there = {path for _, path in list_segments(AnyFileSystem(), log.directory)}
    return any(segment.path not in there for segment in log.view.segments)
