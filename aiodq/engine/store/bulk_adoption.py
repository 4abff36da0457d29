"""Adoption of bulk loads written while the store is owned and then committed (`aiodq.storage.bulk.commits`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.engine.loop.futures import settle
from aiodq.engine.monitoring.reporter import STORE
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.errors import AiodqError, CorruptionError, DiskFullError, StoreFailedError, StoreNotFoundError
from aiodq.storage.bulk.adoption import adopt, unadoptable
from aiodq.storage.bulk.commits import finish_commit, read_commits, sweep_left

if TYPE_CHECKING:
    from aiodq.engine.store.whole_store import WholeStore
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.storage.bulk.commits import Commit, CommitKey

__all__ = ["Adopting"]

_INTERVAL: Final = 1.0
_SWEEP_NS: Final = 3600 * 10**9
"""Between two looks for what writers have left that are gone."""
_DAMAGED: Final = (CorruptionError, StoreNotFoundError)


class Adopting:
    """The adoption of bulk loads by one store.

    A damaged commit is left alone until the store is opened again; after any other error the adoption is retried.

    Attributes:
        blocked: commits that are left alone until the store is opened again.
        done: the file names of records that are done, as for `read_commits`.
        owing: topics with parked transactions that could not be created when the store was opened; that is retried.
        turn: a lock, held while commits are looked for and adopted.
    """

    def __init__(self, host: WholeStore) -> None:
        """Adopt for this store; `run` does the work."""
        self._host = host
        self.blocked: set[CommitKey] = set()
        self.done: set[str] = set()
        self.owing: set[str] = set()
        self.turn: asyncio.Lock = asyncio.Lock()
        self._told: set[CommitKey] = set()
        self._damaged: set[str] = set()
        self._swept: int = monotonic_ns(host.clock)
        self._ahead: int = host.clock.now_ns() - self._swept

    async def run(self) -> None:
        """Look for new commits about once a second."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                async with self.turn:
                    await self.look()
                await self._sweep()
            except StoreFailedError:
                return
            except (AiodqError, QueueShutDown):
                continue

    async def look(self) -> None:
        """Adopt what was committed, holding `turn`.

        Raises:
            AiodqError: it cannot be adopted now, and is tried again.
            StoreFailedError: the store has stopped.
        """
        for topic in sorted(self.owing):
            await self._make(self._host.unnamed(topic))
        found = await self._host.threads.call(read_commits, self._host.fs, self._host.path, done=self.done)
        for damage in found.damages:
            if damage.path not in self._damaged:
                self._damaged.add(damage.path)
                self._host.reporter.store_damaged(damage)
        waiting: set[str] = set()
        for commit in found.pending:
            if commit.key in self.blocked or commit.key.name in waiting:
                continue
            try:
                await self._adopt(commit)
            except _DAMAGED:
                self.blocked.add(commit.key)
            except (DiskFullError, StoreFailedError):
                raise
            except AiodqError as error:
                waiting.add(commit.key.name)
                self._tell(commit, error)

    async def _sweep(self) -> None:
        """Remove now and then what killed bulk writers have left, as the store may stay open for long."""
        clock = self._host.clock
        now = monotonic_ns(clock)
        if now - self._swept >= _SWEEP_NS:
            self._swept = now
            # A wall clock that has jumped ahead makes nothing old that a writer at work has staged.
            now_ns = min(clock.now_ns(), now + self._ahead)
            await self._host.threads.call(sweep_left, self._host.fs, self._host.path, now_ns)

    def _warn(self, text: str) -> None:
        self._host.reporter.warn(STORE, text)

    async def _make(self, engine: TopicEngine) -> None:
        """Retry the creation of a topic, which also applies its parked transactions."""
        try:
            await engine.creation.made()
        except StoreFailedError:
            raise
        except AiodqError:
            return
        self.owing.discard(engine.name)

    def _tell(self, commit: Commit, error: AiodqError) -> None:
        """Warn once that a commit has to wait; after a store was closed, its next owner adopts the commit."""
        if self._host.usable and commit.key not in self._told:
            self._told.add(commit.key)
            self._warn(f"the bulk load {commit.key.name!r} waits, and is tried again: {error}")

    async def _adopt(self, commit: Commit) -> None:
        if not commit.bases:
            reasons = await self._host.threads.call(unadoptable, self._host.fs, self._host.path, commit)
            if reasons:
                self.blocked.add(commit.key)
                self._warn(f"the bulk load {commit.key.name!r} cannot be taken over: {reasons[0]}")
                return
        for topic in commit.left:
            await self._host.unnamed(topic).creation.made()
        for topic in commit.left:
            commit = await self._adopt_into(self._host.unnamed(topic), commit, topic)
        await self._host.threads.call(finish_commit, self._host.fs, self._host.path, commit)

    async def _adopt_into(self, engine: TopicEngine, commit: Commit, topic: str) -> Commit:
        """Have a topic adopt its part of a commit.

        Cancellation: it is adopted anyway.
        """
        done: asyncio.Future[Commit] = asyncio.get_running_loop().create_future()

        def work() -> Commit:
            log = engine.real_log()
            engine.reader.forget([log.segments[-1].path])  # the first adopted one takes its name if it is empty
            return adopt(log, self._host.path, commit, topic)

        def finish(adopted: Commit, error: Exception | None) -> None:
            if error is None:
                engine.retention.adopted(engine.visible)
                engine.publisher.adopted()
            settle(done, adopted, error)

        engine.creation.create()
        engine.submit(work, finish)
        return await done
