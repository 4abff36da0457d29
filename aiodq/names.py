"""Names of topics and channels: NSQ's rule (SYSTEMS row B1), and nothing that a file system could take amiss."""

from __future__ import annotations

import re
from typing import Final

from aiodq.errors import InvalidNameError

__all__ = ["EPHEMERAL", "check_name", "is_ephemeral"]

EPHEMERAL: Final = "#ephemeral"
_VALID: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_LONGEST: Final = 64


def is_ephemeral(name: str) -> bool:
    """Return whether a topic or channel of that name lives in memory and ends with the store (SYSTEMS row B7)."""
    return name.endswith(EPHEMERAL)


def check_name(name: str, what: str = "topic") -> str:
    """Return `name` if a topic or channel may have it.

    Args:
        name: 1 to 64 of `[.a-zA-Z0-9_-]`, optionally ending `#ephemeral`, which counts; not `.` and not `..`.
        what: the kind of thing, for the error.

    Raises:
        InvalidNameError: it may not.
    """
    if not isinstance(name, str) or len(name) > _LONGEST or not _VALID.fullmatch(name) or name in {".", ".."}:
        message = (
            f"{name!r:.100} is no name for a {what}: 1 to {_LONGEST} of letters, digits, '.', '_' and '-', "
            f"optionally ending '{EPHEMERAL}'"
        )
        raise InvalidNameError(message)
    return name
