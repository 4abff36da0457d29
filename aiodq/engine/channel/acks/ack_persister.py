"""The metadata persister of a topic: writes journals, checkpoints, descriptions and deletions, one after the other."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.loop.futures import as_failure, settle_all, tell_all
from aiodq.engine.loop.on_demand import OnDemand
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, DiskFullError, StorageError, StoreFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.loop.sync_backend import SyncBackend
    from aiodq.engine.monitoring.metrics import SyncTimer
    from aiodq.format.journal import Op
    from aiodq.storage.state.channel_journal import ChannelJournal

__all__ = ["AckPersister", "Job", "close_all"]

_FOLD_AT: Final = 32_768
"""Operations at which a journal is folded into a checkpoint, at least."""

_FOLD_PART: Final = 4
"""They are that part of its entries, too: so an ack costs the same share of the next one, however many there are."""
_LULL: Final = 0.01
"""Seconds for which acks that are not awaited gather before they are written."""

_PIECE: Final = 1000
"""The ranges of acks, and the requeues, written in one turn of the loop: about two milliseconds."""

_AT_ONCE: Final = 50
"""The channels written in one turn of the loop: about two milliseconds, too."""

_RETRY: Final = 0.25

_CRAMPED_FOR: Final = 1.0
"""Seconds after which a checkpoint that found no room is tried again."""

_TURNS_TO_GATHER: Final = 2


@dataclass(slots=True)
class Job:
    """Blocking work on a topic's files.

    Attributes:
        work: done in a thread.
        report: called on the loop with the result, or with None and the error.
        acks_first: everything settled so far has to be durable before it; what cannot be written fails it.
        patient: if that cannot be written, the job waits until it can.
        regardless: if that cannot be written, the job is done all the same.
    """

    work: Callable[[], object]
    report: Callable[[object, Exception | None], None]
    acks_first: bool = False
    patient: bool = False
    regardless: bool = False


class AckedTopic(Protocol):
    """The topic whose messages are acked."""

    async def wait_durable(self) -> None:
        """Wait until every message visible to channels is as durable as the policy makes it."""
        ...

    def are_durable(self) -> bool:
        """Return whether they are."""
        ...

    def look_behind(self, channel_engine: ChannelCore) -> None:
        """Note that a channel has settled something."""
        ...


class AckPersister:
    """The metadata persister of one topic.

    Attributes:
        durable: whether acks are synced as soon as they are written, or with the next tick.
        worker: does the work.
        closing: whether the journals are about to be closed; postponed jobs are then left to the next owner.
    """

    def __init__(
        self,
        syncs: SyncBackend,
        topic: AckedTopic,
        timer: SyncTimer,
        *,
        durable: bool,
    ) -> None:
        """Start with nothing to write.

        Args:
            syncs: the sync backend, and the threads.
            topic: the topic.
            timer: times the syncs.
            durable: whether acks are synced as soon as they are written, or with the next tick.
        """
        self._threads = syncs.threads
        self._syncs = syncs
        self._topic = topic
        self._timer = timer
        self.durable = durable
        self.closing: bool = False
        self.worker: OnDemand = OnDemand(self._run, self._commit_lone)
        self._loop = asyncio.get_running_loop()
        self._jobs: list[Job] = []
        # INVARIANT: the keys are channels, not names: a deleted channel is not confused with a new one of its name.
        self._dirty: dict[ChannelCore, None] = {}
        self._unsynced: dict[ChannelCore, None] = {}
        self._held: dict[ChannelCore, list[Op]] = {}
        # Those of `_held` that could not be written because a thread was using the journal.
        self._busy: dict[ChannelCore, None] = {}
        # Why the others in `_held` could not be written.
        self._refused: dict[ChannelCore, AiodqError] = {}
        # Channels whose checkpoint found no room on a full disk: the error, and the loop's time of the next attempt.
        self._cramped: dict[ChannelCore, tuple[DiskFullError, float]] = {}
        self._folding: ChannelCore | None = None
        # What waits for a sync that `_commit_lone` has begun; the worker has no task meanwhile.
        self._syncing: tuple[ChannelCore, list[asyncio.Future[None]]] | None = None
        self._gathering = False
        self._flush_queued = False
        self._over: Exception | None = None
        # The timer that ends the time for which unawaited acks gather. It goes on if they are written before.
        self._lull: asyncio.TimerHandle | None = None
        self._urgent = False

    def settled(self, channel_engine: ChannelCore) -> None:
        """Note that a channel has something to write; it is written soon if a caller awaits it."""
        self._dirty[channel_engine] = None
        if channel_engine.ack_waiters:
            self._urgent = True
            self.worker.want()
        elif self._lull is None:
            self._lull = self._loop.call_later(_LULL, self._lull_over)
        self._flush_queued = True

    def _lull_over(self) -> None:
        self._lull = None
        if self._flush_queued:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Write soon what there is to write."""
        self._urgent = True
        self.worker.want()

    def note(self, channel_engine: ChannelCore) -> None:
        """Note that a channel has something to write together with others: it is already durable elsewhere."""
        self._dirty[channel_engine] = None

    def write_now(self, channel_engine: ChannelCore) -> None:
        """Write a channel's unwritten operations in the caller's step; they are synced with the channel's next sync.

        If it cannot be written (a full disk), it is retried later: consuming goes on, as that makes room. If a thread
        is writing the journal at this moment, it is written right afterwards or with the next call, whichever is first:
        the loop waits for no thread.
        """
        if channel_engine in self._held and channel_engine not in self._busy:
            return
        error = self._write(channel_engine, wait=False, handed=True)
        if error is not None:
            self._put_off(channel_engine, [], error)
        elif channel_engine in self._held:
            self.settled(channel_engine)
            self._flush_soon()
        else:
            self._unsynced[channel_engine] = None

    def submit(self, job: Job) -> None:
        """Do a job after those submitted before."""
        if self._over is not None:
            job.report(None, self._over)
            return
        self._jobs.append(job)
        self.worker.want()

    def _commit_lone(self) -> bool:
        """Commit the awaited ack of a lone consumer without a task; return False if there is more to do than that.

        Those of several consumers share a flush, which lets them gather.
        """
        if self._syncing is not None:
            return True  # `_committed` goes on
        if self._gathering:
            self._gathering = False
            self.worker.want()
            return True
        found = self._lone()
        if found is None:
            return False
        channel_engine, journal = found
        self._flush_queued = self._urgent = False
        waiting, self._dirty = (channel_engine, channel_engine.ack_waiters), {}
        channel_engine.ack_waiters = []
        try:
            error = self._write(channel_engine)
            self._topic.look_behind(channel_engine)
            if error is not None:
                self._put_off(*waiting, error)
            elif self.durable:
                self._unsynced.pop(channel_engine, None)
                self._syncing = waiting
                self._timer.began()
                self._syncs.start(journal, self._committed)
            else:
                self._unsynced[channel_engine] = None
                _tell([waiting])
        except BaseException as raised:
            self._syncing = None
            self._not_written([waiting], raised)
            raise
        return True

    def _lone(self) -> tuple[ChannelCore, ChannelJournal] | None:
        """Return a channel and its journal if one awaited ack of it is all that there is to do."""
        if len(self._dirty) != 1 or self._jobs or self._held or self._refused or self._cramped:
            return None
        (channel_engine,) = self._dirty
        journal, state = channel_engine.journal, channel_engine.state
        if len(channel_engine.ack_waiters) != 1 or state is None or journal is None or not journal.ready:
            return None
        if journal.scant or _is_long(journal) or state.unjournaled.pieces > _PIECE:
            return None
        if self.durable and not self._topic.are_durable():
            return None  # INVARIANT: as in `_sync_journals`
        return channel_engine, journal

    def _committed(self, _: None, error: BaseException | None) -> None:
        """Tell the lone consumer that its ack was synced, or why it was not; go on with what has come meanwhile."""
        self._timer.ended()
        if self._syncing is None:
            return  # it was told why the store has stopped
        if error is None:
            _tell([self._syncing])
        else:
            self._unsynced[self._syncing[0]] = None  # for the next sync, if only no thread was free for this one
            self._not_written([self._syncing], error)
        self._syncing = None  # last: if Ctrl-C comes before, `fail` tells it
        if error is not None and not isinstance(error, AiodqError):
            raise error  # whatever it is, it stops the store, which tells those who wait
        self._gathering = self._urgent  # a turn more, as in `_gather`
        if self._urgent or self._jobs:
            self.worker.want()

    async def _run(self) -> None:
        """Write what was settled, then do the jobs, one after the other, until nothing is left that is urgent."""
        while self._urgent or self._jobs:
            self._urgent = False
            if self._flush_queued:
                await self.flush(sync=self.durable)
            if self._jobs:
                await self._do(self._jobs.pop(0))

    async def _do(self, job: Job) -> None:
        try:
            if job.acks_first and not await self._ready_for(job):
                return
            result = await self._threads.call(job.work)
        except AiodqError as error:
            job.report(None, error)
            if isinstance(error, StoreFailedError):
                raise
        except Exception as error:
            failure = as_failure(error)
            job.report(None, failure)
            raise failure from error
        except BaseException:
            # No failure of the store's: what else was accepted is still to be written.
            job.report(None, self._over or QueueShutDown("the event loop ended before the store was closed"))
            raise
        else:
            if job.patient:
                await self._take_room()
            job.report(result, None)

    async def _take_room(self) -> None:
        """Let cramped journals reserve the space that a deletion has freed, before other files take it."""
        for journal in [channel_engine.journal for channel_engine in self._cramped]:
            if journal is not None:
                await self._threads.call(journal.top_up)

    async def _ready_for(self, job: Job) -> bool:
        """Make durable everything settled so far; return False if the job is put off as that is not possible now.

        Raises:
            StorageError: what was settled could not be written, and the job does not wait for it.
            StoreFailedError: a sync failed.
        """
        # The last of a cramped journal's reserve is for jobs that make room, or that are not repeated.
        await self.flush(sync=True, last=job.patient or job.regardless)
        for channel_engine in list(self._dirty):
            if channel_engine in self._refused and channel_engine not in self._cramped:
                await self._fold(channel_engine)  # where blocks find no room, a checkpoint may
        error = next(iter(self._refused.values()), None)
        # INVARIANT: nothing counts as durable, and nothing is deleted, by acks that are in memory only.
        if error is None or job.regardless:
            return True
        if not job.patient:
            raise error
        asyncio.get_running_loop().call_later(_RETRY, self._again, job, error)
        return False

    def _again(self, job: Job, error: AiodqError) -> None:
        """Do a postponed job, unless the journals are being closed."""
        if self.closing:
            job.report(None, error)
        else:
            self.submit(job)

    def fail(self, error: Exception) -> None:
        """Fail the jobs that will not be done, and those submitted later."""
        self._over = error
        if self._lull is not None:
            self._lull.cancel()
        if self._syncing is not None:
            self._not_written([self._syncing], error)
            self._syncing = None
        jobs, self._jobs = self._jobs, []
        tell_all(error, [partial(job.report, None) for job in jobs])

    @property
    def unsynced(self) -> bool:
        """Whether something was written and not synced, or is about to be."""
        return bool(self._unsynced) or self._flush_queued

    async def flush(self, *, sync: bool, last: bool = False) -> None:
        """Write what channels have unwritten, and sync it if asked to; with `last`, also into the last of a reserve.

        Raises:
            StoreFailedError: a sync failed.
        """
        self._flush_queued = self._urgent = False
        channel_engines, self._dirty = list(self._dirty), {}
        waiting: list[tuple[ChannelCore, list[asyncio.Future[None]]]] = []
        try:
            await self._wake(channel_engines)
            for number, channel_engine in enumerate(channel_engines):
                if number and not number % _AT_ONCE:
                    await asyncio.sleep(0)
                waiters, channel_engine.ack_waiters = channel_engine.ack_waiters, []
                waiting.append((channel_engine, waiters))
                error = await self._write_all(channel_engine, last=last)
                self._topic.look_behind(channel_engine)
                if error is None:
                    self._unsynced[channel_engine] = None
                else:
                    waiting.pop()
                    self._put_off(channel_engine, waiters, error)
            if sync:
                await self._sync_journals()
        except BaseException as raised:
            self._not_written(waiting, raised)
            raise
        _tell(waiting)
        for number, channel_engine in enumerate(channel_engines, 1):
            await self._keep_up(channel_engine)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        if self._dirty:
            await self._gather(sum(len(waiters) for _, waiters in waiting))

    async def _gather(self, told: int) -> None:
        """Let the tasks just woken ack again before the next write, unless more tasks than those already wait for it.

        Otherwise they would split into two groups that wait for each other's syncs (see `GroupCommit.synced` for puts).
        They wake up and get the next message within one turn of the loop, or within two if `get` yields to others.
        """
        for _ in range(_TURNS_TO_GATHER):
            if not 0 < sum(len(channel_engine.ack_waiters) for channel_engine in self._dirty) <= told:
                return
            await asyncio.sleep(0)

    def _not_written(
        self, waiting: list[tuple[ChannelCore, list[asyncio.Future[None]]]], raised: BaseException
    ) -> None:
        """Fail the waiters of acks; if the store is about to stop, leave them to be failed with its error."""
        error = self._over or (raised if isinstance(raised, AiodqError) else None)
        for channel_engine, waiters in waiting:
            if error is None:
                channel_engine.ack_waiters[:0] = waiters
            else:
                settle_all(waiters, error)

    async def _wake(self, channel_engines: list[ChannelCore]) -> None:
        """Open off the loop the journals that were closed while idle."""
        for channel_engine in channel_engines:
            if channel_engine.journal is not None and not channel_engine.journal.ready:
                # One that cannot be opened reports that when it is written.
                with suppress(StorageError):
                    await self._threads.call(channel_engine.journal.wake)

    async def _keep_up(self, channel_engine: ChannelCore) -> None:
        """Make room for the next acks. A reserve that stays scant is on a full disk, where only a fold makes room."""
        journal = channel_engine.journal
        if journal is None or channel_engine in self._held:
            return
        scant = journal.scant
        if scant:
            await self._threads.call(journal.top_up)
            scant = journal.scant
        if not scant:
            self._cramped.pop(channel_engine, None)
        elif channel_engine in self._cramped and self._cramped[channel_engine][1] > asyncio.get_running_loop().time():
            return
        if _is_long(journal) or (scant and journal.pending):
            await self._fold(channel_engine)

    async def _sync_journals(self) -> None:
        journals = [channel_engine.journal for channel_engine in self._unsynced if channel_engine.journal is not None]
        self._unsynced = {}
        if not journals:
            return
        # INVARIANT: no ack is durable of a message that is not. A transaction's messages may still lie in its own file
        # only, and be appended to the log at the same offsets again.
        await self._topic.wait_durable()
        with self._timer:
            await self._syncs.sync_all(journals)

    async def _write_all(self, channel_engine: ChannelCore, *, last: bool) -> AiodqError | None:
        """Write a channel's present unwritten operations, one piece per turn of the loop; later ones may wait."""
        error, state = self._write(channel_engine, last=last), channel_engine.state
        pieces = 0 if state is None else -(-state.unjournaled.pieces // _PIECE)
        while pieces and error is None:
            # CRASH: each piece is a block of its own, so some may be there and others not: no ack was confirmed yet.
            await asyncio.sleep(0)
            error = self._write(channel_engine, last=last)
            pieces -= 1
        return error

    def _write(
        self, channel_engine: ChannelCore, *, wait: bool = True, last: bool = False, handed: bool = False
    ) -> AiodqError | None:
        if channel_engine.state is None or channel_engine.journal is None:
            # A channel that was deleted holds nothing up; one that was closed without its acks holds up deletions.
            self._cramped.pop(channel_engine, None)
            self._held.pop(channel_engine, None)
            self._busy.pop(channel_engine, None)
            if not self.closing:
                self._refused.pop(channel_engine, None)
            return None
        if channel_engine in self._cramped:
            # Acks gathered in memory become few operations: the last of the reserve lasts for many deletable segments.
            if not last and channel_engine.journal.spent:
                return self._refused.setdefault(channel_engine, self._cramped[channel_engine][0])
            if self._held.pop(channel_engine, None) is not None:
                channel_engine.state.renote()
        self._refused.pop(channel_engine, None)
        self._busy.pop(channel_engine, None)
        ops = channel_engine.state.handed_ops() if handed and channel_engine not in self._held else None
        if ops is None and not (ops := self._take_ops(channel_engine, channel_engine.state)):
            return None
        try:
            if not channel_engine.journal.append(ops, wait=wait):
                self._held[channel_engine] = ops
                self._busy[channel_engine] = None
        except StoreFailedError:
            raise
        except AiodqError as error:
            self._held[channel_engine], self._refused[channel_engine] = ops, error
            return error
        return None

    def _take_ops(self, channel_engine: ChannelCore, state: ChannelState) -> list[Op]:
        """Return what could not be written, and a piece of what has come since."""
        wall, now = channel_engine.times() if state.unjournaled.requeues else (0, 0)
        ops = state.take_ops(wall, now, _PIECE)
        held = self._held.pop(channel_engine, None)
        return ops if held is None else [*held, *ops]

    def _put_off(self, channel_engine: ChannelCore, waiters: list[asyncio.Future[None]], error: AiodqError) -> None:
        """Keep for later what could not be written. It stays settled; its waiters learn that it is not durable."""
        settle_all(waiters, error)
        # A flush that needs all acks to be durable, such as that of a close, does not wait for the timer.
        self._dirty[channel_engine] = None
        asyncio.get_running_loop().call_later(_RETRY, self.settled, channel_engine)

    def write_blocking(self, channel_engine: ChannelCore) -> None:
        """Write and sync a channel's unwritten and postponed operations. Blocking; the persister has ended by then.

        Raises:
            StorageError: it could not be written, or it is unknown what is on disk.
        """
        journal, state = channel_engine.journal, channel_engine.state
        if journal is None or state is None:
            return
        if channel_engine is self._folding:
            state.renote()  # it is unknown whether the checkpoint holds it
        if ops := [*self._held.pop(channel_engine, ()), *state.take_ops(*channel_engine.times())]:
            journal.append(ops)
            journal.sync()

    async def _fold(self, channel_engine: ChannelCore) -> None:
        journal, state = channel_engine.journal, channel_engine.state
        if journal is None or state is None:
            return
        await self._topic.wait_durable()
        if channel_engine in self._busy:
            return
        # The image holds them, too.
        self._held.pop(channel_engine, None)
        snapshot = state.snapshot(*channel_engine.times())
        state.all_noted()
        journal.imaged()
        self._folding = channel_engine
        try:
            await self._threads.call(lambda: journal.fold(snapshot))
        except StoreFailedError:
            raise
        except StorageError as error:
            # The journal stands as it was; the operations that the image would have replaced are written again.
            state.renote()
            self._refused[channel_engine] = error
            if isinstance(error, DiskFullError):
                self._cramped[channel_engine] = error, asyncio.get_running_loop().time() + _CRAMPED_FOR
            self._put_off(channel_engine, [], error)
        else:
            self._refused.pop(channel_engine, None)
            self._cramped.pop(channel_engine, None)
        self._folding = None


def _is_long(journal: ChannelJournal) -> bool:
    """Return whether a journal is to be folded."""
    return journal.pending >= max(_FOLD_AT, journal.noted // _FOLD_PART)


def _tell(waiting: list[tuple[ChannelCore, list[asyncio.Future[None]]]]) -> None:
    """Wake the waiters of written acks; in the next turn of the loop they ask for more messages."""
    for _, waiters in waiting:
        settle_all(waiters)
    for channel_engine, waiters in waiting:
        if waiters:
            channel_engine.turn.begin()  # after all of them: a clock may raise


def close_all(channel_engines: list[ChannelCore], *, fold: bool) -> None:
    """Close journals, with `fold` as checkpoints, which are read sooner. Blocking; nothing else may use the files."""
    for channel_engine in channel_engines:
        journal, state = channel_engine.journal, channel_engine.state
        if journal is None or state is None:
            continue
        if fold and journal.pending:
            # On a full disk the journal stays as it is and holds the same state.
            with suppress(DiskFullError):
                journal.fold(state.snapshot(*channel_engine.times()))
        channel_engine.journal = None
        journal.close()
