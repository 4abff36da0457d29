"""Plans a read: which ranges of offsets ("splits") its tasks read. This runs once, beside the driver."""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.errors import CorruptionError, InvalidNameError, InvalidOptionError, OffsetError, StoreNotFoundError
from aiodq.names import check_name
from aiodq.spark.visible import Place, store_uuid
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.read.log_reader import LogReader, LogView
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.segments.offset_ranges import without
from aiodq.storage.store_layout import check_store_directory, has_topic, list_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence
    from uuid import UUID

    from aiodq.spark.options import ReadOptions
    from aiodq.spark.values import Bound, Moment
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.segments.offset_ranges import Ranges

__all__ = [
    "GO_ON",
    "LEAST_BYTES",
    "MOST_BYTES",
    "WITHOUT",
    "Split",
    "beside_its_owner",
    "bound_offset",
    "bytes_of",
    "check_bounds",
    "cut_for_all",
    "deleted_in",
    "deleted_ranges",
    "first_since",
    "gaps_in",
    "is_wanted",
    "matching",
    "moment_of",
    "most_tasks",
    "plan",
    "read_topics",
    "settled",
    "snapshot",
    "some_of",
    "splits_of",
    "topics_of",
    "warn_of",
]

T = TypeVar("T")

_LOG: Final = logging.getLogger("aiodq.spark")
_MAGIC: Final = frozenset("*?[")
_PATTERN: Final = re.compile(r"[]a-zA-Z0-9._#*?![-]+")
"""Matches the characters of names, and those with a meaning in patterns."""
_BEYOND: Final = 1 << 63
"""Larger than any offset."""
WITHOUT: Final = "a read with failOnDataLoss=false, or archive, compact, query or report with lossy, goes on without"
"""Advice in errors about messages that were deleted."""
GO_ON: Final = f"{WITHOUT}; aiodq repair sets it aside for all that read"
"""Advice in errors about messages that are damaged or missing."""
_LOOKS: Final = 100
_SHOWN: Final = 50
"""The most names that an error lists."""
LEAST_BYTES: Final = 16 << 20
"""Bytes of a split. Starting a task takes about as long as reading a quarter of it."""
MOST_BYTES: Final = 128 << 20
"""Bytes that Spark's own file formats give to one task."""
_SLACK: Final = 16
"""A task may read this share more, if it then ends at the end of a segment."""


@dataclass(frozen=True)
class Split:
    """A range of a topic that one task reads, alone or with others.

    Attributes:
        topic: the topic's name.
        place: where the topic is and which one it is: the task checks that it sees the same one.
        view: its segments.
        start, stop: the first offset, and the offset after the last.
        unseen: the offset from which on planning has not checked for missing messages; the task does.
    """

    topic: str
    place: Place
    view: LogView
    start: int
    stop: int
    unseen: int = _BEYOND


def plan(fs: FileSystem, options: ReadOptions) -> list[Split]:
    """Return the splits of a read of the stores as they are now, topic by topic, in the order of offsets. Blocking.

    Raises:
        StoreNotFoundError: there is no such store or topic; or one was deleted meanwhile, with `strict`.
        InvalidOptionError: offsets were given for a topic that is not read.
        OffsetError: offsets that were given by number do not exist, or no longer, with `strict`.
        CorruptionError: messages in between are missing, as far as planning notices, with `strict`.
        StorageError: as mapped from the system's error.
    """
    topics = [(store, topic) for store in options.stores for topic in read_topics(fs, store, options)]
    check_bounds(options, {topic for _, topic in topics})
    uuids = {store: store_uuid(fs, store) for store in options.stores}
    # On a second look, only what is new is read.
    logs = [(LogSnapshot(fs, os.path.join(store, topic)), topic, uuids[store]) for store, topic in topics]

    def planned(options: ReadOptions) -> list[Split]:
        looks = [(log, topic, partial(_plan_topic, fs, log, topic, uuid, options)) for log, topic, uuid in logs]
        return [split for look in looks for split in _unless_deleted(fs, *look, options)]

    return cut_for_all(planned, options)


def cut_for_all(planned: Callable[[ReadOptions], list[Split]], options: ReadOptions) -> list[Split]:
    """Return the splits, divided further if there are fewer than `minPartitions`."""
    splits, least = planned(options), options.min_partitions
    if least is None or len(splits) >= least or not splits:
        return splits
    return planned(replace(options, split_bytes=max(sum(map(bytes_of, splits)) // least, 1)))


def bytes_of(split: Split) -> int:
    """Return about how many bytes a split has; of a segment that it has in part, in proportion to the messages."""
    size = 0
    for segment in split.view.segments:
        offsets = min(split.stop, segment.end) - max(split.start, segment.base)
        size += split.view.data_end_of(segment) * max(offsets, 0) // max(segment.end - segment.base, 1)
    return size


def check_bounds(options: ReadOptions, topics: Iterable[str]) -> None:
    """Make sure that offsets by topic name only topics that are read: with a misspelt one, all messages would be read.

    Raises:
        InvalidOptionError: they do.
    """
    there = set(topics)
    for option, bound in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
        ("startingTimestamp", options.starting_ns),
        ("endingTimestamp", options.ending_ns),
    ):
        unknown = sorted(bound.keys() - there) if isinstance(bound, dict) else []
        if unknown:
            read = some_of(sorted(there))
            raise InvalidOptionError(f"{option} names the topic {unknown[0]!r}, which is not read; these are: {read}")


def _plan_topic(fs: FileSystem, log: LogSnapshot, topic: str, uuid: UUID | None, options: ReadOptions) -> list[Split]:
    timed = options.starting_ns is not None or options.ending_ns is not None
    log.refresh(walk=timed)
    start, stop = _range(fs, log, topic, options)
    _refuse_gap(log, topic, start, stop, options)
    last = log.unwalked
    if last is not None and last.base < stop and last.data_end > _size(log.view, start, stop, options):
        # Several tasks will read it, so its index is needed to divide it.
        log.refresh()
        start, stop = _range(fs, log, topic, options)
    unseen = _BEYOND if log.unwalked is None else log.unwalked.base
    place = Place(log.directory, log.meta.uuid, uuid, socket.gethostname(), named=log.named)
    whole = Split(topic, place, log.view, start, stop, unseen)
    return list(splits_of(fs, log, whole, options))


def _refuse_gap(log: LogSnapshot, topic: str, start: int, stop: int, options: ReadOptions) -> None:
    """Make sure that a read that is to start at an offset given by number finds all that follows it.

    Raises:
        OffsetError: retention has deleted some of it, with `options.strict`.
    """
    bound = bound_offset(options.starting, topic, -1, -1, default=-1)
    gone = deleted_in(log, start, stop) if options.strict and bound >= 0 else None
    if gone is not None:
        raise settled(topic, gone, f"the read is to start at {bound}")


def settled(topic: str, gone: tuple[int, int], why: str) -> OffsetError:
    """Return the error for messages that retention has deleted between others, and why that is one."""
    return OffsetError(
        f"topic {topic!r} has no messages {gone[0]} to {gone[1] - 1} any more: they were deleted, as every channel has "
        f"settled them; {why}: {WITHOUT}"
    )


def gaps_in(view: LogView) -> Ranges:
    """Return the gaps between the segments of a log."""
    return tuple((one.end, other.base) for one, other in pairwise(view.segments) if one.end < other.base)


def deleted_in(log: LogSnapshot, first: int, stop: int, known: Ranges = ()) -> tuple[int, int] | None:
    """Return the first range between two offsets that was deleted between others, and is not known; None if none."""
    return next(iter(deleted_ranges(log, first, stop, known)), None)


def deleted_ranges(log: LogSnapshot, first: int, stop: int, known: Ranges = ()) -> Ranges:
    """Return all the ranges of which `deleted_in` returns the first."""
    gaps = ((max(low, first), min(high, stop)) for low, high in gaps_in(log.view))
    missing = ((gap.first, gap.stop) for gap in log.gaps)
    return without(((low, high) for low, high in gaps if low < high), (*known, *missing))


def _unless_deleted(
    fs: FileSystem, log: LogSnapshot, topic: str, look: Callable[[], list[Split]], options: ReadOptions
) -> list[Split]:
    """Return what `look` finds of a topic; nothing if it was deleted since topics were listed, without `strict`.

    Raises:
        StoreNotFoundError: it was deleted, with `options.strict`; or there is no such store.
    """
    store = os.path.dirname(log.directory)

    def there() -> list[Split]:
        found = look()
        if not log.view.segments and not has_topic(fs, store, topic):
            raise StoreNotFoundError("not there", log.directory)
        return found

    try:
        return beside_its_owner(there)
    except StoreNotFoundError:
        if has_topic(fs, store, topic):
            raise
        if options.strict:
            raise StoreNotFoundError(f"topic {topic!r} was deleted when the read had begun; {WITHOUT}", store) from None
        _LOG.warning("topic %r was deleted when the read had begun: left out, as failOnDataLoss is false", topic)
    return []


def beside_its_owner(look: Callable[[], T]) -> T:
    """Return what `look` finds in a snapshot that it takes; repeat it if the owner has deleted a segment meanwhile."""
    for _ in range(_LOOKS - 1):
        with suppress(StoreNotFoundError):
            return look()
    return look()


def snapshot(fs: FileSystem, store: str, topic: str, *, walk: bool = True) -> LogSnapshot:
    """Return a topic's log as it is now; `walk` as for `LogSnapshot.refresh`. Blocking.

    Raises:
        FormatVersionError: written by a newer aiodq.
        StorageError: as mapped from the system's error.
    """
    log = LogSnapshot(fs, os.path.join(store, topic))
    log.refresh(walk=walk)
    return log


def splits_of(fs: FileSystem, log: LogSnapshot, whole: Split, options: ReadOptions) -> Iterator[Split]:
    """Divide what is to be read of a topic into splits. Blocking.

    Raises:
        CorruptionError: messages in between are missing, with `options.strict`.
        StorageError: as mapped from the system's error.
    """
    lost = log.lost(whole.start, whole.stop)
    if lost is not None and options.strict:
        raise CorruptionError(f"{lost.reason}; {GO_ON}", lost.path, lost.position)
    if lost is not None:
        # A segment whose header is damaged may be read nevertheless, from its first message to its last.
        warn_of(whole.topic, "what can be read is read", lost)
    return _splits(fs, whole, _size(whole.view, whole.start, whole.stop, options))


def topics_of(
    fs: FileSystem, store: str, wanted: Sequence[str] | None, deleted: Container[str] = frozenset()
) -> list[str]:
    """Return the names of the topics of a store that are to be read, sorted; those in `deleted` may be missing.

    Raises:
        NotAStoreError: the directory holds something else.
        StoreNotFoundError: there is no such store, its directory is empty, or there is no topic of a name that was
            given in full.
        InvalidNameError: a name is not allowed for topics, or a pattern has a character that no name has.
    """
    check_store_directory(fs, store)
    there = list_topics(fs, store)
    if not there and _is_bare(fs, store):
        raise StoreNotFoundError("the directory is empty, and no store: is a file system not mounted there?", store)
    if wanted is None:
        return there
    known = set(there)
    for name in wanted:
        if _MAGIC & set(name) and not _PATTERN.fullmatch(name):
            raise InvalidNameError(
                f"{name!r:.200} is no pattern for topics: beside *, ? and […] it has what names have, letters, digits, "
                f"'.', '_' and '-'; several are orders,mail.*"
            )
        if not _MAGIC & set(name) and check_name(name) not in known and name not in deleted:
            raise StoreNotFoundError(f"there is no topic {name!r}; there are: {some_of(there)}", store)
    return matching(there, wanted)


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that are among these, or match one of these patterns. There may be very many names."""
    exact = {one for one in patterns if not _MAGIC & set(one)}
    rest = [one for one in patterns if one not in exact]
    return [name for name in names if name in exact or any(fnmatchcase(name, one) for one in rest)]


def some_of(names: Sequence[str]) -> str:
    """Return names in the form in which errors list them."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN]) or 'none'}{more}"


def read_topics(fs: FileSystem, store: str, options: ReadOptions, deleted: Container[str] = frozenset()) -> list[str]:
    """Return the names of a store's topics that the options select, as `topics_of` does."""
    found, pattern = topics_of(fs, store, options.topics, deleted), options.pattern
    return found if pattern is None else [name for name in found if re.fullmatch(pattern, name)]


def is_wanted(topic: str, options: ReadOptions) -> bool:
    """Return whether the options select a topic of this name."""
    listed = options.topics is None or matching([topic], options.topics)
    return bool(listed) and (options.pattern is None or re.fullmatch(options.pattern, topic) is not None)


def _is_bare(fs: FileSystem, store: str) -> bool:
    with os_errors(store):
        return set(fs.listdir(store)) <= {"lost+found"}


def _range(fs: FileSystem, log: LogSnapshot, topic: str, options: ReadOptions) -> tuple[int, int]:
    begin, end = log.begin, log.view.stop
    start = bound_offset(options.starting, topic, begin, end, default=begin)
    stop = bound_offset(options.ending, topic, begin, end, default=end)
    if options.strict and not begin <= start <= end:
        raise OffsetError(f"topic {topic!r} has the offsets {begin} to {end - 1}; the read is to start at {start}")
    if options.strict and not begin <= stop <= end:
        # Also an end that is gone: all that was asked for lies before it, and nothing would be read in silence.
        raise OffsetError(f"topic {topic!r} has the offsets {begin} to {end - 1}; the read is to end before {stop}")
    since, until = moment_of(options.starting_ns, topic), moment_of(options.ending_ns, topic)
    if since is not None:
        start = max(start, first_since(fs, log, since, options))
    if until is not None:
        with closing(LogReader(fs)) as reader:
            stop = min(stop, reader.offset_at(log.view, until))
    return max(start, begin), min(stop, end)


def first_since(fs: FileSystem, log: LogSnapshot, since: int, options: ReadOptions) -> int:
    """Return the first offset of a read that begins at a time, given in nanoseconds since the epoch. Blocking.

    With `options.strict`, damaged messages before it are included: they may be as new, and are reported as errors.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with closing(LogReader(fs)) as reader:
        return reader.offset_from(log.view, since) if options.strict else reader.offset_at(log.view, since)


def bound_offset(bound: Bound, topic: str, begin: int, end: int, *, default: int) -> int:
    """Return the offset that an option means for a topic with the offsets `begin` to `end`."""
    if isinstance(bound, dict):
        bound = bound.get(topic, default)
    if isinstance(bound, int):
        return bound
    return begin if bound == "earliest" else end


def moment_of(moment: Moment | None, topic: str) -> int | None:
    """Return the time that an option means for a topic, in nanoseconds since the epoch; None if it means none."""
    return moment.get(topic) if isinstance(moment, dict) else moment


def warn_of(topic: str, what: str, damage: Damage) -> None:
    """Warn of the first damage to a topic or a split, and what comes of it; all damage would be too much to tell."""
    text = "topic %r: %s, as failOnDataLoss is false: %s at byte %d: %s"
    extra = {"topic": topic, "offset": damage.first}
    _LOG.warning(text, topic, what, damage.path, damage.position, damage.reason, extra=extra)


def _size(view: LogView, start: int, stop: int, options: ReadOptions) -> int:
    """Return how many bytes a task reads: about `MOST_BYTES`; if there is much, each core gets as many tasks.

    Starting a task costs Spark about 25 ms of processor time, in which it could read several megabytes.
    """
    if options.split_bytes is not None:
        return options.split_bytes
    size = sum(segment.data_end for segment in view.between(start, stop))
    return max(-(-size // most_tasks(size)), LEAST_BYTES)


def most_tasks(size: int) -> int:
    """Return the most tasks for so many bytes: a multiple of the cores."""
    cores = os.cpu_count() or 1
    return cores * max(round(size / (cores * MOST_BYTES)), 1)


def _splits(fs: FileSystem, whole: Split, size: int) -> Iterator[Split]:
    """Divide a split where the segments' indexes allow it, about every `size` bytes, but not in its unseen part."""
    reader, start = LogReader(fs), whole.start
    try:
        while start < whole.stop:
            stop = min(reader.offset_behind(whole.view, start, size, size // _SLACK), whole.stop)
            if whole.unseen < stop < whole.stop:
                stop = whole.unseen if start < whole.unseen else whole.stop
            parts = [each for each in whole.view.between(start, stop) if not each.empty]
            if parts:
                data_end = whole.view.data_end_of(parts[-1])
                view = LogView(tuple(reader.light(each, start) for each in parts), stop, data_end)
                yield replace(whole, view=view, start=start, stop=stop)
            start = stop
    finally:
        reader.close()
