"""The topics and channels that one process has opened, and that every later owner has to open again."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from aiodq.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from aiodq.shared.connection.opened.listener import Listener

__all__ = ["Opened", "Reopening"]


class Opened(NamedTuple):
    """A topic or channel that was opened."""

    listener: Listener
    options: Mapping[str, Any]


class Reopening(dict[tuple[str, str], Opened]):
    """What is opened, by the names of the topic and the channel; the channel's is empty for the topic itself."""

    def __init__(self) -> None:
        """Start with nothing that is opened."""
        super().__init__()
        self._left_out: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def left_out(self, topic: str, channel: str, then: Callable[[], None]) -> Iterator[None]:
        """Have no owner open a channel, or a topic with all of its channels, while the block deletes it.

        An owner that finds it deleted, as the previous one did that and ended, would make it anew. At the end,
        `then` opens what is still to be opened, as the deletion failed.
        """
        key = topic, channel
        self._left_out[key] += 1
        try:
            yield
        finally:
            self._left_out[key] -= 1
            self._left_out += Counter()  # without those that are 0
            then()

    def unopened(self, handles: Container[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return what the owner is to open, and has not been asked to."""
        left = self._left_out
        return [key for key in self if key not in handles and not (left and (key in left or (key[0], "") in left))]

    def tell(self, error: Exception) -> None:
        """Tell all listeners why nothing can be asked now."""
        for opened in list(self.values()):
            opened.listener.fail_waiters(copy(error))

    def name(self, topic: str, channel: str, options: Mapping[str, Any]) -> None:
        """Have every later owner open a topic or channel with these options."""
        opened = self.get((topic, channel))
        if opened is not None:
            self[topic, channel] = opened._replace(options=options)

    def stored(self, topic: str, channel: str, options: Mapping[str, Any]) -> None:
        """Have later owners open a channel with its options on disk, where these are now, and others may change them.

        Options that are only in memory, such as a topic's for its owner, are sent to every later owner.
        """
        opened = self.get((topic, channel))
        if channel and _lasts(topic, channel) and opened is not None and opened.options == options:
            self[topic, channel] = opened._replace(options={})

    def changed(self, topic: str, channel: str, options: Mapping[str, Any]) -> None:
        """Have later owners open an ephemeral topic or channel with its options: no owner finds these on disk.

        If this process has named none, those that a process names to a later owner replace them.
        """
        opened = self.get((topic, channel))
        if opened is not None and not _lasts(topic, channel):
            named = opened.options and "recalled" not in opened.options
            self[topic, channel] = opened._replace(options=options if named else {**options, "recalled": True})

    def drop(self, topic: str, channel: str, listener: Listener) -> bool:
        """Have no later owner open what `listener` knows is deleted or refused; leave one that replaced it.

        Returns:
            Whether it was there.
        """
        there = self.has(topic, channel, listener)
        if there:
            del self[topic, channel]
        return there

    def has(self, topic: str, channel: str, listener: Listener) -> bool:
        """Return whether every later owner opens it for `listener`."""
        opened = self.get((topic, channel))
        return opened is not None and opened.listener is listener


def _lasts(topic: str, channel: str) -> bool:
    """Return whether a channel's options are kept on disk."""
    return not is_ephemeral(topic) and not is_ephemeral(channel)
