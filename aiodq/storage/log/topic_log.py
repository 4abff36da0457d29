"""A topic's log, as its owner writes it: append, roll, sync, give up, recover."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from aiodq.errors import DiskFullError, MissingExtraError, StorageError, StoreFailedError
from aiodq.format.codecs import CODEC_NONE, codec_number
from aiodq.format.footer import SegmentIndex
from aiodq.format.producers import Producer
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.io.durable_io import ensure_directory, read_file, sweep_temporaries
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.io.quarantine import Damage, quarantine
from aiodq.storage.log.active_segment import ActiveSegment
from aiodq.storage.log.producer_table import ProducerTable
from aiodq.storage.log.recovery import recover
from aiodq.storage.log.staged_segments import move_in, place, placed
from aiodq.storage.read.log_reader import LogView
from aiodq.storage.segments.offset_ranges import joined, total, without
from aiodq.storage.segments.segment_files import Segment, load_index, segment_path
from aiodq.storage.segments.segment_list import SegmentList
from aiodq.storage.state.assessment import missing
from aiodq.storage.state.topic_meta import TopicMeta, load_meta, save_meta
from aiodq.storage.state.watermark import SLOT_FILE_BYTES, WATERMARK, WatermarkFile, check_slots, noted_watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiodq.clock import Clock
    from aiodq.format.columns import Columns
    from aiodq.options import ChannelOptions, StoreOptions
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.log.producer_table import Origin
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.state.stored_options import StoredOptions

__all__ = ["LogOptions", "TopicLog"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options that a log needs: the size at which a segment rolls, and the number of the codec."""

    segment_bytes: int
    codec: int = CODEC_NONE

    @classmethod
    def of(cls, options: StoreOptions) -> LogOptions:
        """Return these options. Chosen in another process, they may name a codec that is not installed here."""
        try:
            codec = codec_number(options.compression)
        except MissingExtraError:
            codec = CODEC_NONE
        return cls(options.segment_bytes, codec)


class TopicLog:
    """The log of one topic: its segments.

    Blocking, and not for two threads at once, with two exceptions: `sync` may run during `stage`, `flush` and
    `commit`, and readers may read at any time.

    Attributes:
        active: the segment being written.
        directory: the topic's.
        options: may be replaced; what is staged next uses the new ones.
        meta: the topic's description.
        segments: in order; the last one is being written.
        listed: the same, with running sums.
        damages: damage found at open.
        cut_bytes: bytes of unfinished writes truncated at open.
        durable: the offset below which everything is on the device.
        closed: whether its files are closed or being closed.
        producers: the producer table; empty before `recall`.
    """

    __slots__ = (
        "_begun", "_clock", "_describing", "_skipped", "_slots", "active", "closed", "cut_bytes", "damages",
        "directory", "durable", "fs", "listed", "meta", "options", "producers", "segments",
    )  # fmt: skip

    def __init__(
        self, fs: FileSystem, directory: str, options: LogOptions, clock: Clock, record: StoredOptions | None = None
    ) -> None:
        """Open or create the topic's files, and recover.

        Args:
            fs: the store's.
            directory: the topic's.
            options: the size of its segments, and their codec.
            clock: the store's.
            record: the options to store if the topic is created now.

        Raises:
            FormatVersionError: written by a newer aiodq; nothing was touched.
            StorageError: as mapped from the system's error.
        """
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.options: LogOptions = options
        self._clock = clock
        self._begun: tuple[ActiveSegment, int, int] | None = None
        self._describing = threading.Lock()
        self._skipped = 0
        self.closed: bool = False
        self.producers: ProducerTable = ProducerTable()
        ensure_directory(fs, directory)
        self.meta: TopicMeta
        self.damages: list[Damage]
        self.meta, self.damages = load_meta(fs, directory, record)
        self._slots = WatermarkFile(fs, os.path.join(directory, WATERMARK))
        self._list(SegmentList())
        active = None
        try:
            promised = self._promised()
            found = recover(fs, directory, self.meta.uuid, promised, copied=self._slots.created)
            self.damages += found.damages
            self.cut_bytes: int = found.cut_bytes
            sweep_temporaries(fs, directory)
            self._note_losses(found.segments, self._report_missing(found.segments, promised))
            active = self._continue(self._without_dead(found.segments), promised)
            self.active: ActiveSegment = active
            self.durable: int = active.segment.end
            self._slots.write(self.durable, topic_salt(self.meta.uuid))
        except BaseException:
            self._slots.close()
            if active is not None:
                active.close()
            raise

    def _keep_watermark(self) -> None:
        """Quarantine a watermark that cannot be read, before it is overwritten."""
        if self._slots.values != (0, 0):
            return
        data = read_file(self.fs, self._slots.path, SLOT_FILE_BYTES) or b""
        # A power cut may leave it so, whose writes are not synced: nothing was promised in it, and nothing is counted.
        if any(severity == "damage" for severity, _, _ in check_slots(data)):
            quarantine(self.fs, self._slots.path, 0, len(data))

    def _promised(self) -> int:
        """Return the noted watermark, unless it is another topic's or junk: then it is quarantined."""
        self._keep_watermark()
        promised = noted_watermark(self._slots.values, topic_salt(self.meta.uuid))
        if promised != self._slots.values[0]:
            quarantine(self.fs, self._slots.path, 0, SLOT_FILE_BYTES)
            self.damages.append(Damage(self._slots.path, 0, SLOT_FILE_BYTES, "the watermark is another topic's"))
        return promised

    def _report_missing(self, segments: Sequence[Segment], promised: int) -> Ranges:
        """Report the offsets that no segment holds and that were not given up; return those that a channel awaits.

        They are reported until every channel has passed them, even if they are noted already.
        """
        lost: Ranges = ()
        spans = [(segment.base, segment.end) for segment in segments]
        for gap in missing(self.fs, self.directory, self.meta, spans, promised):
            behind = gap.place == len(spans)
            between = gap.place > 0 and not behind
            what = "acknowledged messages are missing:" if behind else "no segment holds the"
            reason = f"{what} offsets {gap.first} to {gap.stop - 1}"
            path = segments[gap.place].path if between else self.directory
            self.damages.append(Damage(path, 0, 0, reason, gap.first, gap.stop))
            lost += gap.ranges
        return lost

    def _note_losses(self, segments: Sequence[Segment], found: Ranges) -> None:
        """Note what is missing; forget what is there again because somebody has put its file back."""
        lost = without((*self.meta.lost, *found), ((segment.base, segment.end) for segment in segments))
        if lost != self.meta.lost:
            # CRASH: 14. Noted before a new segment, or a channel that passes them, hides that they existed.
            self._describe_with_room(replace(self.meta, lost=lost))

    def _without_dead(self, segments: list[Segment]) -> list[Segment]:
        """Delete segments wholly below the offset that was given up, whose deletion was interrupted."""
        dead = [segment for segment in segments[:-1] if segment.end <= self.meta.begin]
        self.remove(dead)
        return segments[len(dead) :]

    def _continue(self, segments: list[Segment], promised: int) -> ActiveSegment:
        """Return the segment to append to: the last one if it can grow, else a new one after all that was promised."""
        end = segments[-1].end if segments else 0
        # INVARIANT: no lost offset is assigned again.
        promised = max(promised, self.meta.begin, *(stop for _, stop in self.meta.lost))
        if segments and not segments[-1].sealed and end >= promised:
            active = self._reopen(segments[-1])
            self._list(SegmentList(segments))
            return active
        if segments and not segments[-1].sealed:
            self._seal_last(segments[-1])
        fits = segments and promised <= end
        active = self._after(segments[-1]) if fits else self._create(max(end, promised))
        self._list(SegmentList((*segments[:-1], *_once(segments[-1:], active))))
        return active

    def _seal_last(self, segment: Segment) -> None:
        active = self._reopen(segment)
        try:
            active.seal()
        finally:
            active.close()

    def _reopen(self, segment: Segment) -> ActiveSegment:
        try:
            file = self.fs.open(segment.path, write=True)
        except OSError as cause:
            raise storage_error(cause, segment.path) from cause
        try:
            index = load_index(file, segment) if segment.sealed else segment.index
        except BaseException:
            file.close()
            raise
        return ActiveSegment(self.fs, file, segment, index or SegmentIndex())

    def _list(self, listed: SegmentList) -> None:
        self.listed: SegmentList = listed
        self.segments: tuple[Segment, ...] = listed.segments

    def _create(self, base: int) -> ActiveSegment:
        header = SegmentHeader(base, self.meta.uuid, self._clock.now_ns(), topic_salt(self.meta.uuid))
        active = ActiveSegment.create(self.fs, segment_path(self.directory, base), header)
        active.begins_with_producers = bool(self.producers.puts)
        return active

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
        self, columns: Columns, time_ns: int, *, atomic: bool, origin: Origin | None = None
    ) -> tuple[int, int] | None:
        """Stage records for the next `flush`; return None if `roll` has to come first.

        Args:
            columns: the records.
            time_ns: the time of the put.
            atomic: all or nothing.
            origin: the producer and sequence of an idempotent put; the put is atomic then.

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
        )

    def append(self, body: bytes, time_ns: int, *, zeros_ahead: bool = False, origin: Origin | None = None) -> int:
        """Write one plain record at once, and make it visible to readers.

        Returns:
            Its offset, or -1 if it has to go through `stage`.

        Raises:
            DiskFullError: no space; call `rollback`, and later puts may succeed.
            StorageError: as mapped from the system's error; call `rollback`.
        """
        offset = self.active.append(body, self.options.segment_bytes, self.durable, time_ns, origin)
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
            raise StoreFailedError("a sync has ended that nobody began; open the store again", self.directory)
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
        following = self._create(active.segment.end)
        self._list(self.listed.followed_by(following.segment))
        self.active = following
        active.close()

    def adopt(self, staged: Sequence[tuple[str, int]], note: Callable[[int], None]) -> None:
        """Adopt whole segments that somebody else has written, at the end of the log.

        Args:
            staged: their paths, and how many records each holds.
            note: called with the offset of their first record; once it has made that durable, the adoption stands.

        Raises:
            StorageError: the offset was not noted, and the log is as before.
            StoreFailedError: the offset is noted, but the adoption is unfinished.
        """
        self.roll()
        bases = list(accumulate((records for _, records in staged), initial=self.end))
        for (path, records), base in zip(staged, bases, strict=False):
            place(self.fs, path, self.meta.uuid, base, records)
        note(bases[0])
        try:
            self.active.close()
            move_in(self.fs, self.directory, [(path, base) for (path, _), base in zip(staged, bases, strict=False)])
            adopted = [placed(self.fs, self.directory, self.meta.uuid, base) for base in bases[:-1]]
            self.active = self._after(adopted[-1])
        except StorageError as cause:
            raise StoreFailedError(f"{cause.message}; open the store again", cause.path) from cause
        self._list(SegmentList((*self.segments[:-1], *adopted[:-1], *_once(adopted[-1:], self.active))))
        self.durable = bases[-1]
        self._note()

    def _after(self, segment: Segment) -> ActiveSegment:
        """Return the segment that follows a full one, or the full one itself while the disk has no room for another."""
        try:
            return self._create(segment.end)
        except DiskFullError:
            # Everything can be read and settled; the first put that finds space rolls the segment.
            return self._reopen(segment)

    def give_up(self, begin: int) -> None:
        """Note durably that everything below `begin` is gone on purpose.

        Raises:
            StorageError: it was not noted.
        """
        with self._describing:
            if begin > self.meta.begin:
                # CRASH: 5. This is the commit point of a purge; the files below it follow, now or at the next open.
                self._describe(replace(self.meta, begin=begin))

    def note_deleted(self, segments: Sequence[Segment]) -> None:
        """Note durably that segments are deleted on purpose, if they leave a gap that might be taken for a loss.

        Raises:
            StorageError: it was not noted. On a full disk it is noted later, as the deletion makes room.
        """
        with self._describing:
            first = self.segments[0].base
            gone = joined((*self.meta.deleted, *((segment.base, segment.end) for segment in segments)))
            deleted = tuple((start, stop) for start, stop in gone if stop > first)
            if any(segment.base > first for segment in segments):
                # CRASH: 5. A segment that is noted here and still exists is simply read.
                self._describe_with_room(replace(self.meta, deleted=deleted))

    def choose(self, options: StoredOptions) -> None:
        """Note durably the topic's options.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            # CRASH: 6. Either the old ones stand or these, whole; nothing is deleted by the new ones before.
            self._describe(replace(self.meta, options=options))

    def choose_for_channel(self, name: str, options: ChannelOptions) -> None:
        """Note durably the options given for a channel. A deleted one has none.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            if name in self.meta.channels:
                self._describe(replace(self.meta, channel_options={**self.meta.channel_options, name: options}))

    def add_channel(self, name: str, begin: int, options: ChannelOptions | None = None) -> None:
        """Note durably that there is a channel, the offset `begin` at which it began, and the options given for it.

        Raises:
            StorageError: it was not noted.
        """
        self.add_channels({name: (begin, options)})

    def add_channels(self, channels: Mapping[str, tuple[int, ChannelOptions | None]]) -> None:
        """Add several channels as `add_channel` does: all are noted, or none.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            named = {name: options for name, options in self.meta.channel_options.items() if name not in channels}
            named |= {name: options for name, (_, options) in channels.items() if options is not None}
            begins = {name: begin for name, (begin, _) in channels.items()}
            self._describe(replace(self.meta, channels={**self.meta.channels, **begins}, channel_options=named))

    def remove_channel(self, name: str) -> None:
        """Note durably that a channel is deleted. Its files may be deleted after that.

        Raises:
            StorageError: it was not noted.
        """
        with self._describing:
            # CRASH: 9. From here on the channel no longer exists, whatever files it leaves.
            channels, named = _without(self.meta.channels, name), _without(self.meta.channel_options, name)
            paused = self.meta.paused - {name}
            self._describe(replace(self.meta, channels=channels, paused=paused, channel_options=named))

    def pause(self, channel: str, *, paused: bool) -> None:
        """Note durably whether a channel delivers; an empty name stands for the topic.

        Raises:
            StorageError: it was not noted.
        """
        with self._describing:
            before = self.meta.paused
            after = before | {channel} if paused else before - {channel}
            if after != before:
                self._describe(replace(self.meta, paused=after))

    def _describe(self, meta: TopicMeta) -> None:
        save_meta(self.fs, self.directory, meta)
        self.meta = meta

    def _describe_with_room(self, meta: TopicMeta) -> None:
        """Describe what explains a gap; on a full disk, leave it to the next note, as reading and settling go on."""
        try:
            self._describe(meta)
        except DiskFullError:
            self.meta = meta

    def hide(self, segments: Iterable[Segment]) -> None:
        """Hide segments from new views; `remove` then deletes them. The last one stays."""
        self._list(self.listed.without(segments))

    def remove(self, segments: Sequence[Segment]) -> None:
        """Delete the files of segments that were hidden. A missing file is fine.

        Raises:
            StorageError: as mapped from the system's error; the rest is found again at the next open.
        """
        for segment in segments:
            try:
                if self.fs.exists(segment.path):
                    self.fs.remove(segment.path)
            except OSError as cause:
                raise storage_error(cause, segment.path) from cause

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


def _without(values: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in values.items() if other != name}


def _once(last: Sequence[Segment], active: ActiveSegment) -> Sequence[Segment]:
    """Return a log's last segments, counting the active one once if it is the last of `last`."""
    return last if last and last[0] is active.segment else (*last, active.segment)
