"""A channel of a process that does not own the store: it replaces the engine behind a `Channel`.

The messages are of the same class: they call an engine, and this one asks the owner.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import mark_retrieved
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.channel.lease.open_lease import OpenLease
from aiodq.engine.channel.loop_turn import LoopTurn
from aiodq.engine.channel.wait_queue import WaitQueue
from aiodq.engine.loop.futures import release, surely, wait_in
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, ProtocolError, again
from aiodq.message import Message
from aiodq.names import is_ephemeral
from aiodq.shared.connection.opened.known import Known
from aiodq.shared.connection.watching import ask_for_changes
from aiodq.shared.consuming.arrived import Arrived, deaths
from aiodq.shared.consuming.demand import Demand
from aiodq.shared.consuming.holdings import portions
from aiodq.shared.consuming.pace import LOOKS, MOST_AHEAD, Pace
from aiodq.shared.consuming.remote_settlement import RemoteSettlement
from aiodq.shared.encoding.answers import read_held, understood
from aiodq.shared.encoding.options_json import read_channel_options
from aiodq.shared.encoding.remote_errors import error_in, error_of, is_lost
from aiodq.wire.frames import decode_messages
from aiodq.wire.packets import Call, Deliver, Done, Fail, Figures, Resume

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from aiodq.engine.graceful_stop import Stoppable
    from aiodq.options import ChannelOptions
    from aiodq.shared.connection.opened.listener import Notice
    from aiodq.shared.consuming.remote_settlement import SettledTopic
    from aiodq.wire.packets import Packet

__all__ = ["RemoteChannel"]

_LOOK: Final = 0.05
"""Seconds between two checks whether a queue that was shut down is empty."""

_UNTOLD: Final = 0.2
"""Seconds for which a message is kept that comes while the channel is paused."""


class RemoteChannel(RemoteSettlement):
    """The counterpart of `ChannelEngine` for a channel that another process delivers.

    Attributes:
        kind, open_lease, special: as there; see `Arrived`.
        state: None, as only the owner knows it.
        counts: the message counts, as far as known here.
        read_here: bytes read on the event loop: none, the owner reads.
    """

    def __init__(self, topic: SettledTopic, name: str, options: ChannelOptions | None) -> None:
        """Prepare to deliver what the owner sends."""
        super().__init__(topic, name, options)
        self.paused: bool = False
        self.shut: bool = False
        self.shut_now: bool = False
        self.consumers: set[Stoppable] = set()
        self.ending: asyncio.Event = asyncio.Event()
        self.kind: type[Message] = Message
        self.open_lease: OpenLease = OpenLease(topic.name, time.monotonic)
        self.open_lease.until = inf  # the owner notices what time changes
        self.special: bool
        self.go_by(self.options)
        # Only a limited number of messages is sent ahead, so getters never need to yield.
        self.turn: LoopTurn = LoopTurn(lambda: 0.0)
        self.read_here: int = 0
        self._known = Known()
        self._ready = Arrived(self.open_lease)
        self._wait_queue = WaitQueue(self.wake)
        self._opened = self._made_by = 0
        self._made: str | None = None
        self._is_fleeting = is_ephemeral(topic.name) or is_ephemeral(name)
        self._through = self._drained = self._halted = False
        self._idlers: dict[asyncio.Future[None], None] = {}
        self._pace = Pace()
        self._demand = Demand(self, self._ready, self._pace)
        self._ends: asyncio.Task[None] | None = None

    def go_by(self, options: ChannelOptions) -> None:
        """See `RemoteSettlement`."""
        super().go_by(options)
        self.special = self.open_lease.special = options.auto_ack

    async def known(self) -> None:
        """Wait until the owner has opened the channel.

        Raises:
            AiodqError: the owner's refusal, or there is no owner.
        """
        await self._known.wait()

    # --- packets from the owner; see `Listener`

    @property
    def is_there(self) -> bool:
        """Whether it exists, or did, with files of its own."""
        return bool(self._made_by) and not self._is_fleeting

    def meant(self, epoch: int) -> Mapping[str, str] | None:
        """See `Listener.meant`: a channel that was made is no longer made, nor is one in memory by the same owner."""
        if not self.is_there and (not self._made_by or self._made_by != epoch):
            return None
        return {} if self._made is None else {"made": self._made}

    def opened(self, facts: Mapping[str, Any]) -> None:
        """Note that the channel is open, with its options and state."""
        # Nothing that was delivered is here, and an owner of an earlier aiodq does not say when it resumes.
        self._apply(facts)
        self._hold_back(paused=False)
        self._made_by = self.epoch
        self._known.note()
        self._ask_the_end()
        ask_for_changes(self._topic.link, self._topic.name, self.name, self)

    def changed(self, facts: Mapping[str, Any]) -> None:
        """Apply the owner's options and pause, which any process may have changed."""
        self._apply(facts)
        self._hold_back(paused=self.paused)

    def _apply(self, facts: Mapping[str, Any]) -> None:
        options = facts.get("options", {})
        self.go_by(read_channel_options(options))
        self._topic.link.opened.changed(self._topic.name, self.name, options)
        self.paused = bool(facts.get("paused"))
        if isinstance(made := facts.get("made"), str):
            self._made = made

    def _hold_back(self, *, paused: bool) -> None:
        """Hand out nothing that is here, and give it back, as long as the channel is paused."""
        self._sift()
        before, self._demand.held_back = self._demand.held_back, paused
        if paused and not before:
            self._ready.halt()
            self._demand.withdraw()
        elif before and not paused:
            self._demand.want()
            self.wake()

    def _ask_the_end(self) -> None:
        end = self.request(lambda handle: Call("ended", {"handle": handle}))
        surely(end, lambda done: self._ended(done.result()))

    def _ended(self, packet: Packet) -> None:
        """Handle the end of the channel, or an error of its delivery; not the end of the owner."""
        if isinstance(packet, Fail) and not is_lost(packet):
            self.refused(error_of(packet))
        elif isinstance(packet, Done) and self.error is None and (error := error_in(packet.facts)) is not None:
            self._has_nothing(error)
            self._ask_the_end()

    def _has_nothing(self, error: Exception) -> None:
        """Raise an error in the next getter, or in all of them if nothing will ever come."""
        if isinstance(error, QueueShutDown):
            self._demand.unfulfilled()
            if not self._settling.requeueing:  # else `dropped` asks the owner again once it has done that
                self._drained = True
                self._wait_queue.end(error)
        else:
            self._wait_queue.fail_next(error)

    def refused(self, error: Exception) -> None:
        """Raise `error` in every getter of the channel from now on; no later owner opens it for them."""
        self.end_with(error)
        self._topic.link.detach(self._topic.name, self.name, self)
        self._topic.discard(self)
        self._known.refuse(error)
        self.fail_waiters(error)

    def fail_waiters(self, error: Exception) -> None:
        """Raise an error in all waiters, which may try again."""
        if isinstance(error, QueueShutDown):
            self.end_with(error)
            self._known.refuse(error)
            self._topic.link.detach(self._topic.name, self.name, self)
            self._timeouts.stop()
            self._demand.stop()
            if self._ends is not None:
                self._ends.cancel()
        self._known.tell(error)
        self._wait_queue.end(error)
        self.tell(error)
        release(self._idlers)

    def leave(self) -> None:
        """Hand out nothing more, and tell the owner which messages were taken: these count as delivered.

        Those that are on their way count as not taken, as those that are here.
        """
        self._halted = True
        self._ready.halt()
        self._demand.leave()

    def receive(self, packet: Notice, epoch: int) -> None:
        """Handle a packet about the channel."""
        if isinstance(packet, Figures):
            self.counts.receive(packet)
        elif isinstance(packet, Deliver):
            self._delivered(packet, epoch)
        elif packet.epoch == self.epoch:
            for each in packet.ranges:
                self.lose(range(each.delivery, each.delivery + each.messages))
            self._sift(lost=True)

    def _sift(self, *, lost: bool = False) -> None:
        """Hand out no message that was taken away, or has none of the channel's tags by now: the owner settles it."""
        wrong = [] if self.options.tags is None else self._ready.without(self.options.tags)
        if self._ready and (wrong or lost):
            self.give_back(wrong)
            self._ready.keep(self.holdings.free_of)
            self._demand.want()

    def _delivered(self, packet: Deliver, epoch: int) -> None:
        """Add arrived messages, and wake getters."""
        if epoch != self.epoch:
            return
        for batch in decode_messages(packet.frames, packet.first):
            # Numbers of this process's own: two owners may use the same.
            count = len(batch.columns.bodies)
            number, self._number = self._number, self._number + count
            lease = MessageLease(
                self._topic.name, batch, number=number, attempts=packet.attempts, channel_engine=self,
                home=self._topic.home,
            )  # fmt: skip
            self._ready.add(lease, batch.columns.bodies, deaths(self._topic.clock, batch.columns.expiries))
            self._counted.add(lease, packet.delivery + batch.first - packet.first, packet.attempts, epoch)
            self._demand.got += count
            self._drained = False
            self.counts.delivered(count)
        self.wake()
        self._demand.withdraw_unless_wanted()
        if self._demand.held_back:  # it was resumed for a moment, or is, of which the owner is about to tell
            asyncio.get_running_loop().call_later(_UNTOLD, self._demand.withdraw_more)

    def reopened(self, epoch: int) -> None:
        """Start again with another owner, and give back the messages that were not taken here."""
        before = self._numbered
        self.epoch = epoch
        self._demand.reset()
        self._opened += 1
        self._sender.claimed = self._drained = False
        # Claimed first, like taken messages: a killed owner has noted them as delivered, and that would count.
        self.give_back(self._ready.take_back())
        self.counts.reset()
        if held := self.to_resume():
            parts = [(owner, part) for owner, those in held.items() for part in portions(those)]
            answers = [self.request(partial(Resume, epoch=owner, held=part)) for owner, part in parts]
            surely(asyncio.gather(*answers), lambda done: self._claimed(done.result(), epoch, before))
        self._demand.want()

    def _claimed(self, answers: list[Packet], epoch: int, before: int) -> None:
        """Handle the owner's answer about which messages this process still holds."""
        facts = [answer.facts or {} for answer in answers if isinstance(answer, Done)]
        if epoch != self.epoch or len(facts) != len(answers):
            failed = [answer for answer in answers if isinstance(answer, Fail)]
            if epoch == self.epoch and self.error is None and not any(map(is_lost, failed)):
                self._not_claimed(failed)
            return  # the next owner is asked again
        try:
            held = understood(partial(read_held, most=len(self.holdings)), facts, "RESUME")
        except ProtocolError as error:
            self._topic.link.misunderstood(error)
        else:
            self.resumed(*held, moved=epoch != before)
            self._demand.want()

    def _not_claimed(self, failed: list[Fail]) -> None:
        """Fail waiters with the owner's error about the claim, and ask it again later, unless the channel is gone."""
        error = error_of(failed[0]) if failed else ProtocolError("this is no answer to RESUME")
        if isinstance(error, QueueShutDown):
            self.refused(error)
        else:
            self.tell(error)
            self._topic.link.again()

    def wake(self, *, everybody: bool = False) -> None:
        """Wake as many getters as there are messages for them, or all of them once there is nothing more for any."""
        everybody = everybody or self.shut_now or self._through
        self._wait_queue.wake(len(self._wait_queue.line) if everybody else len(self._ready))
        if self._idlers:
            release(self._idlers)

    # --- getting

    def _check_usable(self) -> None:
        self._topic.check()
        if self.error is not None:
            raise again(self.error)

    @property
    def finished(self) -> bool:
        """Whether it is shut down, or drained by its owner, with nothing ready as far as known here."""
        return self.shut_now or ((self._through or self._drained) and not self._settling.requeueing)

    def take_next(self, store_ref: object) -> Message | None:
        """Hand out a message that is here already; None if there is none."""
        if self._ready.mortal and (dead := self._ready.take_dead(self._topic.clock.monotonic())):
            self.give_back(dead)  # to the owner, which settles them
        if not self._ready or self._halted or self._demand.held_back:
            return None
        message = self._ready.take(store_ref, self._pace.ahead // LOOKS if self._pace.ahead else MOST_AHEAD)
        self._demand.prefetch()
        return message

    def take(self, store_ref: object, *, cold: bool = False, thorough: bool = False) -> Message | None:  # noqa: ARG002 - the owner passes over what is not to be delivered
        """Hand out as `take_next` does; with `cold`, also request a message for the next call."""
        message = self.take_next(store_ref)
        if message is None and cold and not self.shut_now:
            self._demand.keep_one()
            self._look_whether_through()
        return message

    async def was_read(self) -> bool:
        """Wait for more of what was asked for, if the owner has more; return whether any has come.

        Raises:
            AiodqError: as `refresh`.
        """
        if self.counts.ready and not self._ready:
            self._demand.want()  # nothing was asked for if the first ones were here
            await self.refresh(bring=True)  # the owner sends in pieces, and answers this in between
        return bool(self._ready) and not (self._halted or self._demand.held_back)  # else they are being given back

    def take_run(self, most: int, store_ref: object) -> list[Message]:
        """Hand out up to `most` messages that are here already."""
        if self._ready.mortal:
            return list(islice(iter(partial(self.take_next, store_ref), None), most))
        if not self._ready or self._halted or self._demand.held_back:
            return []
        taken = self._ready.take_run(most, store_ref)
        self._demand.prefetch()
        return taken

    def note_deliveries(self) -> None:
        """Do nothing: the owner notes deliveries before it sends them."""

    @property
    def ready(self) -> int:
        """The number of messages that may be delivered, as far as known here."""
        return self.counts.ready + len(self._ready)

    @property
    def flying(self) -> int:
        """The number of messages handed out and not settled, as far as known here."""
        return max(self.counts.flying - len(self._ready), 0)

    @contextmanager
    def wanting(self, more: int) -> Iterator[None]:
        """Request `more` messages than getters wait for, as long as the block lasts."""
        self._demand.waiting += more
        try:
            yield
        finally:
            self._demand.waiting -= more
            self._demand.waits_no_more()

    async def get(self, store_ref: object) -> Message:
        """Wait for the next message, which is to hold `store_ref`.

        Raises:
            QueueShutDown: shut down, and nothing is ready.
            AiodqError: the owner's error, or there is no owner.

        Cancellation: nothing is taken, and the wake-up goes to the next waiter.
        """
        self._demand.waiting += 1
        self._look_anew()
        try:
            while True:
                self._check_usable()
                message = self.take_next(store_ref)
                if message is not None:
                    return message
                if self.shut_now or self._through:
                    raise QueueShutDown("the queue was shut down")
                self._ask_for_one()
                await self._wait_queue.wait()
        finally:
            self._demand.waiting -= 1
            self._demand.waits_no_more()

    def _ask_for_one(self) -> None:
        self._look_whether_through()
        self._demand.look_how_quick()
        self._demand.want()

    def _look_anew(self) -> None:
        """Have the next getter look whether anything is ready: by now something may be due, or be requeued."""
        self._drained = self._through = False

    def _look_whether_through(self) -> None:
        if self.shut and not self._through and (self._ends is None or self._ends.done()):
            self._ends = asyncio.get_running_loop().create_task(self._look_for_the_end())

    async def get_ready(self, store_ref: object) -> Message | None:
        """Hand out the next message, if it is here or the owner has one when asked: one round trip to each owner.

        Raises:
            AiodqError: the owner's error, or there is no owner.

        Cancellation: nothing is taken.
        """
        if (message := self.take_next(store_ref)) is not None:
            return message
        self._look_anew()
        with self.wanting(1):
            while message is None and not (self.shut_now or self._through):
                self._ask_for_one()
                opened, asked = self._opened, self._sender.claimed
                self._drained = bool((await self.refresh(bring=True)).get("ended", self._drained))
                message = self.take_next(store_ref)
                if asked and opened == self._opened:
                    ready = message or self.counts.ready or self._settling.requeueing
                    self._through = self._through or (self.shut and not ready)
                    break
                # An owner that opens the channel again is asked for messages once it has confirmed what is held here.
                if not self.claimed:
                    await self.until_claimed()
        return message

    # --- the end

    async def idle(self, *, handlers_only: bool = False) -> None:
        """Wait until no message is processed in this process; with `handlers_only`, until no consumer runs.

        Cancellation: nothing changes.
        """
        while self.consumers or (not handlers_only and self.error is None and self.in_hand):
            await wait_in(self._idlers)

    async def join(self, empty: Coroutine[Any, Any, None]) -> None:
        """Wait until the owner finds the channel `empty`, or, shut down at once, until this process holds nothing.

        Cancellation: nothing changes.
        """
        asked = asyncio.ensure_future(empty)
        asked.add_done_callback(mark_retrieved)
        surely(asked, lambda _: release(self._idlers))
        try:
            while not asked.done() and not (self.shut_now and not self.in_hand):
                await wait_in(self._idlers)
        finally:
            asked.cancel()
        if asked.done():
            asked.result()

    def _requeues(self) -> None:
        self._look_anew()

    def dropped(self) -> None:
        """See `RemoteSettlement`."""
        self._drained = False  # an owner that said so may not have known yet what it is asked to requeue
        if self._demand.waiting:
            self._demand.want()
        if self._idlers:
            release(self._idlers)

    def shut_down(self, *, immediate: bool, over: QueueShutDown | None = None) -> None:
        """Let this process's getters continue until nothing is ready, or end them at once; other processes continue."""
        del over
        self.shut = True
        self.shut_now = self.shut_now or immediate
        self._halted = self._halted or immediate
        self._pace.ahead = 0
        self.ending.set()
        if self.shut_now:
            self._demand.withdraw()
        self.wake(everybody=True)

    async def _look_for_the_end(self) -> None:
        """Poll until nothing is ready, on its way here or about to be requeued, as long as somebody wants to know."""
        while self.error is None and not self.shut_now:
            if not self._demand.awaited:
                return
            with suppress(AiodqError):
                await self._topic.in_turn()
                await self.refresh()
                if not (self.counts.ready or self._ready or self._settling.requeueing):
                    break
            await asyncio.sleep(_LOOK)
        self._through = True
        self.wake(everybody=True)

    async def refresh(self, *, bring: bool = False) -> Mapping[str, Any]:
        """Request the current counts; with `bring`, once the owner has sent what it only has to read. See `Lending`.

        Raises:
            AiodqError: the owner's error, or there is no owner.
        """
        await self.known()
        return await self._topic.link.call("refresh", {"bring": bring}, topic=self._topic.name, channel=self.name)

    async def look_whether_deleted(self) -> None:
        """Make the channel unusable if the owner says that it was deleted, so that it can be opened again."""
        try:
            await self.refresh()
        except QueueShutDown as error:
            self.refused(error)
        except AiodqError:
            return  # it is unknown; the owner says so when it knows
