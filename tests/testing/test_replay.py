"""What a process finds on a simulated disk that comes after one that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from aiodq.testing import Fault, FaultPlan, Made, Pages, SimulatedFileSystem, Wrote
from aiodq.testing.replay import replayed

if TYPE_CHECKING:
    from aiodq.testing import Ordering


@pytest.mark.parametrize("ordering", ["posix", "ext4"])
def test_what_was_written_is_seen_by_the_next_process_and_is_not_durable_before_that_syncs_it(
    ordering: Ordering,
) -> None:
    fs = SimulatedFileSystem(ordering=ordering, record=True)
    fs.make_directory("/d")
    file = fs.open("/d/new", create=True)
    file.write_at([b"synced"], 0)
    file.sync()
    for directory in ("/d", "/"):
        fs.sync_directory(directory)
    file.write_at([b"not synced"], 0)
    fs.rename("/d/new", "/d/renamed")
    assert fs.trace is not None
    after = SimulatedFileSystem.resume(fs.trace, ordering=ordering, record=True)
    assert after.image() == fs.image()
    assert (after.laid_out, after.durable()["/d/new"]) == (len(fs.trace), b"synced")
    after.sync_directory("/d")
    assert after.durable()["/d/renamed"] == b"synced"
    after.open("/d/renamed", write=True).sync()
    assert after.durable()["/d/renamed"] == b"not synced"
    after.open("/d/another", create=True)
    after.remove("/d/renamed")
    assert after.trace is not None
    again = SimulatedFileSystem.resume(after.trace, ordering=ordering)
    assert again.image() == after.image()
    assert again.durable() == after.durable()


@pytest.mark.parametrize("pages", get_args(Pages))
def test_what_a_failed_sync_left_is_what_the_next_process_sees(pages: Pages) -> None:
    fs = SimulatedFileSystem(record=True, plan=FaultPlan([Fault("sync", 1, "EIO", pages=pages)]))
    file = fs.open("/f", create=True)
    file.write_at([b"abc"], 0)
    file.truncate(2)
    with pytest.raises(OSError, match="/f"):
        file.sync()
    assert fs.trace is not None
    after = SimulatedFileSystem.resume(fs.trace)
    assert after.image()["/f"] == fs.image()["/f"] == (b"" if pages == "evicted" else b"ab")
    after.open("/f", write=True).sync()
    after.sync_directory("/")
    assert after.durable()["/f"] == (b"ab" if pages == "kept" else b"")


def test_operations_that_name_something_in_a_file_are_refused() -> None:
    with pytest.raises(ValueError, match="no directory"):
        replayed([Made(1, 0, "f", directory=False), Wrote(1, 0, b"x"), Made(2, 1, "g", directory=False)], "posix")
