"""Reading what the system has in its page cache, and nothing else."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.io.file_pool import PooledFileSystem
from aiodq.storage.io.filesystem import OsFile, OsFileSystem
from aiodq.storage.io.memory import MemoryFileSystem
from aiodq.storage.io.page_cache import PageCache

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in its page cache")


@pytest.fixture
def path(cached_path: Path) -> str:
    path = cached_path / "file"
    path.write_bytes(bytes(range(256)) * (3 * MIB // 256))
    return str(path)


def uncache(path: str) -> None:
    """Have the system forget a file's pages."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def has_nothing(path: str) -> bool:
    """Return whether it did: some file systems have their files in memory, and nowhere else."""
    file = OsFile(os.open(path, os.O_RDONLY))
    try:
        return file.read_cached(1, 0) is None
    finally:
        file.close()


def test_what_is_there_is_read(path: str) -> None:
    file = PageCache(PooledFileSystem(OsFileSystem())).open(path)
    with pytest.raises(BlockingIOError) as told:
        file.read_at(10, 0)  # nobody has said how much may be read
    assert told.value.errno == errno.EAGAIN
    cache = PageCache(PooledFileSystem(OsFileSystem()))
    assert cache.usable
    file = cache.open(path)
    cache.begin()
    assert file.read_at(4, 254) == b"\xfe\xff\x00\x01"
    assert file.size() == 3 * MIB
    file.close()


def test_beyond_the_end_nothing_is_known(path: str) -> None:
    """Fewer bytes than were asked for may also be those that are not in memory."""
    file = OsFile(os.open(path, os.O_RDONLY))
    assert file.read_cached(10, 3 * MIB - 10) is not None
    assert file.read_cached(10, 3 * MIB - 9) is None
    assert file.read_cached(10, 4 * MIB) is None
    file.close()
    assert file.read_cached(10, 0) is None, "and who reads otherwise is told why"


def test_what_is_on_the_device_alone_is_not_waited_for(path: str) -> None:
    uncache(path)
    if not has_nothing(path):
        pytest.skip("the temporary directory's files are in memory")
    cache = PageCache(PooledFileSystem(OsFileSystem()))
    file = cache.open(path)
    cache.begin()
    with pytest.raises(BlockingIOError):
        file.read_at(MIB, 0)
    with open(path, "rb") as other:
        other.read()
    assert len(file.read_at(MIB, 0)) == MIB
    file.close()


def test_no_more_is_read_at_a_time_than_takes_a_moment(path: str) -> None:
    cache = PageCache(PooledFileSystem(OsFileSystem()))
    file = cache.open(path)
    for _ in range(2):
        cache.begin()
        assert len(file.read_at(MIB, 0)) == len(file.read_at(MIB, MIB)) == MIB
        with pytest.raises(BlockingIOError):
            file.read_at(1, 0)
    file.close()


def test_of_other_file_systems_nothing_is_in_memory() -> None:
    fs = MemoryFileSystem()
    fs.open("/file", create=True).write_at([b"abc"], 0)
    for each in (fs, PooledFileSystem(fs)):
        cache = PageCache(each)
        assert not cache.usable
        file = cache.open("/file")
        cache.begin()
        with pytest.raises(BlockingIOError):
            file.read_at(3, 0)
        file.close()


def test_a_file_that_was_laid_down_is_not_opened_for_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = PooledFileSystem(OsFileSystem())
    file = PageCache(fs).open(path)
    (pooled,) = fs.clean
    assert pooled.read_cached(3, 0) == b"\x00\x01\x02"
    while pooled.file is not None:
        fs._close_one()
    monkeypatch.setattr(fs, "take", None)
    assert pooled.read_cached(3, 0) is None
    monkeypatch.undo()
    assert pooled.read_at(3, 0) == b"\x00\x01\x02"
    file.close()
