"""Acks and puts that are done together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from aiodq.engine.batch import OVERHEAD, Draft
from aiodq.engine.transactions import Settlement
from aiodq.errors import AlreadySettledError, MessageSizeError, NotInFlightError, WrongContextError
from aiodq.names import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from types import TracebackType

    from aiodq.engine.batch import Accepted
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.runtime import Runtime
    from aiodq.format.layout import BytesLike
    from aiodq.message import Message

__all__ = ["Transaction"]

_LARGEST: Final = 1 << 28


class Transaction:
    """Acks and puts over any channels and topics of a store, all or nothing through any crash: `Store.transaction`.

    ```python
    async with store.transaction() as tx:
        tx.ack(message)
        tx.put("invoices", body)
    ```

    Nothing happens before the block ends. When it returns, all of it is durable, under any `sync` policy, for the price
    of one sync that all transactions under way share, and what was put can be seen. An exception in the block undoes
    everything: what was to be acked is still in flight. A worker that acks what it read and puts what it made of it in
    one transaction has processed each message exactly once, as far as the store knows, however often it is killed.

    How it works, and what else it costs: `aiodq.format.transactions`. The bodies are written twice, first to the
    store's file of transactions, then to their topics.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Made by `Store.transaction`."""
        self._runtime = runtime
        self._messages: dict[tuple[str, str, int], tuple[Message, Settlement]] = {}
        self._puts: dict[str, tuple[IoLoop, list[tuple[Accepted, bytes]]]] = {}
        self._cost = 0
        self._entered = self._ended = False

    def ack(self, message: Message) -> None:
        """Settle a message when the transaction commits.

        Raises:
            AlreadySettledError: settled before, or in this transaction.
            NotInFlightError: not in flight any more, or of another store.
            WrongContextError: outside the block.
        """
        self._check()
        outlet, delivery = message._claim()  # noqa: SLF001 - a way of settling that is not the message's own
        ioloop = self._runtime.topics.get(message.topic)
        if ioloop is None or ioloop.outlets.get(outlet.name) is not outlet:
            raise NotInFlightError(f"message {message.offset} of {message.topic!r} is not in flight in this store")
        key = message.topic, outlet.name, message.offset
        if key in self._messages:
            raise AlreadySettledError(f"message {message.offset} of {message.topic!r} is in the transaction already")
        outlet.check(message.offset, delivery)
        self._messages[key] = message, Settlement(ioloop, outlet, message.offset, delivery)

    def put(
        self,
        topic: str,
        body: BytesLike,
        *,
        tag: str | None = None,
        key: BytesLike | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        """Put a message into a topic when the transaction commits.

        What a transaction puts into one topic stands there together, in this order.

        Args:
            topic: its name; it is made if it is not there.
            body: the message.
            tag: as for `Topic.put`.
            key: likewise.
            headers: likewise.
            delay: likewise, counted from this call.
            ttl: likewise.

        Raises:
            InvalidNameError, MessageSizeError, InvalidMessageError: it cannot be stored like that.
            QueueShutDown: the store is closed.
            WrongContextError: outside the block.
        """
        self._check()
        check_topic_name(topic, self._runtime.topics)
        ioloop, messages = self._puts.get(topic) or (self._runtime.ioloop(topic), [])
        data = ioloop.intake.body(body)
        accepted = ioloop.intake.accepted(Draft(data, tag, key, headers, delay, ttl))
        self._cost += len(data) + OVERHEAD
        if self._cost > _LARGEST:
            raise MessageSizeError(f"a transaction holds up to {_LARGEST} bytes of messages")
        messages.append((accepted, data))
        self._puts[topic] = ioloop, messages

    def _check(self) -> None:
        self._runtime.check()
        if not self._entered or self._ended:
            raise WrongContextError("a transaction is used inside its `async with` block, and once")

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            WrongContextError: it was begun before.
        """
        if self._entered:
            raise WrongContextError("a transaction is used once")
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; after an exception in the block, forget everything.

        Raises:
            NotInFlightError: a message was taken away meanwhile: its time was up, or by a seek. Nothing was done.
            QueueFull: a topic's bound is reached and its policy is `"reject"`. Nothing was done.
            QueueShutDown: the store is closed. Nothing was done.
            DiskFullError: nothing was done, and it may be tried again.
            StoreFailedError: the store has stopped; opened again, all of it was done, or nothing.

        Cancellation: before the writer takes it, nothing is done; after that it is committed, and only the caller does
        not know.
        """
        self._ended = True
        if kind is not None or not (self._messages or self._puts):
            return
        self._runtime.check()
        claims = list(self._messages.values())
        await self._runtime.committer.commit([claim for _, claim in claims], list(self._puts.values()))
        for message, _ in claims:
            message._committed()  # noqa: SLF001 - as in `ack`
