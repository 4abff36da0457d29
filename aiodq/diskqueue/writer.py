"""Writing a queue's files as go-diskqueue does, to the byte."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from aiodq.diskqueue.files import check_directory, check_name, data_path, files_of, metadata_path
from aiodq.diskqueue.metadata import DiskQueueMetadata
from aiodq.diskqueue.options import (
    MAX_MESSAGE_BYTES,
    NSQD_MAX_BYTES_PER_FILE,
    DiskQueueExistsError,
    Limits,
    RollRule,
)
from aiodq.diskqueue.records import PREFIX
from aiodq.errors import InvalidMessageTypeError, MessageSizeError, StorageError, StoreFailedError
from aiodq.storage.io.durable_io import TEMPORARY, replace_file, sync_directory, sync_file, write_all
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.values import check_whole, refuse, several, shown_typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = ["DiskQueueWriter", "write"]


class DiskQueueWriter:
    """A new queue's files. Nothing of them is a queue to go-diskqueue before `close`, which writes the metadata.

    Where go-diskqueue closes a data file without syncing it, and never syncs the directory, this does both before there
    is any metadata: a power cut leaves no queue or the whole one.

    As a context manager it closes at the end, or discards if there was an error::

        with DiskQueueWriter("/var/lib/nsqd", "orders") as orders:
            orders.put(b"...")

    Attributes:
        metadata: nothing read, and how far was written; after `close`, what the metadata file says.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        max_bytes_per_file: int = NSQD_MAX_BYTES_PER_FILE,
        min_message_bytes: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        roll: RollRule = RollRule.BEFORE,
        fs: FileSystem | None = None,
    ) -> None:
        """Make sure that there is no such queue; no file is made yet. See `write`."""
        check_whole("max_bytes_per_file", max_bytes_per_file, least=1, example=NSQD_MAX_BYTES_PER_FILE)
        if not isinstance(roll, RollRule):
            refuse("roll", "a RollRule", roll, "write roll=RollRule.BEFORE", type_is_wrong=True)
        self._directory = check_directory(directory)
        self._name = check_name(name)
        self._limits = Limits(min_message_bytes, max_message_bytes).check()
        self._limit = max_bytes_per_file
        self._roll_rule = roll
        self._fs: FileSystem = fs or OsFileSystem()
        self._file: File | None = None
        self._made: list[str] = []
        self._path = data_path(self._directory, self._name, 0)
        self._closed = False
        self._failure: StoreFailedError | None = None
        self.metadata: DiskQueueMetadata = DiskQueueMetadata(0, 0, 0, 0, 0)
        if found := files_of(self._fs, self._directory, self._name):
            raise DiskQueueExistsError(f"there are files of {name!r} already", os.path.join(self._directory, found[0]))

    def put(self, body: BytesLike) -> None:
        """Append a message, beginning another file first where the rule wants it.

        Raises:
            InvalidMessageError: it is not bytes-like; a `TypeError` too.
            MessageSizeError: it is smaller or larger than the options allow; nothing was written.
            DiskFullError: nothing of it counts; it may be repeated once there is space.
            StoreFailedError: a sync failed, and it is unknown what is on disk; only `discard` may be called.
            StorageError: as mapped from the system's error; nothing of the message counts. Or the writer is closed.
        """
        if self._closed:
            raise StorageError("the writer is closed", self._path)
        self._check_sound()
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise InvalidMessageTypeError(f"a message is bytes-like, not {shown_typed(body)}: write put(text.encode())")
        body = bytes(body)
        if not self._limits.allow(len(body)):
            least, most = self._limits
            raise MessageSizeError(f"a message of {len(body)} bytes is not within {least} to {most}")
        if self._roll_rule.before(self.metadata.write_position, PREFIX + len(body), self._limit) or self._is_full:
            self._roll()
        end = self._append(len(body).to_bytes(PREFIX, "big") + body)
        self.metadata = self.metadata._replace(depth=self.metadata.depth + 1, write_position=end)

    def close(self) -> None:
        """Make everything durable, the metadata last; repeating it does nothing.

        Raises:
            StoreFailedError: a sync failed, and it is unknown what is on disk.
            StorageError: as mapped from the system's error; it may be repeated.
        """
        if self._closed:
            return
        self._check_sound()
        if self._is_full:
            self._roll()
        self._seal()
        path = metadata_path(self._directory, self._name)
        with self._remembering():
            if self._made:
                sync_directory(self._fs, self._directory)
            self._made += [path, path + TEMPORARY]
            # CRASH: before the metadata is there, go-diskqueue takes the queue for empty and its files for none. Nobody
            # has been told yet that they are; who exports again removes them first.
            replace_file(self._fs, path, self.metadata.encode())
        self._closed = True

    def discard(self) -> None:
        """Remove the files again, as far as the system lets it; after `close` it does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        # CRASH: what is left is without metadata, as before `close`. That goes first, or it would tell of files that
        # are no longer there.
        for path in reversed(self._made):
            with suppress(OSError):
                self._fs.remove(path)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, or discard after an error.

        Raises:
            StorageError: as `close` does; everything was discarded.
        """
        if error is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise

    @property
    def _is_full(self) -> bool:
        return self._roll_rule.after(self.metadata.write_position, self._limit)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Keep a failed sync in mind."""
        try:
            yield
        except StoreFailedError as failure:
            self._failure = failure
            raise

    def _check_sound(self) -> None:
        """Refuse to go on after a failed sync: the next one might succeed without what that one lost."""
        if self._failure is not None:
            raise self._failure.again()

    def _append(self, record: bytes) -> int:
        position = self.metadata.write_position
        try:
            if self._file is None:
                # It exists already if an earlier `close` has failed.
                self._file = self._fs.open(self._path, write=True, create=self._path not in self._made)
                self._made.append(self._path)
            # CRASH: no more than a file without metadata; see `close`. After an error the next record goes over it.
            return write_all(self._file, [record], position)
        except FileExistsError as cause:
            raise DiskQueueExistsError(
                "another program has created this file", self._path, errno=cause.errno
            ) from cause
        except OSError as cause:
            raise storage_error(cause, self._path, position) from cause

    def _roll(self) -> None:
        self._seal()
        self.metadata = self.metadata._replace(write_file=self.metadata.write_file + 1, write_position=0)
        self._path = data_path(self._directory, self._name, self.metadata.write_file)

    def _seal(self) -> None:
        """Bring the file to the device, without what a write that failed may have left at its end."""
        if self._file is None:
            return
        with os_errors(self._path, self.metadata.write_position):
            if self._file.size() > self.metadata.write_position:
                self._file.truncate(self.metadata.write_position)
            with self._remembering():
                sync_file(self._file, self._path)
            file, self._file = self._file, None
            file.close()


def write(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[BytesLike],
    *,
    max_bytes_per_file: int = NSQD_MAX_BYTES_PER_FILE,
    min_message_bytes: int = 0,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    roll: RollRule = RollRule.BEFORE,
    fs: FileSystem | None = None,
) -> DiskQueueMetadata:
    """Make a queue of messages, and return its metadata: the bytes are those of a go-diskqueue that has put and closed.

    When it returns, all of it is durable. When it raises, the files are removed again, as far as that is possible.

    Args:
        directory: where to; it must exist.
        name: the queue's; nsqd calls it after the topic, or "topic:channel" ("topic;channel" on Windows).
        messages: what to put.
        max_bytes_per_file: where `roll` begins the next file. nsqd's is the default.
        min_message_bytes: smaller messages are refused.
        max_message_bytes: larger messages are refused.
        roll: which version's files these are to be; all versions can read all of them.
        fs: another file system than the machine's, for tests.

    Raises:
        DiskQueueExistsError: there are files of that name already; they are left untouched.
        StoreNotFoundError: there is no such directory.
        InvalidMessageError: one is not bytes-like, or these are no messages; a `TypeError` too.
        MessageSizeError: a message is smaller or larger than allowed.
        StorageError: as mapped from the system's error.
        InvalidNameError: no file can be called so.
        InvalidOptionError: the sizes are not possible; a `TypeError` too where one is no whole number, or this no path.
    """
    writer = DiskQueueWriter(
        directory,
        name,
        max_bytes_per_file=max_bytes_per_file,
        min_message_bytes=min_message_bytes,
        max_message_bytes=max_message_bytes,
        roll=roll,
        fs=fs,
    )
    bodies = several(messages)
    if bodies is None:
        raise InvalidMessageTypeError(
            f"write takes a list of messages, not {shown_typed(messages)}: write [message] for one"
        )
    with writer:
        for body in bodies:
            writer.put(body)
    return writer.metadata
