"""The functions that open a store or a queue."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Generator
from concurrent.futures import Executor
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeAlias

from aiodq.awaited import Awaited
from aiodq.by_name import Explained
from aiodq.clock import Clock, SystemClock
from aiodq.engine.live_stores import leaving
from aiodq.engine.store.store_engine import Seams, StoreEngine
from aiodq.errors import NotAwaitedError, StoreLockedError
from aiodq.message import Message
from aiodq.onlyasync import AsyncBlock
from aiodq.options import ChannelOptions, StoreOptions, check_channel_options, check_store_options
from aiodq.queue import Queue
from aiodq.storage.io.filesystem import FileSystem, OsFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.storage.io.lock import is_held_here
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.store_layout import absolute_path
from aiodq.store import Store
from aiodq.values import check_choice, check_flag, refuse, span_seconds

__all__ = ["QueueOpening", "StoreOpening", "open", "open_queue", "open_reader", "open_to_tend"]

Mode: TypeAlias = Literal["exclusive", "shared", "client"]

_MODES: Final = ("exclusive", "shared", "client")
_FAILOVER: Final = 30.0

QUEUE_TOPIC: Final = "queue"
"""The topic of a store that `open_queue` created."""


class _Manner(NamedTuple):
    """How a store is opened: by which call, whether it may be created, and the seconds to wait for its lock.

    Attributes:
        mode, failover: the mode, and the seconds for which an owner is looked for.
    """

    call: str
    create: bool
    wait: float
    mode: str = "exclusive"
    failover: float = _FAILOVER


class StoreOpening(AsyncBlock, Awaited[Store]):
    """What `aiodq.open` returns: an awaitable, of which tasks can be made, and async context manager."""

    _begun = True  # of one that was never made, as its arguments were missing: there is nothing to await

    def __init__(self, path: str, options: StoreOptions | None, seams: Seams, manner: _Manner) -> None:
        """Called by `aiodq.open`."""
        self._path = path
        self._options = options
        self._seams = seams
        self._manner = manner
        self._begun = False
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        """Open the store.

        Raises:
            StoreLockedError: another process owns it and did not release it within `wait`; `pid` says which. In mode
                "shared" or "client": the owner opened it in mode "exclusive".
            OwnerLostError, OwnerStalledError: in mode "shared" or "client": it has no owner, or the owner does not
                answer.
            ProtocolError: in mode "shared" or "client": something other than the owner answers on its socket.
            StoreNotFoundError: there is no store, and `create` is False; or, in mode "client", none was created within
                `failover`.
            NotAStoreError: the directory holds something else, or lies inside another store.
            FormatVersionError: a newer aiodq wrote it; it was left untouched.
            StorageError: the system refused.

        Cancellation: what was opened is closed again; another `open` in this process waits for that.
        """
        return self._open().__await__()

    def _steps(self) -> Coroutine[Any, Any, Store]:
        self.forgo()  # a task that is cancelled before its first step is no forgotten await
        return super()._steps()

    def __repr__(self) -> str:
        """Say what would be opened."""
        return f"<StoreOpening {self._path!r}{'' if self._begun else ' not awaited yet'}>"

    async def _open(self) -> Store:
        self._begun = True
        if self._manner.mode != "exclusive":
            return await self._open_shared()
        store_engine = StoreEngine(self._path, self._options, self._seams)
        await leaving(self._path)
        try:
            await store_engine.open(Message, create=self._manner.create, wait=self._manner.wait)
        except StoreLockedError as error:
            with os_errors(self._path):
                from aiodq.shared.connection.finding.rendezvous import is_served  # noqa: PLC0415 - as below

            # Not by the pid: processes in two containers may have the same.
            if is_held_here(self._path) or not is_served(self._path):
                raise
            raise self._shared_by(error.pid) from error
        return Store(store_engine)

    def _shared_by(self, pid: int | None) -> StoreLockedError:
        waited = f"; waited {self._manner.wait:g} s for it" if self._manner.wait else ""
        owner = f"process {pid}" if pid else "another process"
        return StoreLockedError(
            f"{owner} owns the store and shares it with others, so it cannot be opened exclusively: "
            'write aiodq.open(path, mode="shared") here as well, or mode="client" never to own it, or stop them all'
            f"{waited}",
            self._path,
            pid=pid,
        )

    async def _open_shared(self) -> Store:
        with os_errors(self._path):  # without a free descriptor, nothing is loaded
            # Only needed for a shared store.
            from aiodq.shared.client.remote_store import RemoteStore  # noqa: PLC0415
            from aiodq.shared.handles.shared_store import SharedStore  # noqa: PLC0415

        manner = self._manner
        remote = RemoteStore(self._path, self._options, self._seams, create=manner.create, failover=manner.failover)
        await remote.open(may_own=manner.mode == "shared")
        return SharedStore(remote)

    async def __aenter__(self) -> Store:
        """Open the store."""
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, as the store's own block does."""
        if self._store is not None:
            await self._store.__aexit__(kind, error, trace)

    def forgo(self) -> None:
        """Suppress the warning that it was never awaited."""
        self._begun = True

    def not_awaited(self, called: str, use: str) -> NotAwaitedError:
        """Return the error for a `use` before opening."""
        self.forgo()  # no second warning about it
        call = f"{self._manner.call}({self._path!r})"
        return NotAwaitedError(
            f'{call} is not open yet: write "async with {call} as {called}:" or "{called} = await {call}", '
            f"and then {use}"
        )

    def __del__(self) -> None:
        """Warn if it was never awaited, as Python does for a coroutine."""
        if not self._begun:
            warnings.warn(f"{self._manner.call}({self._path!r}) was never awaited", RuntimeWarning, 2, source=self)

    if not TYPE_CHECKING:  # type checkers must go on reporting the missing await

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that says what is missing if the opening is used as if it were the store."""
            if name.startswith("_") or not hasattr(Store, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise self.not_awaited("store", f"store.{name}")


class QueueOpening(AsyncBlock, Awaited[Queue]):
    """What `aiodq.open_queue` returns: an awaitable, of which tasks can be made, and async context manager."""

    def __init__(self, opening: StoreOpening, options: StoreOptions | None, channel: ChannelOptions | None) -> None:
        """Called by `aiodq.open_queue`."""
        self._opening = opening
        self._options = options
        self._channel = channel
        self._queue: Queue | None = None

    def __await__(self) -> Generator[Any, None, Queue]:
        """Open the queue's store. *Raises* and *Cancellation* as for `StoreOpening`."""
        return self._open().__await__()

    def _steps(self) -> Coroutine[Any, Any, Queue]:
        self._opening.forgo()
        return super()._steps()

    def forgo(self) -> None:
        """Suppress the warning that it was never awaited."""
        self._opening.forgo()

    def __repr__(self) -> str:
        """Say what would be opened."""
        return repr(self._opening).replace("StoreOpening", "QueueOpening", 1)

    async def _open(self) -> Queue:
        store = await self._opening
        try:
            queue = store._as_queue(QUEUE_TOPIC, self._options, self._channel)  # noqa: SLF001 - the queue closes the store
            await queue.topic.settle_in()
            queue.check()
        except BaseException:
            await store.aclose()
            raise
        return queue

    async def __aenter__(self) -> Queue:
        """Open the queue."""
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, as the queue's own block does."""
        if self._queue is not None:
            await self._queue.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # as above

        def __aiter__(self) -> NoReturn:
            """Say what is missing where the opening is taken for the queue."""
            raise self._opening.not_awaited("queue", "async for message in queue")

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is missing where the opening is taken for the queue."""
            if name.startswith("_") or not hasattr(Queue, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise self._opening.not_awaited("queue", f"queue.{name}")


@Explained("aiodq.open", StoreOptions="aiodq.open(path, StoreOptions({}))")
def open(  # noqa: PLR0913 - each by its name
    path: str | PathLike[str], options: StoreOptions | None = None, *, create: bool = True,
    wait: float | timedelta = 0.0, mode: Mode = "exclusive", failover: float | timedelta = _FAILOVER,
    fs: FileSystem | None = None, clock: Clock | None = None, executor: Executor | None = None,
) -> StoreOpening:  # fmt: skip
    """Open a store: `async with aiodq.open(path) as store`, or `store = await aiodq.open(path)`.

    Args:
        path: a directory, created if missing and locked by this process until the store is closed.
        options: see `StoreOptions`.
        create: False to open only an existing store, and not create one in a directory that is missing or empty, such
            as the mount point of a volume that is not mounted.
        wait: seconds, or a `timedelta`, to wait for another process to release the store; in mode "exclusive".
        mode: "exclusive": this process alone has the store, and no other may open it. "shared": any number of processes
            use it; one of them owns it, the others talk to it over a socket in the directory, and when it ends another
            takes over. "client": as "shared", but this process never owns it, and waits for a missing store instead
            of creating it.
        failover: seconds, or a `timedelta`, to look for an owner, when opening and after an owner has ended; then
            waiting calls fail. In mode "shared" and "client". Where a process in mode "exclusive" has the store,
            opening waits as long for its end; after 1 s the logger `aiodq.store` warns of that.
        fs: the file system; for tests.
        clock: the clocks; for tests.
        executor: the threads for blocking work, instead of the store's own; it is shut down with the store; for tests.

    Raises:
        InvalidOptionError: `mode` is none of these, `wait` or `failover` is not a duration, or the path begins
            with `~`; a `TypeError` too where a type is wrong.
        StorageError: the path is empty, has a NUL in it, or is relative and the working directory was deleted.
    """
    check_store_options(options, "aiodq.open(path, {})")
    manner = _manner("aiodq.open", wait, mode, failover, create=create)
    seams = _seams(fs, clock, executor)
    return StoreOpening(absolute_path(path), options, seams, manner)


def _seams(fs: FileSystem | None, clock: Clock | None, executor: Executor | None) -> Seams:
    for what, seam, call in (("fs", fs, "listdir"), ("clock", clock, "now_ns"), ("executor", executor, "submit")):
        if seam is not None and not callable(getattr(seam, call, None)):
            refuse(what, f"an object with a method {call}, or None", seam, f"leave {what} out", type_is_wrong=True)
    kernel = KernelAio if executor is None else getattr(executor, "kernel", None)
    return Seams(fs or OsFileSystem(), clock or SystemClock(), executor, kernel)


def open_to_tend(path: str, *, create: bool, mode: Mode = "exclusive", failover: float = _FAILOVER) -> StoreOpening:
    """Open a store as the command line does: with the options on disk; without stored options, nothing is deleted.

    An administrator does not know the program's options: the messages stay until the program runs again.
    """
    seams = Seams(OsFileSystem(), SystemClock(), keeps=True)
    return StoreOpening(absolute_path(path), None, seams, _manner("aiodq.open", 0.0, mode, failover, create=create))


@Explained(
    "aiodq.open_queue",
    StoreOptions="aiodq.open_queue(path, StoreOptions({}))",
    ChannelOptions="aiodq.open_queue(path, channel=ChannelOptions({}))",
)
def open_queue(  # noqa: PLR0913 - likewise
    path: str | PathLike[str], options: StoreOptions | None = None, channel: ChannelOptions | None = None, *,
    create: bool = True, wait: float | timedelta = 0.0, mode: Mode = "exclusive",
    failover: float | timedelta = _FAILOVER, fs: FileSystem | None = None, clock: Clock | None = None,
    executor: Executor | None = None,
) -> QueueOpening:  # fmt: skip
    """Open a queue in a store of its own: `async with aiodq.open_queue(path) as queue`.

    Args:
        path: a directory, created if missing and locked by this process until the queue is closed.
        options: see `StoreOptions`.
        channel: see `ChannelOptions`.
        create: see `open`.
        wait: see `open`.
        mode: see `open`.
        failover: see `open`.
        fs: the file system; for tests.
        clock: the clocks; for tests.
        executor: the threads for blocking work, instead of the store's own; it is shut down with the store; for tests.

    Raises:
        InvalidOptionError: `mode` is none of these, `wait` or `failover` no time, or the path begins with `~`; a
            `TypeError` too where a type is wrong.
        StorageError: the path is empty, has a NUL in it, or is relative and the working directory was deleted.
    """
    check_store_options(options, "aiodq.open_queue(path, {})")
    check_channel_options(channel, "aiodq.open_queue(path, channel={})")
    manner = _manner("aiodq.open_queue", wait, mode, failover, create=create)
    seams = _seams(fs, clock, executor)
    opening = StoreOpening(absolute_path(path), options, seams, manner)
    return QueueOpening(opening, options, channel)


def open_reader(path: str | PathLike[str]) -> StoreReader:
    """Look into a store without owning it: synchronous, read-only, no lock, safe while its owner runs.

    Raises:
        StoreNotFoundError: there is no such directory.
        NotAStoreError: the directory holds something else, or lies inside another store.
        InvalidOptionError: the path begins with `~`, or is no path, then also a `TypeError`.
        StorageError: the path is empty, has a NUL in it, or is relative and the working directory was deleted.
    """
    return StoreReader(absolute_path(path))


def _manner(call: str, wait: float | timedelta, mode: str, failover: float | timedelta, *, create: bool) -> _Manner:
    check_flag("create", create)
    check_choice("mode", mode, _MODES, "shared")
    return _Manner(call, create, span_seconds("wait", wait), mode, span_seconds("failover", failover))
