"""What a batch of a stream reads of a topic, divided into splits; what is gone of it is an error, or is warned of."""

from __future__ import annotations

import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import OffsetError
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.planning import Split, deleted_in, splits_of
from aiodq.spark.stream.stream_gaps import after_gap
from aiodq.spark.stream.stream_offsets import WAYS_ON, created_again, differ, uuids_of
from aiodq.spark.visible import Place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from aiodq.spark.options import ReadOptions
    from aiodq.spark.stream.stream_marks import StreamMark, StreamMarks
    from aiodq.spark.stream.stream_topics import StreamTopics
    from aiodq.storage.segments.offset_ranges import Ranges

__all__ = ["BatchRange", "BatchSplits"]

_LOG: Final = logging.getLogger("aiodq.spark")


class BatchRange(NamedTuple):
    """What a batch reads of a topic: its first offset and the one after the last, the uuid, and the mark of the end.

    `gaps` are the known ones.
    """

    start: int
    stop: int
    uuid: str | None
    mark: StreamMark | None
    gaps: Ranges


class BatchSplits:
    """What batches read of each topic, as splits, with the losses that an option of the query makes errors."""

    def __init__(self, options: ReadOptions, topics: StreamTopics, marks: StreamMarks) -> None:
        """Plan for a query.

        Args:
            options: the query's.
            topics: its topics.
            marks: the marks of its offsets.
        """
        self._options = options
        self._topics = topics
        self._marks = marks

    def of(
        self, topic: str, between: BatchRange, uuids: Mapping[str, UUID | None], options: ReadOptions
    ) -> list[Split]:
        """Return what a batch reads of a topic; nothing of one that was deleted. Blocking.

        Args:
            topic: the topic.
            between: what the batch is to read of it.
            uuids: the uuids of the stores.
            options: how it is divided.

        Raises:
            OffsetError: messages of it are gone, or the topic is, and `failOnDataLoss` is not `false`.
            CorruptionError: messages of it are missing, likewise.
            StoreNotFoundError: its store is not here.
        """
        found = self._topics.unless_deleted(topic, partial(self._look, topic, between, uuids, options))
        if found is None:
            self.tell_that_it_was_deleted(topic)
        return found or []

    def _look(
        self, topic: str, between: BatchRange, uuids: Mapping[str, UUID | None], options: ReadOptions
    ) -> list[Split]:
        first, stop, uuid, mark, gaps = between
        log = self._topics.log(topic, stop)
        if differ(uuid, uuids_of({topic: log}).get(topic)):
            if self._options.strict:
                raise created_again(topic, stop)
            _LOG.warning("topic %r was created again: what a batch was to read of the earlier one is gone", topic)
            return []
        first = min(after_gap(first, gaps), stop) if first < stop else first
        if self._options.strict and first < stop and not log.begin <= first <= stop <= log.view.stop:
            raise OffsetError(
                f"the query is to read the messages {first} to {stop - 1} of topic {topic!r}, which has "
                f"{log.begin} to {log.view.stop - 1}: let its retention keep them, or set failOnDataLoss=false"
            )
        if self._options.strict and first < stop and mark is not None and not self._marks.holds(topic, log, mark):
            raise OffsetError(
                f"the query is to read the messages {first} to {stop - 1} of topic {topic!r}, and there are others by "
                f"those numbers now, since a power cut, or as an earlier copy of the store is there. {WAYS_ON}"
            )
        if stop <= first:
            # Its end is below what was read: the batch only records where the query continues.
            return []
        if first < log.begin:
            gone = min(stop, log.begin) - 1
            _LOG.warning("topic %r: left out, as they were deleted before they were read: %d to %d", topic, first, gone)
        store, name = self._topics.place(topic)
        place = Place(log.directory, log.meta.uuid, uuids[store], socket.gethostname(), named=log.named)
        whole = Split(name, place, log.view, max(first, log.begin), min(stop, log.view.stop))
        splits = list(splits_of(AnyFileSystem(), log, whole, options))
        self._tell_of_gap(topic, deleted_in(log, whole.start, whole.stop, gaps))
        return splits

    def _tell_of_gap(self, topic: str, lost: tuple[int, int] | None) -> None:
        """Report messages that were deleted since the query began, between others that are still to be read.

        Raises:
            OffsetError: there are such messages, and `failOnDataLoss` is not `false`.
        """
        if lost is None:
            return
        first, last = lost[0], lost[1] - 1
        if self._options.strict:
            raise OffsetError(
                f"the messages {first} to {last} of topic {topic!r} were deleted before the query has read them, as "
                f"every channel has settled them: read with a hold, or set failOnDataLoss=false to go on without them"
            )
        _LOG.warning("topic %r: left out, as they were deleted before they were read: %d to %d", topic, first, last)

    def tell_that_it_was_deleted(self, topic: str) -> None:
        """Report a topic that was deleted, with messages that were still to be read.

        Raises:
            OffsetError: `failOnDataLoss` is not `false`.
        """
        if self._options.strict:
            raise OffsetError(
                f"topic {topic!r} was deleted, and the query had still to read messages of it: set "
                f"failOnDataLoss=false to go on without them"
            )
        _LOG.warning("topic %r was deleted: what a batch was to read of it is gone", topic)
