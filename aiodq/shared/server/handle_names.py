"""Which handles of one client are of which topic or channel, by name: without a look at all that it has open."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HandleNames"]


class HandleNames:
    """The handles of one client by the names of their topics and channels."""

    def __init__(self) -> None:
        """Start without handles."""
        # Several topics of one name have handles, if all but one are deleted. Dictionaries keep the order of opening.
        self._names: dict[int, tuple[str, str]] = {}
        self._topics: dict[str, dict[int, None]] = {}
        self._channels: dict[str, dict[str, dict[int, None]]] = {}

    def add(self, handle: int, topic: str, channel: str = "") -> None:
        """Add a handle of a topic, or of a channel of it."""
        self._names[handle] = topic, channel
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})[handle] = None
        else:
            self._topics.setdefault(topic, {})[handle] = None

    def remove(self, handle: int) -> None:
        """Forget a handle."""
        topic, channel = self._names.pop(handle)
        if not channel:
            del self._topics[topic][handle]
            if not self._topics[topic]:
                del self._topics[topic]
            return
        channels = self._channels[topic]
        del channels[channel][handle]
        if not channels[channel]:
            del channels[channel]
            if not channels:
                del self._channels[topic]

    def of_topics(self, topics: Iterable[str]) -> list[int]:
        """Return the handles of topics by their names, without those of their channels."""
        return [handle for topic in topics for handle in self._topics.get(topic, ())]

    def of_channels(self, topics: Iterable[str], channel: str = "") -> list[int]:
        """Return the handles of channels of topics: of one by its name, or of all."""
        found = (self._channels.get(topic, {}) for topic in topics)
        if channel:
            return [handle for channels in found for handle in channels.get(channel, ())]
        return [handle for channels in found for named in channels.values() for handle in named]
