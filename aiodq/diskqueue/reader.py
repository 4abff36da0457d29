"""Reading what a queue holds, whatever state it was left in, without changing a byte of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiodq.diskqueue.files import check_directory, check_name, data_numbers, data_path, files_of, metadata_path
from aiodq.diskqueue.findings import Finding, FindingKind
from aiodq.diskqueue.metadata import LONGEST, DiskQueueMetadata
from aiodq.diskqueue.options import MAX_MESSAGE_BYTES, Limits
from aiodq.diskqueue.records import PREFIX, RecordFile
from aiodq.errors import CorruptionError, StoreNotFoundError
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.os_errors import storage_error

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["DiskQueueMessage", "DiskQueueReader", "read"]


class DiskQueueMessage(NamedTuple):
    """A message, and where it was found.

    Attributes:
        body: as it was put.
        file: number of the data file.
        position: byte in it at which the message's record begins.
    """

    body: bytes
    file: int
    position: int


class DiskQueueReader:
    """The unread messages of a queue, in the order in which they were put.

    It goes by what is there more than by what the metadata says. It begins at the metadata's read position, or at the
    first file where there is no metadata that makes sense, and goes on to the end of the last file that exists, each
    file to its real end, whatever the limit was. So nothing is lost that go-diskqueue would give out, and what was
    written after the last sync comes too, even after the first one never came. What was read after the last sync is
    redelivered.

    Behind damage the rest of that file is not read, since nothing marks where a message begins; the next file is. Files
    that go-diskqueue has quarantined as `.bad` are not looked at.

    Where the system refuses something, that is an error and never taken for damage (go-diskqueue#1). The queue should
    have no other user meanwhile; of one that is written to, this sees what was there when it looked.

    Attributes:
        directory: where the files are.
        name: the queue's.
        metadata: what was believed, or None.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        min_message_bytes: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        fs: FileSystem | None = None,
    ) -> None:
        """Look at the directory and the metadata; no message is read yet. See `read`."""
        self.directory: str = check_directory(directory)
        self.name: str = check_name(name)
        self._limits = Limits(min_message_bytes, max_message_bytes).check()
        self._fs: FileSystem = fs or OsFileSystem()
        self._found_at_opening: list[Finding] = []
        self._found: list[Finding] = []
        files = files_of(self._fs, self.directory, self.name)
        numbers = data_numbers(files, self.name)
        data = read_file(self._fs, self._metadata_path, LONGEST + 1)
        if data is None and not numbers:
            raise StoreNotFoundError(f"there is no queue {self.name!r}", self.directory)
        self.metadata: DiskQueueMetadata | None = self._believed(data, numbers)
        self._numbers = self._unread(numbers)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far that is not as it should be; complete after an iteration to the end."""
        return self._found_at_opening + self._found

    def __iter__(self) -> Iterator[DiskQueueMessage]:
        """Yield the messages, each time from the beginning; one iteration at a time.

        At most one message and 64 KiB are in memory.

        Raises:
            StorageError: as mapped from the system's error.
        """
        self._found = []
        expected = self.metadata.read_file if self.metadata else None
        for number in self._numbers:
            if expected is not None and number > expected:
                self._missing(expected, number)
            yield from self._file(number)
            expected = number + 1
        self._check_end(expected)

    # --- before the first message

    @property
    def _metadata_path(self) -> str:
        return metadata_path(self.directory, self.name)

    def _path(self, number: int) -> str:
        return data_path(self.directory, self.name, number)

    def _believed(self, data: bytes | None, numbers: list[int]) -> DiskQueueMetadata | None:
        if data is None:
            self._found_at_opening.append(_at("no-metadata", self._metadata_path, 0, "there is no metadata"))
            return None
        try:
            said = DiskQueueMetadata.decode(data, self._metadata_path)
            self._check_against(said, numbers)
        except CorruptionError as cause:
            self._found_at_opening.append(_at("bad-metadata", self._metadata_path, 0, cause.message))
            return None
        return said

    @staticmethod
    def _check_against(said: DiskQueueMetadata, numbers: list[int]) -> None:
        if _has_unread(said) and numbers and numbers[-1] < said.read_file:
            raise CorruptionError("the metadata speaks of files that are not there, and not of those that are")

    def _unread(self, numbers: list[int]) -> list[int]:
        if self.metadata is None:
            return numbers
        for number in numbers:
            if number < self.metadata.read_file:
                reason = "the metadata's read position is behind this file"
                self._found_at_opening.append(_at("already-read", self._path(number), 0, reason))
            if number > self.metadata.write_file:
                reason = "the metadata knows nothing of this file"
                self._found_at_opening.append(_at("stale-metadata", self._path(number), 0, reason))
        return [number for number in numbers if number >= self.metadata.read_file]

    # --- file by file

    def _file(self, number: int) -> Iterator[DiskQueueMessage]:
        file = self._open(number)
        if file is None:
            self._missing(number, number + 1)
            return
        try:
            yield from self._messages(number, file)
        finally:
            file.close()

    def _open(self, number: int) -> RecordFile | None:
        path = self._path(number)
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            # It was read and deleted since the directory was listed.
            return None
        except OSError as cause:
            raise storage_error(cause, path) from cause
        try:
            return RecordFile(file, path)
        except BaseException:
            file.close()
            raise

    def _messages(self, number: int, file: RecordFile) -> Iterator[DiskQueueMessage]:
        self._check_size(number, file)
        position = self._first_position(number, file)
        while position < file.size:
            length = file.length(position)
            if length is not None and not self._limits.allow(length):
                reason = f"no message has {length} bytes"
                self._found.append(Finding("bad-length", file.path, position, file.size, reason))
                return
            body = None if length is None else file.body(position, length)
            if body is None:
                reason = f"the file ends inside {'a length' if length is None else f'a message of {length} bytes'}"
                self._found.append(Finding("torn", file.path, position, file.size, reason))
                return
            yield DiskQueueMessage(body, number, position)
            position += PREFIX + len(body)
        self._check_whole(number, file)

    def _first_position(self, number: int, file: RecordFile) -> int:
        if self.metadata is None or number != self.metadata.read_file:
            return 0
        position = self.metadata.read_position
        if position > file.size or file.is_boundary(position, self._limits):
            return position
        reason = "the metadata's read position is inside a message"
        self._found.append(_at("bad-position", file.path, position, reason))
        return 0

    def _check_size(self, number: int, file: RecordFile) -> None:
        """Say where the write file is longer than the metadata knows, as a queue that was killed leaves it."""
        if self.metadata and number == self.metadata.write_file and file.size > self.metadata.write_position:
            reason = "the metadata knows nothing of these bytes"
            self._found.append(Finding("stale-metadata", file.path, self.metadata.write_position, file.size, reason))

    def _check_whole(self, number: int, file: RecordFile) -> None:
        """Say where a file ends between two messages, but earlier than the metadata knows."""
        if self.metadata is None or not _has_unread(self.metadata):
            return
        read = self.metadata.read_position if number == self.metadata.read_file else 0
        written = self.metadata.write_position if number == self.metadata.write_file else 0
        if (end := max(read, written)) > file.size:
            self._found.append(Finding("lost-end", file.path, file.size, end, "the metadata knows of more bytes"))

    def _missing(self, first: int, stop: int) -> None:
        reason = "there is no such file" if stop == first + 1 else f"there are no files {first:06d} to {stop - 1:06d}"
        self._found.append(_at("missing-file", self._path(first), 0, reason))

    def _check_end(self, expected: int | None) -> None:
        """Say which files the metadata knows of behind the last one. One with nothing in it yet need not exist."""
        if self.metadata is None or expected is None or not _has_unread(self.metadata):
            return
        stop = self.metadata.write_file + (self.metadata.write_position > 0)
        if expected < stop:
            self._missing(expected, stop)


def read(
    directory: str | os.PathLike[str],
    name: str,
    *,
    min_message_bytes: int = 0,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    fs: FileSystem | None = None,
) -> DiskQueueReader:
    """Return the unread messages of a queue, to be iterated, and what there is to say about its files.

    Args:
        directory: where the files are.
        name: the queue's; nsqd calls it after the topic, or "topic:channel" ("topic;channel" on Windows).
        min_message_bytes: what the queue was opened with. Where it is more than 0 (nsqd: 26), a run of zeros, as a
            power cut may leave it, is found to be damage; else it reads as empty messages.
        max_message_bytes: likewise. A length beyond it is damage.
        fs: another file system than the machine's, for tests.

    Raises:
        StoreNotFoundError: there is no file of such a queue.
        StorageError: as mapped from the system's error.
        InvalidNameError: no file can be called so.
        InvalidOptionError: the sizes are not possible; a `TypeError` too where one is no whole number, or this no path.
    """
    return DiskQueueReader(
        directory, name, min_message_bytes=min_message_bytes, max_message_bytes=max_message_bytes, fs=fs
    )


def _has_unread(said: DiskQueueMetadata) -> bool:
    return (said.read_file, said.read_position) != (said.write_file, said.write_position)


def _at(kind: FindingKind, path: str, position: int, reason: str) -> Finding:
    return Finding(kind, path, position, position, reason)
