"""References that keep a store open: each handle of a store holds one."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StoreRefs", "nobody"]


class StoreRef:
    """A reference to one store, held by all handles of it, and never by the engine.

    When the last handle is collected, so is this reference, and the engine closes itself.
    """

    __slots__ = ("__weakref__", "_dropped")

    def __init__(self, dropped: Callable[[], None]) -> None:
        """Call `dropped` when no handle is left; it may run in any thread, between any two instructions."""
        self._dropped: Final = dropped

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Tell the engine.

        Args:
            ending: whether the interpreter ends. What closes a store may be gone by then, and the kernel releases it.
        """
        try:
            self._dropped()
        except Exception as error:
            if isinstance(error, Warning) or not ending():
                raise


class StoreRefs:
    """Gives all handles of one store the same reference, for as long as one of them has it."""

    __slots__ = ("_dropped", "_ref")

    def __init__(self, dropped: Callable[[], None]) -> None:
        """See `StoreRef`."""
        self._dropped = dropped
        self._ref: weakref.ref[StoreRef] | None = None

    def get(self) -> object:
        """Return the reference that a handle holds to keep the store open; None if the store is being dropped."""
        if self._ref is None:
            store_ref = StoreRef(self._dropped)
            self._ref = weakref.ref(store_ref)
            return store_ref
        return self._ref()


def nobody() -> object:
    """Return no reference: the `store_ref` of messages that belong to no store."""
    return None
