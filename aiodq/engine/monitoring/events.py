"""Events: what happens in a store, for programs to listen to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias
from weakref import ref

from aiodq.engine.loop.futures import release, wait_in
from aiodq.uncopied import Uncopied

__all__ = ["Event", "EventBuffer", "EventKind", "Events", "Listeners"]

EventKind: TypeAlias = Literal["dead", "timeout", "dropped", "damage", "recovered", "failed", "alarm", "cleared"]

_MOST_BUFFERED: Final = 10_000
"""The most events that wait for listeners; beyond that, the oldest are dropped."""

_MOST_KEPT: Final = 1000
"""The most events of the opening that are kept for later listeners."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a store.

    Attributes:
        kind: `"dead"`: a message was given up, to the dead-letter topic or for good. `"timeout"`: a message was in
            flight for too long and is ready again. `"dropped"`: unacked messages were given up, by an overflow policy
            or by retention. `"damage"`: stored bytes cannot be read; they were quarantined. `"recovered"`: an
            unfinished write was truncated at opening. `"failed"`: the store has stopped. `"alarm"`,
            `"cleared"`: see `Alarm`; also, the store's path does not lead to its directory any more, or does again.
        topic: the topic's name, or None if the event concerns the store.
        channel: the channel's name, or None if it concerns the topic.
        offset: the message's offset; of several, the first one's. None if there is none.
        text: a description.
    """

    kind: EventKind
    topic: str | None = None
    channel: str | None = None
    offset: int | None = None
    text: str = ""


class EventBuffer:
    """The newest events, which any number of listeners read: each event is entered once.

    Attributes:
        end: the number of events so far.
        over: whether there will be no more.
    """

    def __init__(self, most: int = _MOST_BUFFERED) -> None:
        """Start empty; the newest `most` events are kept."""
        self.end: int = 0
        self.over: bool = False
        self._events: deque[Event] = deque(maxlen=most)
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def begin(self) -> int:
        """The number of the oldest event that is still there."""
        return self.end - len(self._events)

    def __getitem__(self, number: int) -> Event:
        """Return the event of that number, from `begin` up to `end`."""
        return self._events[number - self.begin]

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)
        self.end += 1
        self.wake()

    def finish(self) -> None:
        """Add no more."""
        self.over = True
        self.wake()

    async def wait(self) -> None:
        """Wait for `wake`.

        Cancellation: nothing changes.
        """
        await wait_in(self._waiting)

    def wake(self) -> None:
        """Wake all listeners: each checks whether there is an event for it."""
        release(self._waiting)


class Events(Uncopied, AsyncIterator[Event]):
    """The events of a store from now on, after those of its opening: `async for event in store.events()`.

    The iteration ends when the store is closed, once earlier events were seen. A slow listener loses the oldest events
    beyond 10,000; `dropped` counts them. Nothing needs to be closed: a listener without references gets no more events.

    Attributes:
        buffer: where the events come from.
    """

    def __init__(self, buffer: EventBuffer, earlier: Iterable[Event] = ()) -> None:
        """Start with the events of the opening, before what the buffer gets from now on; made by `Store.events`."""
        self.buffer: EventBuffer = buffer
        self._earlier: deque[Event] = deque(earlier)
        self._next = buffer.end
        self._lost = 0
        self._over = False

    def __repr__(self) -> str:
        """Show how far the listener is behind."""
        standing = "over" if self._is_over else "open"
        to_come = len(self._earlier) + self.buffer.end - max(self._next, self.buffer.begin)
        return f"<Events {standing}, {to_come} to come, {self.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """The number of events that this listener has lost by being slow."""
        return self._lost + max(self.buffer.begin - self._next, 0)

    @property
    def _is_over(self) -> bool:
        return self._over or self.buffer.over

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopAsyncIteration: the store is closed.

        Cancellation: no event is lost.
        """
        while (event := self.take()) is None:
            if self._is_over:
                raise StopAsyncIteration
            await self.buffer.wait()
        return event

    def take(self) -> Event | None:
        """Return the next event, or None if there is none yet."""
        if self._earlier:
            return self._earlier.popleft()
        if self._next >= self.buffer.end:
            return None
        self._lost, at = self.dropped, max(self._next, self.buffer.begin)
        self._next = at + 1
        return self.buffer[at]

    def put_back(self, event: Event) -> None:
        """Let this be the next event again."""
        self._earlier.appendleft(event)

    def lose(self, number: int) -> None:
        """Note that so many events were lost before they came here."""
        self._lost += number

    def end(self) -> None:
        """End the events of this listener, once earlier ones were seen."""
        self._over = True
        self.buffer.wake()


class Listeners:
    """The listeners of one store. Used only on its loop."""

    def __init__(self) -> None:
        """Start without listeners, before the opening."""
        # The listeners alone keep it.
        self._buffer: Callable[[], EventBuffer | None] = _nobody_listens
        self._kept: deque[Event] | None = deque(maxlen=_MOST_KEPT)
        self._of_opening: tuple[Event, ...] = ()
        self._over = False

    def __bool__(self) -> bool:
        """Return whether any listener would get an event."""
        return self._kept is not None or self._buffer() is not None

    def add(self, event: Event) -> None:
        """Pass an event to all listeners."""
        if self._kept is not None:
            self._kept.append(event)
        if (buffer := self._buffer()) is not None:
            buffer.add(event)

    def opened(self) -> None:
        """End the opening: its events are what every listener starts with."""
        if self._kept is not None:
            self._of_opening, self._kept = tuple(self._kept), None

    def listen(self) -> Events:
        """Return the events of a new listener."""
        buffer = self._buffer()
        if buffer is None:
            buffer = EventBuffer()
            buffer.over = self._over
            self._buffer = ref(buffer)
        return Events(buffer, self._of_opening)

    def end(self) -> None:
        """End the events of all listeners."""
        self._over = True
        if (buffer := self._buffer()) is not None:
            buffer.finish()


def _nobody_listens() -> None:
    """Return no buffer."""
