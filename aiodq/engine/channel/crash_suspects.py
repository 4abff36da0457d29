"""Which message is in hand that may have ended a process before."""

from __future__ import annotations

from typing import Final

__all__ = ["CrashSuspects"]

_ALONE: Final = 30.0
"""Seconds for which others wait for the one in hand; most of what ends a process does so soon."""


class CrashSuspects:
    """One per store: of all messages that may have ended a process, one at a time is in hand.

    So the one that does it again takes no other of them with it, of whichever channel.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._message: object | None = None
        self._since = 0.0

    def admit(self, message: object, now: float) -> bool:
        """Take a message in hand, at that moment, unless another one is; return whether that was done."""
        if self._message is not None and now - self._since <= _ALONE:
            return False
        self._message, self._since = message, now
        return True

    def acquit(self, message: object) -> None:
        """A message was worked off, for better or worse, and the process is there still."""
        if self._message is message:
            self._message = None
