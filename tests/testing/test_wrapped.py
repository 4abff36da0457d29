"""A file system that stands before another one: every call passes through one method, and does what it did."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import aiodq
from aiodq.testing import CALLS, SimulatedFileSystem, WrappedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.testing import Call

T = TypeVar("T")


class Noting(WrappedFileSystem):
    """Notes each call and fails those of one kind."""

    def __init__(self, inner: Any = None, *, failing: str = "") -> None:
        super().__init__(inner)
        self.noted: list[str] = []
        self.failing = failing

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        self.noted.append(call)
        if call == self.failing:
            raise OSError(errno.EIO, "as told", path)
        return super().passing(call, path, perform, *args)


def every_call(fs: Any, root: str) -> list[object]:
    """Make each call once; return what they gave."""
    given: list[object] = [fs.make_directory(f"{root}/d")]
    file = fs.open(f"{root}/d/a", create=True)
    given += [file.write_at([b"hello ", b"you"], 0), file.read_at(5, 0), file.truncate(5), file.size(), file.sync()]
    given += [file.close(), file.close()]
    fs.open(f"{root}/d/a").close()
    given += [fs.sync_directory(f"{root}/d"), fs.rename(f"{root}/d/a", f"{root}/d/b"), fs.listdir(f"{root}/d")]
    given += [fs.exists(f"{root}/d/b"), fs.is_directory(f"{root}/d/b"), fs.remove(f"{root}/d/b")]
    given += [fs.remove_directory(f"{root}/d"), fs.free_space(root) is None]
    fs.lock(root).release()
    return given


def test_each_kind_of_call_passes_and_gives_what_it_gave(tmp_path: Path) -> None:
    fs = Noting()
    given = every_call(fs, str(tmp_path))
    assert given == every_call(fs.inner, str(tmp_path))
    assert set(fs.noted) == set(CALLS)
    assert fs.noted.count("close") == 2, "a file is closed once, however often it is said"


def test_it_stands_before_any_other(tmp_path: Path) -> None:
    fs = Noting(SimulatedFileSystem())
    fs.make_directory("/r")
    assert every_call(fs, "/r")[1:6] == [9, b"hello", None, 5, None]
    assert not list(tmp_path.iterdir())


def test_a_close_that_fails_has_closed() -> None:
    inner = SimulatedFileSystem()
    fs = Noting(inner, failing="close")
    file = fs.open("/a", create=True)
    with pytest.raises(OSError, match="as told"):
        file.close()
    file.close()
    assert inner.calls["close"] == 1


async def test_a_store_on_it_is_told_of_what_fails(tmp_path: Path) -> None:
    fs = Noting()
    async with aiodq.open_queue(tmp_path, fs=fs) as queue:
        await queue.put(b"a")
        assert {"write", "sync"} <= set(fs.noted)
        fs.failing = "write"
        with pytest.raises(aiodq.StorageError, match="the device reported an error"):
            await queue.put(b"b")
        fs.failing = ""
        assert (await queue.get()).body == b"a"
