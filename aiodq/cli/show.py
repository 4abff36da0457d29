"""Output for people and programs: sizes, rates, tables, JSON, consoles, and progress."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from aiodq.cli.output import Output, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from aiodq.storage.read.stored_message import StoredMessage

__all__ = [
    "Meter",
    "body_form",
    "counted",
    "figures_table",
    "human_bytes",
    "message_fields",
    "print_json",
    "rate",
    "so_far",
    "stdout",
]

_SECONDS_BEFORE_BAR: Final = 1.0
"""Seconds before a progress bar appears."""

_STEP: Final = 1000
"""One unit of a size in the next smaller one."""

_WIDTH: Final = 160
"""Columns where there is no terminal to ask."""

_NARROW: Final = 80
"""Columns that a table of figures has to do with."""

_NARROWEST: Final = 8
"""Columns that a name has at least; a longer one goes on below."""


def stdout() -> Console:
    """Return a console on standard output, without markup."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Output(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def human_bytes(size: float) -> str:
    """Return a size as text, in units of powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} TB"


def counted(number: int, thing: str) -> str:
    """Return a number and what it counts."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def so_far(messages: int) -> str:
    """Return what to add to the reason why a command that puts cannot go on."""
    was = "was" if messages == 1 else "were"
    return f"; before that, {counted(messages, 'message')} {was} put" if messages else ""


def rate(amount: float, seconds: float) -> float:
    """Return the amount per second, even if no time has passed."""
    return amount / max(seconds, 1e-9)


def figures_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of names and figures, with space between the columns if there is any."""
    headers = [names[0], *(name.replace(" ", "\n") for name in names[1:])]
    columns = list(zip(headers, *rows, strict=True))
    wide = _NARROWEST + sum(max(len(part) for cell in column for part in cell.split("\n")) for column in columns[1:])
    roomy = wide + 3 * (len(names) - 1) <= _NARROW
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1 if roomy else 0))
    table.add_column(headers[0], overflow="fold", min_width=_NARROWEST)
    for header in headers[1:]:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _body_fields(body: bytes) -> dict[str, str]:
    """Return a body for JSON: as text if it is UTF-8, otherwise in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def body_form() -> Callable[[bytes], bytes]:
    """Return the function that makes a body a line of output: on a terminal with control characters escaped."""
    return _shown_line if sys.stdout.isatty() else _line


def _shown_line(body: bytes) -> bytes:
    return _line(printable(body.decode(errors="backslashreplace")).encode())


def _line(body: bytes) -> bytes:
    return body + b"\n"


def message_fields(message: StoredMessage) -> dict[str, Any]:
    """Return a message for JSON. A key is shown as a body is."""
    shown: dict[str, Any] = {
        "offset": message.offset,
        "timestamp": message.timestamp.isoformat(),
        "timestamp_ns": message.timestamp_ns,
    }
    if message.tag is not None:
        shown["tag"] = message.tag
    if message.key is not None:
        shown |= {f"key{name.removeprefix('body')}": value for name, value in _body_fields(message.key).items()}
    if message.headers:
        shown["headers"] = dict(message.headers)
    return shown | _body_fields(message.body)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Write a value to standard output as one JSON document; it may consist of dataclasses and named tuples."""
    sys.stdout.write(json.dumps(_plain(value), indent=indent) + "\n")


def _plain(value: object) -> object:
    """Return a value in JSON's types: dataclasses and named tuples as objects."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class Meter:
    """Progress in bytes on standard error, if that is a terminal, and if it takes more than a second."""

    def __init__(self, what: str, total: int | None = None) -> None:
        """Prepare.

        Args:
            what: what is being done.
            total: bytes; None if unknown.
        """
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        """Begin to count."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def advance(self, size: int, detail: str = "") -> None:
        """Count bytes; `detail` replaces the text after the bar."""
        self._done += size
        if self._progress is None:
            if time.monotonic() - self._began < _SECONDS_BEFORE_BAR or not sys.stderr.isatty():
                return
            self._progress = self._start()
        self._progress.update(self._progress.task_ids[0], completed=self._done, detail=detail)

    def _start(self) -> Progress:
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(stderr=True),
            transient=True,
        )
        progress.add_task(self._what, total=self._total, detail="")
        progress.start()
        return progress
