"""What handles need of a topic's engine.

There are two implementations: a topic's engine, and its remote substitute if another process owns the store. With these
Protocols, a type checker notices a handle that uses what only one of the two has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from aiodq.engine.batch.draft import Draft
    from aiodq.engine.batch.put_batch import Accepted, PutResult
    from aiodq.engine.queue_errors import QueueShutDown
    from aiodq.format.columns import Columns
    from aiodq.format.layout import BytesLike
    from aiodq.options import StoreOptions

__all__ = ["OpenTopic", "PutAtOnce", "PutBuffering"]


class PutAtOnce(Protocol):
    """The fast paths of a put: `aiodq.engine.topic.commit.group_commit.GroupCommit` has them.

    Attributes:
        inline: whether `put_now` may have an offset; it is not called otherwise.
        lone: whether `put_lone` may have a future; it is not called otherwise.
    """

    inline: bool
    lone: bool

    @property
    def accept(self) -> Callable[[object], asyncio.Future[int] | None]:
        """Accepts a plain message; None if it has to take the slow path, if only for its error."""
        ...

    def accept_nowait(self, body: object, /) -> PutResult | None:
        """Do as `accept`, for a caller that need not wait."""
        ...

    def put_now(self, body: object, /, *, gave_way: bool = False) -> int:
        """Write a message at once; return its offset, or `NOT_NOW` or `GIVE_WAY`."""
        ...

    def put_lone(self, body: object, /) -> asyncio.Future[int] | None:
        """Write a message at once and start its sync; the future gives its offset. None if that is not possible now."""
        ...

    def put_labelled_now(self, message: Accepted, body: bytes, /, *, gave_way: bool = False) -> int:
        """Do as `put_now` for a message that has more than a body; may be called at any time."""
        ...

    def put_lone_labelled(self, message: Accepted, body: bytes, /) -> asyncio.Future[int] | None:
        """Do as `put_lone` for a message that has more than a body; may be called at any time."""
        ...

    def put_many_now(self, columns: Columns, cost: int, /, *, gave_way: bool = False) -> int:
        """Write messages at once, all or none; return the first offset, or `NOT_NOW` or `GIVE_WAY`."""
        ...


class PutBuffering(Protocol):
    """The slow path of a put: `aiodq.engine.topic.puts.put_buffer.PutBuffer` has it.

    Attributes:
        shut: whether no more is accepted.
    """

    shut: bool

    def body(self, body: BytesLike) -> bytes:
        """Return the body as bytes, checked."""
        ...

    def accepted(self, draft: Draft) -> Accepted:
        """Return what is to be stored of a draft besides its body."""
        ...

    def moment(self) -> Callable[[], int]:
        """Return a function that reads the wall time once and repeats it."""
        ...

    def accepted_columns(self, items: list[Any], shared: Accepted, now_ns: Callable[[], int]) -> tuple[Columns, int]:
        """Return several messages as they are stored, and their cost in bytes of memory."""
        ...

    def accept_nowait(self, message: Accepted, body: bytes) -> PutResult:
        """Accept a message for a caller that does not wait."""
        ...

    async def enter_one(self, message: Accepted, body: bytes) -> asyncio.Future[int]:
        """Accept a message as soon as there is room; the future gives its offset."""
        ...

    async def enter_columns(self, columns: Columns, cost: int) -> asyncio.Future[range]:
        """Accept messages that are stored all or none as soon as there is room; the future gives their offsets."""
        ...

    def withdrawn(self) -> None:
        """Note that a put that waits was cancelled."""
        ...

    def full(self) -> bool:
        """Return whether a put would have to wait or be refused now."""
        ...

    def shut_down(self, over: QueueShutDown | None = None) -> None:
        """Accept no more, and fail the puts that wait for room."""
        ...


class _Log(Protocol):
    """Where a log begins and ends."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def durable(self) -> int: ...


class OpenTopic(Protocol):
    """A topic as its handles, and those of its channels, use it: `aiodq.engine.topic.topic_engine.TopicEngine` is one.

    Attributes:
        name: the topic's name.
        options: the options in effect.
        loop: the store's event loop.
    """

    name: str
    options: StoreOptions
    loop: asyncio.AbstractEventLoop

    @property
    def group_commit(self) -> PutAtOnce:
        """The fast paths of a put."""
        ...

    @property
    def put_buffer(self) -> PutBuffering:
        """The slow path of a put."""
        ...

    @property
    def log(self) -> _Log:
        """Its log, or what is known of it."""
        ...

    @property
    def visible(self) -> int:
        """The offset up to which channels may deliver."""
        ...

    @property
    def pending(self) -> int:
        """The number of messages accepted and not yet visible to channels."""
        ...

    @property
    def channel_engines(self) -> Mapping[str, object]:
        """Its channels, by name."""
        ...

    @property
    def store(self) -> str:
        """The store's directory."""
        ...

    @property
    def standing(self) -> str:
        """The state of the topic, as one word."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    @property
    def check_context(self) -> Callable[[], None]:
        """Raises if the store belongs to another loop or process than the caller's."""
        ...

    def catch_up(self) -> None:
        """Make what was accepted visible to channels, as far as that is possible at once."""
        ...
