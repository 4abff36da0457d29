"""The log: segments, the watermark, recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.store.opening import open_store
from aiodq.engine.topic.commit.group_commit import GroupCommit
from aiodq.engine.topic.commit.publisher import Publisher
from aiodq.engine.topic.commit.syncer import Syncer
from aiodq.engine.topic.retention.consumption import Consumption
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.format import decode, labelled
from aiodq.format.vectorized.frame_arrays import FrameArrays
from aiodq.storage.io import write_window
from aiodq.storage.io.file_pool import PooledFile
from aiodq.storage.log import opening, recovery
from aiodq.storage.log.active_segment import ActiveSegment
from aiodq.storage.log.preallocation import Preallocation
from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.offline import verify_segment
from aiodq.storage.segments import segment_contents as contents
from aiodq.storage.segments import segment_files
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.storage.store_layout import delete_topic
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from aiodq.engine.topic.commit.segment_writer import Written
    from aiodq.format.layout import BytesLike


@mutant("many producers")
def puts_are_acknowledged_before_the_sync() -> Patch:
    written = Publisher.written

    def early(publisher: Publisher, serial: int, result: Written, *, durably: bool) -> None:
        written(publisher, serial, result, durably=durably)
        while publisher.unsynced:
            publisher._publish(*publisher.unsynced.popleft())

    return mock.patch.object(Publisher, "written", early)


@mutant("written while syncing")
def a_sync_counts_for_what_was_written_while_it_ran() -> Patch:
    sync = TopicLog.sync

    def too_much(log: TopicLog) -> None:
        sync(log)
        log.durable = log.end

    return mock.patch.object(TopicLog, "sync", too_much)


@mutant("larger than a sector", "synced now and then")
def the_watermark_is_noted_before_the_sync() -> Patch:
    sync = TopicLog.sync

    def early(log: TopicLog) -> None:
        log.durable = log.end
        log._note()
        sync(log)

    return mock.patch.object(TopicLog, "sync", early)


@mutant("roll and retention", "many producers")
def the_next_segment_begins_before_the_last_is_synced() -> Patch:
    return mock.patch("aiodq.storage.log.recovery.sync_file", return_value=None)


@mutant("synced now and then", "written through memory", "puts of clients through memory", kills=True)
def a_put_that_waits_for_no_sync_is_written_with_the_next_one() -> Patch:
    write, sync = PooledFile.write_alone, PooledFile.sync
    held: dict[PooledFile, tuple[bytes, int]] = {}

    def late(file: PooledFile, data: BytesLike, position: int) -> int:
        if file in held:
            write(file, *held.pop(file))
        held[file] = bytes(data), position
        return len(data)

    def all_of_it(file: PooledFile) -> None:
        if file in held:
            write(file, *held.pop(file))
        sync(file)

    return mock.patch.multiple(PooledFile, write_alone=late, sync=all_of_it, begin_sync=lambda *_: False)


@mutant("a failed sync")
def what_a_failed_sync_forgot_is_not_written_again() -> Patch:
    return mock.patch("aiodq.storage.log.recovery.write_again", return_value=None)


@mutant("the newest segment")
def the_newest_segment_goes_though_not_all_of_it_is_acked() -> Patch:
    return mock.patch.object(Consumption, "covers", return_value=True)


@mutant("the newest segment")
def the_newest_segment_goes_before_the_next_one_is_durable() -> Patch:
    return mock.patch("aiodq.storage.log.active_segment.sync_directory", return_value=None)


change(
    "a topic is made while an earlier one of its name is being deleted, as somebody looks at it",
    TopicEngine.catch_up,
    "self.turn()",
    "self.io_loop.turn()",
    test="tests/queue/test_close.py::TestDeleting::"
    "test_what_is_put_and_looked_at_while_an_earlier_one_is_being_deleted_is_not_deleted_with_it",
)
change(
    "a put that nothing hinders waits for no sync whatever the policy",
    GroupCommit.look,
    'options.sync == "always"',
    "False",
    "single puts",
)
change(
    "a lone put is acknowledged before its sync",
    GroupCommit._sync_lone,
    "syncer.start(log, engine.visible, None if part.origin is None else part.durable)",
    "log.durable = log.end; syncer.start(log, engine.visible); engine.publisher.synced()",
    "single puts",
)
change(
    "a new segment's name is not synced",
    ActiveSegment.create,
    "sync_directory(fs, os.path.dirname(path))",
    "None",
    "roll and retention",
)
change("a footer is not synced", recovery.seal_file, "sync_file(file, segment.path)", "None", "roll and retention")
change(
    "what is behind a new footer is left",
    recovery.seal_file,
    "file.truncate(end)",
    "None",
    test="tests/storage/log/test_topic_log.py",
)
change(
    "what a failed write left is written behind",
    ActiveSegment._cut_torn,
    "self._file.truncate(self._position)",
    "None",
    test="tests/storage/log/test_topic_log.py",
)
change(
    "what was refused is found after a kill",
    ActiveSegment.rollback,
    "if self._torn:",
    "if False:",
    test="tests/storage/log/test_topic_log.py",
)
change(
    "a rolled back write is not cut off",
    ActiveSegment.rollback,
    "self._torn or self._position > self.segment.data_end",
    "False",
    test="tests/storage/log/test_topic_log.py",
)
change(
    "a frame says that what is not synced is durable",
    GroupCommit.put_now,
    "log.options.segment_bytes, log.durable",
    "log.options.segment_bytes, log.end",
    "synced now and then",
    "unsynced tails",
)
change(
    "a batch says that what is not synced is durable",
    TopicLog.stage,
    "watermark=self.durable",
    "watermark=self.end",
    "unsynced batches",
)
change(
    "a sync promises one message more",
    TopicLog.sync,
    "max(self.durable, end)",
    "max(self.durable, end + 1)",
    "single puts",
    "synced now and then",
)
change(
    "a sync counts what is committed while it runs",
    TopicLog.sync,
    "end = self.active.segment.end\n    self.active.sync()",
    "self.active.sync()\n    end = self.active.segment.end",
    "written while syncing",
    "synced now and then",
)
change(
    "a sync of the kernel's counts what is committed while it runs",
    TopicLog.end_sync,
    "max(self.durable, end)",
    "max(self.durable, active.segment.end)",
    "written while syncing",
    "synced now and then",
)
change(
    "a sync of the kernel's that failed makes messages durable",
    ActiveSegment.end_sync,
    "if error:",
    "if not self:",
    test="tests/system/test_sync_backend.py::test_a_sync_that_fails_stops_the_store",
)
change(
    "numbers are given twice when the log's end is lost",
    opening._continue,
    "opener.create(max(end, durable_end))",
    "opener.create(end)",
    test="tests/storage/log/test_opening.py"
    "::test_a_watermark_ahead_of_the_data_is_a_reported_loss_and_no_offset_is_given_again",
)
change(
    "a torn tail is left in place",
    recovery._cut,
    "file.truncate(contents.data_end)",
    "None",
    test="tests/storage/log/test_recovery.py::test_what_is_recovered_is_synced_before_it_counts",
)
change(
    "an unfinished write is not cut off durably",
    recovery._cut,
    "sync_file(file, task.path)",
    "None",
    "unsynced tails",
    "single puts",
    kills=True,
)
change(
    "the names of segments that are found are not synced",
    recovery.recover,
    "sync_directory(fs, directory)",
    "None",
    test="tests/storage/log/test_recovery.py::test_what_is_recovered_is_synced_before_it_counts",
)
change(
    "a footer that is found is not synced",
    recovery._settle_sealed,
    "sync_file(file, task.path)",
    "None",
    test="tests/proof/test_restarts.py::test_a_footer_found_after_a_kill_is_durable_before_the_next_segment_begins",
)
change(
    "a verification believes a footer that is there before its frames",
    verify_segment.check_segment,
    "if last and not copied and _is_ahead(file, path, found, durable_end):",
    "if False:",
    test="tests/storage/offline/test_verify.py::test_a_footer_without_its_frames_is_unfinished_if_they_were_not_durable",
)
change(
    "recovery takes the last put for durable",
    segment_files.durable_ends,
    "[*bases[1:], durable_end]",
    "[*bases[1:], durable_end + 1]",
    "unsynced tails",
    "synced now and then",
)
change(
    "what is behind the promise is damage",
    contents.examine,
    "if durable_end <= found.end:\n                found.unfinished",
    "if durable_end < found.end:\n                found.unfinished",
    "unsynced tails",
    "single puts",
)
change("a deleted topic's new name is not synced", delete_topic, "sync_directory(fs, path)", "None", "several topics")
change(
    "the names that a store is found with are not synced",
    open_store,
    "sync_directory(fs, path)",
    "None",
    test="tests/proof/test_restarts.py::test_a_topic_found_deleted_after_a_kill_does_not_come_back_in_part",
)

_AGAIN = "tests/storage/log/test_recovery.py::test_whatever_was_not_promised_is_written_again"
_ALONE = "tests/storage/log/test_recovery.py::test_a_footer_that_came_without_frames_of_its_segment_seals_nothing"

change(
    "the last message is taken for durable and not written again",
    recovery._position_not_durable,
    "task.durable_end >= contents.end",
    "task.durable_end >= contents.end - 1",
    test=_AGAIN,
)
change(
    "one message more is taken for durable and not written again",
    recovery._position_not_durable,
    "task.durable_end - base) - 1",
    "task.durable_end + 1 - base) - 1",
    test=_AGAIN,
)
change(
    "a footer is believed one message beyond the promise",
    recovery._settle_sealed,
    "task.durable_end >= segment.end",
    "task.durable_end >= segment.end - 1",
    test=_ALONE,
)
change(
    "a footer is believed of frames that were not durable",
    recovery._settle_sealed,
    "if not believed and not _is_whole(task, segment, file):",
    "if task is None:",
    test=_ALONE,
)
change(
    "frames that were not durable are not written again with their footer",
    recovery._settle_sealed,
    "segment.data_end if believed else 0",
    "segment.data_end",
    test=_AGAIN,
)
change(
    "numbers that were given up are given again",
    opening._continue,
    "max(durable_end, meta.begin, *",
    "max(durable_end, 0, *",
    test="tests/storage/log/test_opening.py::test_numbers_that_were_purged_are_not_given_again",
)
change(
    "marks behind damage are not looked for",
    contents.examine,
    "max(durable_end, _marks(file, context, path, item.end, limit))",
    "durable_end",
    test="tests/storage/log/test_recovery.py::test_damage_below_the_watermark_is_set_aside_and_what_follows_is_delivered",
)

_SHORT = "tests/storage/log/test_recovery.py::test_messages_put_one_by_one_are_counted_as_each_would_be"

change(
    "what other processes put one by one is counted without its checksum",
    decode.index_apart,
    "or checksum(view[at + _START : stop], salt) != crc",
    "",
    test=_SHORT,
)
change(
    "what other processes put one by one is counted out of order",
    decode.index_apart,
    "or named != relative",
    "",
    test="tests/format/vectorized/test_frame_arrays.py::test_only_what_follows_the_last_record_is_added",
)

_LABELLED = "tests/format/test_labelled.py"

change(
    "labelled messages put one by one are delivered without their checksum",
    labelled.labelled_frames,
    "or (of_few if length < _FEW else checksum)(covered, salt) != crc",
    "",
    test=f"{_LABELLED}::test_each_bit_counts",
)
change(
    "labelled messages put one by one are given the offsets that follow",
    labelled.labelled_frames,
    " or (relative != expected and rows)",
    "",
    test=f"{_LABELLED}::test_neighbours_with_the_same_columns_come_as_one_batch",
)
change(
    "labelled messages with flags that nobody knows are delivered",
    labelled.labelled_frames,
    " or flags & ~_LABELS",
    "",
    test="tests/format/test_hostile.py",
)
change(
    "a frame of a run is counted as a put of its own",
    decode.index_apart,
    " and not flags & _IN_A_RUN",
    "",
    test=_SHORT,
)
change(
    "Arrow gives labelled messages whose lengths do not add up",
    FrameArrays.values,
    "(stops == payloads) & ",
    "",
    test="tests/format/vectorized/test_frame_arrays.py",
)

_AHEAD = "tests/storage/log/test_preallocation.py"

change(
    "zeros are written ahead over the last message",
    Preallocation._fill,
    "[_ZEROS[: end - begin]], begin)",
    "[_ZEROS[: end - begin]], begin - 8)",
    "written ahead",
)
change(
    "zeros written ahead are left at closing",
    Preallocation.give_back,
    "self._file.truncate(position)",
    "None",
    test=f"{_AHEAD}::test_they_go_when_the_log_is_closed",
)
change(
    "zeros written ahead are left at opening",
    recovery._cut,
    "if found.size > contents.data_end:",
    "if found.written > contents.data_end:",
    test=f"{_AHEAD}::test_a_kill_leaves_them_and_the_next_owner_cuts_them_off_and_says_nothing",
)
change(
    "a file's size is taken for what was written of it",
    segment_files.inspect,
    "end[-TRAILER.size :] == bytes(TRAILER.size)",
    "False",
    test=f"{_AHEAD}::test_a_store_with_zeros_ahead_from_a_version_that_wrote_none",
)
change(
    "a disk without room for zeros ahead refuses the message",
    Preallocation._fill,
    "except OSError:",
    "except ZeroDivisionError:",
    test=f"{_AHEAD}::test_a_disk_without_room_for_them_takes_messages",
)
change(
    "zeros at the end of a full segment are taken for its owner's",
    segment_files.own_segments,
    "found if base == final else found.followed()",
    "found",
    test=f"{_AHEAD}::test_zeros_at_the_end_of_a_full_segment_are_damage",
)
_WINDOWS = "tests/storage/log/test_write_windows.py"

change(
    "a message is stored in a window beside its place",
    PooledFile.write_alone,
    "position - self._window_begin : end - self._window_begin] = data",
    "position - self._window_begin - 8 : end - self._window_begin - 8] = data",
    "written through memory",
)
change(
    "a window is open on where the file was truncated",
    PooledFile.truncate,
    "self.close_window()",
    "None",
    test=f"{_WINDOWS}::test_what_a_write_that_failed_left_is_cut_off_and_the_window_with_it",
)
change(
    "puts that wait for a sync go through memory, where nobody sees what is synced",
    LogOptions.of,
    'options.sync != "always"',
    "True",
    test=f"{_WINDOWS}::test_where_a_put_waits_for_its_sync_there_is_none",
)
change(
    "there are windows on file systems that copy on write",
    write_window.mapped,
    "not in_place[device]",
    "False",
    test=f"{_WINDOWS}::test_a_file_system_that_copies_on_write_has_none",
)
change(
    "zeros where something was durable are taken for its owner's",
    contents.examine_growing,
    "written < size and contents.end < durable_end",
    "False",
    test=f"{_AHEAD}::test_zeros_where_something_was_promised_are_damage",
)
change(
    "a segment's name is believed though its header with one wrong bit says another offset",
    segment_files.inspect,
    "_stray(head, path, base, topic) or header_error",
    "header_error",
    test="tests/storage/log/test_recovery.py::test_a_segment_under_anothers_name_is_known_by_a_header_with_a_wrong_bit",
)
change(
    "a segment takes any number of puts of other processes",
    ActiveSegment._is_full,
    "return of_other and",
    "return False and",
    test="tests/storage/log/test_producer_table.py::test_a_segment_holds_so_many_puts_of_others_and_any_number_of_its_owner",
)
change(
    "messages that are found to be missing are not noted",
    TopicDescription.note_losses,
    "lost != self.meta.lost",
    "None",
    test="tests/storage/test_losses.py",
)
change(
    "what was written under another policy is shown before what was written before it",
    Publisher.written,
    "durably or bool(self.unsynced)",
    "durably",
    test="tests/queue/test_put.py::TestAnotherPolicy",
)
change(
    "what waits for its sync is not synced under another policy",
    Syncer.needed,
    "or self._pressing > self._synced",
    'or (self.options.sync == "always" and self._pressing > self._synced)',
    test="tests/queue/test_put.py::TestAnotherPolicy",
)
