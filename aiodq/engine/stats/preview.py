"""A preview of the state of a channel being created, from what is in memory, so that its counts are right at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.delivery.channel_state import ChannelState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["state_of"]

_MOST: Final = 10_000
"""The most deferred messages of another channel to go through, as the event loop waits meanwhile."""


def state_of(engine: TopicEngine, channel_engine: ChannelEngine[Any]) -> ChannelState | None:
    """Return a channel's state; if it is being created, a preview that nothing else knows of.

    Nothing is delivered from a preview, so that nothing is settled in a channel that a power cut may undo.
    """
    if channel_engine.state is not None or channel_engine.preview is None or channel_engine.error is not None:
        return channel_engine.state
    begin = max(channel_engine.preview, engine.log.begin)  # retention may have passed the offset where it was to begin
    state = ChannelState(begin, engine.visible, channel_engine.options.max_in_flight)
    if state.depth:
        for offset, due in _dues(engine, channel_engine, begin):
            state.defer(offset, due)
    return state


def _dues(engine: TopicEngine, channel_engine: ChannelEngine[Any], begin: int) -> Iterator[tuple[int, int]]:
    """Yield the delayed messages and when they are due, from the log's tail and from what other channels know."""
    wall, now = channel_engine.times()
    for batch in engine.tail.since(begin):
        for offset, due in enumerate(batch.columns.dues or (), batch.first):
            if due > wall:
                yield offset, now + due - wall
    for other in list(engine.channel_engines.values()):
        state = other.state
        if state is not None and len(state.deferred) <= _MOST:
            # A message that was delivered before was deferred for that channel alone.
            yield from ((offset, due) for offset, due in state.deferred if not state.attempts(offset))
