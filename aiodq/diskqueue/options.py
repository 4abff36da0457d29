"""What go-diskqueue is told when a queue is opened, and what follows from it."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from aiodq.errors import InvalidOptionError, StorageError
from aiodq.values import check_whole

__all__ = ["MAX_MESSAGE_BYTES", "NSQD_MAX_BYTES_PER_FILE", "DiskQueueExistsError", "Limits", "RollRule"]

MAX_MESSAGE_BYTES: Final = 2**31 - 1
"""The most bytes a message can have: its length is an i32."""

NSQD_MAX_BYTES_PER_FILE: Final = 104_857_600
"""What nsqd sets for its queues."""


class DiskQueueExistsError(StorageError):
    """The directory has files of a queue of that name already; they are left untouched."""


class RollRule(Enum):
    """When the next file is begun. A message is never split.

    Attributes:
        BEFORE: before a message that would take a file that is not empty beyond the limit. go-diskqueue 1.1.0.
        REACHED: after a message with which a file has reached the limit. go-diskqueue 1.0.0.
        EXCEEDED: after a message with which a file has gone beyond the limit. Before that, and within nsqd.
    """

    BEFORE = "before"
    REACHED = "reached"
    EXCEEDED = "exceeded"

    def before(self, position: int, size: int, limit: int) -> bool:
        """Return whether a record of `size` bytes at `position` begins a file. All numbers are bytes."""
        return self is RollRule.BEFORE and position > 0 and position + size > limit

    def after(self, position: int, limit: int) -> bool:
        """Return whether a file that has just come to end at `position` is full. Both numbers are bytes."""
        return (self is RollRule.REACHED and position >= limit) or (self is RollRule.EXCEEDED and position > limit)


class Limits(NamedTuple):
    """How large a message may be, in bytes."""

    least: int
    most: int

    def check(self) -> Limits:
        """Return the limits.

        Raises:
            InvalidOptionError: they are none, or beyond what a length can say; a `TypeError` too if of another type.
        """
        check_whole("min_message_bytes", self.least, least=0, example=26)
        check_whole("max_message_bytes", self.most, least=0, example=1 << 20)
        if not 0 <= self.least <= self.most <= MAX_MESSAGE_BYTES:
            raise InvalidOptionError(f"messages of {self.least} to {self.most} bytes are not possible")
        return self

    def allow(self, length: int) -> bool:
        """Return whether a message may have so many bytes."""
        return self.least <= length <= self.most
