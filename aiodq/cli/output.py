"""The console that commands and their help are written to."""

from __future__ import annotations

from rich.console import Console

__all__ = ["Output"]


class Output(Console):
    """A console that leaves it to the caller what it means that nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Let the error pass that is being handled.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError
