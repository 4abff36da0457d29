"""The events of a store that another process owns, requested from the owner for listeners here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from aiodq.engine.monitoring.events import Event, EventBuffer, Events
from aiodq.errors import AiodqError, ProtocolError, StorageError
from aiodq.shared.encoding.stats_json import known_fields

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiodq.shared.connection.link import Link

__all__ = ["RemoteEvents"]

_AGAIN: Final = 0.5
"""Seconds after which the request is repeated if there was no owner."""


class RemoteEvents:
    """The listeners of one process.

    Events during a change of owners may be reported twice or not at all.
    """

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        """Use this link and this loop."""
        self._link = link
        self._loop = loop
        self._streams: dict[int, ref[Events]] = {}
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    def listen(self) -> Events:
        """Return a new listener's events, which end with the store, or once the listener is garbage collected."""
        stream = Events(EventBuffer())
        if self._over:
            stream.end()
            return stream
        self._number += 1
        number = self._number
        listening = self._do(self._listen(number))

        def dropped(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed, and the connection with it
                self._loop.call_soon_threadsafe(listening.cancel)

        self._streams[number] = ref(stream, dropped)
        return stream

    def _do(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self, number: int) -> None:
        try:
            while not self._over:
                try:
                    answer = await self._link.call("events", {"listener": number}, patient=True)
                    self._publish(number, answer.get("result"))
                except StorageError:  # nobody serves it, or who is to do so cannot, as on a full disk
                    await asyncio.sleep(_AGAIN)
                except AiodqError:
                    break
        except asyncio.CancelledError:
            if not self._over:
                self._do(self._stop_listening(number))
            raise
        finally:
            self._end(number)

    def _publish(self, number: int, answer: object) -> None:
        """Pass on what the owner sends.

        Raises:
            ProtocolError: the answer violates the protocol.
        """
        stream = self._streams[number]()
        if stream is None:
            return
        try:
            facts: dict[str, Any] = dict(cast("Any", answer))
            events = [Event(**known_fields(Event, each)) for each in facts["events"]]
            stream.lose(int(facts["dropped"]))
        except (TypeError, ValueError, KeyError) as cause:
            raise ProtocolError(f"these are no events: {answer!r:.100}") from cause
        for event in events:
            stream.buffer.add(event)

    def _end(self, number: int) -> None:
        stream = self._streams.pop(number, lambda: None)()
        if stream is not None:
            stream.end()

    async def _stop_listening(self, number: int) -> None:
        with suppress(AiodqError):
            await self._link.call("deaf", {"listener": number}, once=True)

    def close(self) -> None:
        """End all listeners, as the store is closed."""
        self._over = True
        for task in list(self._tasks):
            task.cancel()
        for number in list(self._streams):
            self._end(number)
