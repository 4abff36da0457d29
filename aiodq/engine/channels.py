"""Making channels and deleting them, while the topic goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiodq.engine.opening import open_channel
from aiodq.engine.signals import QueueShutDown
from aiodq.errors import AiodqError, StoreFailedError
from aiodq.names import is_ephemeral
from aiodq.storage.channels import channel_directory
from aiodq.storage.delayed import delayed
from aiodq.storage.layout import remove_channel_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiodq.delivery.channel import ChannelState
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.outlet import Outlet
    from aiodq.storage.filesystem import FileSystem
    from aiodq.storage.journal import ChannelJournal
    from aiodq.storage.log import TopicLog

__all__ = ["create_channel", "delete_channel", "pause_channel", "pause_topic"]


def create_channel(fs: FileSystem, ioloop: IoLoop, outlet: Outlet[Any], start: Callable[[TopicLog], int]) -> None:
    """Make a new channel durable; it delivers from then on, and no later put returns before.

    Where that fails, what is put meanwhile is refused, the next put tries again, and nothing that the
    channel is to see is deleted.

    Args:
        fs: where the channel's files are to be; where not with the topic's, nothing of it is durable.
        ioloop: the topic's.
        outlet: the channel's, without a state.
        start: tells the offset at which it begins.
    """
    ioloop.making.be_born()
    begin: int | None = None

    def work() -> tuple[ChannelJournal, ChannelState]:
        nonlocal begin
        log = ioloop.real_log()
        begin = start(log) if begin is None else max(begin, log.begin)
        if outlet.name not in log.meta.channels:
            # CRASH: of one that was deleted, or half made, the files may be there; what they say is not of this one.
            remove_channel_files(fs, channel_directory(log.directory, outlet.name))
        dues: Iterable[tuple[int, int, int]] = delayed(log.fs, log.view()) if begin < log.end else ()
        journal, state = open_channel(fs, ioloop.clock, log, outlet.name, begin, dues)
        try:
            if fs is log.fs:
                log.add_channel(outlet.name, begin, ioloop.choosing.channel_record(outlet.name))
        except BaseException:
            journal.close()
            raise
        return journal, state

    def finish(opened: tuple[ChannelJournal, ChannelState], error: Exception | None) -> None:
        if error is None:
            _attach(ioloop, outlet, *opened)
        elif isinstance(error, AiodqError) and not isinstance(error, StoreFailedError):
            outlet.end_getters(error)
            ioloop.making.put_off(outlet.name, again, error)
        else:
            ioloop.outlets.pop(outlet.name, None)
            outlet.end(error)

    def again() -> None:
        if ioloop.outlets.get(outlet.name) is outlet:
            ioloop.submit(work, finish, after=0)

    ioloop.submit(work, finish)


def _attach(ioloop: IoLoop, outlet: Outlet[Any], journal: ChannelJournal, state: ChannelState) -> None:
    if ioloop.abandoned:
        journal.close()
        return
    try:
        outlet.attach(journal, state)
    except BaseException:
        outlet.journal = None
        journal.close()
        raise
    ioloop.choosing.look_at(outlet)
    ioloop.attached(outlet)
    ioloop.reporter.channel_made(ioloop.name, outlet.name, state.floor)


async def delete_channel(fs: FileSystem, ioloop: IoLoop, name: str) -> None:
    """End a channel and delete its files. What only it held back may go then. One that is not there is fine.

    Raises:
        StorageError: as mapped from the system's error. The channel is gone at the next open if not now.
    """
    outlet = ioloop.outlets.get(name)
    if outlet is None:
        return
    await ioloop.operate(lambda: None)
    ioloop.making.forget(name)
    ioloop.choosing.forget_channel(name)
    outlet.shut_down(immediate=True)
    outlet.refuse(QueueShutDown(f"channel {name!r} was deleted"))

    def work() -> None:
        log, journal = ioloop.real_log(), outlet.journal
        if fs is log.fs:
            log.remove_channel(name)
        if journal is not None:
            outlet.journal = None
            journal.close()
        remove_channel_files(fs, channel_directory(log.directory, name))

    try:
        await ioloop.persist(work, acks_first=True)
        ioloop.reporter.channel_deleted(ioloop.name, name)
    finally:
        ioloop.outlets.pop(name, None)
        ioloop.intake.freed()
        # What only it held back may go.
        ioloop.submit(lambda: None, lambda _, __: ioloop.retainer.retain())


def pause_topic(ioloop: IoLoop, *, paused: bool) -> Awaitable[None]:
    """Stop or resume all deliveries of a topic at once; the result ends when that is durable."""
    ioloop.check()
    ioloop.paused = paused
    for outlet in ioloop.outlets.values():
        outlet.pause()
    ioloop.making.be_born()
    return _noted(ioloop, "", paused=paused)


def pause_channel(ioloop: IoLoop, outlet: Outlet[Any], *, paused: bool) -> Awaitable[None]:
    """Stop or resume the deliveries of a channel, likewise."""
    ioloop.check()
    outlet.pause(paused=paused)
    return _noted(ioloop, outlet.name, paused=paused)


def _noted(ioloop: IoLoop, channel: str, *, paused: bool) -> Awaitable[None]:
    def work() -> None:
        if not is_ephemeral(channel):
            ioloop.real_log().pause(channel, paused=paused)

    return asyncio.ensure_future(ioloop.operate(work))
