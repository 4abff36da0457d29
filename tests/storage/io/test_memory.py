"""The file system in memory, which several threads use at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.io.memory import MemoryFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

A_MOMENT = 0.2


class Watched(set[str]):
    """Names in a directory, amid a look at which another thread comes in, if it can."""

    def __init__(self, names: Iterable[str], comes: Callable[[], object]) -> None:
        super().__init__(names)
        self.other = threading.Thread(target=comes)
        self._begun = False

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            if not self._begun:
                self._begun = True
                self.other.start()
                self.other.join(A_MOMENT)
            yield name


@pytest.mark.parametrize(
    "does", [lambda fs: fs.rename("/a", "/b"), lambda fs: fs.listdir("/a")], ids=["rename", "listdir"]
)
def test_another_thread_that_makes_a_file_disturbs_nothing(does: Callable[[MemoryFileSystem], object]) -> None:
    fs = MemoryFileSystem()
    for path in ("/a", "/a/1", "/a/2"):
        fs.make_directory(path)
    watched = Watched(fs._names["/a"], lambda: fs.open("/a/3", create=True))
    fs._names["/a"] = watched
    does(fs)
    watched.other.join()
    assert fs.exists("/a/3")


def test_what_is_below_a_directory_moves_with_it_and_a_file_alone() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/a")
    fs.open("/a/x", create=True).write_at([b"1"], 0)
    fs.open("/a/xy", create=True)
    fs.rename("/a/x", "/a/z")
    assert fs.listdir("/a") == ["xy", "z"]
    fs.rename("/a", "/b")
    assert (fs.exists("/a"), fs.listdir("/b")) == (False, ["xy", "z"])
    assert fs.open("/b/z").read_at(9, 0) == b"1"


class Few(dict[str, "bytearray | None"]):
    """What is in a file system, of which nobody looks at all."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all names were looked at")


def test_a_directory_is_listed_moved_and_removed_without_a_look_at_others() -> None:
    fs = MemoryFileSystem()
    fs._nodes = Few()
    for path in ("/other", "/a", "/a/b"):
        fs.make_directory(path)
    fs.open("/a/b/x", create=True)
    fs.rename("/a", "/c")
    assert fs.listdir("/c/b") == ["x"]
    fs.remove("/c/b/x")
    for path in ("/c/b", "/c"):
        fs.remove_directory(path)
    assert not fs.exists("/c")
    assert fs._names == {"/": {"other"}}
    assert fs.listdir("/other") == []
