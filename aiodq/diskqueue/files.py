"""What the files of a queue are called."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidNameError
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.store_layout import directory_name, is_encodable
from aiodq.values import shown, shown_typed

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["check_directory", "check_name", "data_numbers", "data_path", "files_of", "list_queues", "metadata_path"]

_INFIX: Final = ".diskqueue."
_MOST: Final = 2**63 - 1
_FILE: Final = re.compile(r"(.+)\.diskqueue\.(?:meta|[0-9]{6,19})\.dat", re.DOTALL)
_NUMBER: Final = re.compile(r"([0-9]{6,19})\.dat")


def check_directory(directory: str | os.PathLike[str]) -> str:
    """Return the path of a directory, if there can be one.

    Raises:
        InvalidOptionError: it is no path; a `TypeError` too.
        StorageError: it is empty, has a NUL in it, or is no Unicode.
    """
    return directory_name("directory", directory, "write '/var/lib/nsqd'")


def check_name(name: str) -> str:
    """Return a queue's name, if files can be called so.

    Raises:
        InvalidNameError: it is empty, has a path's separator or a NUL in it, or is no text or no Unicode.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"{shown_typed(name)} is no name of files: write 'orders'")
    if not name or "\0" in name or os.sep in name or (os.altsep is not None and os.altsep in name):
        raise InvalidNameError(f"{shown(name)} is no name of files: write 'orders'")
    if not is_encodable(name):
        raise InvalidNameError(f"{shown(name)} is no name of files: it is no Unicode")
    return str.__str__(name)


def data_path(directory: str, name: str, number: int) -> str:
    """Return the path of a data file: at least six digits, and more beyond 999999."""
    return os.path.join(directory, f"{name}{_INFIX}{number:06d}.dat")


def metadata_path(directory: str, name: str) -> str:
    """Return the path of the metadata."""
    return os.path.join(directory, f"{name}{_INFIX}meta.dat")


def files_of(fs: FileSystem, directory: str, name: str) -> list[str]:
    """Return the names of all files that a queue has, or has left behind: data, metadata, `.bad` and `.tmp`.

    Raises:
        StorageError: as mapped from the system's error.
    """
    return [found for found in _listed(fs, directory) if found.startswith(name + _INFIX)]


def data_numbers(files: list[str], name: str) -> list[int]:
    """Return the numbers of the data files among a queue's files, ascending."""
    found = (_NUMBER.fullmatch(file, len(name + _INFIX)) for file in files)
    numbers = {match[1]: int(match[1]) for match in found if match is not None}
    # "0000001" is nothing that go-diskqueue would look for.
    return sorted(number for text, number in numbers.items() if f"{number:06d}" == text and number <= _MOST)


def list_queues(directory: str | os.PathLike[str], *, fs: FileSystem | None = None) -> list[str]:
    """Return the names of the queues in a directory, sorted. A queue is there that has data or metadata.

    Args:
        directory: where they are.
        fs: another file system than the machine's, for tests.

    Raises:
        StorageError: as mapped from the system's error.
        InvalidOptionError: that is no path; a `TypeError` too.
    """
    found = (_FILE.fullmatch(file) for file in _listed(fs or OsFileSystem(), check_directory(directory)))
    return sorted({match[1] for match in found if match is not None})


def _listed(fs: FileSystem, directory: str) -> list[str]:
    with os_errors(directory):
        return fs.listdir(directory)
