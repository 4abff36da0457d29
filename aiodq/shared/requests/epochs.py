"""The epochs of owners: each number identifies one, and those made here also say which of two began later."""

from __future__ import annotations

import secrets
from typing import Final

__all__ = ["began_later", "new_epoch"]

_RANDOM: Final = 22
"""The lowest bits, 4 milliseconds' worth: the lowest one is 0, the others are random. Other versions set the lowest
one, and choose all others at random."""


def new_epoch(now_ns: int) -> int:
    """Return the epoch of an owner that begins at this wall time, in nanoseconds; it is never 0, nor negative."""
    return max(now_ns, 1 << _RANDOM) >> _RANDOM << _RANDOM | secrets.randbits(_RANDOM - 1) << 1


def began_later(one: int, other: int) -> bool | None:
    """Return whether the owner with the first epoch began later than the other; None if that is not known."""
    # A wall clock that was set back in between makes it wrong: then a message is redelivered that is in hand.
    moments = one >> _RANDOM, other >> _RANDOM
    return None if (one | other) & 1 or moments[0] == moments[1] else moments[0] > moments[1]
