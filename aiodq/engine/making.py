"""Making a topic's files and its channels: where that fails, what waits for it is refused, and it is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.unborn import UnbornLog
from aiodq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.engine.ioloop import IoLoop
    from aiodq.storage.log import TopicLog

__all__ = ["Making"]


class Making:
    """One per topic.

    A put that returned while a channel was not there yet would be lost to it, as what every other channel has consumed
    may be deleted: so no put returns before all channels are there.

    Attributes:
        exists: the topic has files, or they are being made.
        error: why that failed last.
    """

    def __init__(self, ioloop: IoLoop, make_log: Callable[[], TopicLog], *, exists: bool) -> None:
        """Make what is missing of this topic; `make_log` makes its files."""
        self.exists: bool = exists
        self.error: Exception = StorageError("the topic has no files yet", ioloop.name, retriable=True)
        self._ioloop = ioloop
        self._make_log = make_log
        self._channels: dict[str, tuple[Callable[[], None], Exception]] = {}

    def be_born(self) -> None:
        """Have the topic's files made, if that was not asked for yet."""
        if not self.exists:
            self.exists = True
            self._ioloop.submit(self._make_log, self._born, after=0)

    def _born(self, log: TopicLog, error: Exception | None) -> None:
        if error is None:
            self._ioloop.born(log)
        else:
            # The next put or channel tries again.
            self.exists = False
            self.error = error
            self._ioloop.refuse(error)

    def put_off(self, channel: str, again: Callable[[], None], error: Exception) -> None:
        """A channel could not be made; `again` tries once more."""
        if isinstance(self._ioloop.log, UnbornLog) and self.exists:
            again()  # somebody has put meanwhile, so that the topic is tried once more before this
            return
        self._channels[channel] = again, error
        if not isinstance(self._ioloop.log, UnbornLog):
            self._ioloop.refuse(error)

    def forget(self, channel: str) -> None:
        """Make this channel no more."""
        self._channels.pop(channel, None)

    def again(self) -> None:
        """Try once more to make what could not be made, before anything else is written."""
        channels, self._channels = self._channels, {}
        if channels:
            self.be_born()
        for again, _ in channels.values():
            again()

    def check(self, channel: str | None) -> None:
        """Raise if this channel could not be made, or where none is named, if some channel could not.

        Raises:
            StorageError: as it was when that was tried last.
        """
        for name, (_, error) in self._channels.items():
            if channel in (None, name):
                raise error
