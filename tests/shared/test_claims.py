"""One message that several claim from the next owner: who has made it ready, unconfirmed, and who got it then."""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.shared.connection.finding.rendezvous import listen
from aiodq.shared.requests.lent.epochs import began_later, new_epoch
from aiodq.shared.requests.resuming import Resuming
from aiodq.storage.store_layout import CLIENTS
from aiodq.wire.packets import (
    Ack,
    Call,
    Done,
    Fail,
    Figures,
    Held,
    Item,
    Nack,
    Ping,
    Pong,
    Range,
    Reject,
    Release,
    Resume,
)
from tests.shared.support import PATIENCE, RawClient, joined, owned, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiodq.shared.server.owner import Owner

BEFORE, LONG_BEFORE = 99, 98
"""The epochs of the owner that was killed, and of one before it."""

FIRST = Held(0, 5, 1, 1)
"""The delivery to who has made the message ready again."""

SOON, LATER = 0, 3600 * 10**9
MOMENT = 1_700_000_000 * 10**9


class Scene:
    """The next owner of a store with one message, and two clients of the one before, `first` and `last` to have it."""

    def __init__(self, store: aiodq.Store, owner: Owner, first: RawClient, last: RawClient) -> None:
        self.store = store
        self.queue = store.queue("jobs")
        self.owner = owner
        self.first = first
        self.last = last

    async def claim(self, client: RawClient, held: Held, epoch: int = BEFORE) -> int | None:
        """Claim the message; return its delivery number, or None if another has it."""
        done = await client.ask(Resume(2, epoch, (held,)))
        assert isinstance(done, Done)
        facts = done.facts or {}
        assert facts["elsewhere"] == ([] if facts["held"] else [0])
        return facts["held"][0][1] if facts["held"] else None

    def nack(self, number: int, span: int = SOON, attempts: int = 1) -> Nack:
        return Nack(2, self.owner.epoch, (Item(0, number, span, attempts),))

    def release(self, number: int) -> Release:
        return Release(2, self.owner.epoch, (Range(0, number, 1),))

    async def acks(self, client: RawClient, number: int) -> None:
        """Have a client settle the message that it has in hand."""
        assert await client.ask(Ack(2, self.owner.epoch, (Range(0, number, 1),))) == Done()
        assert self.queue.depth == 0


@asynccontextmanager
async def claiming(path: Path, options: aiodq.ChannelOptions | None = None) -> AsyncIterator[Scene]:
    """Have an owner that still waits for clients of one that was killed."""
    async with aiodq.open(path) as store:
        await store.queue("jobs", options).put(b"0")
    listen(str(path)).sock.close()  # as a kill leaves it
    async with owned(path, reclaim=3600) as (store, owner):
        scene = Scene(store, owner, await joined(path, 7), await joined(path, 8))
        yield scene
        await scene.first.close()
        await scene.last.close()


@pytest.mark.parametrize("counts", [True, False], ids=["nack", "release"])
@pytest.mark.parametrize("delay", [None, SOON, LATER], ids=["unsaid", "soon", "later"])
async def test_who_got_a_message_last_has_it_though_one_that_made_it_ready_claims_it_first(
    tmp_path: Path, counts: bool, delay: int | None
) -> None:
    async with claiming(tmp_path / "s") as scene:
        number = await scene.claim(scene.first, FIRST)
        assert number is not None
        again = scene.nack(number, delay or SOON, attempts=int(counts))
        if delay is not None:
            assert await scene.first.ask(again) == Done()
        taken = await scene.claim(scene.last, Held(0, 6, 1, 1 + counts))
        assert taken is not None, "it is in hand"
        if delay is None:
            assert isinstance(await scene.first.ask(again), Fail)
        await scene.acks(scene.last, taken)


@pytest.mark.parametrize("counts", [True, False], ids=["nack", "release"])
async def test_who_has_made_a_message_ready_is_not_given_it_after_who_got_it_then(tmp_path: Path, counts: bool) -> None:
    async with claiming(tmp_path / "s") as scene:
        taken = await scene.claim(scene.last, Held(0, 6, 1, 1 + counts))
        assert taken is not None
        assert await scene.claim(scene.first, FIRST) is None
        await scene.acks(scene.last, taken)


@pytest.mark.parametrize("span", [SOON, LATER], ids=["soon", "later"])
async def test_what_the_last_to_have_it_has_made_ready_is_not_made_ready_anew_by_one_before(
    tmp_path: Path, span: int
) -> None:
    async with claiming(tmp_path / "s") as scene:
        taken = await scene.claim(scene.last, Held(0, 6, 1, 2))
        assert taken is not None
        assert await scene.last.ask(scene.nack(taken, span, attempts=2)) == Done()
        assert await scene.claim(scene.first, FIRST) is None
        deferred = scene.queue.deferred()
        scene.owner._look_for_late()  # as it does when the time is over
        if span:
            assert deferred == 1
        else:
            assert (await scene.queue.get(timeout=PATIENCE)).attempts == 3


@pytest.mark.parametrize("how", ["seek", "purge"])
async def test_who_claims_a_message_that_was_sought_since_knows_that_it_comes_again(tmp_path: Path, how: str) -> None:
    async with claiming(tmp_path / "s") as scene:
        asked = {"handle": 2} | ({"position": "earliest"} if how == "seek" else {})
        assert isinstance(await scene.last.ask(Call(how, asked)), Done)
        done = await scene.first.ask(Resume(2, BEFORE, (FIRST,)))
        assert done == Done(None, {"held": [], "elsewhere": [0] if how == "seek" else []})
        assert scene.queue.qsize() == (how == "seek")


async def test_a_claim_that_comes_again_finds_the_message(tmp_path: Path) -> None:
    async with claiming(tmp_path / "s") as scene:
        assert await scene.claim(scene.first, FIRST) is not None
        taken = await scene.claim(scene.first, FIRST)
        assert taken is not None, "as over another connection, if the answer has not arrived"
        await scene.acks(scene.first, taken)


@pytest.mark.parametrize("earlier_first", [True, False])
async def test_of_deliveries_by_different_owners_that_count_as_many_the_later_owners_is_the_last(
    tmp_path: Path, earlier_first: bool
) -> None:
    earlier, later = new_epoch(MOMENT), new_epoch(MOMENT + 5_000_000)
    async with claiming(tmp_path / "s") as scene:
        if earlier_first:
            assert await scene.claim(scene.first, Held(0, 6, 1, 1), earlier) is not None
        taken = await scene.claim(scene.last, Held(0, 5, 1, 1), later)
        assert taken is not None
        assert await scene.claim(scene.first, Held(0, 6, 1, 1), earlier) is None
        await scene.acks(scene.last, taken)


def test_of_epochs_it_is_known_which_is_later_unless_they_are_chosen_at_random() -> None:
    epochs = [new_epoch(MOMENT + number * 5_000_000) for number in range(100)]
    assert [began_later(one, after) for one, after in pairwise(epochs)] == [False] * 99
    assert [began_later(after, one) for one, after in pairwise(epochs)] == [True] * 99
    assert {began_later(epochs[0], 99), began_later(99, epochs[0]), began_later(epochs[0], epochs[0])} == {None}
    assert len({new_epoch(MOMENT) for _ in range(100)}) > 90
    assert all(not one % 2 and 0 < one < 1 << 63 for one in epochs)
    assert all(0 < new_epoch(before) < 1 << 63 for before in (-(1 << 62), 0, 1)), "by a wall clock before 1970, too"


@pytest.mark.parametrize("attempts", [1, 2])
async def test_of_deliveries_by_different_owners_the_one_after_more_is_the_last(tmp_path: Path, attempts: int) -> None:
    async with claiming(tmp_path / "s") as scene:
        first = await scene.claim(scene.first, FIRST)
        taken = await scene.claim(scene.last, Held(0, 3, 1, attempts), LONG_BEFORE)
        if attempts == 1:
            assert (first is None, taken) == (False, None)
        else:
            assert taken is not None
            await scene.acks(scene.last, taken)


async def test_a_message_that_is_on_its_way_to_the_dead_letters_is_nobodys(tmp_path: Path) -> None:
    async with claiming(tmp_path / "s", aiodq.ChannelOptions(dead_letter="dead")) as scene:
        dead = scene.store.queue("dead", options=aiodq.StoreOptions(max_messages=1))
        await dead.put(b"full")
        number = await scene.claim(scene.first, FIRST)
        assert number is not None
        rejecting = scene.first.send(Reject(2, 1, scene.owner.epoch, 0, number, "unwanted", ""))
        await scene.first.ask(Ping(1))
        assert await scene.claim(scene.last, Held(0, 6, 1, 1)) is None
        await dead.purge()
        assert await scene.first.answer(rejecting) == Done()
        assert scene.queue.depth == 0


@pytest.mark.parametrize("nacks", [1, 2])
async def test_who_comes_too_late_for_a_delivery_does_not_undo_that_others_had_it_since(
    tmp_path: Path, nacks: int
) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        scene = Scene(store, owner, await joined(tmp_path / "s", 7), await joined(tmp_path / "s", 8))
        await scene.queue.put(b"0")
        for _ in range(nacks):
            await (await scene.queue.get(timeout=PATIENCE)).nack()
        assert await scene.claim(scene.first, FIRST) is None
        assert (await scene.queue.get(timeout=PATIENCE)).attempts == nacks + 1
        await scene.first.close()
        await scene.last.close()


@pytest.mark.parametrize("who", ["missed", "noted", "previous"])
async def test_who_missed_an_owner_does_not_undo_that_another_had_the_message_since(tmp_path: Path, who: str) -> None:
    path, before = tmp_path / "s", new_epoch(MOMENT)
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"0")
        await (await store.queue("jobs").get()).nack()
    noted = [[8, 1], [7, 1]] if who == "noted" else [[8, 1]]
    (path / CLIENTS).write_text(json.dumps([*noted, [before, -1]]))
    async with owned(path, reclaim=3600) as (store, owner):
        scene = Scene(store, owner, await joined(path, 7), await joined(path, 8))
        epoch = before if who == "previous" else new_epoch(MOMENT - 10**9)
        assert (await scene.claim(scene.first, FIRST, epoch) is None) == (who == "missed")
        await scene.first.close()
        await scene.last.close()


async def test_a_rejection_that_was_begun_is_repeated_though_it_was_counted(tmp_path: Path) -> None:
    path, copy = tmp_path / "s", tmp_path / "killed"
    async with aiodq.open(path) as store:
        await store.queue("dead", options=aiodq.StoreOptions(max_messages=1)).put(b"full")
        queue = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await queue.put(b"0")
        rejecting = asyncio.ensure_future((await queue.get()).reject("unwanted"))
        before = queue._channel_engine.state
        assert before is not None
        await until(lambda: before.attempts(0) == 1)
        await queue.sync()
        shutil.copytree(path, copy)
        await store.queue("dead").purge()
        await rejecting
    listen(str(copy)).sock.close()
    async with owned(copy, reclaim=3600) as (store, owner):
        scene = Scene(store, owner, await joined(copy, 7), await joined(copy, 8))
        state = scene.queue._channel_engine.state
        assert state is not None
        assert state.attempts(0) == 1
        number = await scene.claim(scene.first, FIRST)
        assert number is not None
        await store.queue("dead").purge()
        assert await scene.first.ask(Reject(2, 1, owner.epoch, 0, number, "unwanted", "")) == Done()
        await scene.first.close()
        await scene.last.close()


@pytest.mark.parametrize("reclaim", [0.0, 3600.0], ids=["late", "in time"])
async def test_whose_delivery_was_noted_before_its_owner_was_killed_has_the_message(
    tmp_path: Path, reclaim: float
) -> None:
    options = aiodq.ChannelOptions(max_attempts=5)
    async with aiodq.open(tmp_path / "s") as store:
        queue = store.queue("jobs", options)
        await queue.put(b"0")
        async for message in queue:
            assert message.attempts == 1
            await queue.sync()
            break
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    listen(str(tmp_path / "killed")).sock.close()
    async with owned(tmp_path / "killed", reclaim=reclaim) as (store, owner):
        scene = Scene(store, owner, await joined(tmp_path / "killed", 7), await joined(tmp_path / "killed", 8))
        if not reclaim:
            await owner.reclaimed()
        state = scene.queue._channel_engine.state
        assert state is not None
        assert state.attempts(0) == 1
        taken = await scene.claim(scene.first, FIRST)
        assert taken is not None
        await scene.acks(scene.first, taken)
        await scene.first.close()
        await scene.last.close()


async def test_counts_that_are_asked_for_behind_a_claim_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client holds does not count as ready meanwhile."""
    go, resume = asyncio.Event(), Resuming._claim_rest

    async def later(*given: Any, **named: Any) -> Done:
        await go.wait()
        return await resume(*given, **named)

    monkeypatch.setattr(Resuming, "_claim_rest", later)
    async with owned(tmp_path / "s") as (store, _), asyncio.timeout(PATIENCE):
        await store.queue("jobs").put(b"x")
        client = await joined(tmp_path / "s")
        claiming = client.send(Resume(2, BEFORE, (FIRST,)))
        counting = client.send(Call("refresh", {"handle": 2}))
        for token in range(5):
            assert await client.ask(Ping(token)) == Pong(token)
        assert counting not in client.answers
        go.set()
        assert isinstance(await client.answer(claiming), Done)
        await client.answer(counting)
        counts = [said for said in client.said if isinstance(said, Figures)]
        assert (counts[-1].ready, counts[-1].flying) == (0, 1)
        await client.close()
