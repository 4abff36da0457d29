"""A purge: drops everything that a topic has accepted so far, from its log and from every channel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.loop.futures import settle

if TYPE_CHECKING:
    from aiodq.engine.channel.acks.ack_persister import AckPersister
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.retention.segment_deletion import SegmentDeletion
    from aiodq.engine.topic.whole_topic import WholeTopic

__all__ = ["Purge"]

_AT_ONCE: Final = 50
"""Channels purged in one turn of the loop: about a millisecond."""


class Purge:
    """One purge of a topic."""

    def __init__(self, engine: WholeTopic, deletion: SegmentDeletion, persister: AckPersister) -> None:
        """Prepare; `run` does it."""
        self._engine = engine
        self._deletion = deletion
        self._persister = persister
        # What the channels that had their turn have dropped; None for one that has no state yet.
        self._counts: dict[ChannelEngine[Any], int | None] = {}
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Drop everything; return the number of messages.

        Cancellation: it is dropped anyway.
        """
        self._engine.submit(self._give_up, self._go_on)
        return await self._done

    def _give_up(self) -> int:
        """Make durable that everything written is given up; return the offset after it. Blocking."""
        log = self._engine.real_log()
        log.roll()
        log.description.give_up(log.end)
        return log.end

    def _go_on(self, end: int, error: Exception | None) -> None:
        if error is not None:
            settle(self._done, None, error)
        elif self._purge_some(end):
            settle(self._done, self._delete(end), None)
        else:
            self._engine.submit(lambda: end, self._go_on)

    def _purge_some(self, end: int) -> bool:
        """Drop everything below `end` from channels that had no turn yet; return whether all have had one now.

        What a channel delivers before its turn comes is as if it had been delivered before the purge.
        """
        if not self._counts:
            self._engine.tail.clear()
        left = [one for one in self._engine.channel_engines.values() if one not in self._counts]
        for channel_engine in left[:_AT_ONCE]:
            state = channel_engine.state
            self._counts[channel_engine] = None if state is None else state.purge(0, end)
            channel_engine.reset()
            self._persister.settled(channel_engine)
        return len(left) <= _AT_ONCE

    def _delete(self, end: int) -> int:
        """Delete everything below `end`, which all channels have dropped; return the number of messages."""
        engine = self._engine
        gone = tuple(segment for segment in engine.log.segments if segment.end <= end and segment.sealed)
        if gone:
            self._deletion.delete(gone, 0)
        engine.put_buffer.freed()
        found = [count for count in self._counts.values() if count is not None]
        return max(found) if found else sum(segment.records for segment in gone)
