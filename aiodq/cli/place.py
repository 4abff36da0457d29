"""Paths that a command is given."""

from typing import Annotated

from cyclopts import Parameter

__all__ = ["Place"]


def _given(_: object, path: str) -> None:
    """Refuse an empty path: made absolute, it would be the current directory.

    Raises:
        ValueError: it is empty.
    """
    if not path:
        raise ValueError("The path is empty: is a variable not set?")


Place = Annotated[str, Parameter(validator=_given)]
"""The path of a store, of another directory, or of a file."""
