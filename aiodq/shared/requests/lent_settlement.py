"""What a client does with messages it was lent: it acks, releases or rejects them, or a transaction settles them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from aiodq.awaited import shielded
from aiodq.engine.channel.dead_lettering.failure_causes import Cause
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, NotInFlightError, not_in_flight
from aiodq.shared.encoding.number_runs import GONE
from aiodq.wire.packets import Done, Gone, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.message import Message
    from aiodq.shared.requests.lent.lent_messages import LentMessages
    from aiodq.shared.requests.lent.lent_runs import LentRun
    from aiodq.shared.requests.serving import Owning, Wire
    from aiodq.wire.packets import Reject

__all__ = ["LentSettlement"]

_BACK_AT_ONCE: Final = 50
"""Messages of a disconnected client that are made ready again in one turn of the loop."""


class LentSettlement:
    """Settles or takes back the messages of one channel that one client holds."""

    def __init__(
        self, owner: Owning, wire: Wire, handle: int, channel_engine: ChannelEngine[Message], lent: LentMessages
    ) -> None:
        """Settle what is in `lent`.

        Args:
            owner: the owner.
            wire: the client's connection.
            handle: the number by which the client calls the channel.
            channel_engine: the channel's engine.
            lent: the messages that the client holds.
        """
        self._owner = owner
        self._wire = wire
        self._handle = handle
        self._engine = channel_engine
        self._lent = lent
        self._over = False

    def find(self, epoch: int, offset: int, delivery: int) -> Message:
        """Return a message that the client holds.

        Raises:
            NotInFlightError: it does not.
        """
        run, place = self._lent.place_of(epoch, offset, delivery)
        return run.message(place)

    def take(self, epoch: int, offset: int, delivery: int) -> Message:
        """Take a message from the client to settle it; see `find`."""
        run, place = self._lent.place_of(epoch, offset, delivery)
        message = run.message(place)
        self._lent.drop(run, place, place + 1)
        return message

    def release(self, epoch: int, ranges: Iterable[Range]) -> None:
        """Make ranges of messages ready again, as many as possible, as if they had never been lent.

        Raises:
            NotInFlightError: some could not be.
        """
        failure: NotInFlightError | None = None
        for each in ranges:
            parts, lost = self._lent.held(epoch, each)
            for run, start, stop in parts:
                for place in range(start, stop):
                    message = run.message(place)
                    self._lent.drop(run, place, place + 1)
                    try:
                        message.release()
                    except NotInFlightError as error:
                        failure = error
            failure = not_in_flight(f"message {lost[0].first}") if lost else failure
        if failure is not None:
            raise failure

    def ack(self, epoch: int, ranges: Iterable[Range]) -> NotInFlightError | None:
        """Settle ranges of messages, as many as possible, and tell the client which failed; return why, if any."""
        lost: list[Range] = []
        for each in ranges:
            parts, missing = self._lent.held(epoch, each)
            lost += missing
            for run, start, stop in parts:
                lost += self._ack_part(run, start, stop)
        if not lost:
            return None
        if epoch == self._owner.epoch:
            self._wire.send(Gone(self._handle, epoch, tuple(lost)))
        return not_in_flight(f"message {lost[0].first}")

    def _ack_part(self, run: LentRun, start: int, stop: int) -> list[Range]:
        """Settle messages that the client holds; return those that are no longer in flight."""
        lost: list[Range] = []
        if run.in_flight(start, stop):
            self._engine.ack_run(run.lease, run.first + start, stop - start)
        else:
            for place in range(start, stop):
                try:
                    run.message(place).ack_nowait()
                except NotInFlightError:
                    lost.append(Range(run.offset + place, run.number + place, 1))
        self._lent.drop(run, start, stop)
        return lost

    # --- for transactions

    def reserve(self, epoch: int, ranges: Iterable[Range]) -> Iterator[LentRun]:
        """Yield the messages of ranges, each taken from the client.

        Raises:
            NotInFlightError: the client does not hold one.
        """
        for each in ranges:
            parts, lost = self._lent.held(epoch, each)
            for run, start, stop in parts:
                part = run.cut(start, stop)
                self._lent.drop(run, start, stop)
                yield part
            if lost:
                raise not_in_flight(f"message {lost[0].first}")

    def keep(self, part: LentRun) -> None:
        """Return messages to the client, which may be gone by now."""
        first, number, count, state = part.offset, part.number, len(part.bodies), self._engine.state
        if self._over:
            for place in range(count):
                with suppress(AiodqError, QueueShutDown):
                    part.message(place).release()
        elif state is not None and state.is_in_flight(first, first + count, number):
            self._lent.keep(part)
        elif count == 1:
            self._wire.send(Gone(self._handle, self._owner.epoch, (Range(first, number, 1),)))
        else:
            for place in range(count):
                self.keep(part.cut(place, place + 1))

    async def rejected(self, message: Message, reject: Reject) -> Done:
        """Reject a message, and wait until that is durable."""
        engine = self._engine
        batch = message._batch()  # noqa: SLF001 - a settlement is a message's other half
        rejecting = engine.reject(batch, reject.delivery, reject.attempts, reject.reason, Cause(error=reject.error))
        message._committed()  # noqa: SLF001 - as above
        await (engine.commit() if rejecting is None else shielded(rejecting))
        return Done()

    async def give_back(self, taken: int = 0, *, goes_on: bool = False) -> None:
        """Make everything that the client holds ready again, in order; other tasks run meanwhile.

        Args:
            taken: the number of messages, the oldest ones, that count as delivered in channels with `max_attempts`.
            goes_on: whether the client has not ended: then they count only if it ends before the next owner begins.
        """
        self._over = True
        counted = taken if self._engine.counting and (self._owner.closing or not goes_on) else 0
        count = 0
        # A lease has its delivery numbers when it begins: what is handed out of it last may have the lowest.
        for run in sorted(self._lent, key=attrgetter("sent")):
            for place in range(len(run.marks)):
                if run.marks[place] != GONE:
                    with suppress(AiodqError, QueueShutDown):
                        if count >= counted:
                            run.message(place).release()
                        elif not goes_on:
                            run.message(place).nack_nowait(0)
                        # INVARIANT: the others stay noted as in flight: the next owner counts them unless they are
                        # claimed, and their holder may be gone by then.
                    self._lent.drop(run, place, place + 1)
                    count += 1
                    if not count % _BACK_AT_ONCE:
                        await asyncio.sleep(0)
