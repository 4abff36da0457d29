"""A channel's durable state as its owner writes it: the journal, and the checkpoints that replace it.

Zeros are written ahead of the journal's end: a full disk is freed by consuming, and acks that overwrite zeros need no
space. The file's size then changes seldom, which makes a sync cheaper.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import DiskFullError
from aiodq.format.journal import (
    ChannelImage,
    ChannelRecord,
    Op,
    OpKind,
    checkpoint_entries,
    encode_block,
    encode_checkpoint,
    encode_journal_header,
)
from aiodq.storage.io.durable_io import (
    ensure_directory,
    replace_file,
    sweep_temporaries,
    sync_failure,
    sync_file,
    sync_names,
    write_again,
    write_all,
)
from aiodq.storage.io.file_pool import PooledFile, is_ready, make_ready
from aiodq.storage.io.filesystem import close_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.io.quarantine import Damage, quarantine
from aiodq.storage.state.channel_files import CHECKPOINT, COUNT, JOURNAL, read_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["ChannelJournal"]

_PAGE: Final = 4096
_LEAST: Final = 4 * _PAGE
_MOST: Final = 16 * _PAGE
"""Bytes ahead of a journal's end: the least for an idle channel, the most for one whose journal is as long."""

_PAUSE: Final = 1e-4
"""Seconds between two pieces of a checkpoint. A thread that lets go of the interpreter for a few microseconds has it
again before another wakes up; and one that never does holds up the event loop for 5 ms each time."""

_LAST: Final = 2048
"""Bytes of that which are the last of it."""

_SEEKS: Final = 64
"""The numbers of seeks that are kept: a client repeats one within seconds."""


class ChannelJournal:
    """A channel's durable state, as its owner writes it.

    Operations may be appended during a sync or a fold in another thread.

    Attributes:
        image, ops: the state found at open; the caller applies the operations to the image.
        damages: what could not be read; the files are quarantined.
        pending: the number of operations in the journal, that is, since the last checkpoint, without mere numbers.
        noted: the number of entries in that checkpoint.
        seeks: the numbers of the seeks found at open.
        unclean: whether anything was damaged or torn; `fold` before going on, so that none of it is read again.
    """

    def __init__(
        self, fs: FileSystem, directory: str, start: int, topic: UUID | None = None, *, described: bool = False,
        synced: bool = False,
    ) -> None:  # fmt: skip
        """Open or create the channel's files.

        Args:
            fs: the file system.
            directory: the channel's.
            start: where the channel began, used if no checkpoint can be read.
            topic: see `read_channel`.
            described: likewise.
            synced: see `ensure_directory`, of the channel's directory.

        Raises:
            FormatVersionError: a newer version.
            StorageError: as mapped from the system's error.
        """
        self._fs = fs
        self._path = os.path.join(directory, JOURNAL)
        self._checkpoint = os.path.join(directory, CHECKPOINT)
        ensure_directory(fs, directory, synced=synced)
        sweep_temporaries(fs, directory)
        found = read_channel(fs, directory, start, topic, described=described)
        self.image: ChannelImage = found.image
        self.ops: list[Op] = found.ops
        # They go on in the journal: the client may repeat a seek only to the owner after this one.
        self._sought: tuple[int, ...] = _numbers(found.ops)
        self.seeks: frozenset[int] = frozenset(self._sought)
        self._imaged: tuple[int, ...] | None = None
        # What goes on behind the header of a new generation: the numbers of seeks, and what a checkpoint does not hold.
        self._numbers: list[Op] = []
        self._onward: list[Op] = []
        self.damages: list[Damage] = found.damages
        self._generation, self._end = found.generation, found.end
        self.pending: int = sum(not _is_number(op) for op in self.ops)
        self.noted: int = _entries(self.image)
        self._reserved = 0
        self._mutex = threading.Lock()
        self._since: list[Op] | None = None
        self.unclean: bool = bool(self.damages)
        for damage in self.damages:
            if damage.end > damage.position:
                quarantine(fs, damage.path, damage.position, damage.end)
        try:
            self._file = self._open(torn=found.torn)
        except OSError as cause:
            raise storage_error(cause, self._path) from cause

    def _open(self, *, torn: bool) -> File:
        exists = self._fs.exists(self._path)
        file = self._fs.open(self._path, write=True, create=not exists)
        try:
            if not self._end:
                if self._generation & COUNT:
                    # CRASH: 6. A killed owner may have only renamed the checkpoint. Without it, a journal of its
                    # generation would have nothing to build on.
                    sync_names(self._fs, os.path.dirname(self._path))
                self._begin(file)
            else:
                self._tidy(file, torn=torn)
                self._reserve(file)
            if not self._generation & COUNT:
                # CRASH: 18. Until the first fold, nothing else makes the journal's name durable, and a killed owner may
                # have only created the file.
                sync_names(self._fs, os.path.dirname(self._path))
        except BaseException:
            file.close()
            raise
        return file

    def _tidy(self, file: File, *, torn: bool) -> None:
        header = encode_journal_header(self._generation)
        whole = file.read_at(len(header), 0) == header
        self._reserved = file.size()
        if whole and not torn:
            if self.ops:
                write_again(file, 0, self._end)
                sync_file(file, self._path)
            return
        self.unclean = True
        if not whole:
            write_all(file, [header], 0)
        write_again(file, 0, self._end)
        # CRASH: 18. The torn block is removed before anything is written after it.
        file.truncate(self._end)
        self._reserved = self._end
        sync_file(file, self._path)

    def _begin(self, file: File) -> None:
        self._renew(file)
        sync_file(file, self._path)

    def _renew(self, file: File) -> None:
        """Begin the journal of a new generation, whole: until then there is none, and nothing is appended to it."""
        blocks = [encode_block(ops, self._generation) for ops in (self._numbers, self._onward) if ops]
        # Not truncated to nothing: its space may be all there is. Nor extended: a hole reserves no space.
        file.truncate(min(file.size(), _LEAST))
        # CRASH: 18. If the owner is killed between the checkpoint's rename and this, what was appended meanwhile is
        # lost; it was not synced, so nobody was told that it is durable.
        self._end = self._reserved = write_all(file, [encode_journal_header(self._generation), *blocks], 0)
        self.pending = len(self._onward)
        self._numbers, self._onward = [], []
        self._reserve(file)

    @property
    def ready(self) -> bool:
        """Whether `append` opens no file: that of an idle channel may be closed."""
        return is_ready(self._file)

    def wake(self) -> None:
        """Reopen the journal if it was closed while the channel was idle. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        make_ready(self._file, self._path)

    @property
    def scant(self) -> bool:
        """Whether less than half of the reserve is left."""
        return self._reserved - self._end < self._ahead // 2

    @property
    def spent(self) -> bool:
        """Whether the last of the reserve is reached, which on a full disk is for acks that let a segment go."""
        return self._reserved - self._end < _LAST

    @property
    def _ahead(self) -> int:
        return min(max(self._end, _LEAST), _MOST)

    def _reserve(self, file: File) -> None:
        if not self._end or not self.scant:
            return
        target = (self._end + self._ahead) // _PAGE * _PAGE
        # INVARIANT: zeros are written after every block. Without them the journal is as good; it only needs more space.
        with suppress(OSError):
            # A partial write counts, too.
            while self._reserved < target:
                taken = file.write_at([bytes(target - self._reserved)], self._reserved)
                if not taken:
                    return
                self._reserved += taken

    def top_up(self) -> None:
        """Write zeros ahead of the journal's end if few are left. Blocking; a disk too full for them is no error."""
        with self._mutex:
            self._reserve(self._file)

    @property
    def reach(self) -> int:
        """The offset after the highest one found at open."""
        image = self.image
        named = (offset + 1 for offset in (*image.attempts, *image.deferred))
        return max(image.floor, *(stop for _, stop in image.ranges), *named, *map(_reach_of, self.ops), 0)

    def append(self, ops: Iterable[Op], *, wait: bool = True) -> bool:
        """Append operations; they are not durable before `sync`. Return whether it was done.

        Args:
            ops: the operations.
            wait: wait if another thread is writing the journal; otherwise nothing is done then.

        Raises:
            StorageError: nothing was added.
        """
        batch = list(ops)
        if not batch:
            return True  # an empty block would look like the journal's end
        if not self._mutex.acquire(blocking=wait):
            return False
        try:
            if not self._end:
                self._begin(self._file)
            self._write(batch)
            self.pending += len(batch)
            if self._since is not None:
                self._since += batch
        except OSError as cause:
            raise storage_error(cause, self._path, self._end) from cause
        finally:
            self._mutex.release()
        return True

    def _write(self, batch: list[Op]) -> None:
        # CRASH: 18. Until the next sync any part of it may be missing.
        # A failed write leaves the end where it was, so that the next one overwrites whatever was written.
        block, file, end, taken = encode_block(batch, self._generation), self._file, self._end, 0
        if isinstance(file, PooledFile):
            # INVARIANT: whoever writes the journal holds the mutex.
            taken = max(file.write_alone(block, end), 0)
        self._end = end + taken if taken == len(block) else write_all(file, [memoryview(block)[taken:]], end + taken)
        self._reserved = max(self._reserved, self._end)

    def sync(self) -> None:
        """Sync: on return, everything appended before is on the device, with a reserve after it.

        Raises:
            StoreFailedError: it is unknown what is on disk.
        """
        with self._mutex:
            self._reserve(self._file)
        sync_file(self._file, self._path)

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Have `submit` begin an asynchronous sync of the file; `end_sync` is to follow.

        Returns:
            False if that is not possible, or zeros have to be written first; then `sync` is to be called.
        """
        file = self._file
        return not self.scant and isinstance(file, PooledFile) and file.begin_sync(submit)

    def end_sync(self, error: int) -> None:
        """Note the end of the sync that was begun, with its errno, 0 for none.

        Raises:
            StoreFailedError: it is unknown what is on disk.
        """
        file = self._file
        if isinstance(file, PooledFile):
            file.end_sync(synced=not error)
        if error:
            raise sync_failure(OSError(error, os.strerror(error)), self._path)

    def sought(self, number: int) -> None:
        """Keep the number of a seek, in the step of the seek: it stays in the journal once a checkpoint holds that."""
        self._sought = (*self._sought, number)[-_SEEKS:]

    def imaged(self) -> None:
        """Mark the moment of the image that `fold` will get: what is appended from now on is not in it and is kept."""
        with self._mutex:
            self._since, self._imaged = [], self._sought

    def fold(self, record: ChannelRecord) -> None:
        """Replace checkpoint and journal by `record` and what was appended since `imaged`.

        Raises:
            StorageError: the old ones stand, or both hold the same.
        """
        try:
            self._fold(record)
        finally:
            with self._mutex:
                self._since = self._imaged = None

    def _fold(self, record: ChannelRecord) -> None:
        # CRASH: 18. Once the new checkpoint exists, the old journal's generation no longer fits and it is ignored.
        checkpoint = encode_checkpoint(record, self._generation + 1, _let_others_run)
        try:
            replace_file(self._fs, self._checkpoint, checkpoint)
        except DiskFullError:
            if not self._give_way():
                raise
            try:
                replace_file(self._fs, self._checkpoint, checkpoint)
            except DiskFullError:
                self.top_up()  # before other files take the space
                raise
        with self._mutex:
            self._generation += 1
            # INVARIANT: nothing is written after a header of another generation; if it cannot be replaced now, `append`
            # replaces it first.
            self._end = self.pending = 0
            self.noted = checkpoint_entries(checkpoint)
            # INVARIANT: no number of a seek that the checkpoint does not hold.
            sought = self._sought if self._imaged is None else self._imaged
            self._numbers = [Op(OpKind.FLOOR, 0, value=number) for number in sought]
            self._onward = self._since or []
            try:
                self._renew(self._file)
            except OSError as cause:
                raise storage_error(cause, self._path) from cause
        sync_file(self._file, self._path)

    def _give_way(self) -> bool:
        """Truncate the reserve, so that a checkpoint finds room; return whether there was one."""
        with self._mutex:
            if not self._end or self._reserved == self._end:
                return False
            with suppress(OSError):
                self._file.truncate(self._end)
                self._reserved = self._end
            return self._reserved == self._end

    def close(self) -> None:
        """Close the journal.

        Raises:
            StorageError: as `close_file`.
        """
        close_file(self._file, self._path)


def _let_others_run() -> None:
    time.sleep(_PAUSE)


def _is_number(op: Op) -> bool:
    """Return whether an operation is only the number of a seek."""
    return op.kind is OpKind.FLOOR and not op.offset


def _numbers(ops: Iterable[Op]) -> tuple[int, ...]:
    """Return the numbers of the last seeks in a journal, oldest first."""
    found = (op.value for op in ops if op.value and (op.kind is OpKind.SEEK or _is_number(op)))
    return tuple(dict.fromkeys(found))[-_SEEKS:]


def _entries(image: ChannelImage) -> int:
    return len(image.ranges) + len(image.attempts) + len(image.deferred)


def _reach_of(op: Op) -> int:
    """Return the offset after the last one that an operation names."""
    match op.kind:
        case OpKind.ACK:
            return op.offset + op.length
        case OpKind.REQUEUE:
            return op.run.stop
        case OpKind.DEFER:
            return op.offset + 1
        case OpKind.FLOOR | OpKind.SEEK:
            return op.offset
