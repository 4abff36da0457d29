"""The options and pauses of a client's topics and channels, as last sent to it; sent again whenever they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.wire.packets import Done

if TYPE_CHECKING:
    from aiodq.shared.encoding.options_json import State
    from aiodq.shared.requests.serving import Wire

__all__ = ["SentStates"]

_CHANGING: Final = frozenset({"configure", "name", "pause"})


class SentStates:
    """The state last sent to one client, by handle, and the request that a change will answer."""

    def __init__(self, wire: Wire) -> None:
        """Start without handles."""
        self._wire = wire
        self._sent: dict[int, State] = {}
        self._requests: dict[int, int] = {}

    def note(self, handle: int, state: State) -> dict[str, Any]:
        """Note the state that is sent to a client now; return it as facts."""
        self._sent[handle] = state
        return state.facts()

    def ask(self, handle: int, request: int) -> None:
        """Answer this request once there is a change."""
        self._requests[handle] = request

    def look(self, handle: int, state: State) -> None:
        """Notify the client if there is a change and it has asked."""
        # Options are replaced, never modified: comparing an object with itself is cheap.
        if handle in self._requests and self._sent.get(handle) != state:
            self._wire.send(Done(None, self.note(handle, state)), self._requests.pop(handle))

    def assumed(self, handle: int, call: str) -> None:
        """Note that the client has made a call: if it assumes a change, it is sent the state afterwards."""
        if call in _CHANGING:
            self._sent.pop(handle, None)

    def ended(self, handle: int, error: Exception) -> None:
        """Answer that there will be no change, as the topic or channel was deleted."""
        self._sent.pop(handle, None)
        request = self._requests.pop(handle, None)
        if request is not None:
            self._wire.send(fail_of(error), request)
