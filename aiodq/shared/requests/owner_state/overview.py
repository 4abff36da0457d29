"""What an owner tells those who look at its whole store regularly, gathered once for all of them."""

from __future__ import annotations

import asyncio
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

from aiodq.awaited import shielded
from aiodq.engine.stats.active_topics import ActiveTopics
from aiodq.engine.stats.topic_stats import topic_stats
from aiodq.engine.store.health import health
from aiodq.shared.connection.in_turns import in_turns
from aiodq.shared.encoding.stats_json import health_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiodq.engine.store.store_engine import StoreEngine
    from aiodq.stats import TopicStats

    Stamp = tuple[int, int]

__all__ = ["Overview"]

_FRESH: Final = 0.5
"""Seconds in which what was gathered is told again."""

_SHARE: Final = 50
"""Gathering takes at most this fraction of the time, as 1 in so many: with many topics, it is told again for longer."""

_IDLE: Final = 100
"""Topics that are looked at each time though nothing was noted of them, in turn: not every change is, such as that of
their bytes on disk."""


class Overview:
    """The health of a store, and the stamp of each topic, which is another one whenever its statistics are others.

    So a client asks for the statistics of those topics alone that have changed.

    Attributes:
        epoch: the owner's; it is a part of every stamp, as the next owner counts anew.
    """

    def __init__(self, engine: StoreEngine, epoch: int = 0) -> None:
        """Begin with nothing; the epoch may be set before anybody asks."""
        self._engine = engine
        self._active: ActiveTopics | None = None
        self._idle: list[str] = []
        self.epoch: int = epoch
        self._numbers = count()
        # By topic: a hash of its statistics, and the number that they got.
        self._seen: dict[str, tuple[int, int]] = {}
        self._gathering: asyncio.Future[None] | None = None
        self._due = 0.0
        self._health: dict[str, Any] = {}
        self._health_due = 0.0

    async def renew(self) -> None:
        """Gather the stamps, unless that was done a moment ago; in turns of the loop.

        Cancellation: it goes on, as others may wait for it.
        """
        if self._gathering is None:
            if asyncio.get_running_loop().time() < self._due:
                return
            gathering = in_turns(self._gather())
            if not gathering.done():
                self._gathering = gathering
        else:
            gathering = self._gathering
        await shielded(gathering)

    def _gather(self) -> Iterator[None]:
        time = asyncio.get_running_loop().time
        began, topics, looked = time(), self._engine.topics, set[str]()
        if self._active is None:  # if nobody looks, nothing is noted for that
            self._active = ActiveTopics(self._engine.activity, topics.values())
        try:
            for name in chain((each.name for each in self._active.take()), self._next_idle()):
                engine = None if name in looked else topics.get(name)
                if engine is not None and engine.creation.exists:
                    looked.add(name)
                    self.stamp(topic_stats(engine))
                yield
            for name in self._seen.keys() - topics.keys():
                del self._seen[name]
            self._due = _next(began, time())
        finally:
            self._gathering = None

    def _next_idle(self) -> list[str]:
        if not self._idle:
            self._idle = list(self._engine.topics)
        found = self._idle[-_IDLE:]
        del self._idle[-_IDLE:]
        return found

    def end(self) -> None:
        """Look no more."""
        if self._active is not None:
            self._active.end()

    def stamps(self, names: Iterable[str]) -> list[Stamp | None]:
        """Return the stamps of topics, None for one that has none yet."""
        return [(self.epoch, self._seen[name][1]) if name in self._seen else None for name in names]

    def stamp(self, stats: TopicStats) -> Stamp:
        """Return the stamp of a topic's present statistics."""
        seen, now = self._seen.get(stats.name), _hash(stats)
        if seen is None or seen[0] != now:
            seen = self._seen[stats.name] = now, next(self._numbers)
        return self.epoch, seen[1]

    def health(self) -> dict[str, Any]:
        """Return the facts about the store's health, which may be a moment old."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began >= self._health_due:
            self._health = health_facts(health(self._engine))
            self._health_due = _next(began, loop.time())
        return self._health


def _next(began: float, ended: float) -> float:
    """Return when what took so long is to be done again."""
    return began + max(_FRESH, _SHARE * (ended - began))


def _hash(stats: TopicStats) -> int:
    fields = [getattr(stats, name) for name in stats.__dataclass_fields__ if name != "channels"]
    return hash((*fields, *stats.channels.values()))
