"""Creates, deletes, pauses and resumes channels while their topic is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import Awaited, UnderWay
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.store.opening import open_channel
from aiodq.engine.topic.effective_options import check_channel
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import AiodqError, InvalidNameError, StorageError, StoreFailedError
from aiodq.names import is_ephemeral
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.read.delayed_index import delayed
from aiodq.storage.state.assessment import channel_directory
from aiodq.storage.store_layout import remove_channel_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.options import ChannelOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["create_channel", "delete_channel", "make_now", "pause_channel", "pause_topic", "purge_channel"]

_LONGEST_HOLD: Final = 0.5
"""The most seconds for which `make_now` holds up the event loop."""


def create_channel(
    fs: FileSystem, engine: TopicEngine, channel_engine: ChannelEngine[Any], start: Callable[[TopicLog], int]
) -> None:
    """Create a new channel's files, durably before any later put returns. Then the channel delivers.

    If that fails, puts in progress are refused, the next put retries it, and no message that the channel is to see is
    deleted.

    Args:
        fs: the file system for the channel's files; if it is not the topic's, the channel is not durable.
        engine: the topic's engine.
        channel_engine: the channel's engine, without a state.
        start: returns the offset at which the channel begins.
    """
    engine.creation.create()
    engine.creation.make_channel(_NewChannel(fs, engine, channel_engine, start))


def make_now(engine: TopicEngine, channel_engine: ChannelEngine[Any]) -> None:
    """Block the event loop until a new channel is on disk, for a caller that needs a message without waiting.

    That takes a sync or two. If it takes more, or they take long, later turns of the loop finish it.

    Raises:
        StorageError: it could not be created.
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
        self.made: str = channel_engine.made or ""
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
            _require_no_files(fs, channel_directory(log.directory, self.name), self.name)
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
        if isinstance(error, AiodqError) and not isinstance(error, (StoreFailedError, InvalidNameError)):
            channel_engine.end_getters(error)
            engine.creation.put_off(self.name, self._again, error)
        elif error is not None:
            engine.channel_engines.pop(self.name, None)
            channel_engine.end(error)

    def _again(self) -> None:
        if self._engine.channel_engines.get(self.name) is self._channel_engine:
            self._engine.creation.make_channel(self, after=0)


def _require_no_files(fs: FileSystem, directory: str, name: str) -> None:
    """Remove what a deleted channel of that name has left, and ensure that its directory is not another channel's.

    Raises:
        InvalidNameError: the file system takes the name for another channel's.
        StorageError: as mapped from the system's error.
    """
    # CRASH: files of a channel that was deleted, or half created, may be left; they are not this channel's.
    remove_channel_files(fs, directory)
    with os_errors(directory):
        taken = fs.is_directory(directory)
    if taken:
        what = f"this file system takes {name!r} for a channel that differs in case alone: use that name"
        raise InvalidNameError(what)


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


async def delete_channel(
    fs: FileSystem, engine: TopicEngine, channel_engine: ChannelEngine[Any], change: int = 0
) -> None:
    """End a channel and delete its files; segments kept only for it may be deleted then. Repeating it does nothing.

    The number of this change, if it has one, is noted in the same write.

    Raises:
        StorageError: as mapped from the system's error. Either the channel is deleted, and the next opening removes its
            files; or it still exists, delivers nothing, and is to be deleted again.
    """
    name = channel_engine.name
    if engine.channel_engines.get(name) is not channel_engine:
        return  # it was deleted meanwhile; a channel of that name is a new one
    await engine.operate(lambda: None)
    engine.creation.forget(name)
    engine.effective_options.forget_channel(name)
    channel_engine.shut_down(immediate=True)
    channel_engine.refuse(QueueShutDown(f"channel {name!r} was deleted"))
    engine.waiting.pop(channel_engine, None)

    def work() -> None:
        log, journal = engine.real_log(), channel_engine.journal
        if fs is log.fs:
            log.description.remove_channel(name, change)
        if journal is not None:
            channel_engine.journal = None
            journal.close()
        remove_channel_files(fs, channel_directory(log.directory, name))

    try:
        await engine.persist(work, acks_first=True, regardless=True)
        engine.reporter.channel_deleted(engine.name, name)
    except StorageError as error:
        if _is_on_disk(engine, name):
            what = f"channel {name!r} is half deleted: delete it again; the first time, {error.message}"
            channel_engine.refuse(QueueShutDown(what))
        raise
    finally:
        if not _is_on_disk(engine, name):
            engine.channel_engines.pop(name, None)
            engine.moved()
            engine.put_buffer.freed()
            # Segments that were kept only for it may be deleted.
            engine.submit(lambda: None, lambda _, __: engine.retention.retain())


def _is_on_disk(engine: TopicEngine, name: str) -> bool:
    return not isinstance(engine.log, NoLog) and name in engine.log.meta.channels


def pause_topic(engine: TopicEngine, *, paused: bool, change: int = 0) -> Awaited[None]:
    """Pause or resume all deliveries of a topic at once; await the result for that to be durable.

    Its number, if it has one, is noted in the same write.

    Cancellation: it becomes durable anyway.
    """
    engine.check()
    engine.paused = paused
    for channel_engine in engine.channel_engines.values():
        channel_engine.pause()
    engine.creation.create()

    def work() -> None:
        engine.real_log().description.pause("", paused=paused, change=change)

    return UnderWay(engine.operate(work))


def pause_channel(
    engine: TopicEngine, channel_engine: ChannelEngine[Any], *, paused: bool, change: int = 0
) -> Awaited[None]:
    """Do as `pause_topic`, for a channel.

    Raises:
        QueueShutDown: it was deleted; a new channel of that name is not changed.

    Cancellation: it becomes durable anyway.
    """
    engine.check()
    check_channel(channel_engine)
    channel_engine.pause(paused=paused)

    def work() -> None:
        # INVARIANT: the name still means this channel, not a later one of the same name.
        check_channel(channel_engine)
        if not is_ephemeral(channel_engine.name):
            engine.real_log().description.pause(channel_engine.name, paused=paused, change=change)

    return UnderWay(engine.operate(work))


async def purge_channel(engine: TopicEngine, channel_engine: ChannelEngine[Any]) -> int:
    """Settle everything accepted so far, in flight or not, durably; return the number of messages."""
    await engine.settle_in(channel_engine.name)
    state = channel_engine.state
    count = 0 if state is None else state.purge()
    channel_engine.reset()
    engine.settled(channel_engine)
    await channel_engine.committed()
    return count
