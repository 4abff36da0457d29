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
    """A command cannot go on; the user sees only its text.

    Attributes:
        code: the exit code.
    """

    def __init__(self, message: str, code: int = MISUSE) -> None:
        """Keep the exit code beside the text."""
        super().__init__(message)
        self.code = code


def exit_code(error: AiodqError) -> int:
    """Return 2 if the caller misused the command, otherwise 1."""
    return MISUSE if isinstance(error, _MISUSES) else WRONG


def complain(message: object) -> None:
    """Write one line to standard error. If that is impossible, only the exit code shows the failure."""
    try:
        sys.stderr.write(f"aiodq: {printable(' '.join(str(message).split()))}\n")
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Discard a stream's buffer, which Python would otherwise try to write again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
