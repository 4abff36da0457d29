"""What the figures of a store cost, which a monitor asks for every second: by counting calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.testing import SimulatedFileSystem
from tests.system.counts import PACKAGE, compiled

if TYPE_CHECKING:
    from types import FrameType

pytestmark = pytest.mark.skipif(compiled(), reason="what is compiled has no frames to count")

FEW, MANY = 5, 25


def calls(store: aiodq.Store) -> int:
    """Return how many functions of the package are called for the store's figures."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        store.stats()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("of", "most"), [("topics", 65), ("channels", 46)])
async def test_the_figures_of_many_topics_and_channels_take_few_calls_each(of: str, most: int) -> None:
    found: list[int] = []
    async with aiodq.open("/s", fs=SimulatedFileSystem()) as store:
        for number in range(MANY):
            topic = store.topic(f"t{number}" if of == "topics" else "t")
            channel = topic.channel(f"c{number}", aiodq.ChannelOptions(start="earliest"))
            await topic.put_many([b"a", b"b"])
            await (await channel.get()).ack()
            if number + 1 in {FEW, MANY}:
                found.append(calls(store))
    few, many = found
    assert (many - few) / (MANY - FEW) <= most, found
