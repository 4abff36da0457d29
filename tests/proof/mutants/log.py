"""The log: segments, the watermark, recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.publisher import Publisher
from aiodq.engine.retainer import Retainer
from aiodq.storage import recovery
from aiodq.storage.log import TopicLog
from aiodq.testing.handles import SimulatedFile
from tests.proof.mutants.registry import Patch, mutant

if TYPE_CHECKING:
    from aiodq.storage.contents import Contents
    from aiodq.storage.filesystem import File
    from aiodq.storage.segments import Segment


@mutant("many producers")
def puts_are_acknowledged_before_the_sync() -> Patch:
    def early(publisher: Publisher) -> None:
        while publisher.unsynced:
            publisher._publish(*publisher.unsynced.popleft())

    return mock.patch.object(Publisher, "synced", early)


@mutant("written while syncing")
def a_sync_counts_for_what_was_written_while_it_ran() -> Patch:
    sync = TopicLog.sync

    def too_much(log: TopicLog) -> None:
        sync(log)
        log.durable = log.end

    return mock.patch.object(TopicLog, "sync", too_much)


@mutant("unsynced tails")
def a_torn_tail_is_left_in_place() -> Patch:
    cut = recovery._cut

    def leave(task: recovery._Task, file: File, contents: Contents) -> Segment:
        with mock.patch.object(SimulatedFile, "truncate", return_value=None):
            return cut(task, file, contents)

    return mock.patch.object(recovery, "_cut", leave)


@mutant("single puts", "many producers")
def the_watermark_is_noted_before_the_sync() -> Patch:
    sync = TopicLog.sync

    def early(log: TopicLog) -> None:
        log.durable = log.end
        log._note()
        sync(log)

    return mock.patch.object(TopicLog, "sync", early)


@mutant("roll and retention", "many producers")
def the_next_segment_begins_before_the_last_is_synced() -> Patch:
    return mock.patch("aiodq.storage.recovery.sync_file", return_value=None)


@mutant("a failed sync")
def what_a_failed_sync_forgot_is_not_written_again() -> Patch:
    return mock.patch("aiodq.storage.recovery.write_again", return_value=None)


@mutant("the newest segment")
def the_newest_segment_goes_though_not_all_of_it_is_acked() -> Patch:
    return mock.patch.object(Retainer, "_consumed", return_value=True)


@mutant("the newest segment")
def the_newest_segment_goes_before_the_next_one_is_durable() -> Patch:
    return mock.patch("aiodq.storage.active.sync_directory", return_value=None)
