"""A lending: one client's share of one channel: how many messages it wants, and which it holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import interruption_of
from aiodq.engine.loop.futures import surely
from aiodq.engine.monitoring.log import Log
from aiodq.engine.monitoring.one_line import one_line
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, StoreFailedError
from aiodq.shared.encoding.options_json import State
from aiodq.shared.encoding.remote_errors import error_facts
from aiodq.shared.requests.calls import answer, call_channel
from aiodq.shared.requests.lent.lent_messages import LentMessages
from aiodq.shared.requests.lent.lent_runs import LentRun, as_sent, columns_of, extended
from aiodq.shared.requests.lent_settlement import LentSettlement
from aiodq.shared.requests.resuming import Resuming
from aiodq.wire.frames import encode_messages
from aiodq.wire.layout import PREFETCHED
from aiodq.wire.packets import Deliver, Done, Figures, Gone, Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.channel import Channel
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.message import Message
    from aiodq.shared.requests.serving import Owning, Wire
    from aiodq.topic import Topic
    from aiodq.wire.packets import Call

__all__ = ["Lending"]

_LOG: Final = Log("aiodq.delivery")

_AT_ONCE: Final = 1000
"""Messages that one client gets from a channel before it is another's turn: only a fast one wants so many."""

_RUNS_AT_ONCE: Final = 100
"""Packets, of messages that do not follow each other, that are delivered in one turn of the loop."""

_PACKET_BYTES: Final = 256 * 1024
"""Bytes of bodies after which a delivery is sent, even if there is more."""

_AGAIN: Final = 1.0
"""Seconds after which a message that could not be read is read again, unless the client asks again before."""


class Lending:
    """One client's share of one channel: how many messages it wants, and which it holds.

    Attributes:
        engine: the engine of the channel's topic.
        held: settles what the client holds.
        resuming: the client's claims of what it held before.
    """

    def __init__(self, owner: Owning, wire: Wire, handle: int, topic: Topic, channel: Channel) -> None:
        """Start to deliver, as soon as messages are wanted."""
        self._topic = topic
        self._owner = owner
        self._wire = wire
        self._handle = handle
        self._channel = channel
        self._channel_engine = channel._channel_engine  # noqa: SLF001 - a session is a channel's other half
        self.engine: TopicEngine = channel._engine  # noqa: SLF001 - as above
        self._lent = LentMessages(owner.epoch)
        self.held: LentSettlement = LentSettlement(owner, wire, handle, self._channel_engine, self._lent)
        self.resuming: Resuming = Resuming(owner, topic, channel, self.name, self._lent)
        self._wanted = self._given = self._sent = 0
        self._place = self._channel_engine.place
        self._changed = asyncio.Event()
        self._idle = False
        self._ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._asked: tuple[int, Callable[[Exception, int], None]] | None = None
        self._timed_out = self._sought = 0
        self._told = asyncio.Event()
        self._getting: asyncio.Task[Any] | None = None
        self._withdrawn = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ran)

    @property
    def name(self) -> str:
        """The name of the channel, as `topic/channel`."""
        return f"{self._topic.name}/{self._channel.name}"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def holding(self) -> int:
        """The number of messages that the client holds."""
        return len(self._lent)

    @property
    def error(self) -> Exception | None:
        """Why the channel can no longer be used, once the client has been told; otherwise None."""
        return self._channel_engine.error if self._ended.done() else None

    def stop(self) -> asyncio.Task[Any]:
        """Stop delivering; return the task that ends."""
        self._task.cancel()
        return self._task

    def want(self, total: int) -> None:
        """Deliver up to `total` messages in all."""
        self._wanted = total
        if total <= self._given:
            # A cancelled get takes nothing. What it has taken already is newer than what the client may give back next.
            self._withdrawn = self._getting is not None and not self._getting.cancel()
            return
        if self._idle and not self.resuming.under_way and self._told.is_set() and not self._wire.clogged:
            # Available messages are delivered at once. Other tasks run before more are, and `_run` reports errors.
            with suppress(AiodqError):
                self._deliver(self._take_more())
        if total > self._given:
            self._changed.set()

    def told(self) -> None:
        """Note that the client knows the channel's options, by which it acks, requeues and renews what it gets."""
        self._told.set()

    async def _run(self) -> None:
        while True:
            self._idle = True
            await self._changed.wait()
            self._idle = False
            self._changed.clear()
            while self._wanted > self._given:
                await self._told.wait()
                await self.resuming.over.wait()
                try:
                    if not await self._give():
                        break
                except (QueueShutDown, StoreFailedError) as error:  # of a failed store, the next owner is asked
                    self._report(error)
                    break
                except AiodqError as error:
                    self._report(error)
                    _LOG.error(
                        "%s gives no message, asked again in %.3g s: %s", self._place, _AGAIN, one_line(str(error))
                    )
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_AGAIN):
                            await self._changed.wait()
                    self._changed.clear()
                    continue
                await self._wire.writable()
                await asyncio.sleep(0)

    def _ran(self, task: asyncio.Task[None]) -> None:
        if (error := interruption_of(task)) is not None:
            self._owner.engine.fail(error)  # the client gets its messages from the next owner

    def _report(self, error: Exception) -> None:
        """Report to the client why it gets no message now; `look` reports a deleted channel."""
        if not self._ended.done() and self._channel_engine.error is None:
            self._ended.set_result(error)

    async def _give(self) -> bool:
        """Wait for a message, and deliver what is available; return False if the request was withdrawn first."""
        runs = self._take_more()
        if not runs:
            first = await self._wait(self._owner.engine.store_ref())
            if first is None:
                return False
            runs = self._take_more(LentRun.of(first))
        self._deliver(runs)
        return True

    def _take_more(self, first: LentRun | None = None) -> list[LentRun]:
        """Return this run and what else is available, up to what the client wants and a packet holds."""
        engine = self._channel_engine
        store_ref = self._owner.engine.store_ref()
        runs = [] if first is None else [first]
        taken = len(runs)
        size = 0 if first is None else len(first.bodies[0])
        most = min(self._wanted - self._given, _AT_ONCE)
        while taken < most and size < _PACKET_BYTES and len(runs) < _RUNS_AT_ONCE:
            try:
                run = self._take_run(most - taken, _PACKET_BYTES - size, store_ref)
            except AiodqError:
                if not runs:
                    raise
                break  # the next call raises it
            if run is None:
                break
            taken += run.left
            size += sum(map(len, run.bodies))
            if not extended(runs, run):
                runs.append(run)
        if runs and engine.counting:
            engine.note_deliveries()
        self._given += taken
        return runs

    def _take_run(self, most: int, size: int, store_ref: object) -> LentRun | None:
        """Return the next messages of one lease, at most `size` bytes if several; None if there are none."""
        engine = self._channel_engine
        lease, bodies = engine.open_lease.lease, engine.open_lease.bodies
        first, stop = engine.lend(most, size)
        if first < stop:
            return LentRun(lease, first, bodies[first:stop], store_ref)
        if most > 1 and (again := engine.lend_again(most, size)) is not None:
            # A list of its own, as it forgets what is settled: these may be the bodies in the log's tail.
            return LentRun(again[0], 0, list(again[1]), store_ref)
        message = engine.take(store_ref)
        return None if message is None else LentRun.of(message)

    async def _wait(self, store_ref: object) -> Message | None:
        """Wait for a message; None if the request was withdrawn."""
        engine = self._channel_engine
        getting = self._getting = asyncio.get_running_loop().create_task(engine.get(store_ref))
        self._withdrawn = False
        try:
            message: Message = await getting
        except asyncio.CancelledError:
            # A message may be wanted again by now: only a cancellation of the task itself ends it.
            if getting.cancelled() and not self._task.cancelling():
                return None
            if getting.done() and not getting.cancelled() and getting.exception() is None:
                getting.result().release()  # it arrived just as the client left
            raise
        finally:
            self._getting = None
        if self._withdrawn:
            message.release()
            return None
        return message

    async def _bring(self) -> None:
        """Deliver what the client wants, as far as it only has to be read."""
        with suppress(AiodqError):  # as in `want`
            while (
                self._wanted > self._given
                and self._told.is_set()
                and not (self.resuming.under_way or self._wire.clogged)
            ):
                if self._task.cancelling():
                    return
                if self._getting is None or not self._getting.done():
                    if runs := self._take_more():
                        self._deliver(runs)
                    elif not await self._channel_engine.was_read():
                        return
                await asyncio.sleep(0)  # `_run` may have one to deliver
        self.want(self._wanted)  # a getter may still wait for what was delivered

    def _deliver(self, runs: list[LentRun]) -> None:
        self._lent.changed = True
        packets = as_sent(runs)
        for packet in packets:
            first = packet[0]
            for run in packet:
                self._sent += 1
                run.sent = self._sent
                self._lent.add(run)
            columns, put = columns_of(packet)
            frames = encode_messages(columns, put)
            # In one write: a client that takes several at once finds all of them when it wakes for the first.
            send = self._wire.send if packet is packets[-1] else self._wire.send_soon
            send(Deliver(self._handle, first.lease.attempts, first.offset, first.number, frames), 0)

    # --- the channel

    async def settled_in(self) -> None:
        """Wait until the channel is open. Nothing is delivered before."""
        # INVARIANT: the next owner knows of this client before it gets or claims anything.
        await self._owner.noted()
        await self._topic.settle_in()

    @property
    def state(self) -> State:
        """The channel's options and whether it is paused."""
        engine = self._channel_engine
        return State(engine.options, engine.paused, made=engine.made)

    async def called(self, call: Call, send_figures: Callable[..., None]) -> Done:
        """Run a call."""
        if call.name == "refresh":
            self._channel.check()
            await self._topic.settle_in()
            # INVARIANT: what is about to be claimed does not count as ready.
            await self._owner.reclaimed()
            await self.resuming.over.wait()
            if call.arguments.get("bring"):
                await self._bring()
            self._channel.check()  # it may be deleted by now
            self._channel._catch_up()  # noqa: SLF001 - as above
            if self._wanted > self._given and self._channel_engine.finished:
                self._report(QueueShutDown("the queue was shut down"))
                await asyncio.sleep(0)  # it is told before the answer: a client that does not wait asks nothing more
            send_figures(self._handle, always=True)
            is_over = self._channel_engine.finished and not self._owner.closing
            return Done(None, {"ended": True} if is_over else None)
        if call.name == "commit":
            await self.commit()
            return Done()
        done = await answer(call_channel(self._owner, self._topic, self._channel, call.name, call.arguments))
        send_figures(self._handle)
        return done

    def ask_the_end(self, request: int, fail: Callable[[Exception, int], None]) -> None:
        """Answer a request once there is an error; `fail` does so once the channel is gone. Only the last counts."""
        if self._asked is None:
            surely(self._ended, self._tell_the_end)
        self._asked = request, fail

    def _tell_the_end(self, ended: asyncio.Future[Exception]) -> None:
        if self._asked is None:
            return
        (request, fail), self._asked = self._asked, None
        if isinstance(gone := ended.exception(), Exception):
            fail(gone, request)
        else:
            # INVARIANT: each error is reported once. The client then asks again, or not at all.
            self._ended = asyncio.get_running_loop().create_future()
            self._wire.send(Done(None, error_facts(ended.result())), request)

    def look(self) -> None:
        """Tell the client which messages were taken away, and whether the channel was deleted."""
        engine = self._channel_engine
        if engine.error is not None and not self._ended.done():
            # A copy: raising it adds a traceback, which would keep this object and the messages alive.
            self._ended.set_exception(copy(engine.error))
            self._ended.exception()  # perhaps it is never awaited
        state = engine.state
        if state is None or not self._lent or self.resuming.under_way:
            return  # the client does not know yet what it holds, so it would ignore this
        # Checking everything held costs more than checking that the channel has taken no message back.
        before = self._timed_out, self._sought
        self._timed_out, self._sought = state.counters.timed_out, engine.sought
        if before == (self._timed_out, self._sought) and state.flying >= len(self._lent):
            return
        for ranges in self._lent.drop_lost(state):
            self._wire.send(Gone(self._handle, self._owner.epoch, ranges))

    def hand_over(self, epoch: int, those: Range) -> tuple[list[LentRun], list[Range]]:
        """See `Share`."""
        parts, lost = self._lent.held(epoch, those)
        runs = [run.cut(start, stop) for run, start, stop in parts]
        for run, start, stop in parts:
            self._lent.drop(run, start, stop)
        return runs, lost

    def commit(self) -> asyncio.Future[None]:
        """Return a future, done once what was settled is durable."""
        return self._channel_engine.commit()

    def has_changed(self) -> bool:
        """Return whether the client got or gave up messages since the last call."""
        changed, self._lent.changed = self._lent.changed, False
        return changed

    def figures(self) -> Figures:
        """Return the channel's counts."""
        state, log = self._channel._state(), self.engine.log  # noqa: SLF001 - as above
        numbers = (0, 0, 0) if state is None else (state.ready, state.flying, len(state.deferred))
        return Figures(self._handle, *numbers, log.begin, log.end, log.durable)

    def had(self, *, for_sure: bool) -> int:
        """Return how many of the client's messages, the oldest ones, it has taken; with `for_sure`, at least."""
        taken = max(self.holding - max(self._given - self._wanted, 0), 0)
        # A client that wants this few was sent only what it asked for. Any other takes the oldest first.
        return min(taken, 1) if for_sure and self._wanted >= PREFETCHED else taken

    async def give_back(self, taken: int = 0, *, goes_on: bool = False) -> None:
        """Make everything that the client holds ready again: see `LentSettlement.give_back`."""
        await self.held.give_back(taken, goes_on=goes_on)
