"""Who hears what an owner says of a topic or a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from aiodq.wire.packets import Deliver, Figures, Gone

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Heard", "Listener"]

Heard: TypeAlias = Deliver | Gone | Figures
"""What an owner says of a topic or a channel without being asked."""


class Listener(Protocol):
    """Who hears what an owner says of a topic or a channel."""

    def reopened(self, epoch: int) -> None:
        """It is asked of another owner, which knows nothing of what was wanted and held before."""
        ...

    def opened(self, facts: Mapping[str, Any]) -> None:
        """The owner has opened it, and says what it is like."""
        ...

    def refused(self, error: Exception) -> None:
        """The owner will not open it, or it is no more."""
        ...

    def heard(self, said: Heard, epoch: int) -> None:
        """The owner has said something of it."""
        ...

    def told(self, error: Exception) -> None:
        """There is no owner, or it does not answer: who waits is to be told, and may try again."""
        ...
