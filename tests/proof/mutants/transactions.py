"""Transactions: their file, and what has to wait for it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.committing.group_committer import Committer
from aiodq.engine.store import opening
from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.engine.transactions.task_transactions import OpenTransactions
from aiodq.storage.read import log_reader
from aiodq.storage.state.transactions import parked_transactions
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@mutant("transactions")
def a_transaction_is_not_synced() -> Patch:
    return mock.patch("aiodq.storage.state.transactions.transaction_log.sync_file")


@mutant("transactions")
def what_was_committed_is_put_again_without_looking_whether_it_is_there() -> Patch:
    return mock.patch("aiodq.engine.store.opening.transactions_in", return_value=set())


@mutant("transactions")
def a_message_is_acked_before_it_is_durable() -> Patch:
    return mock.patch.multiple(TopicEngine, wait_durable=_at_once, sync_log=_at_once, are_durable=lambda _: True)


async def _at_once(_: object) -> None:
    """Wait for nothing."""


@mutant("transactions")
def transactions_are_forgotten_before_the_topics_hold_them() -> Patch:
    return mock.patch.object(TopicEngine, "sync", _at_once)


change(
    "the file of transactions is emptied while what it says is being settled",
    Committer._empty,
    "for entry in self._settling",
    "for entry in ()",
    test="tests/transactions/test_many.py::test_its_acks_are_in_the_journals_before_the_file_forgets_them",
)
change(
    "who is cancelled takes the commits of others along",
    Committer._empty,
    "shielded(entry.done)",
    "entry.done",
    test="tests/transactions/test_many.py",
)


@mutant("joined transactions")
def a_messages_block_acks_by_itself_inside_a_transaction() -> Patch:
    return mock.patch.object(OpenTransactions, "current", return_value=None)


@mutant("transactions among others")
def a_seek_does_not_wait_for_transactions() -> Patch:
    @asynccontextmanager
    async def at_once(_: Committer) -> AsyncIterator[None]:
        yield

    return mock.patch.object(Committer, "without_transactions", at_once)


change(
    "transactions that are found are not synced",
    TransactionFile._wait_durable,
    "sync_file(file, self._path)",
    "None",
    "transactions",
    "transactions among others",
    kills=True,
)
change(
    "transactions that are found are synced only where there are any",
    TransactionFile._wait_durable,
    "if found.header is not None:",
    "if found.blocks:",
    test="tests/proof/test_restarts.py"
    "::test_transactions_forgotten_before_a_kill_do_not_come_back_to_topics_that_are_deleted",
)
change(
    "the file of transactions is emptied without a sync",
    TransactionFile.reset,
    "sync_file(file, self._path)",
    "None",
    "topics come and go",
)
change(
    "transactions' numbers begin anew",
    TransactionFile._fresh_header,
    "self._number or max(now_ns, _FIRST)",
    "max(now_ns, _FIRST)",
    "transactions",
    "transactions among others",
)
change(
    "what transactions put is looked for one message too late",
    log_reader.batches_with,
    "max(segment.base, since)",
    "max(segment.base, since + 1)",
    "transactions",
)
change(
    "acks of transactions that are found are forgotten",
    opening.open_topic,
    "if acks.channel in topic.channels:",
    "if acks is None:",
    "transactions",
)
change(
    "messages are deleted that tell which transactions are there",
    SegmentDeletion.pin,
    "self.pinned = offset if self.pinned is None else min(self.pinned, offset)",
    "self.pinned = None",
    test="tests/transactions/test_recovery.py::test_consumed_and_gone_it_does_not_come_back",
)
change(
    "what was cut off of a group that did not fit is not cut off durably",
    TransactionFile._undo,
    "sync_file(file, self._path)",
    "None",
    test="tests/transactions/test_file.py::test_a_group_that_did_not_fit_is_gone_whole_after_a_power_cut",
)


_OWED = "tests/transactions/test_bad_topics.py::test_once_the_file_is_gone_a_running_store_takes_up_what_is_owed"


@mutant(test=_OWED)
def what_a_bad_topic_is_owed_is_not_kept_aside() -> Patch:
    return mock.patch("aiodq.engine.store.opening.keep_owed")


@mutant(test=_OWED)
def what_is_kept_aside_is_not_put_in() -> Patch:
    return mock.patch("aiodq.engine.store.opening.read_owed", return_value={})


change(
    "a power cut brings back what was owed to a topic that holds it",
    parked_transactions.drop_owed,
    "sync_directory(fs, os.path.dirname(one.path))",
    "None",
    test="tests/storage/state/test_parked_transactions.py",
)
change(
    "a file of transactions whose header was written in part is appended to",
    TransactionFile.reset,
    "self.stale = True",
    "self.stale = False",
    test="tests/transactions/test_file.py::test_a_file_of_which_it_is_unknown_how_it_begins_is_to_be_reset_again",
)
