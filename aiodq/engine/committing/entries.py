"""What the committer commits: transactions, and dead letters with the settlement of their messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from aiodq.awaited import mark_retrieved, twice
from aiodq.engine.batch.put_batch import columns_of
from aiodq.engine.committing.reserved_room import ReservedRoom
from aiodq.engine.loop.futures import settle
from aiodq.engine.transactions.participants import AckRun
from aiodq.errors import not_in_flight
from aiodq.format.transactions import Acks, Commit, Puts
from aiodq.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.format.columns import Columns
    from aiodq.format.producers import Origin

__all__ = ["Entry", "HeldRun", "Letter", "Letters", "in_pieces"]

_PIECE: Final = 2000
"""Messages held or settled in one turn of the loop: a millisecond or two. A run costs `_RUN` more than its messages."""

_RUN: Final = 40
"""What a run costs besides its messages, in messages."""

_MOST_LETTERS: Final = 256
"""The most dead letters that are committed as one transaction: about two milliseconds in one turn of the loop."""


class HeldRun(NamedTuple):
    """Neighbouring messages that a transaction settles, as in `AckRun`, and holds.

    Attributes:
        engine, channel_engine: their topic and channel.
        start, stop: the first offset, and the offset after the last.
        delivery: the delivery number of the first one.
        held: the number by which the first one is held; the others have the following numbers.
    """

    engine: TopicEngine
    channel_engine: ChannelEngine[Any]
    start: int
    stop: int
    delivery: int
    held: int


R = TypeVar("R", AckRun, HeldRun)

# A getter in C: it reads the field of very many ranges.
_STOP: Final[Callable[[tuple[int, int]], int]] = itemgetter(1)


@dataclass(slots=True, eq=False)
class Entry:
    """A transaction that is to be committed.

    Attributes:
        settlements: the messages that it settles and holds, in runs.
        ranges: the same by topic and channel: the first offset of each run, and the one after its last.
        puts: what it puts: the topic, the messages, and their cost in bytes of memory.
        done: done once it is committed and its effects are visible, or has failed.
        origin: the producer and sequence of a transaction that may be sent again; otherwise None.
        room: the room reserved for the puts.
    """

    puts: Sequence[tuple[TopicEngine, Columns, int]]
    done: asyncio.Future[None]
    origin: Origin | None
    room: ReservedRoom
    settlements: list[HeldRun] = field(default_factory=list)
    ranges: dict[tuple[TopicEngine, ChannelEngine[Any]], list[tuple[int, int]]] = field(default_factory=dict)

    def set_in_time(self, ahead: int) -> None:
        """Have the puts go by the wall clock of now if it has jumped since it was `ahead`; see `Acceptance.in_time`."""
        self.puts = [(engine, engine.put_buffer.in_time(columns, ahead), cost) for engine, columns, cost in self.puts]

    def hold(self, run: HeldRun) -> None:
        """Note messages that it settles and holds."""
        self.settlements.append(run)
        self.ranges.setdefault((run.engine, run.channel_engine), []).append((run.start, run.stop))

    def stops(self) -> Iterator[tuple[TopicEngine, int]]:
        """Yield for each channel its topic and the offset after the last message that it settles there."""
        for (engine, _), ranges in self.ranges.items():
            yield engine, max(map(_STOP, ranges))

    async def holds(self) -> bool:
        """Return whether all messages are still held by this transaction."""
        for piece in in_pieces(self.settlements):
            if not all(run.channel_engine.transaction_holds.holds(run.start, run.stop, run.held) for run in piece):
                return False
            if len(piece) < len(self.settlements):
                await asyncio.sleep(0)
        return True

    def release(self) -> None:
        """Release the messages and the room, as the transaction is not committed."""
        for run in self.settlements:
            run.channel_engine.transaction_holds.release(run.start, run.stop, run.held, run.delivery)
        self.room.release()

    def settle(self, run: HeldRun) -> None:
        """Settle messages, as it is committed."""
        run.channel_engine.transaction_holds.settle(run.start, run.stop, run.held)

    @property
    def topics(self) -> list[TopicEngine]:
        """The topics that it puts into."""
        return [engine for engine, _, _ in self.puts]

    @property
    def cost(self) -> int:
        """About how many bytes it takes in the transaction log, where a run takes 16."""
        return sum(cost for _, _, cost in self.puts) + 16 * len(self.settlements)

    def commit(self) -> Commit:
        """Return what the transaction log is to hold of it: nothing of ephemeral topics and channels."""
        acks = [
            Acks(engine.name, channel_engine.name, sorted(ranges))
            for (engine, channel_engine), ranges in self.ranges.items()
            if not (is_ephemeral(engine.name) or is_ephemeral(channel_engine.name))
        ]
        # Messages that are durable now keep their offsets; the transaction's come after them.
        puts = [Puts(i.name, i.log.durable, columns) for i, columns, _ in self.puts if not is_ephemeral(i.name)]
        return Commit(acks, puts, self.origin)


class Letter(NamedTuple):
    """A dead letter, for which there is room in its topic.

    Attributes:
        run: the message that it settles, which its channel holds.
        message, body: what is put.
        cost: its cost in bytes of memory.
        done: done once both are committed and the letter is visible, or has failed.
    """

    run: HeldRun
    message: Accepted
    body: bytes
    cost: int
    done: asyncio.Future[None]


class Letters(Entry):
    """Dead letters of one topic, which are committed together with the settlement of their messages.

    They do not depend on each other: a letter whose message was taken away meanwhile is left out.
    """

    __slots__ = ("_letters", "_size", "_target")

    def __init__(self, target: TopicEngine) -> None:
        """Start with none for this topic."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__([], done, None, ReservedRoom(Counter(), pressing=True))
        self._target, self._size = target, 0
        self._letters: list[Letter] = []
        twice(done.add_done_callback, self._tell)

    def add(self, letter: Letter, largest: int) -> bool:
        """Add a letter, unless there are many or they would have more bytes than `largest`; return whether it was."""
        size = self._size + letter.cost
        if self._letters and (len(self._letters) >= _MOST_LETTERS or size > largest):
            return False
        self._size = size
        self._letters.append(letter)
        self.room.count(self._target, 1, letter.cost)
        return True

    def _tell(self, done: asyncio.Future[None]) -> None:
        for letter in self._letters:
            settle(letter.done, None, done.exception())
            mark_retrieved(letter.done)  # who waited may have been cancelled

    async def holds(self) -> bool:
        """Leave out the letters whose messages are no longer held; return whether others are left."""
        kept = list[Letter]()
        for letter in self._letters:
            run = letter.run
            if run.channel_engine.transaction_holds.holds(run.start, run.stop, run.held):
                kept.append(letter)
            else:
                self.room.give_back(self._target, 1, letter.cost)
                settle(letter.done, None, not_in_flight(f"message {run.start}"))
                mark_retrieved(letter.done)
        self._letters = kept
        self._size = sum(letter.cost for letter in kept)
        self.settlements.clear()
        self.ranges.clear()
        for letter in kept:
            self.hold(letter.run)
        self.puts: Sequence[tuple[TopicEngine, Columns, int]] = [
            (self._target, columns_of([(letter.message, letter.body) for letter in kept]), self._size)
        ]
        return bool(kept)

    def release(self) -> None:
        """Release the room. Who gave the messages up has them redelivered."""
        self.room.release()

    def settle(self, run: HeldRun) -> None:
        """Settle a message as a dead letter."""
        run.channel_engine.transaction_holds.settle_dead(run.start, run.held)

    @property
    def topics(self) -> list[TopicEngine]:
        """Their topic."""
        return [self._target]

    @property
    def cost(self) -> int:
        """See `Entry.cost`."""
        return self._size + 16 * len(self._letters)


def in_pieces(runs: Iterable[R]) -> Iterator[list[R]]:
    """Yield runs in small groups, so that the event loop can run other callbacks in between."""
    piece: list[R] = []
    cost = 0
    for run in runs:
        piece.append(run)
        cost += run.stop - run.start + _RUN
        if cost >= _PIECE:
            yield piece
            piece, cost = [], 0
    yield piece
