"""How the event loop waits for a sync: in a thread that blocks in fdatasync, or by a notification of the kernel."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from aiodq.engine.loop.futures import settle
from aiodq.storage.io.kernel_aio import KernelAio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.options import StoreOptions
    from aiodq.storage.io.filesystem import File

    Report: TypeAlias = Callable[[None, BaseException | None], None]

__all__ = ["SyncBackend", "Synced", "SystemSyncs"]

_AUTO: Final = "aio"
"""What `"auto"` chooses where it is available: a durable put takes a third of the processor time, and returns earlier.
But there is no fdatasync to be seen. So as long as somebody watches the process's calls, to count them or to have them
fail, threads sync: see `SystemSyncs.is_watched`."""

_FDATASYNC: Final = os.fdatasync if hasattr(os, "fdatasync") else None

_THREADS_AT_ONCE: Final = 4
"""The most threads that sync the journals of one topic: the log's sync needs a thread, too."""

_BEGUN_AT_ONCE: Final = 128
"""The most syncs of the kernel's that are begun in one turn of the loop: a millisecond's work."""


_TOLD_AT_ONCE: Final = 32
"""The most syncs of the kernel's whose end is reported in one turn of the loop: a topic may go on at once."""


class Synced(Protocol):
    """A log or a journal that can be made durable. It has one sync at a time."""

    def sync(self) -> None:
        """Return when everything written before is on the device. Blocking."""
        ...

    def begin_sync(self, submit: Callable[[File], object]) -> bool:
        """Have `submit` start a sync of a file; return False if that is not possible: then `sync` is to be called."""
        ...

    def end_sync(self, error: int) -> None:
        """End a sync that was begun, with this errno, 0 for none; raise what `sync` would."""
        ...


class SystemSyncs(Protocol):
    """A backend that syncs without a thread: `aiodq.storage.io.kernel_aio.KernelAio`, or a test's."""

    eventfd: int
    number: int

    def submit(self, file: File) -> None:
        """Start a sync, whose number is then `number`; raise OSError if none was started."""
        ...

    def ended(self) -> list[tuple[int, int]]:
        """Return the numbers of the syncs that have ended since, each with its errno, 0 for none."""
        ...

    def is_watched(self) -> bool:
        """Return whether the process's system calls are traced: these syncs would not show. Blocking."""
        ...

    def close(self) -> None:
        """Release the backend."""
        ...


class SyncBackend:
    """The sync backend of one store.

    Attributes:
        threads: the store's threads.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: WorkerThreads,
        fail: Callable[[BaseException], None],
        options: StoreOptions,
        make: Callable[[], SystemSyncs] | None = KernelAio,
    ) -> None:
        """Use the chosen backend, if it is available.

        Args:
            loop: the loop on which to report.
            threads: the store's threads.
            fail: stops the store: called with the exception of a sync, and with that of a report.
            options: the store's; `sync_backend` is the choice.
            make: makes the backend without threads, or raises OSError; None if there is none.
        """
        self._loop = loop
        self.threads: WorkerThreads = threads
        self._fail = fail
        self._aio: SystemSyncs | None = None
        self._left: SystemSyncs | None = None
        self._under_way: dict[int, tuple[Synced, Report]] = {}
        # Those of them that have ended, each with its errno.
        self._ended: deque[tuple[int, int]] = deque()
        # The later turn of the loop that is to report more of them; until then nothing else does.
        self._going_on: asyncio.Handle | None = None
        self._auto = options.sync_backend == "auto"
        self._watched = False
        choice = _AUTO if self._auto else options.sync_backend
        if choice == "aio" and make is not None:
            self._use(make)

    def _use(self, make: Callable[[], SystemSyncs]) -> None:
        try:
            aio = make()
        except OSError:
            return
        try:
            self._loop.add_reader(aio.eventfd, self._look)
        except NotImplementedError:  # a loop that watches no descriptors
            aio.close()
            return
        self._aio = aio
        self.look_for_watchers()

    @property
    def name(self) -> Literal["thread", "aio"]:
        """The backend in use. With `"aio"`, the kernel's, threads still sync what it cannot."""
        return "thread" if self._kernel() is None else "aio"

    def _kernel(self) -> SystemSyncs | None:
        """Return the kernel's backend, if syncs are to begin by it."""
        aio = self._aio
        if aio is None or not self._auto:
            return aio
        # If `os.fdatasync` was replaced, the replacement gets every sync from the next one on.
        return None if self._watched or os.fdatasync is not _FDATASYNC else aio

    def look_for_watchers(self) -> None:
        """Check whether system calls are traced, if the user leaves the choice of a backend to the store. Blocking."""
        if self._auto and self._aio is not None:
            self._watched = self._aio.is_watched()

    def start(self, what: Synced, report: Report, then: Callable[[], None] | None = None) -> None:
        """Sync everything written so far; `report` is called on the loop, with the error if any.

        If a thread syncs, it calls `then` as soon as that is done; see `WorkerThreads.start`.
        """
        aio = self._aio and self._kernel()
        if aio is not None and what.begin_sync(aio.submit):
            self._under_way[aio.number] = what, report
        else:
            self.threads.start(what.sync, report, then)

    async def sync_all(self, what: Sequence[Synced]) -> None:
        """Return when each of these is synced; the syncs run concurrently, so that the disk can combine them.

        Raises:
            StoreFailedError: a sync failed; all that were begun have ended by then.

        Cancellation: the syncs that were begun go on to their end.
        """
        kernel = self._aio is not None and self._kernel() is not None
        # The loop begins the kernel's syncs and takes their ends: of very many, some in each turn.
        most = _BEGUN_AT_ONCE if kernel else max(len(what), 1)
        for first in range(0, len(what), most):
            syncs: list[Awaitable[None]]
            if kernel:
                syncs = [self._begun(each) for each in what[first : first + most]]
            else:
                shares = [what[share::_THREADS_AT_ONCE] for share in range(min(_THREADS_AT_ONCE, len(what)))]
                syncs = [self.threads.call(_sync_each, share) for share in shares]
            if len(syncs) == 1:
                await syncs[0]
                continue
            for error in await asyncio.gather(*syncs, return_exceptions=True):
                if error is not None:
                    raise error

    def _begun(self, what: Synced) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self.start(what, partial(settle, done))
        return done

    def leave(self) -> None:
        """Begin and report no more syncs: this is a forked child's copy."""
        # Nothing is read from the eventfd, nor taken off the loop's watch: both are shared with the parent. What the
        # kernel had begun is the parent's, whose memory is not here.
        self._left, self._aio = self._aio, None

    def _look(self) -> None:
        aio = self._aio
        if aio is None or self._going_on is not None:
            return
        try:
            self._ended += aio.ended()
        except OSError as cause:
            self._fail(cause)
            return
        if len(self._ended) > _TOLD_AT_ONCE:
            self._going_on = self._loop.call_soon(self._go_on)
        for _ in range(_TOLD_AT_ONCE):
            if not self._ended:
                return
            number, code = self._ended.popleft()
            begun = self._under_way.pop(number, None)
            if begun is None:
                continue  # Ctrl-C came as it was begun
            what, report = begun
            error: BaseException | None = None
            try:
                what.end_sync(code)
            except BaseException as raised:  # noqa: BLE001 - it is handed to the waiting caller, whatever it is
                error = raised
                self._fail(error)  # as `WorkerThreads` does
            try:
                report(None, error)
            except BaseException as raised:
                self._fail(raised)  # whatever it is, it is unknown who still waits for what
                if not isinstance(raised, Exception):
                    raise

    def _go_on(self) -> None:
        self._going_on = None
        self._look()

    def wait_here(self, seconds: float) -> bool:
        """Block the loop until a sync, or other work of a thread, has ended; see `WorkerThreads.wait_here`."""
        aio, count = self._aio, len(self._under_way)
        if aio is None or not count or not self.threads.own:
            return self.threads.wait_here(seconds)
        if not self._ended:
            watched = select.poll()
            watched.register(aio.eventfd, select.POLLIN)
            watched.poll(max(seconds, 0.0) * 1000)
        if self._going_on is not None:
            self._going_on.cancel()
        self._go_on()
        return len(self._under_way) < count

    def close(self) -> None:
        """Release the kernel's backend, after the syncs under way. Repeating it does nothing."""
        aio, self._aio = self._aio, None
        if aio is None:
            return
        try:
            self._loop.remove_reader(aio.eventfd)
        except RuntimeError:  # the loop is closed, and watches no descriptors any more
            self._under_way.clear()
        aio.close()


def _sync_each(what: Sequence[Synced]) -> None:
    for each in what:
        each.sync()
