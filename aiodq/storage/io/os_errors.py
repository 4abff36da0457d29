"""The one place where an `OSError` becomes one of aiodq's errors."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiodq.errors import (
    CorruptionError,
    DiskFullError,
    ReadOnlyError,
    StorageError,
    StoreFailedError,
    StoreNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

__all__ = ["is_lasting", "is_refused", "os_error", "os_errors", "storage_error"]

_FULL: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN, errno.ENOMEM, errno.EBUSY})
_LASTING: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
_ADVICE: Final = {
    errno.EMFILE: "this process has too many open files; raise its limit or open fewer stores",
    errno.ENFILE: "the system has too many open files",
    errno.EFBIG: "the file may not grow further (ulimit -f)",
    errno.EEXIST: "File exists: something lies there that aiodq did not make; move it away",
    errno.ELOOP: "this is a symbolic link, or below a circle of them; put the file itself there, as aiodq follows none",
    errno.EIO: "the device reported an error; check it before trusting it further",
}


def os_error(number: int, path: str) -> OSError:
    """Return what the system raises for an errno."""
    return OSError(number, os.strerror(number), path)


def storage_error(cause: OSError, path: str | PathLike[str], position: int | None = None) -> StorageError:
    """Return the error to raise for an `OSError`.

    None of these says that data is damaged: an errno is never read as damage. If a sync has failed, that is the error
    to raise, even if closing the file failed after it: the store has to stop.

    Args:
        cause: what the call raised.
        path: the file or directory in question.
        position: the byte position, if the call had one.
    """
    if (failure := _failure_before(cause)) is not None:
        return failure.again()
    number = cause.errno
    reason = cause.strerror or str(cause)
    # What object storage adds to the system's text tells more than advice on disks.
    if not reason.startswith(f"{os.strerror(number or 0)}: "):
        reason = _ADVICE.get(number or 0, reason)
    if number in _FULL:
        return DiskFullError(f"no space left: {reason}", path, position, errno=number, retriable=True)
    if number in _REFUSED:
        return ReadOnlyError(f"not permitted: {reason}", path, position, errno=number)
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return StoreNotFoundError(f"not there: {reason}", path, position, errno=number)
    return StorageError(f"the system refused: {reason}", path, position, errno=number, retriable=number in _PASSING)


def _failure_before(error: BaseException) -> StoreFailedError | None:
    """Return the failure of the store that was on its way as an error was raised, or None."""
    seen, left = set[int](), [error]
    while left:
        each = left.pop()
        if isinstance(each, StoreFailedError):
            return each
        seen.add(id(each))
        left += [one for one in (each.__cause__, each.__context__) if one is not None and id(one) not in seen]
    return None


@contextmanager
def os_errors(path: str | PathLike[str], position: int | None = None) -> Iterator[None]:
    """Raise what `storage_error` makes of an `OSError` that the block raises. Too slow for the path of every put.

    Raises:
        StorageError: as mapped from the system's error.
    """
    try:
        yield
    except OSError as cause:
        raise storage_error(cause, path, position) from cause


def is_refused(error: StorageError) -> bool:
    """Return whether the system refuses access to one place, which `repair` cannot change."""
    return isinstance(error, ReadOnlyError) or error.errno in _LASTING


def is_lasting(error: StorageError) -> bool:
    """Return whether an error concerns one place and lasts until an administrator fixes it.

    Such an error affects only the topic that lies there. Any other, which may pass or concerns the whole device, is
    raised when the store is opened.
    """
    return error.errno in _LASTING or (isinstance(error, CorruptionError) and error.errno is None)
