"""Reading a store without owning it: no lock, nothing written, while its owner runs or on a copy.

An owner only ever appends to one segment, seals it, begins the next, and deletes whole ones; and the frames themselves
show how far they are whole. So a reader needs no coordination with the owner: the first unfinished frame is the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, Final, TypeVar

from aiodq.errors import CorruptionError, MissingExtraError, StorageError, StoreNotFoundError
from aiodq.format.journal import ChannelImage, unsettled
from aiodq.names import check_name
from aiodq.stats import HeldSegment
from aiodq.storage.io.filesystem import FileSystem, OsFileSystem, name_exists
from aiodq.storage.io.os_errors import is_refused
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.log.backlog_bytes import BacklogBytes
from aiodq.storage.offline.summaries import ChannelSummary, StoreSummary, TopicSummary
from aiodq.storage.read.delayed_index import delayed
from aiodq.storage.read.frame_reader import FrameReader
from aiodq.storage.read.frame_results import Rows
from aiodq.storage.read.log_reader import LogReader, LogView
from aiodq.storage.read.snapshot import LogSnapshot
from aiodq.storage.read.stored_message import StoredMessage, records_of
from aiodq.storage.segments.offset_ranges import total
from aiodq.storage.segments.segment_files import Segment
from aiodq.storage.state.assessment import channel_images
from aiodq.storage.state.holds import Hold, held_by, read_holds
from aiodq.storage.state.owner_stats import ChannelFigures, Figures, read_figures
from aiodq.storage.store_layout import check_store_directory, has_topic, list_topics
from aiodq.values import check_flag, check_scan, check_whole, refuse, several

__all__ = ["ChannelSummary", "StoreReader", "StoreSummary", "TopicReader", "TopicSummary"]

R = TypeVar("R", bound=Rows)

_CHUNK: Final = 1 << 20


class TopicReader:
    """A reader of one topic, which may be used while the owner runs.

    Made by `StoreReader.topic`. It keeps no files open between calls. Not for two threads at once.

    Attributes:
        name: the topic's.
        damages: the damage found so far, each once.
    """

    def __init__(self, fs: FileSystem, directory: str, name: str) -> None:
        """Read the topic's files.

        Raises:
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error.
        """
        self.name = name
        self._fs = fs
        self._log = LogSnapshot(fs, directory)
        self._noted: dict[tuple[str, int, int], Damage] = {}
        self.refresh()

    def __repr__(self) -> str:
        """Show the topic, and what it held at the last `refresh`."""
        found = f", {len(self._noted)} damages" * bool(self._noted)
        offsets = f"offsets {self.begin_offset} to before {self.end_offset}"
        return f"<TopicReader {self.name!r} read-only, {offsets}{found} [{os.path.dirname(self._log.directory)}]>"

    @property
    def damages(self) -> tuple[Damage, ...]:
        """The damage found so far, each once."""
        return tuple(self._noted.values())

    @property
    def begin_offset(self) -> int:
        """The oldest message's offset, at the last `refresh`."""
        return self._log.begin

    @property
    def end_offset(self) -> int:
        """The offset after the newest message, at the last `refresh`."""
        return self._log.view.stop

    def channels(self) -> list[str]:
        """Return the names of the channels that existed at the last `refresh`."""
        return sorted(self._log.meta.channels)

    def refresh(self) -> LogView:
        """See what was added and removed. Of the segment being written, only what is new is scanned.

        Raises:
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error.
        """
        self._log.refresh()
        for damage in self._log.damages:
            self._note(damage)
        return self._log.view

    def _note(self, damage: Damage) -> None:
        key = (damage.path, damage.position, damage.first if damage.position == damage.end else -1)
        self._noted.setdefault(key, damage)

    def scan(
        self, start: int | None = None, stop: int | None = None, *, strict: bool = False
    ) -> Iterator[StoredMessage]:
        """Yield the messages there are now, in order.

        Args:
            start: the first offset; the oldest message if None or older.
            stop: the offset to end before; the current end if None or beyond it.
            strict: raise on damage, instead of adding it to `damages` and continuing after it.

        Raises:
            InvalidOptionError: `start` or `stop` is negative, or not an offset, or `strict` is neither True nor False;
                where the type is wrong, also a `TypeError`.
            CorruptionError: with `strict`, messages are damaged or missing.
            StorageError: as mapped from the system's error.
        """
        check_scan(start, stop)
        check_flag("strict", strict)
        return self._records(start, stop, strict=strict)

    def _records(self, start: int | None, stop: int | None, *, strict: bool) -> Iterator[StoredMessage]:
        for batch in self._rows(LogReader(self._fs), start, stop, strict=strict):
            yield from records_of(batch, self.name)

    def record_batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Collection[str] | None = None,
        most_rows: int = 65_536,
        verify: bool = True,
        strict: bool = False,
    ) -> Iterator[Any]:
        """Yield the messages there are now, in order, as Arrow.

        Args:
            start: as for `scan`.
            stop: as for `scan`.
            columns: which of `topic`, `offset`, `timestamp`, `tag`, `key`, `headers` and `body`; all if None. The
                others are not decoded.
            most_rows: the largest batch; a batch of about 2 MiB is not enlarged.
            verify: compare checksums; without it, damage in bodies is not noticed.
            strict: as for `scan`.

        Yields:
            `pyarrow.RecordBatch` objects. `offset` is int64, `timestamp` microseconds in UTC, `headers` a map; `tag`,
            `key` and `headers` are null where a message has none.

        Raises:
            InvalidOptionError: there is no such column, or `most_rows` is below 1; or as for `scan`.
            MissingExtraError: pyarrow is not installed.
            CorruptionError: with `strict`, messages are damaged or missing.
            StorageError: as mapped from the system's error.
        """
        check_scan(start, stop)
        check_whole("most_rows", most_rows, least=1, example=65_536)
        check_flag("verify", verify)
        check_flag("strict", strict)
        arrow = _arrow()
        wanted = arrow.columns_of(columns)
        rows = self._rows(arrow.arrow_reader(self._fs, wanted, verify=verify), start, stop, strict=strict)
        found: Iterator[Any] = arrow.as_record_batches(rows, self.name, wanted, most_rows)
        return found

    def to_arrow(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Collection[str] | None = None,
        verify: bool = True,
        strict: bool = False,
    ) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the messages there are now as a `pyarrow.Table`, which pandas, Polars and DuckDB take.

        Arguments and *Raises* are those of `record_batches`.
        """
        wanted = _arrow().columns_of(columns)
        batches = self.record_batches(start, stop, columns=wanted, verify=verify, strict=strict)
        return _arrow().as_table(batches, wanted)

    def _rows(self, reader: FrameReader[R], start: int | None, stop: int | None, *, strict: bool) -> Iterator[R]:
        view = self.refresh()
        at = self._log.begin if start is None else max(start, self._log.begin)
        end = view.stop if stop is None else min(stop, view.stop)
        lost = self._log.lost(at, end) if strict else None
        end = end if lost is None else min(end, lost.first)
        try:
            while at < end:
                result = reader.read(view, at, _CHUNK)
                for damage in result.damages:
                    self._met(damage, strict=strict)
                yield from (rows.cut(at, end) for rows in result.batches if rows.first < end)
                at = result.next
        finally:
            reader.close()
        if lost is not None:
            raise CorruptionError(lost.reason, lost.path, lost.position)

    def waiting(self, channel: str) -> Iterator[StoredMessage]:
        """Yield the messages that a channel has not settled, in order: ready, in flight and deferred.

        Raises:
            InvalidNameError: no channel can have that name.
            StoreNotFoundError: there is no such channel.
            StorageError: as mapped from the system's error.
        """
        channel = check_name(channel, "channel")
        log = self._log
        self.refresh()
        image = channel_images(self._fs, log.directory, log.meta).get(channel)
        if image is None:
            raise StoreNotFoundError(f"topic {self.name!r} has no channel {channel!r}", log.directory)
        return (m for m in self.scan(image.floor) if unsettled(image, m.offset, m.offset + 1))

    def _met(self, damage: Damage, *, strict: bool) -> None:
        """Add damage that a read met, unless the owner has deleted the segment."""
        if damage.position == damage.end:
            known = [gap for gap in self._log.gaps if gap.first < damage.stop and damage.first < gap.stop]
            if not known:
                return
            damage = known[0]
        elif not name_exists(self._fs, damage.path):
            return
        self._note(damage)
        if strict:
            raise CorruptionError(damage.reason, damage.path, damage.position)

    def stats(self) -> TopicSummary:
        """Return the topic's figures, after a `refresh`.

        Raises:
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error.
        """
        self.refresh()
        store = os.path.dirname(self._log.directory)
        return self._summary(read_figures(self._fs, store), read_holds(self._fs, store))

    def _summary(self, shown: Figures | None, holds: Mapping[str, Hold]) -> TopicSummary:
        log, view = self._log, self._log.view
        images = channel_images(self._fs, log.directory, log.meta, view.stop)
        dues = dict(self._dues(view))
        known = None if shown is None else shown.get(self.name, {})
        channels = {name: self._channel(name, image, view, dues, known) for name, image in images.items()}
        return TopicSummary(
            self.name,
            log.begin,
            view.stop,
            log.durable_end,
            len(view.segments),
            sum(segment.size for segment in view.segments),
            sum(segment.records for segment in view.segments),
            self.damages,
            channels,
            tuple(_held(view.segments[:-1], images, {n: hold.first(self.name) for n, hold in holds.items()})),
            total(log.meta.lost),
        )

    def _dues(self, view: LogView) -> Iterator[tuple[int, int]]:
        """Yield (offset, due time) of the messages that were put with a delay and are not due yet."""
        now = time.time_ns()
        return ((offset, due) for offset, _, due in delayed(self._fs, view) if due > now)

    def _channel(
        self,
        name: str,
        image: ChannelImage,
        view: LogView,
        dues: Mapping[int, int],
        known: Mapping[str, ChannelFigures] | None,
    ) -> ChannelSummary:
        ranges = [(max(segment.base, self._log.begin), segment.end) for segment in view.segments]
        depth = sum(unsettled(image, start, stop) for start, stop in ranges)
        now = time.time_ns()
        deferred = {offset for offset, due in image.deferred.items() if due > now}
        deferred |= {o for o in dues if o not in image.attempts and unsettled(image, o, o + 1)}
        seen = None if known is None else known.get(name, ChannelFigures())
        in_flight = None if seen is None else seen.in_flight
        return ChannelSummary(
            name=name,
            ready=max(depth - len(deferred) - (in_flight or 0), 0),
            in_flight=in_flight,
            deferred=len(deferred),
            depth=depth,
            floor=image.floor,
            returned=sum(offset < view.stop for offset in image.attempts),
            timed_out=None if seen is None else seen.timed_out,
            dead=None if seen is None else seen.dead,
            oldest_ns=self._oldest(image, view),
            backlog_bytes=BacklogBytes().of(view.segments, max(image.floor, self._log.begin), depth),
            dropped=None if seen is None else seen.dropped,
            put_to_deliver=None if seen is None else seen.put_to_deliver,
            put_to_ack=None if seen is None else seen.put_to_ack,
            paused=not self._log.meta.paused.isdisjoint({"", name}),
        )

    def _oldest(self, image: ChannelImage, view: LogView) -> int | None:
        """Return the put time of the message at a channel's floor, or of the first one that exists after it."""
        reader = LogReader(self._fs)
        try:
            for batch in reader.read(view, max(image.floor, self._log.begin), 1).batches:
                times = batch.columns.times
                return batch.time_ns if times is None else times[0]
        finally:
            reader.close()
        return None


def _arrow() -> ModuleType:
    try:
        from aiodq.storage.read import arrow_reader  # noqa: PLC0415 - it imports pyarrow, which is an extra
    except ImportError as cause:
        raise MissingExtraError("Arrow needs the extra 'arrow': pip install 'aiodq[arrow]'") from cause
    return arrow_reader


class StoreReader:
    """A reader of a store, with or without an owner. It takes no lock, writes nothing and keeps no files open.

    Attributes:
        path: the store's directory.
    """

    def __init__(self, path: str, fs: FileSystem | None = None) -> None:
        """Check that there is a store.

        Raises:
            StoreNotFoundError: there is no such directory.
            NotAStoreError: the directory holds something else.
            StorageError: as mapped from the system's error.
        """
        self.path = path
        self._fs = fs or OsFileSystem()
        self._readers: dict[str, TopicReader] = {}
        check_store_directory(self._fs, path)

    def __repr__(self) -> str:
        """Show the path."""
        return f"<StoreReader {self.path!r} read-only>"

    def topics(self) -> list[str]:
        """Return the names of the topics there are now, sorted.

        Raises:
            StorageError: as mapped from the system's error.
        """
        return list_topics(self._fs, self.path)

    def topic(self, name: str) -> TopicReader:
        """Return the reader of a topic, refreshed; each call returns the same one.

        Raises:
            InvalidNameError: no topic can have that name.
            StoreNotFoundError: there is no such topic.
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error.
        """
        name = check_name(name)
        if not has_topic(self._fs, self.path, name):
            self._readers.pop(name, None)
            raise StoreNotFoundError(f"there is no topic {name!r}", self.path)
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = TopicReader(self._fs, os.path.join(self.path, name), name)
        else:
            reader.refresh()
        return reader

    def stats(self, topics: Iterable[str] | None = None) -> StoreSummary:
        """Return the figures of every topic, or why the system does not let it be read.

        Args:
            topics: only those of these, as far as they are there.

        Raises:
            InvalidOptionError: these are no names; a `TypeError` too.
            InvalidNameError: no topic can have one of these names.
            FormatVersionError: written by a newer aiodq.
            StorageError: as mapped from the system's error, if that may pass or concerns more than a topic.
        """
        found: dict[str, TopicSummary] = {}
        refused: dict[str, str] = {}
        shown: Figures | None = None
        holds = cache(partial(read_holds, self._fs, self.path))
        wanted = None if topics is None else _names(topics)
        for name in self.topics():
            if wanted is not None and name not in wanted:
                continue
            # Both cover all topics: read again for each, they would be most of the cost for a store of many topics.
            shown = shown or read_figures(self._fs, self.path)
            try:
                found[name] = self.topic(name)._summary(shown, holds())  # noqa: SLF001 - refreshed just now
            except StorageError as error:
                if not is_refused(error):
                    raise
                refused[name] = str(error)
        return StoreSummary(self.path, found, refused)


def _names(topics: Iterable[str]) -> set[str]:
    found = several(topics)
    if found is None:
        refuse("topics", "a list of names", topics, "write topics=['orders']", type_is_wrong=True)
    return {check_name(name) for name in found}


def _held(
    segments: Sequence[Segment], images: Mapping[str, ChannelImage], holds: Mapping[str, int | None]
) -> Iterator[HeldSegment]:
    """Yield the segments that channels or holds keep."""
    for segment in segments:
        by = sorted(name for name, image in images.items() if unsettled(image, segment.base, segment.end))
        by += [held_by(name) for name, first in holds.items() if first is not None and segment.end > first]
        if by:
            yield HeldSegment(segment.base, segment.end, segment.size, tuple(by))
