"""Room for a transaction's puts: reserved in all of its topics at once, or in none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.engine.topic.retention.retaining_channels import retaining_channels

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from aiodq.engine.topic.topic_engine import TopicEngine

__all__ = ["ReservedRoom", "Share"]

_HELD_LONGER: Final = 0.01
"""Seconds for which room is held while it is waited for elsewhere, for each time that it was given back before."""

_AT_ONCE: Final = 100
"""Topics in which room is reserved in one turn of the loop: a millisecond's work."""

_HELD_LONGEST: Final = 1.0
"""Seconds for which room is held at most while it is waited for elsewhere."""


class Share(NamedTuple):
    """A transaction's puts into one topic.

    Attributes:
        engine: the topic.
        messages: their number.
        cost: their cost in bytes of memory.
    """

    engine: TopicEngine
    messages: int
    cost: int


class ReservedRoom:
    """The room of one transaction.

    A transaction that waits for room in one topic gives back its room in the others. The consumer that makes the room
    may have to put into those first: a worker takes a message from one topic and puts its result into another.

    If there are always other puts, all topics might never have room at the same moment. So room is held a little longer
    each time before it is given back, and is taken again ahead of later puts.
    """

    def __init__(self, settled: Counter[object], *, pressing: bool) -> None:
        """Reserve nothing yet.

        Args:
            settled: how many messages the transaction settles, by channel.
            pressing: whether it gets room even if nothing more is accepted from outside.
        """
        self._settled = settled
        self._pressing = pressing
        self._reserved: dict[TopicEngine, Share] = {}
        # How many of the messages put take the room of those settled.
        self._credits: dict[TopicEngine, int] = {}
        self._returned: set[TopicEngine] = set()
        self._times_returned = 0

    async def reserve(self, shares: Sequence[Share]) -> None:
        """Reserve room for all of these, as soon as all topics have it.

        Raises:
            QueueFull: a topic's bound is reached and its policy is `"reject"`.
            QueueShutDown, StoreFailedError: nothing more is accepted.

        Cancellation: what is reserved remains so until it is released.
        """
        # Always in the same order, so that transactions seldom wait for each other. What drops messages comes last: it
        # would have dropped them for nothing if there was no room elsewhere.
        ordered = sorted(shares, key=lambda share: (share.engine.put_buffer.drops, share.engine.name))
        while (full := await self._first_full(ordered)) is not None:
            await self._wait(full)

    async def _first_full(self, shares: Sequence[Share]) -> Share | None:
        """Reserve room in order, up to the first share that has to wait; return that one, or None."""
        for number, share in enumerate(shares, 1):
            if not self._fits(share):
                return share
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        return None

    def count(self, engine: TopicEngine, messages: int, cost: int) -> None:
        """Count more room as this transaction's, which is reserved already."""
        _, before, costs = self._reserved.get(engine, (engine, 0, 0))
        self._reserved[engine] = Share(engine, before + messages, costs + cost)

    def give_back(self, engine: TopicEngine, messages: int, cost: int) -> None:
        """Give back a part of the room in one topic."""
        self.count(engine, -messages, -cost)
        engine.put_buffer.unreserve(messages, cost)

    def _fits(self, share: Share) -> bool:
        """Reserve room for a share unless that has to wait; return whether it is reserved."""
        engine = share.engine
        if engine in self._reserved:
            return True
        return engine.put_buffer.fits(partial(self._take, share), ahead=self._comes_first(share))

    def _comes_first(self, share: Share) -> bool:
        covered = self._credit(share) >= share.messages and not share.engine.stopped
        return covered or share.engine in self._returned

    def _credit(self, share: Share) -> int:
        """Return how many messages the transaction settles in every channel of a topic, up to those it puts there."""
        if not self._settled:
            return 0
        settled = min((self._settled[channel] for channel in retaining_channels(share.engine)), default=0)
        return min(settled, share.messages)

    def _take(self, share: Share) -> None:
        """Reserve room.

        Raises:
            QueueFull: there is none now.
            QueueShutDown: nothing more is accepted.
        """
        engine, messages, cost = share
        buffer, credit = engine.put_buffer, self._credit(share)
        # INVARIANT: a credit counts only together with its puts. Otherwise other puts would take that room.
        buffer.bound.credit += credit
        try:
            buffer.reserve(messages, cost, pressing=self._pressing, covered=credit >= messages)
        except BaseException:
            buffer.bound.credit -= credit
            raise
        self._reserved[engine] = share
        self._credits[engine] = credit

    async def _wait(self, share: Share) -> None:
        """Wait for room in one topic, and reserve it; what is reserved in others is given back after a while."""
        held = min(_HELD_LONGER * self._times_returned, _HELD_LONGEST)
        timer: asyncio.TimerHandle | None = None
        if held:
            timer = asyncio.get_running_loop().call_later(held, share.engine.guarded(self._return_all))
        else:
            self._return_all()
        try:
            await share.engine.put_buffer.enter(partial(self._take, share), ahead=self._comes_first(share))
        finally:
            if timer is not None:
                timer.cancel()

    def _return_all(self) -> None:
        if self._reserved:
            self._times_returned += 1
            self._returned.update(self._reserved)
            self.release()

    def end_credits(self) -> None:
        """Drop the credits, as the messages are settled now, or will not be."""
        for engine, credit in self._credits.items():
            engine.put_buffer.bound.credit -= credit
        self._credits.clear()

    def handed_over(self) -> None:
        """Note that the appenders count the messages from here on."""
        self._reserved.clear()

    def release(self) -> None:
        """Give the room back."""
        self.end_credits()
        reserved, self._reserved = self._reserved, {}
        for engine, messages, cost in reserved.values():
            engine.put_buffer.unreserve(messages, cost)
