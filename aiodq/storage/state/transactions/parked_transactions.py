"""Parked transactions: committed ones for a topic that cannot be used, kept in a file until it can.

One bad topic must neither stop a store nor keep its transaction log from being emptied. So before that log is emptied,
its contents for that topic are written to `#aside/TOPIC,NUMBER`, a file of the same format; NUMBER is the first
transaction's. The owner that next opens the topic applies them, and removes the file once that is durable. The
transactions' numbers show what was applied already.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.format.transactions import Commit, Header
from aiodq.names import is_topic_name
from aiodq.storage.io.durable_io import ensure_directory, list_own, replace_file, sweep_temporaries, sync_directory
from aiodq.storage.io.filesystem import directory_exists
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.io.quarantine import quarantine_file
from aiodq.storage.state.transactions.transaction_log import FoundTransactions, mended, read_blocks

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
"""The directory of parked transactions. No topic may have this name."""

_NAME: Final = re.compile(r"([^,]+),[0-9]{20}")


class Owed(NamedTuple):
    """The transactions that one file keeps for a topic.

    Attributes:
        path: the file.
        topic: the topic.
        blocks: the transactions, each with only what it does in that topic.
        damages: what cannot be read in the file.
        size: bytes of the file.
    """

    path: str
    topic: str
    blocks: list[Block]
    damages: Sequence[Damage]
    size: int


def owed_to(topic: str, blocks: Iterable[Block]) -> list[Block]:
    """Return the transactions that do something in a topic, without what they do elsewhere."""
    found: list[Block] = []
    for block in blocks:
        acks = [acks for acks in block.commit.acks if acks.topic == topic]
        # The number stands in the block; as in the transaction log, the messages in the file do not carry it.
        puts = [
            replace(puts, columns=replace(puts.columns, transaction=None))
            for puts in block.commit.puts
            if puts.topic == topic
        ]
        if acks or puts:
            found.append(block._replace(commit=Commit(acks, puts)))
    return found


def keep_owed(fs: FileSystem, store: str, topic: str, blocks: Sequence[Block]) -> None:
    """Park what transactions do in a topic, durably, so that the log may forget them. Repeating it is safe. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, ASIDE)
    ensure_directory(fs, directory)
    sweep_temporaries(fs, directory)
    first = blocks[0].number
    header = Header(first, zlib.crc32(topic.encode()))
    # CRASH: 13. Before, all is in the transaction log; after, in both, and the numbers show that both are the same.
    replace_file(fs, os.path.join(directory, f"{topic},{first:020d}"), mended(FoundTransactions(header, [*blocks])))


def read_owed(fs: FileSystem, store: str) -> dict[str, list[Owed]]:
    """Return the parked transactions, by topic and in their order. Blocking.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, ASIDE)
    owed: dict[str, list[Owed]] = {}
    for name in sorted(list_own(fs, directory)):
        match = _NAME.fullmatch(name)
        if match is not None:
            found = read_blocks(fs, os.path.join(directory, name), whole=True)
            one = Owed(os.path.join(directory, name), match[1], found.blocks, found.damages, found.size)
            owed.setdefault(one.topic, []).append(one)
    return owed


def may_be_topic(fs: FileSystem, store: str, name: str) -> bool:
    """Return whether a store can have a topic of that name: it is not reserved, or the topic exists.

    Raises:
        StorageError: as mapped from the system's error.
    """
    return is_topic_name(name) or directory_exists(fs, os.path.join(store, name))


def drop_owed(fs: FileSystem, owed: Sequence[Owed]) -> None:
    """Remove the files whose transactions topics now hold durably. Unreadable parts stay, in quarantine. Blocking.

    Raises:
        StorageError: as mapped from the system's error; retrying is safe.
    """
    for one in owed:
        with os_errors(one.path):
            if not fs.exists(one.path):
                continue
            if one.damages:
                quarantine_file(fs, one.path)
                continue
            fs.remove(one.path)
            # CRASH: 13. Until the name is durably gone, no message may be deleted that shows that it was applied.
            sync_directory(fs, os.path.dirname(one.path))
