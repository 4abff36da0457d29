"""Showing channels what was written, as soon as it may be seen, and telling those who put it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from aiodq.engine.channel.addressed import addressed_in
from aiodq.errors import StoreFailedError
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.put_batch import Part
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.engine.topic.no_log import NoLog
    from aiodq.engine.topic.put_buffer import PutBuffer
    from aiodq.engine.topic.requests import Written
    from aiodq.engine.topic.syncer import Syncer
    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["Publisher", "ShownTopic"]


class ShownTopic(Protocol):
    """What is needed of the topic whose messages are shown: `aiodq.engine.topic.topic_engine.TopicEngine` has it."""

    name: str
    log: TopicLog | NoLog
    visible: int
    tail: TailCache
    lifetimes: Lifetimes
    metrics: StoreMetrics
    syncer: Syncer
    put_buffer: PutBuffer

    @property
    def channel_engines(self) -> Mapping[str, ChannelEngine[Any]]:
        """Its channels, by name."""
        ...

    def retain_soon(self) -> None:
        """Look for segments that may go, when nothing else is under way."""
        ...


class Publisher:
    """One per topic.

    What a transaction put is durable before it is in the log, so that it need not wait for the log's sync, only for
    what stands before it.

    Attributes:
        unsynced: what is written and waits for a sync, oldest first.
    """

    def __init__(self, engine: ShownTopic) -> None:
        """Publish for this topic."""
        self.unsynced: deque[tuple[Part, Batch]] = deque()
        self._engine = engine

    def written(self, serial: int, result: Written, *, durably: bool) -> None:
        """The segment writer is done with a batch; `durably`: it may be seen once it is synced.

        Raises:
            StoreFailedError: that is how it ended.
        """
        engine = self._engine
        pressing, messages = False, 0
        for part in result.parts:
            batch = Batch(part.first, part.time_ns, part.columns)
            messages += len(part.columns.bodies)
            if durably:
                pressing = pressing or part.columns.transaction is None
                self.unsynced.append((part, batch))
            else:
                self._publish(part, batch)
        if result.error is not None or engine.metrics.refusing:
            engine.metrics.written(engine.name, result.error)
        engine.syncer.wrote(serial, messages, pressing=pressing)
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

    def synced(self) -> None:
        """Show what a sync has made durable, and what needed none."""
        durable = self._engine.log.durable
        while self.unsynced:
            part, batch = self.unsynced[0]
            if batch.stop > durable and part.columns.transaction is None:
                return
            self._publish(part, batch)
            self.unsynced.popleft()

    def _publish(self, part: Part, batch: Batch) -> None:
        engine = self._engine
        engine.visible = batch.stop
        if batch.columns.expiries is not None:
            engine.lifetimes.note(batch.first, engine.log.begin)
        if engine.channel_engines:
            tail = engine.tail
            tail.append(batch, part.cost)
            addressed = addressed_in(batch)
            for channel_engine in engine.channel_engines.values():
                channel_engine.extend(batch)
                if addressed:
                    channel_engine.pass_over(addressed)
            if len(engine.channel_engines) == 1 or tail.cost * 2 > tail.limit:
                tail.trim(min(channel_engine.position for channel_engine in engine.channel_engines.values()))
        part.resolve()
        engine.put_buffer.done(part)

    def show(self, offset: int, time_ns: int, body: bytes) -> None:
        """Show channels a plain message that was written by itself."""
        engine = self._engine
        channel_engines = engine.channel_engines.values()
        ended = engine.tail.add(offset, time_ns, body)
        for channel_engine in channel_engines:
            channel_engine.extend_plain(offset + 1)
        if ended:
            engine.tail.trim(min(channel_engine.position for channel_engine in channel_engines))

    def show_many(self, batch: Batch, cost: int) -> None:
        """Show channels plain messages that were written by themselves, and cost so many bytes of memory."""
        engine = self._engine
        channel_engines = engine.channel_engines.values()
        if channel_engines:
            engine.tail.append(batch, cost)
            for channel_engine in channel_engines:
                channel_engine.extend_plain(batch.stop)
            engine.tail.trim(min(channel_engine.position for channel_engine in channel_engines))

    def adopted(self) -> None:
        """Show what the log holds now that did not come through here: channels read it from disk."""
        engine = self._engine
        engine.lifetimes.note(engine.visible, engine.log.begin)
        engine.visible = engine.log.end
        engine.tail.clear()  # it has no gap
        for channel_engine in engine.channel_engines.values():
            if channel_engine.state is not None:
                channel_engine.state.extend(engine.visible)
                channel_engine.wake()
        engine.retain_soon()

    def fail(self, error: Exception) -> None:
        """Tell everybody who waits."""
        for part, _ in self.unsynced:
            part.fail(error)
        self.unsynced.clear()
