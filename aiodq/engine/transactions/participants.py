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

__all__ = ["AckRun", "Channel", "Topic", "joined_runs"]

_LONGEST_RUN: Final = 1000
"""The most messages in a run."""


class Channel(Protocol):
    """A channel of which a transaction settles a message."""

    name: str

    def check_all(self, start: int, stop: int, delivery: int) -> None:
        """Raise unless these messages are in flight, with consecutive delivery numbers from this one on."""
        ...


class _Checks(Protocol):
    """Checks what is put."""

    def ahead(self) -> int: ...

    def in_time(self, columns: Columns, ahead: int) -> Columns: ...

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


def joined_runs(runs: Iterable[AckRun]) -> Iterator[AckRun]:
    """Yield runs, with those joined that follow each other; runs so joined have up to 1000 messages."""
    before: AckRun | None = None
    for run in runs:
        if before is None:
            before = run
            continue
        engine, channel_engine, start, stop, delivery = before
        follows = run.start == stop and run.delivery - delivery == stop - start
        if follows and run.channel_engine is channel_engine and run.stop - start <= _LONGEST_RUN:
            before = AckRun(engine, channel_engine, start, run.stop, delivery)
        else:
            yield before
            before = run
    if before is not None:
        yield before
