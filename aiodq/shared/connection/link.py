"""A client's link to the current owner of the store: one connection at a time, and the state that outlives it.

Requests are kept until they are answered. When the owner is gone, the link looks for its successor, which may be this
very process: then it talks to itself in the same way, so that nothing changes for holders of topics and channels.
Unacknowledged puts are sent again, in order and before anything newer; the log knows which it has.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiodq.engine.loop.futures import release, settle, surely, wait_in
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, OwnerLostError, OwnerStalledError, ProtocolError
from aiodq.shared.connection.finding.owner_search import OwnerSearch
from aiodq.shared.connection.finding.rendezvous import owner_of
from aiodq.shared.connection.finding.store_directory import StoreDirectory
from aiodq.shared.connection.in_turns import BACK_AT_ONCE, in_turns
from aiodq.shared.connection.opened.client_handles import ClientHandles
from aiodq.shared.connection.opened.reopening import Opened, Reopening
from aiodq.shared.connection.sent.outbox import Outbox
from aiodq.shared.connection.sent.pending_requests import PendingRequests
from aiodq.shared.connection.sent.sent_puts import PutsByTopic, check_size
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.encoding.answers import understood
from aiodq.shared.encoding.number_runs import in_parts
from aiodq.shared.encoding.remote_errors import error_of, gone, is_lost, stalled, undecided
from aiodq.wire.frames import decode_messages
from aiodq.wire.layout import OLDEST, VERSION
from aiodq.wire.packets import (
    Bye,
    Call,
    Deliver,
    Done,
    Fail,
    Figures,
    Gone,
    Handover,
    Hello,
    Ping,
    Put,
    Range,
    Release,
    Want,
    Welcome,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from aiodq.shared.connection.opened.listener import Listener
    from aiodq.shared.connection.sent.sent_puts import SentPut, TopicPuts
    from aiodq.shared.connection.wires.link_wire import LinkWire
    from aiodq.wire.packets import Packet
    from aiodq.wire.stream import Received

T = TypeVar("T")

__all__ = ["Link"]

_AGAIN: Final = 0.01
"""Seconds after which an owner that was about to end is asked again."""

_PAUSE: Final = 0.1
"""Seconds until a search that could not go on is tried again."""

_RETRY: Final = 0.5
"""Seconds until the next attempt, once all waiters were told that there is no owner, or of its error."""

_LONGEST_END: Final = 1.0
"""Seconds for the other end to read what was sent last."""

_MOST_REFUSED: Final = 1000
"""Calls refused in one turn of the loop as no owner answers; any further ones wait for it."""

_STALL: Final = 10.0
_TICKS: Final = 5
"""An owner counts as stalled after `_STALL` seconds without an answer, checked in `_TICKS` steps."""


class Link:
    """The link of one process.

    Attributes:
        epoch: the owner's epoch, while there is a connection; 0 before the first.
        owner_pid: the owner's process.
        producer: the number that identifies this process's puts.
        opened: what every later owner has to open again.
        failure: why nothing can be asked now, or None.
        outbox: what is sent in the next turn of the loop, or before anything else.
    """

    def __init__(
        self, directory: str, own: Callable[[], Awaitable[bool]], *, failover: float = 30.0, stall: float | None = None,
        inside: Callable[[Link], LinkWire | None] | None = None,
    ) -> None:  # fmt: skip
        """Prepare; `start` connects.

        Args:
            directory: the store's.
            own: tries to own the store and to serve it; returns whether it does.
            failover: seconds to look for an owner before waiters are told that there is none; or that no descriptor is
                free for it, once there was one.
            stall: seconds without an answer after which an owner counts as stalled; None for 10.
            inside: connects without a socket if this very process serves the store; otherwise it returns None.
        """
        self.epoch: int = 0
        self.owner_pid: int = 0
        self.producer: int = secrets.randbits(64)
        self._directory = directory
        self._place = StoreDirectory(directory)
        stall = _STALL if stall is None else stall
        self._tick = stall / _TICKS
        self._search = OwnerSearch(self._place, own, self._inside, self._outside, failover=failover, stall=stall)
        self._silent = self._refused = 0
        self._connect_inside = inside
        self._wire: LinkWire | None = None
        self._welcomed = self._ready = self._begun = self._closed = False
        self._repeated: set[str] = set()
        self._topics = PutsByTopic(self._send_put)
        self.opened: Reopening = Reopening()
        self._handles = ClientHandles(self, partial(self._ask, patient=True))
        self._pending = PendingRequests()
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.failure: Exception | None = None
        self.outbox: Outbox = Outbox()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Find the owner.

        Raises:
            OwnerLostError: there is none.
            ProtocolError: the process found speaks another protocol.

        Cancellation: the search ends.
        """
        self._tasks = [
            self._loop.create_task(self._run(), name=f"aiodq link {self._directory}"),
            self._loop.create_task(self._watch(), name=f"aiodq watch {self._directory}"),
        ]
        try:
            await self.connected()
        except BaseException:
            await self.close()
            raise

    def look_around(self) -> None:
        """Note what is in the store's directory, which is missed if it is deleted."""
        self._place.look()

    def check_place(self) -> None:
        """See `StoreDirectory.check`."""
        self._place.check()

    async def close(self) -> None:
        """Close the connection; unacknowledged requests fail."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for opened in list(self.opened.values()):
            opened.listener.leave()
        self._fail(QueueShutDown("the store is closed"))
        if (wire := self._wire) is not None:
            wire.send(Bye(), 0)  # so that what is held here goes back at once
            wire.close()
            try:
                async with asyncio.timeout(_LONGEST_END):
                    await self._lost.wait()
            except TimeoutError:
                wire.abort()  # an owner that does not read; it may have ended at this very moment

    def check(self, *, again: bool = False) -> None:
        """Raise if nothing can be asked now, perhaps `again`, as the owner that was asked has not answered.

        Raises:
            OwnerLostError, OwnerStalledError: there is nobody to ask, or no answer comes.
            QueueShutDown: the store is closed.
        """
        if self.failure is None:
            return
        if not self._refused:
            self._loop.call_soon(setattr, self, "_refused", 0)
        self._refused += 1
        # INVARIANT: a caller that tries again and again without a pause has to wait in the end. Otherwise the loop
        # would never read the answer of an owner.
        if self._refused <= _MOST_REFUSED or isinstance(self.failure, QueueShutDown):
            raise self.undecided(self.failure) if again else copy(self.failure)

    def undecided(self, error: Exception) -> Exception:
        """Return the error for a call that an owner may have done, as `error` keeps others from being asked."""
        return undecided(error, self._directory)

    @property
    def unserved(self) -> str | None:
        """Why no owner answers, or for how long none was found; None if one answers, or the store is closed."""
        if self.failure is not None:
            return None if isinstance(self.failure, QueueShutDown) else str(self.failure)
        return self._search.unfinished

    # --- puts

    def put(self, topic: str, put: SentPut) -> None:
        """Put messages; every later owner is sent them, until one has answered.

        Raises:
            MessageSizeError: the messages do not fit into a packet.
            OwnerLostError, OwnerStalledError: there is nobody to ask, or no answer comes.
            QueueShutDown: the store is closed.
        """
        check_size(put)
        if self.failure is not None:
            self.check()
        (self._topics.get(topic) or self._topics.of(topic)).put(put)

    def puts(self, topic: str) -> TopicPuts:
        """Return the puts into a topic."""
        return self._topics.of(topic)

    def _send_put(self, topic: str, sequence: int, put: SentPut) -> None:
        if self._ready or topic in self._repeated:
            puts = self._topics[topic]
            puts.reached = sequence
            handle = self._handles.get((topic, "")) or self._handles.of(topic, "")
            packet = Put(handle, sequence, put.messages, put.frames, put.each)
            self._send(packet, partial(puts.answered, sequence))

    def give_up_puts(self, topic: str, *, queued: bool = True) -> None:
        """Have the owner not store puts that wait for room and that nobody waits for; see `TopicPuts.give_up`."""
        sequences = self.puts(topic).give_up(queued=queued)
        if sequences and (self._ready or topic in self._repeated):
            arguments = {"sequences": sequences, "handle": self._handles.of(topic, "")}
            self._ask(Call("withdraw", arguments), patient=True)

    # --- topics and channels

    def open(self, topic: str, channel: str, options: Mapping[str, Any], listener: Listener) -> None:
        """Open a topic or a channel for `listener`, with this owner and every later one."""
        self.opened[topic, channel] = Opened(listener, options)
        if self._welcomed:
            self._handles.open(topic, channel)

    def forget(self, topic: str, channel: str) -> None:
        """Forget a deleted topic or channel; one opened later under its name is new."""
        self.opened.pop((topic, channel), None)
        self._handles.forget(topic, channel)

    def open_left(self) -> None:
        """Have the owner open what was left out, as it was being deleted, and what is there nevertheless."""
        for key in self.opened.unopened(self._handles) if self._ready else ():
            self._handles.open(*key)

    def detach(self, topic: str, channel: str, listener: Listener) -> None:
        """Have no later owner open what `listener` knows is deleted or refused, and tell it of nothing any more."""
        if self.opened.drop(topic, channel, listener):
            self._handles.retire(topic, channel)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, topic: str = "", channel: str = "",
        once: bool = False, waits: bool = False, patient: bool = False, again: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:  # fmt: skip
        """Have the owner run a call, and return its answer.

        Args:
            name: see `aiodq.shared.requests.calls`.
            arguments: the call's arguments.
            topic: the topic it concerns; empty for none.
            channel: the channel it concerns; empty for none.
            once: do not repeat it to the next owner, as doing it twice is not the same as once.
            waits: it only waits for something, so that the owner is told if nobody waits any more.
            patient: a stalled owner does not end it, so that an answer that comes later still is not lost.
            again: more arguments if it is repeated, besides the epoch of the owner that was asked first.

        Raises:
            AiodqError: the owner's error.
            OwnerLostError: there is no owner; or, with `once`, it ended before it answered: nobody knows what was done.
            QueueShutDown: the store is closed here, or was before the owner answered: nor does anybody know.
        """
        first = 0
        while True:
            await self.connected(again=first > 0)
            first = first or self.epoch
            handle = {"handle": self._handles.of(topic, channel)} if topic else {}
            asked = self._ask(Call(name, {**(arguments or {}), **handle}), patient=patient)
            request = self._pending.last
            try:
                answer = await asked
            except asyncio.CancelledError:
                if waits and request in self._pending:
                    self._ask(Call("forget", {"request": request}), patient=True)
                raise
            if isinstance(answer, Done):
                return answer.facts or {}
            if not isinstance(answer, Fail):
                raise ProtocolError(f"{answer.op.name} is no answer to CALL")
            if not is_lost(answer):
                raise error_of(answer)
            if self._closed:
                self.check()
            if once:
                raise error_of(answer)
            if again is not None:
                arguments = {**(arguments or {}), **again, "asked": first}
            await asyncio.sleep(_AGAIN)

    async def result(
        self, name: str, read: Callable[[Any], T], arguments: Mapping[str, Any] | None = None, *, topic: str = "",
        channel: str = "", once: bool = False, waits: bool = False, again: Mapping[str, Any] | None = None,
    ) -> T:  # fmt: skip
        """Run a call as `call` does; return what `read` makes of the result.

        Raises:
            ProtocolError: `read` cannot decode it.
        """
        answer = await self.call(name, arguments, topic=topic, channel=channel, once=once, waits=waits, again=again)
        return understood(read, answer.get("result"), name)

    def request(self, make: Callable[[int], Packet], topic: str, channel: str) -> asyncio.Future[Packet]:
        """Send a request with a handle, however long it takes; a `Fail` of `OwnerLostError` if no answer comes."""
        handle = self._handles.get((topic, channel)) or (self._handles.of(topic, channel) if self._ready else 0)
        return self._ask(make(handle), patient=True) if handle else self._unasked()

    def ask(self, make: Callable[[Callable[[str, str], int]], Packet]) -> asyncio.Future[Packet]:
        """Send a request that concerns several topics and channels, by their handles; otherwise as `request`."""
        return self._ask(make(self._handles.of)) if self._ready else self._unasked()

    def _unasked(self) -> asyncio.Future[Packet]:
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        answer.set_result(gone(self._directory))
        return answer

    def tell(self, make: Callable[[int], Packet], topic: str, channel: str) -> None:
        """Send a packet that needs no answer to the current owner, if there is one."""
        if self.outbox:
            self.outbox.flush()
        if self._wire is not None and (self._ready or (topic, channel) in self._handles):
            self._wire.send(make(self._handles.of(topic, channel)), 0)

    # --- the connection

    async def connected(self, *, again: bool = False) -> None:
        """Wait until there is an owner to ask, perhaps `again`; *Raises* as `check`."""
        while not self._ready:
            self.check(again=again)
            await wait_in(self._waiting)
        self.check()

    def _ask(self, packet: Packet, *, patient: bool = False) -> asyncio.Future[Packet]:
        """Send a request; with `patient`, a stalled owner does not end it."""
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._send(packet, partial(settle, answer, error=None), patient=patient)
        return answer

    def _send(self, packet: Packet, then: Callable[[Packet], None], *, patient: bool = False) -> None:
        """Send a request; `then` is called with the answer, or with a substitute if none comes."""
        if self.outbox:
            self.outbox.flush()
        if self._wire is None:
            then(gone(self._directory))
            return
        self._wire.send(packet, self._pending.enter(then, patient=patient))

    async def _run(self) -> None:
        try:
            while True:
                try:
                    wire = await self._search.find()
                    await self._begin(wire)
                except Exception as error:  # noqa: BLE001 - whatever it is, nobody is left waiting
                    if self._wire is not None:
                        self._wire.close()
                    if self._begun and self._search.may_go_on(error):
                        await asyncio.sleep(_PAUSE)
                        continue
                    self._fail(error if isinstance(error, AiodqError) else OwnerLostError(repr(error), self._directory))
                    if not self._begun:
                        return
                    await asyncio.sleep(_RETRY)
                    continue
                await self._lost.wait()
        except asyncio.CancelledError:
            if not self._closed:  # the loop ends with the store open, and nobody would look for an owner any more
                self._fail(QueueShutDown("the event loop ended before the store was closed"))
                if self._wire is not None:
                    self._wire.abort()
            raise

    def _inside(self) -> LinkWire | None:
        return None if self._connect_inside is None else self._connect_inside(self)

    async def _outside(self, sock: socket.socket) -> LinkWire:
        _, wire = await self._loop.create_unix_connection(lambda: SocketWire(self), sock=sock)
        return wire

    async def _begin(self, wire: LinkWire) -> None:
        """Greet the owner, and continue where the previous one stopped."""
        self._lost.clear()
        self._wire, self._handles.listeners, self._silent = wire, {}, 0
        self._pending.clear()
        welcome = await self._ask(Hello(VERSION, OLDEST, os.getpid(), self.producer, self.epoch, "aiodq"))
        if isinstance(welcome, Fail):
            await self._not_accepted(welcome, wire)
            return
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"{welcome.op.name} is no answer to HELLO")
        if not OLDEST <= welcome.version <= VERSION:
            raise ProtocolError(f"this process speaks version {VERSION}, and the owner version {welcome.version}")
        if not self._begun:
            self._place.settle()
        self.epoch, self.owner_pid, self._handles.version = welcome.epoch, welcome.pid, welcome.version
        wire.welcomed()
        # INVARIANT: packets meant for the previous owner are not sent to this one before it is told what is held.
        self.outbox.flush()
        self._welcomed = self._begun = True
        self.failure = None
        self._search.end()
        await in_turns(self._steps(wire))

    def _steps(self, wire: LinkWire) -> Iterator[None]:
        """Open all channels again, and repeat the puts that they are to see; meanwhile users may open and put more.

        A channel that is there sees the puts also before it is opened: a topic of a thousand of them is put into again
        long before the last one is open.
        """
        while self._wire is wire:
            unopened = self.opened.unopened(self._handles)
            if first := [key for key in unopened if self._handles.is_first(*key)]:
                yield from self._open_again(wire, first)
            elif unrepeated := [topic for topic in self._topics if topic not in self._repeated]:
                for topic in unrepeated:
                    yield
                    # INVARIANT: earlier puts come before anything newer, which nobody sends before this step.
                    if self._wire is wire:
                        self._repeated.add(topic)
                        self._topics.of(topic).repeat()
                        self.give_up_puts(topic)
            elif unopened:
                yield from self._open_again(wire, unopened)
            else:
                # INVARIANT: in this same step. Otherwise a new topic could get puts in between, never to be repeated.
                self._ready = True
                self._ask(Call("back", {}), patient=True)
                release(self._waiting)
                return

    def _open_again(self, wire: LinkWire, keys: list[tuple[str, str]]) -> Iterator[None]:
        """Open topics and channels, one in each step, until there are puts into a new topic."""
        topics = len(self._topics)
        for key in keys:
            yield
            if self._wire is wire and key in self.opened and key not in self._handles:
                self._handles.open(*key)
            if len(self._topics) > topics:
                return

    async def _not_accepted(self, fail: Fail, wire: LinkWire) -> None:
        """Continue the search if the owner was about to end; otherwise raise why it refused."""
        if not is_lost(fail):
            raise error_of(fail)
        if wire.reason is not None:
            raise wire.reason
        self._search.check_time()
        wire.close()
        await asyncio.sleep(_AGAIN)

    async def _watch(self) -> None:
        """Notice an owner that does not answer."""
        while True:
            await asyncio.sleep(self._tick)
            if self._wire is None:
                continue
            # INVARIANT: only this loop's own turns count. A loop that was stopped itself has not listened.
            self._silent += 1
            if self._silent > _TICKS:
                self._note_stall()
            elif self._ready:
                self._ask(Ping(self._silent), patient=True)

    def _note_stall(self) -> None:
        # An owner that has not welcomed this process has not named itself.
        fail = stalled(self._directory, self.owner_pid if self._welcomed else owner_of(self._directory))
        self.failure = error_of(fail)
        for puts in self._topics.values():
            puts.fail_behind(self.failure)  # before those that were sent, or they would take their places
        for then in self._pending.end_impatient():
            then(fail)
        self.opened.tell(self.failure)

    def note_alive(self) -> None:
        """Note that the owner is alive."""
        self._silent = 0
        if isinstance(self.failure, OwnerStalledError):
            self.failure = None

    def lost(self, wire: LinkWire) -> None:
        """Handle the end of a connection."""
        if wire is not self._wire:
            return
        self._wire, self._welcomed, self._ready = None, False, False
        self._handles.clear()
        self._repeated.clear()
        ended = in_turns(then(gone(self._directory)) for then in self._pending.end())
        surely(ended, lambda _: self._lost.set())  # then another owner is looked for

    def receive(self, received: Received) -> None:
        """Handle a packet from the owner."""
        packet, request = received
        if request:
            then, _ = self._pending.pop(request, (None, False))
            if then is not None:
                then(packet)
        elif isinstance(packet, (Deliver, Gone, Figures)):
            if (listener := self._handles.listeners.get(packet.handle)) is not None:
                listener.receive(packet, self.epoch)
            elif isinstance(packet, Deliver):
                self._give_back(packet)
        elif isinstance(packet, Handover) and self._wire is not None:
            self._wire.close()
        elif isinstance(packet, Fail) and (packet.name == ProtocolError.__name__ or not self._ready):
            # INVARIANT: what one owner cannot understand is not sent to the next, and so on for ever.
            for then in self._pending.end():
                then(packet)
            if packet.name == ProtocolError.__name__:
                self._fail(error_of(packet))

    def _give_back(self, packet: Deliver) -> None:
        """Give back what came for a channel that has ended here, and want no more, as others may take it."""
        if self._wire is None or self._closed:
            return
        late = packet.delivery - packet.first
        self._wire.send(Want(packet.handle, 0), 0)
        batches = decode_messages(packet.frames, packet.first)
        offsets = (range(each.first, each.first + len(each.columns.bodies)) for each in batches)
        for part in in_parts(offsets, BACK_AT_ONCE):
            ranges = tuple(Range(each.start, each.start + late, len(each)) for each in part)
            self._wire.send(Release(packet.handle, self.epoch, ranges), 0)

    def misunderstood(self, error: ProtocolError) -> None:
        """Give up the connection, as the owner's answer could not be understood."""
        self._fail(error)
        if self._wire is not None:
            self._wire.close()

    def again(self) -> None:
        """Connect again in a moment, as the owner could not tell what is held here, or was not sent all of it."""
        if self._wire is not None:
            asyncio.get_running_loop().call_later(_RETRY, self._wire.close)

    def _fail(self, error: Exception) -> None:
        """Raise an error in all waiters, and in later callers until there is an owner again."""
        self.failure = error
        release(self._waiting)
        for puts in self._topics.values():
            puts.fail(error, self.undecided(error))
        self.opened.tell(error)
