"""The puts that wait for room in a topic, in order of arrival."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiodq.engine.loop.futures import ready_to_wake, settle_all
from aiodq.engine.queue_errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BufferFull", "Room", "WaitingPuts"]

T = TypeVar("T")


class BufferFull(QueueFull):
    """The write buffer has no room, rather than the backlog: it drains by itself."""


class Room(Protocol):
    """The room that puts wait for: `aiodq.engine.topic.puts.put_buffer.PutBuffer` has it.

    Attributes:
        shut: whether nothing more is accepted.
    """

    shut: bool

    @property
    def refuses(self) -> bool:
        """Whether a put that finds the backlog full is refused instead of waiting."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    def buffer_full(self, cost: int = 0) -> bool:
        """Return whether the write buffer has no room for a message of this cost."""
        ...

    def may_try(self) -> bool:
        """Return whether a put need not wait: it may find room, may make room, or is to be refused."""
        ...

    def waits(self) -> None:
        """Note that a put waits: until the ioLoop's next turn, no other put may overtake it."""
        ...


class WaitingPuts:
    """The puts that wait for room in one topic. They have their turns one at a time.

    Attributes:
        line: the waiting puts, in order. A cancelled one is removed in constant time.
        turn: whether one of them, or one that need not wait, has its turn.
    """

    __slots__ = ("_draining", "_room", "line", "turn")

    def __init__(self, room: Room) -> None:
        """Start without waiting puts."""
        self._room = room
        self.line: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        # Those that wait only for the write buffer.
        self._draining: dict[asyncio.Future[None], None] = {}
        self.turn: bool = False

    async def enter(self, accept: Callable[[], T], *, ahead: bool = False) -> T:
        """Call `accept` as soon as there is room, after the puts that came before, or with `ahead` before them.

        Raises:
            QueueFull: the backlog's bound is reached and the policy is `"reject"`.
            QueueShutDown, StoreFailedError: nothing more is accepted.

        Cancellation: nothing was accepted, and the turn goes to the next one waiting.
        """
        turn = False
        while True:
            self._room.check()
            drains = False
            if turn or self._may_try(ahead=ahead):
                try:
                    return self._try(accept)
                except BufferFull:
                    drains = True
                except QueueFull:
                    if self._room.refuses:
                        raise
            await self._wait(first=turn or ahead, drains=drains)
            turn = True

    def fits(self, accept: Callable[[], object], *, ahead: bool = False) -> bool:
        """Do as `enter` if it need not wait, for room or for other puts; return whether `accept` has succeeded.

        Raises:
            QueueShutDown, StoreFailedError: nothing more is accepted.
        """
        self._room.check()
        if not self._may_try(ahead=ahead):
            return False
        try:
            self._try(accept)
        except QueueFull:
            return False
        return True

    def _may_try(self, *, ahead: bool) -> bool:
        return ahead or not (self.line or self.turn) or self._room.shut

    def _try(self, accept: Callable[[], T]) -> T:
        """Call `accept`; unless its caller is about to wait for room, the next waiting put gets its turn.

        Raises:
            QueueFull: there is no room now.
        """
        # INVARIANT: while one caller makes room, no other put takes that room.
        given, self.turn, waits = self.turn, True, False
        try:
            return accept()
        except QueueFull as error:
            waits = isinstance(error, BufferFull) or not self._room.refuses
            raise
        finally:
            self.turn = given
            if not waits:
                self.freed()

    async def _wait(self, *, first: bool, drains: bool) -> None:
        self._room.waits()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(self._left)
        if drains:
            self._draining[waiter] = None
        self.line[waiter] = None
        if first:
            self.turn = False
            self.line.move_to_end(waiter, last=False)
        await waiter

    def _left(self, waiter: asyncio.Future[None]) -> None:
        """Give the puts after a cancelled one their turn: they may fit where it did not."""
        self._draining.pop(waiter, None)
        if waiter in self.line:
            del self.line[waiter]
            self.freed()

    def freed(self, *, even_if_full: bool = False) -> None:
        """Give the turn to the first one waiting, as there may be room: one at a time, to keep the order.

        Args:
            even_if_full: even if there seems to be no room, because messages may be dropped from now on.
        """
        while self.line and not self.turn and (even_if_full or self._first_may_try()):
            ready_to_wake()
            waiter, _ = self.line.popitem(last=False)
            if not waiter.done():
                self.turn = True
                # INVARIANT: this runs right after the step of the woken task, however that step ends.
                waiter.add_done_callback(self._had_turn)
                waiter.set_result(None)

    def _had_turn(self, _: asyncio.Future[None]) -> None:
        """Pass the turn on, unless its holder waits again."""
        if self.turn:
            self.turn = False
            self.freed()

    def _first_may_try(self) -> bool:
        if self._room.buffer_full():
            return False
        return next(iter(self.line)) in self._draining or self._room.may_try()

    def fail(self, error: Exception) -> None:
        """Fail all that wait."""
        waiters = list(self.line)
        self.line.clear()
        settle_all(waiters, error)
