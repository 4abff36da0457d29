"""What a client asks of one topic or channel costs as much with many open as with few."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import aiodq
from aiodq.shared.client import remote_puts
from aiodq.shared.connection.link import Link
from aiodq.shared.connection.sent.sent_puts import TopicPuts
from aiodq.shared.requests.owner_state import made_changes
from aiodq.shared.requests.owner_state.made_changes import MadeChanges
from aiodq.storage.log.producer_table import MOST_PENDING
from tests.shared.support import PATIENCE, QUICK, two

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from aiodq.shared.server.session import Session


class Found(dict[Any, Any]):
    """What is found by its key, and is not looked through."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        self.looks += 1
        return super().__iter__()

    def items(self) -> Any:
        """Return them, as above."""
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        """Likewise."""
        self.looks += 1
        return super().values()


async def test_a_put_looks_at_no_channel(tmp_path: Path) -> None:
    options = aiodq.StoreOptions(sync="os", max_messages=1000, overflow="reject")
    async with asyncio.timeout(PATIENCE), two(tmp_path / "s", QUICK) as (_, client):
        topic = client.topic("jobs", options)
        channels = [topic.channel(f"channel-{number}") for number in range(5)]
        for channel in channels:
            await channel.refresh()
        remote: Any = topic._engine
        remote.channel_engines = found = Found(remote.channel_engines)
        for _ in range(10):
            topic.put_nowait(b"x")
            await topic.put(b"y")
        assert found.looks == 0
        assert [channel.depth for channel in channels] == [20] * 5


async def test_an_owner_looks_only_at_the_handles_that_a_change_concerns(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), two(tmp_path / "s", QUICK) as (owner, client):
        names = ["jobs", "jobs2", "jobs#ephemeral"]
        for name in names:
            await client.topic(name).put_many([b"x"] * 3)
            for each in ("a", "b"):
                await client.topic(name).channel(each).refresh()
        sessions: list[Session] = owner._store_engine.owner.clients  # type: ignore[attr-defined]  # it stands in its place
        session = max(sessions, key=lambda each: len(each.handles.lendings))
        topics, lendings = Found(session.handles.topics), Found(session.handles.lendings)
        session.handles.topics, session.handles.lendings = topics, lendings
        channel = client.topic("jobs").channel("a")
        await channel.get()
        await channel.seek("earliest")
        await channel.configure(aiodq.ChannelOptions(max_in_flight=5))
        assert [(await channel.get()).offset for _ in range(3)] == [0, 1, 2]
        async with client.transaction() as transaction:
            transaction.put("jobs", b"y")
        assert client.topic("jobs").end_offset == 4
        await client.topic("jobs").delete_channel("b")
        for name in names[1:]:
            await client.delete_topic(name)
        assert (topics.looks, lendings.looks) == (0, 0)
        left = [lending.name for lending in lendings.values()]
        assert (left, [topic.name for topic in topics.values()]) == (["jobs/a"], ["jobs"])


async def test_an_owner_forgets_old_changes_without_a_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_changes, "_MOST", 3)
    made, tries, never = MadeChanges(), list[int](), asyncio.Event()
    made._made = found = Found()

    async def change(number: int) -> None:
        tries.append(number)
        if number == 1:
            await never.wait()

    first = asyncio.ensure_future(made.make(1, lambda: change(1), known=False))
    await asyncio.sleep(0)
    for number in (2, 3, 4, 5, 5, 4, 3):
        await made.make(number, partial(change, number), known=False)
    never.set()
    await first
    assert (tries, found.looks) == ([1, 2, 3, 4, 5, 3], 0)


async def test_an_owner_forgets_changes_whose_end_was_noted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C amid the note has it made again."""
    monkeypatch.setattr(made_changes, "_MOST", 2)
    plain, made, tries = MadeChanges._ended, MadeChanges(), list[int]()
    monkeypatch.setattr(MadeChanges, "_ended", lambda *given: [plain(*given) for _ in range(2)])

    async def change(number: int) -> None:
        tries.append(number)

    for number in (1, 2, 3, 4, 5):
        await made.make(number, partial(change, number), known=False)
        await asyncio.sleep(0)
    assert tries == [1, 2, 3, 4, 5]


async def test_calls_behind_queued_puts_ask_an_owner_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE), two(tmp_path / "s", QUICK) as (_, client):
        queue, names = client.queue("jobs"), list[str]()
        await queue.refresh()
        plain = Link.call

        async def call(link: Link, name: str, *given: Any, **named: Any) -> Any:
            names.append(name)
            return await plain(link, name, *given, **named)

        monkeypatch.setattr(Link, "call", call)
        calls = 10 * MOST_PENDING
        await asyncio.gather(*(one for _ in range(calls) for one in (queue.put(b"x"), queue.refresh())))
        assert (names.count("refresh"), queue.qsize()) == (calls, calls)
        assert names.count("view") < MOST_PENDING


async def test_a_process_does_not_look_through_all_its_puts_for_each_that_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_puts, "_SHARE", 1e9)
    looks = list[bool]()
    give_up = TopicPuts.give_up

    def giving_up(puts: TopicPuts, *, queued: bool = True) -> list[int]:
        looks.append(queued)
        return give_up(puts, queued=queued)

    monkeypatch.setattr(TopicPuts, "give_up", giving_up)
    async with asyncio.timeout(PATIENCE), two(tmp_path / "s", replace(QUICK, max_messages=1)) as (_, client):
        queue = client.queue("jobs")
        await queue.put(b"x")
        putting = [asyncio.create_task(queue.put(b"x")) for _ in range(3 * MOST_PENDING)]
        await asyncio.sleep(0)
        for one in putting:
            one.cancel()
            await asyncio.wait([one])
        assert (sum(looks), len(looks)) == (1, len(putting))
        await (await queue.get()).ack()
        await queue.put(b"y")
        assert (await queue.get()).body == b"y"  # none of the cancelled ones is stored
