"""A client resumes a channel: it claims what it held from an earlier owner, or over an earlier connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.shared.connection.in_turns import LONGEST_TURN
from aiodq.shared.requests.lent.claims import Claim, comes_too_late
from aiodq.shared.requests.lent.lent_runs import LentRun
from aiodq.wire.packets import Done, Range
from aiodq.wire.payload import Held, add_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq.channel import Channel
    from aiodq.message import Message
    from aiodq.shared.requests.lent.lent_messages import LentMessages
    from aiodq.shared.requests.serving import Owning, Share
    from aiodq.topic import Topic

__all__ = ["Resuming"]

_NEAR: Final = 100
"""Messages between two that a client holds that are read over rather than searched around."""


class Resuming:
    """A client's claims of messages of one channel.

    Attributes:
        under_way: how many claims are about to be made or being checked; nothing is delivered meanwhile.
        over: set while there are none.
    """

    def __init__(self, owner: Owning, topic: Topic, channel: Channel, name: str, lent: LentMessages) -> None:
        """Start without claims.

        Args:
            owner: the owner.
            topic: the channel's topic.
            channel: the channel.
            name: its name, as `topic/channel`.
            lent: the messages that the client holds, to which its claims are added.
        """
        self.under_way: int = 0
        self.over: asyncio.Event = asyncio.Event()
        self.over.set()
        self._owner = owner
        self._topic = topic
        self._name = name
        self._engine = channel._engine  # noqa: SLF001 - a session is a channel's other half
        self._channel_engine = channel._channel_engine  # noqa: SLF001 - as above
        self._channel_name = channel.name
        self._lent = lent

    def begin(self) -> None:
        """Note that the client is about to claim messages: an `end` follows."""
        self.under_way += 1
        self.over.clear()

    def end(self) -> None:
        """Deliver again, once nothing else is about to be claimed; `claim` calls it."""
        self.under_way -= 1
        if not self.under_way:
            self.over.set()
            self._owner.engine.activity.note(self._engine)  # `Lending.look` has left it out meanwhile

    async def claim(self, epoch: int, held: Iterable[Held], before: Iterable[Share], *, missed: bool = False) -> Done:
        """Give the client what it held before, unless another has it; answer with the delivery numbers.

        The answer also lists messages that are `elsewhere`: neither given nor settled. All others are settled.

        Once this owner has moved the channel, no message that was in flight under a previous owner is held any more.

        Args:
            epoch: that of the owner who delivered the messages.
            held: the messages.
            before: the shares in this channel of earlier connections of the client.
            missed: see `Owning`.
        """
        try:
            given: list[Range] = []
            rest = held
            for one in before:
                rest = [left for row in rest for left in self._take_over(one, epoch, row, given)]
            return await self._claim_rest(epoch, rest, given, missed=missed)
        finally:
            self.end()

    def _take_over(self, before: Share, epoch: int, row: Held, given: list[Range]) -> Iterator[Held]:
        """Take what the client held over an earlier connection, by the same numbers; yield what it did not hold."""
        # INVARIANT: it is never ready meanwhile: another getter would take it at once, although its holder is alive.
        runs, lost = before.hand_over(epoch, Range(*row[:3]))
        for run in runs:
            self._lent.add(run)
            given.append(Range(run.offset, run.number, run.left))
        for offset, delivery, count in lost:
            yield Held(offset, delivery, count, row.attempts)

    async def _claim_rest(self, epoch: int, held: Iterable[Held], given: list[Range], *, missed: bool) -> Done:
        await self._owner.noted()
        await self._engine.settle_in(self._channel_name)
        elsewhere: list[int] = []
        monotonic = self._owner.engine.clock.monotonic
        end = monotonic() + LONGEST_TURN
        for near in _near_ones(held):
            rows = iter(near)
            one = next(rows)
            async for message in self._topic.scan(one.first, near[-1].first + near[-1].messages):
                if monotonic() >= end:
                    await asyncio.sleep(0)
                    end = monotonic() + LONGEST_TURN
                while message.offset >= one.first + one.messages:
                    one = next(rows)
                if message.offset < one.first:
                    continue
                claim = Claim(epoch, one.delivery + message.offset - one.first, one.attempts)
                number = self._grant(message, claim, missed=missed)
                if number is None:
                    state = self._channel_engine.state
                    if state is not None and not state.settled_all(message.offset, message.offset + 1):
                        elsewhere.append(message.offset)
                else:
                    add_range(given, message.offset, number, 1)
        return Done(None, {"held": given, "elsewhere": elsewhere})

    def _grant(self, seen: Message, claim: Claim, *, missed: bool) -> int | None:
        """Hand out a ready message out of turn; return its delivery number, or None if it is not ready."""
        engine, offset, attempts = self._channel_engine, seen.offset, claim.attempts
        state = engine.state
        # INVARIANT: while messages may be claimed, nothing is delivered: all that is in flight was claimed.
        claims = self._owner.claims(self._name) if engine.reclaiming else None
        moved = engine.sought and claim.epoch != self._owner.epoch
        in_time = claims is not None and not missed
        if state is None or moved or comes_too_late(state, offset, attempts, in_time=in_time):
            return None
        if not (state.is_ready(offset) if claims is None else claims.makes_ready(state, offset, claim)):
            return None
        state.count(offset, max(attempts - 1, 0))
        _, number = state.pick(offset)
        if claims is not None:
            claims.grant(offset, claim, number)
        self._owner.engine.activity.note(self._engine)
        batch = seen._batch()  # noqa: SLF001 - as above
        lease = MessageLease.of_one(seen.topic, batch, 0, number=number, attempts=attempts, channel_engine=engine)
        self._lent.add(LentRun(lease, 0, [seen.body], self._owner.engine.store_ref()))
        engine.touch(offset, number, None)
        return number


def _near_ones(held: Iterable[Held]) -> list[list[Held]]:
    """Group the rows of a claim that are to be read at once: each is shortly after the one before."""
    found: list[list[Held]] = []
    for one in held:
        gap = one.first - (found[-1][-1].first + found[-1][-1].messages) if found else -1
        if 0 <= gap <= _NEAR:
            found[-1].append(one)
        else:
            found.append([one])
    return found
