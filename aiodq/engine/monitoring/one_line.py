"""Text from outside in a line of the log: with a line break in it, it could forge the next line."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    r"""Return text on one line: a line break, with the white space around it, becomes a space.

    Other unprintable characters are escaped, `\x1b`, `\udcff`: control characters, which a terminal would obey, and
    lone surrogates, as in file names that are not Unicode.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in " ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
