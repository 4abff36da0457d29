"""Every error aiodq raises on purpose.

The tree follows what a caller can do about it. `AiodqError.retriable` tells whether the same call may succeed later
without anything being repaired. Storage errors carry the file and the byte at which it happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

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
]


class AiodqError(Exception):
    """Base of all errors raised by aiodq.

    Attributes:
        retriable: True when the same call may succeed later with nothing repaired in between.
    """

    retriable: bool = False


class StorageError(AiodqError):
    """Something about the files.

    Attributes:
        path: the file or directory, as text.
        position: the byte in that file, or None where no single byte is to blame.
        errno: the operating system's error number, or None where it was not the system that refused.
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
        """Keep the parts; the text is the message followed by where."""
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
    """The directory exists, is not empty and holds no aiodq store; it is left untouched."""


class StoreNotFoundError(StorageError):
    """There is no store, topic or segment under that path."""


class StoreLockedError(StorageError):
    """Another owner has the store open.

    A loop that is closed before its stores are leaves them locked until the process ends: `pid` is this one's then.

    Attributes:
        pid: the owner's process id as it wrote it, or None when it could not be read.
    """

    def __init__(self, message: str, path: str | PathLike[str] = "", *, pid: int | None = None) -> None:
        """Keep the owner's pid beside the path."""
        super().__init__(message, path, retriable=True)
        self.pid = pid


class OwnerLostError(StorageError):
    """A store that is shared has no owner, or its owner went before it answered; the same call may succeed later."""

    def __init__(self, message: str, path: str | PathLike[str] = "") -> None:
        """Keep the path; it is always retriable."""
        super().__init__(message, path, retriable=True)


class OwnerStalledError(StorageError):
    """The owner of a store that is shared has not answered for long: its event loop is blocked, or it was stopped.

    It has the store still, so nobody can take it over. What was asked of it may be done when it goes on.

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
    """No space or quota left. Nothing of the refused call was kept; it may be repeated once there is space."""


class StoreFailedError(StorageError):
    """The store stopped for good, its cause in `__cause__`.

    After a failed fsync nobody knows what the disk holds, so nothing is retried: only opening again, which reads what
    is really there, goes on.
    """

    def again(self) -> StoreFailedError:
        """Return a copy to raise, so that the tracebacks of those who are told do not pile up in one object."""
        copy = StoreFailedError(self.message, self.path, self.position, errno=self.errno)
        copy.__cause__ = self.__cause__ or self
        return copy


class DeliveryError(AiodqError):
    """A message cannot be settled the way it was asked for. The queue is as it was."""


class AlreadySettledError(DeliveryError):
    """The message was acked, nacked or rejected before."""


class NotInFlightError(DeliveryError):
    """The message is no longer this consumer's: its time ran out, or the channel was purged or moved."""


class MessageSizeError(AiodqError, ValueError):
    """The body is smaller or larger than the store's options allow; nothing was written."""


class InvalidMessageError(AiodqError, ValueError):
    """Tag, key or headers cannot be stored; nothing was written."""


class InvalidMessageTypeError(InvalidMessageError, TypeError):
    """Body, tag, key, headers or a time of a message are of another type than they can be; nothing was written."""


class InvalidNameError(AiodqError, ValueError):
    """A topic's or channel's name is not 1 to 64 of `[.a-zA-Z0-9_-]`, optionally ending `#ephemeral`, or reserved."""


class InvalidOptionError(AiodqError, ValueError):
    """An option or an argument has a value that it cannot have; nothing was done."""


class InvalidOptionTypeError(InvalidOptionError, TypeError):
    """An option or an argument is of another type than it can be; nothing was done."""


class OffsetError(AiodqError, LookupError):
    """There is no message at that offset: not yet written, already deleted, or lost to damage."""


class ProtocolError(AiodqError):
    """Who talks on a store's socket does not speak as aiodq does: a foreign program, or bytes that are not right."""


class ExclusiveOnlyError(AiodqError):
    """It can be done only with a store that is open in mode "exclusive", and was not done."""


class MissingExtraError(AiodqError, ImportError):
    """A feature needs a package that is not installed; the message names the extra that brings it."""


class NotAwaitedError(AiodqError, AttributeError):
    """Something of a store or queue was asked of what opens it: `await` or `async with` is missing."""


class WrongContextError(AiodqError, RuntimeError):
    """The object was used from another event loop, another thread, a forked child, or a transaction after its end."""
