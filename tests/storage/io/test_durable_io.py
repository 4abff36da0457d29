"""Writing many buffers, of which the system may take a part at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiodq.errors import StorageError, StoreFailedError
from aiodq.storage.io.durable_io import replace_file, write_all
from aiodq.storage.io.memory import MemoryFileSystem
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File

_BUFFERS: list[BytesLike] = [b"one", b"", bytearray(b"two"), memoryview(b"three"), b"", b""]
_BYTES = b"".join(_BUFFERS)


class _Slow:
    """A file that takes few bytes at a time."""

    def __init__(self, file: File, most: int) -> None:
        self.file = file
        self.most = most

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        return self.file.write_at([b"".join(buffers)[: self.most]], position)


@pytest.mark.parametrize("most", range(1, len(_BYTES) + 1))
def test_what_was_not_taken_is_written_again(most: int) -> None:
    file = MemoryFileSystem().open("/file", create=True)
    assert write_all(_Slow(file, most), _BUFFERS, 2) == 2 + len(_BYTES)  # type: ignore[arg-type]  # only writes
    assert file.read_at(100, 2) == _BYTES


def test_a_file_that_takes_nothing_is_an_error() -> None:
    file = MemoryFileSystem().open("/file", create=True)
    with pytest.raises(OSError, match="a write wrote nothing"):
        write_all(_Slow(file, 0), _BUFFERS, 0)  # type: ignore[arg-type]  # only writes


def test_nothing_is_written_without_an_error() -> None:
    file = MemoryFileSystem().open("/file", create=True)
    assert write_all(file, [], 7) == write_all(file, [b"", b""], 7) == 7


def test_a_file_that_can_neither_be_synced_nor_closed_is_a_failure_of_the_store() -> None:
    fs = SimulatedFileSystem(plan=FaultPlan([Fault("sync", 1), Fault("close", 1)]))
    fs.make_directory("/d")
    with pytest.raises(StoreFailedError, match="fsync failed") as raised:
        replace_file(fs, "/d/file", b"new")
    assert isinstance(raised.value.__cause__, OSError)  # the close's


def test_a_file_that_cannot_be_closed_is_none() -> None:
    fs = SimulatedFileSystem(plan=FaultPlan([Fault("close", 1)]))
    fs.make_directory("/d")
    with pytest.raises(StorageError, match="the system refused") as raised:
        replace_file(fs, "/d/file", b"new")
    assert not isinstance(raised.value, StoreFailedError)
