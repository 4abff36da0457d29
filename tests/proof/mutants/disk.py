"""What everything stands on: syncs of files and directories, checksums, and files that are replaced."""

from __future__ import annotations

from unittest import mock

from aiodq.format.decode import compact_frames
from aiodq.format.footer import FooterTail, SegmentIndex
from aiodq.format.frame import check_frame
from aiodq.format.transactions import decode_commit
from aiodq.storage.io import quarantine as damage
from aiodq.storage.io.durable_io import ensure_directory, replace_file, write_all
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.state import json_file as checked
from aiodq.storage.state.watermark import WatermarkFile, noted_watermark, read_slots
from aiodq.testing import SimulatedFileSystem
from aiodq.testing.filesystem import SimulatedFile
from tests.proof.mutants.registry import Patch, change, mutant


@mutant("single puts")
def syncs_do_nothing() -> Patch:
    return mock.patch.object(SimulatedFile, "sync", return_value=None)


@mutant("single puts", "roll and retention")
def directories_are_not_synced() -> Patch:
    return mock.patch.object(SimulatedFileSystem, "sync_directory", return_value=None)


@mutant("larger than a sector")
def checksums_are_ignored() -> Patch:
    return mock.patch.dict("aiodq.format.checksum._ALGORITHMS", {1: lambda _, __: 0})


@mutant("checkpoints", "reopening")
def a_file_is_renamed_before_it_is_synced() -> Patch:
    return mock.patch("aiodq.storage.io.durable_io.sync_file", return_value=None)


@mutant(test="tests/queue/test_opening.py::test_a_store_has_its_lock_durably_before_it_has_a_topic")
def the_store_has_no_durable_name_before_its_topics() -> Patch:
    return mock.patch("aiodq.engine.store.opening.sync_directory", return_value=None)


change(
    "a renamed file's name is not synced",
    replace_file,
    "sync_directory(fs, os.path.dirname(path))",
    "None",
    "checkpoints",
    "roll and retention",
)
change(
    "a new directory's name is not synced",
    ensure_directory,
    'sync_directory(fs, os.path.dirname(path) or ".")',
    "None",
    "several topics",
    "channels come and go",
)
change(
    "the name of a directory that is found is not synced",
    ensure_directory,
    'sync_present(fs, os.path.dirname(path) or ".")',
    "None",
    "the first message",
    kills=True,
)
change(
    "both slots of a watermark lie in one place",
    WatermarkFile.write,
    "(self._sequence % 2) * _STRIDE",
    "0",
    test="tests/storage/state/test_watermark.py",
)
change(
    "the older slot of a watermark counts",
    read_slots,
    "best = max(best,",
    "best = best if best[0] else max(best,",
    test="tests/storage/state/test_watermark.py",
)
change(
    "a slot's checksum is not compared",
    read_slots,
    "crc == zlib.crc32(data[at : at + _SLOT.size - 4])",
    "True",
    test="tests/storage/state/test_watermark.py",
)
change(
    "a write that took a part counts as whole",
    write_all,
    "position += taken",
    "position += sum(map(len, pending)); break",
    test="tests/storage/log/test_topic_log.py",
)
change(
    "what is set aside is not synced",
    damage._copy,
    "sync_file(copy, temporary)",
    "None",
    test="tests/storage/offline/test_repair.py::test_nothing_is_touched_before_it_is_set_aside",
)
change(
    "what is set aside has no durable name",
    damage._copy,
    "sync_directory(fs, os.path.dirname(target))",
    "None",
    test="tests/storage/offline/test_repair.py::test_nothing_is_touched_before_it_is_set_aside",
)
change(
    "the checksum of a compact frame is not compared in a stretch",
    compact_frames,
    "(of_few if length < _FEW else checksum)(covered, salt) != crc",
    "False",
    "larger than a sector",
)
change(
    "the checksum of a footer is not compared",
    FooterTail.decode,
    "values[12] != zlib.crc32(memoryview(data)[at : at + _CRC_AT])",
    "False",
    test="tests/format/test_segment.py",
)
change(
    "the checksum of a segment's index is not compared",
    SegmentIndex.decode,
    "or zlib.crc32(data) != tail.index_crc",
    "",
    test="tests/format/test_segment.py",
)
change(
    "the checksum of a transaction is not compared",
    decode_commit,
    "zlib.crc32(memoryview(data)[at + _COVERED : end], salt) != crc",
    "False",
    test="tests/transactions/test_file.py",
)
change(
    "the checksum of a frame of several messages is not compared",
    check_frame,
    "context.checksum(view[at + _START : end], context.salt) != frame.crc",
    "False",
    test="tests/format/test_stretch.py::test_any_bit_turned_round_is_found_by_the_check_of_one_frame",
)
change(
    "the checksum of a topic's description is not compared",
    checked.decode_checked,
    'outer["crc32"] != _crc(_canonical(inner))',
    "False",
    test="tests/storage/state/test_topic_meta.py::test_a_description_with_another_number_in_it_is_damage",
)
change(
    "the watermark of another topic is believed",
    noted_watermark,
    "is_foreign(values, salt)",
    "salt < 0",
    test="tests/storage/log/test_opening.py::test_another_topic_s_watermark_promises_nothing_and_is_set_aside",
)

change(
    "an error of close hides that of the sync before it",
    storage_error,
    "if (failure := _failure_before(cause)) is not None:",
    "if (failure := _failure_before(cause)) is None and failure is not None:",
    test="tests/storage/io/test_durable_io.py"
    "::test_a_file_that_can_neither_be_synced_nor_closed_is_a_failure_of_the_store",
)
