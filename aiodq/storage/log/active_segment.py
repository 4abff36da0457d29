"""The active segment, the one being written: frames are staged, written, and only then visible to readers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiodq.format.footer import IndexEntry, SegmentIndex, footer_bytes
from aiodq.format.frame import encode_compact, encode_run, slice_frames
from aiodq.format.labelled import encode_labelled
from aiodq.format.layout import COMPACT_MIN, FRAME_START, INDEX_ENTRY, INDEX_STRIDE, MAX_RELATIVE
from aiodq.format.producers import PUT_FRAME_BYTES, Producer, PutOf, encode_producers, encode_put
from aiodq.storage.io.durable_io import sync_directory, sync_failure, sync_file, write_all
from aiodq.storage.io.file_pool import PooledFile, is_ready, make_ready
from aiodq.storage.io.filesystem import close_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.log.preallocation import Preallocation
from aiodq.storage.log.recovery import seal_file
from aiodq.storage.segments.segment_contents import Contents
from aiodq.storage.segments.segment_files import scanned_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.format.columns import Columns
    from aiodq.format.frame import Encoded
    from aiodq.format.layout import BytesLike
    from aiodq.format.segment import SegmentHeader
    from aiodq.format.vectorized.encode import ArrowPart
    from aiodq.storage.io.filesystem import File, FileSystem
    from aiodq.storage.log.producer_table import Origin, ProducerTable
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["WRITE_BYTES", "ActiveSegment", "cuts"]

WRITE_BYTES: Final = 256 * 1024
"""Staged frames are written in pieces of about this many bytes, so that no single call blocks for long."""


def cuts(columns: Columns, *, atomic: bool) -> Iterator[Columns]:
    """Yield the parts of `columns` that may go to different segments."""
    slices = [] if atomic else slice_frames(columns)
    if len(slices) <= 1:
        yield columns
        return
    for start, stop in slices:
        yield columns.slice(start, stop)


def _write_one(file: File, data: BytesLike, position: int) -> int:
    return file.write_at((data,), position)


_AT_ONCE: Final = 0.0005
"""Seconds of encoding after which a thread pauses: a loop that waits for the interpreter's lock waits no longer."""

_PAUSE: Final = 0.00001
"""Seconds of such a pause; the system makes some 60 microseconds of it."""


def _with_pauses(run: Iterator[Encoded]) -> Iterator[Encoded]:
    """Yield frames as they are encoded, and let other threads of Python run now and then."""
    begun = time.thread_time()
    for frame in run:
        yield frame
        if time.thread_time() - begun >= _AT_ONCE:
            time.sleep(_PAUSE)
            begun = time.thread_time()


_MOST_OF_OTHERS: Final = 20_000
"""Puts of other processes after which a segment rolls: the owner after a kill scans the last segment, at about five
microseconds for each of these, and everybody waits for that."""


_MANY_OF_OTHERS: Final = 1_000
"""Puts of other processes from which on the segment is sealed at closing: its footer saves the next owner the scan."""


class ActiveSegment:
    """The last segment of a log, as its owner writes it.

    Attributes:
        segment: the segment as readers see it; it grows with `commit`.
        next: the offset of the next record.
        begins_with_producers: whether it is to begin with the producer table, which `stage` writes.
    """

    __slots__ = (
        "_ahead", "_counted", "_entries", "_file", "_fits_until", "_index", "_indexed", "_known", "_limit",
        "_of_others", "_opens_at", "_pooled", "_position", "_staged", "_staged_bytes", "_torn", "_write_alone",
        "begins_with_producers", "next", "segment",
    )  # fmt: skip

    def __init__(self, fs: FileSystem, file: File, segment: Segment, index: SegmentIndex) -> None:
        """Continue after the segment's last frame."""
        self._file = file
        self._pooled = file if isinstance(file, PooledFile) else None
        self._write_alone = file.write_alone if isinstance(file, PooledFile) else partial(_write_one, file)
        self._ahead = Preallocation(fs, file, segment.path, segment.data_end)
        self.segment: Segment = segment
        self._index = index
        segment.index = index
        self.next: int = segment.end
        self._position = segment.data_end
        self._staged: list[BytesLike] = []
        self._staged_bytes = 0
        self._entries: list[tuple[IndexEntry, bool, int, int]] = []
        self._known: list[Producer] = []
        self._torn = False
        self.begins_with_producers: bool = False
        self._limit = 0
        # An upper bound: each of those puts has a control frame before its own.
        self._of_others = sum(index.frames) // 2
        # The index counts everything before this offset.
        self._counted = segment.end
        self._count_entries()

    def _count_entries(self) -> None:
        """Reset the expected size of the footer to that of the committed frames."""
        positions = self._index.positions
        self._indexed = len(positions)
        self._opens_at = positions[-1] + INDEX_STRIDE if positions else 0
        self._fit()

    @classmethod
    def create(cls, fs: FileSystem, path: str, header: SegmentHeader) -> ActiveSegment:
        """Create a segment file durably.

        Raises:
            StorageError: as mapped from the system's error; the incomplete file is removed, if that is possible.
        """
        try:
            file = fs.open(path, create=True)
            try:
                write_all(file, [header.encode()], 0)
                sync_file(file, path)
                # CRASH: 1. Without its name in the directory, the segment never existed; nothing in it was durable.
                sync_directory(fs, os.path.dirname(path))
            except BaseException:
                with suppress(OSError):  # neither may replace the error that says why
                    file.close()
                with suppress(OSError):
                    fs.remove(path)
                raise
        except OSError as cause:
            raise storage_error(cause, path) from cause
        return cls(fs, file, scanned_segment(path, Contents(header.base), header.context), SegmentIndex())

    @property
    def ready(self) -> bool:
        """Whether `flush` opens no file: an idle one may be closed."""
        return is_ready(self._file)

    def wake(self) -> None:
        """Reopen the file if it was closed while it was idle. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        make_ready(self._file, self.segment.path)

    @property
    def crowded(self) -> bool:
        """Whether the segment has many puts of other processes, which wait for the next owner."""
        return self._of_others >= _MANY_OF_OTHERS

    @property
    def position(self) -> int:
        """The byte position of the next frame, counting what is staged."""
        return self._position + self._staged_bytes

    def stage(  # noqa: PLR0913 - all that a put consists of, by name
        self, columns: Columns, limit: int, *, watermark: int, time_ns: int, codec: int, atomic: bool,
        producers: ProducerTable | None = None, origin: Origin | None = None, pausing: bool = False,
    ) -> tuple[int, int] | None:  # fmt: skip
        """Stage records: encode them for the next `flush`.

        Args:
            columns: the records; with `atomic` they become one put.
            limit: the largest size of the segment with its footer; an empty segment takes a put of any size.
            watermark: everything below this offset is durable.
            time_ns: the batch's time.
            codec: see `aiodq.format.codecs`.
            atomic: all or nothing.
            producers: the known producers, with which a segment begins.
            origin: the producer and sequence of an idempotent put; the put is atomic then.
            pausing: whether to pause between frames; for a thread, as an event loop in another one would wait for it.

        Returns:
            The first offset and the one after the last, or None if the segment has to roll first.
        """
        if limit != self._limit:
            self._keep_within(limit)
        if self._is_full(len(columns.bodies), of_other=origin is not None):
            return None
        first = self.next
        run = encode_run(
            columns, self.segment.context, first=first, watermark=watermark, time_ns=time_ns, codec=codec, atomic=atomic
        )
        frames = list(_with_pauses(run) if pausing else run)
        controls = (
            self._controls(frames, watermark, time_ns, producers, origin)
            if origin is not None or (producers is not None and producers.puts)
            else []
        )
        if not self._add(controls, frames, limit, time_ns):
            return None
        self.next = first + len(columns.bodies)
        if origin is not None:
            self._of_others += 1
            self._known.append(Producer(origin.producer, origin.sequence, first, len(columns.bodies), time_ns))
        return first, self.next

    def stage_part(self, part: ArrowPart, limit: int, *, watermark: int, time_ns: int, codec: int) -> bool:
        """Stage one frame of records in Arrow arrays, as `stage` would; return whether the segment had room for it."""
        if limit != self._limit:
            self._keep_within(limit)
        if self._is_full(part.records, of_other=False):
            return False
        frame = part.encode(self.segment.context, first=self.next, watermark=watermark, time_ns=time_ns, codec=codec)
        if not self._add([], [frame], limit, time_ns):
            return False
        self.next += frame.records
        return True

    def _add(self, controls: list[bytes], frames: list[Encoded], limit: int, time_ns: int) -> bool:
        """Stage frames of the records from `next` on, with control frames before them, if there is room for all."""
        staged: list[BytesLike] = [*controls]
        for frame in frames:
            staged += frame.parts
        size, position = sum(map(len, staged)), self.position
        # What is staged at once is one run, which never spans two index entries, with control frames before it.
        indexed, opens_at, begins = self._indexed, self._opens_at, position
        for length in (*map(len, controls), 0):
            if begins >= opens_at:
                indexed, opens_at = indexed + 1, begins + INDEX_STRIDE
            begins += length
        if position + size + footer_bytes(indexed) > limit and self.next > self.segment.base:
            return False
        self._indexed, self._opens_at = indexed, opens_at
        self._enter(controls, frames, position, time_ns)
        self._staged += staged
        self._staged_bytes += size
        self._fits_until = 0
        return True

    def _enter(self, controls: list[bytes], frames: list[Encoded], position: int, time_ns: int) -> None:
        """Prepare index entries for what is staged from `position` on; `commit` adds them."""
        relative = self.next - self.segment.base
        for control in controls:
            self._entries.append((IndexEntry(position, relative, 0, 1, time_ns), False, 0, 0))
            position += len(control)
        for frame in frames:
            entry = IndexEntry(position, relative, frame.records, 1, time_ns)
            self._entries.append((entry, frame is not frames[0], frame.flags, frame.raw))
            position += frame.length
            relative += frame.records

    def stage_end(self, producers: ProducerTable, limit: int, *, watermark: int, time_ns: int) -> None:
        """Stage the known producers as the last frame of the segment, if they fit its size."""
        frame = encode_producers(producers.rows(), self.segment.context, watermark, time_ns, first=self.next)
        position = self.position
        if position + len(frame) + footer_bytes(self._indexed + 1) > limit:
            return
        entry = IndexEntry(position, self.next - self.segment.base, 0, 1, time_ns)
        self._entries.append((entry, False, 0, 0))
        self._staged.append(frame)
        self._staged_bytes += len(frame)
        self._fits_until = 0

    def _is_full(self, messages: int, *, of_other: bool) -> bool:
        """Return whether the segment is full: of messages, if so many more are added, or of others' puts."""
        # A failed roll may have left it sealed: frames written over the footer would be lost.
        if self.segment.sealed or self.next + messages - self.segment.base > MAX_RELATIVE:
            return True
        return of_other and self._of_others >= _MOST_OF_OTHERS and self.next > self.segment.base

    def _controls(
        self,
        frames: list[Encoded],
        watermark: int,
        time_ns: int,
        producers: ProducerTable | None,
        origin: Origin | None,
    ) -> list[bytes]:
        """Return the control frames that precede a put: the known producers at the segment's start, and the origin."""
        context, first, controls = self.segment.context, self.next, []
        if producers is not None and producers.puts and first == self.segment.base:
            controls.append(encode_producers(producers.rows(), context, watermark, time_ns))
        if origin is not None:
            count = sum(frame.records for frame in frames)
            controls.append(self._control(frames[0].parts[0], origin, count, watermark, time_ns))
        return controls

    def _control(self, frame: BytesLike, origin: Origin, messages: int, watermark: int, time_ns: int) -> bytes:
        """Return the control frame that precedes the first frame of a put and names its origin."""
        put = PutOf(origin.producer, origin.sequence, self.next, messages, FRAME_START.unpack_from(frame)[1])
        return encode_put(put, self.segment.context, watermark, time_ns)

    def append(  # noqa: C901 - in one function: each call less counts for a put
        self, body: bytes, limit: int, watermark: int, time_ns: int, origin: Origin | None = None, *,
        labelled: Columns | None = None,
    ) -> int:  # fmt: skip
        """Write one record at once and make it visible: `stage`, `flush` and `commit` in one step.

        Args:
            body: the record's.
            limit: as for `stage`.
            watermark: as for `stage`.
            time_ns: the time of the put.
            origin: the producer and sequence of an idempotent put.
            labelled: the record, if it has more than a body.

        Returns:
            Its offset, or -1 if it has to go through `stage`: the segment rolls first or begins with the producer
            table, something is to be truncated, or the file is to be reopened.

        Raises:
            StorageError: call `rollback`.
        """
        if limit != self._limit:
            self._keep_within(limit)
        segment, offset, position = self.segment, self.next, self._position
        if position >= self._fits_until:
            return -1  # a frame has no room for an offset far behind the segment's first
        encoded = None if labelled is None else encode_labelled(labelled, segment.context, offset, watermark, time_ns)
        frame = encode_compact(body, segment.context, offset, watermark, time_ns) if encoded is None else encoded[0]
        if origin is not None:
            control = self._before(frame, origin, watermark, time_ns)
            if control is None:
                return -1
            frame = control + frame
        end = position + len(frame)
        if end > self._fits_until:
            return -1
        try:
            # CRASH: 2. Until the next sync any part of these bytes may be missing.
            taken = self._write_alone(frame, position)
            if taken < 0:
                return -1
            if taken != len(frame):
                write_all(self._file, [memoryview(frame)[taken:]], position + taken)
        except BaseException as cause:
            self._torn = True
            self._fit()
            if isinstance(cause, OSError):
                raise storage_error(cause, segment.path, position) from cause
            raise
        self._position, self.next = end, offset + 1
        raw_bytes = len(body) if encoded is None else self._noted(encoded)
        if origin is not None or position >= self._opens_at or time_ns < segment.newest_ns:
            self._note(position, offset, time_ns, raw_bytes, of_other=origin is not None)
        else:
            segment.newest_ns = time_ns
        segment.raw_bytes += raw_bytes
        segment.data_end = segment.size = end
        # INVARIANT: set last, as readers in other threads rely on it.
        segment.end = offset + 1
        return offset

    def _before(self, frame: BytesLike, origin: Origin, watermark: int, time_ns: int) -> bytes | None:
        """Return the control frame before the frame of an idempotent put, or None if both go through `stage`."""
        position = self._position
        # Where an index entry would begin between the two frames.
        apart = position < self._opens_at <= position + PUT_FRAME_BYTES
        if apart or (self._of_others >= _MOST_OF_OTHERS and self.next > self.segment.base):
            return None
        return self._control(frame, origin, 1, watermark, time_ns)

    def allow_windows(self, *, allowed: bool) -> None:
        """Let small writes go through write windows, or no longer."""
        self._ahead.allow_windows(allowed=allowed)

    def reserve(self) -> None:
        """Write zeros ahead if few are left and syncs gain by them: a sync comes next."""
        self._ahead.top_up(self._position, self._limit)

    def _keep_within(self, limit: int) -> None:
        self._limit = limit
        self._fit()

    def _fit(self) -> None:
        """Compute the position up to which `append` may write without any other check."""
        segment = self.segment
        awaits_producers = self.begins_with_producers and self.next == segment.base
        if self._torn or self._staged or segment.sealed or awaits_producers:
            self._fits_until = 0
            return
        footer = footer_bytes(self._indexed + 1)
        records = MAX_RELATIVE - (self.next - segment.base)
        self._fits_until = min(self._limit - footer, self._position + records * COMPACT_MIN)

    def _noted(self, encoded: tuple[bytes, int, int]) -> int:
        """Note the flags of a frame that was just written; return the size of its payload."""
        _, flags, raw_bytes = encoded
        self.segment.flags |= flags
        self._index.flags |= flags
        return raw_bytes

    def _note(self, position: int, offset: int, time_ns: int, raw_bytes: int, *, of_other: bool) -> None:
        """Index a record that was just written, and the control frame before it, if any."""
        self._count()
        self._of_others += of_other
        segment, index = self.segment, self._index
        index.add_record(position, offset - segment.base, time_ns, raw_bytes, 2 if of_other else 1)
        segment.records += 1
        self._counted = offset + 1
        segment.newest_ns = max(segment.newest_ns, time_ns)
        segment.oldest_ns = index.oldest_ns
        if position >= self._opens_at:
            self._indexed, self._opens_at = self._indexed + 1, position + INDEX_STRIDE
            self._ahead.wrote(self._position, self._limit, self._position - position)
            self._fits_until -= INDEX_ENTRY.size  # as `_fit` would find, or less

    def _count(self) -> None:
        """Add to the index what `append` wrote since the last count.

        Each is a frame of the last entry, and none is older than the one before. `append` leaves the count to the next
        caller: an entry is a few pages long, and a reader of a growing segment needs only its beginning.
        """
        index, segment = self._index, self.segment
        if count := segment.end - self._counted:
            segment.records += count
            index.records[-1] += count
            index.frames[-1] += count
            index.newest[-1] = segment.newest_ns
            index.raw_bytes = segment.raw_bytes
            self._counted = segment.end

    @property
    def staged_bytes(self) -> int:
        """The staged bytes that are not written yet."""
        return self._staged_bytes

    def flush(self) -> None:
        """Write what is staged.

        Raises:
            StorageError: call `rollback`.
        """
        if not self._staged:
            return
        try:
            if self._torn:
                self._cut_torn()
            self._torn = True
            # CRASH: 2. Until the next sync any part of these bytes may be missing.
            staged, position = self._staged, self._position
            many = len(staged) > 1
            self._position = write_all(self._file, staged, position) if many else self._write(staged[0], position)
            self._torn = False
        except OSError as cause:
            raise storage_error(cause, self.segment.path, self._position) from cause
        self._staged.clear()
        self._staged_bytes = 0
        self._ahead.wrote(self._position, self._limit, self._position - position)

    def _write(self, data: BytesLike, position: int) -> int:
        """Write one frame; return the position after it."""
        taken = max(self._write_alone(data, position), 0)
        if taken == len(data):
            return position + taken
        return write_all(self._file, [memoryview(data)[taken:]], position + taken)

    def commit(self, producers: ProducerTable | None = None) -> None:
        """Make visible to readers what was written; tell `producers` whose puts they are."""
        segment = self.segment
        if producers is not None:
            for row in self._known:
                producers.note(row)
        self._known.clear()
        if segment.sealed:
            return  # nothing was written, and its size includes the footer
        self._count()
        for entry, joined, flags, raw_bytes in self._entries:
            self._index.add(entry, joined=joined, flags=flags, raw_bytes=raw_bytes)
            segment.records += entry.records
            segment.raw_bytes += raw_bytes
            segment.flags |= flags
            segment.newest_ns = max(segment.newest_ns, entry.newest_ns)
        self._entries.clear()
        segment.oldest_ns = self._index.oldest_ns
        segment.data_end = segment.size = self._position
        segment.end = self._counted = self.next
        self._fit()

    def rollback(self) -> None:
        """Drop what was staged or written since the last commit.

        What was written is truncated at once, or else before the next write: whole frames among it would be taken for
        messages by whoever reads the segment from outside, or opens it after a kill.
        """
        self._staged.clear()
        self._staged_bytes = 0
        self._entries.clear()
        self._known.clear()
        self._torn = self._torn or self._position > self.segment.data_end
        self._position = self.segment.data_end
        self.next = self.segment.end
        if self._torn:
            with suppress(OSError):
                self._cut_torn()
        self._count_entries()

    def _cut_torn(self) -> None:
        """Truncate what a failed write left."""
        self._file.truncate(self._position)
        self._ahead.gone()
        self._torn = False

    def sync(self) -> None:
        """Sync: on return, everything written before is on the device.

        Raises:
            StoreFailedError: it is unknown what is on disk.
        """
        position = self.segment.data_end
        sync_file(self._file, self.segment.path)
        self._ahead.synced(position)

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Begin the first half of `sync`; see `PooledFile.begin_sync`."""
        return self._pooled is not None and self._pooled.begin_sync(submit)

    def end_sync(self, position: int, error: int) -> None:
        """Note the end of a sync, with its errno (0 for none), begun when the frames ended at `position`.

        Raises:
            StoreFailedError: it is unknown what is on disk.
        """
        if self._pooled is not None:
            self._pooled.end_sync(synced=not error)
        if error:
            raise sync_failure(OSError(error, os.strerror(error)), self.segment.path)
        self._ahead.synced(position)

    def seal(self) -> None:
        """Write the footer, durably. The segment never changes again.

        Raises:
            StorageError: as mapped from the system's error.
        """
        # INVARIANT: after a partly written footer, nothing is appended before that is truncated.
        self._torn = True
        self._fits_until = 0
        self._count()
        try:
            seal_file(self._file, self.segment, self._index)
        except OSError as cause:
            raise storage_error(cause, self.segment.path, self.segment.data_end) from cause
        self._torn = False
        self._ahead.gone()
        self.segment.index = None

    def close(self) -> None:
        """Truncate what a failed write left and what was preallocated, if that still works, and close the file.

        Raises:
            StorageError: one of these failed; the file is closed anyway.
        """
        try:
            if self._torn:
                self._file.truncate(self.segment.data_end)
            else:
                self._ahead.give_back(self._position)
        except OSError as cause:
            raise storage_error(cause, self.segment.path, self.segment.data_end) from cause
        finally:
            close_file(self._file, self.segment.path)
