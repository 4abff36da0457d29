"""A topic's log, as its owner writes it: append, roll, sync, adopt, delete."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from aiodq.errors import DiskFullError, MissingExtraError, StorageError, StoreFailedError
from aiodq.format.codecs import CODEC_NONE, codec_number
from aiodq.format.layout import MAX_BASE
from aiodq.format.producers import Producer
from aiodq.format.segment import topic_salt
from aiodq.storage.io.durable_io import ensure_directory
from aiodq.storage.log.opening import open_segments
from aiodq.storage.log.producer_table import ProducerTable
from aiodq.storage.log.segment_opener import SegmentOpener
from aiodq.storage.log.staged_segments import move_in, place, placed
from aiodq.storage.read.log_reader import LogView
from aiodq.storage.segments.offset_ranges import total
from aiodq.storage.segments.segment_files import remove_segments
from aiodq.storage.segments.segment_list import SegmentList
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.storage.state.topic.topic_meta import load_meta
from aiodq.storage.state.watermark import WATERMARK, WatermarkFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiodq.clock import Clock
    from aiodq.format.columns import Columns
    from aiodq.options import StoreOptions
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.log.active_segment import ActiveSegment
    from aiodq.storage.log.producer_table import Origin
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.state.topic.stored_options import StoredOptions
    from aiodq.storage.state.topic.topic_meta import TopicMeta

__all__ = ["LogOptions", "TopicLog"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options that a log needs.

    Attributes:
        segment_bytes: the size at which a segment rolls.
        codec: its number.
        windows: whether small writes may go through write windows. Where a put waits for its sync, they would gain
            nothing, and without them a trace of the system calls shows what is synced.
    """

    segment_bytes: int
    codec: int = CODEC_NONE
    windows: bool = False

    @classmethod
    def of(cls, options: StoreOptions) -> LogOptions:
        """Return the log's part of a topic's options, which may name a codec that is not installed here."""
        try:
            codec = codec_number(options.compression)
        except MissingExtraError:
            codec = CODEC_NONE
        return cls(options.segment_bytes, codec, options.sync != "always")


class TopicLog:
    """The log of one topic: its segments.

    Blocking, and not for two threads at once, with two exceptions: `sync` may run during `stage`, `flush` and
    `commit`, and readers may read at any time.

    Attributes:
        active: the segment being written.
        directory: the topic's.
        options: what is staged next uses them; `configure` replaces them.
        description: the topic's, to be changed.
        segments: in order; the last one is being written.
        listed: the same, with running sums.
        damages: damage found at open.
        cut_bytes: bytes of unfinished writes truncated at open.
        durable: the offset below which everything is on the device.
        closed: whether its files are closed or being closed.
        producers: the producer table; empty before `recall`.
    """

    __slots__ = (
        "_begun", "_clock", "_opener", "_skipped", "_slots", "active", "closed", "cut_bytes", "damages",
        "description", "directory", "durable", "fs", "listed", "options", "producers", "segments",
    )  # fmt: skip

    def __init__(
        self, fs: FileSystem, directory: str, options: LogOptions, clock: Clock, record: StoredOptions | None = None,
        *, synced: bool = False,
    ) -> None:  # fmt: skip
        """Open or create the topic's files, and recover.

        Args:
            fs: the store's.
            directory: the topic's.
            options: the size of its segments, and their codec.
            clock: the store's.
            record: the options to store if the topic is created now.
            synced: see `ensure_directory`.

        Raises:
            FormatVersionError: written by a newer aiodq; nothing was touched.
            StorageError: as mapped from the system's error.
        """
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.options: LogOptions = options
        self._clock = clock
        self._begun: tuple[ActiveSegment, int, int] | None = None
        self._skipped = 0
        self.closed: bool = False
        self.producers: ProducerTable = ProducerTable()
        ensure_directory(fs, directory, synced=synced)
        meta, damages = load_meta(fs, directory, record)
        self.description: TopicDescription = TopicDescription(fs, directory, meta)
        self._opener = SegmentOpener(fs, directory, meta.uuid, clock, self.producers)
        self._slots = WatermarkFile(fs, os.path.join(directory, WATERMARK))
        active = None
        try:
            found = open_segments(fs, directory, self.description, self._slots, self._opener)
            active = found.active
            self._list(found.listed)
            self.damages: list[Damage] = damages + found.damages
            self.cut_bytes: int = found.cut_bytes
            self._write_to(active)
            self.durable: int = active.segment.end
            self._slots.write(self.durable, topic_salt(meta.uuid))
        except BaseException:
            self._slots.close()
            if active is not None:
                active.close()
            raise

    def configure(self, options: LogOptions) -> None:
        """Use other options from now on."""
        self.options = options
        self.active.allow_windows(allowed=options.windows)

    def _write_to(self, active: ActiveSegment) -> None:
        self.active: ActiveSegment = active
        active.allow_windows(allowed=self.options.windows)

    def _list(self, listed: SegmentList) -> None:
        self.listed: SegmentList = listed
        self.segments: tuple[Segment, ...] = listed.segments

    @property
    def meta(self) -> TopicMeta:
        """The topic's description."""
        return self.description.meta

    @property
    def end(self) -> int:
        """The offset after the last record written."""
        return self.active.segment.end

    @property
    def begin(self) -> int:
        """The first offset that may be read."""
        return max(self.meta.begin, self._skipped, self.segments[0].base)

    @property
    def lost(self) -> int:
        """The number of messages found to be missing; a repair resets it."""
        return total(self.meta.lost)

    @property
    def ready(self) -> bool:
        """Whether `flush` opens no file: that of an idle topic may be closed."""
        return self.active.ready

    def wake(self) -> None:
        """Reopen the active segment's file if it was closed while the topic was idle. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.active.wake()

    def skip_to(self, offset: int) -> None:
        """Raise `begin` to `offset` until the log is opened again; `give_up` makes that durable."""
        self._skipped = max(self._skipped, min(offset, self.end))

    def view(self, stop: int | None = None) -> LogView:
        """Return what readers may see, up to `stop` or to the end of what was written."""
        segment = self.active.segment
        return LogView(self.segments, segment.end if stop is None else min(stop, segment.end), segment.data_end)

    def recall(self) -> None:
        """Load the producer table from the log's files. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.producers.recall(self.fs, self.segments, self.end, topic_salt(self.meta.uuid))
        self.active.begins_with_producers = bool(self.producers.puts)

    def stage(
        self, columns: Columns, time_ns: int, *, atomic: bool, origin: Origin | None = None, pausing: bool = False
    ) -> tuple[int, int] | None:
        """Stage records for the next `flush`; return None if `roll` has to come first.

        Args:
            columns: the records.
            time_ns: the time of the put.
            atomic: all or nothing.
            origin: the producer and sequence of an idempotent put; the put is atomic then.
            pausing: as for `ActiveSegment.stage`.

        Returns:
            The first offset and the one after the last.
        """
        return self.active.stage(
            columns,
            self.options.segment_bytes,
            watermark=self.durable,
            time_ns=time_ns,
            codec=self.options.codec,
            atomic=atomic,
            producers=self.producers,
            origin=origin,
            pausing=pausing,
        )

    def append(
        self, body: bytes, time_ns: int, *, zeros_ahead: bool = False, origin: Origin | None = None,
        labelled: Columns | None = None,
    ) -> int:  # fmt: skip
        """Write one record at once, and make it visible to readers; `labelled` is it if it has more than a body.

        Returns:
            Its offset, or -1 if it has to go through `stage`.

        Raises:
            DiskFullError: no space; call `rollback`, and later puts may succeed.
            StorageError: as mapped from the system's error; call `rollback`.
        """
        offset = self.active.append(body, self.options.segment_bytes, self.durable, time_ns, origin, labelled=labelled)
        if zeros_ahead and offset >= 0:
            self.active.reserve()
        if origin is not None and offset >= 0:
            self.producers.note(Producer(*origin, offset, 1, time_ns))
        return offset

    @property
    def staged_bytes(self) -> int:
        """The staged bytes that wait for `flush`."""
        return self.active.staged_bytes

    def flush(self) -> None:
        """Write what is staged.

        Raises:
            DiskFullError: no space; call `rollback`, and later puts may succeed.
            StorageError: as mapped from the system's error; call `rollback`.
        """
        self.active.flush()

    def commit(self) -> None:
        """Make what was flushed visible to readers."""
        self.active.commit(self.producers)

    def rollback(self) -> None:
        """Drop what was staged or flushed since the last commit."""
        self.active.rollback()

    def sync(self) -> None:
        """Make durable what was committed before, and note the watermark.

        Raises:
            StorageError: it is unknown what is on disk; the log must not be used any further.
        """
        end = self.active.segment.end
        self.active.sync()
        self.durable = max(self.durable, end)
        self._note()

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Begin an asynchronous sync of the active segment, the first half of `sync`; see `PooledFile.begin_sync`."""
        active = self.active
        # INVARIANT: the sync covers what was committed before it began.
        self._begun = active, active.segment.data_end, active.segment.end
        return self._slots.ready and active.begin_sync(submit)

    def end_sync(self, error: int) -> None:
        """Note the end of the sync begun by `begin_sync`, with its errno, 0 for none.

        Raises:
            StoreFailedError: it is unknown what is on disk; the log must not be used any further.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            raise StoreFailedError("a sync has ended that was not begun; open the store again", self.directory)
        active, position, end = begun
        active.end_sync(position, error)
        self.durable = max(self.durable, end)
        self._note()

    def _note(self) -> None:
        """Note the watermark: how far the log is durable."""
        # CRASH: 3. Written after the sync and without one of its own: it may be late, never early. So a failed write
        # casts no doubt on what was synced; the next one promises as much and more.
        with suppress(StorageError):
            self._slots.write(self.durable, topic_salt(self.meta.uuid))

    def roll(self) -> None:
        """Seal the segment being written and begin the next. An empty segment stays.

        Raises:
            StorageError: the segment goes on as it was, sealed or not; a later `roll` repeats what is left to do.
        """
        active = self.active
        if active.segment.empty:
            return
        if not active.segment.sealed:
            active.seal()
        self.durable = max(self.durable, active.segment.end)
        self._note()
        following = self._opener.create(active.segment.end)
        self._list(self.listed.followed_by(following.segment))
        self._write_to(following)
        active.close()

    def adopt(self, staged: Sequence[tuple[str, int]], note: Callable[[int], None]) -> None:
        """Adopt whole segments that another process has written, at the end of the log.

        Args:
            staged: their paths, and how many records each holds.
            note: called with the offset of their first record; once it has made that durable, the adoption stands.

        Raises:
            StorageError: the offset was not noted, and the log is as before.
            StoreFailedError: the offset is noted, but the adoption is unfinished.
        """
        bases = list(accumulate((records for _, records in staged), initial=self.end))
        if bases[-1] > MAX_BASE:
            raise StorageError(f"the topic has no offset left for {bases[-1] - self.end} messages", self.directory)
        self.roll()
        for (path, records), base in zip(staged, bases, strict=False):
            place(self.fs, path, self.meta.uuid, base, records)
        note(bases[0])
        try:
            self.active.close()
            move_in(self.fs, self.directory, [(path, base) for (path, _), base in zip(staged, bases, strict=False)])
            adopted = [placed(self.fs, self.directory, self.meta.uuid, base) for base in bases[:-1]]
            self._write_to(self._opener.after(adopted[-1]))
        except StorageError as cause:
            raise StoreFailedError(f"{cause.message}; open the store again", cause.path) from cause
        self._list(SegmentList.ending_in((*self.segments[:-1], *adopted), self.active.segment))
        self.durable = bases[-1]
        self._note()

    def hide(self, segments: Iterable[Segment]) -> None:
        """Hide segments from new views; `remove` then deletes them. The last one stays."""
        self._list(self.listed.without(segments))

    def remove(self, segments: Sequence[Segment]) -> None:
        """Delete the files of segments that were hidden. A missing file is fine.

        Raises:
            StorageError: as mapped from the system's error; the rest is found again at the next open.
        """
        remove_segments(self.fs, segments)

    def close(self) -> None:
        """Make everything durable and close the files.

        Raises:
            StorageError: it is unknown what is on disk.
        """
        try:
            self.active.flush()
            self.active.commit()
            if self.producers.puts and self.active.crowded:
                self._seal_or_sync()
            else:
                self.sync()
            self._slots.sync()
        finally:
            self.abandon()

    def _seal_or_sync(self) -> None:
        """Seal the segment with the producer table at its end, so that the next owner need not scan for it."""
        active = self.active
        try:
            active.stage_end(
                self.producers, self.options.segment_bytes, watermark=self.durable, time_ns=self._clock.now_ns()
            )
            active.flush()
            active.commit()
            active.seal()
        except DiskFullError:
            active.rollback()
            self.sync()
        else:
            self.durable = max(self.durable, self.end)
            self._note()

    def abandon(self) -> None:
        """Only close the files; what a failed write left is truncated if that works."""
        self.closed = True
        try:
            self.active.close()
        finally:
            self._slots.close()
