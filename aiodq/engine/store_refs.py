"""References that keep a store open: those of the handles that its user still has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StoreRef", "nobody"]


class StoreRef:
    """A reference to one store, held by everything that its user has of it, and by nothing of the engine.

    When the last handle is collected, so is this reference, and the engine closes itself.
    """

    __slots__ = ("__weakref__", "_dropped")

    def __init__(self, dropped: Callable[[], None]) -> None:
        """Call `dropped` when no handle is left: in any thread, between any two instructions."""
        self._dropped: Final = dropped

    def __del__(self) -> None:
        """Tell the engine."""
        self._dropped()


def nobody() -> object:
    """Return no reference: the `store_ref` of what belongs to no store."""
    return None
