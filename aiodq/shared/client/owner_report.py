"""What the owner has last reported of a shared store and its topics, for calls that do not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiodq.shared.encoding.answers import read_store, read_topic

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from aiodq.shared.connection.link import Link

__all__ = ["OwnerReport"]

_LOOK: Final = 1.0
_SHARE: Final = 50
"""Seconds between two requests of the store's state, or of its topics'; each takes at most one part in `_SHARE` of the
time."""


class OwnerReport:
    """The owner's last report.

    Attributes:
        pause: the seconds until `renew` is to be called again.
        store: the state of the store; empty before the first report.
        topics: the statistics of its topics, by name.
    """

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        """Start without a report."""
        self.pause: float = _LOOK
        self.store: Mapping[str, Any] = {}
        self.topics: dict[str, Mapping[str, Any]] = {}
        self._link = link
        self._loop = loop
        self._topics_at = 0.0
        # The topics that are being found, by the identity of the look.
        self._looking: dict[int, dict[str, Mapping[str, Any]]] = {}

    async def renew(self) -> None:
        """Request what may have changed: the state of the store, and that of its topics if it is time.

        Raises:
            AiodqError: as `look_once`.
        """
        began = self._loop.time()
        if began < self._topics_at:
            self.store = await self._page("", stamps=False)
            self.pause = max(_LOOK, _SHARE * (self._loop.time() - began))
        else:
            await self.look_once(anew=False)
            self.pause = _LOOK
            self._topics_at = self._loop.time() + _SHARE * (self._loop.time() - began)

    async def look_once(self, *, anew: bool = True) -> None:
        """Request the whole report.

        Args:
            anew: whether everything is as of now; otherwise it may be a moment old, and what is known is not asked for.

        Raises:
            AiodqError: there is no owner to ask.

        Cancellation: the last report stands.
        """
        topics: dict[str, Mapping[str, Any]] = {}
        self._looking[id(topics)] = topics
        try:
            self.store = await self._find(topics, anew=anew)
        finally:
            del self._looking[id(topics)]
        self.topics = topics

    async def _find(self, topics: dict[str, Mapping[str, Any]], *, anew: bool) -> Mapping[str, Any]:
        """Request the statistics of all topics, and return the state of the store."""
        after, more = "", True
        while more:
            found = await self._page(after, stamps=None if anew else True)
            names = found["topics"]
            for name, stamp in zip(names, found.get("stamps") or [None] * len(names), strict=True):
                facts = self.topics.get(name)
                if facts is None or stamp is None or facts.get("stamp") != stamp:
                    await self._find_topic(name, topics)
                else:
                    topics[name] = facts
                after = name
            more = found["more"]
        return found

    async def _find_topic(self, name: str, topics: dict[str, Mapping[str, Any]]) -> None:
        """Request the statistics of a topic, if there is one, some of its channels at a time."""
        after, more = "", True
        while more:
            page = await self._link.result("stats", read_topic, {"topic": name, "after": after})
            if page is None or (after and name not in topics):
                topics.pop(name, None)
                return  # it was deleted meanwhile; if there is another one, the next look finds that
            # Found from its first page on: a channel that is deleted meanwhile is to be forgotten there.
            topics.setdefault(name, page)["channels"].update(page["channels"])
            after, more = max(page["channels"], default=""), page.get("more", False)

    async def _page(self, after: str, *, stamps: bool | None) -> Mapping[str, Any]:
        """Request the state of the store, with the names of some topics, and their stamps if they are asked for."""
        asked: dict[str, Any] = {"after": after} if stamps is None else {"after": after, "stamps": stamps}
        return await self._link.result("store", read_store, asked)

    def channel(self, topic: str, name: str) -> Mapping[str, Any] | None:
        """Return the statistics of a channel; None if they are not known."""
        facts: Mapping[str, Any] | None = self.topics.get(topic, {}).get("channels", {}).get(name)
        return facts

    def forget_topic(self, name: str) -> None:
        """Forget a deleted topic, also where it was found by a look that is not over yet."""
        for topics in (self.topics, *self._looking.values()):
            topics.pop(name, None)

    def forget_channel(self, topic: str, name: str) -> None:
        """Forget a deleted channel, as `forget_topic` does."""
        for topics in (self.topics, *self._looking.values()):
            facts = topics.get(topic)
            if facts is not None:
                facts["channels"].pop(name, None)
