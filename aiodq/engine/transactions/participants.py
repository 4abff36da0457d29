"""What transactions need of the topics and channels that take part in them.

Said from below, as topics and channels know of transactions, and not the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aiodq.engine.put_batch import Accepted, Draft
    from aiodq.format.columns import Columns

__all__ = ["Channel", "Topic"]

P = ParamSpec("P")
T = TypeVar("T")


class _Holds(Protocol):
    """See `aiodq.engine.channel.transaction_holds.TransactionHolds`."""

    def hold(self, start: int, stop: int, delivery: int) -> int: ...

    def holds(self, start: int, stop: int, held: int) -> bool: ...

    def settle(self, start: int, stop: int, held: int) -> None: ...

    def release(self, start: int, stop: int, held: int, delivery: int) -> None: ...


class Channel(Protocol):
    """A channel of which a transaction settles a message: `aiodq.engine.channel.settlement.Settlement` is one."""

    name: str

    @property
    def transaction_holds(self) -> _Holds:
        """What transactions are about to settle."""
        ...

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless these messages are in flight under that delivery number and those that follow."""
        ...

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it."""
        ...


class _Bound(Protocol):
    """See `aiodq.engine.topic.backlog_bound.BacklogBound`."""

    credit: int


class _PutBuffer(Protocol):
    """See `aiodq.engine.topic.put_buffer.PutBuffer`."""

    pending: int
    cost: int

    @property
    def bound(self) -> _Bound:
        """Whether the backlog has room."""
        ...

    def accepted_many(
        self, bodies: Iterable[bytes | bytearray | memoryview | Draft], common: Draft
    ) -> Sequence[tuple[Accepted, bytes]]: ...

    def check_open(self, *, pressing: bool) -> None: ...

    def reserve(self, messages: int, cost: int, *, pressing: bool, covered: bool = False) -> None: ...

    def unreserve(self, messages: int, cost: int) -> None: ...

    async def enter(self, accept: Callable[[], T], *, ahead: bool = False) -> T: ...

    def accept_committed(self, columns: Columns) -> asyncio.Future[range]: ...


class _Creation(Protocol):
    """See `aiodq.engine.topic.creation.Creation`."""

    async def made(self) -> None: ...


class _Log(Protocol):
    """A topic's log, or what stands in for one that is not there yet."""

    @property
    def durable(self) -> int: ...


class _Retention(Protocol):
    """See `aiodq.engine.topic.retention.TopicRetention`."""

    def holding(self) -> Iterable[object]: ...

    def pin(self, offset: int) -> None: ...

    def unpin(self) -> None: ...


class Topic(Protocol):
    """A topic that a transaction puts into: `aiodq.engine.topic.topic_engine.TopicEngine` is one."""

    name: str
    closed: bool
    stopped: bool

    @property
    def put_buffer(self) -> _PutBuffer:
        """The way into the topic."""
        ...

    @property
    def creation(self) -> _Creation:
        """What makes its files."""
        ...

    @property
    def log(self) -> _Log:
        """Its files."""
        ...

    @property
    def retention(self) -> _Retention:
        """What deletes from it."""
        ...

    @property
    def channel_engines(self) -> Mapping[str, object]:
        """Its channels, by name."""
        ...

    def guarded(self, function: Callable[P, object]) -> Callable[P, None]:
        """Return `function` for a callback of the event loop's: what it raises stops the store."""
        ...

    async def sync(self) -> None:
        """Wait until everything accepted before is on disk, and everything settled before."""
        ...

    async def sync_log(self) -> None:
        """Wait until everything accepted before is on disk."""
        ...
