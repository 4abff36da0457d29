"""In which order an owner begins, and what waited for one is said to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiodq
from aiodq.format.columns import later
from aiodq.shared.connection.sent.sent_puts import SentPut, TopicPuts, WithdrawnError
from aiodq.storage.log.producer_table import MOST_PENDING
from aiodq.storage.log.topic_log import TopicLog
from aiodq.storage.store_layout import SOCKET
from aiodq.wire.packets import Done
from tests.shared.support import PATIENCE, RawClient, owned, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

QUICK = aiodq.StoreOptions(sync="os")


async def test_what_waited_is_put_before_anything_newer_and_in_its_order(tmp_path: Path) -> None:
    owner = await aiodq.open(tmp_path / "s", QUICK, mode="shared")
    async with aiodq.open(tmp_path / "s", QUICK, mode="client") as client:
        queue = client.queue("jobs")
        await queue.put(b"first")
        await owner.aclose()
        waited = []
        for number in range(6):
            waited.append(asyncio.create_task(queue.put(b"waited %d" % number)))
            await asyncio.sleep(0.005)  # each goes by itself
        async with aiodq.open(tmp_path / "s", QUICK, mode="shared"), asyncio.timeout(PATIENCE):
            await client._store_engine.link.call("store")  # type: ignore[attr-defined]  # it is connected then
            newer = asyncio.create_task(queue.put(b"newer"))
            assert await asyncio.gather(*waited) == list(range(1, 7))
            assert await newer == 7


async def test_what_waits_for_room_is_repeated_before_anything_newer_though_its_end_is_not_heard_of(
    tmp_path: Path,
) -> None:
    bodies = [b"1", b"2", b"3"]
    async with owned(tmp_path / "s", aiodq.StoreOptions(sync="os", max_messages=1)) as (store, owner):
        queue = store.queue("jobs")
        await queue.put(b"0")
        before = await RawClient.connected(tmp_path / "s")
        await before.hello()
        await before.open(1, "jobs")
        for sequence in (1, 2):
            before.put(1, sequence, bodies[sequence - 1 : sequence])
        await until(lambda: len(owner.puts_in_progress) == 2)
        client = await RawClient.connected(tmp_path / "s")
        await client.hello()
        await client.open(1, "jobs")
        asked = [client.put(1, sequence, bodies[sequence - 1 : sequence]) for sequence in (1, 2, 3)]
        await until(lambda: len(owner.puts_in_progress) == 3)
        await before.close()
        await until(lambda: len(owner.clients) == 1)
        for body in (b"0", *bodies):
            message = await queue.get(timeout=PATIENCE)
            assert message.body == body
            await message.ack()
        assert [await client.answer(each) for each in asked] == [Done((offset, 1)) for offset in (1, 2, 3)]
        await client.close()


async def test_nobody_finds_an_owner_that_does_not_know_yet_what_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared") as owner:
        await owner.queue("jobs").put(b"x")
    plain, seen = TopicLog.recall, []

    def recall(log: TopicLog) -> None:
        seen.append((tmp_path / "s" / SOCKET).exists())
        plain(log)

    monkeypatch.setattr(TopicLog, "recall", recall)
    async with aiodq.open(tmp_path / "s", QUICK, mode="shared"):
        assert (tmp_path / "s" / SOCKET).exists()
    assert seen == [False]


def test_no_more_puts_are_under_way_than_an_owner_remembers() -> None:
    sent, outcomes = list[int](), list[object]()
    puts = TopicPuts(lambda sequence, _: sent.append(sequence))
    for _ in range(MOST_PENDING + 2):
        puts.put(SentPut(b"", 1, each=False, on_done=outcomes.append, given_up=lambda: False, cancelled=lambda: False))
    assert sent == list(range(1, MOST_PENDING + 1))
    puts.answered(1, Done((0, 1)))
    assert (sent[-1], len(sent), outcomes) == (MOST_PENDING + 1, MOST_PENDING + 1, [range(1)])


def test_a_put_that_is_given_up_is_repeated_as_long_as_somebody_waits_for_it() -> None:
    """One owner has perhaps stored it, and nobody has heard of that: only the next one knows."""
    sent, outcomes = list[int](), list[range | Exception]()
    puts = TopicPuts(lambda sequence, _: sent.append(sequence))
    for cancelled in (lambda: True, lambda: False):
        puts.put(SentPut(b"", 1, each=False, on_done=outcomes.append, given_up=lambda: True, cancelled=cancelled))
    assert puts.give_up() == [1, 2]
    assert puts.give_up() == []
    puts.repeat()
    assert sent == [1, 2, 2]
    assert [type(each) for each in outcomes] == [WithdrawnError]
    assert puts.give_up() == [2]
    puts.answered(2, Done((5, 1)))
    assert outcomes[1:] == [range(5, 6)]


def test_a_due_time_that_a_clock_set_back_leaves_none_of_is_one_all_the_same() -> None:
    """0 would say that there is none, and nobody would know that the message was deferred."""
    assert later([100, 0, 10, 5], -10) == [90, 0, 1, 1]
