"""A store's engine: the lock, the threads, one ioLoop per topic, opening and ending."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from aiodq.engine.adopting import Adopting
from aiodq.engine.burial import DeadLetterOffice
from aiodq.engine.channels import create_channel
from aiodq.engine.deletions import Deletions
from aiodq.engine.ioloop import IoLoop
from aiodq.engine.joining import OpenTransactions
from aiodq.engine.lease import Lease
from aiodq.engine.offload import Offload
from aiodq.engine.opening import make_log, open_store
from aiodq.engine.outlet import Outlet
from aiodq.engine.patience import patiently, running_loop
from aiodq.engine.reporter import STORE, Reporter
from aiodq.engine.rescue import abandon, rescue
from aiodq.engine.settle import as_failure, tell_all
from aiodq.engine.showing import Showing
from aiodq.engine.signals import QueueShutDown
from aiodq.engine.suspects import Suspects
from aiodq.engine.thresholds import Thresholds
from aiodq.engine.transactions import Committer
from aiodq.engine.vitals import SyncTimer, Vitals
from aiodq.engine.watch import Watch
from aiodq.errors import AiodqError, InvalidNameError, StoreFailedError, WrongContextError
from aiodq.format.codecs import codec_number
from aiodq.names import check_topic_name, is_ephemeral
from aiodq.options import StoreOptions, ephemeral
from aiodq.storage.aside import drop_owed
from aiodq.storage.memory import MemoryFileSystem
from aiodq.storage.pool import PooledFileSystem
from aiodq.storage.slots import WATERMARK
from aiodq.storage.stored import holding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor
    from contextlib import AbstractAsyncContextManager

    from aiodq.clock import Clock
    from aiodq.engine.burial import DeadLetter
    from aiodq.engine.opening import OpenedStore, OpenedTopic
    from aiodq.storage.filesystem import FileSystem
    from aiodq.storage.log import TopicLog
    from aiodq.storage.stored import StoredOptions

    MakeMessage = Callable[[str, Outlet[Any] | None, Any, int, int, int], Any]

__all__ = ["Runtime", "Seams"]

_LIVE: Final[weakref.WeakSet[Runtime]] = weakref.WeakSet()


class Seams(NamedTuple):
    """Where a test's things go, and how a store is owned.

    Attributes:
        fs, clock: the file system, and the clocks.
        executor: the threads; None: the store's own.
        keeps: nothing is deleted from a topic that has no options on disk, whatever is done with it.
    """

    fs: FileSystem
    clock: Clock
    executor: Executor | None = None
    keeps: bool = False


class Runtime:
    """What a `Store` stands on.

    Attributes:
        path: the store's directory.
        given: the options that the store was opened with, or None.
        options: those, or the library's: for what is not a topic's.
        keeps: see `Seams`.
        fs, clock, offload: the seams, and the threads.
        reporter: tells what happens.
        vitals: what is measured of the store.
        thresholds: the alarms.
        topics: running ioLoops by topic.
        transactions: those whose blocks tasks are in.
        deletions: of topics and channels.
        failure: why the store stopped, or None.
    """

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams) -> None:
        """Prepare; `open` does it. Must be called on the loop that will use the store."""
        self.path = path
        self.given: StoreOptions | None = options
        self.options: StoreOptions = options or StoreOptions()
        self.keeps: bool = seams.keeps
        self._files = PooledFileSystem(seams.fs, frozenset({WATERMARK}))
        self.fs: FileSystem = self._files
        self.clock: Clock = seams.clock
        self.loop: asyncio.AbstractEventLoop = running_loop()
        self.offload: Offload = Offload(self.loop, seams.executor, self.fail)
        self.reporter: Reporter = Reporter(path)
        self.vitals: Vitals = Vitals(self.clock, self.reporter)
        self.topics: dict[str, IoLoop] = {}
        self.transactions: OpenTransactions = OpenTransactions(self)
        self.suspects: Suspects = Suspects()
        self.failure: StoreFailedError | None = None
        self.closing: bool = False
        self.forked: bool = False
        self._opening = threading.Lock()
        self._opened: OpenedStore | None = None
        self._committer: Committer | None = None
        self._memory = MemoryFileSystem()
        self._given_up = False
        self._wanted: asyncio.Queue[IoLoop | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closed: asyncio.Task[None] | None = None
        self._lease: weakref.ref[Lease] | None = None
        self._dropped = False
        self.deletions: Deletions = Deletions(self)
        self._post = DeadLetterOffice(self.clock, self.fail)
        self._adopting = Adopting(self, path)
        self._showing = Showing(self.fs, path, self.topics, self.offload, self.clock)
        self.thresholds: Thresholds = Thresholds(
            self.options.alarms, self.topics, self.clock, self.vitals, self.reporter
        )
        self._watch = Watch(self.fs, path, self.offload, self.vitals, self.reporter)

    # --- opening

    async def open(self, make: MakeMessage, *, create: bool = True, wait: float = 0.0) -> None:
        """Take the lock, recover every topic, start the engine.

        Args:
            make: makes messages.
            create: a store that is not there is made.
            wait: seconds to wait for another owner to let go.

        Raises:
            StoreLockedError: another owner has it.
            StoreNotFoundError: there is none, and none is to be made.
            NotAStoreError: the directory is something else.
            StorageError: as mapped from the system's error.
        """
        if self.given is not None:
            codec_number(self.given.compression)
        began = self.clock.monotonic()
        try:
            # As where the cell of a notebook is run once more.
            if going := [task for other in list(_LIVE) if (task := other.going(self.path)) is not None]:
                await asyncio.wait(going)
            opened = await patiently(partial(self.offload.call, self._open_unless_given_up, create=create), wait)
            self.reporter.opened(self.clock.monotonic() - began, opened.topics)
            self._start(opened, make)
        except BaseException:
            self._give_up_opening()
            raise

    def _start(self, opened: OpenedStore, make: MakeMessage) -> None:
        timer = SyncTimer(self.vitals, None)
        self._committer = Committer(opened.transactions, self.offload, self.clock, timer, self.fail)
        for name, topic in opened.topics.items():
            ioloop = self.start_topic(name, topic, make)
            if name in opened.brought:
                channels = {acks.channel for acks in opened.brought[name].acks}
                outlets = [outlet for outlet in ioloop.outlets.values() if outlet.name in channels]
                self._committer.recovered(ioloop, outlets, topic.left)
        for name in opened.brought.keys() - opened.topics.keys():
            ioloop = self.new_topic(name)
            self._committer.recovered(ioloop, (), [puts.columns for _, puts in opened.brought[name].puts])
        self._own_up(opened)
        # What was brought is the engine's now; for the rest of the store's life it would only take memory.
        self._opened = opened._replace(topics={}, brought={})
        opened.transactions.found.clear()
        self._task = self.loop.create_task(self._run(), name=f"aiodq {self.path}")
        _LIVE.add(self)

    def _own_up(self, opened: OpenedStore) -> None:
        """Go on without the topics that cannot be used."""
        for name, error in (*opened.unusable.items(), *opened.owing.items()):
            text = f"topic {name!r} cannot be used, and what it is owed is kept: {error}"
            self.reporter.warn(STORE, text, name)
        for name, error in opened.unusable.items():
            self._add(IoLoop(name, self.options, self, None, unusable=error))
        for name, error in opened.owing.items():
            with suppress(InvalidNameError):  # of an older aiodq; no topic can be called so any more
                self.new_topic(check_topic_name(name)).making.refused(error)
                self._adopting.owing.add(name)
        self._adopting.blocked |= opened.blocked
        if opened.taken:
            self.committer.take_up(partial(drop_owed, self.fs, opened.taken))

    @property
    def committer(self) -> Committer:
        """What commits transactions."""
        if self._committer is None:
            raise QueueShutDown("the store is not open")
        return self._committer

    def alone(self) -> AbstractAsyncContextManager[None]:
        """See `IoLoopHost.alone`."""
        return self.committer.alone()

    def _open_unless_given_up(self, *, create: bool) -> OpenedStore:
        opened = open_store(self.fs, self.clock, self.path, self.given, create=create)
        with self._opening:
            self._opened = opened
            if self._given_up:
                opened.abandon()
        return opened

    def _give_up_opening(self) -> None:
        """Nobody waits for the store any more: what was opened is closed, by the thread if it is still at it."""
        self._files.retire()
        with self._opening:
            self._given_up = True
            if self._opened is not None:
                self._opened.abandon()
        self.offload.shutdown(wait=False)

    def start_topic(self, name: str, topic: OpenedTopic, make: MakeMessage) -> IoLoop:
        """Start a topic's ioLoop, with the channels found on disk, by the options found there."""
        meta = topic.log.meta
        ioloop = self._add(IoLoop(name, holding(None, meta.options, self.given), self, topic.log))
        paused = meta.paused
        ioloop.paused = "" in paused
        for channel, (journal, state) in topic.channels.items():
            outlet = self.outlet(ioloop, channel, make)
            outlet.configure(meta.channel_options.get(channel, outlet.options))
            outlet.pause(paused=channel in paused)
            outlet.attach(journal, state)
            ioloop.attached(outlet)
        return ioloop

    def ioloop(self, name: str, options: StoreOptions | None = None) -> IoLoop:
        """Return the ioLoop of a topic that somebody names, started if it is new.

        Raises:
            InvalidOptionError: options are named, and others were before.
            MissingExtraError: a codec is not installed.
        """
        ioloop = self.topics.get(name) or self.new_topic(name)
        if options is None:
            ioloop.choosing.ask()
        else:
            ioloop.choosing.name(options)
        return ioloop

    def new_topic(self, name: str) -> IoLoop:
        """Start an ioLoop for a topic whose files the first message or channel will make."""
        options = holding(None, None, self.given)
        return self._add(IoLoop(name, ephemeral(options) if is_ephemeral(name) else options, self, None))

    def unnamed(self, name: str) -> IoLoop:
        """Return the ioLoop of a topic that nobody here has named, started if it is new."""
        return self.topics.get(name) or self.new_topic(name)

    def _add(self, ioloop: IoLoop) -> IoLoop:
        self.topics[ioloop.name] = ioloop
        if ioloop.unusable is not None:
            return ioloop
        deletion = self.deletions.under_way(ioloop.name)
        if deletion is None:
            self._wanted.put_nowait(ioloop)
        else:
            # Its files must not be made in a directory that is about to go.
            deletion.add_done_callback(lambda _: self._wanted.put_nowait(ioloop))
        return ioloop

    def fs_of(self, *names: str) -> FileSystem:
        """See `IoLoopHost.fs_of`."""
        return self._memory if any(map(is_ephemeral, names)) else self.fs

    async def delete_topic(self, name: str) -> None:
        """See `Deletions.topic`.

        Cancellation: it is done all the same.
        """
        await self.deletions.topic(name, self.topics.pop(name, None))

    def make_log(self, name: str, record: StoredOptions) -> TopicLog:
        """See `IoLoopHost.make_log`."""
        return make_log(self.fs_of(name), self.clock, self.path, name, record)

    def outlet(self, ioloop: IoLoop, channel: str, make: MakeMessage) -> Outlet[Any]:
        """Return a topic's channel, made without a state if it is new."""
        found = ioloop.outlets.get(channel)
        if found is None:
            found = Outlet(channel, ioloop, partial(make, ioloop.name), self.clock)
            found.lease = self.lease
            ioloop.outlets[channel] = found
        return found

    def create_channel(self, ioloop: IoLoop, outlet: Outlet[Any], start: Callable[[TopicLog], int]) -> None:
        """See `aiodq.engine.channels.create_channel`."""
        create_channel(self.fs_of(ioloop.name, outlet.name), ioloop, outlet, start)

    def bury(self, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """See `IoLoopHost.bury`."""

        def told(error: Exception | None) -> None:
            done(error)
            if error is None:
                offset = letter.batch.first
                self.reporter.dead(
                    letter.topic, letter.channel, offset, letter.attempts, letter.reason, target=letter.target
                )

        self._post.send(letter, self.ioloop(letter.target).intake, told)

    # --- running

    def check(self) -> None:
        """Raise if the store cannot be used from here and now.

        Raises:
            StoreFailedError: it has failed.
            QueueShutDown: it is closed.
            WrongContextError: see `check_context`.
        """
        if self.failure is not None:
            raise self.failure.again()
        self.check_context()
        if self.closing:
            raise QueueShutDown("the store is closed")

    def check_context(self) -> None:
        """Raise if the caller has no business with the store.

        Raises:
            WrongContextError: another loop, another thread, or a forked child.
        """
        if self.forked:
            raise WrongContextError(
                "this store was opened before a fork, and is the parent's: open one in the child after the fork, "
                "once the parent has closed its own"
            )
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongContextError(
                "this store is to be used on the event loop that opened it, not from another thread or without a loop: "
                "from a thread, asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()"
            ) from None
        if here is not self.loop:
            raise WrongContextError(
                "this store was opened on another event loop than the one that runs here: open it in the "
                "asyncio.run(...) that uses it, and once for each"
            )

    def fail(self, error: Exception) -> None:
        """Stop the store for this reason; everybody who waits is told."""
        if self.failure is not None:
            return
        failure = self.failure = as_failure(error, self.path)
        ioloops = [ioloop.fail for ioloop in (*self.topics.values(), *self.deletions.ending)]
        committer = [] if self._committer is None else [self._committer.fail]
        tell_all(failure, [*committer, *ioloops, lambda _: self.reporter.failed(failure)])

    async def _run(self) -> None:
        """Own the ioLoops until the store is closed. Cancelled (the loop is ending), save what was accepted."""
        try:
            async with anyio.create_task_group() as tasks:
                for run in (self.committer.run, self._adopting.run, self._showing.run, self._watch.run):
                    tasks.start_soon(self._guarded, run)
                if self.options.alarms:
                    tasks.start_soon(self._guarded, self.thresholds.run)
                while (ioloop := await self._wanted.get()) is not None:
                    tasks.start_soon(self._guarded, ioloop.run)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - as in `_guarded`
            self.fail(error)
        finally:
            self._end()

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self.fail(error)

    def _end(self) -> None:
        """Release everything, whatever state it is in. Blocking, as nobody is left to wait for."""
        if self.forked:
            return  # the files and the lock are the parent's
        self.closing = True
        self.offload.shutdown()
        with ExitStack() as ending:
            ending.callback(_LIVE.discard, self)
            ending.callback(self._files.retire)
            ending.callback(self._unlock)
            ending.callback(self._showing.end)
            for ioloop in (*self.topics.values(), *self.deletions.ending):
                if not ioloop.closed:
                    ending.callback(self._rescue, ioloop)
        self.reporter.end()
        if not self.loop.is_closed():  # on one that is, nobody can be woken any more
            self.reporter.listeners.end()

    def release_if_dead(self) -> None:
        """Release everything if the event loop was closed under the store, so that its own tasks cannot."""
        if self.loop.is_closed() and self in _LIVE:
            self._end()

    def _rescue(self, ioloop: IoLoop) -> None:
        error: Exception = self.failure or QueueShutDown("the event loop ended before the store was closed")
        try:
            if self.failure is None:
                rescue(ioloop, self.clock)
        except AiodqError as cause:
            error = cause
        except Exception as cause:  # noqa: BLE001 - whatever it is, nobody is left waiting
            error = as_failure(cause, self.path)
        ioloop.fail(error)
        with suppress(AiodqError):
            abandon(ioloop)

    def _unlock(self) -> None:
        if self._opened is not None:
            self._opened.abandon()

    # --- ending

    def lease(self) -> object:
        """Return what a handle is to hold, so that the store stays open; None where it is being let go already."""
        if self._lease is None:
            lease = Lease(self)
            self._lease = weakref.ref(lease)
            return lease
        return self._lease()

    def dropped(self) -> None:
        """Nobody has a handle any more: warn, and let the directory go, having done what was accepted."""
        if self.close_asked or self.forked:
            return
        self._dropped = True
        try:
            self.loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # the loop is closed
            self.release_if_dead()
        if self.failure is None:
            warnings.warn(f"store was never closed [{self.path}]", ResourceWarning, 3, source=self)

    def _let_go(self) -> None:
        if self._closed is None and self in _LIVE:
            self.closing = True
            self._closed = self.loop.create_task(self._close())
            self._closed.add_done_callback(self._gone)

    def _gone(self, closed: asyncio.Task[None]) -> None:
        error = None if closed.cancelled() else closed.exception()
        if error is not None:
            text = f"a store that was never closed could not be closed as it should [{self.path}]"
            self.loop.call_exception_handler({"message": text, "exception": error})

    def going(self, path: str) -> asyncio.Task[None] | None:
        """Return the task that closes the store of this directory, if it was dropped on the loop that runs here."""
        if self.path == path and self._dropped and self.loop is asyncio.get_running_loop():
            self._let_go()
            return self._closed
        return None

    async def close(self) -> None:
        """Finish what was accepted, make it durable, release everything. Repeating it waits for the same end.

        Raises:
            StoreFailedError: it could not be made durable.

        Cancellation: it goes on in the store's own task.
        """
        self.check_context()
        if self._closed is None:
            self.closing = True
            self._closed = self.loop.create_task(self._close())
        await asyncio.shield(self._closed)

    @property
    def standing(self) -> str:
        """What may be done with the store, in a word, for those who look at it."""
        if self.failure is not None:
            return "failed"
        if self.forked:
            return "of the parent process"
        if self._closed is not None and self._closed.done():
            return "closed"
        return "closing" if self.closing else "open"

    @property
    def close_asked(self) -> bool:
        """Whether `close` was called."""
        return self._closed is not None

    async def _close(self) -> None:
        results: list[BaseException | None] = []
        results += await asyncio.gather(self.deletions.end(), return_exceptions=True)
        results += await asyncio.gather(self._post.close(), return_exceptions=True)
        if self.failure is None:
            results += await asyncio.gather(self.committer.close(), return_exceptions=True)
        if self.failure is None:
            closings = [ioloop.close() for ioloop in list(self.topics.values())]
            results += await asyncio.gather(*closings, return_exceptions=True)
        self._wanted.put_nowait(None)
        if self._task is not None:
            await asyncio.wait([self._task])
            results.append(None if self._task.cancelled() else self._task.exception())
        for result in results:
            if isinstance(result, BaseException):
                raise result if isinstance(result, AiodqError) else as_failure(result, self.path)

    def after_fork(self) -> None:
        """In the child: nothing of this store may be used here."""
        self.forked = True


def _mark_children() -> None:
    for runtime in list(_LIVE):
        runtime.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_children)
