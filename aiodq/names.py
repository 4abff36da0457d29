"""Names of topics and channels: NSQ's rule, minus the names that a file system may reject."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidNameError
from aiodq.values import shown, shown_typed

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["EPHEMERAL", "check_name", "check_topic_name", "is_ephemeral", "is_topic_name"]

EPHEMERAL: Final = "#ephemeral"
_VALID: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_LONGEST: Final = 64

_TAKEN: Final = "LOCK"
"""The only file beside the topics in a store's directory whose name could be a topic's: the others contain '#'."""

_RESERVED: Final = frozenset({_TAKEN.casefold(), "topic.json"})
_RESERVED_ENDS: Final = (".seg", ".aiodq-tmp")
"""A directory with such a name would make its parent look like a store, or look like an unfinished file."""


def is_ephemeral(name: str) -> bool:
    """Return whether a topic or channel of that name exists only in memory, until the store closes."""
    return name.endswith(EPHEMERAL)


def check_name(name: str, what: str = "topic") -> str:
    """Return `name` if a topic or channel may have it, as a plain `str`: a member of an Enum prints as something else.

    Args:
        name: 1 to 64 of `[.a-zA-Z0-9_-]`, optionally ending `#ephemeral`, which counts; not `.` and not `..`.
        what: the kind of thing, for the error.

    Raises:
        InvalidNameError: the name is not allowed.
    """
    if not isinstance(name, str) or len(name) > _LONGEST or not _VALID.fullmatch(name) or name in {".", ".."}:
        given = shown(name) if isinstance(name, str) else shown_typed(name)
        message = (
            f"{given} is no name for a {what}: 1 to {_LONGEST} of letters, digits, '.', '_' and '-', "
            f"optionally ending '{EPHEMERAL}'"
        )
        raise InvalidNameError(message)
    return str.__str__(name)


def check_topic_name(name: str, there: Container[str] = ()) -> str:
    """Return `name`, as `check_name` does, if a topic of that name may be created.

    Names are compared without case, as some file systems do: `lock` and `LOCK` are the same there.

    Args:
        name: as for `check_name`, and not one that a store needs for its own files.
        there: the existing topics of the store: they keep their names, even if those were reserved later.

    Raises:
        InvalidNameError: the name is not allowed.
    """
    name = check_name(name)
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
    """Return whether a topic of that name may be created."""
    try:
        check_topic_name(name)
    except InvalidNameError:
        return False
    return True
