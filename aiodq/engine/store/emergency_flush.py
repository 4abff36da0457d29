"""The emergency flush, when the event loop ends while a store is open: writes what was accepted, closes everything."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from aiodq.engine.topic.commit.segment_writer import write_blocking
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import DiskFullError

if TYPE_CHECKING:
    from aiodq.clock import Clock
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["abandon", "flush_accepted"]


def flush_accepted(engine: TopicEngine, clock: Clock) -> None:
    """Write and sync what a topic accepted, and what was settled in it. Blocking.

    Raises:
        StorageError: some of it could not be written; the rest is.
    """
    engine.put_buffer.withdrawn()  # their tasks were cancelled with the loop
    # INVARIANT: puts not resolved here are failed when the ioLoop ends.
    parts = engine.in_writer = [*engine.in_writer, *engine.put_buffer.take_all()]
    if isinstance(engine.log, NoLog) or engine.log.closed:
        return  # it has no files, or was being closed and had written everything
    full: DiskFullError | None = None
    try:
        write_blocking(engine.log, parts, clock)
    except DiskFullError as error:
        full, parts = error, []
        engine.log.rollback()
        # INVARIANT: no ack is durable of a message that is not.
        engine.log.sync()
    unsynced = [part for part, _ in engine.publisher.unsynced]
    engine.publisher.unsynced.clear()
    try:
        engine.write_settled()
    finally:
        for part in (*unsynced, *parts):
            with suppress(RuntimeError):  # the waiters cannot be woken any more, as the loop is closed
                part.resolve()
    if full is not None:
        raise full


def abandon(engine: TopicEngine) -> None:
    """Close a topic's files.

    Raises:
        StorageError: as mapped from the system's error.
    """
    engine.abandoned = True
    with ExitStack() as closing:
        closing.callback(engine.log.abandon)
        for channel_engine in engine.channel_engines.values():
            if channel_engine.journal is not None:
                closing.callback(channel_engine.journal.close)
        closing.callback(engine.reader.close)
