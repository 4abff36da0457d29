"""What transactions need of the topics and channels that take part in them.

These are Protocols, as topics and channels import the code of transactions and not the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.engine.batch.draft import Draft
    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.format.columns import Columns

__all__ = ["Channel", "CommittedTopic", "HoldingChannel", "Topic"]

P = ParamSpec("P")
T = TypeVar("T")


class _Holds(Protocol):
    """See `aiodq.engine.channel.acks.transaction_holds.TransactionHolds`."""

    def hold(self, start: int, stop: int, delivery: int) -> int: ...

    def holds(self, start: int, stop: int, held: int) -> bool: ...

    def settle(self, start: int, stop: int, held: int) -> None: ...

    def release(self, start: int, stop: int, held: int, delivery: int) -> None: ...


class Channel(Protocol):
    """A channel of which a transaction settles a message, whichever process owns its store."""

    name: str

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless these messages are in flight, with consecutive delivery numbers from this one on."""
        ...

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it."""
        ...


class HoldingChannel(Channel, Protocol):
    """A channel of a store whose owner this is: `aiodq.engine.channel.acks.settlement.Settlement` is one."""

    @property
    def transaction_holds(self) -> _Holds:
        """The messages that transactions are about to settle."""
        ...


class _Bound(Protocol):
    """See `aiodq.engine.topic.backlog_bound.BacklogBound`."""

    credit: int


class _Checks(Protocol):
    """Checks what is put, whichever process owns the store."""

    def body(self, body: bytes | bytearray | memoryview) -> bytes: ...

    def accepted(self, draft: Draft) -> Accepted: ...

    def accepted_many(
        self, bodies: Iterable[bytes | bytearray | memoryview | Draft], common: Draft
    ) -> tuple[Columns, int] | list[tuple[Accepted, bytes]]: ...


class _PutBuffer(_Checks, Protocol):
    """See `aiodq.engine.topic.puts.put_buffer.PutBuffer`."""

    pending: int
    cost: int

    @property
    def bound(self) -> _Bound:
        """The bound of the backlog."""
        ...

    @property
    def drops(self) -> bool:
        """Whether it drops old messages to make room."""
        ...

    def check_open(self, *, pressing: bool) -> None: ...

    def reserve(self, messages: int, cost: int, *, pressing: bool, covered: bool = False) -> None: ...

    def unreserve(self, messages: int, cost: int) -> None: ...

    def fits(self, accept: Callable[[], object], *, ahead: bool = False) -> bool: ...

    async def enter(self, accept: Callable[[], T], *, ahead: bool = False) -> T: ...

    def accept_committed(self, columns: Columns, cost: int) -> asyncio.Future[range]: ...


class _Creation(Protocol):
    """See `aiodq.engine.topic.creation.Creation`."""

    def create(self) -> None: ...

    async def made(self) -> None: ...


class _Log(Protocol):
    """A topic's log, or the stand-in of a topic that has no files yet."""

    @property
    def durable(self) -> int: ...


class _Retention(Protocol):
    """See `aiodq.engine.topic.retention.TopicRetention`."""

    def holding(self) -> Iterable[object]: ...

    def pin(self, offset: int) -> None: ...

    def unpin(self) -> None: ...


class Topic(Protocol):
    """A topic that takes part in a transaction, whichever process owns its store."""

    name: str

    @property
    def put_buffer(self) -> _Checks:
        """What checks the messages that are put."""
        ...

    @property
    def channel_engines(self) -> Mapping[str, object]:
        """Its channels, by name."""
        ...


class CommittedTopic(Topic, Protocol):
    """A topic of a store whose owner this is: `aiodq.engine.topic.topic_engine.TopicEngine` is one."""

    closed: bool
    stopped: bool

    @property
    def put_buffer(self) -> _PutBuffer:
        """The put buffer, through which messages enter the topic."""
        ...

    @property
    def creation(self) -> _Creation:
        """The creation of its files."""
        ...

    @property
    def log(self) -> _Log:
        """Its log."""
        ...

    @property
    def retention(self) -> _Retention:
        """Its retention, which deletes segments."""
        ...

    def guarded(self, function: Callable[P, object]) -> Callable[P, None]:
        """Return `function` as a callback for the event loop: an exception stops the store."""
        ...

    async def sync(self) -> None:
        """Wait until everything accepted or settled before is on disk."""
        ...

    async def sync_log(self) -> None:
        """Wait until everything accepted before is on disk."""
        ...
