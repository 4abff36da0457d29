"""What a channel's engine needs of its topic's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.engine.monitoring.activity import Activity
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.engine.transactions.task_transactions import OpenTransactions

__all__ = ["ChannelEngineHost"]

C_contra = TypeVar("C_contra", contravariant=True)
"""The channel's engine."""


class _Expirations(Protocol):
    """See `aiodq.engine.topic.expirations.Expirations`."""

    def in_turn(self, work: Callable[[], None]) -> None: ...


class ChannelEngineHost(Protocol[C_contra]):
    """What a channel engine needs of its topic's engine.

    Attributes:
        visible: the offset up to which channels may deliver.
        waiting: the channels with waiting getters: they are woken when a message is visible.
        activity: which topics may have changed, if somebody asks.
    """

    name: str
    paused: bool
    visible: int
    waiting: dict[Any, None]
    loop: asyncio.AbstractEventLoop
    tail: TailCache
    reader: PrefetchingReader
    reporter: Reporter
    lifetimes: Lifetimes
    transactions: OpenTransactions
    crash_suspects: CrashSuspects
    activity: Activity[Any]

    @property
    def expirations(self) -> _Expirations:
        """The expirations of the topic's messages."""
        ...

    @property
    def pending(self) -> int:
        """The number of messages accepted and not yet visible to channels."""
        ...

    def check(self) -> None:
        """Raise if the store has failed or is closed to this caller."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process than the caller's."""
        ...

    def retry(self) -> None:
        """Retry what could not be created or written."""
        ...

    def acked(self, channel_engine: C_contra) -> None:
        """Note the first ack since the state was last checked."""
        ...

    def awaited(self, channel_engine: C_contra) -> None:
        """Note that a caller waits for settled messages to be durable."""
        ...

    def settled(self, channel_engine: C_contra) -> None:
        """Note that something was settled or requeued that is not on disk yet."""
        ...

    def moved(self, offset: int) -> None:
        """Note that a channel starts to deliver at this offset, or was moved to it."""
        ...

    def write_now(self, channel_engine: C_contra) -> None:
        """Write the channel's unwritten operations, without a sync."""
        ...

    def settled_elsewhere(self, channel_engine: C_contra) -> None:
        """Note that something was settled that is durable though not yet in the channel's journal."""
        ...

    def fail_store(self, error: BaseException) -> None:
        """Stop the store for this reason."""
        ...

    def send_dead_letter(self, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """Put a message into its dead-letter topic and settle it; `done` is called once that is durable, or failed."""
        ...
