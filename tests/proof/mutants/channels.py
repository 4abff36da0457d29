"""What channels have on disk: journals and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.channel.acks.ack_persister import AckPersister
from aiodq.engine.store.opening import open_channel
from aiodq.engine.topic.puts.put_buffer import PutBuffer
from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
from aiodq.format.journal import decode_blocks, decode_checkpoint, encode_checkpoint
from aiodq.storage.io.durable_io import replace_file, sync_directory, write_all
from aiodq.storage.state import channel_files
from aiodq.storage.state import channel_journal as journals
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.topic.topic_description import TopicDescription
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.format.journal import ChannelImage
    from aiodq.storage.io.filesystem import FileSystem


@mutant("puts and acks", "checkpoints")
def acks_are_told_before_the_sync() -> Patch:
    async def unsynced(persister: AckPersister) -> None:
        persister._unsynced = {}

    return mock.patch.multiple(AckPersister, _sync_journals=unsynced, _commit_lone=lambda _: False)


change(
    "a lone consumer's ack is told before the sync",
    AckPersister._commit_lone,
    "elif self.durable:",
    "elif False:",
    "puts and acks",
    "checkpoints",
)


change(
    "a sync of the kernel's that failed makes acks durable",
    ChannelJournal.end_sync,
    "if error:",
    "if not self:",
    test="tests/system/test_sync_backend.py::test_an_acks_sync_that_fails_stops_the_store",
)


@mutant("checkpoints", "reopening")
def a_checkpoint_is_overwritten_in_place() -> Patch:
    def overwrite(fs: FileSystem, path: str, data: bytes) -> None:
        file = fs.open(path, write=fs.exists(path), create=not fs.exists(path))
        file.truncate(0)
        write_all(file, [data], 0)
        file.sync()
        file.close()
        sync_directory(fs, path.rpartition("/")[0])

    return mock.patch("aiodq.storage.state.channel_journal.replace_file", overwrite)


@mutant("checkpoints", "reopening")
def the_journal_is_emptied_before_the_checkpoint_stands() -> Patch:
    def fold(journal: ChannelJournal, image: ChannelImage) -> None:
        journal._generation += 1
        journal._begin(journal._file)
        journal.pending = 0
        with mock.patch.object(journal, "_generation", journal._generation):
            data = encode_checkpoint(image, journal._generation)
        replace_file(journal._fs, journal._checkpoint, data)

    return mock.patch.object(ChannelJournal, "fold", fold)


@mutant("checkpoints")
def what_is_acked_while_a_checkpoint_is_written_counts_as_in_it() -> Patch:
    fold = AckPersister._fold

    async def late(persister: AckPersister, channel_engine: ChannelCore) -> None:
        await fold(persister, channel_engine)
        if channel_engine.state is not None:
            channel_engine.state.take_ops()

    return mock.patch.object(AckPersister, "_fold", late)


@mutant("a namesake")
def a_channel_made_again_has_what_its_namesake_settled() -> Patch:
    return mock.patch("aiodq.engine.store.channel_management._require_no_files")


_UNWRITTEN = "tests/queue/test_unwritten_acks.py"

change(
    "a message is dropped for one that may never be on disk",
    PutBuffer._has_room_without_oldest,
    "if not self._engine.overflow.may_drop():",
    "if not self._engine.overflow.drop_oldest(messages, self._engine.visible, furthest=False):",
    test="tests/queue/test_overflow.py::TestDropOldest"
    "::test_no_power_cut_takes_what_was_dropped_for_a_message_that_it_takes_too",
)
change(
    "a sync counts acks that could not be written",
    AckPersister._ready_for,
    "if error is None or job.regardless:",
    "if True:",
    test=f"{_UNWRITTEN}::test_a_sync_says_that_they_are_not_on_disk",
)
change(
    "segments go by acks that could not be written",
    SegmentDeletion.delete,
    "patient=True",
    "regardless=True",
    test=f"{_UNWRITTEN}::test_no_segment_goes_before_its_acks_are_on_disk",
)
change(
    "at closing, segments go by acks that could not be written",
    AckPersister._write,
    "if not self.closing:",
    "if True:",
    test=f"{_UNWRITTEN}::test_at_closing_such_segments_are_left_for_the_next_owner",
)
change(
    "acks for which a journal has no room wait though a checkpoint has",
    AckPersister._ready_for,
    "if channel_engine in self._refused and",
    "if job is None and",
    test=f"{_UNWRITTEN}::test_where_the_journal_has_no_room_a_checkpoint_holds_them",
)
change(
    "acks one by one take the last of a journal's reserve",
    AckPersister._write,
    "if not last and",
    "if False and",
    test="tests/channels/test_cramped.py::test_a_disk_that_takes_no_checkpoint_comes_free_by_acks_one_by_one",
)
change(
    "acks that were put off are lost where the loop ends",
    AckPersister.write_blocking,
    "*self._held.pop(channel_engine, ())",
    "*()",
    test="tests/queue/test_loop_ends.py::test_acks_that_were_put_off_are_written",
)
change(
    "acks of which a checkpoint was being written are lost where the loop ends",
    AckPersister.write_blocking,
    "if channel_engine is self._folding:",
    "if False:",
    test="tests/queue/test_loop_ends.py::test_acks_are_written_of_which_a_checkpoint_was_being_written",
)
change(
    "a journal is not synced",
    ChannelJournal.sync,
    "sync_file(self._file, self._path)",
    "None",
    "puts and acks",
    "checkpoints",
)
change(
    "acks that are found are not synced",
    ChannelJournal._tidy,
    "            sync_file(file, self._path)\n        return",
    "        return",
    test="tests/storage/state/test_channel_journal.py::test_acks_that_an_owner_left_unsynced_are_written_and_synced_again",
)
change(
    "a journal of a new generation is begun before the checkpoint that is found is durable",
    ChannelJournal._open,
    "if self._generation & COUNT:",
    "if self is None:",
    test="tests/proof/test_restarts.py::test_acks_in_a_checkpoint_found_after_a_kill_do_not_come_again",
)
change(
    "the first journal's name is not synced",
    ChannelJournal._open,
    "if not self._generation & COUNT:",
    "if self is None:",
    "channels come and go",
    "puts and acks",
    kills=True,
)
change(
    "acks of messages that are lost count for others",
    open_channel,
    "or journal.reach > log.end",
    "",
    "acks of what is lost",
)
change(
    "a journal of the checkpoint's generation is ignored",
    channel_files._read_journal,
    "if found & COUNT < generation & COUNT:",
    "if found & COUNT <= generation & COUNT:",
    "reopening",
    "puts and acks",
)
change(
    "a journal from before the checkpoint is read",
    channel_files._read_journal,
    "if found & COUNT < generation & COUNT:",
    "if found is None:",
    test="tests/storage/state/test_channel_journal.py",
)
change(
    "acks reach one offset less than they do",
    journals._reach_of,
    "return op.offset + op.length",
    "return op.offset + op.length - 1",
    test="tests/storage/state/test_channel_journal.py::test_a_journal_reaches_behind_the_last_message_that_it_names",
)
change(
    "a channel's name is noted nowhere",
    TopicDescription.add_channels,
    "self._describe(",
    "(lambda _: None)(",
    "channels come and go",
    "puts and acks",
)
change(
    "the last channel goes while files that it explains the absence of may come back",
    TopicDescription.remove_channel,
    "sync_directory(",
    "(lambda *_: None)(",
    test="tests/storage/test_losses.py::"
    "test_where_the_last_channel_is_deleted_no_power_cut_makes_a_loss_of_what_retention_deletes",
)
change(
    "a channel that is deleted is still named",
    TopicDescription.remove_channel,
    "self._describe(",
    "(lambda _: None)(",
    "channels come and go",
)
change(
    "a pause is noted nowhere",
    TopicDescription.pause,
    "self._describe(",
    "(lambda _: None)(",
    "pauses and options of channels",
)
change("a purge is noted nowhere", TopicDescription.give_up, "self._describe(", "(lambda _: None)(", "purging")
change(
    "the checksum of a checkpoint is not compared",
    decode_checkpoint,
    "_CRC.unpack_from(data, len(body))[0] != zlib.crc32(body)",
    "False",
    test="tests/storage/state/test_channel_journal.py::test_a_checkpoint_with_any_bit_turned_round_is_damage",
)
change(
    "the checksum of a journal's block is not compared",
    decode_blocks,
    "or crc != zlib.crc32(body, generation & 0xFFFFFFFF)",
    "",
    test="tests/storage/state/test_channel_journal.py::test_damage_in_the_middle_costs_one_block",
)
change(
    "a journal whose sync failed waits for room",
    AckPersister._write,
    "except StoreFailedError",
    "except ZeroDivisionError",
    test="tests/channels/test_flush.py::test_a_failed_sync_as_a_journal_is_begun_anew_stops_the_store",
)
change(
    "a journal that a fold on a full disk could not begin is appended to",
    ChannelJournal._fold,
    "self._end = self.pending = 0",
    "self.pending = 0",
    test="tests/storage/state/test_channel_journal.py::test_a_fold_whose_journal_cannot_begin_loses_nothing_that_follows",
)
change(
    "what was appended during a fold is forgotten where its journal cannot begin",
    ChannelJournal._fold,
    "self._onward = self._since or []",
    "self._onward = []",
    test="tests/storage/state/test_channel_journal.py::test_a_journal_that_cannot_begin_at_once_keeps_the_numbers_of_seeks",
)
change(
    "a journal forgets what is to go on in it before it is written",
    ChannelJournal._renew,
    "file.truncate(min(file.size(), _LEAST))",
    "file.truncate(min(file.size(), _LEAST)); self._numbers, self._onward = [], []",
    test="tests/storage/state/test_channel_journal.py::test_a_journal_that_cannot_begin_at_once_keeps_the_numbers_of_seeks",
)
