"""A client's unusable handles: why the topic or channel could not be opened, or that it was deleted."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aiodq.topic import Topic

__all__ = ["Refusals", "deletion"]

_MOST: Final = 10_000
"""Handles that are remembered, the latest ones: packets sent with one before its client could know arrive only for a
moment."""


class _Refusal(NamedTuple):
    error: Exception
    topic: str


class Refusals:
    """The refused handles of one connection, in order."""

    def __init__(self) -> None:
        """Start without refusals."""
        self._those: dict[int, _Refusal] = {}

    def __contains__(self, handle: int) -> bool:
        """Return whether a handle was refused."""
        return handle in self._those

    def add(self, handle: int, error: Exception, topic: str = "") -> tuple[int, str]:
        """Add a handle with the reason, and with the topic's name if it was a topic.

        Returns:
            The handle that is forgotten for it, 0 for none, and the topic's name if it was one.
        """
        # INVARIANT: the copy has no traceback, which would keep the error's origin alive.
        self._those[handle] = _Refusal(copy(error), topic)
        if len(self._those) <= _MOST:
            return 0, ""
        oldest = next(iter(self._those))
        return oldest, self._those.pop(oldest).topic

    def check(self, handle: int) -> None:
        """Raise the reason if a handle was refused."""
        found = self._those.get(handle)
        if found is not None:
            raise copy(found.error)

    def topic(self, handle: int) -> str:
        """Return the name of a deleted topic by its handle; empty if it is none."""
        found = self._those.get(handle)
        return "" if found is None else found.topic


def deletion(topic: Topic) -> Exception | None:
    """Return why a topic of an open store can no longer be used; None as long as it exists."""
    engine = topic._engine  # noqa: SLF001 - a session is a topic's other half
    if not engine.closed:
        return None
    try:
        engine.check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it
        return error
    return None
