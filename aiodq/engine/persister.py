"""The metadata persister: journals and checkpoints of channels, descriptions, deletions. One thing at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from aiodq.engine.settle import as_failure, settle, tell_all
from aiodq.errors import AiodqError, DiskFullError, StorageError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.engine.offload import Offload
    from aiodq.engine.settling import Settling
    from aiodq.engine.vitals import SyncTimer
    from aiodq.format.journal import Op
    from aiodq.storage.journal import ChannelJournal

__all__ = ["Job", "MetadataPersister", "fold_all"]

_FOLD_AT: Final = 32_768
_LULL: Final = 0.01
"""Seconds that acks nobody waits for may gather before they are written."""

_RETRY: Final = 0.25


@dataclass(slots=True)
class Job:
    """Blocking work on a topic's files.

    Attributes:
        work: done in a thread.
        report: called on the loop with the result, or with None and the error.
        acks_first: everything settled so far has to be durable before.
    """

    work: Callable[[], object]
    report: Callable[[object, Exception | None], None]
    acks_first: bool = False


class MetadataPersister:
    """One per topic."""

    def __init__(
        self, offload: Offload, secure: Callable[[], Awaitable[None]], timer: SyncTimer, *, durable: bool
    ) -> None:
        """Keep the files of a topic.

        Args:
            offload: the threads.
            secure: returns when every message that may be acked is durable.
            timer: times the syncs.
            durable: whether acks are synced as soon as they are written, or left to `sync_all`.
        """
        self._offload = offload
        self._secure = secure
        self._timer = timer
        self.durable = durable
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._dirty: dict[str, Settling] = {}
        self._unsynced: dict[str, Settling] = {}
        self._held: dict[str, list[Op]] = {}
        self._flush_queued = False
        self._over: Exception | None = None
        self._urgent = asyncio.Event()
        self.syncs: int = 0

    def settled(self, outlet: Settling) -> None:
        """Note that a channel has something to write; soon if somebody waits for it."""
        self._dirty[outlet.name] = outlet
        if outlet.ack_waiters:
            self._urgent.set()
        if not self._flush_queued:
            self._flush_queued = True
            self._jobs.put_nowait(None)

    def note(self, outlet: Settling) -> None:
        """Note that a channel has something to write whenever others do: it is durable elsewhere so far."""
        self._dirty[outlet.name] = outlet

    def write_now(self, outlet: Settling) -> None:
        """Write what a channel has to say, on the caller's time; it is synced when something else of it is.

        Where that cannot be done (a full disk) it is tried again: consuming goes on, as that is what makes room. And
        where a thread writes the journal this very moment, it is written right after: the loop waits for no thread.
        """
        if outlet.name in self._held:
            return
        error = self._write(outlet, wait=False)
        if error is not None:
            self._put_off(outlet, [], error)
        elif outlet.name in self._held:
            self.settled(outlet)
        else:
            self._unsynced[outlet.name] = outlet

    def submit(self, job: Job) -> None:
        """Do this after what was submitted before."""
        if self._over is not None:
            job.report(None, self._over)
            return
        self._urgent.set()
        self._jobs.put_nowait(job)

    async def run(self) -> None:
        """Work."""
        while True:
            job = await self._jobs.get()
            if job is None:
                await self._lull()
                await self.flush(sync=self.durable)
                continue
            await self._do(job)

    async def _do(self, job: Job) -> None:
        try:
            if job.acks_first:
                await self.flush(sync=True)
            result = await self._offload.call(job.work)
        except AiodqError as error:
            job.report(None, error)
            if isinstance(error, StoreFailedError):
                raise
        except Exception as error:
            failure = as_failure(error)
            job.report(None, failure)
            raise failure from error
        except BaseException:
            job.report(None, self._over or StoreFailedError("the store's engine was stopped"))
            raise
        else:
            job.report(result, None)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for what will not be done, and whoever asks for more."""
        self._over = error
        jobs = [self._jobs.get_nowait() for _ in range(self._jobs.qsize())]
        tell_all(error, [partial(job.report, None) for job in jobs if job is not None])

    @property
    def unsynced(self) -> bool:
        """Whether something was written that is not synced, or is about to be."""
        return bool(self._unsynced) or self._flush_queued

    async def _lull(self) -> None:
        if not self._urgent.is_set():
            with anyio.move_on_after(_LULL):
                await self._urgent.wait()

    async def flush(self, *, sync: bool) -> None:
        """Write what channels have to say, and have it synced where asked.

        Raises:
            StoreFailedError: a sync failed.
        """
        self._flush_queued = False
        self._urgent.clear()
        outlets, self._dirty = list(self._dirty.values()), {}
        waiting: list[tuple[Settling, list[asyncio.Future[None]]]] = []
        try:
            await self._wake(outlets)
            for outlet in outlets:
                waiters, outlet.ack_waiters = outlet.ack_waiters, []
                waiting.append((outlet, waiters))
                error = self._write(outlet)
                if error is None:
                    self._unsynced[outlet.name] = outlet
                else:
                    waiting.pop()
                    self._put_off(outlet, waiters, error)
            if sync:
                await self._sync_journals()
        except BaseException as raised:
            self._not_written(waiting, raised)
            raise
        for _, waiters in waiting:
            for waiter in waiters:
                settle(waiter, None, None)
        for outlet in outlets:
            await self._keep_up(outlet)

    def _not_written(self, waiting: list[tuple[Settling, list[asyncio.Future[None]]]], raised: BaseException) -> None:
        """Tell who waits for their acks, or, where the store is about to stop, let them wait to be told of that."""
        error = self._over or (raised if isinstance(raised, AiodqError) else None)
        for outlet, waiters in waiting:
            if error is None:
                outlet.ack_waiters[:0] = waiters
            else:
                for waiter in waiters:
                    settle(waiter, None, error)

    async def _wake(self, outlets: list[Settling]) -> None:
        """Have journals opened off the loop that were closed while they were idle."""
        for outlet in outlets:
            if outlet.journal is not None and not outlet.journal.ready:
                # What cannot be opened says so when it is written.
                with suppress(StorageError):
                    await self._offload.call(outlet.journal.wake)

    async def _keep_up(self, outlet: Settling) -> None:
        """Have room for the next acks. A reserve that stays scant is on a full disk, where only a fold makes room."""
        journal = outlet.journal
        if journal is None:
            return
        if journal.scant:
            await self._offload.call(journal.top_up)
        if journal.pending >= _FOLD_AT or (journal.scant and journal.pending):
            await self._fold(outlet)

    async def _sync_journals(self) -> None:
        journals = [outlet.journal for outlet in self._unsynced.values() if outlet.journal is not None]
        self._unsynced = {}
        if not journals:
            return
        # INVARIANT: no ack is durable of a message that is not. A transaction's may yet lie in its own file only,
        # and come into the log under the same offset once more.
        await self._secure()
        await self._offload.call(_sync_all, journals)
        self.syncs += len(journals)

    def _write(self, outlet: Settling, *, wait: bool = True) -> AiodqError | None:
        if outlet.state is None or outlet.journal is None:
            return None
        ops = [*self._held.pop(outlet.name, ()), *outlet.state.take_ops(*outlet.times())]
        if not ops:
            return None
        try:
            if not outlet.journal.append(ops, wait=wait):
                self._held[outlet.name] = ops
        except AiodqError as error:
            self._held[outlet.name] = ops
            return error
        return None

    def _put_off(self, outlet: Settling, waiters: list[asyncio.Future[None]], error: AiodqError) -> None:
        """Keep what could not be written for later. The settling stands; who waits learns that it is not durable."""
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        # Whoever needs all acks to be durable, a close for one, does not wait for the timer.
        self._dirty[outlet.name] = outlet
        asyncio.get_running_loop().call_later(_RETRY, self.settled, outlet)

    async def _fold(self, outlet: Settling) -> None:
        journal, state = outlet.journal, outlet.state
        if journal is None or state is None or outlet.name in self._held:
            return
        await self._secure()
        image = state.image(*outlet.times())
        state.take_ops()
        journal.imaged()
        try:
            await self._offload.call(journal.fold, image)
        except DiskFullError as error:
            # The journal stands as it was; what the image adds to it is said again.
            state.renote()
            self._put_off(outlet, [], error)


def _sync_all(journals: list[ChannelJournal]) -> None:
    for journal in journals:
        journal.sync()


def fold_all(outlets: list[Settling]) -> None:
    """Leave checkpoints instead of journals, and close the files. Blocking; nothing else may use them."""
    for outlet in outlets:
        journal, state = outlet.journal, outlet.state
        if journal is None or state is None:
            continue
        if journal.pending:
            # On a full disk the journal stays as it is and holds the same.
            with suppress(DiskFullError):
                journal.fold(state.image(*outlet.times()))
        outlet.journal = None
        journal.close()
