"""An owner's end of the socket: who connects is served for as long as the store is open."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import ProtocolError, StoreFailedError
from aiodq.shared.rendezvous import Listening, check_client, listen
from aiodq.shared.session import Session
from aiodq.storage.log.topic_log import TopicLog
from aiodq.wire.layout import UNSAID
from aiodq.wire.packets import Fail, Handover
from aiodq.wire.stream import PacketReader, encode_packet

if TYPE_CHECKING:
    from aiodq.engine.store_engine import StoreEngine
    from aiodq.storage.log.producer_table import Origin
    from aiodq.wire.packets import Message as Said

__all__ = ["Owner"]

_LARGEST: Final = 64 << 20


class Owner:
    """Serves a store that this process owns; see `Owning`."""

    def __init__(self, engine: StoreEngine, *, reclaim: float = 1.0) -> None:
        """Prepare to serve this store; an owner killed before, clients have `reclaim` seconds to say what they hold."""
        self._reclaim = reclaim
        self._reclaiming: asyncio.TimerHandle | None = None
        self.engine: StoreEngine = engine
        self.pid: int = os.getpid()
        self.epoch: int = secrets.randbits(63) | 1
        self.largest: int = _LARGEST
        self.putting: dict[tuple[str, Origin], asyncio.Future[range]] = {}
        self._connections: set[_Connection] = set()
        self._listening: Listening | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def clients(self) -> list[Session]:
        """Return who is connected."""
        return [connection.session for connection in self._connections]

    async def start(self) -> None:
        """Be found, and serve. The store has been recovered.

        Raises:
            StorageError: the system refused.
        """
        for topic in self.engine.topics.values():
            if isinstance(topic.log, TopicLog):
                # INVARIANT: nobody puts before this is known: a put that comes again is told from a new one by it.
                await self.engine.threads.call(topic.log.recall)
        self._listening = listen(self.engine.path)
        if self._listening.after_crash:
            # INVARIANT: in this step nothing was delivered yet: nobody but the opener has had a turn with the store.
            self._hold_back(under_way=True)
            self._reclaiming = self.engine.loop.call_later(self._reclaim, lambda: self._hold_back(under_way=False))
        self._accepting = asyncio.get_running_loop().create_task(self._accept(self._listening))

    def _hold_back(self, *, under_way: bool) -> None:
        for topic in self.engine.topics.values():
            for channel_engine in topic.channel_engines.values():
                channel_engine.reclaim(under_way=under_way)

    async def close(self) -> None:
        """Tell everybody to look for another owner, and serve no more."""
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        if self._listening is not None:
            self._listening.close()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        for connection in list(self._connections):
            connection.send(Handover(self.epoch))
            connection.end()
        await asyncio.gather(*(connection.ended() for connection in list(self._connections)))

    async def _accept(self, listening: Listening) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening.sock)
            except OSError:
                await asyncio.sleep(0.1)  # no descriptors left, as a rule: somebody may let go of one
                continue
            try:
                check_client(sock, listening.path)
                await loop.connect_accepted_socket(self._connected, sock)
            except (ProtocolError, OSError):
                sock.close()

    def _connected(self) -> _Connection:
        connection = _Connection(self)
        self._connections.add(connection)
        return connection

    def gone(self, connection: _Connection) -> None:
        """A connection has ended, and what its client held is given back."""
        self._connections.discard(connection)


class _Connection(asyncio.Protocol):
    """One client's, see `Wire`."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._reader = PacketReader()
        self._transport: Any = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.session: Session = Session(owner, self)

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport of whatever loop it is
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for packet in self._reader.feed(data):
                self.session.receive(packet)
                if self.session.client is not None:
                    self._reader.largest = self._owner.largest
        except ProtocolError as error:
            self.send(Fail("ProtocolError", retriable=False, errno=0, position=UNSAID, pid=0, path="", text=str(error)))
            self.end()
        except StoreFailedError:
            self.end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self._writable.set()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        try:
            await self.session.end()
        finally:
            self._owner.gone(self)
            self._ended.set()

    async def ended(self) -> None:
        """Wait until the connection is closed, and what the client held is given back."""
        await self._ended.wait()

    def send(self, said: Said, request: int = 0) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_packet(said, request))

    async def writable(self) -> None:
        await self._writable.wait()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()
