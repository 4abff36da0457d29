"""The owner's end of the socket: it serves clients for as long as the store is open."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiodq.engine.loop.futures import ended, settle
from aiodq.engine.monitoring.reporter import STORE
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.stats.active_topics import ActiveTopics
from aiodq.errors import ProtocolError, StorageError, StoreNotFoundError
from aiodq.shared.connection.finding.rendezvous import Listening, check_client, check_room, listen
from aiodq.shared.connection.finding.store_directory import StoreDirectory
from aiodq.shared.connection.in_turns import LONGEST_TURN, in_turns
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.shared.requests.lent.claims import Claims
from aiodq.shared.requests.lent.epochs import new_epoch
from aiodq.shared.requests.owner_state.made_changes import MadeChanges
from aiodq.shared.requests.owner_state.overview import Overview
from aiodq.shared.requests.owner_state.waiting_bytes import WaitingBytes
from aiodq.shared.server.client_connection import ClientConnection
from aiodq.shared.server.incoming import Incoming
from aiodq.shared.server.inside import Inside, OwnEnd
from aiodq.shared.server.noted_clients import NotedClients
from aiodq.shared.server.noting import Noting
from aiodq.shared.server.spare_descriptor import SpareDescriptor
from aiodq.storage.io.processes import lives
from aiodq.storage.log.topic_log import TopicLog
from aiodq.store import Store
from aiodq.wire.packets import Handover
from aiodq.wire.stream import encode_packet

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Sequence

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.shared.connection.wires.link_wire import ReceivingLink
    from aiodq.shared.requests.owner_state.client_put_result import PutsInProgress
    from aiodq.shared.server.session import Session
    from aiodq.storage.log.producer_table import Origin
    from aiodq.wire.packets import Hello

__all__ = ["Owner"]

_LARGEST: Final = 64 << 20
_LONGEST_RECLAIM: Final = 5.0
"""Seconds for clients whose processes are alive to come back."""

_FIGURES: Final = 0.1
"""Seconds between two checks of the counts, and of whether clients still hold what they think."""

_APART: Final = 19
"""The pause after such a check is at least so many times its length: with thousands of channels it takes its time."""

_LOOK: Final = 1.0
"""Seconds between two checks whether this owner can still be found."""

_LONGEST_END: Final = 1.0
"""Seconds for the other end to read what was sent last."""

_FREED: Final = 0.1
"""Seconds in which a descriptor may be freed, before clients are refused for which there is none."""

_AT_ONCE: Final = 64
"""Connections that are accepted, or refused for want of a descriptor, in one turn of the loop."""


class Owner:
    """Serves a store that this process owns; see `Owning`."""

    def __init__(self, engine: StoreEngine, *, own: int = 0, reclaim: float = 1.0) -> None:
        """Prepare to serve this store.

        Args:
            engine: the store's engine.
            own: the producer of the client that belongs to this owner, and ends with it.
            reclaim: seconds that clients have to claim what they hold from a previous owner.
        """
        self.own: int = own
        self._reclaim = reclaim
        self._reclaiming: asyncio.TimerHandle | None = None
        self._reclaimed = asyncio.Event()
        self._claims: dict[str, Claims] = {}
        self.engine: StoreEngine = engine
        self.store: Store = Store(engine)
        self._expected: dict[int, int] = {}
        self._overdue = 0.0
        self._failing: asyncio.Task[None] | None = None
        self.pid: int = os.getpid()
        self._noted = NotedClients(engine.path)
        self._before = 0
        self.epoch: int = 0
        self.overview: Overview = Overview(engine)
        self._known: Collection[int] | None = None
        self.largest: int = _LARGEST
        self.puts_in_progress: PutsInProgress = {}
        self.transacting: dict[Origin, asyncio.Task[Any]] = {}
        self.waiting: WaitingBytes = WaitingBytes()
        self.changes: MadeChanges = MadeChanges()
        self.incoming: Incoming = Incoming()
        self._connections: set[ClientConnection | OwnEnd] = set()
        self.closing: bool = False
        self._listening: Listening | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._active = ActiveTopics(engine.activity, engine.topics.values())
        self._place = StoreDirectory(engine.path)
        self._noting = Noting(self._noted, self._place, engine.threads)
        self._notes_gone = False
        self._connecting = asyncio.Lock()
        self._spare = SpareDescriptor()

    def claims(self, place: str) -> Claims:
        """See `Owning`."""
        return self._claims.setdefault(place, Claims())

    def missed(self, producer: int, epoch: int) -> bool:
        """See `Owning`."""
        if not self._before or self._known is None or epoch in {self._before, self.epoch}:
            return False
        return producer not in self._known

    async def reclaimed(self) -> None:
        """See `Owning`."""
        await self._reclaimed.wait()

    @property
    def clients(self) -> list[Session]:
        """The sessions of the connected clients."""
        return [connection.session for connection in self._connections]

    async def start(self) -> None:
        """Listen and serve. The store must have been recovered.

        Raises:
            StorageError: the system refused.
        """
        logs = [topic.log for topic in self.engine.topics.values() if isinstance(topic.log, TopicLog)]
        # INVARIANT: no put is accepted before this is loaded: it distinguishes repeated puts from new ones.
        await self.engine.threads.call(_recall, logs)
        known = await self.engine.threads.call(self._look_back)
        self.epoch = self._noted.epoch = self.overview.epoch = new_epoch(self.engine.clock.now_ns(), self._before)
        self.engine.at_end.append(self._hang_up)
        listening = await self._listen()
        self._expected, self._known = known or {}, None if known is None else frozenset(known)
        waits = bool(self._expected) or (known is None and listening.after_crash)
        # INVARIANT: until this step nothing was delivered: no task but the opener's has run on the store. Nor was a
        # message with no attempts left given up: its holder may be alive.
        self._hold_back(under_way=waits)
        if waits:
            self._overdue = self.engine.loop.time() + _LONGEST_RECLAIM
            self._reclaiming = self.engine.loop.call_later(self._reclaim, self._look_for_late)
        else:
            self._reclaimed.set()
        self._note_clients()
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))
        self._watching = asyncio.get_running_loop().create_task(self._stay_found())
        self._telling = asyncio.get_running_loop().create_task(self._tell())

    def _look_back(self) -> dict[int, int] | None:
        """Return the clients of the previous owner, as `NotedClients.read`. Blocking."""
        self._place.settle()
        self._before = self._noted.read_epoch()
        return self._noted.read()

    async def _listen(self) -> Listening:
        """Listen from now on, unless the store's directory is another one by now.

        Cancellation: it listens by the end of this, or has failed to.
        """

        def listening() -> Listening:
            self._place.check()
            self._listening = listen(self.engine.path)
            return self._listening

        return await ended(self.engine.threads.call(listening))

    async def _tell(self) -> None:
        """Tell clients regularly of the counts that have changed, and of which messages were taken away."""
        spent = 0.0
        try:
            while True:
                await asyncio.sleep(max(_FIGURES, spent * _APART))
                topics = list(self._active.take())
                for session in self.clients:
                    session.handles.outdated.note_topics(topics)
                spent = await self._tell_outdated()
        finally:
            self._active.end()
            self.overview.end()

    async def _tell_outdated(self) -> float:
        """Tell clients of all that is outdated; return for how many seconds others had to wait."""
        monotonic = self.engine.clock.monotonic
        spent, begin = 0.0, monotonic()
        for session in self.clients:
            while session.handles.tell():
                if (now := monotonic()) - begin >= LONGEST_TURN:
                    spent += now - begin
                    await asyncio.sleep(0)
                    begin = monotonic()
        return spent + monotonic() - begin

    async def _stay_found(self) -> None:
        """Bind the socket's name again if a cleanup program has deleted it; end if the store has failed."""
        while (before := self._listening) is not None:
            await asyncio.sleep(_LOOK)
            if self.engine.failure is not None:
                self.failed()  # although there was no request since
                return
            if self.closing:
                return  # the store was released, and has no threads any more
            with suppress(StorageError):  # the directory was renamed or is full: it is tried again
                if await self.engine.threads.call(before.is_found):
                    continue
                try:
                    listening = await self._listen()
                finally:
                    if self._listening is not before:
                        try:
                            await self._accept_no_more()
                        finally:
                            before.close()
                self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))
                self.engine.reporter.warn(STORE, "the socket of the store was deleted; there is another one now")

    async def _accept_no_more(self) -> None:
        if self._accepting is not None:
            # INVARIANT: no connection is being set up: uvloop does not notify one that ends before it is.
            async with self._connecting:
                self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)

    # --- clients that hold messages from the previous owner

    async def moved(self, place: str) -> None:
        """See `Owning`; in turns of the loop, as a topic may have very many channels."""
        await in_turns(step for session in self.clients for step in session.handles.look_at(place))

    def _look_for_late(self) -> None:
        """Stop waiting for clients that are gone. Living ones are late, as on a busy machine, and get more time."""
        self._expected = {producer: pid for producer, pid in self._expected.items() if lives(pid)}
        if self._expected and self.engine.loop.time() < self._overdue:
            self._reclaiming = self.engine.loop.call_later(self._reclaim, self._look_for_late)
        else:
            self._end_reclaiming()

    def _end_reclaiming(self) -> None:
        # An owner that is closing keeps what it holds back for the next one.
        if self._reclaiming is not None and not self.closing:
            self._reclaiming.cancel()
            self._reclaiming = None
            self._expected.clear()
            self._claims.clear()
            self._reclaimed.set()
            self._hold_back(under_way=False)
            self._note_clients()

    def _hold_back(self, *, under_way: bool) -> None:
        self.engine.reclaiming = under_way
        for topic in self.engine.topics.values():
            for channel_engine in topic.channel_engines.values():
                channel_engine.reclaim(under_way=under_way)
            if not under_way:
                topic.put_buffer.freed(even_if_full=True)

    def lends_to(self, client: Hello) -> None:
        """See `Owning`."""
        if client.producer != self.own:
            self._note_clients()

    async def noted(self) -> None:
        """See `Owning`."""
        await self._noting.over()

    def came_back(self, client: Hello) -> None:
        """See `Owning`."""
        if client.producer in self._expected:
            del self._expected[client.producer]
            if not self._expected:
                self._end_reclaiming()

    def _note_clients(self, *, ending: bool = False) -> None:
        """Note the clients of this owner that may hold messages, and itself if it outlives its store, which has failed.

        Args:
            ending: this owner ends in order, and knows which clients hold messages. Clients without any may also end
                before there is another owner, which would wait for them.
        """
        # A client that only puts, or asks for the list of clients, holds nothing; waiting for it would delay all
        # others.
        holders = [session for session in self.clients if (session.comes_back if ending else session.lends)]
        # INVARIANT: clients of the previous owner that have not come back yet may hold something as well.
        those = self._expected | {each.client.producer: each.process for each in holders if each.client is not None}
        if self.engine.failure is None:
            those.pop(self.own, None)
        if self._reclaiming is not None and not self._expected:
            self._noting.note(None)  # any client may hold something
        else:
            self._noting.note(those)

    # --- the end

    def failed(self) -> None:
        """See `Owning`: the store is released, so that the next one to open it reads what is really there."""
        if self._failing is None:
            self._failing = asyncio.get_running_loop().create_task(self._give_up())

    async def _give_up(self) -> None:
        await self.close()
        with suppress(StorageError):  # all know that it has failed, and everything is released all the same
            await self.engine.close()

    async def close(self) -> None:
        """Tell all clients to look for another owner, and stop serving."""
        again, self.closing = self.closing, True
        # INVARIANT: no message that is given back below is given up, even if its time to live is over: its holder keeps
        # it under the next owner.
        self._hold_back(under_way=True)
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        try:
            await self._leave_clients(again=again)
        except asyncio.CancelledError:
            await self._abandon()
            raise

    async def _leave_clients(self, *, again: bool) -> None:
        regular = [task for task in (self._watching, self._telling) if task is not None]
        for task in regular:
            task.cancel()
        await asyncio.gather(*regular, return_exceptions=True)
        # INVARIANT: the loop no longer watches the socket when it is closed: its number may be another's at once.
        await self._accept_no_more()
        if not again and not self._is_deleted():
            # INVARIANT: from here until all clients know of the end, nothing is delivered.
            self._note_clients(ending=True)
        if self._listening is not None:
            self._listening.stop()
        for connection in list(self._connections):
            connection.send(Handover(self.epoch))
            connection.session.leave()
        await self._noting.over()
        listening, self._listening = self._listening, None
        if listening is not None:
            try:
                await ended(self.engine.threads.call(self._end_listening, listening))
            except (StorageError, QueueShutDown):  # there is no thread for it
                self._end_listening(listening)
        ending = [asyncio.ensure_future(connection.ended()) for connection in list(self._connections)]
        if ending and (await asyncio.wait(ending, timeout=_LONGEST_END))[1]:
            for connection in list(self._connections):
                connection.abort()  # a client that does not read
        await asyncio.gather(*ending)

    def _is_deleted(self) -> bool:
        """Return whether the store has failed as there is no directory any more."""
        failure = self.engine.failure
        return failure is not None and isinstance(failure.__cause__, StoreNotFoundError)

    async def _accept(self, listening: Listening) -> None:
        try:
            await self._accept_all(listening)
        except asyncio.CancelledError:
            # In a forked child, the socket's name and the clients are the parent's.
            if listening is self._listening and not self.closing and self.pid == os.getpid():
                await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Leave the clients to another owner, as the event loop ends with the store open, and the store is released."""
        self.closing = True
        # INVARIANT: nothing can answer any more. A client that could still connect would take the owner for stalled.
        if self._listening is not None:
            self._end_listening(self._listening)
        for connection in list(self._connections):
            connection.session.leave()
            connection.abort()
        # INVARIANT: the loop, which waits for what it has cancelled, does not end before their messages are given back.
        ending = [asyncio.ensure_future(connection.ended()) for connection in list(self._connections)]
        for each in (await asyncio.wait(ending, timeout=_LONGEST_END))[1] if ending else ():
            each.cancel()

    def _hang_up(self) -> None:
        """Leave the clients to another owner, as the store is released, perhaps with its event loop closed."""
        self.closing = True
        self._spare.close()
        if self._listening is not None:
            self._end_listening(self._listening)
        for connection in self._connections:
            if isinstance(connection, ClientConnection):
                connection.hang_up()

    def _end_listening(self, listening: Listening) -> None:
        # INVARIANT: if the next owner cannot read which clients may hold messages, it finds that it has to wait for
        # any.
        listening.close(leave=not self._noting.certain)

    async def _accept_all(self, listening: Listening) -> None:
        self._spare.open()
        try:
            await self._accept_each(listening)
        finally:
            self._spare.close()

    async def _accept_each(self, listening: Listening) -> None:
        loop, failed = asyncio.get_running_loop(), False
        while True:
            try:
                # Not `sock_accept`: if asyncio's is cancelled just as a client connects, it fails and loses the
                # connection.
                await _readable(loop, listening.sock)
                came = _came(listening.sock)
            except BlockingIOError:
                continue  # the client has disconnected
            except OSError as error:
                if failed:  # usually no descriptor is left, and none was freed meanwhile
                    self._spare.refuse(listening.sock, self.engine.path, error, _AT_ONCE)
                failed = True
                await asyncio.sleep(_FREED)
                continue
            failed = False
            try:
                async with self._connecting:
                    await asyncio.gather(*(self._take_in(sock, listening, came) for sock in tuple(came)))
            finally:
                for sock in came:  # cancelled before their turn
                    sock.close()

    async def _take_in(self, sock: socket.socket, listening: Listening, came: set[socket.socket]) -> None:
        """Set up the connection of an accepted client."""
        came.remove(sock)
        try:
            check_client(sock, listening.path, listening.user)
            check_room(sock, self.engine.path)
            await asyncio.get_running_loop().connect_accepted_socket(partial(self._connected, sock), sock)
        except (ProtocolError, StorageError) as error:
            with suppress(OSError):  # the client may have disconnected
                sock.send(encode_packet(fail_of(error)))
            sock.close()
        except OSError:
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise

    def _connected(self, sock: socket.socket) -> ClientConnection:
        connection = ClientConnection(self, sock, self.incoming, self.gone)
        self._connections.add(connection)
        return connection

    def connect(self, link: ReceivingLink) -> Inside | None:
        """Connect a link of this process without a socket; None if this owner no longer serves."""
        if self.closing or self._listening is None:
            return None
        inside = Inside(link, self, self.gone)
        self._connections.add(inside.other)
        return inside

    def gone(self, connection: ClientConnection | OwnEnd) -> None:
        """Note that a connection has ended and its client's messages were given back."""
        self._connections.discard(connection)
        if connection.session.lends and not self._notes_gone:
            self._notes_gone = True
            asyncio.get_running_loop().call_soon(self._note_gone)

    def _note_gone(self) -> None:
        """Note the remaining clients, once for all that have disconnected; not while the owner ends."""
        if self._notes_gone and self._accepting is not None and not self._accepting.done():
            self._note_clients()
        self._notes_gone = False


def _recall(logs: Sequence[TopicLog]) -> None:
    for log in logs:
        log.recall()


def _came(listening: socket.socket) -> set[socket.socket]:
    """Accept the waiting clients: many may look for a new owner at once, and each round takes turns of the loop.

    Raises:
        OSError: no client waits, or the system refused.
    """
    came = {listening.accept()[0]}
    with suppress(OSError):  # no further client, or the next round gets the error
        while len(came) < _AT_ONCE:
            came.add(listening.accept()[0])
    return came


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    """Wait until a client can be accepted."""
    waiter: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, settle, waiter, None, None)
    try:
        await waiter
    finally:
        loop.remove_reader(sock)
