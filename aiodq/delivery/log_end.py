"""The end of a log as its channels see it: one number that they read, so that none of them has to be notified."""

from __future__ import annotations

from typing import Protocol

__all__ = ["LogEnd", "OwnEnd"]


class LogEnd(Protocol):
    """The end of a log.

    Attributes:
        visible: the offset up to which channels may deliver. It never goes back.
    """

    visible: int


class OwnEnd:
    """The end of a log that is not being written."""

    __slots__ = ("visible",)

    def __init__(self, visible: int) -> None:
        """Set the end."""
        self.visible: int = visible
