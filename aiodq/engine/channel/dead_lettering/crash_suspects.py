"""Messages that may have killed a process before: only one of them is in flight at a time."""

from __future__ import annotations

from typing import Final

__all__ = ["CrashSuspects"]

_ALONE: Final = 30.0
"""Seconds for which the others wait for the one in flight; most messages that end a process do so soon."""


class CrashSuspects:
    """Admits one message at a time of those that may have ended a process. One per store.

    A message that ends a process again thus takes no other suspect with it, of whichever channel.
    """

    def __init__(self) -> None:
        """Start with no message in flight."""
        self._message: object | None = None
        self._since = 0.0

    def admit(self, message: object, now: float) -> bool:
        """Admit a message at that moment unless another one is in flight; return whether it was admitted."""
        if self._message is not None and now - self._since <= _ALONE:
            return False
        self._message, self._since = message, now
        return True

    def acquit(self, message: object) -> None:
        """Clear a message that was processed, successfully or not, without ending the process."""
        if self._message is message:
            self._message = None
