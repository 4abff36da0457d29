"""Very many messages with a delay, put at once: they count at once, and hold nobody up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.channel import message_source
from aiodq.engine.channel.requeue_cache import RequeueCache
from tests.channels.support import Machine, counts, ready, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.format.frame import Batch

MANY = 1700


def drafts(delay: float = 60.0) -> list[aiodq.Draft]:
    return [aiodq.Draft(b"%d" % number, delay=delay) for number in range(MANY)]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many are taken into memory at a time."""
    numbers: list[int] = []
    keep_of = RequeueCache.keep_of

    def noting(cache: RequeueCache, batch: Batch, offsets: Iterable[int], limit: int | None = None) -> None:
        those = list(offsets)
        numbers.append(len(those))
        keep_of(cache, batch, those, limit)

    monkeypatch.setattr(RequeueCache, "keep_of", noting)
    return numbers


async def test_they_count_at_once_and_are_kept_a_few_at_a_time(machine: Machine, kept: list[int]) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many(drafts())
        assert counts(jobs) == (0, 0, MANY)
        await until(lambda: sum(kept) == MANY)
        assert max(kept) <= 500
        machine.clock.advance(61)
        await until(lambda: jobs.qsize() == MANY)
        assert ready(jobs)[:2] == [b"0", b"1"]


async def test_nothing_is_kept_of_what_is_settled_meanwhile(
    machine: Machine, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_source, "_MOST_KEPT", 10)
    async with machine.jobs() as jobs:
        await jobs.put_many(drafts())
        assert sum(kept) < MANY
        await jobs.purge()
        await until(lambda: len(kept) == MANY // 10)
        assert sum(kept) < MANY
        assert counts(jobs) == (0, 0, 0)


async def test_those_among_others_and_behind_what_is_settled_come_when_they_are_due(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", *drafts()[:3], b"b"])
        await jobs.put_many(drafts()[:2])
        assert counts(jobs) == (2, 0, 5)
        await jobs.ack_many(await jobs.get_many(2))
        machine.clock.advance(61)
        await until(lambda: jobs.qsize() == 5)
        assert ready(jobs) == [b"0", b"1", b"2", b"0", b"1"]
