"""What a client's handles stand for no more: why it could not be opened, or that it was deleted."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aiodq.topic import Topic

__all__ = ["Refusals", "deletion"]

_MOST: Final = 10_000
"""So many handles are remembered, the last ones: what was said by one before its client could know is on its way for a
moment."""


class _Refusal(NamedTuple):
    error: Exception
    topic: str


class Refusals:
    """Those of one connection, in the order in which they came."""

    def __init__(self) -> None:
        """Begin with none."""
        self._those: dict[int, _Refusal] = {}

    def __contains__(self, handle: int) -> bool:
        """Return whether it was refused."""
        return handle in self._those

    def add(self, handle: int, error: Exception, topic: str = "") -> None:
        """Remember why; and which topic it was, where that was one."""
        # INVARIANT: the copy has no traceback, which would keep what the error came from.
        self._those[handle] = _Refusal(copy(error), topic)
        if len(self._those) > _MOST:
            del self._those[next(iter(self._those))]

    def check(self, handle: int) -> None:
        """Raise why something could not be opened, or is no more, if that is so."""
        found = self._those.get(handle)
        if found is not None:
            raise copy(found.error)

    def topic(self, handle: int) -> str:
        """Return the name of a topic that was deleted; an empty one where that is none."""
        found = self._those.get(handle)
        return "" if found is None else found.topic


def deletion(topic: Topic) -> Exception | None:
    """Return why nothing can be done with a topic any more, the store being open; None as long as it is there."""
    engine = topic._engine  # noqa: SLF001 - a session is a topic's other half
    if not engine.closed:
        return None
    try:
        engine.check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what its client is told
        return error
    return None
