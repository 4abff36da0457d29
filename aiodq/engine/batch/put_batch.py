"""The open batch: what was accepted and not yet taken by the segment writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from aiodq.format.columns import Columns
from aiodq.format.many import all_are, measured

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    Waiter: TypeAlias = "asyncio.Future[Any] | PutResult"

    from aiodq.options import StoreOptions
    from aiodq.storage.log.producer_table import Origin

__all__ = [
    "OVERHEAD",
    "PLAIN",
    "Accepted",
    "OpenBatch",
    "Part",
    "PutResult",
    "accepted_cost",
    "columns_cost",
    "columns_of",
    "columns_of_one",
    "plain_lengths",
]

C = TypeVar("C")

OVERHEAD: Final = 64
"""The memory cost of a message besides its body: the bytes object, its slots in lists, its frame's share."""

_NO_HEADERS: Final[Mapping[str, str]] = {}


class Accepted(NamedTuple):
    """The validated labels and times of a message: everything besides its body.

    Attributes:
        tag, key, headers: as those of `Draft`.
        due, expiry: wall time in nanoseconds; 0 for none.
    """

    tag: str | None = None
    key: bytes | None = None
    headers: Mapping[str, str] | None = None
    due: int = 0
    expiry: int = 0


PLAIN: Final = Accepted()
"""Stands for a message that has nothing but its body."""


def columns_cost(columns: Columns) -> int:
    """Return the cost of these messages in bytes of memory."""
    return (sum(columns.sizes()) if columns.size is None else columns.size) + OVERHEAD * len(columns.bodies)


def plain_lengths(bodies: list[Any], options: StoreOptions) -> tuple[list[int], int] | None:
    """Return the lengths of messages that are bodies only, and their sum; None if one is not, or may not be put."""
    if not all_are(bodies, bytes):
        return None
    lengths, total = measured(bodies)
    if options.min_message_bytes and min(lengths) < options.min_message_bytes:
        return None
    # If all of them together are not too large, none is.
    if total > options.max_message_bytes and max(lengths) > options.max_message_bytes:
        return None
    return lengths, total


def accepted_cost(message: Accepted, body: bytes) -> int:
    """Return the cost of this message in bytes of memory."""
    cost = len(body) + OVERHEAD + len(message.tag or "") + len(message.key or b"")
    if message.headers:
        cost += sum(len(name) + len(value) for name, value in message.headers.items())
    return cost


def _added(column: list[C] | None, count: int, value: C, none: C) -> list[C] | None:
    """Return a column with one more value; None as long as it holds nothing."""
    if column is None:
        if value == none:
            return None
        column = [none] * count
    column.append(value)
    return column


class PutResult:
    """The result of a put that is not awaited yet: cheaper than a future, which is usually not needed.

    Attributes:
        offset: the message's offset, once it is as durable as the policy says; -1 before.
        error: why it was not stored, or None.
        future: the future of callers that wait; None as long as there are none.
    """

    # Defaults of the class, so that creating an instance calls nothing.
    offset: int = -1
    error: Exception | None = None
    future: asyncio.Future[int] | None = None

    def stored(self, offset: int) -> None:
        """Note that the message is stored, unless it failed before."""
        if self.error is None:
            self.offset = offset
        if self.future is not None and not self.future.done():
            self.future.set_result(offset)

    def durable(self, offset: int) -> None:
        """Note that the message is durable. Called in the thread that has synced it; `stored` follows on the loop."""

    def failed(self, error: Exception) -> None:
        """Note that the message was not stored, for this reason, unless it was settled before."""
        if self.offset < 0 and self.error is None:
            self.error = error
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True)
class Part:
    """Messages that are encoded together, with the futures of their puts.

    Attributes:
        columns: the messages.
        waiters: one per message; for an atomic part, one for all.
        atomic: whether all of it is stored or none.
        first: the first offset, once written; -1 before.
        time_ns: when it was written, nanoseconds since the epoch.
        cost: bytes of memory.
        origin: the producer of an atomic part that may be put again.
    """

    columns: Columns
    waiters: list[Waiter]
    atomic: bool
    first: int = -1
    time_ns: int = 0
    cost: int = 0
    origin: Origin | None = None

    def add(self, message: Accepted, body: bytes, waiter: Waiter, cost: int) -> None:
        """Append one message, with its cost in bytes of memory."""
        columns = self.columns
        count = len(columns.bodies)
        columns.bodies.append(body)
        self.waiters.append(waiter)
        self.cost += cost
        columns.tags = _added(columns.tags, count, message.tag, None)
        columns.keys = _added(columns.keys, count, message.key, None)
        columns.headers = _added(columns.headers, count, message.headers or _NO_HEADERS, _NO_HEADERS)
        columns.dues = _added(columns.dues, count, message.due, 0)
        columns.expiries = _added(columns.expiries, count, message.expiry, 0)

    def without_cancelled(self) -> Part | None:
        """Return the part without cancelled messages; None if nothing is left."""
        if self.atomic:
            return None if _cancelled(self.waiters[0]) else self
        kept = [number for number, waiter in enumerate(self.waiters) if not _cancelled(waiter)]
        if len(kept) == len(self.waiters):
            return self
        part = Part(Columns([]), [], atomic=False)
        messages = _messages_of(self.columns)
        for number in kept:
            message, body = messages[number]
            part.add(message, body, self.waiters[number], accepted_cost(message, body))
        return part if kept else None

    @property
    def cancelled(self) -> bool:
        """Whether all of it is withdrawn."""
        return all(map(_cancelled, self.waiters))

    @property
    def stop(self) -> int:
        """The offset after the last message, once written."""
        return self.first + len(self.columns.bodies)

    def durable(self) -> None:
        """Notify the waiter of a part with an origin, in the thread that has synced it; `resolve` follows."""
        waiter = self.waiters[0]
        if isinstance(waiter, PutResult):
            waiter.durable(self.first)

    def resolve(self, begin: int = 0, stop: int | None = None) -> None:
        """Resolve the waiters with their offsets, from index `begin` to `stop`, by default to the last."""
        first, waiters = self.first, self.waiters if not begin and stop is None else self.waiters[begin:stop]
        for number, waiter in enumerate(waiters, first + begin):
            if type(waiter) is PutResult and waiter.future is None and waiter.error is None:
                waiter.offset = number
            elif isinstance(waiter, PutResult):
                waiter.stored(number)
            elif not waiter.done():
                waiter.set_result(range(first, first + len(self.columns.bodies)) if self.atomic else number)

    def resolve_receipts(self) -> None:
        """Set the offsets of receipts; `resolve` follows, and wakes the waiters."""
        for number, waiter in enumerate(self.waiters, self.first):
            if type(waiter) is PutResult and waiter.error is None:
                waiter.offset = number

    def fail(self, error: Exception) -> None:
        """Fail the waiters."""
        for waiter in self.waiters:
            if isinstance(waiter, PutResult):
                waiter.failed(error)
            elif not waiter.done():
                waiter.set_exception(error)


def _cancelled(waiter: Waiter) -> bool:
    """Return whether a message is withdrawn. One with a `PutResult` never is."""
    return not isinstance(waiter, PutResult) and waiter.cancelled()


def columns_of(messages: Sequence[tuple[Accepted, bytes]]) -> Columns:
    """Return messages column by column."""
    columns = Columns([body for _, body in messages])
    if any(message is not PLAIN for message, _ in messages):
        tags, keys, headers, dues, expiries = map(list, zip(*(message for message, _ in messages), strict=True))
        columns.tags, columns.keys = _column(tags, None), _column(keys, None)
        columns.headers = _column([own or _NO_HEADERS for own in headers], _NO_HEADERS)
        columns.dues, columns.expiries = _column(dues, 0), _column(expiries, 0)
    return columns


def columns_of_one(message: Accepted, body: bytes) -> Columns:
    """Do as `columns_of` for one message, as in every put of a single labelled message."""
    tag, key, headers, due, expiry = message
    return Columns(
        [body],
        tags=None if tag is None else [tag],
        keys=None if key is None else [key],
        headers=[headers] if headers else None,
        dues=[due] if due else None,
        expiries=[expiry] if expiry else None,
    )


def _messages_of(columns: Columns) -> list[tuple[Accepted, bytes]]:
    """Return messages one by one: the inverse of `columns_of`."""
    return [
        (
            Accepted(
                None if columns.tags is None else columns.tags[number],
                None if columns.keys is None else columns.keys[number],
                None if columns.headers is None else columns.headers[number],
                0 if columns.dues is None else columns.dues[number],
                0 if columns.expiries is None else columns.expiries[number],
            ),
            body,
        )
        for number, body in enumerate(columns.bodies)
    ]


def _column(values: list[Any], none: object) -> list[Any] | None:
    """Return a column; None if it holds nothing."""
    return None if values.count(none) == len(values) else values


@dataclass(slots=True)
class OpenBatch:
    """Parts in the order in which they were accepted.

    Attributes:
        parts: what was accepted.
        serial: its number among the topic's batches.
        count: the number of messages.
        cost: bytes of memory.
        cancelled: whether puts were cancelled, so that their messages are not to be stored.
        plain: the last part, as long as it holds only plain messages that are not atomic.
    """

    parts: list[Part] = field(default_factory=list)
    serial: int = 0
    count: int = 0
    cost: int = 0
    cancelled: bool = False
    plain: Part | None = None

    def add(self, message: Accepted, body: bytes, waiter: Waiter, cost: int) -> None:
        """Accept one message, with its cost in bytes of memory."""
        if message is PLAIN:
            self.add_plain(body, waiter, cost)
            return
        part = self.parts[-1] if self.parts else None
        if part is None or part.atomic:
            part = Part(Columns([]), [], atomic=False)
            self.parts.append(part)
        self.plain = None
        part.add(message, body, waiter, cost)
        self.count += 1
        self.cost += cost

    def add_plain(self, body: bytes, waiter: Waiter, cost: int) -> None:
        """Accept one plain message."""
        part = self.plain
        if part is None:
            part = self.plain = Part(Columns([]), [], atomic=False)
            self.parts.append(part)
        part.columns.bodies.append(body)
        part.waiters.append(waiter)
        part.cost += cost
        self.count += 1
        self.cost += cost

    def add_part(self, part: Part) -> None:
        """Accept messages that are stored all or none."""
        self.plain = None
        self.parts.append(part)
        self.count += len(part.columns.bodies)
        self.cost += part.cost

    def take(self) -> list[Part]:
        """Return the parts, without cancelled messages. The batch is not used any further."""
        if not self.cancelled:
            return self.parts
        return [kept for part in self.parts if (kept := part.without_cancelled()) is not None]
