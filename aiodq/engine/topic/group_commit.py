"""From a put into the log: at once where nothing is under way, else as a batch with what else came meanwhile."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.put_batch import OVERHEAD
from aiodq.errors import AiodqError, StoreFailedError
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.storage.log.active_segment import WRITE_BYTES
from aiodq.storage.log.topic_log import TopicLog

if TYPE_CHECKING:
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["GIVE_WAY", "NOT_NOW", "GroupCommit"]

NOT_NOW: Final = -1
"""What stands for an offset where a put has to wait for something, if only for its error."""

GIVE_WAY: Final = -2
"""Likewise, where the caller has held the loop for so long that others are to have their turn first."""

_BYTES: Final = {bytes}
_LONGEST_RUN: Final = 1024
"""So many puts at once after which others have their turn although no time went by, as on a clock that stands still."""


class GroupCommit:
    """One per topic.

    Attributes:
        inline: a plain put may be written in the caller's own step, without a future and without a turn of the loop:
            nothing is written, waits or rolls, no operation runs or is asked for, the topic has its files, and the
            policy does not ask for a sync. INVARIANT: whatever changes one of these clears it before the next put; only
            `look`, at the end of the ioLoop's turn, sets it.
    """

    def __init__(self, engine: TopicEngine, host: TopicEngineHost) -> None:
        """Begin with what every topic begins with: its files are to be made or looked at."""
        self.inline: bool = False
        self._engine = engine
        self._host = host
        self._loop = host.loop
        self._turns = host.turns
        self._now_ns = host.clock.now_ns
        self._monotonic = host.clock.monotonic
        self._least = self._most = 0
        self._bounded = False
        self._log: TopicLog | None = None

    def stop_inline(self) -> None:
        """Let no put be written at once before the ioLoop has had a turn."""
        self.inline = False

    def look(self) -> None:
        """See whether the next put may be written at once."""
        engine, host = self._engine, self._host
        log, options, put_buffer = engine.log, engine.options, engine.put_buffer
        self.inline = (
            engine.at_rest
            and put_buffer.at_rest
            and host.usable
            and options.sync != "always"
            and isinstance(log, TopicLog)
            and log.options.codec == CODEC_NONE
            and engine.creation.at_rest
            and engine.effective_options.at_rest
            and engine.name not in engine.metrics.refusing
            and not engine.retention.begun
        )
        if self.inline and isinstance(log, TopicLog):
            self._log = log
            self._least, self._most = options.min_message_bytes, min(options.max_message_bytes, WRITE_BYTES - OVERHEAD)
            self._bounded = put_buffer.bounded

    def _free(self, cost: int) -> bool:
        """Return whether so many bytes of memory may be written at once, as far as that does not show in `inline`."""
        try:
            here = get_running_loop() is self._loop
        except RuntimeError:  # there is none in this thread
            here = False
        return here and cost <= WRITE_BYTES

    def put_many_now(self, bodies: list[bytes], cost: int, *, gave_way: bool = False) -> int:
        """Write messages at once, all or none; return the first offset, or what `put_now` returns in its place.

        Args:
            bodies: such as `plain_cost` has looked at.
            cost: their bytes of memory.
            gave_way: the caller has just done so.

        Raises:
            As `put_now`.
        """
        log, engine = self._log, self._engine
        if not self.inline or log is None or not self._free(cost) or not log.ready:
            return NOT_NOW
        if self._bounded and not engine.put_buffer.has_room(len(bodies), cost):
            return NOT_NOW
        now = self._monotonic()
        if not gave_way and now >= self._turns.until and self._turns.over(now):
            return GIVE_WAY
        time_ns = self._now_ns()
        columns = Columns(bodies)
        try:
            span = log.stage(columns, time_ns, atomic=True)
            if span is None:
                return NOT_NOW
            log.flush()
            log.commit()
        except Exception as error:
            self._failed(log, error)
            raise
        try:
            self._count(engine, span[1], len(bodies), now)
            engine.publisher.show_many(Batch(span[0], time_ns, columns), cost)
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self._stop(error)
        return span[0]

    def plain_cost(self, bodies: list[Any]) -> int | None:
        """Return the bytes of memory of messages that are nothing but bodies; None where one is not, or may not be put.

        No statement of Python's is executed for each of them.
        """
        if set(map(type, bodies)) != _BYTES:
            return None
        sizes, options = list(map(len, bodies)), self._engine.options
        if min(sizes) < options.min_message_bytes or max(sizes) > options.max_message_bytes:
            return None
        return sum(sizes) + OVERHEAD * len(sizes)

    def put_now(self, body: object, *, gave_way: bool = False) -> int:
        """Write a message at once; return its offset, or `NOT_NOW` or `GIVE_WAY`.

        Raises:
            DiskFullError: no space; nothing was written, and later puts may succeed.
            StorageError: nothing was written.
            StoreFailedError: the store has stopped.
        """
        if not self.inline or type(body) is not bytes or not self._least <= len(body) <= self._most:
            return NOT_NOW
        try:
            here = get_running_loop() is self._loop
        except RuntimeError:  # there is none in this thread
            here = False
        log, engine = self._log, self._engine
        if not here or log is None or (self._bounded and not engine.put_buffer.has_room(1, len(body) + OVERHEAD)):
            return NOT_NOW
        now = self._monotonic()
        if not gave_way and (now >= self._turns.until or not engine.serial % _LONGEST_RUN) and self._turns.over(now):
            return GIVE_WAY
        time_ns = self._now_ns()
        try:
            offset = log.append(body, time_ns)
        except Exception as error:
            self._failed(log, error)
            raise
        if offset < 0:
            return NOT_NOW
        try:
            self._count(engine, offset + 1, 1, now)
            if engine.channel_engines:
                engine.publisher.show(offset, time_ns, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self._stop(error)
        return offset

    def _count(self, engine: TopicEngine, stop: int, messages: int, now: float) -> None:
        """The log has grown up to before `stop`, by a batch that nobody waits for."""
        engine.serial = serial = engine.taken = engine.serial + 1
        engine.visible = stop
        engine.retention.written_at = now
        engine.syncer.wrote_inline(serial, messages)
        if not engine.stirred:
            engine.stir()

    def _failed(self, log: TopicLog, error: Exception) -> None:
        """A write has failed: forget it, or stop the store where nobody knows what came of it."""
        self.inline = False
        log.rollback()
        if not isinstance(error, AiodqError) or isinstance(error, StoreFailedError):
            self._stop(error)
        self._engine.metrics.written(self._engine.name, error)

    def _stop(self, error: Exception) -> None:
        self._host.fail(error)
        self._host.check()
