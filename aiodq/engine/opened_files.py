"""A store's files as opened, before anything runs on them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.errors import StorageError
    from aiodq.format.columns import Columns
    from aiodq.format.transactions import Acks, Puts
    from aiodq.storage.bulk.commits import CommitKey
    from aiodq.storage.io.filesystem import Lock
    from aiodq.storage.io.quarantine import Damage
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.channel_journal import ChannelJournal
    from aiodq.storage.state.store_identity import StoreIdentity
    from aiodq.storage.state.transactions.parked_transactions import Owed
    from aiodq.storage.state.transactions.transaction_log import TransactionFile

__all__ = ["Committed", "OpenedStore", "OpenedTopic"]


@dataclass(slots=True)
class Committed:
    """Acks and puts of committed transactions that a topic may not hold durably yet.

    Attributes:
        puts: with the transactions' numbers, in order.
        acks: those of its channels.
    """

    puts: list[tuple[int, Puts]] = field(default_factory=list)
    acks: list[Acks] = field(default_factory=list)


class OpenedTopic:
    """A topic's files as opened by a thread: the log, and each channel with its journal.

    Attributes:
        log: the log.
        channels: each channel's journal and state, by name.
        left: messages of transactions for which the disk has no room now.
    """

    __slots__ = ("channels", "left", "log")

    def __init__(self, log: TopicLog) -> None:
        """Start without channels."""
        self.log: TopicLog = log
        self.channels: dict[str, tuple[ChannelJournal, ChannelState]] = {}
        self.left: list[Columns] = []

    def abandon(self) -> None:
        """Close the files and nothing else."""
        with ExitStack() as closing:
            closing.callback(self.log.abandon)
            for journal, _ in self.channels.values():
                closing.callback(journal.close)


class OpenedStore(NamedTuple):
    """A store's files as opened by a thread.

    Attributes:
        lock: the store's lock.
        transactions: the transaction log.
        topics: the opened topics, by name.
        committed: acks and puts from the transaction log and from parked transactions, by topic.
        taken: the files of those parked transactions, to be removed once the topics hold them durably.
        unusable: why a topic cannot be used until the store is opened again, by name; its transactions stay parked.
        owing: why a topic with parked transactions could not be created, by name; that may be retried at any time.
        blocked: bulk commits that are to be left as they are.
        done: the file names of records of bulk commits that are done, as for `read_commits`.
        identity: the identity of the store.
        damages: what was damaged of the store's own files.
    """

    lock: Lock
    transactions: TransactionFile
    topics: dict[str, OpenedTopic]
    committed: dict[str, Committed]
    taken: list[Owed]
    unusable: dict[str, StorageError]
    owing: dict[str, StorageError]
    blocked: set[CommitKey]
    done: set[str]
    identity: StoreIdentity
    damages: list[Damage]

    def abandon(self) -> None:
        """Close everything."""
        with ExitStack() as closing:
            closing.callback(self.lock.release)
            closing.callback(self.transactions.close)
            for topic in self.topics.values():
                closing.callback(topic.abandon)
