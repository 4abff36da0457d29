"""Exit codes, and one clear line on standard error for whatever ends a command early."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

from aiodq.cli.output import printable
from aiodq.errors import (
    AiodqError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    MissingExtraError,
    NotAStoreError,
    ReadOnlyError,
    StoreLockedError,
    StoreNotFoundError,
)

__all__ = ["DONE", "INTERRUPTED", "MISUSE", "WRONG", "CommandError", "complain", "exit_code", "forget"]

DONE: Final = 0
WRONG: Final = 1
MISUSE: Final = 2
INTERRUPTED: Final = 128
"""Plus the signal's number, as shells have it."""

_MISUSES: Final = (
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    MissingExtraError,
    NotAStoreError,
    ReadOnlyError,
    StoreLockedError,
    StoreNotFoundError,
)


class CommandError(Exception):
    """A command cannot go on; its text is all that the user is told.

    Attributes:
        code: the exit code.
    """

    def __init__(self, message: str, code: int = MISUSE) -> None:
        """Keep the exit code beside the text."""
        super().__init__(message)
        self.code = code


def exit_code(error: AiodqError) -> int:
    """Return whether the caller is to blame (2), or what was found or happened (1)."""
    return MISUSE if isinstance(error, _MISUSES) else WRONG


def complain(message: object) -> None:
    """Write one line to standard error. If that cannot be written to, the exit code alone tells."""
    try:
        sys.stderr.write(f"aiodq: {printable(' '.join(str(message).split()))}\n")
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Have what is still buffered go nowhere, as Python would try to write it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
