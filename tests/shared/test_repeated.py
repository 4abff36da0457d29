"""A change that a client repeats, as no owner has answered it, undoes nothing that others have changed since."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.requests import calls
from aiodq.shared.requests.owner_state import made_changes
from aiodq.shared.requests.owner_state.made_changes import MadeChanges
from aiodq.shared.server.owner import Owner
from aiodq.wire.layout import CHANGES
from tests.shared.support import PATIENCE, QUICK, two, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

MOST = aiodq.StoreOptions(sync="os", max_messages=7)
TRIES = aiodq.ChannelOptions(max_attempts=4)
COUNT = 5

Change = tuple[str, "Callable[[aiodq.Channel], Awaitable[None]]", "Callable[[aiodq.Channel], Awaitable[None]]"]


def topic_of(channel: aiodq.Channel) -> aiodq.Topic:
    queue = channel
    assert isinstance(queue, aiodq.Queue)
    return queue._topic


MADE: dict[str, Change] = {
    "seek": ("seek", lambda one: one.seek(2), lambda one: one.seek("latest")),
    "pause": ("pause", lambda one: one.pause(), lambda one: one.resume()),
    "pause-topic": ("pause", lambda one: topic_of(one).pause(), lambda one: topic_of(one).resume()),
    "configure": ("configure", lambda one: one.configure(TRIES), lambda one: one.configure(aiodq.ChannelOptions())),
    "configure-topic": (
        "configure",
        lambda one: topic_of(one).configure(MOST),
        lambda one: topic_of(one).configure(QUICK),
    ),
}


async def state_of(queue: aiodq.Channel) -> tuple[object, ...]:
    """Return what the changes change, as the owner says."""
    topic = topic_of(queue)
    await topic.settle_in()
    await queue.refresh()
    return queue.depth, queue.paused, queue.options, topic.options


def answer_late(
    monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[], Awaitable[None]]
) -> list[tuple[object, ...]]:
    """Have `then` run between the first call of a name and its answer; return the calls."""
    made: list[tuple[object, ...]] = []

    def late(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any) -> Any:
            made.append(given)
            first = len(made) == 1
            result = await plain(*given)
            if first:
                await then()
            return result

        return call

    for kind in ("_TOPIC", "_CHANNEL"):
        known = getattr(calls, kind)
        if name in known:
            monkeypatch.setattr(calls, kind, {**known, name: late(known[name])})
    return made


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("cut", [False, True], ids=["next", "same"])
async def test_a_repeated_change_undoes_nothing_that_another_process_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, *, cut: bool
) -> None:
    name, change, undo = MADE[what]
    done, never = asyncio.Event(), asyncio.Event()
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, QUICK, mode="shared") as owner,
        aiodq.open(tmp_path, QUICK, mode="shared") as client,
        aiodq.open(tmp_path, QUICK, mode="shared") as other,
    ):
        await owner.queue("jobs").put_many([b"x"] * COUNT)
        queues = [store.queue("jobs") for store in (client, other)]
        for queue in queues:
            await state_of(queue)

        async def undone() -> None:
            await undo(queues[1])
            done.set()
            if cut:
                client._remote.link._wire.abort()  # type: ignore[attr-defined]
            else:
                await never.wait()

        made = answer_late(monkeypatch, name, undone)
        changing = asyncio.ensure_future(change(queues[0]))
        await done.wait()
        after = await state_of(queues[1])
        if not cut:
            await owner.aclose()
        await changing
        assert len(made) >= 2
        # What it has changed in vain, a client assumes until it is told otherwise.
        while [await state_of(queue) for queue in queues] != [after, after]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", MADE)
async def test_a_change_is_known_to_the_owner_after_the_next_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name, change, undo = MADE[what]
    done, again, never = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, QUICK, mode="shared") as first,
        aiodq.open(tmp_path, QUICK, mode="client") as client,
    ):
        await first.queue("jobs").put_many([b"x"] * COUNT)
        queue = client.queue("jobs")
        await state_of(queue)

        async def wait() -> None:
            done.set()
            await never.wait()

        answer_late(monkeypatch, name, wait)
        changing = asyncio.ensure_future(change(queue))
        await done.wait()
        for kind in ("_TOPIC", "_CHANNEL"):
            plain = getattr(calls, kind)

            async def hang(*_: object) -> None:
                again.set()
                await never.wait()

            monkeypatch.setattr(calls, kind, plain | {name: hang})
        async with aiodq.open(tmp_path, QUICK, mode="shared") as second:
            await first.aclose()
            await again.wait()
            monkeypatch.undo()
            mine = second.queue("jobs")
            await undo(mine)
            await mine.put(b"y")
            await mine.sync()
            after = await state_of(mine)
        async with aiodq.open(tmp_path, QUICK, mode="shared") as third:
            await changing
            assert await state_of(third.queue("jobs")) == after


@pytest.mark.parametrize("what", ["configured", "paused"])
async def test_options_of_the_owner_alone_are_set_again_only_if_nobody_has_chosen_others_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    done, again, chosen, never = (asyncio.Event() for _ in range(4))
    plain, calls_made = calls._TOPIC["configure"], Counter[int]()
    mine, others = (aiodq.StoreOptions(sync="interval", sync_every=number, max_messages=7) for number in (5, 6))

    async def configure(*given: Any) -> Any:
        number = given[2]["change"]
        first = not calls_made
        calls_made[number] += 1
        if calls_made[number] == 2:
            again.set()
            await chosen.wait()
        await plain(*given)
        if first:
            done.set()
            await never.wait()

    monkeypatch.setattr(calls, "_TOPIC", {**calls._TOPIC, "configure": configure})
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, QUICK, mode="shared") as first,
        aiodq.open(tmp_path, QUICK, mode="client") as client,
        aiodq.open(tmp_path, QUICK, mode="shared") as second,
    ):
        await first.queue("jobs").put(b"x")
        topic, there = client.topic("jobs"), second.topic("jobs")
        for each in (topic, there):
            await each.settle_in()
        changing = asyncio.ensure_future(topic.configure(mine))
        await done.wait()
        await first.aclose()
        await again.wait()
        if what == "configured":
            await there.configure(others)
        else:
            await there.pause()
        chosen.set()
        await changing
        engine = second._remote.owner.engine.engine("jobs")  # type: ignore[attr-defined]
        assert engine.options == (others if what == "configured" else mine)


async def test_a_change_that_no_owner_has_made_is_made_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = asyncio.Event(), asyncio.Event()
    before = calls._CHANNEL

    async def hang(*_: object) -> None:
        asked.set()
        await never.wait()

    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, QUICK, mode="shared") as owner,
        aiodq.open(tmp_path, QUICK, mode="shared") as client,
    ):
        queue = client.queue("jobs")
        await queue.put_many([b"x"] * COUNT)
        await state_of(queue)
        monkeypatch.setattr(calls, "_CHANNEL", {**before, "seek": hang})
        seeking = asyncio.ensure_future(queue.seek(2))
        await asked.wait()
        monkeypatch.setattr(calls, "_CHANNEL", before)
        await owner.aclose()
        await seeking
        await queue.refresh()
        assert queue.depth == COUNT - 2


@pytest.mark.parametrize("number", [-1, CHANGES, "1", True, None, [1]])
async def test_the_number_of_a_change_is_checked(tmp_path: Path, number: object) -> None:
    async with two(tmp_path, QUICK) as (_, client):
        queue = client.queue("jobs")
        await state_of(queue)
        for name, arguments in (("pause", {"paused": True}), ("seek", {"position": "earliest"})):
            with pytest.raises(aiodq.ProtocolError):
                await client._remote.link.call(  # type: ignore[attr-defined]
                    name, {**arguments, "change": number}, topic="jobs", channel=queue.name
                )


async def test_a_client_of_an_earlier_version_gives_its_changes_no_numbers(tmp_path: Path) -> None:
    async with two(tmp_path, QUICK) as (owner, client):
        queue, there = client.queue("jobs"), owner.queue("jobs")
        await queue.put_many([b"x"] * COUNT)
        ask = partial(client._remote.link.call, topic="jobs", channel=queue.name)  # type: ignore[attr-defined]
        for _ in range(2):
            await ask("seek", {"position": "latest"})
            await ask("pause", {"paused": True})
            await until(lambda: (there.depth, there.paused) == (0, True))
            await ask("pause", {"paused": False})
            await ask("seek", {"position": "earliest"})
            await until(lambda: (there.depth, there.paused) == (COUNT, False))


async def test_a_change_that_failed_is_made_when_it_is_repeated() -> None:
    made, tries = MadeChanges(), 0

    async def change() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise aiodq.StorageError("a full disk")

    with pytest.raises(aiodq.StorageError):
        await made.make(1, change, known=False)
    for _ in range(2):
        await made.make(1, change, known=False)
    assert tries == 2


async def test_an_owner_forgets_the_oldest_changes_but_none_that_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_changes, "_MOST", 3)
    made, tries, never = MadeChanges(), Counter[int](), asyncio.Event()

    async def change(number: int) -> None:
        tries[number] += 1
        if number == 1:
            await never.wait()

    first = [asyncio.ensure_future(made.make(1, partial(change, 1), known=False)) for _ in range(2)]
    await asyncio.sleep(0)
    for number in (2, 3, 4, 4, 2):
        await made.make(number, partial(change, number), known=False)
    never.set()
    await asyncio.gather(*first)
    assert tries == {1: 1, 2: 2, 3: 1, 4: 1}


async def test_letters_are_put_back_by_the_next_owner_if_one_ended_while_it_waited_for_their_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never, plain = asyncio.Event(), asyncio.Event(), Owner.reclaimed

    async def reclaimed(owner: Owner) -> None:
        if owner is first:
            asked.set()
            await never.wait()
        await plain(owner)

    options = aiodq.ChannelOptions(dead_letter="dead")
    async with (
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path, QUICK, mode="shared") as store,
        aiodq.open(tmp_path, QUICK, mode="shared") as client,
    ):
        first = store._remote.owner  # type: ignore[attr-defined]
        channel = client.topic("jobs").channel("c", options)
        await channel.refresh()
        await client.topic("jobs").put(b"x")
        await (await channel.get()).reject("bad")
        monkeypatch.setattr(Owner, "reclaimed", reclaimed)
        moving = asyncio.ensure_future(client.requeue_dead("dead"))
        await asked.wait()
        await store.aclose()
        assert await moving == 1
        assert (await channel.get()).body == b"x"
        assert await client.requeue_dead("dead") == 0
