"""What happens in a store, as its owner tells a client that listens."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import InvalidOptionError, OwnerLostError

if TYPE_CHECKING:
    from aiodq.engine.monitoring.events import Event, Events
    from aiodq.shared.lending import Owning

__all__ = ["ClientEvents"]

_AT_ONCE: Final = 8
_LONGEST: Final = 1000
"""Events of one answer, and characters of each one's text: however they are written, JSON has room for them."""

_MOST: Final = 1000
"""Listeners of one client."""


@dataclass(slots=True)
class _Listener:
    """One who listens, and how many events the client knows to be lost to it."""

    stream: Events
    dropped: int = 0


class ClientEvents:
    """Those of one client who listen, by numbers that it gave them."""

    def __init__(self, owner: Owning) -> None:
        """Begin with nobody."""
        self._owner = owner
        self._listeners: dict[int, _Listener] = {}

    async def several(self, number: int) -> dict[str, Any]:
        """Wait for the next event, and return it with what is there already, and how many were lost.

        Raises:
            InvalidOptionError: too many listen.
            OwnerLostError: this owner ends.
        """
        listener = self._listeners.get(number) or self._begun(number)
        found = [event] if (event := await anext(listener.stream, None)) else []
        if not found and number in self._listeners:
            raise OwnerLostError("this owner ends", self._owner.engine.path)
        buffer = listener.stream._buffer  # noqa: SLF001 - what comes next is there, so nobody has to wait for it
        while buffer and len(found) < _AT_ONCE:
            found.append(buffer.popleft())
        before, listener.dropped = listener.dropped, listener.stream.dropped
        return {"events": [_facts(event) for event in found], "dropped": listener.dropped - before}

    def _begun(self, number: int) -> _Listener:
        if len(self._listeners) >= _MOST:
            raise InvalidOptionError(f"{_MOST} listeners of one process are as many as there may be")
        listener = self._listeners[number] = _Listener(self._owner.engine.reporter.listeners.listen())
        return listener

    def end(self, number: int) -> None:
        """Somebody listens no more."""
        listener = self._listeners.pop(number, None)
        if listener is not None:
            listener.stream.end()


def _facts(event: Event) -> dict[str, Any]:
    return asdict(replace(event, text=event.text[:_LONGEST]))
