"""Events: what happens in a store, for programs that listen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias
from weakref import WeakSet

__all__ = ["Event", "EventKind", "Events", "Listeners"]

EventKind: TypeAlias = Literal["dead", "timeout", "dropped", "damage", "recovered", "failed", "alarm", "cleared"]

_MOST_BUFFERED: Final = 10_000
"""The most events that wait for one listener; beyond that, the oldest are dropped."""

_MOST_KEPT: Final = 1000
"""The most events of the opening that are kept for later listeners."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a store.

    Attributes:
        kind: `"dead"`: a message was given up, to the dead-letter topic or for good. `"timeout"`: a message was in
            flight for too long and is ready again. `"dropped"`: messages were given up that nobody had acked, by an
            overflow policy or by retention. `"damage"`: stored bytes cannot be read; they were quarantined.
            `"recovered"`: an unfinished write was cut off at opening. `"failed"`: the store has stopped. `"alarm"`,
            `"cleared"`: see `Alarm`.
        topic: the topic's name, or None if the event concerns the store.
        channel: the channel's name, or None if it concerns the topic.
        offset: the message's offset; of several, the first one's. None if there is none.
        text: what happened, in words.
    """

    kind: EventKind
    topic: str | None = None
    channel: str | None = None
    offset: int | None = None
    text: str = ""


class Events(AsyncIterator[Event]):
    """The events of a store from now on, after those of its opening: `async for event in store.events()`.

    The iteration ends when the store is closed, once earlier events were seen. A slow listener loses the oldest events
    beyond 10,000; `dropped` counts them. Nothing needs to be closed: a listener without references gets no more events.

    Attributes:
        dropped: the number of events that this listener has lost by being slow.
    """

    def __init__(self, earlier: Iterable[Event], most: int = _MOST_BUFFERED) -> None:
        """Start with the events of the opening; made by `Store.events`."""
        self.dropped: int = 0
        self._buffer: deque[Event] = deque(earlier)
        self._most = most
        self._over = False
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        """Return how far the listener is behind, in words."""
        return f"<Events {'over' if self._over else 'open'}, {len(self._buffer)} to come, {self.dropped} dropped>"

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopAsyncIteration: the store is closed.

        Cancellation: no event is lost.
        """
        while not self._buffer:
            if self._over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._buffer.popleft()

    def add(self, event: Event) -> None:
        """Add an event; called by the store."""
        if len(self._buffer) >= self._most:
            self._buffer.popleft()
            self.dropped += 1
        self._buffer.append(event)
        self._news.set()

    def end(self) -> None:
        """End the events; called by the store when it is closed."""
        self._over = True
        self._news.set()


class Listeners:
    """The listeners of one store. Used only on its loop."""

    def __init__(self) -> None:
        """Start without listeners, before the opening."""
        self._streams: WeakSet[Events] = WeakSet()
        self._kept: deque[Event] | None = deque(maxlen=_MOST_KEPT)
        self._of_opening: tuple[Event, ...] = ()
        self._over = False

    def __bool__(self) -> bool:
        """Return whether an event would be delivered to anybody."""
        return self._kept is not None or bool(self._streams)

    def add(self, event: Event) -> None:
        """Pass an event to all listeners."""
        if self._kept is not None:
            self._kept.append(event)
        for stream in self._streams:
            stream.add(event)

    def opened(self) -> None:
        """End the opening: its events are what every listener starts with."""
        if self._kept is not None:
            self._of_opening, self._kept = tuple(self._kept), None

    def listen(self) -> Events:
        """Return the events of a new listener."""
        stream = Events(self._of_opening)
        if self._over:
            stream.end()
        else:
            self._streams.add(stream)
        return stream

    def end(self) -> None:
        """End the events of all listeners."""
        self._over = True
        for stream in self._streams:
            stream.end()
