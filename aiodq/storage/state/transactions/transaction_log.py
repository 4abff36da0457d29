"""The transaction log: committed transactions, appended in groups, and emptied once the topics hold all of them."""

from __future__ import annotations

import os
import struct
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError, FormatVersionError, StoreFailedError
from aiodq.format.transactions import (
    FIRST_BLOCK,
    Block,
    Commit,
    Header,
    commit_parts,
    decode_header,
    encode_commit,
    encode_header,
    next_commit,
)
from aiodq.storage.io.durable_io import read_file, sync_directory, sync_file, write_again, write_all
from aiodq.storage.io.filesystem import close_file
from aiodq.storage.io.os_errors import os_errors, storage_error
from aiodq.storage.io.quarantine import Damage, quarantine
from aiodq.storage.state.transactions.transaction_origins import TransactionOrigins

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.storage.io.filesystem import File, FileSystem

__all__ = [
    "TRANSACTIONS",
    "FoundTransactions",
    "TransactionFile",
    "mended",
    "read_blocks",
    "read_transactions",
]

TRANSACTIONS: Final = "#transactions"
"""The file of the transaction log. No topic may have this name."""

_LARGEST: Final = 1 << 30
_SPACE: Final = 1 << 16
_MOST_KEPT: Final = 1 << 20
"""Bytes that a new file gets, so that most syncs need not commit a new size, and that a file keeps when it is reset."""

_FIRST: Final = 1 << 40
"""Numbers begin with the time, so that no two files use the same one, but not below this (see `next_commit`)."""


class FoundTransactions(NamedTuple):
    """The contents of a store's transaction log.

    Attributes:
        header: None if there is no file, or no valid header.
        blocks: in order.
        following: a number above all used ones, or 0.
        damages: what is not as it was written.
        size: the file's size, bytes.
    """

    header: Header | None
    blocks: list[Block]
    following: int = 0
    damages: Sequence[Damage] = ()
    size: int = 0


def read_transactions(fs: FileSystem, directory: str) -> FoundTransactions:
    """Read a store's transaction log.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    return read_blocks(fs, os.path.join(directory, TRANSACTIONS))


def read_blocks(fs: FileSystem, path: str, *, whole: bool = False) -> FoundTransactions:
    """Read any file of that format, as `read_transactions` does; one written as a `whole` has no unfinished end."""
    data = read_file(fs, path, _LARGEST) or b""
    if not any(data):
        # CRASH: 19. The file was created and its header not yet durable: nothing was committed.
        return FoundTransactions(None, [], 0, [], len(data))
    try:
        header = decode_header(data, path)
    except FormatVersionError:
        raise
    except CorruptionError as error:
        return FoundTransactions(None, [], 0, [Damage(path, 0, len(data), error.message)], len(data))
    blocks, following, damages = _blocks(data, header, path)
    end = blocks[-1].end if blocks else FIRST_BLOCK
    if whole and any(data[end:]):
        damages.append(Damage(path, end, len(data.rstrip(b"\0")), "committed transactions are not what was written"))
    return FoundTransactions(header, blocks, following, damages, len(data))


def _blocks(data: bytes, header: Header, path: str) -> tuple[list[Block], int, list[Damage]]:
    all_of_them = list(_all_blocks(data, header, path))
    durable = max((block.durable for _, block in all_of_them), default=0)
    blocks: list[Block] = []
    damages: list[Damage] = []
    at, expected = FIRST_BLOCK, header.first
    for start, block in all_of_them:
        if block.number != expected and expected >= durable:
            # CRASH: 19. Of unsynced blocks, a power cut may leave a later one without an earlier one.
            break
        if block.number != expected:
            lost = block.number - expected
            damages.append(Damage(path, at, start, f"{lost} committed transactions are not what was written"))
        blocks.append(block)
        at, expected = block.end, block.number + 1
    following = max((block.number + 1 for _, block in all_of_them), default=header.first)
    return blocks, following, damages


def _all_blocks(data: bytes, header: Header, path: str) -> Iterator[tuple[int, Block]]:
    at, number = FIRST_BLOCK, header.first
    while (found := next_commit(data, at, header.salt, number, path)) is not None:
        yield found
        at, number = found[1].end, found[1].number + 1


def mended(found: FoundTransactions) -> bytes:
    """Return a file with the same transactions, with empty ones in place of lost ones."""
    if found.header is None:
        return b""
    commits = {block.number: block.commit for block in found.blocks}
    first, salt = found.header
    # Each says that those before it are durable, as all of them are at once: one that is damaged is not torn.
    blocks = [encode_commit(commits.get(n, Commit()), n, n, salt) for n in range(first, max(commits) + 1)]
    return b"".join([encode_header(found.header), *blocks]).ljust(_SPACE, b"\0")


class TransactionFile:
    """The transaction log, as its owner writes it; created when the first transaction commits.

    Attributes:
        found: the contents at open.
        damages: what could not be read then, of the origins too; the bytes are quarantined.
        stale: whether it has to be `reset` before anything is appended.
        origins: the origins of committed transactions that may be repeated.
        size: bytes of blocks since the last reset.
    """

    def __init__(self, fs: FileSystem, directory: str, now_ns: int) -> None:
        """Read the file, if there is one, and the origins.

        Raises:
            FormatVersionError: a newer version; nothing was touched.
            StorageError: as mapped from the system's error.
        """
        found = read_transactions(fs, directory)
        self._fs = fs
        self._directory = directory
        self._path = os.path.join(directory, TRANSACTIONS)
        self.found: list[Block] = found.blocks
        whose = [block.commit.origin for block in found.blocks]
        self.origins: TransactionOrigins = TransactionOrigins(fs, directory, [each for each in whose if each], now_ns)
        self.damages: Sequence[Damage] = (*found.damages, *self.origins.damages)
        self._file: File | None = None
        self._header = found.header or Header(0, 0)
        self._number = self._durable = found.following
        self._end = FIRST_BLOCK
        for damage in found.damages:
            quarantine(fs, self._path, damage.position, damage.end)
        try:
            if fs.exists(self._path):
                self._file = fs.open(self._path, write=True)
                self._wait_durable(self._file, found)
        except OSError as cause:
            self.close()
            raise storage_error(cause, self._path) from cause
        except BaseException:
            self.close()
            raise
        used = found.header is None or found.following > found.header.first
        self.stale: bool = self._file is not None and used

    def _wait_durable(self, file: File, found: FoundTransactions) -> None:
        """Make durable what was found, before anything is done because of it."""
        # CRASH: 19. A killed owner may have written blocks without syncing them: a part of their effects could be
        # durable without the rest. Or a header, and the blocks of the one before would come back.
        if found.header is not None:
            write_again(file, 0, found.blocks[-1].end if found.blocks else FIRST_BLOCK)
            sync_file(file, self._path)

    @property
    def size(self) -> int:
        """Bytes of blocks since the last reset."""
        return self._end - FIRST_BLOCK

    def append(self, commits: Sequence[Commit], now_ns: int) -> list[int]:
        """Make transactions durable; return their numbers. Blocking.

        Raises:
            StoreFailedError: it is unknown what is on disk.
            StorageError: nothing was committed.
        """
        with os_errors(self._path, self._end):
            file = self._file or self._make(now_ns)
            salt, numbers = self._header.salt, list(range(self._number, self._number + len(commits)))
            blocks = [commit_parts(c, n, self._durable, salt) for n, c in zip(numbers, commits, strict=True)]
            end = self._write(file, list(chain.from_iterable(blocks)))
        # CRASH: 19. Until then a block may be there or not, and nothing of it was put or settled.
        sync_file(file, self._path)
        self._end = end
        self._number = self._durable = numbers[-1] + 1
        return numbers

    def _write(self, file: File, parts: list[bytes]) -> int:
        try:
            return write_all(file, parts, self._end)
        except OSError:
            # CRASH: 19. Whole blocks of the failed group must not be found when the store is opened again.
            self._undo(file)
            raise

    def _undo(self, file: File) -> None:
        try:
            file.truncate(self._end)
        except OSError as cause:
            message = f"a transaction could be written neither whole nor away: {cause.strerror}; open the store again"
            raise StoreFailedError(message, self._path, errno=cause.errno) from cause
        sync_file(file, self._path)

    def _make(self, now_ns: int) -> File:
        """Create the file durably."""
        self._header = self._fresh_header(now_ns)
        # CRASH: 19. Until this returns, the transaction that waits for it does not exist.
        file = self._fs.open(self._path, create=True)
        try:
            write_all(file, [encode_header(self._header), bytes(_SPACE - FIRST_BLOCK)], 0)
            sync_file(file, self._path)
            sync_directory(self._fs, self._directory)
        except BaseException:
            file.close()
            self._fs.remove(self._path)
            raise
        self._file = file
        return file

    def _fresh_header(self, now_ns: int) -> Header:
        self._number = self._durable = self._number or max(now_ns, _FIRST)
        salt = zlib.crc32(struct.pack("<Qq", self._number, now_ns))
        return Header(self._number, salt ^ (salt == self._header.salt))

    def reset(self, now_ns: int) -> None:
        """Forget all blocks, as the topics hold their contents durably. Blocking.

        Raises:
            StorageError: either the blocks stand or they are forgotten, or the file is `stale` until it is reset.
        """
        file = self._file
        if file is None:
            return
        self.origins.keep(now_ns)
        header = self._fresh_header(now_ns)
        with os_errors(self._path):
            if file.size() > _MOST_KEPT:
                file.truncate(_MOST_KEPT)
            # INVARIANT: after a header that was written in part, nothing is appended.
            self.stale = True
            # CRASH: 19. The header lies within one sector. After the old one, all blocks are valid again.
            write_all(file, [encode_header(header)], 0)
        sync_file(file, self._path)
        self._header, self._end, self.stale = header, FIRST_BLOCK, False

    def close(self) -> None:
        """Close the file.

        Raises:
            StorageError: as for `close_file`.
        """
        if self._file is not None:
            close_file(self._file, self._path)
