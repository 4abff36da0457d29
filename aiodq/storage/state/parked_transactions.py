"""What committed transactions owe a topic that cannot be used: kept beside the topics until it can.

One bad topic must not stop a store, nor keep its file of transactions from being emptied. So what that file brings such
a topic, and nothing else of it, is written to `#aside/TOPIC,NUMBER`, a file like that one, before it is emptied; NUMBER
is the first transaction's. Whoever opens the topic later puts it in, and removes the file once that is durable. By the
transactions' numbers nothing is put in twice.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.transactions import Commit, Header
from aiodq.names import is_topic_name
from aiodq.storage.io.durable_io import ensure_directory, replace_file, sweep_temporaries, sync_directory
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.io.quarantine import quarantine_file
from aiodq.storage.state.transaction_log import FoundTransactions, mended, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiodq.format.transactions import Block
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.io.quarantine import Damage

__all__ = [
    "ASIDE",
    "Owed",
    "drop_owed",
    "keep_owed",
    "may_be_topic",
    "owed_to",
    "read_owed",
]

ASIDE: Final = "#aside"
"""No topic may be called so."""

_NAME: Final = re.compile(r"([^,]+),[0-9]{20}")


class Owed(NamedTuple):
    """What one file keeps for a topic.

    Attributes:
        path: the file.
        topic: the topic.
        blocks: the transactions, each with what it does in that topic.
        damages: what cannot be read of them.
        size: bytes of the file.
    """

    path: str
    topic: str
    blocks: list[Block]
    damages: Sequence[Damage]
    size: int


def owed_to(topic: str, blocks: Iterable[Block]) -> list[Block]:
    """Return those transactions that do something in a topic, without what they do elsewhere."""
    found: list[Block] = []
    for block in blocks:
        acks = [acks for acks in block.commit.acks if acks.topic == topic]
        # The number stands beside it; within the file, as in that of all transactions, messages do not carry it.
        puts = [
            replace(puts, columns=replace(puts.columns, transaction=None))
            for puts in block.commit.puts
            if puts.topic == topic
        ]
        if acks or puts:
            found.append(block._replace(commit=Commit(acks, puts)))
    return found


def keep_owed(fs: FileSystem, store: str, topic: str, blocks: Sequence[Block]) -> None:
    """Keep what transactions do in a topic, durably, so that they may be forgotten. Repeating it is safe. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, ASIDE)
    ensure_directory(fs, directory)
    sweep_temporaries(fs, directory)
    first = blocks[0].number
    header = Header(first, zlib.crc32(topic.encode()))
    # CRASH: 13. Before, it is all in the file of transactions; after, in both, and the numbers tell that it is one.
    replace_file(fs, os.path.join(directory, f"{topic},{first:020d}"), mended(FoundTransactions(header, [*blocks])))


def read_owed(fs: FileSystem, store: str) -> dict[str, list[Owed]]:
    """Return what is kept, by topic and in the order of the transactions. Blocking.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, ASIDE)
    try:
        names = sorted(fs.listdir(directory)) if fs.is_directory(directory) else []
    except OSError as cause:
        raise storage_error(cause, directory) from cause
    owed: dict[str, list[Owed]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            found = read_blocks(fs, os.path.join(directory, name))
            one = Owed(os.path.join(directory, name), match[1], found.blocks, found.damages, found.size)
            owed.setdefault(one.topic, []).append(one)
    return owed


def may_be_topic(fs: FileSystem, store: str, name: str) -> bool:
    """Return whether a store can have a topic that is called so: its name is not reserved, or it is there."""
    return is_topic_name(name) or fs.is_directory(os.path.join(store, name))


def drop_owed(fs: FileSystem, owed: Sequence[Owed]) -> None:
    """Forget what topics hold durably by now. What of it could not be read stays, out of the way. Blocking.

    Raises:
        StorageError: as mapped from the system's error; it may be repeated.
    """
    for one in owed:
        try:
            if not fs.exists(one.path):
                continue
            if one.damages:
                quarantine_file(fs, one.path)
                continue
            fs.remove(one.path)
            # CRASH: 13. Until the name is gone for good, no message may be deleted by which it is known to be there.
            sync_directory(fs, os.path.dirname(one.path))
        except OSError as cause:
            raise storage_error(cause, one.path) from cause
