"""What a transaction consists of, whichever process owns its store.

The topics and channels are Protocols, because their remote substitutes have them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aiodq.engine.batch.draft import Draft
    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.format.columns import Columns

__all__ = ["AckRun", "Channel", "HeldAck", "Topic", "ack_runs"]

_LONGEST_RUN: Final = 1000
"""The most messages in a run."""


class Channel(Protocol):
    """A channel of which a transaction settles a message."""

    name: str

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless these messages are in flight, with consecutive delivery numbers from this one on."""
        ...

    async def committed(self) -> None:
        """Wait until everything settled before is as durable as the store's policy makes it."""
        ...


class _Checks(Protocol):
    """Checks what is put."""

    def body(self, body: bytes | bytearray | memoryview) -> bytes: ...

    def accepted(self, draft: Draft) -> Accepted: ...

    def accepted_many(
        self, bodies: Iterable[bytes | bytearray | memoryview | Draft], common: Draft
    ) -> tuple[Columns, int] | list[tuple[Accepted, bytes]]: ...


class Topic(Protocol):
    """A topic that takes part in a transaction."""

    name: str

    @property
    def put_buffer(self) -> _Checks:
        """What checks the messages that are put."""
        ...

    @property
    def channel_engines(self) -> Mapping[str, object]:
        """Its channels, by name."""
        ...


class HeldAck(NamedTuple):
    """A message that a transaction settles.

    Attributes:
        engine, channel_engine: its topic and channel.
        offset, delivery: its offset and delivery number.
    """

    engine: Topic
    channel_engine: Channel
    offset: int
    delivery: int


class AckRun(NamedTuple):
    """Neighbouring messages that a transaction settles, with consecutive delivery numbers.

    Attributes:
        engine, channel_engine: their topic and channel.
        start, stop: the first offset, and the offset after the last.
        delivery: the delivery number of the first one.
    """

    engine: Topic
    channel_engine: Channel
    start: int
    stop: int
    delivery: int


def ack_runs(settlements: Iterable[HeldAck]) -> Iterator[AckRun]:
    """Yield the runs that messages form."""
    before: tuple[Topic, Channel] | None = None
    start = stop = first = 0
    for engine, channel_engine, offset, delivery in settlements:
        if before is not None:
            follows = offset == stop and delivery - first == offset - start < _LONGEST_RUN
            if follows and channel_engine is before[1]:
                stop = offset + 1
                continue
            yield AckRun(*before, start, stop, first)
        before = engine, channel_engine
        start, stop, first = offset, offset + 1, delivery
    if before is not None:
        yield AckRun(*before, start, stop, first)
