"""The warning of a shared store whose opening waits for a process that serves no other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.engine.monitoring.one_line import one_line
from aiodq.engine.monitoring.reporter import STORE
from aiodq.errors import StorageError
from aiodq.shared.connection.finding.rendezvous import is_served
from aiodq.storage.io.lock import is_held_here, is_locked, lock_holder

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["warn_of_long_wait"]

_SILENT: Final = 1.0
"""Seconds for which an opening waits without a warning, and between two looks at who has the store."""


async def warn_of_long_wait(directory: str, failover: float, taking: Callable[[], bool]) -> None:
    """Log one warning if after a second some process has the store and does not serve it.

    Args:
        directory: the store's.
        failover: seconds that the opening may take.
        taking: whether the opening itself is about to have the store, which may take long, and to serve it.

    Cancellation: nothing is logged any more; the opening has ended.
    """
    while True:
        await asyncio.sleep(_SILENT)
        owner = None if taking() else _exclusive_owner(directory)
        if owner is not None:
            text = (
                f'{owner} has {directory} for itself, in mode "exclusive", or is still opening it: this waits until '
                f"it closes the store, up to {failover:g} s (failover)"
            )
            STORE.warning("%s", one_line(text), extra={"store": directory, "topic": None, "channel": None})
            return


def _exclusive_owner(directory: str) -> str | None:
    """Return the process that has the store and does not serve it, as part of a sentence; None if there is none."""
    try:
        if not is_locked(directory) or is_served(directory):
            return None
        holder = lock_holder(directory)
    except StorageError:
        return None  # there is no directory yet, for instance; the opening itself raises what matters
    if holder is None:
        return "an unknown process"
    return f"{holder}, which is this one," if is_held_here(directory) else str(holder)
