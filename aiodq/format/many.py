"""What is done with each of very many values, in the quickest way: compiled, by a loop, else by one call for all."""

from __future__ import annotations

from io import BytesIO
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMPILED", "all_are", "cut", "measured"]


def all_are(items: list[Any], kind: type) -> bool:
    """Return whether all of these are of just this type, not of a subclass."""
    if not COMPILED:
        # To count those of other types takes a call for each, so the first one is asked.
        return not items or (type(items[0]) is kind and list(map(type, items)).count(kind) == len(items))
    for item in items:  # noqa: SIM110 - a loop is the quickest if it is compiled
        if type(item) is not kind:
            return False
    return True


def measured(values: list[bytes]) -> tuple[list[int], int]:
    """Return how many bytes each of these has, and all of them together."""
    if not COMPILED:
        lengths = list(map(len, values))
        return lengths, sum(lengths)
    found: list[int] = []
    total = 0
    for value in values:
        length = len(value)
        found.append(length)
        total += length
    return found, total


def cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Return the parts that `data` consists of, which have these lengths."""
    if not COMPILED:
        # To slice in a loop takes twice as long.
        return list(map(BytesIO(data).read, lengths))
    parts: list[bytes] = []
    begin = 0
    for length in lengths:
        end = begin + length
        parts.append(data[begin:end])
        begin = end
    return parts


COMPILED: Final = not isinstance(all_are, FunctionType)
"""Whether this module, and with it all that gain from it, is compiled."""
