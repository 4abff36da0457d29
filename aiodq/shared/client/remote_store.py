"""A shared store: it replaces the engine behind a `Store`.

Everything goes over the link to the owner, which may be this process.
"""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from aiodq.awaited import shielded
from aiodq.engine.live_stores import leaves, release_dead
from aiodq.engine.lock_wait import running_loop
from aiodq.engine.loop.futures import ended
from aiodq.engine.loop.home_loop import HomeLoop
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.store_refs import StoreRefs
from aiodq.engine.transactions.task_transactions import OpenTransactions
from aiodq.errors import (
    AiodqError,
    InvalidOptionError,
    OwnerLostError,
    ReadOnlyError,
    StorageError,
    StoreLockedError,
    StoreNotFoundError,
)
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.shared.client.long_wait import warn_of_long_wait
from aiodq.shared.client.owner_report import OwnerReport
from aiodq.shared.client.ownership import Ownership
from aiodq.shared.client.remote_events import RemoteEvents
from aiodq.shared.client.remote_topic import RemoteTopic
from aiodq.shared.client.remote_transactions import RemoteCommitter
from aiodq.shared.connection.finding.inherited import leave_in_children
from aiodq.shared.connection.finding.rendezvous import of_user
from aiodq.shared.connection.finding.store_directory import refuse_network
from aiodq.shared.connection.link import Link
from aiodq.shared.encoding.options_json import topic_options
from aiodq.storage.io.lock import is_locked, lock_holder
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.state.topic.stored_options import differences
from aiodq.storage.store_layout import check_store_directory, require_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.engine.store.store_engine import Seams
    from aiodq.shared.client.remote_puts import RemotePuts
    from aiodq.shared.consuming.remote_channel import RemoteChannel
    from aiodq.shared.server.owner import Owner
    from aiodq.storage.io.filesystem import FileSystem

    Options: TypeAlias = StoreOptions | ChannelOptions

__all__ = ["RemoteStore"]

_ROUND: Final = 1.0
"""Seconds that are waited for puts and transactions before the owner is asked again to refuse what waits for room."""


class RemoteStore:
    """The counterpart of `StoreEngine` for a shared store.

    Attributes:
        path: the store's directory.
        options: those given to `open`, or the library's defaults.
        topics: the topics used in this process.
        unsent: what has accepted puts that it sends in the next turn of the loop.
        report: the owner's last report on the store and its topics.
        transactions: the transactions whose blocks tasks are in.
        committer: commits transactions.
        events: the listeners of this process.
        home: the loop on which the store may be used.
    """

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams, *, create: bool, failover: float) -> None:
        """Prepare; `open` connects. Must be called on the loop that will use the store."""
        self.path = path
        self.options: StoreOptions = options or StoreOptions()
        self.clock: Clock = seams.clock
        self.loop: asyncio.AbstractEventLoop = running_loop()
        self.home: HomeLoop = HomeLoop(self.loop)
        self.transactions: OpenTransactions = OpenTransactions(self)
        self.topics: dict[str, RemoteTopic] = {}
        self.unsent: set[RemotePuts] = set()
        self.threads: WorkerThreads = WorkerThreads(self.loop)
        self.fs: FileSystem = seams.fs
        self._given = options
        self._seams = seams
        self._create = create
        self._failover = failover
        self._may_own = False
        self._ownership = Ownership(path, options, seams, create=create)
        self._closing = self._refusing = False
        self._closed: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.store_ref: Callable[[], object] = StoreRefs(self.dropped).get
        self.link: Link = Link(path, self._own, failover=failover, inside=self._ownership.connect)
        self.report: OwnerReport = OwnerReport(self.link, self.loop)
        self.committer: RemoteCommitter = RemoteCommitter(self.link, self.clock)
        self.events: RemoteEvents = RemoteEvents(self.link, self.loop)
        leave_in_children(self)

    # --- opening and owning

    async def open(self, *, may_own: bool) -> None:
        """Find the owner, or own the store.

        Args:
            may_own: whether this process may own the store if no other process does.

        Raises:
            StoreNotFoundError: there is none, and none is to be created, or none was created within `failover`.
            OwnerLostError: no process serves it, and this process may not.
            StoreLockedError: it is open in mode "exclusive".
            ProtocolError: the process found is not an owner.
            InvalidOptionError: the options differ from the owner's.
            StorageError: as mapped from the system's error.
        """
        self._may_own = may_own
        try:
            refuse_network(self.path)
            if may_own:
                with os_errors(self.path):
                    # This makes anyio load what its task groups need: about 10 ms, better spent before others wait.
                    anyio.create_task_group()
            if not self._create:
                await self._check_there()
            elif not may_own:
                with suppress(StoreNotFoundError):  # an owner creates it, and this waits for that
                    await self._check_there()
            release_dead(self.path)
            await self._find_owner()
            if self._given is not None:
                await self.link.call("given", {"options": topic_options(self._given)})
            await self.report.look_once()
        except BaseException:
            self._closing = True
            await ended(self._release())
            raise
        self._looking = self.loop.create_task(self._look())

    async def _find_owner(self) -> None:
        warning = self.loop.create_task(
            warn_of_long_wait(self.path, self._failover, lambda: self._ownership.taking), name=f"aiodq wait {self.path}"
        )
        try:
            await self.link.start()
        except OwnerLostError as error:
            if not self._may_own:
                raise await self._nobody_serves(error) from error
            locked = self._ownership.locked
            if locked is None:
                raise
            text = f'{locked.message}; it serves no other process: it has the store for itself, in mode "exclusive"'
            raise StoreLockedError(text, self.path, pid=locked.pid) from error
        finally:
            warning.cancel()

    async def _nobody_serves(self, error: OwnerLostError) -> StorageError:
        """Return the error for a client that has found no owner.

        Raises:
            StorageError: as `_check_there`, of anything but a missing store.
        """
        try:
            await self._check_there()
        except StoreNotFoundError as missing:
            text = f'{missing.message}, and none was created meanwhile: a process in mode "client" never creates one'
            return StoreNotFoundError(
                f'{text}; open it with mode="shared" in another, or run aiodq serve --create', self.path
            )
        if not is_locked(self.path):
            text = f'{error.message}: a process in mode "client" never owns it; open it with mode="shared" in another'
            return OwnerLostError(f"{text}, or run aiodq serve", error.path)
        holder = lock_holder(self.path)
        text = (
            f'{holder or "an unknown process"} has the store for itself, in mode "exclusive": write '
            'aiodq.open(path, mode="shared") there as well, or stop it'
        )
        return StoreLockedError(text, self.path, pid=holder and holder.pid)

    async def _check_there(self) -> None:
        """Raise if there is no store.

        Raises:
            StoreNotFoundError: there is none.
            NotAStoreError: the directory holds something else.
        """
        await self.threads.call(_check_there, self._seams.fs, self.path, self._create)

    async def _own(self) -> bool:
        """Own the store if this process may and no other does; return whether it owns it now."""
        return self._may_own and not self._closing and await self._ownership.take(self.link.producer)

    @property
    def owner(self) -> Owner | None:
        """The server of the store, if this process owns it."""
        return self._ownership.owner

    async def _look(self) -> None:
        """Look around once a second or so."""
        while True:
            await asyncio.sleep(self.report.pause)
            self.link.look_around()
            for puts in list(self.unsent):
                puts.send_anyway()
            with suppress(AiodqError):  # the last report stands until there is an owner again
                await self.report.renew()

    def topic_names(self) -> list[str]:
        """Return the names of the existing topics, as far as known here."""
        own = {name for name, topic in self.topics.items() if topic.exists}
        return sorted(own | self.report.topics.keys())

    # --- calls from handles

    @property
    def inherited(self) -> bool:
        """See `TransactionHost.inherited`."""
        return self.home.forked

    @property
    def standing(self) -> str:
        """The state of the store, as one word, for reprs."""
        if self.inherited:
            return "of the parent process"
        if self._closed is not None and self._closed.done():
            return "closed"
        return "closing" if self._closing or isinstance(self.link.failure, QueueShutDown) else "open"

    @property
    def usable(self) -> bool:
        """Whether the store can be used, regardless of the caller; `check` says why not."""
        return not (self._closing or self._refusing) and self.link.failure is None

    def check(self) -> None:
        """Raise if the store cannot be used from here and now.

        Raises:
            OwnerLostError, OwnerStalledError: there is no owner, or it does not answer.
            QueueShutDown: it is closed.
            WrongContextError: see `check_context`.
        """
        self.check_context()
        if self._closing or self._refusing:
            raise QueueShutDown("the store is closed")
        self.link.check()

    def check_context(self) -> None:
        """Raise unless the caller may use the store.

        Raises:
            WrongContextError: another loop, another thread, or a forked child.
        """
        self.home.check()

    def after_fork(self) -> None:
        """Mark the store as unusable in a forked child."""
        self.home.leave()

    def topic(self, name: str, options: StoreOptions | None) -> RemoteTopic:
        """Return a topic, which the owner opens if it is new here.

        Raises:
            InvalidOptionError: other options were given for it before, in this process.
        """
        topic = self.topics.get(name)
        if topic is None or _is_over(f"topic {name!r}", topic, options, "await topic.configure(options)"):
            topic = self.topics[name] = RemoteTopic(self, name, options)
        elif options is not None and topic.named is None:
            topic.name_options(options)
        return topic

    def engine(self, name: str) -> RemoteTopic:
        """Return a topic that a transaction puts into."""
        return self.topic(name, None)

    def channel(self, topic: RemoteTopic, name: str, options: ChannelOptions | None) -> RemoteChannel:
        """Return a channel, which the owner opens if it is new here.

        Raises:
            InvalidOptionError: other options were given for it before, in this process.
        """
        channel = topic.channel_engines.get(name)
        what = f"channel {name!r} of topic {topic.name!r}"
        if channel is None or _is_over(what, channel, options, "await channel.configure(options)"):
            channel = topic.open_channel(name, options)
        elif options is not None and channel.named is None:
            topic.name_channel_options(channel, options)
        return channel

    def discard(self, topic: RemoteTopic) -> None:
        """See `TopicHost`. Existing handles keep it; its channels are forgotten with it."""
        if isinstance(topic.error, QueueShutDown) and self.standing == "open" and self.topics.get(topic.name) is topic:
            del self.topics[topic.name]

    def forget(self, name: str, known: RemoteTopic | None) -> RemoteTopic | None:
        """Forget a deleted topic; one opened later under its name is new.

        Returns:
            The one of that name that is not the `known` one, so that the owner has to say whether it was deleted, too.
        """
        topic = self.topics.get(name)
        if topic is None or topic is not known:
            self.report.forget_topic(name)
            return topic
        del self.topics[name]
        over = QueueShutDown(f"topic {name!r} was deleted")
        topic.put_buffer.shut_down(over)
        channels = list(topic.channel_engines)
        topic.refused(over)  # it keeps its numbers, of which some are in the report
        self.report.forget_topic(name)
        for channel in channels:
            self.link.forget(name, channel)
        self.link.forget(name, "")
        return None

    # --- the end

    def dropped(self, warn: Callable[..., None] = warnings.warn) -> None:
        """Warn that no handle is left, and leave the store to others. At the interpreter's end, modules may be gone."""
        if self._closing or self._closed is not None or self.inherited:
            return
        try:
            self.loop.call_soon_threadsafe(self._close_unless_ending)
        except RuntimeError:  # the loop is closed, and the connection with it
            self._closing = True
        finally:
            warn(f"store was never closed [{self.path}]", ResourceWarning, 3, source=self)

    def _close_unless_ending(self) -> None:
        if self._looking is None or not self._looking.cancelling():  # else the loop is ending, and its tasks with it
            self._begin_closing()

    def _begin_closing(self) -> None:
        if self._closed is None:
            self._closed = self.loop.create_task(self._close())
            leaves(self.path, self._closed)

    async def close(self) -> None:
        """Finish what was accepted, and leave the store to others. Repeated calls wait for the same end.

        Raises:
            OwnerLostError: there was no owner to take what was accepted.

        Cancellation: closing continues in the store's own task.
        """
        self.check_context()
        self._begin_closing()
        if self._closed is not None:
            await shielded(self._closed)

    async def _close(self) -> None:
        # INVARIANT: whose transaction is refused as the store closes knows that nothing of it was done: none is sent
        # that nobody waits for.
        self.committer.shut_down()
        for topic in self.topics.values():
            topic.put_buffer.shut_down(QueueShutDown("the store is closed"))
        failure: AiodqError | None = None
        try:
            await self._committed()
            for topic in list(self.topics.values()):
                await self._settled(topic)
            await self._all_settled()
        except AiodqError as error:
            failure = error
        self._closing = True
        await self._release()
        if failure is not None:
            raise failure

    async def _all_settled(self) -> None:
        settling = True
        while settling:
            channels = [channel for topic in self.topics.values() for channel in topic.channel_engines.values()]
            for channel in channels:
                if channel.rejecting:
                    await self.link.call("closing")  # this owner or the next one knows of it
                if channel.settling or not self._refusing:  # rejections may wait for room for ever: only once
                    await channel.all_settled()
            settling = not self._refusing or any(channel.settling for channel in channels)
            self._refusing = True
            for channel in channels:
                channel.leave()  # nobody gets another message; those in hand may be settled meanwhile
        # INVARIANT: whose ack is refused as the store closes knows that it was not done: none is begun from here on.
        for channel in channels:
            channel.end_with(QueueShutDown("the store is closed"))

    async def shut_puts(self) -> None:
        """Accept no more puts, and wait briefly for those accepted."""
        topics = list(self.topics.values())
        for topic in topics:
            topic.put_buffer.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROUND):
                for topic in topics:
                    await topic.put_buffer.settled()

    async def _committed(self) -> None:
        """Wait for transactions; those that wait for room at the owner are cancelled."""
        while self.committer.pending:
            with suppress(OwnerLostError):
                await self.link.call("closing", once=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUND):
                    await self.committer.settled()

    async def _settled(self, topic: RemoteTopic) -> None:
        """Wait for accepted puts; those that wait for room at the owner are cancelled."""
        while topic.pending:
            with suppress(OwnerLostError):
                await self.link.call("closing", once=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUND):
                    await topic.put_buffer.settled()

    async def _release(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self.events.close()
        await self.link.close()
        try:
            await self._ownership.release()
        finally:
            self.threads.shutdown(wait=False)


def _check_there(fs: FileSystem, path: str, create: bool) -> None:  # noqa: FBT001 - called in a thread, by place
    if not create:
        require_store(fs, path)
    try:
        check_store_directory(fs, path)
    except ReadOnlyError as error:
        raise of_user(error, path) from error.__cause__
    if not fs.listdir(path):
        raise StoreNotFoundError("there is no store in this directory, which is empty", path)


def _is_over(what: str, known: RemoteTopic | RemoteChannel, options: Options | None, how: str) -> bool:
    """Return whether a topic or channel was deleted or refused, so that it is to be opened again.

    Raises:
        InvalidOptionError: other options were given for it before.
    """
    if isinstance(known.error, QueueShutDown):
        return True
    if options is not None:
        _refuse_others(what, known.named, options, how)
    return known.error is not None


def _refuse_others(what: str, before: Options | None, after: Options, how: str) -> None:
    """Raise if options differ from those given before.

    Raises:
        InvalidOptionError: names the first field in which they differ.
    """
    for name, (old, new) in differences(before, after).items() if before is not None else ():
        raise InvalidOptionError(
            f"{what} was named with {name}={old!r} since the store was opened, and now with {name}={new!r}: name the "
            f"same everywhere, or none; {how} changes it"
        )
