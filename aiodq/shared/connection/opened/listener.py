"""The receiver of what an owner sends about a topic or a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from aiodq.wire.packets import Deliver, Figures, Gone

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Listener", "Notice"]

Notice: TypeAlias = Deliver | Gone | Figures
"""The packets that an owner sends about a topic or a channel without being asked."""


class Listener(Protocol):
    """The receiver of what an owner sends about a topic or a channel."""

    def reopened(self, epoch: int) -> None:
        """Note another owner, which knows nothing of what was wanted and held before."""
        ...

    def meant(self, epoch: int) -> Mapping[str, str] | None:
        """Return what tells it from another one of its name, as far as known; None if it is to be made if need be.

        Args:
            epoch: of the owner that is to open it.
        """
        ...

    def opened(self, facts: Mapping[str, Any]) -> None:
        """Note that the owner has opened it, with its options and state."""
        ...

    def changed(self, facts: Mapping[str, Any]) -> None:
        """Note the options and state, which any process may have changed."""
        ...

    def refused(self, error: Exception) -> None:
        """Note that the owner refuses to open it, or that it was deleted."""
        ...

    def receive(self, packet: Notice, epoch: int) -> None:
        """Handle a packet about it."""
        ...

    def leave(self) -> None:
        """Send what the owner has to know before this process leaves."""
        ...

    def fail_waiters(self, error: Exception) -> None:
        """Fail all waiters, as there is no owner or it does not answer; they may try again."""
        ...
