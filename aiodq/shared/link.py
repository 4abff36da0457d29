"""A client's way to whoever owns the store now: one connection at a time, and what has to survive the end of one.

Requests are kept until they are answered. When the owner goes, its successor is looked for, which may be this very
process: then it talks to itself over the same socket, so that nothing changes for who holds a topic or a channel. What
was put and not acknowledged is put again, in order and before anything newer; the log knows what it has.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiodq.errors
from aiodq.engine import queue_errors
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, OwnerLostError, ProtocolError, StorageError
from aiodq.shared.rendezvous import connect
from aiodq.storage.log.producer_table import MOST_PENDING
from aiodq.wire.layout import FIRST_PACKET, VERSION
from aiodq.wire.packets import Deliver, Done, Fail, Handover, Hello, Open, Put, Welcome
from aiodq.wire.stream import PacketReader, encode_packet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from aiodq.wire.packets import Message as Said

__all__ = ["Link", "Listener", "error_of"]

_FIRST_WAIT: Final = 0.002
_LONGEST_WAIT: Final = 0.1
"""Seconds between two attempts to find an owner."""


class Listener(Protocol):
    """Who hears what an owner says of a channel."""

    def delivered(self, said: Deliver, epoch: int) -> None:
        """Messages have come."""
        ...

    def reopened(self, epoch: int) -> None:
        """The channel is open with an owner, which knows nothing of what was wanted before."""
        ...


class _Topic:
    """What was put into a topic and is not acknowledged, by sequence and so in order."""

    def __init__(self) -> None:
        self.sequence = 0
        self.pending: dict[int, tuple[Put, asyncio.Future[range]]] = {}
        self.room = asyncio.Semaphore(MOST_PENDING)


class Link:
    """One process's.

    Attributes:
        epoch: the owner's, while there is a connection; 0 before the first.
        owner_pid: its process.
    """

    def __init__(self, directory: str, own: Callable[[], Awaitable[bool]], *, failover: float = 30.0) -> None:
        """Prepare; `start` connects.

        Args:
            directory: the store's.
            own: tries to own the store and to serve it; returns whether that is so now.
            failover: seconds to look for an owner, before those who wait are told that there is none.
        """
        self.epoch: int = 0
        self.owner_pid: int = 0
        self._directory = directory
        self._own = own
        self._failover = failover
        self._producer = secrets.randbits(64)
        self._wire: _Wire | None = None
        self._ready = False
        self._topics: dict[str, _Topic] = {}
        self._channels: dict[tuple[str, str], Listener] = {}
        self._handles: dict[tuple[str, str], int] = {}
        self._answers: dict[int, asyncio.Future[Said]] = {}
        self._request = 0
        self._lost = asyncio.Event()
        self._found = asyncio.Event()
        self._failure: AiodqError | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the owner.

        Raises:
            OwnerLostError: there is none.
            ProtocolError: what is there speaks otherwise.

        Cancellation: nobody is looked for any more.
        """
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"aiodq link {self._directory}")
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection; what is not acknowledged fails."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(QueueShutDown("the store is closed"))
        if self._wire is not None:
            self._wire.close()

    async def put(self, topic: str, frames: bytes, count: int, *, each: bool = False) -> range:
        """Put messages, and return their offsets once they are as durable as the owner makes them.

        Raises:
            AiodqError: as the owner's put.
            OwnerLostError: there is no owner, and none was found in time; whether they are stored, nobody knows.

        Cancellation: they are put all the same.
        """
        self._check()
        state = self._topics.setdefault(topic, _Topic())
        await state.room.acquire()
        state.sequence += 1
        waiter: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        sequence = state.sequence
        state.pending[sequence] = Put(0, sequence, count, frames, each), waiter
        waiter.add_done_callback(lambda _: self._settled(state, sequence))
        if self._ready:
            self._send_put(topic, sequence)
        return await asyncio.shield(waiter)

    @staticmethod
    def _settled(state: _Topic, sequence: int) -> None:
        if state.pending.pop(sequence, None) is not None:
            state.room.release()

    def _send_put(self, topic: str, sequence: int) -> None:
        put, waiter = self._topics[topic].pending[sequence]
        answer = self._ask(replace(put, handle=self._handle(topic, "")))

        def answered(done: asyncio.Future[Said]) -> None:
            if done.cancelled() or waiter.done():
                return
            said = done.result()
            if isinstance(said, Done) and said.placed is not None:
                first, number = said.placed
                waiter.set_result(range(first, first + number))
            elif isinstance(said, Fail) and said.name != OwnerLostError.__name__:
                waiter.set_exception(error_of(said))
            # Else it is put again by the next connection.

        answer.add_done_callback(answered)

    async def open_channel(self, topic: str, channel: str, listener: Listener) -> None:
        """Have `listener` hear of a channel, from every owner there will be."""
        await self._connected()
        self._channels[topic, channel] = listener
        said = await self._ask_open(topic, channel)
        if isinstance(said, Fail):
            del self._channels[topic, channel]
            raise error_of(said)
        listener.reopened(self.epoch)

    async def ask(self, said: Callable[[int], Said], topic: str, channel: str) -> Done:
        """Ask something of a channel by its handle.

        Raises:
            AiodqError: what the owner says.
            OwnerLostError: the owner went before it answered: whether it was done, nobody knows.
        """
        await self._connected()
        answer = await self._ask(said(self._handle(topic, channel)))
        if isinstance(answer, Fail):
            raise error_of(answer)
        if not isinstance(answer, Done):
            raise ProtocolError(f"{answer.op.name} is no answer")
        return answer

    def request(self, said: Callable[[int], Said], topic: str, channel: str) -> asyncio.Future[Said]:
        """Ask something of a channel by its handle; `Fail` of an `OwnerLostError` where nobody has answered."""
        if self._ready:
            return self._ask(said(self._handle(topic, channel)))
        answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        answer.set_result(_gone(self._directory))
        return answer

    def tell(self, said: Callable[[int], Said], topic: str, channel: str) -> None:
        """Say something of a channel that wants no answer, to the owner there is; to nobody if there is none."""
        if self._ready and self._wire is not None:
            self._wire.send(said(self._handle(topic, channel)), 0)

    # --- the connection

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _connected(self) -> None:
        while not self._ready:
            self._check()
            await self._found.wait()
        self._check()

    def _handle(self, topic: str, channel: str) -> int:
        """Return a handle, opened before anything that is said with it."""
        handle = self._handles.get((topic, channel))
        if handle is None:
            self._ask_open(topic, channel)
            handle = self._handles[topic, channel]
        return handle

    def _ask_open(self, topic: str, channel: str) -> asyncio.Future[Said]:
        handle = self._handles.setdefault((topic, channel), len(self._handles) + 1)
        return self._ask(Open(handle, topic, channel, {}))

    def _ask(self, said: Said) -> asyncio.Future[Said]:
        answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        if self._wire is None:
            answer.set_result(_gone(self._directory))
            return answer
        self._request = self._request % 0xFFFFFFFF + 1
        self._answers[self._request] = answer
        self._wire.send(said, self._request)
        return answer

    async def _run(self) -> None:
        try:
            while True:
                wire = await self._find()
                self._lost.clear()
                await self._begin(wire)
                await self._lost.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody is left waiting
            failure = error if isinstance(error, AiodqError) else OwnerLostError(repr(error), self._directory)
            failure.__cause__ = error.__cause__ if failure is error else error
            self._fail(failure)

    async def _find(self) -> _Wire:
        """Return a connection to the owner, who may be this process from now on."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._failover, _FIRST_WAIT
        while True:
            sock = connect(self._directory)
            if sock is not None:
                _, wire = await loop.create_unix_connection(lambda: _Wire(self), sock=sock)
                return wire
            if await self._own():
                continue
            if loop.time() > deadline:
                raise OwnerLostError(f"nobody has owned the store for {self._failover:g} s", self._directory)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_WAIT)

    async def _begin(self, wire: _Wire) -> None:
        """Introduce oneself, and go on where the owner before has left."""
        self._wire, self._answers, self._handles = wire, {}, {}
        welcome = await self._ask(Hello(VERSION, VERSION, os.getpid(), self._producer, self.epoch, "aiodq"))
        if isinstance(welcome, Fail):
            if welcome.name == OwnerLostError.__name__:
                return  # it was on its way out
            raise error_of(welcome)
        if not isinstance(welcome, Welcome):
            raise ProtocolError(f"{welcome.op.name} is no answer to HELLO")
        self.epoch, self.owner_pid = welcome.epoch, welcome.pid
        wire.reader.largest = welcome.largest
        # INVARIANT: what was put before comes before anything newer, which nobody sends before this step has ended.
        self._ready = True
        for topic, state in self._topics.items():
            for sequence in list(state.pending):
                self._send_put(topic, sequence)
        for (topic, channel), listener in self._channels.items():
            self._ask_open(topic, channel)
            listener.reopened(self.epoch)
        self._found.set()

    def lost(self, wire: _Wire) -> None:
        """A connection has ended."""
        if wire is not self._wire:
            return
        self._wire, self._ready = None, False
        self._found.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_result(_gone(self._directory))
        self._lost.set()

    def heard(self, said: Said, request: int) -> None:
        """An owner has said something."""
        if request:
            answer = self._answers.pop(request, None)
            if answer is not None and not answer.done():
                answer.set_result(said)
        elif isinstance(said, Deliver):
            for key, handle in self._handles.items():
                if handle == said.handle and key in self._channels:
                    self._channels[key].delivered(said, self.epoch)
        elif isinstance(said, Handover) and self._wire is not None:
            self._wire.close()

    def _fail(self, error: AiodqError) -> None:
        self._failure = error
        self._found.set()
        for state in self._topics.values():
            for _, waiter in list(state.pending.values()):
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # who put it may be gone


class _Wire(asyncio.Protocol):
    """One connection to an owner."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transport: Any = None
        self.reader: PacketReader = PacketReader()
        self.reader.largest = FIRST_PACKET

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - a transport of whatever loop it is
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for said, request in self.reader.feed(data):
                self._link.heard(said, request)
        except ProtocolError:
            self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._link.lost(self)

    def send(self, said: Said, request: int) -> None:
        self._transport.write(encode_packet(said, request))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _gone(directory: str) -> Fail:
    text = "the owner of the store went before it answered"
    return Fail(OwnerLostError.__name__, retriable=True, errno=0, position=-1, pid=0, path=directory, text=text)


def error_of(said: Fail) -> Exception:
    """Return the error that an owner had, to be raised here."""
    kind = _kind(aiodq.errors, said.name) or _kind(queue_errors, said.name)
    if kind is None:
        return AiodqError(f"{said.name}: {said.text}")
    if not issubclass(kind, StorageError):
        error: Exception = kind(said.text)
    else:
        error = kind(said.text, said.path)
        if isinstance(error, StorageError):
            error.position = None if said.position < 0 else said.position
            error.errno = said.errno or None
    if isinstance(error, AiodqError):
        with suppress(AttributeError):
            error.retriable = said.retriable
    return error


def _kind(module: ModuleType, name: str) -> type[Exception] | None:
    found = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
