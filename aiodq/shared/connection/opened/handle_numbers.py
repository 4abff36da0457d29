"""The handles by which one connection names topics and channels."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

__all__ = ["HandleNumbers"]

Key: TypeAlias = "tuple[str, str]"

_MOST_RELEASED: Final = 10_000
"""Deleted topics and channels whose handles are remembered, as many as an owner remembers."""


class HandleNumbers(dict[Key, int]):
    """Handles by the names of the topic and the channel; the channel's is empty for the topic itself."""

    def __init__(self) -> None:
        """Start without handles. No number is ever used again."""
        super().__init__()
        self._last = 0
        self._released: deque[tuple[Key, int]] = deque()

    def new(self, key: Key) -> int:
        """Return a new handle."""
        self._last += 1
        self[key] = self._last
        return self._last

    def release(self, key: Key) -> int:
        """Retire the handle of a deleted or refused topic or channel, and return it; 0 if there is none.

        Packets that are still sent with it are refused, and not applied to a new one of that name.
        """
        handle = self.get(key, 0)
        self._released.append((key, handle))
        if len(self._released) > _MOST_RELEASED:
            first, number = self._released.popleft()
            if self.get(first) == number:
                del self[first]
        return handle
