"""One stored message as a reader sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aiodq.format.frame import Batch

__all__ = ["StoredMessage", "records_of"]

_NO_HEADERS: Final[Mapping[str, str]] = {}
_SHOWN: Final = 32


class StoredMessage:
    """A message as it lies in the log.

    Attributes:
        body: the bytes that were put.
        offset: its number in the topic, from 0.
        timestamp_ns: when it was put, nanoseconds since 1970-01-01 UTC.
        tag: a short text, or None.
        key: bytes, or None.
        headers: text by text; empty for none. Not to be changed.
        topic: the topic's name.
    """

    __slots__ = ("body", "headers", "key", "offset", "tag", "timestamp_ns", "topic")

    def __init__(  # noqa: PLR0917 - made once per message, and keywords cost time
        self,
        topic: str,
        offset: int,
        timestamp_ns: int,
        body: bytes,
        tag: str | None = None,
        key: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        """Keep the parts."""
        self.topic: str = topic
        self.offset: int = offset
        self.timestamp_ns: int = timestamp_ns
        self.body: bytes = body
        self.tag: str | None = tag
        self.key: bytes | None = key
        self.headers: Mapping[str, str] = headers

    @property
    def id(self) -> str:
        """The offset as 16 hexadecimal digits."""
        return f"{self.offset:016x}"

    @property
    def timestamp(self) -> datetime:
        """When it was put, in UTC, to the microsecond."""
        seconds, rest = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)

    def __repr__(self) -> str:
        """Show where it lies and how the body begins."""
        more = "…" * (len(self.body) > _SHOWN)
        return f"<{type(self).__name__} {self.topic}:{self.offset} {self.body[:_SHOWN]!r}{more}{self._standing()}>"

    def _standing(self) -> str:
        """Return what else there is to say of it."""
        return ""


def records_of(batch: Batch, topic: str) -> Iterator[StoredMessage]:
    """Yield a batch's records in order."""
    columns = batch.columns
    for number, body in enumerate(columns.bodies):
        yield StoredMessage(
            topic,
            batch.first + number,
            batch.time_ns if columns.times is None else columns.times[number],
            body,
            None if columns.tags is None else columns.tags[number],
            None if columns.keys is None else columns.keys[number],
            _NO_HEADERS if columns.headers is None else columns.headers[number],
        )
