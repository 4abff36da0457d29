"""Checks that a stream has written as many messages as the store holds, before retention may delete them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.errors import StorageError, StoreNotFoundError
from aiodq.spark.planning import beside_its_owner, matching, snapshot, topics_of
from aiodq.spark.stream.stream_hold import keep
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.state.holds import read_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["Tally"]

_CHUNK: Final = 1 << 20


class Tally:
    """Moves a hold forward over messages that were certainly written.

    Attributes:
        lost: the number of messages that could no longer be read.
    """

    def __init__(self, store: str, hold: str, written: Callable[[str, int, int], int]) -> None:
        """Set the hold.

        Args:
            store: the store's directory.
            hold: the name of the hold.
            written: counts the messages of a topic between two offsets in what the stream wrote.
        """
        self.lost: int = 0
        self._fs: FileSystem = OsFileSystem()
        self._store = store
        self._hold = hold
        self._written = written

    def batch(self, start: Mapping[str, int] | None, end: Mapping[str, int], rows: int) -> None:
        """Release what a finished batch has written; repeating it changes nothing. Blocking.

        Usually it has as many rows as offsets. If not, or if it does not begin at the hold (the run before was killed),
        both sides are counted. A topic that ends before it began was created again, and begins there.

        Args:
            start: by topic, the offset at which the batch began; None for the beginning of the query.
            end: by topic, the offset after its last message.
            rows: the number of its messages.

        Raises:
            StorageError: the store has messages that were not written; the hold is not moved.
        """
        held = read_hold(self._fs, self._store, self._hold)
        if held is None:
            return
        recreated = {topic for topic, first in (start or {}).items() if end.get(topic, first) < first}
        begin = {topic: stop if topic in recreated else held.offsets.get(topic, stop) for topic, stop in end.items()}
        if not recreated and all(topic in held.offsets and stop <= begin[topic] for topic, stop in end.items()):
            return
        offsets = sum(max(stop - begin[topic], 0) for topic, stop in end.items())
        follows = start is None or all(
            begin.get(topic, first) == first for topic, first in start.items() if topic not in recreated
        )
        if rows != offsets or not follows:
            self._count(begin, end)
        keep(self._store, self._hold, replace(held, offsets={**held.offsets, **end}))

    def missing_at_ends(self) -> int:
        """Return how many messages are missing at the topics' ends; a stream passes them once others follow. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        held = read_hold(self._fs, self._store, self._hold)
        found, names = 0, [] if held is None else topics_of(self._fs, self._store, None)
        for topic in names if held is None or held.patterns is None else matching(names, held.patterns):
            with suppress(StoreNotFoundError):  # deleted since topics were listed
                found += beside_its_owner(partial(_missing_at_end, self._fs, self._store, topic))
        return found

    def _count(self, begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        for topic, stop in end.items():
            first = begin[topic]
            if stop <= first:
                continue
            there, written = self._readable(topic, first, stop), self._written(topic, first, stop)
            if written < there:
                raise StorageError(
                    f"of the messages {first} to {stop - 1} of topic {topic!r} the store holds {there}, and {written} "
                    f"were written: the hold {self._hold!r} stays at {first}, so that none of them is deleted. Write "
                    f"them again with another checkpoint, from tasks that all see the store",
                    self._store,
                )
            self.lost += stop - first - there

    def _readable(self, topic: str, first: int, stop: int) -> int:
        """Return how many of these messages can be read from the store."""
        if topic not in topics_of(self._fs, self._store, None):
            return 0
        return beside_its_owner(partial(_readable, self._fs, self._store, topic, first, stop))


def _missing_at_end(fs: FileSystem, store: str, topic: str) -> int:
    log = snapshot(fs, store, topic)
    return sum(gap.stop - gap.first for gap in log.gaps if gap.first >= log.view.stop)


def _readable(fs: FileSystem, store: str, topic: str, first: int, stop: int) -> int:
    view, reader = snapshot(fs, store, topic).view, LogReader(fs)
    view, at, found = view._replace(stop=min(stop, view.stop)), first, 0
    try:
        while at < view.stop:
            result = reader.read(view, at, _CHUNK)
            found += sum(min(batch.stop, stop) - max(batch.first, first) for batch in result.batches)
            at = result.next
    finally:
        reader.close()
    return found
