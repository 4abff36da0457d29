"""The owner's last report on a store and its topics, for calls that do not wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiodq.shared.encoding.answers import read_store, read_topic

if TYPE_CHECKING:
    from aiodq.shared.connection.link import Link

__all__ = ["Seen"]


class Seen(dict[str, Mapping[str, Any]]):
    """The report on the store, by the empty name, and on each of its topics, by the topic's name."""

    def __init__(self, link: Link) -> None:
        """Start without a report; `link` leads to the owner."""
        super().__init__()
        self._link = link
        # What is being found, by its identity.
        self._looking: dict[int, dict[str, Mapping[str, Any]]] = {}

    async def look(self, *, anew: bool) -> None:
        """Request a report; see `RemoteStore.look_once`.

        Cancellation: the last report stands.
        """
        found: dict[str, Mapping[str, Any]] = {}
        self._looking[id(found)] = found
        try:
            after, more = "", True
            while more:
                found[""] = page = await self._page(after, stamps=None if anew else True)
                names = page["topics"]
                for name, stamp in zip(names, page.get("stamps") or [None] * len(names), strict=True):
                    facts = self.get(name)
                    if facts is None or stamp is None or facts.get("stamp") != stamp:
                        facts = await self._link.result("stats", read_topic, {"topic": name})
                    if facts is not None:
                        found[name] = facts
                    after = name
                more = page["more"]
        finally:
            del self._looking[id(found)]
        self.clear()
        self.update(found)

    async def look_at_store(self) -> None:
        """Request a report on the store alone."""
        self[""] = await self._page("", stamps=False)

    async def _page(self, after: str, *, stamps: bool | None) -> Mapping[str, Any]:
        """Request the state of the store, with the names of some topics, and their stamps if they are asked for."""
        asked: dict[str, Any] = {"after": after} if stamps is None else {"after": after, "stamps": stamps}
        return await self._link.result("store", read_store, asked)

    def forget(self, topic: str, channel: str = "") -> None:
        """Forget a deleted topic, or a deleted channel, also where it was found by a look that is not over yet."""
        for reports in (self, *self._looking.values()):
            if not channel:
                reports.pop(topic, None)
            elif (facts := reports.get(topic)) is not None:
                facts["channels"].pop(channel, None)
