"""The writers of the data source, of a single write and of a stream: tasks stage rows, and the driver commits them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from aiodq.errors import StoreNotFoundError
from aiodq.spark.writing.committing import commit_write, key_of, stream_name
from aiodq.spark.writing.staged_rows import stage
from aiodq.storage.bulk.commits import CommitKey, discard_staged
from aiodq.storage.io.durable_io import ensure_directory
from aiodq.storage.io.filesystem import OsFileSystem, name_exists
from aiodq.storage.store_layout import check_store_directory, refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.spark.options import WriteOptions

__all__ = ["BatchWriter", "StreamWriter", "check_place"]


class BatchWriter(DataSourceArrowWriter):
    """The writer of a single write."""

    def __init__(self, options: WriteOptions) -> None:
        """Write with these options; made beside the driver, it travels to each task."""
        _prepare(options.store)
        self._options = options
        name = options.name
        self._key = CommitKey(uuid4().hex, once=True) if name is None else key_of(name)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return stage(self._options, self._key.name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks staged; add nothing if the `txnId` was committed before."""
        commit_write(self._options, self._key, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - a failed task sends none
        """Remove what was staged; what was committed stays, whatever failed then."""
        discard_staged(OsFileSystem(), self._options.store, self._key.name)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream, batch by batch."""

    def __init__(self, options: WriteOptions) -> None:
        """Write with these options; made beside the driver, it travels to each task."""
        _prepare(options.store)
        self._options = options
        self._name = stream_name(options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return stage(self._options, self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit what all tasks staged; add nothing if the batch was committed before."""
        commit_write(self._options, CommitKey(self._name, batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - likewise
        """Remove what was staged; what was committed stays, whatever failed then."""
        discard_staged(OsFileSystem(), self._options.store, self._name)


def check_place(store: str) -> None:
    """Make sure that this is a store, or that one can be created here; nothing is created. Blocking.

    Raises:
        NotAStoreError: it holds something else, is no directory, or lies among another store's own files.
        StoreNotFoundError: its parent directory does not exist.
        StorageError: as mapped from the system's error.
    """
    fs, parent = OsFileSystem(), os.path.dirname(store.rstrip("/"))
    # Nobody opens a store there: what was committed to it would never be taken over.
    refuse_inside_store(fs, os.path.realpath(store))
    if name_exists(fs, store):
        check_store_directory(fs, store)
    elif not os.path.isdir(parent):
        raise StoreNotFoundError("there is no directory in which the store could be made", parent)


def _prepare(store: str) -> None:
    """Make sure that this is a store, or an empty directory that can become one.

    Raises:
        NotAStoreError: as for `check_place`.
        StorageError: as mapped from the system's error.
    """
    check_place(store)
    fs = OsFileSystem()
    ensure_directory(fs, store)
    check_store_directory(fs, store)
