"""How much of the log is read ahead at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiodq.engine.reading.read_ahead import ReadAhead
from aiodq.engine.reading.tail_cache import TailCache
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.storage.read.frame_results import Continuation
from aiodq.storage.read.log_reader import ReadResult

KIB = 1024


@pytest.mark.parametrize(
    ("size", "on_disk", "piece"),
    [
        (100, 100, 256 * KIB),
        (200, 200, 500_000),
        (16 * KIB, 16 * KIB, 1024 * KIB),
        (16 * KIB, 20, 256 * KIB),
        (64 * KIB * KIB, 64 * KIB * KIB, 1024 * KIB),
    ],
)
def test_a_piece_holds_many_messages_but_not_too_many(size: int, on_disk: int, piece: int) -> None:
    ahead = ReadAhead(
        TailCache(0), lambda *_: unread(), lambda *_: None, unread, lost=lambda *_: None, limit=lambda: 1 << 26
    )
    assert ahead.piece == 256 * KIB
    state = cast("Any", SimpleNamespace(lose=lambda *_: 0))
    body = bytes(size)
    for first in range(0, 30, 10):
        batch = Batch(first, 0, Columns([body] * 10))
        ahead.feed(state, ReadResult(batches=[batch], next=first + 10, bytes_read=10 * on_disk), first)
    assert ahead.piece == piece
    ahead.feed(state, ReadResult(next=30), 30)
    assert ahead.piece == 256 * KIB


def test_what_a_read_leaves_for_the_next_one_never_keeps_that_from_being_read() -> None:
    limit = 1 << 26
    ahead = ReadAhead(
        TailCache(0), lambda *_: unread(), lambda *_: None, unread, lost=lambda *_: None, limit=lambda: limit
    )
    state = cast("Any", SimpleNamespace(lose=lambda *_: 0, fresh=lambda: 10, log=SimpleNamespace(visible=100)))
    result = ReadResult(
        next=10, continuation=Continuation("path", 10, 1000, (0, 2000), [Batch(10, 0, Columns([bytes(100)] * 10))])
    )
    ahead.feed(state, result, 0)
    assert ahead.continuation == result.continuation
    assert ahead.cost == ahead.rest_cost > 1000
    limit = ahead.cost  # as more channels share it
    assert ahead.fetch_offset(state) == 10
    ahead.feed(state, result, 10)
    assert ahead.continuation is not None
    assert (ahead.continuation.offset, ahead.continuation.rest, ahead.cost) == (10, (), 0)


def unread() -> Any:
    raise AssertionError("nothing is read here")


class Log:
    """A channel's place in a log of batches of ten, of which so much is in the system's memory."""

    def __init__(self, *, visible: int, cached: int, found: int = 10) -> None:
        self.cached, self.found = cached, found
        self.position = 0
        self.read: list[int] = []
        self.wanted = 0
        self.lost = 0
        self.ahead = ReadAhead(
            TailCache(0), lambda *_: unread(), self.read_cached, self.want, lost=lambda *_: None, limit=lambda: 1 << 26
        )
        self.state = cast(
            "Any", SimpleNamespace(lose=self.lose, fresh=lambda: self.position, log=SimpleNamespace(visible=visible))
        )

    def lose(self, start: int, stop: int) -> int:
        """Note what is lost."""
        self.lost += max(stop - max(start, self.position), 0)
        return 0

    def result(self, offset: int) -> ReadResult:
        """Return what a read from an offset on finds."""
        batches = [Batch(offset, 0, Columns([b"x"] * self.found))] if self.found else []
        end = offset + self.found
        continuation = Continuation("log", end, end, (0, end))
        return ReadResult(batches=batches, next=end, bytes_read=10, continuation=continuation)

    def read_cached(self, offset: int, size: int, continuation: Continuation | None) -> ReadResult | None:
        """Read what is in memory."""
        assert size > 0
        assert continuation is None or continuation.offset == offset, "each read is told where the one before it ended"
        self.read.append(offset)
        return self.result(offset) if offset < self.cached else None

    def want(self) -> None:
        """Have a thread read on."""
        self.wanted += 1

    def take(self) -> int | None:
        """Return the next message's offset, if it is here."""
        found = self.ahead.fresh(self.state, cold=False)
        if found is None:
            return None
        self.position = found[0].first + found[1] + 1
        return self.position - 1

    def bring(self, offset: int) -> None:
        """The thread has read."""
        self.ahead.fetching = False
        self.ahead.feed(self.state, self.result(offset), offset)


def test_what_is_in_memory_is_read_when_it_is_needed_and_not_before() -> None:
    log = Log(visible=40, cached=40)
    for offset in range(40):
        assert log.take() == offset
        assert log.read == list(range(0, offset + 1, 10))
    assert log.take() is None
    assert (log.wanted, log.lost) == (0, 0)


def test_what_is_not_is_asked_for_once_and_then_ahead() -> None:
    log = Log(visible=60, cached=10)
    assert [log.take() for _ in range(11)] == [*range(10), None]
    assert (log.wanted, log.take(), log.read) == (1, None, [0, 10]), "a thread reads it, and nobody else does"
    log.bring(10)
    assert log.take() == 10
    assert (log.wanted, log.read) == (2, [0, 10, 20]), "it was looked whether the next is in memory by now"
    log.bring(20)
    log.cached = 60
    assert [log.take() for _ in range(49)] == [*range(11, 60)]
    assert (log.wanted, log.read) == (2, [0, 10, 20, 30, 40, 50])
    assert log.lost == 0


def test_a_read_that_finds_nothing_is_no_reason_to_read_again() -> None:
    log = Log(visible=10, cached=10, found=0)
    assert log.take() is None
    assert (log.read, log.wanted) == ([0], 1)
