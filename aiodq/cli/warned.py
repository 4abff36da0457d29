"""Showing the warnings that the library logs, as the errors of commands are shown."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiodq.cli.exits import complain

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["warnings_shown"]

_LIBRARY: Final = "aiodq"
"""The logger above all of the library's."""


class _Complaining(logging.Handler):
    """Writes each warning as one line to standard error; it is no error of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        complain(record.getMessage())


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Show warnings that are logged in the block on standard error."""
    logger, handler = logging.getLogger(_LIBRARY), _Complaining(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
