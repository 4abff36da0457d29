"""What is written beside a store, committed and adopted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from aiodq.storage.bulk import adoption, commits
from aiodq.storage.io.durable_io import replace_file
from aiodq.storage.log import staged_segments
from aiodq.storage.log.topic_log import TopicLog
from aiodq.testing import SimulatedFileSystem
from aiodq.testing.filesystem import SimulatedFile
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.storage.io.filesystem import FileSystem


@mutant("bulk loads")
def staged_segments_are_moved_in_before_it_is_noted_where() -> Patch:
    adopt = TopicLog.adopt

    def hasty(log: TopicLog, staged: Sequence[tuple[str, int]], note: Callable[[int], None]) -> None:
        bases: list[int] = []
        adopt(log, staged, bases.append)
        note(bases[0])

    return mock.patch.object(TopicLog, "adopt", hasty)


@mutant("bulk loads")
def what_was_staged_is_committed_before_it_is_synced() -> Patch:
    return mock.patch("aiodq.storage.log.recovery.sync_file")


@mutant("bulk loads")
def what_was_begun_to_be_adopted_is_not_finished_at_open() -> Patch:
    return mock.patch("aiodq.engine.store.opening.finish_adoptions", return_value=({}, set()))


@mutant("bulk loads")
def a_commit_is_not_synced() -> Patch:
    def quick(fs: FileSystem, path: str, data: bytes) -> None:
        with mock.patch.object(SimulatedFileSystem, "sync_directory"), mock.patch.object(SimulatedFile, "sync"):
            replace_file(fs, path, data)

    return mock.patch("aiodq.storage.bulk.commits.replace_file", quick)


change(
    "an adopted segment's header is not synced", staged_segments.place, "sync_file(file, path)", "None", "bulk loads"
)
change(
    "commits that are found are not durable before anything is moved",
    adoption.finish_adoptions,
    "sync_directory(fs, os.path.join(store, COMMITS))",
    "None",
    test="tests/bulk/test_adoption.py::test_commits_that_are_found_are_durable_before_anything_is_moved",
)
change(
    "a batch of a stream counts twice",
    commits._is_known,
    "int(match[2]) >= key.number",
    "int(match[2]) > key.number",
    "bulk loads",
)
change(
    "what is committed is swept as what is not", commits._remove_staged, "name in used", "name is None", "bulk loads"
)
change(
    "what is staged by now is swept as what is old",
    commits._remove_staged,
    "int(match[1]) >= before_ns",
    "int(match[1]) < before_ns",
    test="tests/bulk/test_adoption.py",
)
change(
    "a staged segment is put at the offset of the one before",
    commits.Commit.placed,
    "base += staged.records",
    "base += staged.records - 1",
    test="tests/bulk/test_adoption.py",
)
change(
    "what was staged long ago is swept while it is being committed",
    commits.sweep_staged,
    "None if committing else try_commits(fs, store)",
    "None",
    test="tests/bulk/test_rivals.py::test_what_was_staged_long_ago_is_not_swept_while_it_is_being_committed",
)
