"""Backups of an open store: what is copied when, so that the copy shows all topics at one moment.

1. New adoptions and transactions are held back, and those in progress end: none is copied by half.
2. For each topic, accepted messages and acks are written, and its description and journals are read. From here on
   its segment files stay, even if they are no longer needed.
3. In one step of the loop, the end of each log is noted: this is the moment. Transactions and adoptions go on.
4. What was read is written into the backup, whose disk may be slow or hang: only what exceeds 16 MiB was before. The
   segments are copied up to those ends, while others put and ack.

So nothing that was put or settled before the backup began is missing. Messages settled during steps 2 and 3 may be
delivered once more from the backup; messages that were put because of those are in it, too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiodq.awaited import mark_retrieved, shielded, twice
from aiodq.engine.loop.futures import settle
from aiodq.engine.queue_errors import QueueShutDown
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import AiodqError, again
from aiodq.names import is_ephemeral
from aiodq.stats import BackupReport
from aiodq.storage.backup import Backup, LogCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from aiodq.engine.store.bulk_adoption import Adopting
    from aiodq.engine.store.whole_store import WholeStore
    from aiodq.engine.topic.topic_engine import TopicEngine
    from aiodq.storage.bulk.commits import Commit

__all__ = ["Backups"]

T = TypeVar("T")

_AT_ONCE: Final = 4
"""Threads that read small files, and sync, at the same time: half of a store's are left to what is put and acked."""


class Backups:
    """The backups of one store that are in progress."""

    def __init__(self, host: WholeStore, adopting: Adopting) -> None:
        """Start with none; `adopting` adopts bulk loads."""
        self._host = host
        self._adopting = adopting
        self._running: dict[asyncio.Task[BackupReport], _Making] = {}

    async def make(self, target: str) -> BackupReport:
        """Make a backup. See `aiodq.Store.backup`.

        Cancellation: it is aborted, and its files are removed; a backup that is complete by then stays.
        """
        making = _Making(self._host, self._adopting, target)
        task = self._host.loop.create_task(making.run())
        self._running[task] = making
        twice(task.add_done_callback, self._ended)
        try:
            return await shielded(task)
        except asyncio.CancelledError:
            making.give_up(QueueShutDown("the caller of this backup was cancelled"))
            raise

    def _ended(self, task: asyncio.Task[BackupReport]) -> None:
        self._running.pop(task, None)
        mark_retrieved(task)  # its caller may no longer wait for the error

    async def have(self, engine: TopicEngine) -> None:
        """Wait for the backups that include a topic: its files must stay until then."""
        while tasks := [task for task, making in self._running.items() if engine in making.kept]:
            await asyncio.wait(tasks)

    def fail(self, error: Exception) -> None:
        """Abort all of them, for this reason."""
        for making in self._running.values():
            making.give_up(error)

    async def end(self) -> None:
        """Abort all of them, and wait for that."""
        self.fail(QueueShutDown("the store is closed"))
        if self._running:
            await asyncio.wait(list(self._running))


class _Making:
    """One backup.

    Attributes:
        kept: the topics whose files stay for it.
    """

    def __init__(self, host: WholeStore, adopting: Adopting, target: str) -> None:
        self.kept: dict[TopicEngine, None] = {}
        self._host = host
        self._adopting = adopting
        self._backup = Backup(host.fs, host.path, target, self._check)
        self._over: Exception | None = None

    def give_up(self, error: Exception) -> None:
        """End it with this error, unless it has one."""
        self._over = self._over or error

    def _check(self) -> None:
        if self._over is not None:
            raise again(self._over)

    async def run(self) -> BackupReport:
        """Make it."""
        backup = self._backup
        try:
            await self._in_thread(backup.begin)
            logs = await self._note()
            await self._in_thread(backup.write_taken)
            for log in logs:
                await self._in_thread(partial(backup.copy_log, log))
            await self._in_thread(backup.copied)
            await _all(self._in_thread(backup.sync_some) for _ in range(_AT_ONCE))
            await self._in_thread(backup.finish)
        except BaseException:
            self.give_up(QueueShutDown("the event loop has ended"))
            try:
                await self._in_thread(backup.discard)
            except AiodqError:
                backup.discard()  # no thread does it any more: the loop is ending, and the store with it
            raise
        finally:
            for engine in self.kept:
                engine.segment_deletion.release_files()
        return BackupReport(backup.target, len(logs), sum(log.messages for log in logs), backup.bytes)

    async def _note(self) -> list[LogCopy]:
        """Take all but the logs, and note those at one moment."""
        async with self._adopting.turn:
            with suppress(AiodqError):  # what cannot be adopted now is copied as it is
                await self._adopting.look()
            async with self._host.without_transactions():
                logs, pending = await self._note_at_rest()
            if pending:
                await self._in_thread(partial(self._backup.copy_staged, pending))
        return logs

    async def _note_at_rest(self) -> tuple[list[LogCopy], Sequence[Commit]]:
        pending = await self._in_thread(self._backup.take_store_files)
        while new := [engine for engine in self._topics() if engine not in self.kept]:
            for engine in new:
                engine.segment_deletion.keep_files()
                self.kept[engine] = None
            await self._take_small_files(new)
        # INVARIANT: no await from the last look at the topics on, so that all logs are those of one moment. A topic
        # whose deletion was asked for meanwhile waits for this backup, and is in it.
        there = [engine for engine in self.kept if not isinstance(engine.log, NoLog)]
        return [LogCopy.of(each.name, each.real_log(), each.segment_deletion.undeleted) for each in there], pending

    def _topics(self) -> list[TopicEngine]:
        """Return the topics that are on disk, or about to be.

        One that waits for the deletion of another of its name is not: nothing of it is stored before that is over.

        Raises:
            StorageError: one cannot be used.
        """
        found: list[TopicEngine] = []
        for engine in self._host.topics.values():
            if engine.unusable is not None:
                raise again(engine.unusable) from engine.unusable
            waits = self._host.deletions.under_way(engine.name) is not None
            if engine.creation.exists and not waits and not is_ephemeral(engine.name):
                found.append(engine)
        return found

    async def _take_small_files(self, engines: Sequence[TopicEngine]) -> None:
        left = iter(engines)
        await _all(self._take_each(left) for _ in range(_AT_ONCE))

    async def _take_each(self, engines: Iterator[TopicEngine]) -> None:
        for engine in engines:
            self._check()
            # Messages for which the disk has no room are not in the store either: they were never acknowledged.
            with suppress(AiodqError):
                await engine.operate(lambda: None)
            if isinstance(engine.log, NoLog):
                continue  # its files could not be made
            # In its turn, after what was settled before is written.
            await engine.persist(partial(self._backup.take_topic_files, engine.name))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do this in a thread. If cancelled, tell the thread to end, and wait for it."""
        done: asyncio.Future[T] = self._host.loop.create_future()
        self._host.threads.start(work, partial(settle, done))
        try:
            return await shielded(done)
        except asyncio.CancelledError:
            self.give_up(QueueShutDown("the event loop has ended"))
            await asyncio.wait([done])
            mark_retrieved(done)
            raise


async def _all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, also if one fails; then raise its error."""
    for error in await asyncio.gather(*parts, return_exceptions=True):
        if error is not None:
            raise error
