"""What a message needs of the engine of its channel.

There are two implementations: a channel's engine, and its remote substitute if another process owns the store. With
this Protocol, a type checker notices code of a message that uses what only one of the two has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from aiodq.engine.channel.dead_lettering.failure_causes import NO_CAUSE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from aiodq.delivery.leases import Lease
    from aiodq.engine.channel.dead_lettering.failure_causes import Cause
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.format.frame import Batch
    from aiodq.options import ChannelOptions

__all__ = ["SettlingChannel"]


class SettlingChannel(Protocol):
    """A channel whose messages are settled: `aiodq.engine.channel.acks.settlement.Settlement` is one.

    Attributes:
        name: the channel's name.
        options: how it delivers.
        transactions: the open transactions of the store.
    """

    name: str
    options: ChannelOptions
    transactions: OpenTransactions

    @property
    def place(self) -> str:
        """The channel and its topic, for messages."""
        ...

    @property
    def check_context(self) -> Callable[[], None]:
        """Raises if the store belongs to another loop or process than the caller's."""
        ...

    def check(self, offset: int, delivery: int) -> None:
        """Raise unless the message is in flight."""
        ...

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless these messages are in flight, with consecutive delivery numbers from this one on."""
        ...

    def holds(self, offset: int, held: int) -> bool:
        """Return whether a message is still held under that number."""
        ...

    def holds_all(self, start: int, stop: int, held: int) -> bool:
        """Return whether these messages are, under consecutive numbers from this one on."""
        ...

    def acked(self, lease: Lease) -> None:
        """Note that a message of a lease was marked as acked."""
        ...

    def ack(self, offset: int, delivery: int) -> None:
        """Settle a message."""
        ...

    def ack_many(self, deliveries: Sequence[tuple[int, int]]) -> None:
        """Settle messages: all of them, or none if one cannot be settled."""
        ...

    def ack_run(self, lease: Lease, first: int, count: int) -> None:
        """Settle `count` messages of a lease."""
        ...

    def ack_marked(self, lease: Lease) -> None:
        """Settle the messages of a lease that the caller has marked as acked."""
        ...

    def nack(
        self, batch: Batch, delivery: int, attempts: int, delay: int | None = None, cause: Cause = NO_CAUSE
    ) -> int | None:
        """Make a message ready again, after a delay in nanoseconds; return the delay, or None if it is given up."""
        ...

    def release(self, batch: Batch, delivery: int, attempts: int) -> None:
        """Make a message ready again as if it had never been handed out."""
        ...

    def reject(
        self, batch: Batch, delivery: int, attempts: int, reason: str, cause: Cause = NO_CAUSE
    ) -> asyncio.Future[Any] | None:
        """Give a message up; the future ends once that is durable. None: it is once `committed` returns."""
        ...

    def touch(self, offset: int, delivery: int, extend: int | None) -> None:
        """Restart a message's visibility timeout."""
        ...

    def renew(self, delivery: int) -> None:
        """Keep a message from timing out until `renew_no_more` was called as many times."""
        ...

    def renew_no_more(self, delivery: int) -> bool:
        """Undo one call of `renew`; return whether it was the last."""
        ...

    def commit(self, lease: Lease, index: int, /) -> Awaitable[None]:
        """Wait until the settlement of a message of a lease, the last one settled, is durable."""
        ...

    async def committed(self) -> None:
        """Wait until everything settled before is durable."""
        ...
