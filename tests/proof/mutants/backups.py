"""What is copied of a store while it is used."""

from __future__ import annotations

from contextlib import nullcontext
from unittest import mock

from aiodq.engine.store import backups
from aiodq.engine.store.deletions import Deletions
from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
from aiodq.storage.backup import Backup, LogCopy
from tests.proof.mutants.registry import Patch, change, mutant

_TESTS = "tests/system/test_backup.py::test_"

change(
    "segments are deleted while a backup copies them",
    SegmentDeletion.keep_files,
    "self._keepers += 1",
    "self._keepers += 0",
    test=_TESTS + "puts_acks_and_transactions_go_on_while_logs_are_copied",
)
change(
    "segments are never deleted after a backup",
    SegmentDeletion._delete_kept,
    "self._persister.submit(job)",
    "None",
    test=_TESTS + "puts_acks_and_transactions_go_on_while_logs_are_copied",
)
change(
    "a topic is deleted while a backup copies it",
    Deletions._delete,
    "await self._backups.have(engine)",
    "None",
    test=_TESTS + "a_topic_that_is_deleted_meanwhile_is_in_it",
)
change(
    "what is about to be deleted is left out of a backup",
    LogCopy.of,
    "tuple(undeleted)",
    "()",
    test=_TESTS + "what_is_settled_before_the_moment_comes_again_and_is_there",
)
change(
    "a backup holds what was put after its moment",
    LogCopy.of,
    "not view.segments[-1].sealed",
    "False",
    test="tests/proof/test_backups.py::test_a_backup_holds_all_that_was_promised_when_it_began",
)
change(
    "the files of a backup are not synced",
    Backup._sync,
    "file.sync()",
    "None",
    test=_TESTS + "all_in_it_is_durable_once_it_is_there",
)
change(
    "the directories of a backup are not synced",
    Backup._sync_directory,
    "self._fs.sync_directory(path)",
    "None",
    test=_TESTS + "all_in_it_is_durable_once_it_is_there",
)
change(
    "bulk loads are adopted while a backup begins",
    backups._Making._note,
    "async with self._adopting.turn:",
    "if self is not None:",
    test=_TESTS + "a_bulk_load_is_in_it_once",
)
change(
    "bulk loads that wait are left out of a backup",
    Backup.copy_staged,
    "for commit in commits:",
    "for commit in ():",
    test=_TESTS + "a_bulk_load_that_cannot_be_adopted_yet_is_in_it",
)


@mutant(test=_TESTS + "a_transaction_is_in_it_whole_or_not_at_all")
def transactions_are_committed_while_a_backup_begins() -> Patch:
    return mock.patch("aiodq.engine.store.store_engine.StoreEngine.without_transactions", return_value=nullcontext())


change(
    "a hold made after segments were found deletable does not keep them",
    SegmentDeletion._delete_files,
    "min(holds.values(), default=sys.maxsize)",
    "sys.maxsize",
    test="tests/bulk/test_holds.py::test_one_made_while_a_backup_keeps_files_keeps_those_after_it_too",
)
change(
    "a hold made while very many segments are deleted does not keep the rest",
    SegmentDeletion._delete_files,
    "self._host.clock.monotonic() > began + FRESH",
    "False",
    test="tests/bulk/test_holds.py::test_one_made_while_very_many_files_are_deleted_keeps_the_rest",
)
change(
    "a file that could not be deleted is deleted when the store is next opened",
    SegmentDeletion.retry,
    "self._delete_kept()",
    "None",
    test="tests/bulk/test_holds.py::test_a_file_that_cannot_be_deleted_at_first_is_deleted_later",
)
