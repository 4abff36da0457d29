"""When the event loop goes away under a store: what was accepted is written at once, and everything is closed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from aiodq.engine.unborn import UnbornLog
from aiodq.engine.writer import write_blocking

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.engine.ioloop import IoLoop

__all__ = ["abandon", "rescue"]


def rescue(ioloop: IoLoop, clock: Clock) -> None:
    """Write and sync what a topic accepted, and what was settled in it. Blocking.

    Raises:
        StorageError: it could not be.
    """
    ioloop.intake.withdrawn()  # their tasks were cancelled with the loop
    # INVARIANT: whoever is told nothing here, is told by the ioLoop's end.
    parts = ioloop.in_writer = [*ioloop.in_writer, *ioloop.intake.take_all()]
    if isinstance(ioloop.log, UnbornLog) or ioloop.log.closed:
        return  # it has no files, or was being closed and wrote them last
    write_blocking(ioloop.log, parts, clock)
    for part in (*(part for part, _ in ioloop.publisher.unsynced), *parts):
        part.resolve()
    ioloop.publisher.unsynced.clear()
    for outlet in ioloop.outlets.values():
        if outlet.journal is not None and outlet.state is not None and (ops := outlet.state.take_ops(*outlet.times())):
            outlet.journal.append(ops)
            outlet.journal.sync()


def abandon(ioloop: IoLoop) -> None:
    """Close a topic's files.

    Raises:
        StorageError: as mapped from the system's error.
    """
    ioloop.abandoned = True
    with ExitStack() as closing:
        closing.callback(ioloop.log.abandon)
        for outlet in ioloop.outlets.values():
            if outlet.journal is not None:
                closing.callback(outlet.journal.close)
        closing.callback(ioloop.reader.close)
