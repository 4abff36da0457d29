"""The epochs of owners: each number identifies one, and those made here also say which of two began later."""

from __future__ import annotations

import secrets
from typing import Final

__all__ = ["began_later", "new_epoch"]

_RANDOM: Final = 22
"""The lowest bits, 4 milliseconds' worth: the lowest one is 0, the others are random. Other versions set the lowest
one, and choose all others at random."""


_LATEST: Final = 1 << 62
"""No epoch is as large before the year 2116."""


def new_epoch(now_ns: int, before: int = 0) -> int:
    """Return the epoch of an owner that begins at this wall time, in nanoseconds; it is never 0, nor negative.

    Args:
        now_ns: the time.
        before: the epoch of an earlier owner, 0 if there was none: this one begins later, whatever the clock says.
    """
    earlier = before >> _RANDOM if 0 < before < _LATEST and not before & 1 else 0
    return max(now_ns >> _RANDOM, earlier + 1) << _RANDOM | secrets.randbits(_RANDOM - 1) << 1


def began_later(one: int, other: int) -> bool | None:
    """Return whether the owner with the first epoch began later than the other; None if that is not known."""
    # It is wrong if the wall clock was set back and the later owner did not know the earlier one's epoch (`#clients`):
    # then a message is redelivered that is in hand.
    moments = one >> _RANDOM, other >> _RANDOM
    return None if (one | other) & 1 or moments[0] == moments[1] else moments[0] > moments[1]
