"""Making a topic's files and its channels: where that fails, what waits for it is refused, and it is tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiodq.engine.futures import settle
from aiodq.engine.topic.no_log import NoLog
from aiodq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.log.topic_log import TopicLog

__all__ = ["CreatedTopic", "Creation"]

T = TypeVar("T")


class _Options(Protocol):
    """See `aiodq.engine.topic.effective_options.EffectiveOptions`."""

    def again(self) -> None: ...


class CreatedTopic(Protocol):
    """What is needed of the topic that is made: `aiodq.engine.topic.topic_engine.TopicEngine` has it."""

    name: str
    log: TopicLog | NoLog

    @property
    def effective_options(self) -> _Options:
        """Which options it goes by."""
        ...

    def check(self) -> None:
        """Raise if the topic cannot be used."""
        ...

    def submit(
        self, work: Callable[[], T], finish: Callable[[T, Exception | None], None], after: int | None = None
    ) -> None:
        """Have `work` done with the log at rest; `finish` gets the result, or an error in place of one."""
        ...

    def created(self, log: TopicLog) -> None:
        """The topic has files now."""
        ...

    def refuse(self, error: Exception) -> None:
        """Refuse what was accepted and is not written yet."""
        ...

    def real_log(self) -> TopicLog:
        """Return the log for work on its files."""
        ...


class Creation:
    """One per topic.

    A put that returned while a channel was not there yet would be lost to it, as what every other channel has consumed
    may be deleted: so no put returns before all channels are there.

    Attributes:
        exists: the topic has files, or they are being made.
        error: why that failed last.
        failed: it did, and has not succeeded since.
    """

    def __init__(self, engine: CreatedTopic, make_log: Callable[[], TopicLog], *, exists: bool) -> None:
        """Make what is missing of this topic; `make_log` makes its files."""
        self.exists: bool = exists
        self.error: Exception = StorageError("the topic has no files yet", engine.name, retriable=True)
        self.failed: bool = False
        self._engine = engine
        self._make_log = make_log
        self._channels: dict[str, tuple[Callable[[], None], Exception]] = {}

    @property
    def at_rest(self) -> bool:
        """Whether no channel is to be made that could not be."""
        return not self._channels

    def create(self) -> None:
        """Have the topic's files made, if that was not asked for yet."""
        if not self.exists:
            self.exists = True
            self._engine.submit(self._make_log, self._made, after=0)

    def _made(self, log: TopicLog, error: Exception | None) -> None:
        self.failed = error is not None
        if error is None:
            self._engine.created(log)
        else:
            # The next put or channel tries again.
            self.exists = False
            self.error = error
            self._engine.refuse(error)

    def refused(self, error: Exception) -> None:
        """The topic could not be made before it was named here."""
        self.failed, self.error = True, error

    async def made(self) -> None:
        """Wait until the topic has files, having them made if it has none.

        Raises:
            StorageError: they could not be made.

        Cancellation: they are made all the same.
        """
        self._engine.check()
        if not isinstance(self._engine.log, NoLog):
            return
        self.create()
        done: asyncio.Future[TopicLog] = asyncio.get_running_loop().create_future()
        self._engine.submit(self._engine.real_log, lambda log, error: settle(done, log, error), after=0)
        await done

    def put_off(self, channel: str, again: Callable[[], None], error: Exception) -> None:
        """A channel could not be made; `again` tries once more."""
        if isinstance(self._engine.log, NoLog) and self.exists:
            again()  # somebody has put meanwhile, so that the topic is tried once more before this
            return
        self._channels[channel] = again, error
        if not isinstance(self._engine.log, NoLog):
            self._engine.refuse(error)

    def forget(self, channel: str) -> None:
        """Make this channel no more."""
        self._channels.pop(channel, None)

    def again(self) -> None:
        """Try once more to make what could not be made, before anything else is written."""
        if self._channels:
            self.create()
        for channel in list(self._channels):
            again, _ = self._channels.pop(channel)
            again()
        self._engine.effective_options.again()

    def check(self, channel: str | None) -> None:
        """Raise if this channel could not be made, or where none is named, if some channel could not.

        Raises:
            StorageError: as it was when that was tried last.
        """
        for name, (_, error) in self._channels.items():
            if channel in (None, name):
                raise error
