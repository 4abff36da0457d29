"""Commits transactions in groups: one sync of the transaction log for each group, then the topics are changed.

A transaction's acks and puts are first written to the transaction log (`aiodq.format.transactions`) and synced: that is
the commit. Then its puts are appended to the topics' logs, and its acks are entered in the channels' states. These need
no sync of their own: if they are lost, the transaction log still holds them. About once a second, and before a seek, a
purge or a deletion, the logs and journals are synced and the transaction log is emptied.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from aiodq.awaited import mark_retrieved, shielded
from aiodq.engine.committing.entries import Entry, HeldRun, Letter, Letters, in_pieces
from aiodq.engine.committing.reserved_room import ReservedRoom, Share
from aiodq.engine.committing.topic_appender import TopicAppender
from aiodq.engine.loop.futures import settle, tell_all
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.topic.no_log import NoLog
from aiodq.engine.transactions.participants import AckRun, joined_runs
from aiodq.errors import AiodqError, DiskFullError, StoreFailedError, again, not_in_flight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence

    from aiodq.clock import Clock
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.monitoring.metrics import SyncTimer
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.engine.transactions.participants import Topic
    from aiodq.format.columns import Columns
    from aiodq.format.producers import Origin
    from aiodq.storage.state.transactions.transaction_log import TransactionFile

__all__ = ["Committer"]

_PERIOD: Final = 1.0
"""Seconds after a commit until logs and journals are synced and the transaction log is emptied."""

_COUNTED: Final = 5000
"""Runs that a transaction settles, counted by channel in one turn of the loop: a millisecond's work."""

_MOST_AT_ONCE: Final = 256
"""Transactions of a group, which is looked through, committed and put in single steps: two milliseconds each."""

_TOPICS_AT_ONCE: Final = 100
"""Topics that are created, put into or synced in one turn of the loop, or channels: two milliseconds, too."""

_LIMIT: Final = 1 << 22
"""Bytes in the transaction log from which on it is emptied earlier."""


async def _counted(settlements: Sequence[AckRun]) -> Counter[object]:
    """Return how many messages are of each channel; very many runs are counted some in each turn of the loop."""
    counts = Counter[object]()
    for begin in range(0, len(settlements), _COUNTED):
        if begin:
            await asyncio.sleep(0)
        for run in settlements[begin : begin + _COUNTED]:
            counts[run.channel_engine] += run.stop - run.start
    return counts


class Committer:
    """The committer of transactions; one per store.

    Attributes:
        committed: the number of transactions committed since the store was opened.
        largest: the most bytes of messages that a transaction, or a group of several, may put.
        deciding: the transactions with an origin whose outcome is not known yet, each with a future of it.
    """

    largest: ClassVar[int] = 1 << 28

    def __init__(
        self,
        file: TransactionFile,
        threads: WorkerThreads,
        clock: Clock,
        timer: SyncTimer,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Commit to this file. `timer` measures its syncs, `fail` stops the store."""
        self.committed: int = 0
        self.deciding: dict[Origin, asyncio.Future[None]] = {}
        self._file, self._threads, self._clock = file, threads, clock
        self._sync_timer = timer
        self._fail = fail
        # In order of arrival; a cancelled one is removed in constant time.
        self._waiting: OrderedDict[Entry, None] = OrderedDict()
        self._undecided: dict[asyncio.Future[None], Entry] = {}
        self._appenders: dict[TopicEngine, TopicAppender] = {}
        self._settled: dict[ChannelEngine[Any], TopicEngine] = {}
        # By topic, the letters that wait and that others may still join.
        self._letters: dict[TopicEngine, Letters] = {}
        # Committed transactions whose acks are not all entered in their channels yet.
        self._settling: dict[Entry, None] = {}
        self._turn, self._wake = asyncio.Lock(), asyncio.Event()
        self._over: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._drop: Callable[[], None] | None = None
        if file.stale:
            self._arm()

    # --- recovery

    def recovered(
        self, engine: TopicEngine, channel_engines: Iterable[ChannelEngine[Any]], left: Sequence[Columns]
    ) -> None:
        """Take over a topic that transactions in the transaction log refer to.

        Args:
            engine: the topic's engine.
            channel_engines: its channels in which they settle messages.
            left: the messages that could not be put into it when the store was opened.
        """
        engine.segment_deletion.pin(0)
        self._settled.update(dict.fromkeys(channel_engines, engine))
        appender = self._appenders[engine] = TopicAppender(engine)
        for columns in left:
            appender.add(columns)

    def take_up(self, drop: Callable[[], None]) -> None:
        """Call `drop`, which blocks, once the topics durably hold their parked transactions."""
        self._drop = drop
        self._arm()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due = True
        self._wake.set()

    # --- transactions that may be repeated

    def knows(self, origin: Origin) -> bool:
        """Return whether a transaction is committed. Look into `deciding` too."""
        return origin in self._file.origins

    # --- what a transaction calls

    async def commit(
        self,
        settlements: Sequence[AckRun],
        puts: Sequence[tuple[Topic, Columns, int]],
        late: Callable[[BaseException | None], None],
        origin: Origin | None = None,
    ) -> None:
        """Commit a transaction; return when all of it is durable and, unless the disk is full, visible.

        Args:
            settlements: the messages that it settles, in runs.
            puts: what it puts: each topic, the messages, and their cost in bytes of memory.
            late: called with the outcome if the caller is cancelled while the commit is under way.
            origin: its producer and sequence, if it may be sent again.

        Raises:
            NotInFlightError: a message was taken away meanwhile; nothing was done.
            QueueFull: a topic's bound is reached and its policy is `"reject"`; nothing was done.
            QueueShutDown: the store is closed; nothing was done.
            DiskFullError: nothing was done, and it may be tried again.
            StorageError: a topic that is put into cannot be created or used; nothing was done.
            StoreFailedError: the store has stopped.

        Cancellation: either nothing was done, or it is committed although the caller was cancelled.
        """
        room = ReservedRoom(await _counted(settlements), pressing=bool(settlements))
        # A committer gets topics and channels of its own store only, which are engines.
        own = cast("Sequence[tuple[TopicEngine, Columns, int]]", puts)
        entry = Entry(own, asyncio.get_running_loop().create_future(), origin, room)
        ahead = own[0][0].put_buffer.ahead() if own else 0
        for count, (engine, _, _) in enumerate(own, 1):
            engine.put_buffer.check_open(pressing=bool(settlements))
            if not count % _TOPICS_AT_ONCE:
                await asyncio.sleep(0)
        try:
            await room.reserve([Share(engine, len(columns.bodies), cost) for engine, columns, cost in own])
            await self._hold(entry, settlements)
            # Last: a transaction that is refused leaves no empty topic.
            await self._create([engine for engine, _, _ in own])
            self._check()
            entry.set_in_time(ahead)
        except BaseException:
            entry.release()
            raise
        if origin is not None:
            self.deciding[origin] = entry.done
        self._queue(entry)
        try:
            await shielded(entry.done)
        except asyncio.CancelledError:
            if entry in self._waiting:
                del self._waiting[entry]
                entry.release()
                entry.done.cancel()  # others may wait for the outcome
                self._decided(entry.done, origin)
            else:
                entry.done.add_done_callback(lambda done: late(done.exception()))
            raise

    def _queue(self, entry: Entry) -> None:
        """Have an entry committed."""
        self._undecided[entry.done] = entry
        entry.done.add_done_callback(lambda done: self._decided(done, entry.origin))
        self._waiting[entry] = None
        self._wake.set()

    async def settle_dead(self, letter: Letter, target: TopicEngine) -> None:
        """Put a dead letter and settle its message in one transaction; return when all of it is durable and visible.

        The letters that wait at the same moment share a transaction. Room for this one is reserved, and is released
        unless it is committed.

        Raises:
            NotInFlightError: the message was taken away meanwhile; nothing was done.
            QueueShutDown: the store is closed, or the topic deleted; nothing was done.
            DiskFullError: nothing was done, and it may be tried again.
            StorageError: the topic cannot be created or used; nothing was done.
            StoreFailedError: the store has stopped.

        Cancellation: either nothing was done, or it is committed although the caller was cancelled.
        """
        try:
            target.put_buffer.check_open(pressing=True)
            if not target.creation.exists or isinstance(target.log, NoLog):
                await self._create([target])
            self._check()
        except BaseException:
            target.put_buffer.unreserve(1, letter.cost)
            raise
        letters = self._letters.get(target)
        if letters is None or not letters.add(letter, self.largest):
            letters = self._letters[target] = Letters(target)
            letters.add(letter, self.largest)
            self._queue(letters)
        await letter.done

    def _check(self) -> None:
        """Raise unless transactions are committed: an entry that came later would wait for ever."""
        if self._over is not None:
            raise again(self._over)

    async def _create(self, engines: Sequence[TopicEngine]) -> None:
        """Create those of the topics that do not exist."""
        for number, engine in enumerate(engines, 1):
            engine.creation.create()  # all of them before the first one is waited for: threads make several at a time
            if not number % _TOPICS_AT_ONCE:
                await asyncio.sleep(0)
        for number, engine in enumerate(engines, 1):
            # INVARIANT: the topics exist, so that committed messages can be put there as soon as the disk has room.
            with suppress(DiskFullError):
                await engine.creation.made()
            if not number % _TOPICS_AT_ONCE:
                await asyncio.sleep(0)

    def _decided(self, done: asyncio.Future[None], origin: Origin | None) -> None:
        self._undecided.pop(done, None)
        if origin is not None and self.deciding.get(origin) is done:
            del self.deciding[origin]

    async def _hold(self, entry: Entry, settlements: Sequence[AckRun]) -> None:
        for piece in in_pieces(joined_runs(settlements)):
            if entry.settlements:
                await asyncio.sleep(0)
            self._check()
            for run in piece:
                engine, channel_engine = cast("tuple[TopicEngine, ChannelEngine[Any]]", run[:2])  # see `commit`
                held = channel_engine.transaction_holds.hold(run.start, run.stop, run.delivery)
                entry.hold(HeldRun(engine, channel_engine, *run[2:], held))

    @asynccontextmanager
    async def without_transactions(self) -> AsyncIterator[None]:
        """See `TopicEngineHost.without_transactions`.

        Raises:
            StorageError: what was committed could not be put into a topic yet.
            StoreFailedError: the store has stopped.
        """
        async with self._turn:
            await self._empty()
            yield

    def forget(self, engine: TopicEngine) -> None:
        """Drop what cannot be put into a topic that is being deleted, or could not before it became unusable."""
        engine.forgotten = True
        for one, appender in self._appenders.items():
            if one is engine or (one.stopped and one.name == engine.name):
                one.forgotten = True
                appender.give_up()

    # --- the task

    async def run(self) -> None:
        """Commit transactions until the store stops."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                async with self._turn:
                    await self._work()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            # INVARIANT: no caller waits for a commit that never comes, and later callers are refused.
            self._over = self._stopped()
            waiting, self._waiting = list(self._waiting), OrderedDict()
            _refuse(waiting, self._over)

    async def _work(self) -> None:
        hindrance = None
        if self._due or self._file.stale or self._file.size > _LIMIT:
            self._due = False
            try:
                await self._empty()
            except StoreFailedError:
                raise
            except AiodqError as error:
                hindrance = error
                self._arm()
        entries = await self._taken()
        if hindrance is not None and (self._file.stale or self._file.size > _LIMIT):
            _refuse(entries, hindrance)
        elif entries:
            await self._commit(entries)

    async def _taken(self) -> list[Entry]:
        """Return the next group to be committed; refuse transactions that cannot be committed any more."""
        taken = self._group()
        entries: list[Entry] = []
        try:
            for entry in taken:
                if any(engine.closed for engine in entry.topics):
                    _refuse([entry], QueueShutDown("a topic of the transaction was deleted"))
                elif not await entry.holds():
                    _refuse([entry], not_in_flight("a message of the transaction"))
                else:
                    entries.append(entry)
        except BaseException:
            _refuse(taken, self._stopped())
            raise
        return entries

    def _group(self) -> list[Entry]:
        """Take the next group, in order, up to a number and `largest` bytes; the rest is committed after it."""
        # INVARIANT: the transaction log never grows beyond what is read of it when the store is opened.
        group, cost = list[Entry](), 0
        while self._waiting and len(group) < _MOST_AT_ONCE:
            entry = next(iter(self._waiting))
            cost += entry.cost
            if group and cost > self.largest:
                break
            del self._waiting[entry]
            for engine in entry.topics:
                if self._letters.get(engine) is entry:
                    del self._letters[engine]
            group.append(entry)
        if self._waiting:
            self._wake.set()
        return group

    def _stopped(self) -> Exception:
        return self._over or StoreFailedError("the store's engine was stopped")

    async def _commit(self, entries: list[Entry]) -> None:
        try:
            await self._wait_durable(entries)
            commits = [entry.commit() for entry in entries]
            for entry in entries:
                for engine, _, _ in entry.puts:
                    engine.segment_deletion.pin(engine.log.durable)
            with self._sync_timer:
                numbers = await self._threads.call(self._file.append, commits, self._clock.now_ns())
        except StoreFailedError as error:
            _refuse(entries, error)
            raise
        except AiodqError as error:
            _refuse(entries, error)
            self._unpin(entries)
            return
        except BaseException:
            _refuse(entries, self._stopped())
            raise
        try:
            for number, entry in zip(numbers, entries, strict=True):
                await self._enter(entry, number)
        except asyncio.CancelledError:
            # They are committed, but are entered only when the store is next opened.
            _refuse(entries, self._stopped())
            raise
        self._arm()

    def _unpin(self, entries: list[Entry]) -> None:
        """Let go of topics that only transactions which were refused put into; others are when the log is emptied."""
        for engine in chain.from_iterable(entry.topics for entry in entries):
            if engine not in self._appenders and not engine.closed:
                engine.segment_deletion.unpin()

    async def _wait_durable(self, entries: list[Entry]) -> None:
        """Wait until every message that these transactions settle is durable."""
        # A dict keeps the order, unlike a set: a simulated run is the same each time.
        stops: dict[TopicEngine, int] = {}
        for engine, stop in chain.from_iterable(entry.stops() for entry in entries):
            stops[engine] = max(stop, stops.get(engine, 0))
        for engine, stop in stops.items():
            if engine.log.durable < stop:
                await engine.sync_log()

    async def _enter(self, entry: Entry, number: int) -> None:
        """Carry out a committed transaction: append its puts to their topics, then enter its acks.

        INVARIANT: the next one is entered after it, so that each topic has the puts in the order of the commits.
        """
        self.committed += not isinstance(entry, Letters)
        if entry.origin is not None:
            self._file.origins.note(entry.origin, self._clock.now_ns())
        self._settled.update((channel_engine, engine) for engine, channel_engine in entry.ranges)
        self._settling[entry] = None
        entry.room.handed_over()
        left = len(entry.puts)

        def tried() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._settle(entry, in_pieces(entry.settlements))

        if not entry.puts:
            tried()
        for count, (engine, columns, cost) in enumerate(entry.puts, 1):
            columns.transaction = number
            if engine not in self._appenders:
                self._appenders[engine] = TopicAppender(engine)
            self._appenders[engine].add(columns, tried, reserved=cost)
            if not count % _TOPICS_AT_ONCE:
                await asyncio.sleep(0)

    def _settle(self, entry: Entry, pieces: Iterator[list[HeldRun]]) -> None:
        """Enter acks, a few in each turn of the loop, then end `commit`. The puts are visible before the acks."""
        try:
            entry.room.end_credits()
            for run in (piece := next(pieces, [])):
                entry.settle(run)
        except BaseException as error:
            self._fail(error)  # whatever it is, the store stops and all waiters are failed
            if not isinstance(error, Exception):
                raise
            piece = []
        if piece and len(piece) < len(entry.settlements):
            asyncio.get_running_loop().call_soon(self._settle, entry, pieces)
            return
        self._settling.pop(entry, None)
        settle(entry.done, None, None)

    async def _empty(self) -> None:
        """Wait until topics and channels hold durably what was committed, then empty the transaction log."""
        if not (self._appenders or self._settled or self._file.stale or self._file.size or self._drop):
            return
        for appender in self._appenders.values():
            await appender.idle()
        # INVARIANT: acks leave the transaction log only once they are in the channels' journals.
        # Shielded: if this is cancelled, the callers of `commit` still get their outcome.
        await asyncio.gather(*(shielded(entry.done) for entry in self._settling))
        # What a closed topic had is durable: its deletion failed, and it is no longer in use.
        settled = {channel: engine for channel, engine in self._settled.items() if not engine.closed}
        touched = dict.fromkeys(engine for engine in (*self._appenders, *settled.values()) if not engine.closed)
        await _each_done([channel_engine.committed for channel_engine in settled])
        await _each_done([engine.sync for engine in touched])
        await self._threads.call(self._file.reset, self._clock.now_ns())
        if self._drop is not None:
            await self._threads.call(self._drop)
            self._drop = None
        self._appenders.clear()
        self._settled.clear()
        for engine in touched:
            engine.segment_deletion.unpin()

    # --- the end

    async def close(self) -> None:
        """Commit what waits, and empty the transaction log, unless a topic cannot take its messages now.

        Raises:
            StoreFailedError: the store has stopped.
        """
        async with self._turn:
            # INVARIANT: nothing waits when later transactions are refused, or one could be refused and be committed.
            emptied = False
            while self._waiting or not emptied:
                emptied = self._due = not self._waiting
                await self._work()
            self._over = QueueShutDown("the store is closed")
            if self._timer is not None:
                self._timer.cancel()

    def fail(self, error: Exception) -> None:
        """Fail the transactions that wait, and refuse later ones."""
        self._over = error
        self._waiting.clear()
        # One that is on disk already is committed nevertheless, although its caller gets an error.
        entries = list(self._undecided.values())
        told = [partial(_refuse, [entry]) for entry in entries]
        tell_all(error, [*told, *(appender.fail for appender in self._appenders.values())])
        if self._timer is not None:
            self._timer.cancel()


async def _each_done(calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Call all of these, some together, and wait for them; an exception of one is raised when it comes."""
    for first in range(0, len(calls), _TOPICS_AT_ONCE):
        await asyncio.gather(*(call() for call in calls[first : first + _TOPICS_AT_ONCE]))


def _refuse(entries: Sequence[Entry], error: Exception) -> None:
    for entry in entries:
        settle(entry.done, None, error)
        mark_retrieved(entry.done)  # the caller may have been cancelled
        entry.release()
