"""Syncs that the kernel does while the caller goes on."""

from __future__ import annotations

import errno
import gc
import os
import platform
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.io.filesystem import OsFile, OsFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.testing import WatchedFileSystem
from tests.processes import environment
from tests.system.support import require_aio, run_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def aio() -> Iterator[KernelAio]:
    try:
        aio = KernelAio()
    except OSError as refused:
        pytest.skip(f"needs io_submit, which this system does not give: {refused}")
    yield aio
    aio.close()


def opened(path: Path) -> OsFile:
    file = OsFileSystem().open(str(path), create=True)
    assert isinstance(file, OsFile)
    file.write_at([b"x"], 0)
    return file


def all_of(aio: KernelAio, count: int) -> list[tuple[int, int]]:
    """Return what has ended, once that is so many."""
    ended: list[tuple[int, int]] = []
    watched = select.poll()
    watched.register(aio.eventfd, select.POLLIN)
    while len(ended) < count:
        assert watched.poll(10_000)
        ended += aio.ended()
    return ended


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_is_told_of_once_by_its_number(aio: KernelAio, tmp_path: Path) -> None:
    file = opened(tmp_path / "f")
    assert aio.ended() == []
    numbers = []
    for _ in range(3):
        aio.submit(file)
        numbers.append(aio.number)
    assert sorted(all_of(aio, 3)) == [(number, 0) for number in numbers] == [(1, 0), (2, 0), (3, 0)]
    assert aio.ended() == []
    file.close()


def test_a_file_may_be_closed_while_it_is_synced(aio: KernelAio, tmp_path: Path) -> None:
    for number in range(1, 40):
        file = opened(tmp_path / f"f{number}")
        aio.submit(file)
        file.close()
        # Whatever gets the descriptor now is not what is synced.
        os.close(os.eventfd(0))
        assert all_of(aio, 1) == [(number, 0)]


def test_what_cannot_be_synced_is_refused_at_once_and_has_no_number(aio: KernelAio, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    for descriptor in (-1, reading):
        with pytest.raises(OSError, match=r"."):
            aio.submit(OsFile(descriptor))
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
        aio.submit(WatchedFileSystem().open(str(tmp_path / "f"), create=True))
    assert aio.number == 0
    assert aio.ended() == []


def test_more_than_it_takes_at_once_are_refused_and_none_is_forgotten(aio: KernelAio, tmp_path: Path) -> None:
    file, begun = opened(tmp_path / "f"), 0
    with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
        # It may take more than it was asked for.
        for _ in range(100_000):
            aio.submit(file)
            begun += 1
    assert begun > 64
    done = 0
    while done < begun:
        select.select([aio.eventfd], [], [], 10)
        done += os.eventfd_read(aio.eventfd)
    os.eventfd_write(aio.eventfd, done)
    # All of them at once, as the eventfd tells of none of them again.
    assert sorted(aio.ended()) == [(number, 0) for number in range(1, begun + 1)]
    aio.submit(file)
    assert all_of(aio, 1) == [(begun + 1, 0)]
    file.close()


def test_it_is_given_back_after_what_is_under_way(tmp_path: Path) -> None:
    file, before = opened(tmp_path / "f"), descriptors()
    try:
        for _ in range(3):
            aio = KernelAio()
            aio.submit(file)
            aio.close()
            aio.close()
            with pytest.raises(OSError, match=r"."):
                aio.submit(file)
    except OSError as refused:
        pytest.skip(f"needs io_submit, which this system does not give: {refused}")
    finally:
        file.close()
    assert descriptors() == before - 1


def test_the_next_one_has_its_context_and_nothing_of_what_was_under_way(aio: KernelAio, tmp_path: Path) -> None:
    file, other = opened(tmp_path / "f"), KernelAio()
    context = other._context.value
    assert context != aio._context.value
    for told in (0, 1):
        for _ in range(3):
            other.submit(file)
        all_of(other, told)
        other.close()
        other = KernelAio()
        assert other._context.value == context
        assert other.ended() == []
    other.submit(file)
    assert all_of(other, 1) == [(1, 0)]
    other.close()
    file.close()


@pytest.mark.parametrize("done", [True, False], ids=["done", "not yet"])
@pytest.mark.parametrize("call", ["submit", "getevents"])
def test_it_is_given_back_and_no_number_comes_twice_where_ctrl_c_ends_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, *, done: bool
) -> None:
    require_aio()
    file, aio = opened(tmp_path / "f"), KernelAio()
    plain, number = aio._call, getattr(aio._calls, call)

    def interrupted(which: int, *arguments: object) -> int:
        if which != number:
            return plain(which, *arguments)
        if done:
            plain(which, *arguments)
        raise KeyboardInterrupt

    if call == "getevents":
        aio.submit(file)
        select.select([aio.eventfd], [], [], 10)
    monkeypatch.setattr(aio, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        aio.submit(file) if call == "submit" else aio.ended()
    monkeypatch.setattr(aio, "_call", plain)
    aio.submit(file)
    ended = all_of(aio, 1 if done != (call == "submit") else 2)
    assert sorted(ended) == ([(2, 0)] if len(ended) == 1 else [(1, 0), (2, 0)])
    aio.submit(file)
    file.close()
    aio.close()


def test_an_end_of_which_ctrl_c_kept_it_from_telling_is_told_again(
    aio: KernelAio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, plain = opened(tmp_path / "f"), os.eventfd_read

    def interrupted(descriptor: int) -> int:
        plain(descriptor)
        raise KeyboardInterrupt

    aio.submit(file)
    select.select([aio.eventfd], [], [], 10)
    monkeypatch.setattr(os, "eventfd_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        aio.ended()
    monkeypatch.setattr(os, "eventfd_read", plain)
    assert all_of(aio, 1) == [(1, 0)]
    assert aio.ended() == []
    file.close()


FORKED = """
import os, select, sys
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.kernel_aio import KernelAio

def sync(aio):
    aio.submit(file)
    select.select([aio.eventfd], [], [], 10)
    return aio.ended() == [(aio.number, 0)]

file = OsFileSystem().open(sys.argv[1], create=True)
spare, used = KernelAio(), KernelAio()
spare.close()
if not os.fork():
    used.close()
    os._exit(10 + sync(KernelAio()) + sync(KernelAio()))
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), sync(used), sync(KernelAio()))
"""


@pytest.mark.usefixtures("aio")
def test_a_forked_child_has_contexts_of_its_own(tmp_path: Path) -> None:
    assert run_script(FORKED, str(tmp_path / "f")).stdout.split() == ["12", "True", "True"]


def test_one_that_nobody_holds_is_given_back(aio: KernelAio) -> None:
    before = descriptors()
    other: KernelAio | None = KernelAio()
    assert other is not None
    assert other.eventfd != aio.eventfd
    assert descriptors() == before + 1
    other = None
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("machine", ["s390x", "i686", ""])
def test_a_machine_of_which_the_calls_are_not_known_has_none(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        KernelAio()


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        KernelAio()


def test_who_looks_at_calls_of_the_c_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libnothing.so")
    assert KernelAio.is_watched()
    monkeypatch.delenv("LD_PRELOAD")


TRACED = """
import ctypes
from aiodq.storage.io.kernel_aio import KernelAio
print(KernelAio.is_watched())
assert ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME
print(KernelAio.is_watched())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can be told from /proc")
def test_who_traces_the_process_is_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRACED], env=environment(LD_PRELOAD=""), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"False", b"True"]


def test_where_nothing_tells_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr("aiodq.storage.io.kernel_aio._STATUS", "/proc/none")
    assert not KernelAio.is_watched()
