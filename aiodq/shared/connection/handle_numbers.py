"""The handles by which one connection names topics and channels."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

__all__ = ["HandleNumbers"]

Place: TypeAlias = "tuple[str, str]"

_MOST_LET_GO: Final = 10_000
"""Deleted topics and channels whose handles are remembered, as many as an owner remembers."""


class HandleNumbers(dict[Place, int]):
    """Handles by the names of the topic and the channel; the channel's is empty for the topic itself."""

    def __init__(self) -> None:
        """Start without handles. No number comes twice, whatever becomes of it."""
        super().__init__()
        self._last = 0
        self._let_go: deque[tuple[Place, int]] = deque()

    def anew(self, place: Place) -> int:
        """Return a new handle."""
        self._last += 1
        self[place] = self._last
        return self._last

    def let_go(self, place: Place) -> int:
        """Return the handle of what was deleted or refused, which is kept for a while; 0 if there is none.

        What is still sent with it is refused, not done with another of that name.
        """
        handle = self.get(place, 0)
        self._let_go.append((place, handle))
        if len(self._let_go) > _MOST_LET_GO:
            first, number = self._let_go.popleft()
            if self.get(first) == number:
                del self[first]
        return handle
