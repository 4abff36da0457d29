"""A shared store, as its users hold it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import Final

from aiodq.by_name import STORE_TOPIC, known_as
from aiodq.consuming.handlers import checked_choice, chooses
from aiodq.engine.graceful_stop import stop_channels
from aiodq.engine.loop.futures import to_its_end
from aiodq.engine.monitoring.events import Events
from aiodq.errors import (
    OwnerLostError,
    OwnerStalledError,
    StorageError,
    StoreFailedError,
    WrongContextError,
)
from aiodq.message import Message
from aiodq.names import check_name, check_topic_name
from aiodq.options import StoreOptions, check_store_options
from aiodq.requeue import AT_ONCE
from aiodq.shared.client.remote_store import RemoteStore
from aiodq.shared.encoding.answers import (
    read_backup,
    read_flag,
    read_letters,
    read_name,
    read_number,
    understood,
)
from aiodq.shared.encoding.stats_json import read_health, read_topic_stats
from aiodq.shared.handles.changes import numbered
from aiodq.shared.handles.shared_queue import SharedQueue
from aiodq.shared.handles.shared_topic import SharedTopic
from aiodq.stats import BackupReport, Health, StoreStats
from aiodq.storage.state.topic.topic_meta import read_meta
from aiodq.storage.store_layout import absolute_path
from aiodq.store import Store, StoreHandle
from aiodq.values import check_whole, span_seconds

__all__ = ["SharedStore"]

_NO_OFFSET: Final = (1 << 63) - 1
"""Greater than any offset."""


def _which(store: RemoteStore, topic: str) -> Mapping[str, str]:
    """Return what tells a topic from another one of its name, if that can be read. Blocking."""
    with suppress(StorageError):
        meta = read_meta(store.fs, os.path.join(store.path, topic))
        return {} if meta is None else {"uuid": str(meta.uuid)}
    return {}


@known_as("Store")
class SharedStore(Store):
    """A shared store. Made by `aiodq.open` in mode "shared" and "client"."""

    _queue_class = SharedQueue

    def __init__(self, store: RemoteStore) -> None:
        """Made by `aiodq.open`."""
        # Not `super()`: that needs a store's engine.
        StoreHandle.__init__(self, store)
        self._remote = store

    @STORE_TOPIC
    def topic(self, name: str, options: StoreOptions | None = None) -> SharedTopic:
        """See `Store.topic`. If the owner uses other options, the first use raises."""
        name = check_topic_name(name, self._remote.topics)
        check_store_options(options, f"store.topic({name!r}, {{}})")
        self._remote.check()
        return SharedTopic(self._remote, self._remote.topic(name, options))

    def topics(self) -> list[str]:
        """See `Store.topics`."""
        return self._remote.topic_names()

    async def delete_topic(self, name: str) -> None:
        """See `Store.delete_topic`."""
        name = check_name(name)
        self._remote.check()
        await to_its_end(self._delete(name))

    async def _delete(self, name: str) -> None:
        again = await self._remote.threads.call(_which, self._remote, name)
        link, known = self._remote.link, self._remote.topics.get(name)
        with link.opened.left_out(name, "", link.open_left):
            try:
                await link.call("delete_topic", numbered({"topic": name}), again=again)
            except (OwnerLostError, OwnerStalledError, StoreFailedError):
                raise
            except StorageError:
                # The owner has ended it nevertheless: naming it again raises what is left of it.
                self._remote.forget(name, known)
                raise
            anew = self._remote.forget(name, known)
        if anew is not None:
            await anew.look_whether_deleted()

    async def requeue_dead(
        self, topic: str, *, where: Callable[[Message], bool] | None = None, limit: int | None = None
    ) -> int:
        """See `Store.requeue_dead`. If the owner changes meanwhile, earlier transactions stand."""
        if limit is not None:
            check_whole("limit", limit, least=0, example=100)
        checked_choice(where)
        topic = check_topic_name(topic, self._remote.topics)
        self._remote.check()
        if self._remote.transactions.current() is not None:
            raise WrongContextError("this task is in a transaction of this store, and requeue_dead has its own")
        if where is not None:
            return await self._requeue_chosen(topic, where, limit)
        # It may take long until it is known which letters others hold: a call waits for it that may be repeated.
        await self._remote.link.call("letters", {"topic": topic, "from": _NO_OFFSET})
        asked = {"topic": topic, "limit": limit}
        return await self._remote.link.result("requeue_dead", read_number, asked, once=True)

    async def _requeue_chosen(self, topic: str, where: Callable[[Message], bool], limit: int | None) -> int:
        """Read the dead letters here, and have the owner requeue the chosen ones."""
        moved = 0
        first: int | None = 0
        while first is not None:
            offsets, first = await self._remote.link.result("letters", read_letters, {"topic": topic, "from": first})
            chosen: list[int] = []
            for letter in await self._letters(topic, offsets):
                if limit is not None and moved + len(chosen) >= limit:
                    first = None
                    break
                if chooses(where, letter):
                    chosen.append(letter.offset)
                if len(chosen) == AT_ONCE:
                    moved += await self._put_back(topic, chosen)
                    chosen = []
            moved += await self._put_back(topic, chosen)
        return moved

    async def _letters(self, topic: str, offsets: Sequence[int]) -> list[Message]:
        if not offsets:
            return []
        wanted = set(offsets)
        return [each async for each in self.topic(topic).scan(offsets[0], offsets[-1] + 1) if each.offset in wanted]

    async def _put_back(self, topic: str, offsets: Sequence[int]) -> int:
        if not offsets:
            return 0
        asked = {"topic": topic, "offsets": offsets}
        return await self._remote.link.result("requeue_these", read_number, asked, once=True)

    def events(self) -> Events:
        """See `Store.events`. During a change of owners, some may be reported twice or not at all.

        As long as no owner answers, there are no events, and no error; `health` shows that.
        """
        self._remote.check_context()
        return self._remote.events.listen()

    def health(self) -> Health:
        """See `Store.health`; up to about a second old. Closed, or without an owner that answers, it is not healthy."""
        found = understood(lambda seen: read_health(seen["health"]), self._remote.report.store, "store")
        standing = self._remote.standing
        reason = self._remote.link.unserved if standing == "open" else f"the store is {standing}"
        return found if reason is None else replace(found, ok=False, reasons=(*found.reasons, reason))

    def stats(self) -> StoreStats:
        """See `Store.stats`; up to about a second old, or fifty times as long as it takes to ask for every topic."""
        report = self._remote.report
        topics = {name: read_topic_stats(each) for name, each in sorted(report.topics.items())}
        there = set(self.topics())
        topics |= {name: topic.stats() for name, topic in self._remote.topics.items() if name in there}
        failed, committed, syncs = understood(
            # An older owner syncs by threads and does not report that.
            lambda own: (own["failed"], read_number(own["transactions"]), read_name(own.get("sync_backend", "thread"))),
            report.store,
            "store",
        )
        return StoreStats(self.path, failed, topics, committed, syncs)

    async def backup(self, path: str | PathLike[str]) -> BackupReport:
        """See `Store.backup`. If the owner ends meanwhile, `OwnerLostError`: there is a complete backup, or none."""
        target = absolute_path(path)
        self._remote.check()
        return await self._remote.link.result("backup", read_backup, {"path": target}, once=True, waits=True)

    async def drain(self, timeout: float | timedelta | None = None) -> bool:
        """See `Store.drain`. Puts of all processes are refused as long as the store has its present owner."""
        wait = None if timeout is None else span_seconds("timeout", timeout, past=True)
        self._remote.check()
        try:
            async with asyncio.timeout(wait):
                await to_its_end(self._begin_to_drain())
                return await self._remote.link.result("drain", read_flag, {"timeout": wait}, waits=True)
        except TimeoutError:
            return False

    async def _begin_to_drain(self) -> None:
        """Have all processes refuse puts: even if its caller waits no longer, for want of time."""
        await self._remote.shut_puts()
        await self._remote.link.result("drain", read_flag, {"timeout": 0})

    async def stop(self, grace: float | timedelta = 10.0) -> None:
        """See `Store.stop`: the deliveries to this process end, and it leaves the store to the others."""
        wait = span_seconds("grace", grace)
        self._remote.check_context()
        channels = [channel for topic in self._remote.topics.values() for channel in topic.channel_engines.values()]
        await stop_channels(channels, wait, self._remote.close)

    async def aclose(self) -> None:
        """See `Store.aclose`: this process leaves the store to the others."""
        await self._remote.close()
