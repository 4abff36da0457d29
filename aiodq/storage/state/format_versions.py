"""Detecting files of a newer aiodq before anything is touched.

Only the headers are read: each says what the rest is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aiodq.errors import CorruptionError
from aiodq.format.journal import JOURNAL_HEADER, decode_checkpoint, decode_journal_header, names_newer_checkpoint
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader
from aiodq.format.transactions import FIRST_BLOCK, decode_header
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.assessment import CHANNELS
from aiodq.storage.state.channel_files import CHECKPOINT, JOURNAL
from aiodq.storage.state.topic.topic_meta import read_meta
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS
from aiodq.storage.state.transactions.transaction_origins import read_origins

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["refuse_newer", "refuse_newer_transactions"]


def refuse_newer(fs: FileSystem, directory: str) -> None:
    """Check that no file of a topic has a newer version. Damage is ignored here.

    Raises:
        FormatVersionError: one does.
        OSError, StorageError: the system refused.
    """
    with suppress(CorruptionError):
        read_meta(fs, directory)
    for _, path in list_segments(fs, directory):
        with suppress(CorruptionError):
            SegmentHeader.decode(read_file(fs, path, SEGMENT_HEADER.size) or b"", path)
    channels = os.path.join(directory, CHANNELS)
    for name in fs.listdir(channels) if fs.is_directory(channels) else ():
        if fs.is_directory(os.path.join(channels, name)):
            _refuse_newer_state(fs, os.path.join(channels, name))


def refuse_newer_transactions(fs: FileSystem, store: str) -> None:
    """Check that a store's files of transactions have no newer version.

    Raises:
        FormatVersionError: it is.
        StorageError: the system refused.
    """
    path = os.path.join(store, TRANSACTIONS)
    with suppress(CorruptionError):
        decode_header(read_file(fs, path, FIRST_BLOCK) or b"", path)
    with suppress(CorruptionError):
        read_origins(fs, store)


def _refuse_newer_state(fs: FileSystem, directory: str) -> None:
    path = os.path.join(directory, JOURNAL)
    with suppress(CorruptionError):
        decode_journal_header(read_file(fs, path, JOURNAL_HEADER.size) or b"", path)
    path = os.path.join(directory, CHECKPOINT)
    if names_newer_checkpoint(read_file(fs, path, JOURNAL_HEADER.size) or b""):
        # The checksum is at the end; without it, the version may be the result of a wrong bit.
        with suppress(CorruptionError):
            decode_checkpoint(read_file(fs, path, 1 << 30) or b"", path)
