"""What a store cannot do that is shared."""

from __future__ import annotations

from aiodq.errors import ExclusiveOnlyError

__all__ = ["only_exclusive"]


def only_exclusive(what: str, instead: str = "") -> ExclusiveOnlyError:
    """Return the error for what cannot be asked of an owner."""
    return ExclusiveOnlyError(
        f'{what} cannot be used yet in a store that is open in mode "shared" or "client"'
        + (f": {instead}" if instead else ', only in mode "exclusive"')
    )
