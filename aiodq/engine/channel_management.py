"""Making channels and deleting them, while the topic goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.opening import open_channel
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.topic.effective_options import check_channel
from aiodq.errors import AiodqError, StoreFailedError
from aiodq.names import is_ephemeral
from aiodq.storage.read.delayed_index import delayed
from aiodq.storage.state.assessment import channel_directory
from aiodq.storage.store_layout import remove_channel_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.options import ChannelOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["create_channel", "delete_channel", "make_now", "pause_channel", "pause_topic"]

_LONGEST_HOLD: Final = 0.5
"""Seconds for which the loop is held at most until a channel is on disk."""


def create_channel(
    fs: FileSystem, engine: TopicEngine, channel_engine: ChannelEngine[Any], start: Callable[[TopicLog], int]
) -> None:
    """Make a new channel durable; it delivers from then on, and no later put returns before.

    Where that fails, what is put meanwhile is refused, the next put tries again, and nothing that the
    channel is to see is deleted.

    Args:
        fs: where the channel's files are to be; where not with the topic's, nothing of it is durable.
        engine: the topic's.
        channel_engine: the channel's, without a state.
        start: tells the offset at which it begins.
    """
    engine.creation.create()
    engine.creation.make_channel(_NewChannel(fs, engine, channel_engine, start))


def make_now(engine: TopicEngine, channel_engine: ChannelEngine[Any]) -> None:
    """Hold the loop until a channel that was just named is on disk, for who wants a message of it in this step.

    That is a sync or two. Where it has to wait for more than those, or they take long, it is left to later turns.

    Raises:
        StorageError: it could not be made.
    """
    deadline = engine.clock.monotonic() + _LONGEST_HOLD
    while channel_engine.state is None and not engine.stopped:
        engine.turn()
        if not (engine.exclusive_work.running or engine.syncer.busy):
            break
        if not engine.exclusive_work.wait_here(deadline - engine.clock.monotonic()):
            break
    engine.creation.check(channel_engine.name)


class _NewChannel:
    """See `aiodq.engine.topic.creation.NewChannel`."""

    def __init__(
        self, fs: FileSystem, engine: TopicEngine, channel_engine: ChannelEngine[Any], start: Callable[[TopicLog], int]
    ) -> None:
        self.name: str = channel_engine.name
        self.begin: int | None = None
        self.durable: bool = True
        self._fs = fs
        self._engine = engine
        self._channel_engine = channel_engine
        self._start = start
        self._opened: tuple[ChannelJournal, ChannelState] | None = None

    def open(self, log: TopicLog) -> None:
        fs, begin = self._fs, self.begin
        self.durable = fs is log.fs
        self.begin = begin = self._start(log) if begin is None else max(begin, log.begin)
        if self.name not in log.meta.channels:
            # CRASH: of one that was deleted, or half made, the files may be there; what they say is not of this one.
            remove_channel_files(fs, channel_directory(log.directory, self.name))
        dues: Iterable[tuple[int, int, int]] = delayed(log.fs, log.view()) if begin < log.end else ()
        self._opened = open_channel(fs, self._engine.clock, log, self.name, begin, dues)

    def discard(self) -> None:
        if self._opened is not None:
            journal, self._opened = self._opened[0], None
            journal.close()

    def record(self) -> ChannelOptions | None:
        return self._engine.effective_options.channel_record(self.name)

    def finish(self, error: Exception | None) -> None:
        engine, channel_engine = self._engine, self._channel_engine
        opened, self._opened = self._opened, None
        if error is None and opened is not None:
            _attach(engine, channel_engine, *opened)
            return
        if opened is not None:
            opened[0].close()
        if isinstance(error, AiodqError) and not isinstance(error, StoreFailedError):
            channel_engine.end_getters(error)
            engine.creation.put_off(self.name, self._again, error)
        elif error is not None:
            engine.channel_engines.pop(self.name, None)
            channel_engine.end(error)

    def _again(self) -> None:
        if self._engine.channel_engines.get(self.name) is self._channel_engine:
            self._engine.creation.make_channel(self, after=0)


def _attach(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], journal: ChannelJournal, state: ChannelState
) -> None:
    if engine.abandoned:
        journal.close()
        return
    try:
        channel_engine.attach(journal, state)
    except BaseException:
        channel_engine.journal = None
        journal.close()
        raise
    engine.effective_options.look_at(channel_engine)
    engine.attached(channel_engine)
    engine.reporter.channel_made(engine.name, channel_engine.name, state.floor)


async def delete_channel(fs: FileSystem, engine: TopicEngine, channel_engine: ChannelEngine[Any]) -> None:
    """End a channel and delete its files. What only it held back may go then. One that is not there is fine.

    Raises:
        StorageError: as mapped from the system's error. The channel is gone at the next open if not now.
    """
    name = channel_engine.name
    if engine.channel_engines.get(name) is not channel_engine:
        return  # somebody else deleted it, and who named it since means the new one
    await engine.operate(lambda: None)
    engine.creation.forget(name)
    engine.effective_options.forget_channel(name)
    channel_engine.shut_down(immediate=True)
    channel_engine.refuse(QueueShutDown(f"channel {name!r} was deleted"))

    def work() -> None:
        log, journal = engine.real_log(), channel_engine.journal
        if fs is log.fs:
            log.remove_channel(name)
        if journal is not None:
            channel_engine.journal = None
            journal.close()
        remove_channel_files(fs, channel_directory(log.directory, name))

    try:
        await engine.persist(work, acks_first=True)
        engine.reporter.channel_deleted(engine.name, name)
    finally:
        engine.channel_engines.pop(name, None)
        engine.moved()
        engine.put_buffer.freed()
        # What only it held back may go.
        engine.submit(lambda: None, lambda _, __: engine.retention.retain())


def pause_topic(engine: TopicEngine, *, paused: bool) -> Awaitable[None]:
    """Stop or resume all deliveries of a topic at once; the result ends when that is durable."""
    engine.check()
    engine.paused = paused
    for channel_engine in engine.channel_engines.values():
        channel_engine.pause()
    engine.creation.create()

    def work() -> None:
        engine.real_log().pause("", paused=paused)

    return asyncio.ensure_future(engine.operate(work))


def pause_channel(engine: TopicEngine, channel_engine: ChannelEngine[Any], *, paused: bool) -> Awaitable[None]:
    """Stop or resume the deliveries of a channel, likewise.

    Raises:
        QueueShutDown: it was deleted; the new one of that name goes on as it does.
    """
    engine.check()
    check_channel(channel_engine)
    channel_engine.pause(paused=paused)

    def work() -> None:
        # INVARIANT: what is written by a channel's name is of that channel, not of one that was named after it.
        check_channel(channel_engine)
        if not is_ephemeral(channel_engine.name):
            engine.real_log().pause(channel_engine.name, paused=paused)

    return asyncio.ensure_future(engine.operate(work))
