"""The requests that a process has sent over one connection, and that its owner has not answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.wire.packets import Packet

__all__ = ["PendingRequests"]

_MOST: Final = 0xFFFFFFFF
"""The highest number of a request; after it comes 1, as 0 is that of a packet that needs no answer."""


Pending: TypeAlias = "tuple[Callable[[Packet], None], bool]"
"""What is called with the answer, or with a substitute if none comes; and whether the request outlasts a stall."""


class PendingRequests(dict[int, Pending]):
    """The requests without an answer, by number, oldest first.

    Attributes:
        last: the number of the newest one.
    """

    def __init__(self) -> None:
        """Start without any."""
        super().__init__()
        self.last: int = 0

    def enter(self, then: Callable[[Packet], None], *, patient: bool) -> int:
        """Return the number of a new request, whose answer `then` is called with, which does not raise."""
        request = self.last % _MOST + 1
        while request in self:  # some are answered after days, or never
            request = request % _MOST + 1
        self.last = request
        self[request] = then, patient
        return request

    def end(self) -> Iterator[Callable[[Packet], None]]:
        """Remove all of them; return what is called for each."""
        ended = self.copy()
        self.clear()
        return (then for then, _ in ended.values())

    def end_impatient(self) -> list[Callable[[Packet], None]]:
        """Remove those that do not outlast a stall; return what is called for each."""
        ended = [request for request, (_, outlasts) in self.items() if not outlasts]
        return [self.pop(request)[0] for request in ended]
