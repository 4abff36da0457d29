"""Settlements of messages on their way to an owner, and the tasks that wait for its answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import Awaited, mark_retrieved
from aiodq.engine.loop.futures import settle
from aiodq.errors import AiodqError, OwnerLostError, OwnerStalledError, again
from aiodq.shared.connection.in_turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from aiodq.delivery.range_set import RangeSet
    from aiodq.wire.packets import Packet

__all__ = ["SentSettlement", "Settling", "Together"]

_FOR_REJECTIONS: Final = 1.0
"""Seconds that closing and `sync` wait for rejections: their letters may be waiting for room."""


class SentSettlement:
    """A settlement of messages, until an owner confirms it.

    Attributes:
        numbers: the messages' numbers here, as ranges.
        make: builds the packet; None for acks, which are sent together.
        back: whether the messages are ready again then.
        final: whether the messages are never delivered again then.
        superseded: the offset of a message that this does not settle, as it was redelivered elsewhere; or None.
        lost: whether the owner has reported some as no longer in flight.
        over: whether it has answered; `refusal` is the reason if it refused.
        waiters: those that wait for the answer.
        awaited: called when a task begins to wait for it.
    """

    __slots__ = (
        "awaited", "back", "counts_version", "final", "lost", "make", "numbers", "over", "refusal",
        "superseded", "waiters",
    )  # fmt: skip

    def __init__(
        self, numbers: Sequence[range], make: Callable[[int], Packet] | None, *, back: bool = False, final: bool = True
    ) -> None:
        """Start to settle messages."""
        self.numbers: Sequence[range] = numbers
        self.make: Callable[[int], Packet] | None = make
        self.lost: bool = False
        self.back: bool = back
        self.final: bool = final
        self.superseded: int | None = None
        self.counts_version: int = 0
        self.over: bool = False
        self.refusal: Exception | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self.awaited: Callable[[SentSettlement], None] | None = None

    @property
    def rejects(self) -> bool:
        """Whether it rejects them, neither an ack nor a return."""
        return self.final and self.make is not None

    def supersede(self, offsets: Mapping[int, int]) -> None:
        """Note that it does not settle these messages, given by number, as they were redelivered elsewhere."""
        gone = (offsets[number] for each in self.numbers for number in each if number in offsets)
        self.superseded = next(gone, self.superseded)

    def end(self, refusal: Exception | None) -> None:
        """Note that an owner has settled them, or refused to."""
        self.over, self.refusal = True, refusal
        self.tell(refusal)

    def tell(self, error: Exception | None) -> None:
        """Wake all waiters."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            settle(waiter, None, error)

    async def wait(self) -> None:
        """Wait until an owner has settled them.

        Raises:
            AiodqError: why it did not.

        Cancellation: they are settled anyway.
        """
        if not self.over:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            if self.awaited is not None:
                self.awaited(self)
            await waiter
        elif self.refusal is not None:
            raise again(self.refusal)

    def ending(self) -> asyncio.Future[Any]:
        """Return a future that ends as `wait` does, and that need not be awaited."""
        ending = asyncio.ensure_future(self.wait())
        ending.add_done_callback(mark_retrieved)
        return ending

    async def outcome(self) -> None:
        """Wait until an owner has answered, whatever the answer.

        Raises:
            OwnerLostError, OwnerStalledError: none does.
        """
        try:
            await self.wait()
        except AiodqError:
            if not self.over:
                raise


class Settling(dict[SentSettlement, None]):
    """The settlements of one channel that no owner has answered yet, the oldest first.

    Attributes:
        undecided: the messages, by number, of each cancelled transaction that may be committed nevertheless. What else
            is to settle them is sent once that is known.
        later: those that `send_in_turns` has not sent yet.
    """

    __slots__ = ("later", "undecided")

    def __init__(self) -> None:
        """Start without settlements."""
        super().__init__()
        self.undecided: list[RangeSet] = []
        self.later: dict[SentSettlement, None] = {}

    def send_in_turns(
        self, those: Iterable[SentSettlement], send: Callable[[SentSettlement], None]
    ) -> asyncio.Future[None]:
        """Send settlements by `send`, each once, in turns of the loop if they are very many.

        Returns:
            A future of the end; it fails as `send` does, and then those behind are not sent.
        """
        self.later.update(dict.fromkeys(those))
        return in_turns(self._send_later(send))

    def _send_later(self, send: Callable[[SentSettlement], None]) -> Iterator[None]:
        while self.later:
            settling = next(iter(self.later))
            del self.later[settling]
            send(settling)
            yield

    def decided(self, numbers: Iterable[range]) -> bool:
        """Return whether no cancelled transaction may settle any of these messages."""
        return not self.undecided or not any(_overlap(those, each) for those in self.undecided for each in numbers)

    def decide(self, those: RangeSet) -> list[SentSettlement]:
        """Note that these messages of a transaction are settled or free; return the settlements that waited for it."""
        self.undecided.remove(those)
        return [settling for settling in self if any(_overlap(those, each) for each in settling.numbers)]

    @property
    def rejecting(self) -> bool:
        """Whether the outcome of a rejection is not known yet."""
        return any(settling.rejects for settling in self)

    @property
    def requeueing(self) -> bool:
        """Whether it is not known yet that all messages that are to be ready again are so."""
        return any(settling.back for settling in self)

    def supersede(self, offsets: Mapping[int, int], *, rejections: bool) -> None:
        """Have acks and rejections of these messages, given by number, fail."""
        for settling in self if offsets else ():
            if settling.final and (rejections or not settling.rejects):
                settling.supersede(offsets)

    def lose(self, numbers: AbstractSet[int]) -> None:
        """Note that the owner has reported these messages as no longer in flight."""
        for settling in self:
            settling.lost = settling.lost or not all(map(numbers.isdisjoint, settling.numbers))

    async def answered(self) -> None:
        """Wait until the outcome of each is known; of rejections, only for a second.

        A rejection takes as long as its dead letter waits for room in a full topic: perhaps for ever.

        Raises:
            OwnerLostError: there is no owner.
        """
        rejections = [settling for settling in self if settling.rejects]
        for settling in [settling for settling in self if not settling.rejects]:
            await settling.outcome()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FOR_REJECTIONS):
                for settling in rejections:
                    await settling.outcome()


def _overlap(those: RangeSet, numbers: range) -> bool:
    return those.next_present(numbers.start, numbers.stop) < numbers.stop


class Together(Awaited[None]):
    """The settlements of one call: awaiting it waits until an owner has confirmed all of them.

    Attributes:
        those: the settlements.
        unanswered: called if no owner answers.
    """

    def __init__(self) -> None:
        """Start without settlements."""
        self.those: list[SentSettlement] = []
        self.unanswered: Callable[[], None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the owner.

        Raises:
            NotInFlightError: the owner took some messages back before.
            OwnerLostError, OwnerStalledError: no owner has answered yet.
        """
        return self._wait().__await__()

    async def _wait(self) -> None:
        try:
            for settling in self.those:
                await settling.wait()
        except (OwnerLostError, OwnerStalledError):
            if self.unanswered is not None:
                self.unanswered()
            raise
