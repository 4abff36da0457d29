"""What commands take as arguments, beyond plain text."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

__all__ = ["Place", "whole"]


def _given(_: object, path: str | None) -> None:
    """Refuse an empty path: made absolute, it would be the current directory.

    Raises:
        ValueError: it is empty.
    """
    if path == "":
        raise ValueError("The path is empty: is a variable not set?")


def whole(_: object, tokens: Sequence[Token]) -> int:
    """Convert to a whole number; cyclopts itself rounds a fraction.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r:.80} is no whole number.") from None


Place = Annotated[str, Parameter(validator=_given)]
"""The path of a store, of another directory, or of a file."""
