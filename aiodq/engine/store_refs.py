"""What keeps a store open: handles that its user still has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StoreRef", "nobody"]


class Droppable(Protocol):
    """A store's engine."""

    def dropped(self) -> None:
        """Nobody has a handle any more. May be called from any thread, between any two instructions."""
        ...


class StoreRef:
    """One per store, held by everything that its user has of it, and by nothing of the engine.

    When the last handle is collected, so is this, and the engine ends itself.
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(self, engine: Droppable) -> None:
        """Let `engine` hear of the end."""
        self._engine: Final = engine

    def __del__(self) -> None:
        """Tell the engine."""
        self._engine.dropped()


def _no_lease() -> None:
    """Return nothing to hold."""


nobody: Final[Callable[[], object]] = _no_lease
"""Gives out no lease: of what belongs to no store."""
