"""What everything stands on: syncs of files and directories, checksums, and files that are replaced."""

from __future__ import annotations

from unittest import mock

from aiodq.testing import SimulatedFileSystem
from aiodq.testing.handles import SimulatedFile
from tests.proof.mutants.registry import Patch, mutant


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
    return mock.patch("aiodq.storage.atomic.sync_file", return_value=None)


@mutant("the first message")
def the_store_has_no_durable_name_before_its_topics() -> Patch:
    return mock.patch("aiodq.engine.opening.sync_directory", return_value=None)
