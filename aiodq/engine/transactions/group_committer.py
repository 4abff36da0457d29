"""Committing transactions: in groups, each group with one sync of one file, then into the topics.

What a transaction settles and puts is written to the file of transactions first (`aiodq.format.transactions`), and
synced there: that is the commit. Then its puts are appended to the topics' logs and its acks entered in the channels'
states, where nobody waits for a sync: the file says it all once more, should they be lost. About once a second, when a
channel is to go back, or something is to be deleted, logs and journals are synced and the file is emptied.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from aiodq.engine.futures import settle, tell_all
from aiodq.engine.put_batch import atomic_part
from aiodq.engine.queue_errors import QueueFull, QueueShutDown
from aiodq.engine.transactions.topic_appender import TopicAppender
from aiodq.errors import AiodqError, DiskFullError, NotInFlightError, StoreFailedError
from aiodq.format.transactions import Acks, Commit, Puts
from aiodq.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from aiodq.clock import Clock
    from aiodq.engine.monitoring.metrics import SyncTimer
    from aiodq.engine.put_batch import Accepted
    from aiodq.engine.transactions.participants import Channel, Topic
    from aiodq.engine.worker_threads import WorkerThreads
    from aiodq.format.columns import Columns
    from aiodq.format.producers import Origin
    from aiodq.storage.state.transaction_log import TransactionFile

__all__ = ["Committer", "HeldAck", "HeldRun", "held_runs"]

_PERIOD: Final = 1.0
"""Seconds for which the file of transactions stands in for topics and channels."""

_LONGEST_RUN: Final = 1000
"""Messages in a run at most."""

_PIECE: Final = 2000
"""Messages that are held, or settled, before others have their turn: a millisecond or two. A run counts as a few."""

_RUN: Final = 8
"""So many: what a run costs besides its messages."""

_LIMIT: Final = 1 << 22
"""Bytes of that file that end the period early."""


class HeldAck(NamedTuple):
    """A message that a transaction settles.

    Attributes:
        engine, channel_engine: where it came from.
        offset, delivery: which it is.
    """

    engine: Topic
    channel_engine: Channel
    offset: int
    delivery: int


class HeldRun(NamedTuple):
    """Neighbouring messages that a transaction settles, which were delivered one after the other.

    Attributes:
        engine, channel_engine: where they came from.
        start, stop: their offsets.
        delivery: the first one's delivery number.
        held: by which number the first one is held; those of the others follow.
    """

    engine: Topic
    channel_engine: Channel
    start: int
    stop: int
    delivery: int
    held: int


# Fields of many runs, at the speed of C.
_TOPIC: Final[Callable[[HeldRun], Topic]] = itemgetter(0)
_CHANNEL: Final[Callable[[HeldRun], tuple[Topic, Channel]]] = itemgetter(0, 1)
_RANGE: Final[Callable[[HeldRun], tuple[int, int]]] = itemgetter(2, 3)
_CHANNEL_OF: Final[Callable[[HeldAck], object]] = itemgetter(1)
_STOP: Final[Callable[[HeldRun], int]] = itemgetter(3)


def held_runs(settlements: Iterable[HeldAck]) -> Iterator[HeldRun]:
    """Yield the runs that messages form, not held yet."""
    before: tuple[Topic, Channel] | None = None
    start = stop = first = 0
    for engine, channel_engine, offset, delivery in settlements:
        if before is not None:
            follows = offset == stop and delivery - first == offset - start < _LONGEST_RUN
            if follows and channel_engine is before[1]:
                stop = offset + 1
                continue
            yield HeldRun(*before, start, stop, first, 0)
        before, start, stop, first = (engine, channel_engine), offset, offset + 1, delivery
    if before is not None:
        yield HeldRun(*before, start, stop, first, 0)


@dataclass(slots=True, eq=False)
class _Entry:
    """A transaction that is to be committed.

    Attributes:
        settlements: what it settles, and holds.
        puts: what it puts, by topic, with its memory.
        done: for who waits.
        origin: whose it is, of one that may come again.
        reserved: room for the puts, as (topic, messages, memory).
        credits: how many of the messages put have the room of those settled, by topic.
    """

    settlements: list[HeldRun]
    puts: list[tuple[Topic, Columns, int]]
    done: asyncio.Future[None]
    origin: Origin | None = None
    reserved: list[tuple[Topic, int, int]] = field(default_factory=list)
    credits: list[tuple[Topic, int]] = field(default_factory=list)

    async def holds(self) -> bool:
        """Return whether nobody took a message away meanwhile."""
        for piece in _pieces(self.settlements):
            if not all(run.channel_engine.transaction_holds.holds(run.start, run.stop, run.held) for run in piece):
                return False
            if len(piece) < len(self.settlements):
                await asyncio.sleep(0)
        return True

    def release(self) -> None:
        """Let everything be as it was before."""
        for run in self.settlements:
            run.channel_engine.transaction_holds.release(run.start, run.stop, run.held, run.delivery)
        self.unreserve()

    @property
    def cost(self) -> int:
        """About how many bytes it takes in the file of transactions, where a run takes 16."""
        return sum(cost for _, _, cost in self.puts) + 16 * len(self.settlements)

    def unreserve(self) -> None:
        """Give the room back that the puts had."""
        self.end_credits()
        for engine, messages, cost in self.reserved:
            engine.put_buffer.unreserve(messages, cost)
        self.reserved.clear()

    def reserve(self, engine: Topic, messages: int, cost: int, credit: int, *, pressing: bool) -> None:
        """Have room for puts, `credit` of which take that of messages which the transaction settles."""
        # INVARIANT: a credit is given only together with its puts. Else others took the room that it makes.
        engine.put_buffer.bound.credit += credit
        try:
            engine.put_buffer.reserve(messages, cost, pressing=pressing, covered=credit >= messages)
        except BaseException:
            engine.put_buffer.bound.credit -= credit
            raise
        self.reserved.append((engine, messages, cost))
        self.credits.append((engine, credit))

    def end_credits(self) -> None:
        """The messages are settled now, or will not be."""
        for engine, credit in self.credits:
            engine.put_buffer.bound.credit -= credit
        self.credits.clear()

    def commit(self) -> Commit:
        """Return what is to be written of it."""
        by_channel: dict[tuple[Topic, Channel], list[tuple[int, int]]] = {}
        for channel, runs in groupby(self.settlements, _CHANNEL):
            by_channel.setdefault(channel, []).extend(map(_RANGE, runs))
        acks = [
            Acks(engine.name, channel_engine.name, sorted(ranges))
            for (engine, channel_engine), ranges in by_channel.items()
            if not (is_ephemeral(engine.name) or is_ephemeral(channel_engine.name))
        ]
        # What is durable now stays where it is; the messages come behind it.
        puts = [Puts(i.name, i.log.durable, columns) for i, columns, _ in self.puts if not is_ephemeral(i.name)]
        return Commit(acks, puts, self.origin)


def _pieces(runs: Iterable[HeldRun]) -> Iterator[list[HeldRun]]:
    """Yield a few at a time, so that others may have their turn in between."""
    piece: list[HeldRun] = []
    cost = 0
    for run in runs:
        piece.append(run)
        cost += run.stop - run.start + _RUN
        if cost >= _PIECE:
            yield piece
            piece, cost = [], 0
    yield piece


class Committer:
    """One per store.

    Attributes:
        committed: transactions, since the store was opened.
        largest: bytes of messages that a transaction may put, and those that are committed together.
        deciding: of transactions that may come again, those that are about to be committed, or not.
    """

    largest: ClassVar[int] = 1 << 28

    def __init__(
        self,
        file: TransactionFile,
        threads: WorkerThreads,
        clock: Clock,
        timer: SyncTimer,
        fail: Callable[[Exception], None],
    ) -> None:
        """Commit to this file, its syncs being timed; `fail` stops the store."""
        self.committed: int = 0
        self.deciding: dict[Origin, asyncio.Future[None]] = {}
        self._file = file
        self._threads = threads
        self._clock = clock
        self._sync_timer = timer
        self._fail = fail
        self._waiting: deque[_Entry] = deque()
        self._undecided: dict[asyncio.Future[None], _Entry] = {}
        self._appenders: dict[Topic, TopicAppender] = {}
        self._settled: dict[Channel, Topic] = {}
        # What is committed, and not settled in its channels yet.
        self._settling: dict[_Entry, None] = {}
        self._turn, self._wake = asyncio.Lock(), asyncio.Event()
        self._over: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._drop: Callable[[], None] | None = None
        if file.stale:
            self._arm()

    # --- recovery

    def recovered(self, engine: Topic, channel_engines: Iterable[Channel], left: Sequence[Columns]) -> None:
        """A topic was opened that transactions in the file speak of.

        Args:
            engine: the topic's.
            channel_engines: its channels in which they settle something.
            left: what could not be put into it at open.
        """
        engine.retention.pin(0)
        self._settled.update(dict.fromkeys(channel_engines, engine))
        appender = self._appenders[engine] = TopicAppender(engine)
        for columns in left:
            appender.add(columns)

    def take_up(self, drop: Callable[[], None]) -> None:
        """What was owed to topics is theirs now; `drop` forgets it once they hold it durably. Blocking."""
        self._drop = drop
        self._arm()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._due = True
        self._wake.set()

    # --- transactions that may come again

    async def recall(self) -> None:
        """Know which are committed already; to be awaited before any is.

        Raises:
            FormatVersionError: what was kept of them is of a newer version.
            StorageError: as mapped from the system's error.
        """
        async with self._turn:
            await self._threads.call(self._file.origins.recall, self._clock.now_ns())

    def knows(self, origin: Origin) -> bool:
        """Return whether a transaction is committed, if `recall` was awaited; see `deciding`, too."""
        return origin in self._file.origins

    # --- what a transaction calls

    async def commit(
        self,
        settlements: Sequence[HeldAck],
        puts: Sequence[tuple[Topic, list[tuple[Accepted, bytes]]]],
        late: Callable[[BaseException | None], None],
        origin: Origin | None = None,
    ) -> None:
        """Commit: return when all of it is durable, and can be seen unless the disk is full.

        Args:
            settlements: what it settles.
            puts: what it puts.
            late: told how it ended where the caller is cancelled while the commit is under way.
            origin: whose it is, if it may come again.

        Raises:
            NotInFlightError: a message was taken away meanwhile; nothing was done.
            QueueFull: a topic's bound is reached and its policy is `"reject"`; nothing was done.
            QueueShutDown: the store is closed; nothing was done.
            DiskFullError: nothing was done, and it may be tried again.
            StorageError: a topic that is put into cannot be made, or not be used; nothing was done.
            StoreFailedError: the store has stopped.

        Cancellation: nothing was done, or it is committed and only the caller does not know.
        """
        entry = _Entry([], [], asyncio.get_running_loop().create_future(), origin)
        for engine, _ in puts:
            # INVARIANT: before any topic is made. What is refused at once leaves no empty one behind.
            engine.put_buffer.check_open(pressing=bool(settlements))
        for engine, _ in puts:
            # INVARIANT: what is committed can be put where it belongs, as soon as there is room.
            with suppress(DiskFullError):
                await engine.creation.made()
        try:
            await self._reserve(entry, puts, settlements)
            await self._hold(entry, settlements)
        except BaseException:
            entry.release()
            raise
        self._undecided[entry.done] = entry
        if origin is not None:
            self.deciding[origin] = entry.done
        entry.done.add_done_callback(lambda done: self._decided(done, origin))
        self._waiting.append(entry)
        self._wake.set()
        try:
            await asyncio.shield(entry.done)
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                entry.release()
                self._decided(entry.done, origin)
            else:
                entry.done.add_done_callback(lambda done: late(done.exception()))
            raise

    def _decided(self, done: asyncio.Future[None], origin: Origin | None) -> None:
        self._undecided.pop(done, None)
        if origin is not None and self.deciding.get(origin) is done:
            del self.deciding[origin]

    async def _hold(self, entry: _Entry, settlements: Sequence[HeldAck]) -> None:
        for piece in _pieces(held_runs(settlements)):
            if entry.settlements:
                await asyncio.sleep(0)
            if self._over is not None:
                raise self._over
            for run in piece:
                held = run.channel_engine.transaction_holds.hold(run.start, run.stop, run.delivery)
                entry.settlements.append(run._replace(held=held))

    async def _reserve(
        self,
        entry: _Entry,
        puts: Sequence[tuple[Topic, list[tuple[Accepted, bytes]]]],
        settlements: Sequence[HeldAck],
    ) -> None:
        settled = Counter(map(_CHANNEL_OF, settlements))
        # In one order for all, so that two transactions never wait for each other.
        for engine, messages in sorted(puts, key=lambda put: put[0].name):
            part = atomic_part(messages, entry.done)
            count = len(messages)
            credit = min((settled[one] for one in engine.retention.holding()), default=0) if settled else 0
            room = partial(entry.reserve, engine, count, part.cost, min(credit, count), pressing=bool(settlements))
            covered = credit >= count and not engine.stopped
            if not (covered and _fits(room)):
                await engine.put_buffer.enter(room, ahead=covered)
            entry.puts.append((engine, part.columns, part.cost))

    @asynccontextmanager
    async def without_transactions(self) -> AsyncIterator[None]:
        """See `TopicEngineHost.without_transactions`.

        Raises:
            StorageError: what was committed could not be put into a topic yet.
        """
        async with self._turn:
            await self._empty()
            yield

    def forget(self, engine: Topic) -> None:
        """A topic is being deleted: what waits for room in it never comes."""
        if engine in self._appenders:
            self._appenders[engine].forget()

    # --- the task

    async def run(self) -> None:
        """Commit what comes, until the store stops."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                async with self._turn:
                    await self._work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self._fail(error)
        finally:
            # INVARIANT: what nobody commits any more waits for nothing, and nothing comes after it.
            self._over = self._stopped()
            waiting, self._waiting = list(self._waiting), deque()
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

    async def _taken(self) -> list[_Entry]:
        """Return what waits to be committed, and refuse what cannot be any more."""
        taken = self._group()
        entries: list[_Entry] = []
        try:
            for entry in taken:
                if any(engine.closed for engine, _, _ in entry.puts):
                    _refuse([entry], QueueShutDown("a topic of the transaction was deleted"))
                elif not await entry.holds():
                    _refuse([entry], NotInFlightError("a message of the transaction is not in flight any more"))
                else:
                    entries.append(entry)
        except BaseException:
            _refuse(taken, self._stopped())
            raise
        return entries

    def _group(self) -> list[_Entry]:
        """Return the first of those that wait, as many as are committed with one sync; the others come next."""
        # INVARIANT: the file is never larger than what of it is read when the store is opened.
        group, cost = list[_Entry](), 0
        while self._waiting and ((cost := cost + self._waiting[0].cost) <= self.largest or not group):
            group.append(self._waiting.popleft())
        if self._waiting:
            self._wake.set()
        return group

    def _stopped(self) -> Exception:
        return self._over or StoreFailedError("the store's engine was stopped")

    async def _commit(self, entries: list[_Entry]) -> None:
        try:
            await self._wait_durable(entries)
            commits = [entry.commit() for entry in entries]
            for entry in entries:
                for engine, _, _ in entry.puts:
                    engine.retention.pin(engine.log.durable)
            with self._sync_timer:
                numbers = await self._threads.call(self._file.append, commits, self._clock.now_ns())
        except StoreFailedError as error:
            _refuse(entries, error)
            raise
        except AiodqError as error:
            _refuse(entries, error)
            return
        except BaseException:
            _refuse(entries, self._stopped())
            raise
        for number, entry in zip(numbers, entries, strict=True):
            self._enter(entry, number)
        self._arm()

    async def _wait_durable(self, entries: list[_Entry]) -> None:
        """Wait until every message that is settled here is durable."""
        # In the order in which they were named, not in a set's: a simulated run is the same each time.
        stops: dict[Topic, int] = {}
        for engine, runs in groupby(chain.from_iterable(entry.settlements for entry in entries), _TOPIC):
            stops[engine] = max(*map(_STOP, runs), stops.get(engine, 0))
        for engine, stop in stops.items():
            if engine.log.durable < stop:
                await engine.sync_log()

    def _enter(self, entry: _Entry, number: int) -> None:
        """A transaction is committed: its puts come into their topics, and then its acks are entered."""
        self.committed += 1
        if entry.origin is not None:
            self._file.origins.note(entry.origin, self._clock.now_ns())
        for run in entry.settlements:
            self._settled[run.channel_engine] = run.engine
        self._settling[entry] = None
        entry.reserved.clear()  # the room goes with the puts
        left = len(entry.puts)

        def tried() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._settle(entry, _pieces(entry.settlements))

        if not entry.puts:
            tried()
        for engine, columns, cost in entry.puts:
            columns.transaction = number
            if engine not in self._appenders:
                self._appenders[engine] = TopicAppender(engine)
            self._appenders[engine].add(columns, tried, reserved=cost)

    def _settle(self, entry: _Entry, pieces: Iterator[list[HeldRun]]) -> None:
        """Enter acks, a few in each turn, then tell who waits: whoever sees a message acked can see what came of it."""
        entry.end_credits()
        try:
            for run in (piece := next(pieces, [])):
                run.channel_engine.transaction_holds.settle(run.start, run.stop, run.held)
        except Exception as error:  # noqa: BLE001 - whatever it is, the store stops and nobody is left waiting
            self._fail(error)
            piece = []
        if piece and len(piece) < len(entry.settlements):
            asyncio.get_running_loop().call_soon(self._settle, entry, pieces)
            return
        self._settling.pop(entry, None)
        settle(entry.done, None, None)

    async def _empty(self) -> None:
        """Have topics and channels hold durably what was committed, and forget it."""
        if not (self._appenders or self._settled or self._file.stale or self._file.size or self._drop):
            return
        for appender in self._appenders.values():
            await appender.idle()
        # INVARIANT: what the file says of acks is forgotten once the channels' journals say it.
        # Shielded, as who does not wait any longer takes nothing from those who wait for the transactions.
        await asyncio.gather(*(asyncio.shield(entry.done) for entry in self._settling))
        touched = dict.fromkeys((*self._appenders, *self._settled.values()))  # in order, as above
        await asyncio.gather(*(channel_engine.committed() for channel_engine in self._settled))
        await asyncio.gather(*(engine.sync() for engine in touched))
        await self._threads.call(self._file.reset, self._clock.now_ns())
        if self._drop is not None:
            await self._threads.call(self._drop)
            self._drop = None
        self._appenders.clear()
        self._settled.clear()
        for engine in touched:
            engine.retention.unpin()

    # --- the end

    async def close(self) -> None:
        """Commit what waits, and leave nothing in the file that its topics can hold.

        Raises:
            StoreFailedError: the store has stopped.
        """
        async with self._turn:
            while self._waiting:
                await self._work()
            self._due = True
            await self._work()
            self._over = QueueShutDown("the store is closed")
            if self._timer is not None:
                self._timer.cancel()

    def fail(self, error: Exception) -> None:
        """Tell who waits, and who comes."""
        self._over = error
        self._waiting.clear()
        # Of one that is on disk already only who waits for it does not know.
        entries = list(self._undecided.values())
        told = [partial(_refuse, [entry]) for entry in entries]
        tell_all(error, [*told, *(appender.fail for appender in self._appenders.values())])
        if self._timer is not None:
            self._timer.cancel()


def _fits(room: Callable[[], None]) -> bool:
    """Take room in front of everybody, for puts that take no more than is made by what is settled besides."""
    try:
        room()
    except QueueFull:
        return False
    return True


def _refuse(entries: Sequence[_Entry], error: Exception) -> None:
    for entry in entries:
        settle(entry.done, None, error)
        entry.done.exception()  # who was cancelled does not ask
        entry.release()
