"""What the engine of a topic needs of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiodq.clock import Clock
    from aiodq.engine.channel.dead_lettering.crash_suspects import CrashSuspects
    from aiodq.engine.channel.dead_lettering.dead_letters import DeadLetter
    from aiodq.engine.loop.home_loop import HomeLoop
    from aiodq.engine.loop.loop_turns import LoopTurns
    from aiodq.engine.loop.sync_backend import SyncBackend
    from aiodq.engine.loop.ticker import Ticks
    from aiodq.engine.loop.worker_threads import WorkerThreads
    from aiodq.engine.monitoring.activity import Activity
    from aiodq.engine.monitoring.metrics import StoreMetrics
    from aiodq.engine.monitoring.reporter import Reporter
    from aiodq.engine.transactions.task_transactions import OpenTransactions
    from aiodq.options import StoreOptions
    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.state.topic.stored_options import StoredOptions

__all__ = ["TopicEngineHost"]


class TopicEngineHost(Protocol):
    """What the engine of a topic needs of its store: `aiodq.engine.store.store_engine.StoreEngine` has it.

    Attributes:
        clock, threads, syncs, reporter: those of the store.
        loop, home: the event loop, and a cheap check for running on it.
        turns, ticks: when a task that never waits has to yield, and when each topic ticks.
        usable: whether the store has not failed, is not closing, and is not in a forked child.
        given: the options that `open` was given, or None.
        keeps: whether nothing is deleted from a topic without options on disk: the defaults do not apply to it.
        reclaiming: whether messages in flight under an earlier owner may still be claimed.
        activity: which topics may have changed, if somebody asks.
    """

    clock: Clock
    threads: WorkerThreads
    syncs: SyncBackend
    loop: asyncio.AbstractEventLoop
    home: HomeLoop
    turns: LoopTurns
    ticks: Ticks
    reporter: Reporter
    transactions: OpenTransactions
    crash_suspects: CrashSuspects
    metrics: StoreMetrics
    given: StoreOptions | None
    keeps: bool
    reclaiming: bool
    activity: Activity[Any]

    @property
    def path(self) -> str:
        """The store's directory."""
        ...

    @property
    def usable(self) -> bool:
        """Whether messages may be put."""
        ...

    @property
    def standing(self) -> str:
        """The store's state, as one word."""
        ...

    def fs_of(self, *names: str) -> FileSystem:
        """Return the file system of a topic, or of a channel of it: in memory if one of the names is ephemeral."""
        ...

    def check(self) -> None:
        """Raise if the store has failed, is closed, or belongs to another loop or process."""
        ...

    def check_context(self) -> None:
        """Raise if the store belongs to another loop or process."""
        ...

    def make_log(self, name: str, record: StoredOptions) -> TopicLog:
        """Create a topic's files, and store its options in them. Blocking."""
        ...

    def send_dead_letter(self, origin: object, letter: DeadLetter, done: Callable[[Exception | None], None]) -> None:
        """Put a dead letter into its topic and settle its message, in one transaction, and report the outcome.

        Args:
            origin: the engine of the message's topic, which fails if it is about to be deleted.
            letter: the dead letter.
            done: called once it is durable, or failed.
        """
        ...

    def without_transactions(self, topic: str = "") -> AbstractAsyncContextManager[None]:
        """Return a block in which no transaction commits; those committed before it are in their topics.

        Args:
            topic: the topic that the block waits for, if any: it begins once no deletion of that name is under way.
        """
        ...

    def fail(self, error: BaseException) -> None:
        """Stop the whole store for this reason."""
        ...
