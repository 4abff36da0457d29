"""How much of the log is read ahead at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiodq.engine.channel.read_ahead import ReadAhead
from aiodq.engine.reading.tail_cache import TailCache
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

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
    ahead = ReadAhead(TailCache(0), lambda _: unread(), lambda: None, lambda *_: None, lambda: 1 << 26)
    assert ahead.piece == 256 * KIB
    state = cast("Any", SimpleNamespace(lose=lambda *_: 0))
    body = bytes(size)
    for first in range(0, 30, 10):
        batch = Batch(first, 0, Columns([body] * 10))
        ahead.feed(
            state, cast("Any", SimpleNamespace(batches=[batch], next=first + 10, bytes_read=10 * on_disk)), first
        )
    assert ahead.piece == piece
    nothing = cast("Any", SimpleNamespace(batches=[], next=30, bytes_read=0))
    ahead.feed(state, nothing, 30)
    assert ahead.piece == 256 * KIB


def unread() -> Any:
    raise AssertionError("nothing is read here")
