"""A client's transactions at the owner: each is committed once, however often it arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from aiodq.engine.batch.put_batch import columns_cost
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, ProtocolError
from aiodq.shared.requests.client_puts import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.engine.committing.group_committer import Committer
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.format.columns import Columns
    from aiodq.format.producers import Origin
    from aiodq.shared.requests.lending import Lending
    from aiodq.shared.requests.lent.lent_runs import LentRun
    from aiodq.shared.requests.owner_state.waiting_bytes import ClientsBytes
    from aiodq.shared.requests.serving import Owning
    from aiodq.wire.packets import Put, Txn
    from aiodq.wire.payload import Range

__all__ = ["Asked", "ClientTransactions"]


class Asked(NamedTuple):
    """A decoded transaction.

    Attributes:
        acks: the messages it settles: the lending, the epoch of the owner that delivered, and the ranges.
        puts: the messages it puts: each topic, the messages, and their cost in bytes of memory.
    """

    acks: list[tuple[Lending, int, tuple[Range, ...]]]
    puts: list[tuple[TopicEngine, Columns, int]]

    @classmethod
    def read(cls, packet: Txn, topic: Callable[[int], TopicEngine], lending: Callable[[int], Lending]) -> Asked:
        """Decode a packet; `topic` and `lending` resolve its handles.

        Raises:
            ProtocolError: the packet violates the protocol.
            AiodqError: a handle's topic or channel could not be opened, or a message cannot be stored there.
        """
        acks = [(lending(ack.handle), ack.epoch, ack.ranges) for ack in packet.acks]
        puts = [(topic(put.handle), put) for put in packet.puts]
        if len({engine.name for engine, _ in puts}) < len(puts):
            raise ProtocolError("TXN: what is put into a topic stands in one part of it")
        return cls(acks, [(engine, *_messages(engine, put)) for engine, put in puts])

    @property
    def topics(self) -> set[str]:
        """The names of the topics that it changes."""
        return {engine.name for engine, _, _ in self.puts} | {lending.topic for lending, _, _ in self.acks}


def _messages(engine: TopicEngine, put: Put) -> tuple[Columns, int]:
    columns = columns_of(put, engine.clock)
    for extreme in (min, max) if columns.bodies else ():
        engine.put_buffer.body(extreme(columns.bodies, key=len))
    return columns, columns_cost(columns)


class ClientTransactions:
    """The transactions that arrive over one connection."""

    def __init__(self, owner: Owning, kept: ClientsBytes) -> None:
        """Start without transactions."""
        self._owner = owner
        self._kept = kept
        self._mine: dict[Origin, asyncio.Task[Any]] = {}
        self._closing = self._ending = False

    @property
    def _committer(self) -> Committer:
        return self._owner.engine.committer

    def _under_way(self, origin: Origin) -> asyncio.Future[Any] | None:
        found = self._owner.transacting.get(origin) or self._committer.deciding.get(origin)
        return None if found is None or found.done() else found

    def knows(self, origin: Origin) -> bool:
        """Return whether a transaction is committed and its effects are visible."""
        return self._under_way(origin) is None and self._committer.knows(origin)

    async def commit(self, origin: Origin, asked: Asked) -> None:
        """Commit a transaction, unless it is committed already.

        Raises:
            AiodqError, QueueFull, QueueShutDown: as for `Committer.commit`, or it was withdrawn; nothing was done.

        Cancellation: its client is gone; as for `Committer.commit`.
        """
        while (before := self._under_way(origin)) is not None:
            await asyncio.wait([before])
        if self._committer.knows(origin):
            return
        self._owner.engine.check()
        task: Any = asyncio.current_task()
        cost = sum(cost for _, _, cost in asked.puts)
        if asked.puts:  # one that only settles makes room
            self._kept.check(cost)
        self._kept.keep(cost)
        # INVARIANT: no other task has run since the check: a transaction that arrives twice at once is committed once.
        self._owner.transacting[origin] = task
        self._mine[origin] = task
        try:
            await self._commit(origin, asked)
        finally:
            del self._mine[origin]
            del self._owner.transacting[origin]
            self._kept.drop(cost)

    async def _commit(self, origin: Origin, asked: Asked) -> None:
        committer, taken = self._committer, _Taken()
        try:
            for lending, epoch, ranges in asked.acks:
                taken.take(lending, lending.held.reserve(epoch, ranges))
            settled = [part.acks(lending.engine) for lending, part in taken.parts]
            await committer.commit(settled, asked.puts, taken.ended, origin)
        except asyncio.CancelledError:
            deciding = committer.deciding.get(origin)
            if deciding is None:
                taken.ended(None if committer.knows(origin) else QueueShutDown("nothing was done"))
            if self._ending:
                raise
            if deciding is not None:
                await asyncio.wait([deciding])
            if not committer.knows(origin):
                raise self._withdrawn() from None
        except BaseException as error:
            taken.ended(error)
            raise
        else:
            taken.ended(None)

    def _withdrawn(self) -> Exception:
        return QueueShutDown("the store is closed") if self._closing else AiodqError("the transaction was withdrawn")

    async def withdraw(self, origin: Origin) -> bool:
        """Withdraw a transaction unless it is about to be committed; return whether it is committed."""
        while (before := self._under_way(origin)) is not None:
            if origin in self._owner.transacting:
                before.cancel()
            await asyncio.wait([before])
        return self._committer.knows(origin)

    async def over(self, producer: int) -> None:
        """Wait until no transaction of a client is in progress: only then is it known what it holds."""
        while busy := [
            one
            for origin, one in (*self._owner.transacting.items(), *self._committer.deciding.items())
            if origin.producer == producer and not one.done()
        ]:
            await asyncio.wait(busy)

    def close(self) -> None:
        """Cancel transactions that wait for room and are not accepted, as the client closes its store."""
        self._closing = True
        for origin, task in self._mine.items():
            if origin not in self._committer.deciding:
                task.cancel()

    def end(self) -> None:
        """Note that the client is gone."""
        self._ending = True


class _Taken:
    """Messages that a transaction settles: taken from the client until it ends."""

    def __init__(self) -> None:
        self.parts: list[tuple[Lending, LentRun]] = []

    def take(self, lending: Lending, parts: Iterable[LentRun]) -> None:
        """Take messages until one is not available.

        Raises:
            NotInFlightError: one is not available; those before it are taken.
        """
        for part in parts:
            self.parts.append((lending, part))

    def ended(self, error: BaseException | None) -> None:
        """With an error, return them to the client; otherwise the committer has settled them."""
        for lending, part in self.parts if error is not None else ():
            lending.held.keep(part)
        self.parts.clear()
