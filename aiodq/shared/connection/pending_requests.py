"""The requests that a process has sent over one connection, and that its owner has not answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.wire.packets import Packet

__all__ = ["PendingRequests"]

_MOST: Final = 0xFFFFFFFF
"""The highest number of a request; after it comes 1, as 0 is that of a packet that needs no answer."""


class PendingRequests:
    """What is called with the answer to each request, by the request's number.

    Attributes:
        last: the number of the newest one.
    """

    def __init__(self) -> None:
        """Start without any."""
        self.last: int = 0
        self._pending: dict[int, tuple[Callable[[Packet], None], bool]] = {}

    def __contains__(self, request: int) -> bool:
        """Return whether a request is unanswered."""
        return request in self._pending

    def enter(self, then: Callable[[Packet], None], *, patient: bool) -> int:
        """Return the number of a new request, whose answer `then` is called with.

        Args:
            then: it must not raise.
            patient: a stalled owner does not end the request.
        """
        request = self.last % _MOST + 1
        while request in self._pending:  # some are answered after days, or never
            request = request % _MOST + 1
        self.last = request
        self._pending[request] = then, patient
        return request

    def answered(self, request: int, packet: Packet) -> None:
        """Handle an answer; one to a request that was ended meanwhile changes nothing."""
        then, _ = self._pending.pop(request, (None, False))
        if then is not None:
            then(packet)

    def take(self) -> list[Callable[[Packet], None]]:
        """Return what is called with the answers, oldest first, and have no request any more."""
        taken, self._pending = self._pending, {}
        return [then for then, _ in taken.values()]

    def end_impatient(self, packet: Packet) -> None:
        """Answer all those that a stalled owner ends."""
        for request, (then, patient) in list(self._pending.items()):
            if not patient:
                del self._pending[request]
                then(packet)
