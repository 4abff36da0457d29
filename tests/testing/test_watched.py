"""A file system that notes each call, and holds it up, fails it or cuts it short where it is told to."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import CALLS, Passed, SimulatedFileSystem, WatchedFileSystem
from tests.queue.support import soon
from tests.testing.test_wrapped import every_call

if TYPE_CHECKING:
    from pathlib import Path


def test_it_notes_and_counts_each_call_in_turn() -> None:
    fs = WatchedFileSystem(SimulatedFileSystem())
    file = fs.open("/a", create=True)
    assert file.write_at([b"hello ", b"you"], 3) == 9
    assert file.read_at(4, 2) == b"\0hel"
    file.truncate(5)
    assert [(call.number, call.kind, call.name, call.data, call.position) for call in fs.passed] == [
        (0, "create", "a", b"", 0),
        (1, "write", "a", b"hello you", 3),
        (2, "read", "a", b"", 2),
        (3, "truncate", "a", b"", 5),
    ]
    assert fs.events == [("create", "/a"), ("write", "/a"), ("read", "/a"), ("truncate", "/a")]
    assert (fs.bytes_written, fs.bytes_read, fs.open_files) == (9, 4, 1)
    moments = [moment for call in fs.passed for moment in (call.begun, call.ended)]
    assert moments == sorted(set(moments))
    assert fs.named("write", "read", since=2) == fs.passed[2:3]
    file.close()
    file.close()
    assert (fs.open_files, fs.calls["close"]) == (0, 1)
    fs.reset()
    assert (fs.passed, fs.calls, fs.bytes_read) == ([], {}, 0)


def test_it_knows_every_kind_of_call(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    every_call(fs, str(tmp_path))
    assert fs.calls.keys() == set(CALLS)


@pytest.mark.parametrize("sync", [True, False])
def test_it_syncs_only_where_it_is_to(sync: bool) -> None:
    inner = SimulatedFileSystem()
    fs = WatchedFileSystem(inner, sync=sync)
    file = fs.open("/a", create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    fs.sync_directory("/")
    assert fs.synced == {"/a": 3}
    assert (inner.calls.get("sync", 0), inner.calls.get("sync_directory", 0)) == (sync, sync)
    assert ("/a" in inner.durable()) == sync


def test_calls_fail_from_the_chosen_one_on_as_often_as_is_said() -> None:
    fs = WatchedFileSystem(SimulatedFileSystem())
    file = fs.open("/a", create=True)
    failing = fs.fail(errno.ENOSPC, "write", "truncate", match="a", at=2, times=2)
    file.write_at([b"x"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as caught:
            file.truncate(0)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/a")
    file.truncate(0)
    assert (failing.seen, failing.hits) == (4, 2)
    assert [bool(call.ended) for call in fs.passed] == [True, True, False, False, True]
    fs.fail(errno.EIO, "size")
    for _ in range(3):
        with pytest.raises(OSError, match="error"):
            file.size()
    fs.heal()
    assert file.size() == 0


def test_a_write_takes_what_it_is_told_to() -> None:
    fs = WatchedFileSystem(SimulatedFileSystem())
    file = fs.open("/a", create=True)
    fs.fail(None, "write", short=2, times=1)
    assert file.write_at([b"abc", b"def"], 0) == 2
    fs.fail(errno.ENOSPC, "write", short=1, times=1)
    with pytest.raises(OSError, match="No space"):
        file.write_at([b"xyz"], 2)
    assert file.read_at(9, 0) == b"abx"


async def test_a_gate_holds_up_a_call_and_not_the_loop(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"a")
        gate = fs.gate("sync", match=".seg")
        put = asyncio.create_task(queue.put(b"b"))
        await soon(gate.wait())
        assert not put.done()
        assert fs.named("sync")[-1].ended == 0
        gate.open()
        assert await soon(put) == 1


def test_a_gate_that_would_hold_up_who_is_to_open_it_says_so() -> None:
    fs = WatchedFileSystem(SimulatedFileSystem())
    fs.gate("create")
    with pytest.raises(AssertionError, match="nobody could open the gate"):
        fs.open("/a", create=True)


def test_nothing_changes_while_it_is_frozen(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    file = fs.open(str(tmp_path / "a"), create=True)
    writer = threading.Thread(target=lambda: file.write_at([b"x"], 0))
    with fs.frozen():
        writer.start()
        while not fs.named("write"):
            pass
        assert file.read_at(1, 0) == b""
        shutil.copy(tmp_path / "a", tmp_path / "copy")
    writer.join()
    assert ((tmp_path / "copy").read_bytes(), file.read_at(1, 0)) == (b"", b"x")
    file.close()


def test_a_rule_of_ones_own_sees_each_call_before_it_is_done() -> None:
    inner = SimulatedFileSystem()
    fs = WatchedFileSystem(inner)
    seen: list[tuple[str, bool]] = []

    def rule(call: Passed) -> None:
        seen.append((call.kind, inner.exists("/a")))

    fs.add(rule)
    fs.open("/a", create=True).close()
    assert seen == [("create", False), ("close", True)]
