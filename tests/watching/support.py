"""What these tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    import pytest

    import aiodq
    from aiodq.engine.monitoring.events import Events

__all__ = ["at_hand", "flip", "kinds", "told"]


def at_hand(events: Events) -> list[aiodq.Event]:
    """Take the events that are there already."""
    found: list[aiodq.Event] = []
    while True:
        step = events.__anext__()
        try:
            step.send(None)
        except StopIteration as taken:
            found.append(taken.value)
        except StopAsyncIteration:
            return found
        else:
            step.close()
            return found


def told(lines: pytest.LogCaptureFixture, logger: str, level: int) -> list[logging.LogRecord]:
    """Return what one logger said at one level."""
    return [record for record in lines.records if record.name == logger and record.levelno == level]


def flip(fs: Any, path: str, position: int) -> None:
    """Change a byte of a file behind the store's back."""
    file = fs.open(path, write=True)
    byte = file.read_at(1, position)[0]
    file.write_at([bytes([byte ^ 0xFF])], position)
    file.close()


def kinds(events: Iterable[aiodq.Event]) -> list[str]:
    return [event.kind for event in events]
