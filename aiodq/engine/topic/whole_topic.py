"""The topic's engine as its parts see it: they are layered below it, so they declare what they need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from aiodq.clock import Clock
    from aiodq.engine.channel.channel_core import ChannelCore
    from aiodq.engine.channel.channel_engine import ChannelEngine
    from aiodq.engine.lifetimes import Lifetimes
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.reading.tail_cache import TailCache
    from aiodq.engine.topic.no_log import NoLog
    from aiodq.options import StoreOptions
    from aiodq.storage.log.topic_log import LogOptions, TopicLog
    from aiodq.storage.read.log_reader import LogView

__all__ = ["WholeTopic"]

P = ParamSpec("P")
T = TypeVar("T")


class _PutBuffer(Protocol):
    """See `aiodq.engine.topic.puts.put_buffer.PutBuffer`."""

    @property
    def lacks_bytes(self) -> bool: ...

    def freed(self, *, even_if_full: bool = False) -> None: ...


class _GroupCommit(Protocol):
    """See `aiodq.engine.topic.commit.group_commit.GroupCommit`."""

    def stop_inline(self) -> None: ...

    def hinder(self) -> None: ...


class WholeTopic(Protocol):
    """What any part may need of its topic: `aiodq.engine.topic.topic_engine.TopicEngine`, which describes each item.

    A part that needs more extends this in a Protocol of its own.
    """

    name: str
    options: StoreOptions
    log: TopicLog | NoLog
    visible: int
    serial: int
    taken: int
    submitted: int
    durably: bool
    tick_scheduled: bool
    stopped: bool
    waiting: dict[ChannelEngine[Any], None]
    tail: TailCache
    clock: Clock
    loop: asyncio.AbstractEventLoop
    lifetimes: Lifetimes
    reporter: Reporter
    metrics: StoreMetrics
    reader: PrefetchingReader

    @property
    def channel_engines(self) -> Mapping[str, ChannelEngine[Any]]:
        """Its channels, by name."""
        ...

    @property
    def put_buffer(self) -> _PutBuffer:
        """The put buffer, where puts wait for room."""
        ...

    @property
    def group_commit(self) -> _GroupCommit:
        """The group commit that writes its messages."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    def view(self) -> LogView:
        """Return the log as far as channels may see it."""
        ...

    def real_log(self) -> TopicLog:
        """Return the log, for work on its files."""
        ...

    def guarded(self, function: Callable[P, object]) -> Callable[P, None]:
        """Return `function` as a callback for the event loop, called once: an exception stops the store."""
        ...

    def opened(self, *, ready: bool = False) -> None:
        """Note that the open batch is no longer empty."""
        ...

    def submit(
        self, work: Callable[[], T], finish: Callable[[T, Exception | None], None], after: int | None = None
    ) -> None:
        """Do `work` with the log at rest; `finish` gets the result, or an error in place of one."""
        ...

    async def operate(self, work: Callable[[], T]) -> T:
        """Do `work` with the log at rest, everything accepted before being durable."""
        ...

    async def settle_in(self, channel: str | None = None) -> None:
        """Wait until new channels and options are on disk."""
        ...

    def created(self, log: TopicLog) -> None:
        """Take over the topic's new files."""
        ...

    def refuse(self, error: Exception) -> None:
        """Refuse what was accepted and is not written yet."""
        ...

    def configure(self, options: StoreOptions, log: LogOptions) -> None:
        """Apply other options."""
        ...

    def settled(self, channel_engine: ChannelCore) -> None:
        """Note that something in a channel was settled."""
        ...

    def retain_soon(self) -> None:
        """Look for segments to delete as soon as nothing else is under way."""
        ...

    def retain_if_idle(self) -> bool:
        """Look for segments to delete unless a thread is changing their list; return whether that was done."""
        ...

    def schedule_tick(self) -> None:
        """Note a change that the next tick has to look at."""
        ...

    def turn(self) -> None:
        """Take a turn of the ioLoop at once; not to be called within one."""
        ...
