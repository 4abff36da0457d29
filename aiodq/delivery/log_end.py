"""How far a log is, as its channels see it: one number that they look at, so that nobody needs to tell each of them."""

from __future__ import annotations

from typing import Protocol

__all__ = ["LogEnd", "OwnEnd"]


class LogEnd(Protocol):
    """What knows how far a log is.

    Attributes:
        visible: the offset up to which channels may deliver. It never goes back.
    """

    visible: int


class OwnEnd:
    """The end of a log that nobody writes to meanwhile."""

    __slots__ = ("visible",)

    def __init__(self, visible: int) -> None:
        """Begin with a log that ends there."""
        self.visible: int = visible
