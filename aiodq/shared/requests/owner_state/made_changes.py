"""The changes that clients have asked for: one that a client repeats, as no owner has answered it, is made once.

Otherwise it would undo what others have changed since. A change has a number, chosen at random by its client. The owner
remembers those that it has made itself. It finds those of earlier owners on disk, in the write that made the change:
for options and pauses in a topic's description, for seeks in a channel's journal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import mark_retrieved, shielded
from aiodq.engine.loop.futures import surely
from aiodq.storage.log.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["MadeChanges", "is_noted", "is_sought", "is_superseded"]

_MOST: Final = 1000
"""Changes that an owner remembers: a client repeats one within seconds."""


class MadeChanges:
    """The changes that one owner has made, or is making."""

    def __init__(self) -> None:
        """Start without changes."""
        self._made: dict[int, asyncio.Task[None]] = {}
        self._over: deque[int] = deque()

    async def make(self, number: int, change: Callable[[], Coroutine[Any, Any, None]], *, known: bool) -> None:
        """Make a change, unless it is being made, or was made.

        Args:
            number: the change's; 0 if it has none, so that it is made in any case.
            change: makes it.
            known: whether an earlier owner has made it.

        Raises:
            AiodqError: as `change` raises it; the change may then be repeated.

        Cancellation: it is completed anyway.
        """
        if known and number not in self._made:
            return
        task = self._made.get(number)
        if task is None:
            task = asyncio.get_running_loop().create_task(change())
            task.add_done_callback(mark_retrieved)
            if number:
                self._remember(number, task)
        await shielded(task)

    def _remember(self, number: int, task: asyncio.Task[None]) -> None:
        while len(self._made) >= _MOST and self._over:
            self._made.pop(self._over.popleft(), None)  # there twice, if Ctrl-C came as its end was noted
        self._made[number] = task
        surely(task, partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        """Forget a change that was not made."""
        if task.cancelled() or task.exception() is not None:
            self._made.pop(number, None)
        else:
            self._over.append(number)


def is_noted(engine: TopicEngine, number: int) -> bool:
    """Return whether a change of a topic's or a channel's options, or a pause, was made."""
    return isinstance(engine.log, TopicLog) and number in engine.log.meta.changes


def is_superseded(engine: TopicEngine, number: int) -> bool:
    """Return whether a change of a topic's options was made, and its options were changed since.

    The last one is to be made again: what concerns the owner alone is not on disk.
    """
    return is_noted(engine, number) and engine.real_log().meta.configured != number


def is_sought(channel_engine: ChannelEngine[Any], number: int) -> bool:
    """Return whether an earlier owner has moved a channel as this number asked."""
    journal = channel_engine.journal
    return journal is not None and number in journal.seeks
