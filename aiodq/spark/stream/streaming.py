"""Topics as a stream: where each batch ends, and what it reads; the offsets: `aiodq.spark.stream.stream_offsets`."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from aiodq.errors import CorruptionError, OffsetError, StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.packing import pack_splits
from aiodq.spark.planning import (
    GO_ON,
    Split,
    bound_offset,
    check_bounds,
    cut_for_all,
    first_since,
    moment_of,
)
from aiodq.spark.reading import Partition, read_partition
from aiodq.spark.stream.batch_splits import BatchRange, BatchSplits
from aiodq.spark.stream.shares import shares, up_to_bytes
from aiodq.spark.stream.stream_gaps import gaps_of, with_gaps
from aiodq.spark.stream.stream_hold import StreamHold, wait_until_known
from aiodq.spark.stream.stream_marks import StreamMark, StreamMarks, marks_of
from aiodq.spark.stream.stream_offsets import (
    WAYS_ON,
    check_offsets,
    created_again,
    differ,
    ids_of,
    make_offsets,
    take_moved,
    uuids_of,
)
from aiodq.spark.stream.stream_topics import StreamTopics
from aiodq.spark.visible import store_uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.datasource import InputPartition

    from aiodq.spark.options import ReadOptions
    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = ["StreamReader"]

_LOG: Final = logging.getLogger("aiodq.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream: one per query, in a process beside the driver, and a copy in each task."""

    def __init__(self, options: ReadOptions) -> None:
        """Set the options; Spark makes it in several processes, so this does no I/O."""
        self._options = options
        self._target: Mapping[str, int] | None = None
        self._topics = StreamTopics(options)
        self._ends: dict[str, int] = {}
        self._initial: dict[str, Any] | None = None
        self._deleted: set[str] = set()
        self._waits_since: float | None = None
        self._marks = StreamMarks()
        self._has_held = False
        self._splits = BatchSplits(options, self._topics, self._marks)

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions]]:
        """Leave out of the copy for tasks what only the planning process needs."""
        return StreamReader, (self._options,)

    # Spark's names

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins: at the oldest messages, unless options say otherwise.

        A topic that is read from its end is left out: the first batch records the end.

        Raises:
            OffsetError: a topic does not have the offset at which the query is to begin.
            InvalidOptionError: `startingOffsets` names a topic that is not read.
        """
        if self._initial is None:
            # A second answer must be the same: Spark has decided on a batch by the first one.
            self._initial = self._begin()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what `maxRecordsPerTrigger`, `maxBytesPerTrigger` or `minRecordsPerTrigger` say."""
        if self._options.most_records is not None:
            return ReadMaxRows(self._options.most_records)
        if self._options.most_bytes is not None:
            return ReadMaxBytes(self._options.most_bytes)
        if self._options.least_records is not None:
            return ReadMinRows(self._options.least_records)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing that is put after this moment."""
        self._target = {topic: log.view.stop for topic, log in self._topics.logs(self._topics.named()).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Each topic gets a share of the limit, depending on how much waits in it.

        Raises:
            OffsetError: a topic was deleted and created again, belongs to another store, or ends before what was read;
                or the hold was deleted, or belongs to another query; and `failOnDataLoss` is not `false`.
            StoreNotFoundError: a topic that was named in full was deleted, likewise.
            CorruptionError: messages at the end of a topic are damaged or missing, likewise.
            InvalidOptionError: the query began with one store and continues with several, or the other way round; it is
                new, and the hold belongs to another query; or the hold is used for other topics, too.
        """
        check_offsets(start, len(self._options.stores))
        logs = self._topics.logs(start["topics"])
        if "initial" in start:
            self._check_bounds({**start["topics"], **logs})
        self._refuse_deleted(start["topics"], logs)
        known = self._still_same(start, logs)
        self._check_hold(start, known, logs)
        self._ends = {topic: log.view.stop for topic, log in logs.items()}
        # Of a new topic, the first batch records only the beginning: Spark has to know both ends of a batch.
        come = self._start if "initial" in start else _begin_of
        marks = {topic: mark for topic, mark in marks_of(start).items() if topic in known}
        moved = take_moved(start, known, marks, logs)
        self._warn_of_deleted(known, logs)
        before = {topic: known[topic] if topic in known else come(topic, log) for topic, log in logs.items()} | moved
        taken = {topic: self._within_log(topic, log, before[topic], marks.get(topic)) for topic, log in logs.items()}
        ends = {topic: self._end(topic, log, taken[topic]) for topic, log in logs.items()}
        # Also if it goes back: the next batch begins there.
        still = {topic for topic in logs if topic in known and taken[topic] >= before[topic]}
        waiting = {topic: ends[topic] - taken[topic] if topic in still else 0 for topic in logs}
        found = {**known, **taken}
        if not self._is_to_wait(limit, sum(waiting.values())):
            given = shares(waiting, limit.max_rows, sum(taken.values())) if isinstance(limit, ReadMaxRows) else {}
            for topic in (topic for topic in logs if waiting[topic]):
                if isinstance(limit, ReadMaxRows):
                    found[topic] = taken[topic] + given[topic]
                elif isinstance(limit, ReadMaxBytes):
                    share = limit.max_bytes * waiting[topic] // sum(waiting.values())
                    found[topic] = self._within(topic, taken[topic], ends[topic], share)
                else:
                    found[topic] = ends[topic]
        offsets = self._marked(self._made(found, {**ids_of(start), **uuids_of(logs)}), marks, logs)
        return with_gaps(offsets, start, logs, before, () if "initial" in start else {*known, *moved})

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the topics ended when this trigger looked at them."""
        ends = self._ends or {topic: log.view.stop for topic, log in self._topics.logs(self._topics.named()).items()}
        return self._made(ends, {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions between two offsets; nothing of a topic that only the second one has.

        Raises:
            OffsetError: messages in between were deleted, or the topic was, and `failOnDataLoss` is not `false`.
            CorruptionError: messages in between are missing, likewise.
            InvalidOptionError: as for `latestOffset`.
        """
        check_offsets(start, len(self._options.stores))
        check_offsets(end, len(self._options.stores))
        begin, stops, before, after = start["topics"], end["topics"], ids_of(start), ids_of(end)
        known = [topic for topic in stops if topic in begin and not differ(before.get(topic), after.get(topic))]
        new = [topic for topic in known if begin[topic] != stops[topic]]
        if "initial" in start:
            if self._hold is not None:
                # Spark has recorded the batch. If it repeats it, it calls this without `latestOffset` before.
                self._hold.mark()
            # The query now begins after its first batch: judged by time, the batch was empty.
            new = [topic for topic in new if begin[topic] < stops[topic]]
            self._tell_of_deleted({topic: stop for topic, stop in stops.items() if topic not in begin})
        marks, stores = marks_of(end), {self._topics.place(topic)[0] for topic in new}
        uuid, gaps = after.get, partial(gaps_of, end)
        ranges = {t: BatchRange(begin[t], stops[t], uuid(t), marks.get(t), gaps(uuid(t))) for t in new}
        uuids = {store: store_uuid(AnyFileSystem(), store) for store in stores}

        def planned(options: ReadOptions) -> list[Split]:
            return [split for topic in new for split in self._splits.of(topic, ranges[topic], uuids, options)]

        return [Partition(splits) for splits in pack_splits(cut_for_all(planned, self._options), self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the messages of a partition as `pyarrow.RecordBatch` objects."""
        return read_partition(AnyFileSystem(), partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Release what a finished batch has read from the hold, if the query has one."""
        hold = self._hold
        if hold is not None and self._options.advance_hold:
            # A topic that was created again begins at 0: the offset of the earlier one would release too much of it.
            there = {topic: offset for topic, offset in end["topics"].items() if topic not in self._deleted}
            hold.move(self._topics.places(there))

    # ---

    @property
    def _hold(self) -> StreamHold | None:
        name = self._options.hold
        return None if name is None else StreamHold(name, self._options.stores, self._options.topics)

    def _begin(self) -> dict[str, Any]:
        # Spark may ask because a first batch was aborted, and a topic of it was deleted since. For a name that no
        # topic ever had, `latestOffset` raises an error; here it is not called.
        may_miss = () if self._options.strict else self._topics.named()
        logs, hold = self._topics.logs(may_miss), self._hold
        if self._options.strict:
            self._check_bounds(logs)
        start = {topic: self._start(topic, log) for topic, log in logs.items()}
        if hold is not None:
            # The hold first, then a look at the topics: what was deleted before the owner saw the hold is left out.
            hold.begin(self._topics.places(start))
            wait_until_known()
            logs = self._topics.logs(may_miss)
            begins = {topic: log.begin for topic, log in logs.items()}
            start = {topic: max(offset, begins.get(topic, 0)) for topic, offset in start.items()}
        kept = {topic: offset for topic, offset in start.items() if not self._topics.is_latest(topic)}
        return {**self._made(kept, uuids_of(logs)), "initial": True}

    def _check_bounds(self, topics: Iterable[str]) -> None:
        check_bounds(self._options, {self._topics.place(topic)[1] for topic in topics})

    def _tell_of_deleted(self, stops: Mapping[str, int]) -> None:
        """Report topics of the first batch that no longer exist.

        Raises:
            OffsetError: there are such topics, and `failOnDataLoss` is not `false`.
            StoreNotFoundError: its store is not here.
        """
        for topic, stop in stops.items():
            if (
                stop
                and not self._topics.is_latest(topic)
                and self._topics.is_wanted(topic)
                and not self._topics.is_there(topic)
            ):
                self._splits.tell_that_it_was_deleted(topic)

    def _within(self, topic: str, start: int, end: int, size: int) -> int:
        """Return the offset after about `size` bytes; the first one if the topic was deleted meanwhile."""
        found = self._topics.unless_deleted(topic, lambda: up_to_bytes(self._topics.log(topic), start, end, size))
        return start if found is None else found

    def _still_same(self, start: Mapping[str, Any], logs: Mapping[str, LogSnapshot]) -> dict[str, int]:
        """Return what was read of the topics that are still the same; one that was created again counts as new.

        Raises:
            OffsetError: one was created again, and `failOnDataLoss` is not `false`.
        """
        before, now = ids_of(start), uuids_of(logs)
        known: dict[str, int] = dict(start["topics"])
        for topic in [topic for topic in known if differ(before.get(topic), now.get(topic))]:
            taken, begin = known.pop(topic), logs[topic].begin
            if self._options.strict:
                raise created_again(topic, taken)
            _LOG.warning(
                "topic %r was created again after %d: the query goes on at its beginning, %d", topic, taken, begin
            )
        return known

    def _refuse_deleted(self, taken: Mapping[str, int], logs: Mapping[str, LogSnapshot]) -> None:
        """Make sure that topics that were named in full, and read, still exist.

        Raises:
            StoreNotFoundError: one does not, and `failOnDataLoss` is not `false`.
        """
        gone = [topic for topic in self._topics.named() if topic in taken and topic not in logs]
        if gone and self._options.strict:
            raise StoreNotFoundError(
                f"there is no topic {gone[0]!r} any more, which was read up to {taken[gone[0]]}: take it off the "
                f"topics that are read, or set failOnDataLoss=false to go on without it",
                self._topics.place(gone[0])[0],
            )

    def _warn_of_deleted(self, known: Mapping[str, int], logs: Mapping[str, LogSnapshot]) -> None:
        """Warn once of each topic that was deleted: it is unknown whether all of it was read."""
        gone = {topic for topic in known if topic not in logs and self._topics.is_wanted(topic)}
        for topic in sorted(gone - self._deleted):
            _LOG.warning("topic %r was deleted: it was read up to %d, and what came after is gone", topic, known[topic])
        self._deleted = gone

    def _check_hold(self, start: Mapping[str, Any], known: Mapping[str, int], logs: Mapping[str, LogSnapshot]) -> None:
        """Make sure that what the query has still to read is kept.

        Raises:
            OffsetError: the hold was deleted, or belongs to another query, and `failOnDataLoss` is not `false`.
            InvalidOptionError: the query is new, and the hold belongs to another; or the hold is used for other topics.
        """
        hold = self._hold
        if hold is None:
            return
        if "initial" in start:
            hold.require_own()
        taken = {topic: known.get(topic, logs[topic].begin) for topic in start["topics"] if topic in logs}
        under_way, again = "initial" not in start, self._has_held
        hold.check(self._topics.places(taken), strict=self._options.strict, under_way=under_way, again=again)
        self._has_held = True

    def _made(self, topics: Mapping[str, int], ids: Mapping[str, str]) -> dict[str, Any]:
        return make_offsets(topics, ids, len(self._options.stores))

    def _marked(
        self, offsets: dict[str, Any], before: Mapping[str, StreamMark], logs: Mapping[str, LogSnapshot]
    ) -> dict[str, Any]:
        """Return offsets with their marks. A topic whose offset is unchanged keeps its mark."""
        found: dict[str, list[int]] = {}
        for topic, offset in offsets["topics"].items():
            mark = before.get(topic)
            if topic in logs and (mark is None or mark.offset != offset):
                mark = self._marks.make(topic, logs[topic], offset)
            if mark is not None and mark.offset == offset:
                found[topic] = mark.encode()
        return {**offsets, "marks": found} if found else offsets

    def _is_to_wait(self, limit: ReadLimit, count: int) -> bool:
        """Return whether so few messages should wait for more, and have not waited for too long."""
        least = self._options.least_records
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        now = time.monotonic()
        if count and self._waits_since is None:
            self._waits_since = now
        if count >= least or (self._waits_since is not None and now - self._waits_since >= self._options.longest_delay):
            self._waits_since = None
            return False
        return count > 0

    def _start(self, topic: str, log: LogSnapshot) -> int:
        options, begin, end, name = self._options, log.begin, log.view.stop, self._topics.place(topic)[1]
        start = bound_offset(options.starting, name, begin, end, default=begin)
        if options.strict and not begin <= start <= end:
            raise OffsetError(f"topic {topic!r} has the offsets {begin} to {end - 1}; the query is to start at {start}")
        since = moment_of(options.starting_ns, name)
        if since is not None:
            start = max(start, first_since(AnyFileSystem(), log, since, options))
        return min(max(start, begin), end)

    def _within_log(self, topic: str, log: LogSnapshot, taken: int, mark: StreamMark | None) -> int:
        """Return the offset at which the query continues in a topic: its own, unless messages there are lost or others.

        Raises:
            CorruptionError: nothing follows that can be read, as it is damaged or missing, and `failOnDataLoss` is not
                `false`.
            OffsetError: the topic ends before, or other messages have the offsets of those that were read, likewise.
        """
        # What its owner is just repairing is no loss.
        doubtful = log.view.stop <= taken and (log.view.stop < taken or log.damages)
        if doubtful and self._topics.unless_deleted(topic, log.refresh) is None:
            return taken
        begin, end, strict = log.begin, log.view.stop, self._options.strict
        lost = log.lost_at_end() if strict and end <= taken else None
        if lost is not None:
            raise CorruptionError(f"{lost.reason}; {GO_ON}", lost.path, lost.position)
        if end < taken and log.damages and not strict:
            return max(taken, begin)
        kept = self._marks.kept(topic, log, taken, mark)
        if kept >= taken:
            return taken if strict else max(taken, begin)
        ends = f"topic {topic!r} ends at {end}, and was read up to {taken}"
        others = f"topic {topic!r} was read up to {taken}, and from {kept} on, about, there are other messages now"
        said = ends if end < taken else others
        if strict:
            raise OffsetError(
                f"{said}: a power cut took what was not synced, it was created again, or an earlier copy of the store "
                f"is there. {WAYS_ON}"
            )
        kept = max(kept, begin)
        why = "a power cut took the rest, or an earlier copy of the store is there"
        _LOG.warning("%s: %s; the query goes on at %d", said, why, kept)
        return kept

    def _end(self, topic: str, log: LogSnapshot, taken: int) -> int:
        end = log.view.stop
        if self._target is not None:
            end = min(end, self._target.get(topic, taken))
        return max(end, taken)


def _begin_of(_topic: str, log: LogSnapshot) -> int:
    return log.begin
