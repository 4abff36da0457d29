"""Settlement of messages that a process holds without owning the store."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.delivery.leases import ACKED, SETTLED
from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
from aiodq.engine.channel.dead_lettering.failure_causes import NO_CAUSE, Cause, header_text
from aiodq.engine.channel.lease.held_by_task import HeldByTask
from aiodq.engine.loop.futures import release, surely, wait_in
from aiodq.errors import again, not_in_flight
from aiodq.options import ChannelOptions, next_wait
from aiodq.shared.connection.in_turns import BACK_AT_ONCE
from aiodq.shared.consuming.counts import Counts
from aiodq.shared.consuming.holdings import SETTLING, Holdings, Reserved, numbers_of
from aiodq.shared.consuming.sent_settlements import SentSettlement, Settling, Together
from aiodq.shared.consuming.settlement_sender import SettlementSender
from aiodq.shared.consuming.timeouts import Timeouts
from aiodq.shared.encoding.number_runs import in_parts, marked_ranges, neighbours
from aiodq.wire.packets import Ack, Nack, Reject, Release, Touch
from aiodq.wire.payload import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from aiodq.clock import Clock
    from aiodq.delivery.leases import Lease
    from aiodq.engine.loop.home_loop import HomeLoop
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.format.frame import Batch
    from aiodq.shared.connection.link import Link
    from aiodq.shared.consuming.placed_puts import PlacedPuts
    from aiodq.shared.consuming.unanswered import Unanswered
    from aiodq.stats import ChannelStats
    from aiodq.wire.packets import Packet
    from aiodq.wire.payload import Held

__all__ = ["RemoteSettlement", "SettledTopic"]

_SECOND: Final = 1_000_000_000
_IS_ACKED: Final = bytes(mark == ACKED for mark in range(256))
_NOBODY: Final = 0
"""No owner's epoch."""


class SettledTopic(Protocol):
    """What is needed of the channel's topic; `aiodq.shared.client.remote_topic.RemoteTopic` implements it."""

    name: str
    clock: Clock
    link: Link
    home: HomeLoop
    transactions: OpenTransactions
    store_ref: Callable[[], object]
    placed_puts: PlacedPuts

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    async def in_turn(self) -> None:
        """Wait until a request to the owner comes after everything accepted here before, but what waits for room."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process than the caller's."""
        ...

    def discard(self, channel: RemoteSettlement) -> None:
        """Forget a channel that was deleted: one named later is new."""
        ...


class RemoteSettlement:
    """The counterpart of `Settlement` for a channel that another process delivers, with message numbers of its own.

    A settlement is sent to the owner, and to the next one, until one confirms it. The most frequent ones cost the
    least: an ack marks the message in its lease, and the marks of a turn of the loop become one settlement a lease.

    Attributes:
        state: None, as only the owner knows it.
        counts: the message counts, as far as known here.
        epoch: the epoch of the owner that delivers now.
        named: the options that this process has given for the channel, or None.
        unanswered: acks and rejections whose outcome is unknown.
        error: why the channel can no longer be used, or None.
        last_stats: its statistics when it was deleted or refused, or None.
    """

    def __init__(self, topic: SettledTopic, name: str, options: ChannelOptions | None) -> None:
        """Start without messages."""
        self.name = name
        self.options: ChannelOptions = options or ChannelOptions()
        self.named: ChannelOptions | None = None
        self.counting: bool = False
        self.state: None = None
        self.error: Exception | None = None
        self.last_stats: ChannelStats | None = None
        self.transactions: OpenTransactions = topic.transactions
        self.crash_suspects: CrashSuspects = CrashSuspects()
        self.store_ref: Callable[[], object] = topic.store_ref
        self.held_by_task: HeldByTask[Any] = HeldByTask()
        self.counts: Counts = Counts(topic.placed_puts)
        self._topic = topic
        self.epoch: int = 0
        # Whose delivery numbers the messages have: an earlier owner's, until another one has sent those they have now.
        self._numbered = 0
        self._number = 0
        # The messages held, and the leases with acks that are not counted there yet.
        self._counted = Holdings()
        self._dirty: list[Lease] = []
        self._asked = 0
        self._settling = Settling()
        self._sender = SettlementSender(self, topic.link, self._settling)
        self._claimers: dict[asyncio.Future[None], None] = {}
        self.unanswered: Unanswered = self._sender.unanswered
        self._timeouts = Timeouts(
            lambda: self.holdings, self._send_touch, lambda: None if self.error else self.options.visibility_timeout
        )

    @property
    def place(self) -> str:
        """The topic's and the channel's name, for texts."""
        return f"{self._topic.name!r}, channel {self.name!r}"

    def request(self, make: Callable[[int], Packet]) -> asyncio.Future[Packet]:
        """Send the owner a request, built with the channel's handle; see `Link.request`."""
        return self._topic.link.request(make, self._topic.name, self.name)

    def tell_owner(self, make: Callable[[int], Packet]) -> None:
        """Send the owner a packet that needs no answer, unless the channel has ended."""
        # INVARIANT: what ended says nothing more. By its name, that would concern a new channel, or make one.
        if self.error is None:
            self._topic.link.tell(make, self._topic.name, self.name)

    def go_by(self, options: ChannelOptions) -> None:
        """Apply the owner's options."""
        self.options = options
        self._timeouts.go_by_options()

    def end_with(self, error: Exception) -> None:
        """Make the channel unusable for this reason, unless an earlier one did; no owner settles what is left."""
        self.error = self.error or error
        self.holdings.part_all()
        self._sender.end_all(error)

    # --- messages held

    @property
    def holdings(self) -> Holdings:
        """What is held, with everything counted that was acked."""
        if self._dirty:
            self._count_all()
        return self._counted

    def _count_all(self) -> None:
        while self._dirty:
            self._count_acks(self._dirty.pop(0))

    def _count_acks(self, lease: Lease) -> None:
        """Have the messages settled that are marked as acked in a lease."""
        lease.clean = True
        acked = list(marked_ranges(lease.marks, 0, len(lease.marks), _IS_ACKED))
        if not acked:
            return
        for first, stop in acked:
            lease.marks[first:stop] = bytes([SETTLED]) * (stop - first)
        numbers = [range(lease.number + first, lease.number + stop) for first, stop in acked]
        for each in numbers:
            self._counted.take(each, SETTLING)
        self._sender.begin(SentSettlement(numbers, None))

    @property
    def in_hand(self) -> int:
        """The number of messages that this process holds and is not about to settle."""
        return self.holdings.free

    def lose(self, deliveries: range) -> None:
        """Drop messages that the owner took away, by delivery number; those being settled wait for its answer."""
        # Until it has answered RESUME, it has delivered none of the messages that were claimed.
        staying = self.holdings.lose(deliveries, 0 if self._sender.claimed else self._asked)
        if staying:
            self._settling.lose(set().union(*staying))
        self.dropped()

    def dropped(self) -> None:
        """Note that fewer messages are held."""

    def _requeues(self) -> None:
        """Note that messages are about to be ready again."""

    def to_resume(self) -> Mapping[int, tuple[Held, ...]]:
        """Return what is held, to claim it, by the epochs of those who gave its numbers; `resumed` gets the answer.

        From the owner that gave them, by the numbers that it has given. From another one, by those of the first that
        has delivered a message: they say which of several deliveries was the last, whichever owners were asked since.
        """
        same = self._numbered == self.epoch
        # INVARIANT: an owner knows a held message by its offset. If two have the same offset, the first, which was
        # redelivered, must have no settlement left to send: it would settle the second, which is being processed.
        self._settling.supersede(self.holdings.drop_superseded(), rejections=True)
        self._sender.claimed = not self.holdings
        self._asked = self._number
        if self._sender.claimed:
            self._numbered = self.epoch
            return {}
        self._settling.later.clear()  # all are sent once it is known what is held
        return {self.epoch: self.holdings.held()} if same else self.holdings.as_delivered()

    def resumed(self, given: Mapping[int, int], elsewhere: Collection[int], *, moved: bool) -> None:
        """Take over the delivery numbers of the messages that an owner left here; others are settled, or `elsewhere`.

        Unless the owner has changed (`moved`), rejected messages may be on their way to the dead letters.
        """
        # INVARIANT: only what was claimed. The owner may have delivered more since then, before it answered.
        self._settling.supersede(self.holdings.among(elsewhere, self._asked), rejections=moved)
        self.holdings.renumber(given, self._asked)
        self._sender.claimed, self._numbered = True, self.epoch
        self._timeouts.again()
        release(self._claimers)
        self._sender.send_again()
        self.dropped()

    # --- calls from messages

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process than the caller's."""
        self._topic.check_context()

    def check(self, offset: int, delivery: int) -> None:
        """Raise unless this process holds the message.

        Raises:
            NotInFlightError: it does not.
        """
        if self.error is not None:
            raise again(self.error)
        if delivery in self.unanswered:
            raise self.unanswered.refusal(offset, delivery)
        if not self.holds(offset, delivery):
            raise not_in_flight(f"message {offset}")

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Check several messages with consecutive delivery numbers."""
        if self.holds_all(start, stop, delivery):
            return
        for number, offset in enumerate(range(start, stop), delivery):
            self.check(offset, number)

    def holds(self, offset: int, held: int) -> bool:
        """Return whether a message is still held under that number."""
        return self.error is None and self.holdings.is_free(offset, held)

    def holds_all(self, start: int, stop: int, held: int) -> bool:
        """Return whether messages are still held under numbers from this one on."""
        return self.error is None and self.holdings.all_free(range(held, held + stop - start))

    def acked(self, lease: Lease) -> None:
        """Note the first ack in a lease that is not counted yet."""
        self._dirty.append(lease)
        lease.clean = False
        self._sender.send_acks_soon()

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message that is not acked by its mark alone; `commit` waits until the owner confirms it.

        A message whose ack no owner has answered yet is not settled again: `commit` waits for that ack.
        """
        if (before := self.unanswered.take(delivery)) is not None:
            self._sender.last = before
            return
        if self.error is not None or not self.holdings.take_one(offset, delivery):
            self.check(offset, delivery)
        self._sender.begin(SentSettlement([_one(delivery)], None))

    def ack_many(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Settle messages: all of them, or none if one cannot be settled."""
        for offset, delivery in deliveries:
            self.check(offset, delivery)
        if deliveries:
            self._settle(neighbours(delivery for _, delivery in deliveries), None)

    @contextmanager
    def together(self) -> Iterator[Together]:
        """Gather what is settled in the block."""
        self._sender.together = gathered = Together()
        try:
            yield gathered
        finally:
            self._sender.together = None

    def ack_run(self, lease: Lease, first: int, count: int) -> None:
        """Settle `count` messages of a lease."""
        numbers = range(lease.number + first, lease.number + first + count)
        if self.error is not None or not self.holdings.all_free(numbers):
            for index in range(first, first + count):
                self.check(lease.first + index, lease.number + index)
        self._settle([numbers], None)
        lease.marks[first : first + count] = bytes([SETTLED]) * count

    def ack_marked(self, lease: Lease) -> None:
        """Settle the messages of a lease that are marked as acked."""
        self.check_context()
        if lease.clean:
            self._dirty.append(lease)
        self._count_all()

    def nack(
        self, batch: Batch, delivery: int, attempts: int, delay: int | None = None, cause: Cause = NO_CAUSE
    ) -> int | None:
        """Make a message ready again; see `Settlement.nack`."""
        options = self.options
        if options.max_attempts is not None and attempts >= options.max_attempts:
            self.reject(batch, delivery, attempts, f"delivered {attempts} times{cause.note}", cause)
            return None
        if delay is None and options.backoff is not None:
            delay = int(next_wait(options.backoff, attempts) * _SECOND)
        span = delay or 0
        self.check(batch.first, delivery)
        self.check_context()

        numbers, loop = [_one(delivery)], asyncio.get_running_loop()
        began = loop.time()

        def make(handle: int) -> Packet:
            # The owner counts from when it gets this, which may be long after the call: after an owner's death.
            left = max(span - round((loop.time() - began) * _SECOND), 0)
            those = self.holdings.rows(numbers)
            items = tuple(Item(one.offset, one.delivery, left, max(attempts, 0)) for one in those)
            return Nack(handle, self.epoch, items)

        self._settle(numbers, make, back=not span, final=False)
        return span

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Make a message ready again as if it had never been handed out."""
        del attempts
        self.check(batch.first, delivery)
        self._give_back([_one(delivery)])

    def give_back(self, numbers: Iterable[range]) -> None:
        """Release messages by their numbers; those no longer held are skipped."""
        free = [part for each in numbers for part in self.holdings.free_of(each)]
        for some in in_parts(free, BACK_AT_ONCE):
            self._give_back(some)

    def _give_back(self, numbers: Sequence[range]) -> None:
        def make(handle: int) -> Packet:
            return Release(handle, self.epoch, self.holdings.ranges(numbers))

        self._settle(numbers, make, back=True, final=False)

    def reject(
        self, batch: Batch, delivery: int, attempts: int, reason: str, cause: Cause = NO_CAUSE
    ) -> asyncio.Future[Any]:
        """Reject a message; the future ends once that is durable.

        A message whose rejection no owner has answered yet is not rejected again: the future ends with that.
        """
        if (before := self.unanswered.take(delivery, rejected=True)) is not None:
            return before.ending()
        self.check(batch.first, delivery)

        numbers, text = [_one(delivery)], header_text(reason)

        def make(handle: int) -> Packet:
            one = self.holdings.rows(numbers)[0]
            return Reject(handle, attempts, self.epoch, one.offset, one.delivery, text, cause.error)

        return self._settle(numbers, make).ending()

    def touch(self, offset: int, delivery: int, extend: int | None) -> None:
        """Restart a message's visibility timeout."""
        self.check_context()
        self.check(offset, delivery)
        self._timeouts.touch(delivery, extend)

    def _send_touch(self, items: tuple[Item, ...]) -> None:
        if self._sender.claimed:
            self.tell_owner(lambda handle: Touch(handle, self.epoch, items))

    def renew(self, delivery: int) -> None:
        """Restart a message's timeout regularly, until `renew_no_more` was called as many times."""
        self.check_context()
        self._timeouts.renew(delivery)

    def renew_no_more(self, delivery: int) -> bool:
        """Undo one call of `renew`; return whether it was the last."""
        return self._timeouts.renew_no_more(delivery)

    # --- for transactions

    @property
    def claimed(self) -> bool:
        """Whether it is known which of the messages are still held, but those of cancelled transactions."""
        return self._sender.claimed or self.error is not None

    def knows(self, reserved: Iterable[Reserved]) -> bool:
        """Return whether it is known which of these messages are still held."""
        return self.claimed and self._settling.decided(each.numbers for each in reserved)

    async def until_claimed(self, *, again: bool = False) -> None:
        """Wait until `claimed` may have become true, perhaps for a request that is sent `again`.

        Raises:
            OwnerLostError, OwnerStalledError: there is no owner, or it does not answer.
        """
        self._topic.link.check(again=again)
        await wait_in(self._claimers)

    def begin_commit(self, numbers: Iterable[range]) -> list[Reserved]:
        """Reserve held messages for a transaction; return them."""
        return [reserved for each in numbers for reserved in self.holdings.reserve(each)]

    def end_commit(self, reserved: Iterable[Reserved], *, settled: bool) -> None:
        """Drop the messages if the transaction has settled them; otherwise free those still held."""
        for each in reserved:
            if settled:
                self.holdings.drop(each.numbers)
            else:
                self.holdings.leave(each.numbers)
        self.dropped()

    def withdraw_commit(self, reserved: Iterable[Reserved]) -> None:
        """Free the messages of a cancelled transaction, until `end_withdrawal` says whether it has settled them."""
        for each in reserved:
            self.holdings.leave(each.numbers)
        self._settling.undecided.append(numbers_of(reserved))

    def end_withdrawal(self, reserved: Sequence[Reserved], *, settled: bool) -> None:
        """Drop the messages if the transaction has settled them, as other calls then fail; send those meanwhile."""
        waiting = self._settling.decide(numbers_of(reserved))
        if settled and waiting:
            offsets = {number: each.offset + at for each in reserved for at, number in enumerate(each.numbers)}
            for settling in waiting:
                settling.supersede(offsets)
        self.end_commit(reserved if settled else (), settled=settled)
        release(self._claimers)
        if self._sender.claimed:
            surely(self._settling.send_in_turns(waiting, self._sender.send), self._sent)

    def _sent(self, sending: asyncio.Future[None]) -> None:
        """Have all that waits sent again, if some of it could not be sent, as without memory for a packet."""
        if sending.exception() is not None:
            self._topic.link.again()

    def acks(self, handle: Callable[[str, str], int], reserved: Sequence[Reserved]) -> list[Ack]:
        """Return these messages in the owner's terms, including those no longer held, so that it refuses them."""
        here = self.holdings.ranges(each.numbers for each in reserved)
        gone = tuple(missing for each in reserved for missing in self.holdings.missing(each))
        by_epoch = [(epoch, those) for epoch, those in ((self.epoch, here), (_NOBODY, gone)) if those]
        return [Ack(handle(self._topic.name, self.name), epoch, those) for epoch, those in by_epoch]

    # --- asking the owner

    def _settle(
        self, numbers: Sequence[range], make: Callable[[int], Packet] | None, *, back: bool = False, final: bool = True
    ) -> SentSettlement:
        """Have this owner or a later one settle messages, until one confirms it."""
        self.check_context()
        for each in numbers:
            self.holdings.take(each, SETTLING)
        if back:
            self._requeues()
        return self._sender.begin(SentSettlement(numbers, make, back=back, final=final))

    def tell(self, error: Exception) -> None:
        """Fail the waiters of settlements, as no owner answers; the messages may be settled nevertheless."""
        self._sender.tell(error)
        release(self._claimers)

    async def commit(self, lease: Lease, index: int, /) -> None:
        """Wait until the settlement of a message of a lease, the last one settled here, is durable.

        Raises:
            NotInFlightError: the owner took it back before.
        """
        if lease.marks[index] == ACKED:
            # A settlement of its own: others that are acked in this turn of the loop may be refused.
            lease.marks[index] = SETTLED
            number = lease.number + index
            self.holdings.take(_one(number), SETTLING)
            self._sender.begin(SentSettlement([_one(number)], None))
        if self._sender.last is not None:
            await self._sender.last.wait()

    async def committed(self) -> None:
        """Do nothing: what waited for an owner's answer is durable."""

    async def all_settled(self) -> None:
        """Wait until the outcome of everything settled before is known; of rejections, only for a second.

        Raises:
            OwnerLostError: there is no owner.
        """
        self._count_all()
        await self._settling.answered()

    @property
    def settling(self) -> bool:
        """Whether the outcome of anything but a rejection is not known yet."""
        self._count_all()
        return any(not settling.rejects for settling in self._settling)

    @property
    def rejecting(self) -> bool:
        """Whether the outcome of a rejection is not known yet."""
        return self._settling.rejecting


def _one(number: int) -> range:
    return range(number, number + 1)
