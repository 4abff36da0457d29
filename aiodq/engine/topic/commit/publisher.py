"""The publisher: makes messages visible to channels as soon as allowed, and resolves the futures of their puts."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.awaited import twice
from aiodq.engine.channel.addressed import addressed_in
from aiodq.engine.loop.futures import MOST_AT_ONCE
from aiodq.engine.topic.whole_topic import WholeTopic
from aiodq.errors import StoreFailedError
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.engine.batch.put_batch import Part
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.commit.segment_writer import Written
    from aiodq.engine.topic.commit.syncer import Syncer
    from aiodq.engine.topic.expirations import Expirations
    from aiodq.engine.topic.puts.put_buffer import PutBuffer

__all__ = ["Publisher", "ShownTopic"]

_NOTED_AT_ONCE: Final = 50
"""The most channels that are told of one message's delay or address in one turn of the loop: a millisecond's work."""

_A_LOOK: Final = 4
"""What it costs to see whom of a channel to wake, in getters that are woken."""

_A_CHANNEL: Final = 16
"""Messages in a batch that take as long to tell one channel of as the channel itself does."""


class ShownTopic(WholeTopic, Protocol):
    """What the publisher needs of a topic."""

    expirations: Expirations
    put_buffer: PutBuffer
    syncer: Syncer


class Publisher:
    """The publisher of one topic.

    The messages of a transaction are durable before they are in the log: they need not wait for the log's sync, only
    for the messages before them.

    Attributes:
        unsynced: the parts that are written and wait for a sync, oldest first.
    """

    __slots__ = ("_engine", "_furthest", "_untold", "unsynced")

    def __init__(self, engine: ShownTopic) -> None:
        """Publish for this topic."""
        self.unsynced: deque[tuple[Part, Batch]] = deque()
        self._engine = engine
        self._furthest: ChannelEngine[Any] | None = None
        # Of which dues and addresses channels are still to be told: the batch, the addresses in it, and the channels.
        self._untold: list[tuple[Batch, list[tuple[int, str]], deque[ChannelEngine[Any]]]] = []

    def written(self, serial: int, result: Written, *, durably: bool) -> None:
        """Handle a batch that the segment writer has ended; `durably`: it becomes visible once it is synced.

        Raises:
            StoreFailedError: the write ended with it.
        """
        engine = self._engine
        pressing = False
        # INVARIANT: nothing is shown before what was written before it, also if the policy has changed meanwhile.
        durably = durably or bool(self.unsynced)
        for part in result.parts:
            batch = Batch(part.first, part.time_ns, part.columns)
            if durably:
                pressing = pressing or part.columns.transaction is None
                self.unsynced.append((part, batch))
            else:
                self._publish(part, batch)
        if result.error is not None or engine.metrics.refusing:
            engine.metrics.written(engine.name, result.error)
        engine.syncer.wrote(serial, pressing=pressing)
        for part in result.failed:
            part.fail(result.error or StoreFailedError("the batch was not written"))
            engine.put_buffer.done(part)
        if isinstance(result.error, StoreFailedError):
            raise result.error
        if durably and engine.log.durable >= engine.log.end:
            engine.syncer.nothing_to_sync()
            pressing = False
        if not pressing or len(result.parts) > 1:
            self.synced()

    @property
    def early(self) -> Callable[[], None] | None:
        """The function to be called, in any thread, once everything written is durable; None if there is none."""
        parts = [part for part, _ in self.unsynced if part.origin is not None]
        return partial(_tell_early, parts) if parts else None

    def synced(self) -> int:
        """Publish what a sync has made durable, and what needed none; return the number of resolved waiters."""
        told, durable = 0, self._engine.log.durable
        while self.unsynced:
            part, batch = self.unsynced[0]
            if batch.stop > durable and part.columns.transaction is None:
                break
            self._publish(part, batch)
            self.unsynced.popleft()
            told += len(part.waiters)
        return told

    def _publish(self, part: Part, batch: Batch) -> None:
        engine = self._engine
        engine.visible = batch.stop
        if batch.columns.expiries is not None:
            engine.lifetimes.note(batch.first, engine.log.begin)
        if engine.channel_engines:
            ended = engine.tail.append(batch, part.cost)
            self._tell(batch)
            if ended and (len(engine.channel_engines) == 1 or engine.tail.cost * 2 > engine.tail.limit):
                self._trim()
        if len(part.waiters) <= MOST_AT_ONCE:
            part.resolve()
        else:
            part.resolve_receipts()  # a receipt is done once a later `sync` has returned
            self._resolve(part, 0)
        engine.put_buffer.done(part)

    def _resolve(self, part: Part, begin: int) -> None:
        """Resolve some of very many waiters of a part, and the others in later turns of the loop."""
        stop = begin + MOST_AT_ONCE
        if stop < len(part.waiters):
            self._engine.loop.call_soon(self._resolve, part, stop)
        part.resolve(begin, stop)

    def _tell(self, batch: Batch) -> None:
        """Tell channels about due times, times to live and addresses in a batch, and wake their getters."""
        engine, columns = self._engine, batch.columns
        addressed = [] if columns.headers is None else addressed_in(batch)
        if columns.dues is not None or addressed:
            self._untold.append((batch, addressed, deque(engine.channel_engines.values())))
            if len(self._untold) == 1:
                self._note_some()
        if columns.expiries is not None:
            engine.expirations.note(batch)
        if engine.waiting:
            self._wake()

    @property
    def has_untold(self) -> bool:
        """Whether channels are still to be told of what is visible: nothing is written that would have to wait, too."""
        return bool(self._untold)

    def _note_some(self) -> None:
        """Tell some channels of the dues and addresses in a batch, and the others in later turns of the loop.

        Until then, a channel finds out itself what it must not deliver yet, once it is that message's turn.
        """
        engine = self._engine
        batch, addressed, left = self._untold[0]
        for _ in range(min(max(_NOTED_AT_ONCE * _A_CHANNEL // (_A_CHANNEL + len(batch.columns.bodies)), 1), len(left))):
            channel_engine = left.popleft()
            if batch.columns.dues is not None:
                channel_engine.note_dues(batch)
            if addressed:
                channel_engine.pass_over(addressed)
        if not left:
            del self._untold[0]
        if self._untold:
            engine.group_commit.stop_inline()
            twice(engine.loop.call_soon, engine.guarded(self._note_others))

    def _note_others(self) -> None:
        if self._untold and not self._engine.stopped:
            self._note_some()
            if not self._untold:
                self._engine.turn()

    def _wake(self) -> None:
        """Wake the getters for which there are messages."""
        waiting, self._engine.waiting = self._engine.waiting, {}
        self._wake_each(iter(waiting))

    def _wake_each(self, channel_engines: Iterator[ChannelEngine[Any]]) -> None:
        """Wake getters channel by channel; if there are very many, those of other channels in a later turn."""
        engine, most = self._engine, MOST_AT_ONCE
        for channel_engine in channel_engines:
            before = channel_engine.waits
            channel_engine.wake()
            left = channel_engine.waits
            if left:
                engine.waiting[channel_engine] = None
            most -= before - left + _A_LOOK
            if most <= 0:
                engine.loop.call_soon(self._wake_each, channel_engines)
                break

    def _trim(self) -> None:
        """Drop from the tail what every channel has had.

        All of them are checked only if the one that was furthest behind does not need the oldest any more.
        """
        engine, furthest = self._engine, self._furthest
        if furthest is not None and engine.tail.needed(furthest.position):
            return
        self._furthest = min(engine.channel_engines.values(), key=_position)
        engine.tail.trim(self._furthest.position)

    def moved(self) -> None:
        """Note that a channel was created, deleted or moved."""
        self._furthest = None

    def shown(self, *, trim: bool) -> None:
        """Wake the getters for which there are messages: a plain message that was written inline is in the tail.

        Args:
            trim: whether to drop from the tail what every channel has had.
        """
        if self._engine.waiting:
            self._wake()
        if trim:
            self._trim()

    def show_many(self, batch: Batch, cost: int) -> None:
        """Publish messages that were written inline, with their cost in bytes of memory."""
        engine, columns = self._engine, batch.columns
        if columns.expiries is not None:
            engine.lifetimes.note(batch.first, engine.log.begin)
        if engine.channel_engines:
            ended = engine.tail.append(batch, cost)
            if columns.dues is not None or columns.expiries is not None or columns.headers is not None:
                self._tell(batch)
            elif engine.waiting:
                self._wake()
            if ended:
                self._trim()

    def adopted(self) -> None:
        """Publish adopted segments, which did not come through the open batch: channels read them from disk."""
        engine = self._engine
        engine.lifetimes.note(engine.visible, engine.log.begin)
        before, engine.visible = engine.visible, engine.log.end
        if engine.channel_engines:
            engine.expirations.look_from(before)
        engine.tail.clear()  # it must have no gap
        self._wake()
        engine.retain_soon()

    def fail(self, error: Exception) -> None:
        """Fail everything that waits for a sync."""
        for part, _ in self.unsynced:
            part.fail(error)
        self.unsynced.clear()
        self._untold.clear()


def _tell_early(parts: list[Part]) -> None:
    for part in parts:
        part.durable()


def _position(channel_engine: ChannelEngine[Any]) -> int:
    return channel_engine.position
