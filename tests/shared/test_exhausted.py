"""Calls in a client on an exhausted stack, with ever fewer frames left: what is settled there is said all the same."""

from __future__ import annotations

import asyncio
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.shared.support import PATIENCE, QUICK, two

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Call = Callable[[aiodq.Queue], object]

LEFT = range(8, 50, 3)
"""Frames that the call finds: from too few for anything to more than it needs."""

ROOM = 120
"""Frames for everything else."""


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


def with_frames(left: int, call: Callable[[], object]) -> None:
    """Call something with so many frames left."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + ROOM)
    try:
        with suppress(RecursionError, aiodq.QueueEmpty):
            _deeper(ROOM - left, call)
    finally:
        sys.setrecursionlimit(usual)


def _deeper(frames: int, call: Callable[[], object]) -> None:
    if frames > 0:
        _deeper(frames - 1, call)
    else:
        call()


def get_nowait(queue: aiodq.Queue) -> object:
    return queue.get_nowait()


def put_nowait(queue: aiodq.Queue) -> object:
    return queue.put_nowait(b"x")


@pytest.mark.parametrize("call", [get_nowait, put_nowait])
async def test_acks_are_said(tmp_path: Path, call: Call) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put_many([b"x"] * len(LEFT) * 2)
        for left in LEFT:
            async with asyncio.timeout(PATIENCE):
                message = await queue.get()
                message.ack_nowait()
                with_frames(left, lambda: call(queue))
                await queue.sync()  # which waits for the ack


async def test_a_message_that_could_not_be_asked_for_is_asked_for_by_the_next_who_waits(tmp_path: Path) -> None:
    async with two(tmp_path / "s", QUICK) as (_, client):
        queue = client.queue("jobs")
        await queue.put_many([b"x"] * len(LEFT))
        for left in LEFT:
            async with asyncio.timeout(PATIENCE):
                await queue.refresh()
                with_frames(left, queue.get_nowait)
                await (await queue.get()).ack()
