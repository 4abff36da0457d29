"""Transactions of a process that does not own the store: they replace the engine's committer.

A transaction is sent to the owner, and to the next one, until one reports its outcome. It has a sequence by which a
repeated one is recognised: it belongs to a lane, which has one transaction in flight at a time, so that none waits for
another and the owner has to remember only the last one of each lane.
"""

from __future__ import annotations

import asyncio
from copy import copy
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Final, cast

from aiodq.awaited import shielded, twice
from aiodq.delivery.range_set import joined
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, MessageSizeError, ProtocolError
from aiodq.shared.encoding.remote_errors import error_of, is_lost
from aiodq.storage.state.transactions.transaction_origins import LANE_SHIFT
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import Done, Fail, Put, Txn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.clock import Clock
    from aiodq.engine.transactions.participants import AckRun, Topic
    from aiodq.format.columns import Columns
    from aiodq.shared.client.remote_topic import RemoteTopic
    from aiodq.shared.connection.link import Link
    from aiodq.shared.consuming.holdings import Reserved
    from aiodq.shared.consuming.remote_settlement import RemoteSettlement
    from aiodq.wire.packets import Ack, Packet

__all__ = ["RemoteCommitter"]

_AGAIN: Final = 0.01
"""Seconds after which a transaction is sent again if the owner was about to end."""

_LARGEST: Final = (64 << 20) - 4096
"""Most bytes of a transaction: an owner takes no larger packet."""

_MOST: Final = 0xFFFF
"""Most topics, and most channels, of one transaction."""


class _Asked:
    """A transaction that is to be committed.

    Attributes:
        lane: the lane it belongs to.
        sequence: its sequence, with the lane in it.
        sent: whether an owner may have received it.
    """

    def __init__(self, lane: int, number: int, puts: list[tuple[str, int, bytes]]) -> None:
        self.lane = lane
        self.sequence: int = lane << LANE_SHIFT | number
        self.sent = False
        self._puts = puts
        self._held: dict[RemoteSettlement, list[Reserved]] = {}
        self._withdrawn = False

    def hold(self, settlements: Sequence[AckRun]) -> None:
        """Reserve these messages, so that nothing else settles them.

        Raises:
            NotInFlightError: one is no longer held here; none is reserved then.
        """
        numbers: dict[RemoteSettlement, list[tuple[int, int]]] = {}
        for run in settlements:
            # Not a `Settlement`, but with everything that a transaction needs of one.
            channel = cast("RemoteSettlement", run.channel_engine)
            channel.check_all(run.start, run.stop, run.delivery)
            numbers.setdefault(channel, []).append((run.delivery, run.delivery + run.stop - run.start))
        # One for all neighbours: messages are acked one by one, in any order, and may be very many.
        self._held = {
            channel: channel.begin_commit(range(start, stop) for start, stop in joined(each))
            for channel, each in numbers.items()
        }

    def withdraw(self) -> None:
        """Free the messages before the outcome is known; what settles them meanwhile waits for it."""
        self._withdrawn = True
        for channel, reserved in self._held.items():
            channel.withdraw_commit(reserved)

    def leave(self, *, settled: bool) -> None:
        """Note the messages as settled, or free them. Repeating it changes nothing."""
        held, self._held = self._held, {}
        for channel, reserved in held.items():
            (channel.end_withdrawal if self._withdrawn else channel.end_commit)(reserved, settled=settled)

    async def claimed(self) -> None:
        """Wait until it is known which of the messages are still held."""
        while (channel := next((one for one, those in self._held.items() if not one.knows(those)), None)) is not None:
            await channel.until_claimed(again=self.sent)

    def packet(self, handle: Callable[[str, str], int]) -> Txn:
        """Return the packet for the current owner."""
        acks: list[Ack] = []
        for channel, reserved in self._held.items():
            acks += channel.acks(handle, reserved)
        puts = [Put(handle(topic, ""), 0, count, frames) for topic, count, frames in self._puts]
        return Txn(self.sequence, tuple(acks), tuple(puts))


class RemoteCommitter:
    """The counterpart of `Committer` for a store that another process owns.

    Attributes:
        largest: most bytes of messages that a transaction may put.
    """

    largest: ClassVar[int] = 60 << 20

    def __init__(self, link: Link, clock: Clock) -> None:
        """Use this link."""
        self._link = link
        self._clock = clock
        self._free: list[int] = []
        self._numbers: list[int] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._shut = False

    def shut_down(self) -> None:
        """Accept no more transactions; the outcome of those accepted is waited for with `settled`."""
        self._shut = True

    @property
    def pending(self) -> int:
        """The number of transactions whose outcome is unknown."""
        return len(self._asking)

    async def settled(self) -> None:
        """Wait until all outcomes are known.

        Cancellation: nothing changes.
        """
        while self._asking:
            await asyncio.wait(list(self._asking))

    async def commit(
        self,
        settlements: Sequence[AckRun],
        puts: Sequence[tuple[Topic, Columns, int]],
        late: Callable[[BaseException | None], None],
    ) -> None:
        """See `Committer.commit`.

        Raises:
            AiodqError, QueueFull, QueueShutDown: as there.
            OwnerLostError, OwnerStalledError: there is no owner, or it does not answer; the outcome is unknown.

        Cancellation: as there; what the owner has not begun to write is withdrawn.
        """
        if self._shut:
            raise QueueShutDown("the store is closed")
        self._link.check()
        for topic, _, _ in puts:
            remote = cast("RemoteTopic", topic)
            if isinstance(remote.error, QueueShutDown):
                raise copy(remote.error)  # else the owner would create a new one of its name
            remote.put_buffer.check_open(pressing=bool(settlements))
        frames = [(topic.name, len(columns.bodies), self._frames(columns)) for topic, columns, _ in puts]
        _check_size(frames, settlements)
        asked = self._begin(settlements, frames)
        asking = asyncio.get_running_loop().create_task(self._decided(asked))
        self._asking.add(asking)
        twice(asking.add_done_callback, partial(self._over, asked))
        try:
            await shielded(asking)
        except asyncio.CancelledError:
            if asked.sent:
                asked.withdraw()
                asking.add_done_callback(lambda done: late(_error_of(done)))
            else:
                asked.leave(settled=False)
            asking.cancel()
            raise

    def _frames(self, columns: Columns) -> bytes:
        return encode_messages(columns, self._clock.now_ns())

    def _begin(self, settlements: Sequence[AckRun], puts: list[tuple[str, int, bytes]]) -> _Asked:
        lane = self._free[0] if self._free else len(self._numbers)
        asked = _Asked(lane, 1 if lane == len(self._numbers) else self._numbers[lane] + 1, puts)
        asked.hold(settlements)
        if self._free:
            heappop(self._free)
            self._numbers[lane] += 1
        else:
            self._numbers.append(1)
        return asked

    def _over(self, asked: _Asked, asking: asyncio.Task[None]) -> None:
        if asking not in self._asking:
            return
        self._asking.discard(asking)
        asked.leave(settled=_error_of(asking) is None)
        heappush(self._free, asked.lane)

    async def _decided(self, asked: _Asked) -> None:
        """Send the transaction until an owner reports its outcome."""
        try:
            outcome = await self._ask(asked)
            while isinstance(outcome, Fail) and is_lost(outcome):
                await asyncio.sleep(_AGAIN)
                outcome = await self._ask(asked)
        except asyncio.CancelledError as cancelled:
            if not asked.sent:
                raise
            try:
                answer = await self._link.call("withdraw", {"sequence": asked.sequence})
            except QueueShutDown:  # the loop is ending, and nobody is left to be told
                raise cancelled from None
            if not answer.get("result"):
                raise AiodqError("the transaction was withdrawn") from None
            return
        if isinstance(outcome, Fail):
            raise error_of(outcome)
        if not isinstance(outcome, Done):
            raise ProtocolError(f"{outcome.op.name} is no answer to TXN")

    async def _ask(self, asked: _Asked) -> Packet:
        await self._link.connected(again=asked.sent)
        await asked.claimed()
        # INVARIANT: no other task has run since: the delivery numbers in the packet are those of this owner.
        answer = self._link.ask(asked.packet)
        asked.sent = True
        return await answer


def _error_of(done: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()


def _check_size(puts: Sequence[tuple[str, int, bytes]], settlements: Sequence[AckRun]) -> None:
    settled = sum(run.stop - run.start for run in settlements)
    size = sum(len(frames) + 64 for _, _, frames in puts) + 64 * settled
    channels = {(each.engine.name, each.channel_engine.name) for each in settlements}
    if size > _LARGEST or len(puts) > _MOST or 2 * len(channels) > _MOST:
        raise MessageSizeError(
            f"a transaction of {size} bytes in {len(puts)} topics; a store that is shared takes {_LARGEST} at a time"
        )
