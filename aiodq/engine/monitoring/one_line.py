"""Text from outside as part of one line of a log: a line break in it would let it forge the next line."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    r"""Return text on one line: a line break, with the white space around it, becomes a space.

    What else is not printable is escaped, `\x1b`, `\udcff`: control characters, by which a terminal can be changed, and
    what is no Unicode, as in the name of a file.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in " ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
