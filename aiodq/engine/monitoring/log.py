"""A wrapper of a standard logger for engines: errors of the program's filters and handlers do not reach the engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Log"]


class Log:
    """A standard logger that raises no error of a filter or a handler.

    `logging` itself catches errors while a handler formats and writes a record, but not those of a filter, or of a
    handler that does not use `handleError`. Such an error would end a `consume`, or stop a store in the middle of a
    change. It is printed as `logging` prints its own.
    """

    def __init__(self, name: str) -> None:
        """Write to the logger of that name."""
        self._logger = logging.getLogger(name)

    def info(self, text: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Log at INFO."""
        self._write(logging.INFO, text, args, None, extra)

    def warning(
        self, text: str, *args: object, exc_info: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Log at WARNING."""
        self._write(logging.WARNING, text, args, exc_info, extra)

    def error(
        self, text: str, *args: object, exc_info: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        """Log at ERROR."""
        self._write(logging.ERROR, text, args, exc_info, extra)

    def _write(
        self, level: int, text: str, args: tuple[object, ...], exc_info: BaseException | None,
        extra: Mapping[str, object] | None,
    ) -> None:  # fmt: skip
        try:
            # The stack level makes the record name the caller's line, not one of these.
            self._logger.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=3)
        except Exception:  # noqa: BLE001 - it is the program's own, whatever it is
            record = logging.LogRecord(self._logger.name, level, __file__, 0, text, args, None)
            logging.Handler().handleError(record)
