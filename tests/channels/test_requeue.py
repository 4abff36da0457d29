"""Dead letters that go back, each to the channel that gave it up."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import aiodq
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from tests.channels.support import PATIENCE, Machine, counts, ready, soon, until

if TYPE_CHECKING:
    from collections.abc import Iterable

DYING = aiodq.ChannelOptions(dead_letter="dead", max_attempts=2)


async def dead(store: aiodq.Store, *bodies: bytes, also: Iterable[str] = ()) -> tuple[aiodq.Channel, aiodq.Queue]:
    """Return a channel that gave these up, and the queue of their letters; other channels have acked them."""
    topic = store.topic("jobs")
    work = topic.channel("work", DYING)
    others = [topic.channel(name, aiodq.ChannelOptions(start="earliest")) for name in also]
    letters = store.queue("dead")
    await letters.topic.settle_in()
    for body in bodies:
        await topic.put(body, tag="t", key=b"k", headers={"own": body.decode()})
    for channel in others:
        for _ in bodies:
            await (await channel.get()).ack()
    for _ in bodies:
        await (await work.get()).reject("bad " + "luck")
    await until(lambda: letters.qsize() == len(bodies))
    return work, letters


async def test_they_go_back_as_they_were_to_their_own_channel_alone(machine: Machine) -> None:
    async with machine.store() as store:
        work, letters = await dead(store, b"a", b"b", b"c", also=["other"])
        other = store.topic("jobs").channel("other")
        assert await store.requeue_dead("dead") == 3
        assert counts(letters) == (0, 0, 0)
        assert other.depth == 0
        found = [await soon(work.get()) for _ in range(3)]
        assert [message.body for message in found] == [b"a", b"b", b"c"]
        assert [(m.tag, m.key, m.headers, m.attempts) for m in found] == [
            ("t", b"k", {"own": body}, 1) for body in "abc"
        ]
        assert other.depth == 0
        late = store.topic("jobs").channel("late", aiodq.ChannelOptions(start=3))
        await store.topic("jobs").put(b"new")
        assert (await soon(other.get())).body == b"new"
        assert (await soon(late.get())).body == b"new"


@pytest.mark.parametrize("crash", [False, True])
async def test_after_a_restart_it_is_still_for_that_channel_alone(machine: Machine, *, crash: bool) -> None:
    async with machine.store() as store:
        await dead(store, b"a", b"b", also=["other"])
        assert await store.requeue_dead("dead") == 2
        if crash:
            machine.crash()
    async with machine.store() as store:
        topic = store.topic("jobs")
        assert ready(topic.channel("work")) == [b"a", b"b"]
        assert ready(topic.channel("other")) == []
        assert topic.channel("other").depth == 0
        assert store.queue("dead").depth == 0


async def test_a_predicate_and_a_limit_choose(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a", b"b", b"c", b"d")
    assert await store.requeue_dead("dead", where=lambda letter: letter.body in b"bcd", limit=2) == 2
    assert ready(work) == [b"b", b"c"]
    assert letters.qsize() == 2
    assert await store.requeue_dead("dead", where=lambda letter: letter.headers["aiodq-reason"] != "bad luck") == 0
    assert await store.requeue_dead("dead", limit=0) == 0
    assert ready(letters) == [b"a", b"d"]
    with pytest.raises(aiodq.InvalidOptionError):
        await store.requeue_dead("dead", limit=-1)
    wrong: Any = "all"
    with pytest.raises(aiodq.InvalidOptionError, match="where is a function"):
        await store.requeue_dead("dead", where=wrong)
    assert await store.requeue_dead("daed") == 0
    assert store.topics() == ["dead", "jobs"]


async def says_no(_letter: aiodq.Message) -> bool:
    return False


class SaysNo:
    async def __call__(self, letter: aiodq.Message) -> bool:
        return await says_no(letter)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (says_no, "async def"),
        (SaysNo(), "async def"),
        (partial(says_no), "async def"),
        (mock.AsyncMock(), "async def"),
        (lambda letter: says_no(letter), "not awaited"),  # noqa: PLW0108 - what it returns is what is tried
        (lambda _: asyncio.get_running_loop().create_future(), "not awaited"),
        (lambda letter: (yield letter), "yield"),
    ],
)
async def test_a_predicate_that_nobody_awaits_is_refused(store: aiodq.Store, where: Any, named: str) -> None:
    work, letters = await dead(store, b"a")
    with pytest.raises(TypeError, match=f"{named}.* write a plain function") as refused:
        await store.requeue_dead("dead", where=where)
    assert isinstance(refused.value, aiodq.InvalidOptionError)
    assert (counts(letters), counts(work)) == ((1, 0, 0), (0, 0, 0))


async def test_more_than_may_be_in_flight(store: aiodq.Store) -> None:
    names = [b"%d" % number for number in range(250)]
    work, letters = await dead(store, *names)
    store.topic("dead").channel("default", aiodq.ChannelOptions(max_in_flight=1))
    assert await store.requeue_dead("dead", where=lambda letter: int(letter.body) % 2 == 0) == 125
    assert letters.qsize() == 125
    assert ready(work) == names[::2]


async def test_what_somebody_has_or_waits_stays(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a", b"b", b"c")
    held = await letters.get()
    await (await letters.get()).nack(60)
    assert await store.requeue_dead("dead") == 1
    assert ready(work) == [b"c"]
    assert counts(letters) == (0, 1, 1)
    await held.ack()


async def test_what_has_nowhere_to_go_stays(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a")
    await store.topic("dead").put(b"somebody's")
    await store.topic("jobs").delete_channel(work.name)
    assert await store.requeue_dead("dead") == 0
    assert ready(letters) == [b"a", b"somebody's"]
    assert store.topic("jobs").channels() == []


async def test_what_its_channel_would_filter_out_by_now_stays(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a", b"b")
    await work.configure(aiodq.ChannelOptions(dead_letter="dead", max_attempts=2, tags={"other"}))
    assert await store.requeue_dead("dead") == 0
    assert counts(letters) == (2, 0, 0)
    await work.configure(aiodq.ChannelOptions(dead_letter="dead", max_attempts=2, tags={"other", "t"}))
    assert await store.requeue_dead("dead") == 2
    assert [(await soon(work.get())).body for _ in range(2)] == [b"a", b"b"]


async def test_attempts_begin_anew_and_it_may_die_again(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a")
    assert await store.requeue_dead("dead") == 1
    for attempt in (1, 2):
        message = await soon(work.get())
        assert message.attempts == attempt
        await message.nack()
    letter = await soon(letters.get())
    assert letter.headers["own"] == "a"
    assert "aiodq-for" not in letter.headers
    await letter.nack()
    assert await store.requeue_dead("dead") == 1
    assert (await soon(work.get())).headers == {"own": "a"}


async def test_what_cannot_be_committed_stays(store: aiodq.Store) -> None:
    work, letters = await dead(store, b"a", b"b")
    with (
        mock.patch.object(TransactionFile, "append", side_effect=aiodq.DiskFullError("no space")),
        pytest.raises(aiodq.DiskFullError),
    ):
        await store.requeue_dead("dead")
    assert (counts(letters), counts(work)) == ((2, 0, 0), (0, 0, 0))
    assert await store.requeue_dead("dead") == 2


async def test_cancelled_they_are_here_or_there(machine: Machine) -> None:
    async with machine.store(max_messages=2) as store:
        work, letters = await dead(store, b"a")
        await store.topic("jobs").put_many([b"x", b"y"])
        going = asyncio.ensure_future(store.requeue_dead("dead"))
        await until(lambda: letters.in_flight() == 1)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert (counts(letters), work.depth) == ((1, 0, 0), 2)
        assert (await letters.get()).attempts == 1


async def test_cancelled_while_it_is_refused_they_are_here(store: aiodq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, letters = await dead(store, b"a", b"b")
    under_way, refused = threading.Event(), threading.Event()

    def full(*_: Any) -> None:
        under_way.set()
        assert refused.wait(PATIENCE)
        raise aiodq.DiskFullError("no room", "/s")

    monkeypatch.setattr(TransactionFile, "append", full)
    going = asyncio.ensure_future(store.requeue_dead("dead"))
    await until(under_way.is_set)
    going.cancel()
    await asyncio.wait([going])
    assert counts(letters) == (0, 2, 0)
    refused.set()
    await until(lambda: counts(letters) == (2, 0, 0))
    assert [(await letters.get()).attempts for _ in range(2)] == [1, 1]


async def test_a_single_channel_of_another_name_is_meant(store: aiodq.Store) -> None:
    work = store.topic("jobs").channel("work", DYING)
    night = store.topic("dead").channel("night")
    await store.topic("jobs").put(b"a")
    await (await work.get()).reject()
    await until(lambda: night.qsize() == 1)
    assert await store.requeue_dead("dead") == 1
    assert store.topic("dead").channels() == ["night"]
    assert night.depth == 0


async def test_in_a_transaction_it_is_refused(store: aiodq.Store) -> None:
    _, letters = await dead(store, b"a")
    with pytest.raises(aiodq.WrongContextError):
        async with store.transaction():
            await store.requeue_dead("dead")
    assert counts(letters) == (1, 0, 0)


async def test_nobody_else_puts_a_message_for_one_channel_alone(store: aiodq.Store) -> None:
    jobs = store.queue("jobs")
    headers = {"aiodq-for": "other"}
    for put in (
        lambda: jobs.put(b"x", headers=headers),
        lambda: jobs.put_many([b"x"], headers=headers),
        lambda: jobs.put_many([b"y", aiodq.Draft(b"x", headers=headers)]),
    ):
        with pytest.raises(aiodq.InvalidMessageError, match=r"'aiodq-for' .* aiodq's own"):
            await put()
    with pytest.raises(aiodq.InvalidMessageError):
        jobs.put_nowait(b"x", headers=headers)
    async with store.transaction() as tx:
        with pytest.raises(aiodq.InvalidMessageError):
            tx.put("jobs", b"x", headers=headers)
    await jobs.put(b"x", headers={"aiodq-topic": "of a letter that somebody hands on"})
    assert ready(jobs) == [b"x"]


async def test_a_topic_of_something_else_is_left_as_it_is(machine: Machine) -> None:
    """One named by mistake is given no channel that would hold its segments back for ever."""
    async with machine.store() as store:
        await store.topic("plain").put(b"x")
        assert await store.requeue_dead("plain") == 0
        assert store.topic("plain").channels() == []
        topic = store.topic("jobs")
        for name in ("a", "b"):
            topic.channel(name)
        await topic.settle_in()
        with pytest.raises(aiodq.InvalidOptionError, match="the channels a, b and none called 'default'"):
            await store.requeue_dead("jobs")
        assert sorted(topic.channels()) == ["a", "b"]


async def test_letters_that_nobody_has_read_yet_go_back(machine: Machine) -> None:
    async with machine.store() as store:
        topic = store.topic("jobs")
        work = topic.channel("work", DYING)
        await topic.put(b"a")
        await (await soon(work.get())).reject("bad luck")
        await until(lambda: "dead" in store.topics())
        assert store.topic("dead").channels() == []
        assert await store.requeue_dead("dead") == 1
        assert (await soon(work.get())).body == b"a"
