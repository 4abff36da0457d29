"""The simulated file system against the machine's own: the same calls, the same results, the same errnos."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.write_window import window_of
from aiodq.testing import CALLS, Call, Fault, FaultPlan, SimulatedFileSystem, Wrote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.storage.io.filesystem import File

ROOT = "/simulated"  # where no checkout lies: the simulated file system has the directories above the current one
NAMES = st.sampled_from("ab")
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
SIZES = st.sampled_from((0, 1, 3, 511, 512, 5000))


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the name of its errno."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


class FileSystemMachine(RuleBasedStateMachine):
    """Does the same on both, and compares."""

    base: Path
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.root = str(self.base / str(next(self.numbers)))
        self.real = OsFileSystem()
        self.fs = SimulatedFileSystem()
        self.files: list[tuple[File, File]] = []
        for fs, root in ((self.real, self.root), (self.fs, ROOT)):
            fs.make_directory(root)

    def both(self, call: Callable[[Any, str], Any]) -> tuple[Any, Any]:
        """Return what a call gives on the machine's, and on the simulated one."""
        return outcome(lambda: call(self.real, self.root)), outcome(lambda: call(self.fs, ROOT))

    def same(self, call: Callable[[Any, str], Any]) -> None:
        """The call gives the same on both."""
        real, simulated = self.both(call)
        assert real == simulated

    # --- names

    @rule(path=PATHS)
    def look(self, path: str) -> None:
        self.same(lambda fs, root: fs.exists(f"{root}/{path}"))
        self.same(lambda fs, root: fs.is_directory(f"{root}/{path}"))
        self.same(lambda fs, root: fs.listdir(f"{root}/{path}"))
        self.same(lambda fs, root: fs.sync_directory(f"{root}/{path}"))

    @rule(path=PATHS)
    def make_directory(self, path: str) -> None:
        self.same(lambda fs, root: fs.make_directory(f"{root}/{path}"))

    @rule(source=PATHS, new=PATHS)
    def rename(self, source: str, new: str) -> None:
        self.same(lambda fs, root: fs.rename(f"{root}/{source}", f"{root}/{new}"))

    @rule(path=PATHS)
    def remove(self, path: str) -> None:
        self.same(lambda fs, root: fs.remove(f"{root}/{path}"))

    @rule(path=PATHS)
    def remove_directory(self, path: str) -> None:
        self.same(lambda fs, root: fs.remove_directory(f"{root}/{path}"))

    # --- files

    @rule(path=PATHS, write=st.booleans(), create=st.booleans())
    def open(self, path: str, write: bool, create: bool) -> None:
        real, simulated = self.both(lambda fs, root: fs.open(f"{root}/{path}", write=write, create=create))
        if isinstance(real, str) or isinstance(simulated, str):
            assert real == simulated
        else:
            self.files.append((real, simulated))

    def on(self, data: st.DataObject, call: Callable[[File], Any]) -> None:
        """The call gives the same on an open file of both."""
        real, simulated = data.draw(st.sampled_from(self.files))
        assert outcome(lambda: call(real)) == outcome(lambda: call(simulated))

    @precondition(lambda self: self.files)
    @rule(data=st.data(), size=SIZES, position=SIZES)
    def read(self, data: st.DataObject, size: int, position: int) -> None:
        for real, simulated in self.files:
            assert outcome(lambda: real.read_at(size, position)) == outcome(lambda: simulated.read_at(size, position))
        self.on(data, lambda file: file.size())

    @precondition(lambda self: self.files)
    @rule(data=st.data(), sizes=st.lists(SIZES, max_size=3), position=SIZES, byte=st.integers(1, 255))
    def write(self, data: st.DataObject, sizes: list[int], position: int, byte: int) -> None:
        buffers = [bytes([byte]) * size for size in sizes]
        self.on(data, lambda file: file.write_at(buffers, position))

    @precondition(lambda self: self.files)
    @rule(data=st.data(), size=SIZES)
    def truncate(self, data: st.DataObject, size: int) -> None:
        self.on(data, lambda file: file.truncate(size))

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self.on(data, lambda file: file.sync())

    @precondition(lambda self: self.files)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(self.files))
        self.files.remove(file)
        for one in file:
            one.close()
            one.close()

    # --- what always holds

    @invariant()
    def trees_are_the_same(self) -> None:
        found: dict[str, bytes | None] = {}
        for at, directories, files in os.walk(self.root):
            found |= {os.path.join(at, name): None for name in directories}
            for name in files:
                with open(os.path.join(at, name), "rb") as file:
                    found[os.path.join(at, name)] = file.read()
        image = {path: data for path, data in self.fs.image().items() if path.startswith(f"{ROOT}/")}
        assert {path.removeprefix(self.root): data for path, data in found.items()} == {
            path.removeprefix(ROOT): data for path, data in image.items()
        }

    def teardown(self) -> None:
        for real, _ in self.files:
            real.close()
        shutil.rmtree(self.root)


def run_machine(base: Path, **profile: Any) -> None:
    machine = type("FileSystemMachine", (FileSystemMachine,), {"base": base})
    # What the calls answer is compared; nothing has to reach the device for that.
    with mock.patch("os.fsync"), mock.patch("os.fdatasync"):
        run_state_machine_as_test(machine, settings=settings(deadline=None, **profile))


@pytest.mark.parametrize("write", [False, True])
def test_a_directory_is_not_opened_as_a_file(tmp_path: Path, write: bool) -> None:
    fs = SimulatedFileSystem({f"{ROOT}/a": None})
    assert outcome(lambda: fs.open(f"{ROOT}/a", write=write)) == "EISDIR"
    assert outcome(lambda: OsFileSystem().open(str(tmp_path), write=write)) == "EISDIR"


def test_any_calls_give_what_the_machine_gives(tmp_path: Path) -> None:
    run_machine(tmp_path, max_examples=30, stateful_step_count=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_calls_for_long(tmp_path: Path) -> None:
    run_machine(tmp_path, max_examples=2_000, stateful_step_count=60)


def test_a_rename_onto_itself_changes_nothing() -> None:
    fs = SimulatedFileSystem({"/d/f": b"x"}, record=True)
    for path in ("/d", "/d/f"):
        fs.rename(path, path)
    assert fs.image()["/d/f"] == b"x"
    assert fs.trace is not None
    assert len(fs.trace) == fs.laid_out


# --- faults


def exercised(fs: SimulatedFileSystem, call: Call) -> None:
    """Make one call of a kind."""
    file = fs.open("/d/f", write=True)
    calls: dict[Call, Callable[[], object]] = {
        "open": lambda: fs.open("/d/f"),
        "create": lambda: fs.open("/d/new", create=True),
        "read": lambda: file.read_at(1, 0),
        "write": lambda: file.write_at([b"x"], 0),
        "size": file.size,
        "truncate": lambda: file.truncate(1),
        "sync": file.sync,
        "close": file.close,
        "listdir": lambda: fs.listdir("/d"),
        "is_directory": lambda: fs.is_directory("/d"),
        "exists": lambda: fs.exists("/d/f"),
        "make_directory": lambda: fs.make_directory("/d/e"),
        "rename": lambda: fs.rename("/d/f", "/d/g"),
        "remove": lambda: fs.remove("/d/f"),
        "remove_directory": lambda: fs.remove_directory("/empty"),
        "sync_directory": lambda: fs.sync_directory("/d"),
        "lock": lambda: fs.lock("/d"),
    }
    assert calls.keys() == set(CALLS)
    calls[call]()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EINTR"])
def test_every_kind_of_call_fails_when_told_and_then_changes_nothing(call: Call, name: str) -> None:
    fs = SimulatedFileSystem({"/d/f": b"old", "/empty": None})
    before = fs.image()
    exercised(fs, call)
    changed = fs.image()
    fs = SimulatedFileSystem(before, plan=FaultPlan([Fault(call, 2 if call == "open" else 1, name)]))
    with pytest.raises((OSError, aiodq.StorageError)) as caught:
        exercised(fs, call)
    found = caught.value.errno if isinstance(caught.value, OSError | aiodq.StorageError) else None
    assert found == getattr(errno, name)
    assert fs.image() == before
    if call != "close":
        # Only the one call fails; whoever tries again succeeds.
        exercised(fs, call)
        assert fs.image() == changed


def test_a_lasting_fault_goes_on_until_the_plan_is_cleared() -> None:
    fs = SimulatedFileSystem({"/f": b""}, plan=FaultPlan.parse("write@2:EIO:lasting"))
    file = fs.open("/f", write=True)
    assert [outcome(lambda: file.write_at([b"x"], 0)) for _ in range(4)] == [1, "EIO", "EIO", "EIO"]
    fs.plan.clear()
    assert file.write_at([b"x"], 0) == 1


def test_a_match_counts_the_calls_on_that_path_only() -> None:
    fs = SimulatedFileSystem({"/a": b"", "/b": b""}, plan=FaultPlan.parse("write@2:EIO:match=/b"))
    a, b = fs.open("/a", write=True), fs.open("/b", write=True)
    assert [outcome(lambda: file.write_at([b"x"], 0)) for file in (a, a, b, a, b, b)] == [1, 1, 1, 1, "EIO", 1]
    assert fs.calls["write"] == 6


def test_a_short_write_takes_a_part_and_says_so_or_fails() -> None:
    fs = SimulatedFileSystem({"/f": b"old data"}, plan=FaultPlan.parse("write@1:short=2, write@2:EIO:short=1"))
    file = fs.open("/f", write=True)
    assert file.write_at([b"N", b"EW"], 0) == 2
    assert fs.image()["/f"] == b"NEd data"
    assert outcome(lambda: file.write_at([b"!!"], 3)) == "EIO"
    assert fs.image()["/f"] == b"NEd!data"


def test_a_full_disk_takes_what_fits_then_nothing_and_goes_on_when_space_returns() -> None:
    fs = SimulatedFileSystem({"/f": b"12345", "/other": b"678"}, capacity=10)
    file = fs.open("/f", write=True)
    assert file.write_at([b"abcdef"], 5) == 2
    assert outcome(lambda: file.write_at([b"c"], 7)) == "ENOSPC"
    assert outcome(lambda: file.truncate(8)) == "ENOSPC"
    assert file.write_at([b"ABC"], 0) == 3
    assert fs.image()["/f"] == b"ABC45ab"
    fs.remove("/other")
    assert file.write_at([b"cde"], 7) == 3
    file.truncate(0)
    # A hole counts as what it stands for.
    assert outcome(lambda: file.write_at([b"x"], 10)) == "ENOSPC"
    assert file.write_at([b"xy"], 9) == 1
    fs.capacity = None
    assert file.write_at([bytes(100)], 10) == 100


def test_what_was_replaced_or_removed_takes_no_space() -> None:
    fs = SimulatedFileSystem({"/f": b"12345", "/g": b"12345"}, capacity=10)
    removed = fs.open("/f", write=True)
    fs.rename("/g", "/f")
    assert removed.write_at([b"6"], 5) == 1
    other = fs.open("/h", create=True)
    assert other.write_at([b"123456"], 0) == 5


def test_a_read_only_file_system_refuses_every_change() -> None:
    for call in CALLS:
        fs = SimulatedFileSystem({"/d/f": b"old", "/empty": None})
        file = fs.open("/d/f", write=True)
        before = fs.image()
        fs.read_only = True
        changes = call in {"create", "write", "truncate", "make_directory", "rename", "remove", "remove_directory"}
        if call == "lock":
            with pytest.raises(aiodq.ReadOnlyError):
                fs.lock("/d")
        else:
            assert (outcome(lambda: exercised(fs, call)) == "EROFS") is changes, call
        assert fs.image() == before
        file.close()


def test_an_unplugged_file_system_answers_nothing_and_closes() -> None:
    fs = SimulatedFileSystem({"/d/f": b"x", "/empty": None})
    file, lock = fs.open("/d/f"), fs.lock("/d")
    fs.unplug()
    assert outcome(lambda: file.read_at(1, 0)) == outcome(lambda: fs.listdir("/d")) == outcome(file.sync) == "EIO"
    file.close()
    lock.release()


# --- locks


def test_a_second_owner_is_refused_until_the_first_lets_go() -> None:
    fs = SimulatedFileSystem({"/d": None, "/e": None})
    lock = fs.lock("/d")
    with pytest.raises(aiodq.StoreLockedError) as caught:
        fs.lock("/d")
    assert caught.value.pid == os.getpid()
    fs.lock("/e")
    lock.release()
    lock.release()
    fs.lock("/d")
    assert fs.image()["/d/LOCK"] == b""


def test_a_lock_ends_with_the_power() -> None:
    fs = SimulatedFileSystem({"/d": None})
    lock = fs.lock("/d")
    after = fs.power_cut()
    again = after.lock("/d")
    lock.release()
    with pytest.raises(aiodq.StoreLockedError):
        after.lock("/d")
    again.release()


def test_a_lock_that_failed_is_not_held() -> None:
    fs = SimulatedFileSystem({"/d": None}, plan=FaultPlan.parse("lock@1:EMFILE"))
    with pytest.raises(aiodq.StorageError, match="too many open files"):
        fs.lock("/d")
    with pytest.raises(aiodq.StorageError):
        fs.lock("/nothing")
    fs.read_only = True
    with pytest.raises(aiodq.ReadOnlyError):
        fs.lock("/d")
    fs.read_only = False
    fs.lock("/d").release()


# --- power


def test_what_a_cut_leaves_is_what_was_synced_at_least() -> None:
    fs = SimulatedFileSystem(capacity=1000)
    fs.make_directory("/d")
    fs.sync_directory("/")
    file = fs.open("/d/f", create=True)
    file.write_at([b"kept"], 0)
    file.sync()
    fs.sync_directory("/d")
    file.write_at([b" and lost"], 4)
    found = fs.power_cut().image()
    assert found["/d/f"] == b"kept"
    assert outcome(lambda: file.write_at([b"!"], 0)) == "EIO"


def test_power_cuts_need_a_record_and_pass_over_what_was_there_before() -> None:
    with pytest.raises(ValueError, match="record"):
        next(SimulatedFileSystem().power_cuts(1))
    fs = SimulatedFileSystem({"/d/f": b"old"}, record=True)
    assert list(fs.power_cuts(1)) == []
    fs.mark("a promise")
    fs.open("/d/f", write=True).write_at([b"new"], 0)
    cuts = list(fs.power_cuts(1))
    assert {files["/d/f"] for _, files in cuts} >= {b"old", b"new"}
    assert fs.trace is not None
    assert {number for number, _ in cuts} == {len(fs.trace)}
    assert list(fs.power_cuts(1)) == cuts != list(fs.power_cuts(2))


def test_a_sync_covers_what_came_before_it_began() -> None:
    fs = SimulatedFileSystem({"/f": b""})
    file = fs.open("/f", write=True)
    file.write_at([b"before"], 0)
    calls: list[str] = []

    def meanwhile(call: Call, path: str) -> None:
        calls.append(f"{call} {path}")
        if calls == ["sync /f", "sync /f"]:
            file.write_at([b" amid"], 6)

    fs.before = meanwhile
    file.sync()
    assert calls == ["sync /f", "sync /f", "write /f"]
    assert fs.image()["/f"] == b"before amid"
    assert fs.power_cut().image()["/f"] == b"before"


@pytest.mark.parametrize(
    ("pages", "seen", "survives"),
    [("kept", b"old new", b"old new"), ("dropped", b"old new", b"old"), ("evicted", b"old", b"old")],
)
def test_a_failed_sync_forgets_and_then_succeeds(pages: str, seen: bytes, survives: bytes) -> None:
    fs = SimulatedFileSystem({"/f": b"old"}, plan=FaultPlan.parse(f"sync@1:EIO:{pages}"))
    file = fs.open("/f", write=True)
    file.write_at([b" new"], 3)
    assert outcome(file.sync) == "EIO"
    assert (fs.calls["sync"], file.read_at(100, 0)) == (1, seen)
    file.sync()
    assert fs.power_cut().image()["/f"] == survives


def test_a_failed_sync_of_a_directory_leaves_its_names_on_their_way() -> None:
    fs = SimulatedFileSystem(plan=FaultPlan.parse("sync_directory@1:EIO"))
    fs.open("/f", create=True).sync()
    assert outcome(lambda: fs.sync_directory("/")) == "EIO"
    assert fs.exists("/f")
    assert "/f" not in fs.durable()
    fs.sync_directory("/")
    assert "/f" in fs.durable()


def test_a_window_ends_the_process_behind_the_end_and_says_that_a_write_was_a_store() -> None:
    fs = SimulatedFileSystem(record=True)
    file = fs.open("/f", create=True)
    file.write_at([bytes(10)], 0)
    window = window_of(file, 4, 12)
    assert window is not None
    window[2:5] = b"new"
    file.write_at([b"x"], 0)
    assert file.read_at(99, 0) == b"x" + bytes(5) + b"new" + bytes(1)
    with pytest.raises(RuntimeError, match="SIGBUS"):
        window[4:7] = b"new"
    with pytest.raises(RuntimeError, match="3 bytes"):
        window[0:2] = b"new"
    assert fs.trace is not None
    writes = [each for each in fs.trace[fs.laid_out :] if isinstance(each, Wrote)]
    assert [(each.position, each.stored) for each in writes] == [(0, False), (6, True), (0, False)]


def test_a_store_into_a_window_is_never_done_in_part() -> None:
    fs = SimulatedFileSystem(plan=FaultPlan([Fault("write", 2, "", short=1)]))
    file = fs.open("/f", create=True)
    file.write_at([bytes(10)], 0)
    window = window_of(file, 0, 10)
    assert window is not None
    window[2:5] = b"new"
    assert file.read_at(99, 0) == b"\0\0new" + bytes(5)
