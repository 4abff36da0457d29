"""One stored message as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - as in `Draft`: types of what is public are evaluated
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["StoredMessage", "records_of"]

_SHOWN: Final = 32


class Run(Protocol):
    """Consecutive messages, column by column, without their bodies.

    Attributes:
        topic: the topic's name.
        first: the offset of the first one.
        time_ns: their put time, unless `times` has one for each.
        times, tags, keys, headers: one item per message, or None if no message has any.
    """

    topic: str
    first: int
    time_ns: int
    times: Sequence[int] | None
    tags: Sequence[str | None] | None
    keys: Sequence[bytes | None] | None
    headers: Sequence[Mapping[str, str]] | None


class _BatchRun:
    """The run of a whole batch."""

    __slots__ = ("first", "headers", "keys", "tags", "time_ns", "times", "topic")

    def __init__(self, topic: str, batch: Batch) -> None:
        columns = batch.columns
        self.topic: str = topic
        self.first: int = batch.first
        self.time_ns: int = batch.time_ns
        self.times: Sequence[int] | None = columns.times
        self.tags: Sequence[str | None] | None = columns.tags
        self.keys: Sequence[bytes | None] | None = columns.keys
        self.headers: Sequence[Mapping[str, str]] | None = columns.headers

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return how to make a copy: a compiled class needs this."""
        return _run_again, (self.topic, self.first, self.time_ns, (self.times, self.tags, self.keys, self.headers))


def _run_again(topic: str, first: int, time_ns: int, columns: tuple[Any, ...]) -> _BatchRun:
    run = _BatchRun(topic, Batch(first, time_ns, Columns([])))
    run.times, run.tags, run.keys, run.headers = columns
    return run


class StoredMessage:
    """A message as it is stored in the log.

    Attributes:
        body: the bytes that were put.
    """

    # The caller sets these three: calling an `__init__` would take longer than everything else here.
    __slots__ = ("_index", "_run", "body")

    _run: Any  # a `Run`, of the kind that a subclass makes of it
    _index: int
    body: bytes

    def __getstate__(self) -> object:
        """Return the state to copy: a compiled class needs this."""
        return None, {"_run": self._run, "_index": self._index, "body": self.body}

    @property
    def topic(self) -> str:
        """The topic's name."""
        run: Run = self._run
        return run.topic

    @property
    def offset(self) -> int:
        """Its number in the topic, from 0."""
        run: Run = self._run
        return run.first + self._index

    @property
    def timestamp_ns(self) -> int:
        """The put time, nanoseconds since 1970-01-01 UTC."""
        run: Run = self._run
        return run.time_ns if run.times is None else run.times[self._index]

    @property
    def tag(self) -> str | None:
        """The tag, a short text, or None."""
        run: Run = self._run
        tags = run.tags
        return None if tags is None else tags[self._index]

    @property
    def key(self) -> bytes | None:
        """The key: bytes that name what the message is about, or None."""
        run: Run = self._run
        keys = run.keys
        return None if keys is None else keys[self._index]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, text by text; empty if there are none. Each time a copy, as other channels see the same."""
        run: Run = self._run
        headers = run.headers
        return {} if headers is None else dict(headers[self._index])

    @property
    def id(self) -> str:
        """The offset as 16 hexadecimal digits."""
        return f"{self.offset:016x}"

    @property
    def timestamp(self) -> datetime:
        """The put time, in UTC, to the microsecond."""
        seconds, rest = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)

    def __repr__(self) -> str:
        """Show the topic, the offset and the beginning of the body; of one that nobody filled, only that."""
        if not hasattr(self, "_run"):
            return f"<{type(self).__name__} of no topic>"
        more = "…" * (len(self.body) > _SHOWN)
        return f"<{type(self).__name__} {self.topic}:{self.offset} {self.body[:_SHOWN]!r}{more}{self._standing()}>"

    def _standing(self) -> str:
        """Return what subclasses add to the `repr`."""
        return ""


def records_of(batch: Batch, topic: str) -> Iterator[StoredMessage]:
    """Yield a batch's records in order."""
    run = _BatchRun(topic, batch)
    for index, body in enumerate(batch.columns.bodies):
        message = StoredMessage()
        message._run, message._index, message.body = run, index, body  # noqa: SLF001 - as said there
        yield message
