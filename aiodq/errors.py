"""All errors that aiodq raises on purpose.

The classes are divided by what a caller can do about an error. `AiodqError.retriable` tells whether the same call may
succeed later although nothing was repaired. Storage errors name the file, and the byte in it where one is known.
"""

from __future__ import annotations

from copy import copy
from os import PathLike
from typing import TypeVar

__all__ = [
    "AiodqError",
    "AlreadySettledError",
    "CorruptionError",
    "DeliveryError",
    "DiskFullError",
    "ExclusiveOnlyError",
    "FormatVersionError",
    "InvalidMessageError",
    "InvalidMessageTypeError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidOptionTypeError",
    "MessageSizeError",
    "MissingExtraError",
    "NotAStoreError",
    "NotAwaitedError",
    "NotInFlightError",
    "OffsetError",
    "OwnerLostError",
    "OwnerStalledError",
    "ProtocolError",
    "ReadOnlyError",
    "StorageError",
    "StoreFailedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "WrongContextError",
    "again",
    "not_in_flight",
]

E = TypeVar("E", bound=Exception)


class AiodqError(Exception):
    """Base of all errors raised by aiodq.

    Attributes:
        retriable: True if the same call may succeed later although nothing was repaired.
    """

    retriable: bool = False


class StorageError(AiodqError):
    """The store's files could not be used.

    Attributes:
        path: the file or directory, as text.
        position: the byte in that file, or None if the error does not concern a certain byte.
        errno: the operating system's error number, or None if it does not come from the system.
    """

    def __init__(
        self,
        message: str,
        path: str | PathLike[str] = "",
        position: int | None = None,
        *,
        errno: int | None = None,
        retriable: bool = False,
    ) -> None:
        """Keep the parts; the text is the message, then the path and position."""
        self.message = message
        self.path: str = str(path)
        self.position = position
        self.errno = errno
        self.retriable = retriable
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message with path and position."""
        if not self.path:
            return self.message
        where = self.path if self.position is None else f"{self.path} at byte {self.position}"
        return f"{self.message} [{where}]"


class CorruptionError(StorageError):
    """Bytes on disk are not what was written."""


class FormatVersionError(StorageError):
    """The file was written by a newer aiodq; it is left untouched."""


class NotAStoreError(StorageError):
    """The directory is not empty and holds no aiodq store, or it lies inside another store; it is left untouched."""


class StoreNotFoundError(StorageError):
    """There is no store, topic or segment under that path."""


class StoreLockedError(StorageError):
    """Another owner has the store open.

    If this process has the store open already, `pid` is its own. A store left open by a closed event loop is released
    instead.

    Attributes:
        pid: the owner's process id as it wrote it, or None if it could not be read.
    """

    def __init__(self, message: str, path: str | PathLike[str] = "", *, pid: int | None = None) -> None:
        """Keep the owner's pid beside the path."""
        super().__init__(message, path, retriable=True)
        self.pid = pid


class OwnerLostError(StorageError):
    """A shared store has no owner, or its owner ended before it answered; the same call may succeed later."""

    def __init__(self, message: str, path: str | PathLike[str] = "") -> None:
        """Keep the path; it is always retriable."""
        super().__init__(message, path, retriable=True)


class OwnerStalledError(StorageError):
    """The owner of a shared store has not answered for too long: its event loop is blocked, or it was suspended.

    It still owns the store, so no other process can take it over. It may yet do what was asked when it continues.

    Attributes:
        pid: the owner's process id.
    """

    def __init__(self, message: str, path: str | PathLike[str] = "", *, pid: int | None = None) -> None:
        """Keep the owner's pid beside the path; it is always retriable."""
        super().__init__(message, path, retriable=True)
        self.pid = pid


class ReadOnlyError(StorageError):
    """The file system or its permissions do not let this process write."""


class DiskFullError(StorageError):
    """No space or quota is left. Nothing of the call was stored; it may be repeated once there is space."""


class StoreFailedError(StorageError):
    """The store stopped for good, its cause in `__cause__`.

    After a failed fsync it is unknown what the disk holds, so nothing is retried. To continue, open the store again:
    that reads what is really on disk.
    """

    def again(self) -> StoreFailedError:
        """Return a copy to raise, so that the tracebacks of all callers do not accumulate in one object."""
        copy = StoreFailedError(self.message, self.path, self.position, errno=self.errno)
        copy.__cause__ = self.__cause__ or self
        return copy


class DeliveryError(AiodqError):
    """A message cannot be settled as asked. Nothing was changed."""


class AlreadySettledError(DeliveryError):
    """The message was acked, nacked or rejected before."""


class NotInFlightError(DeliveryError):
    """The consumer no longer holds the message: it timed out, or the channel was purged or moved by `seek`."""


class MessageSizeError(AiodqError, ValueError):
    """The body is smaller or larger than the store's options allow; nothing was written."""


class InvalidMessageError(AiodqError, ValueError):
    """Tag, key or headers cannot be stored; nothing was written."""


class InvalidMessageTypeError(InvalidMessageError, TypeError):
    """The body, tag, key, headers or a time of a message has a wrong type; nothing was written."""


class InvalidNameError(AiodqError, ValueError):
    """A topic's or channel's name is not 1 to 64 of `[.a-zA-Z0-9_-]`, optionally ending `#ephemeral`, or reserved."""


class InvalidOptionError(AiodqError, ValueError):
    """An option or an argument has a value that is not allowed; nothing was done."""


class InvalidOptionTypeError(InvalidOptionError, TypeError):
    """An option or an argument has a wrong type; nothing was done."""


class OffsetError(AiodqError, LookupError):
    """There is no message at that offset: not yet written, already deleted, or lost to damage."""


class ProtocolError(AiodqError):
    """A peer on a store's socket violates aiodq's protocol: it is another program, or its bytes are damaged."""


class ExclusiveOnlyError(AiodqError):
    """This needs a store that is open in mode "exclusive"; nothing was done."""


class MissingExtraError(AiodqError, ImportError):
    """A feature needs a package that is not installed; the message names the extra that installs it."""


class NotAwaitedError(AiodqError, AttributeError):
    """A store or queue was used before it was opened: `await` or `async with` is missing."""


class WrongContextError(AiodqError, RuntimeError):
    """The object was used from another event loop, another thread, a forked child, or a transaction after its end."""


def not_in_flight(what: str) -> NotInFlightError:
    """Return the error for settling a message that is no longer in flight here; it says what keeps one in flight."""
    return NotInFlightError(
        f"{what} is not in flight here any more: its visibility_timeout is over, it was purged or sought past, or a "
        "transaction settles it; `message.renewing()` or a longer visibility_timeout keeps what takes longer"
    )


def again(error: E) -> E:
    """Return a copy of a stored error to raise: the stored one would collect the tracebacks of all callers.

    An error of another library is returned itself, as its class may not support copying.
    """
    if not isinstance(error, AiodqError):
        return error
    anew = copy(error)
    anew.__cause__ = error.__cause__
    return anew
