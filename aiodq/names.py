"""Names of topics and channels: NSQ's rule (SYSTEMS row B1), and nothing that a file system could take amiss."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidNameError

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["EPHEMERAL", "check_name", "check_topic_name", "is_ephemeral", "is_topic_name"]

EPHEMERAL: Final = "#ephemeral"
_VALID: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_LONGEST: Final = 64

_TAKEN: Final = "LOCK"
"""What lies beside the topics in a store's directory and has no '#' in its name, which keeps everything else apart."""

_RESERVED: Final = frozenset({_TAKEN.casefold(), "topic.json"})
_RESERVED_ENDS: Final = (".seg", ".aiodq-tmp")
"""A directory of such a name makes the one above it look like a store, or passes for an unfinished file."""


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
        kind = "" if isinstance(name, str) else f" ({type(name).__name__})"
        message = (
            f"{name!r:.100}{kind} is no name for a {what}: 1 to {_LONGEST} of letters, digits, '.', '_' and '-', "
            f"optionally ending '{EPHEMERAL}'"
        )
        raise InvalidNameError(message)
    return name


def check_topic_name(name: str, there: Container[str] = ()) -> str:
    """Return `name` if a topic may be made that is called so.

    Names are compared as a file system would that takes `lock` and `LOCK` for one.

    Args:
        name: as for `check_name`, and none that a store needs for its own files.
        there: topics that a store has: such a one keeps its name, whatever is reserved since it was made.

    Raises:
        InvalidNameError: none may.
    """
    check_name(name)
    folded = name.casefold()
    if name != _TAKEN and name in there:
        return name
    if folded in _RESERVED or folded.endswith(_RESERVED_ENDS):
        message = (
            f"{name!r} is no name for a topic: a store needs it for its own files, as all that end "
            f"{' or '.join(map(repr, _RESERVED_ENDS))}; add to it, for example {name + '-1'!r}"
        )
        raise InvalidNameError(message)
    return name


def is_topic_name(name: str) -> bool:
    """Return whether a topic may be made that is called so."""
    try:
        check_topic_name(name)
    except InvalidNameError:
        return False
    return True
