"""The error for what a shared store cannot do."""

from __future__ import annotations

from aiodq.errors import ExclusiveOnlyError

__all__ = ["only_exclusive"]


def only_exclusive(what: str, instead: str = "") -> ExclusiveOnlyError:
    """Return the error for something that an owner cannot be asked for."""
    return ExclusiveOnlyError(
        f'{what} cannot be used yet in a store that is open in mode "shared" or "client"'
        + (f": {instead}" if instead else ', only in mode "exclusive"')
    )
