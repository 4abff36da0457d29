"""A topic's log, for its owner: append, roll, sync, give up, recover."""

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
    """What the log needs of a topic's options: the size at which a segment rolls, and the codec's number."""

    segment_bytes: int
    codec: int = CODEC_NONE

    @classmethod
    def of(cls, options: StoreOptions) -> LogOptions:
        """Return what the log needs: chosen in another process, the options may ask for a codec that is not here."""
        try:
            codec = codec_number(options.compression)
        except MissingExtraError:
            codec = CODEC_NONE
        return cls(options.segment_bytes, codec)


class TopicLog:
    """The segments of one topic.

    Blocking, and not to be called from two threads at once, with two exceptions: `sync` may run during `stage`, `flush`
    and `commit`, and readers at any time.

    Attributes:
        directory: the topic's.
        options: may be replaced; what is staged next goes by the new ones.
        meta: its description.
        segments: in order; the last one is being written.
        listed: the same, with what they hold.
        damages: what was found wrong at open.
        cut_bytes: unfinished writes that were taken off at open.
        durable: the offset below which everything is on the device.
        closed: its files are closed, or are being closed.
        producers: who put what, as far as that is to be known; nobody before `recall`.
    """

    __slots__ = (
        "_active", "_begun", "_clock", "_describing", "_skipped", "_slots", "closed", "cut_bytes", "damages",
        "directory", "durable", "fs", "listed", "meta", "options", "producers", "segments",
    )  # fmt: skip

    def __init__(
        self, fs: FileSystem, directory: str, options: LogOptions, clock: Clock, record: StoredOptions | None = None
    ) -> None:
        """Open the topic's files, or make them, and recover.

        Args:
            fs: the store's.
            directory: the topic's.
            options: how it is written.
            clock: the store's.
            record: what is kept of its options if it is made now.

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
        copied = not fs.exists(os.path.join(directory, WATERMARK))
        self._slots = WatermarkFile(fs, os.path.join(directory, WATERMARK))
        self._list(SegmentList())
        active = None
        try:
            promised = self._promised()
            found = recover(fs, directory, self.meta.uuid, promised, copied=copied)
            self.damages += found.damages
            self.cut_bytes: int = found.cut_bytes
            sweep_temporaries(fs, directory)
            self._note_losses(found.segments, self._report_missing(found.segments, promised))
            self._active = active = self._continue(self._without_dead(found.segments), promised)
            self.durable: int = active.segment.end
            self._slots.write(self.durable, topic_salt(self.meta.uuid))
        except BaseException:
            self._slots.close()
            if active is not None:
                active.close()
            raise

    def _keep_watermark(self) -> None:
        """Set aside a watermark that cannot be read, before it is written over."""
        if self._slots.values != (0, 0):
            return
        path = os.path.join(self.directory, WATERMARK)
        data = read_file(self.fs, path, SLOT_FILE_BYTES) or b""
        if any(severity == "damage" for severity, _, _ in check_slots(data)):
            quarantine(self.fs, path, 0, len(data))

    def _promised(self) -> int:
        """Return the noted watermark, unless it is another topic's or junk: that one is quarantined."""
        self._keep_watermark()
        promised = noted_watermark(self._slots.values, topic_salt(self.meta.uuid))
        if promised != self._slots.values[0]:
            path = os.path.join(self.directory, WATERMARK)
            quarantine(self.fs, path, 0, SLOT_FILE_BYTES)
            self.damages.append(Damage(path, 0, SLOT_FILE_BYTES, "the watermark is another topic's"))
        return promised

    def _report_missing(self, segments: Sequence[Segment], promised: int) -> Ranges:
        """Report the offsets that no segment holds and that were not given up; return those that a channel waits for.

        They are reported until every channel has passed them, also where they are noted already.
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
        """Note what is missing; forget what is there again, as somebody has put its file back."""
        lost = without((*self.meta.lost, *found), ((segment.base, segment.end) for segment in segments))
        if lost != self.meta.lost:
            # CRASH: 14. Before a segment that is made, or a channel that passes them, hides that they were there.
            self._describe_with_room(replace(self.meta, lost=lost))

    def _without_dead(self, segments: list[Segment]) -> list[Segment]:
        """Delete what lies wholly below the offset that was given up, as its deletion was cut short."""
        dead = [segment for segment in segments[:-1] if segment.end <= self.meta.begin]
        self.remove(dead)
        return segments[len(dead) :]

    def _continue(self, segments: list[Segment], promised: int) -> ActiveSegment:
        """Return the segment to write to: the last one if it can grow, else a new one behind all that was promised."""
        end = segments[-1].end if segments else 0
        # INVARIANT: no offset that was lost is given again.
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
        return ActiveSegment.create(self.fs, segment_path(self.directory, base), header)

    @property
    def end(self) -> int:
        """The offset behind the last record that was written."""
        return self._active.segment.end

    @property
    def begin(self) -> int:
        """The first offset that may still be read."""
        return max(self.meta.begin, self._skipped, self.segments[0].base)

    @property
    def lost(self) -> int:
        """How many messages were found to be missing, until a repair."""
        return total(self.meta.lost)

    @property
    def ready(self) -> bool:
        """Whether `flush` opens no file: that of an idle topic may be closed."""
        return self._active.ready

    def wake(self) -> None:
        """Open the file that is written, if it was closed while the topic was idle. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self._active.wake()

    def skip_to(self, offset: int) -> None:
        """Let `begin` be at least `offset`, until the log is opened again; `give_up` makes it last."""
        self._skipped = max(self._skipped, min(offset, self.end))

    def view(self, stop: int | None = None) -> LogView:
        """Return what readers may see, up to `stop` or all that was written."""
        segment = self._active.segment
        return LogView(self.segments, segment.end if stop is None else min(stop, segment.end), segment.data_end)

    def recall(self) -> None:
        """Know who put what before the log was opened. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self.producers.recall(self.fs, self.segments, self.end, topic_salt(self.meta.uuid))

    def stage(
        self, columns: Columns, time_ns: int, *, atomic: bool, origin: Origin | None = None
    ) -> tuple[int, int] | None:
        """Encode records to be written with the next `flush`; None where `roll` has to come first.

        Args:
            columns: the records.
            time_ns: when they are put.
            atomic: all or nothing.
            origin: whose put it is, if that is to be known; it is atomic then.

        Returns:
            The first offset and the one behind the last.
        """
        return self._active.stage(
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
        """Write one plain record at once, and show it to readers.

        Returns:
            Its offset, or -1 where it has to go through `stage`.

        Raises:
            DiskFullError: no space; `rollback`, and later puts may succeed.
            StorageError: as mapped from the system's error; `rollback`.
        """
        active = self._active
        if self.producers.puts and active.next == active.segment.base:
            return -1  # a segment begins with them
        size, durable = self.options.segment_bytes, self.durable
        offset = active.append(body, size, watermark=durable, time_ns=time_ns, zeros_ahead=zeros_ahead, origin=origin)
        if origin is not None and offset >= 0:
            self.producers.note(Producer(*origin, offset, 1, time_ns))
        return offset

    @property
    def staged_bytes(self) -> int:
        """What waits for `flush`."""
        return self._active.staged_bytes

    def flush(self) -> None:
        """Write what is staged.

        Raises:
            DiskFullError: no space; `rollback`, and later puts may succeed.
            StorageError: as mapped from the system's error; `rollback`.
        """
        self._active.flush()

    def commit(self) -> None:
        """Show readers what was flushed."""
        self._active.commit(self.producers)

    def rollback(self) -> None:
        """Forget what was staged or flushed since the last commit."""
        self._active.rollback()

    def sync(self) -> None:
        """Make durable what was committed before, and note so.

        Raises:
            StorageError: nobody knows what the device holds; the log must not be used any further.
        """
        active = self._active
        end = active.segment.end
        active.sync()
        self.durable = max(self.durable, end)
        self._note()

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """As `PooledFile.begin_sync`, of the segment that is written to: what `sync` does, in two steps."""
        active = self._active
        # INVARIANT: what the sync covers is what was committed before it began.
        self._begun = active, active.segment.data_end, active.segment.end
        return self._slots.ready and active.begin_sync(submit)

    def end_sync(self, error: int) -> None:
        """The sync that was begun has ended, with this errno, 0 for none.

        Raises:
            StoreFailedError: nobody knows what the device holds; the log must not be used any further.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            raise StoreFailedError("a sync has ended that nobody began; open the store again", self.directory)
        active, position, end = begun
        active.end_sync(position, error)
        self.durable = max(self.durable, end)
        self._note()

    def _note(self) -> None:
        """Note how far the log is durable."""
        # CRASH: 3. Noted after the sync and without one of its own: it may be late, never early. So a write that fails
        # is no reason to doubt what was synced; the next one says as much and more.
        with suppress(StorageError):
            self._slots.write(self.durable, topic_salt(self.meta.uuid))

    def roll(self) -> None:
        """Seal the segment being written and begin the next. Without records in it, nothing happens.

        Raises:
            StorageError: the segment goes on as it was, sealed or not; a later `roll` repeats what is left to do.
        """
        active = self._active
        if active.segment.empty:
            return
        if not active.segment.sealed:
            active.seal()
        self.durable = max(self.durable, active.segment.end)
        self._note()
        following = self._create(active.segment.end)
        self._list(self.listed.followed_by(following.segment))
        self._active = following
        active.close()

    def adopt(self, staged: Sequence[tuple[str, int]], note: Callable[[int], None]) -> None:
        """Take over whole segments that somebody else has written, behind everything there is.

        Args:
            staged: their paths, and how many records each holds.
            note: called with the offset of their first record; what it makes durable stands from then on.

        Raises:
            StorageError: it was not noted, and the log is as before.
            StoreFailedError: it is noted, and not done.
        """
        self.roll()
        bases = list(accumulate((records for _, records in staged), initial=self.end))
        for (path, records), base in zip(staged, bases, strict=False):
            place(self.fs, path, self.meta.uuid, base, records)
        note(bases[0])
        try:
            self._active.close()
            move_in(self.fs, self.directory, [(path, base) for (path, _), base in zip(staged, bases, strict=False)])
            adopted = [placed(self.fs, self.directory, self.meta.uuid, base) for base in bases[:-1]]
            self._active = self._after(adopted[-1])
        except StorageError as cause:
            raise StoreFailedError(f"{cause.message}; open the store again", cause.path) from cause
        self._list(SegmentList((*self.segments[:-1], *adopted[:-1], *_once(adopted[-1:], self._active))))
        self.durable = bases[-1]
        self._note()

    def _after(self, segment: Segment) -> ActiveSegment:
        """Return the segment that follows a full one, or that one itself while the disk has no room for another."""
        try:
            return self._create(segment.end)
        except DiskFullError:
            # Everything can be read and settled; the first put that finds space rolls.
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
        """Note durably that segments are deleted on purpose, where a gap remains that somebody might take for a loss.

        Raises:
            StorageError: it was not noted. On a full disk it is noted later, as the deletion makes room.
        """
        with self._describing:
            first = self.segments[0].base
            gone = joined((*self.meta.deleted, *((segment.base, segment.end) for segment in segments)))
            deleted = tuple((start, stop) for start, stop in gone if stop > first)
            if any(segment.base > first for segment in segments):
                # CRASH: 5. What is noted here and is still there is simply there.
                self._describe_with_room(replace(self.meta, deleted=deleted))

    def choose(self, options: StoredOptions) -> None:
        """Note durably which options the topic goes by.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            # CRASH: 12. Either the old ones stand or these, whole; nothing is deleted by these before.
            self._describe(replace(self.meta, options=options))

    def choose_for_channel(self, name: str, options: ChannelOptions) -> None:
        """Note durably which options were named for a channel. One that is gone has none.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            if name in self.meta.channels:
                self._describe(replace(self.meta, channel_options={**self.meta.channel_options, name: options}))

    def add_channel(self, name: str, begin: int, options: ChannelOptions | None = None) -> None:
        """Note durably that there is a channel, which began at offset `begin`, and the options named for it.

        Raises:
            StorageError: it was not noted.
        """
        self.add_channels({name: (begin, options)})

    def add_channels(self, channels: Mapping[str, tuple[int, ChannelOptions | None]]) -> None:
        """As `add_channel`, for several at once: all are noted, or none.

        Raises:
            StorageError: they were not noted.
        """
        with self._describing:
            named = {name: options for name, options in self.meta.channel_options.items() if name not in channels}
            named |= {name: options for name, (_, options) in channels.items() if options is not None}
            begins = {name: begin for name, (begin, _) in channels.items()}
            self._describe(replace(self.meta, channels={**self.meta.channels, **begins}, channel_options=named))

    def remove_channel(self, name: str) -> None:
        """Note durably that a channel is gone. Its files may be deleted then.

        Raises:
            StorageError: it was not noted.
        """
        with self._describing:
            # CRASH: 9. From here on it is no channel any more, whatever files it leaves.
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
        """Note what explains a gap; on a full disk with whatever is noted next, as reading and settling must go on."""
        try:
            self._describe(meta)
        except DiskFullError:
            self.meta = meta

    def hide(self, segments: Iterable[Segment]) -> None:
        """Take segments out of sight of new views; `remove` then deletes them. The last one stays."""
        self._list(self.listed.without(segments))

    def remove(self, segments: Sequence[Segment]) -> None:
        """Delete the files of segments that were hidden. One that is gone already is fine.

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
            StorageError: nobody knows what the device holds.
        """
        try:
            self._active.flush()
            self._active.commit()
            if self.producers.puts and self._active.crowded:
                self._seal_or_sync()
            else:
                self.sync()
            self._slots.sync()
        finally:
            self.abandon()

    def _seal_or_sync(self) -> None:
        """Let the next owner, for whom others wait, find at the end what it would have to look through otherwise."""
        active = self._active
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
        """Close the files and nothing else; what a failed write left is cut off where that works."""
        self.closed = True
        try:
            self._active.close()
        finally:
            self._slots.close()


def _without(values: Mapping[str, T], name: str) -> dict[str, T]:
    return {other: value for other, value in values.items() if other != name}


def _once(last: Sequence[Segment], active: ActiveSegment) -> Sequence[Segment]:
    """Return a log's last segments, of which the one being written may be the last of those there were."""
    return last if last and last[0] is active.segment else (*last, active.segment)
