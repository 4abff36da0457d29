"""Many messages settled in one call: all of them, or none."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.engine.channel.acks.settlement import Settlement
from tests.channels.support import Machine, counts, ready

if TYPE_CHECKING:
    from aiodq.delivery.leases import Lease


async def test_a_run_is_settled_when_called_and_durable_when_awaited(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", b"b", b"c", b"d"])
        messages = await jobs.get_many(3)
        done = jobs.ack_many(message for message in reversed(messages))
        assert counts(jobs) == (1, 0, 0)
        assert all(message.settled for message in messages)
        assert jobs.stats().acked == 3
        await done
        machine.crash()
        async with machine.jobs() as again:
            assert ready(again) == [b"d"]


async def test_not_awaited_it_is_durable_with_the_next_commit(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", b"b", b"c"])
        jobs.ack_many(await jobs.get_many(2))
        await jobs.sync()
        machine.crash()
        async with machine.jobs() as again:
            assert ready(again) == [b"c"]


async def test_none_is_fine(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put(b"a")
        await jobs.ack_many([])
        assert counts(jobs) == (1, 0, 0)


@pytest.mark.parametrize(
    "order",
    [
        [*range(100)],
        [*range(99, -1, -1)],
        [*range(0, 100, 2)],
        [0, 55, 2, 57],
        [11, 12, 60, 61, 59],
        [3],
        [*range(5, 95)],
        [*range(35), *range(36, 99)],  # a hole in the first lease, behind a run of some length
        [*range(49), *range(50, 100)],  # its last message
        [*range(40), *range(60, 100), *range(40, 60)],
        [0, *range(2, 100)],
    ],
)
async def test_in_whatever_order_these_and_no_others_are_settled(machine: Machine, order: list[int]) -> None:
    async with machine.jobs() as jobs:
        messages: list[aiodq.Message] = []
        for _ in range(2):  # in two leases
            await jobs.put_many([b"x"] * 50)
            messages += await jobs.get_many(50)
        await jobs.ack_many(messages[place] for place in order)
        assert [message.settled for message in messages] == [place in order for place in range(100)]
        assert counts(jobs) == (0, 100 - len(order), 0)


@pytest.mark.parametrize("what", ["settled", "twice", "timed out", "other channel", "looked at", "older delivery"])
async def test_on_an_error_none_is_settled(machine: Machine, what: str) -> None:
    async with machine.jobs() as jobs:
        other = jobs.channel("other", aiodq.ChannelOptions(start="earliest"))
        await jobs.put_many([b"a", b"b", b"c"])
        first, second = await jobs.get_many(2)
        error: type[Exception] = aiodq.NotInFlightError
        if what == "settled":
            await second.ack()
            error = aiodq.AlreadySettledError
        elif what == "twice":
            second, error = first, aiodq.AlreadySettledError
        elif what == "timed out":
            machine.clock.advance(50)
            await first.touch()
            machine.clock.advance(20)
        elif what == "other channel":
            second = await other.get()
        elif what == "looked at":
            second = await jobs.read(1)
        else:
            await jobs.seek(1)
            first = await jobs.get()
        with pytest.raises(error):
            await jobs.ack_many([first, second])
        assert not first.settled
        await first.ack()


@pytest.mark.parametrize("deleted", [False, True])
async def test_whose_message_it_is_is_said(machine: Machine, deleted: bool) -> None:
    async with machine.store() as store:
        topic, options = store.topic("t"), aiodq.ChannelOptions(start="earliest")
        channels = [topic.channel(name, options) for name in "ab"]
        await topic.put(b"x")
        message = await channels[0].get()
        if deleted:
            await topic.delete_channel("a")
            await topic.put(b"y")
        other = topic.channel("a", options) if deleted else channels[1]
        hint = "by 't', channel 'a', " + ("which was deleted" if deleted else "not by 't', channel 'b'")
        with pytest.raises(aiodq.NotInFlightError, match=re.escape(hint)):
            await other.ack_many([message, await other.get()])


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (None, "write await message.ack() for one"),
        ("ab", "ack_many takes a list of messages, not 'ab' (str)"),
        ([0], "get_many(100)"),
    ],
)
async def test_what_is_no_message_is_refused_in_words(machine: Machine, given: Any, hint: str) -> None:
    async with machine.jobs() as jobs:
        with pytest.raises(aiodq.InvalidOptionTypeError, match=re.escape(hint)):
            jobs.ack_many(given)
        await jobs.put(b"a")
        message: Any = await jobs.get()
        with pytest.raises(aiodq.InvalidOptionTypeError, match=re.escape("await message.ack()")):
            jobs.ack_many(message)
        assert counts(jobs) == (0, 1, 0)


@pytest.mark.parametrize("index", [0, 3, 4, 10**6])
async def test_what_only_looks_like_a_message_is_refused(machine: Machine, index: int) -> None:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"a", b"b", b"c"])
        messages: list[Any] = await jobs.get_many(3)
        alike: Any = SimpleNamespace(_run=messages[0]._run, _index=index, offset=0)
        with pytest.raises((aiodq.InvalidOptionTypeError, aiodq.AlreadySettledError)):  # it is in place of the first
            jobs.ack_many([alike, *messages])
        assert counts(jobs) == (0, 3, 0)


async def test_it_makes_room_and_wakes_who_waits(machine: Machine) -> None:
    async with machine.store(max_messages=2) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        assert jobs.full()
        await jobs.ack_many(await jobs.get_many(2))
        await jobs.join()
        assert not jobs.full()


async def test_one_with_an_entry_of_its_own_leaves_other_leases_to_be_settled_in_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[int] = []
    ack = ChannelState.ack

    def counted(state: ChannelState, start: int, stop: int | None = None) -> None:
        alone.extend(range(start, start + 1 if stop is None else stop))
        ack(state, start, stop)

    monkeypatch.setattr(ChannelState, "ack", counted)
    async with machine.jobs() as jobs:
        await jobs.put_many([b"%d" % number for number in range(10)])
        await jobs.put_many([b"%d" % number for number in range(90)])
        messages = [*await jobs.get_many(10), *await jobs.get_many(80)]
        await messages[5].touch()
        with pytest.raises(aiodq.AlreadySettledError):
            jobs.ack_many([*messages, messages[80]])
        with pytest.raises(aiodq.AlreadySettledError):
            jobs.ack_many([messages[5], *messages])
        assert counts(jobs) == (10, 90, 0)
        await jobs.ack_many([*messages[:5], *messages[6:], messages[5]])
        assert counts(jobs) == (10, 0, 0)
        assert jobs.stats().acked == 90
        assert all(message.settled for message in messages)
        machine.crash()
        async with machine.jobs() as again:
            assert len(ready(again)) == 10
    assert sorted(alone) == list(range(10))  # those of its lease


@pytest.mark.parametrize("order", ["shuffled", "every other"])
async def test_those_that_do_not_follow_each_other_are_settled_in_runs_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seed: int, order: str
) -> None:
    alone: list[int] = []
    ack = ChannelState.ack

    def counted(state: ChannelState, start: int, stop: int | None = None) -> None:
        alone.append(start)
        ack(state, start, stop)

    monkeypatch.setattr(ChannelState, "ack", counted)
    async with machine.jobs() as jobs:
        for _ in range(3):
            await jobs.put_many([b"x"] * 100)
        messages = await jobs.get_many(300)
        given = messages[::2]
        if order == "shuffled":
            given = [*messages]
            random.Random(seed).shuffle(given)
        with pytest.raises(aiodq.AlreadySettledError):
            jobs.ack_many([*given, given[7]])
        assert counts(jobs) == (0, 300, 0), "none"
        await jobs.ack_many(given)
        assert alone == []
        assert counts(jobs) == (0, 300 - len(given), 0)
        assert [message.settled for message in messages].count(True) == len(given)
        for message in messages:
            if not message.settled:
                await message.nack()
        again = await jobs.get_many(300) if len(given) < 300 else []
        random.Random(seed).shuffle(again)
        await jobs.ack_many(again)
        assert counts(jobs) == (0, 0, 0)


async def test_of_any_messages_all_are_settled_or_none(machine: Machine, seed: int) -> None:
    """Beside a plain model: in flight in leases or apart, measured, settled before, given twice, another's, or none."""
    rng = random.Random(seed)
    async with machine.jobs(max_in_flight=10_000) as jobs:
        engine = jobs._channel_engine
        engine.latency._stride = 7
        others = jobs.topic.channel("others", aiodq.ChannelOptions(start="earliest"))
        await jobs.put_many([b"x"] * 300)
        messages = list[aiodq.Message]()
        for count in (1, 100, 10, 100, 50):
            messages += await jobs.get_many(count)
            messages.append(await jobs.get())
        for message in rng.sample(messages, 20):
            await message.touch()
        for message in rng.sample(messages, 10):
            await message.nack()
            messages.remove(message)
        messages += await jobs.get_many(10)
        refused: dict[str, list[Any]] = {
            "stranger": await others.get_many(20),
            "no message": [None, "a", 1, b"", (), messages[0].body, jobs],
        }
        left = set(messages)
        for _ in range(60):
            begin = rng.randrange(len(messages))
            given = messages[begin : begin + rng.choice([5, 50, 150])]
            if rng.random() < 0.5:
                given = rng.sample(messages, rng.randrange(1, 40))
            wrong = rng.choice(["", "", "twice", "settled", "stranger", "no message"])
            if wrong != "settled":
                given = [message for message in given if message in left]
            if wrong == "twice" and given:
                given.insert(rng.randrange(len(given) + 1), rng.choice(given))
            elif wrong in refused:
                given.insert(rng.randrange(len(given) + 1), rng.choice(refused[wrong]))
            marks = [message._run.marks[message._index] for message in messages]
            if len(set(given)) == len(given) and left.issuperset(given):
                await jobs.ack_many(given)
                left -= set(given)
            else:
                with pytest.raises((aiodq.AlreadySettledError, aiodq.NotInFlightError, aiodq.InvalidOptionTypeError)):
                    jobs.ack_many(given)
                assert [message._run.marks[message._index] for message in messages] == marks
            assert [message.settled for message in messages] == [message not in left for message in messages]
            assert jobs.in_flight() == len(left)
        assert jobs.stats().acked == len(messages) - len(left)
        await jobs.ack_many(left)
        assert engine.latency.open.keys().isdisjoint(message._delivery for message in messages), "each was measured"


async def test_those_out_of_order_cost_no_call_each(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    ack_run = Settlement.ack_run

    def counted(channel: Settlement, lease: Lease, first: int, count: int) -> None:
        runs.append(first)
        ack_run(channel, lease, first, count)

    monkeypatch.setattr(Settlement, "ack_run", counted)
    async with machine.jobs(max_in_flight=10_000) as jobs:
        await jobs.put_many([b"x"] * 2000)
        messages = await jobs.get_many(2000)
        jobs.ack_many(messages[::2])
        assert counts(jobs) == (0, 1000, 0)
        assert len(runs) < 300  # of those whose latency is measured: the more, the fewer were delivered before
