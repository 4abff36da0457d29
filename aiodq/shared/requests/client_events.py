"""The events of a store, as its owner sends them to clients that listen."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import InvalidOptionError, OwnerLostError

if TYPE_CHECKING:
    from aiodq.engine.monitoring.events import Event, Events
    from aiodq.shared.requests.serving import Owning

__all__ = ["ClientEvents"]

_AT_ONCE: Final = 8
_LONGEST: Final = 1000
"""Events in one answer, and characters of each one's text: however they are encoded, they fit into the JSON."""

_MOST: Final = 1000
"""Most listeners of one client."""


@dataclass(slots=True)
class _Listener:
    """A listener, and the number of its lost events that the client knows of."""

    stream: Events
    dropped: int = 0


class ClientEvents:
    """The listeners of one client, by numbers that the client chose."""

    def __init__(self, owner: Owning) -> None:
        """Start without listeners."""
        self._owner = owner
        self._listeners: dict[int, _Listener] = {}

    async def several(self, number: int) -> dict[str, Any]:
        """Wait for the next event; return it with those already there, and the number of lost ones.

        Raises:
            InvalidOptionError: there are too many listeners.
            OwnerLostError: this owner is ending.
        """
        listener = self._listeners.get(number) or self._begun(number)
        found = [event] if (event := await anext(listener.stream, None)) else []
        if not found and number in self._listeners:
            raise OwnerLostError("this owner is ending", self._owner.engine.path)
        while found and len(found) < _AT_ONCE and (event := listener.stream.take()) is not None:
            found.append(event)
        before, listener.dropped = listener.dropped, listener.stream.dropped
        return {"events": [_facts(event) for event in found], "dropped": listener.dropped - before}

    def _begun(self, number: int) -> _Listener:
        if len(self._listeners) >= _MOST:
            raise InvalidOptionError(f"{_MOST} listeners of one process are as many as there may be")
        listener = self._listeners[number] = _Listener(self._owner.engine.reporter.listeners.listen())
        return listener

    def end(self, number: int) -> None:
        """End a listener."""
        listener = self._listeners.pop(number, None)
        if listener is not None:
            listener.stream.end()


def _facts(event: Event) -> dict[str, Any]:
    return asdict(replace(event, text=event.text[:_LONGEST]))
