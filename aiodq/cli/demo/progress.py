"""The progress of the demonstration, on standard error: bars on a terminal, otherwise a line now and then."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Narrator", "narrator"]

_REDRAW: Final = 0.1
_LINE_EVERY: Final = 2.0


class Narrator:
    """Tells what happens.

    Attributes:
        put: lines whose puts were acknowledged.
        consumed: lines that consumers got for the first time.
    """

    def __init__(self, total: int) -> None:
        """Begin with nothing done of `total` lines."""
        self.put = 0
        self.consumed = 0
        self.total = total

    def say(self, text: str) -> None:
        """Tell of an event."""
        sys.stderr.write(text + "\n")

    def show(self) -> None:
        """Show how far it is."""
        self.say(f"put {self.put:,} of {self.total:,}, consumed {self.consumed:,}")

    def close(self) -> None:
        """Show it for the last time."""
        self.show()

    @property
    def pause(self) -> float:
        """Seconds between two shows."""
        return _LINE_EVERY


class _TerminalNarrator(Narrator):
    def __init__(self, total: int, console: Console) -> None:
        super().__init__(total)
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            expand=True,
        )
        self._put = self._progress.add_task("put", total=total, count="", speed="")
        self._consumed = self._progress.add_task("consumed", total=total, count="", speed="")
        self._progress.start()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def show(self) -> None:
        for task, done in ((self._put, self.put), (self._consumed, self.consumed)):
            speed = self._progress.tasks[task].speed
            shown = "" if speed is None else f"{speed:,.0f}/s"
            self._progress.update(task, completed=done, count=f"{done:,} of {self.total:,}", speed=shown)
        self._progress.refresh()

    def close(self) -> None:
        self.show()
        self._progress.stop()

    @property
    def pause(self) -> float:
        return _REDRAW


@asynccontextmanager
async def narrator(total: int) -> AsyncIterator[Narrator]:
    """Tell what happens for as long as the context lasts."""
    console = Console(stderr=True)
    told = _TerminalNarrator(total, console) if console.is_terminal else Narrator(total)
    task = asyncio.create_task(_keep_showing(told))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        told.close()


async def _keep_showing(told: Narrator) -> None:
    while True:
        await asyncio.sleep(told.pause)
        told.show()
