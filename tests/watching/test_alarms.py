"""`StoreOptions.alarms`: raised at their thresholds, cleared well away from them, told in three places."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq import Alarm
from tests.channels.support import Machine, soon, until
from tests.watching.support import at_hand, told

if TYPE_CHECKING:
    from aiodq.engine.monitoring.events import Events


async def looked(machine: Machine, store: aiodq.Store, seconds: float = 1.0) -> None:
    """Let time go by until alarms were looked at."""
    looks = 0
    look = store._store_engine.thresholds._look

    async def counted() -> None:
        nonlocal looks
        await look()
        looks += 1

    store._store_engine.thresholds._look = counted  # type: ignore[method-assign]  # the test waits for a look to end
    await until(lambda: not store._store_engine.metrics._under_way)  # or a sync has taken that time, too
    machine.clock.advance(seconds)
    await until(lambda: looks)
    store._store_engine.thresholds._look = look  # type: ignore[method-assign]  # see above


def heard(events: Events) -> list[tuple[str, str | None, str | None]]:
    return [(event.kind, event.topic, event.channel) for event in at_hand(events)]


class TestRaising:
    async def test_by_depth_in_three_places(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store(alarms=(Alarm(topic="jobs", depth=10),)) as store:
            jobs, events = store.queue("jobs"), store.events()
            await jobs.put_many([b"x"] * 9)
            await looked(machine, store)
            assert (heard(events), store.health().ok) == ([], True)
            await jobs.put(b"x")
            await looked(machine, store)
            assert heard(events) == [("alarm", "jobs", "default")]
            health = store.health()
            assert (health.ok, bool(health), health.depth) == (False, False, 10)
            assert health.reasons == ("channel 'default' of topic 'jobs': the depth is 10 (alarm at 10)",)
            (warned,) = told(lines, "aiodq.store", logging.WARNING)
            assert (warned.getMessage(), warned.__dict__["topic"]) == (health.reasons[0], "jobs")

    async def test_by_age(self, machine: Machine) -> None:
        async with machine.store(alarms=(Alarm(oldest_age=300),)) as store:
            jobs, events = store.queue("jobs"), store.events()
            await jobs.put(b"x")
            await looked(machine, store, 299)
            assert heard(events) == []
            await looked(machine, store, 1)
            assert heard(events) == [("alarm", "jobs", "default")]
            assert store.health().oldest_age == 300
            await (await soon(jobs.get())).ack()
            await looked(machine, store)
            assert heard(events) == [("cleared", "jobs", "default")]
            # What begins to be synced right before time is advanced takes that time.
            assert replace(store.health(), sync_latency=0.0) == aiodq.Health(
                ok=True, reasons=(), failed=None, oldest_age=None, depth=0, disk_free=None, sync_latency=0.0
            )

    async def test_by_free_space(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store(alarms=(Alarm(disk_free=100 << 20),)) as store:
            events = store.events()
            for free, expected in [(90, "alarm"), (110, None), (124, None), (126, "cleared"), (101, None)]:
                machine.fs.capacity = free << 20
                store._store_engine._watch._sample()
                await until(lambda: not store._store_engine._watch._sampling)
                await looked(machine, store)
                assert heard(events) == ([] if expected is None else [(expected, None, None)])
            assert "cleared" in told(lines, "aiodq.store", logging.INFO)[-1].getMessage()

    async def test_every_channel_has_its_own(self, machine: Machine) -> None:
        async with machine.store(alarms=[Alarm(depth=2)]) as store:
            topic, events = store.topic("t"), store.events()
            topic.channel("a")
            await topic.put_many([b"x"] * 2)
            topic.channel("b")
            await topic.put(b"x")
            await store.topic("unread").put_many([b"x"] * 2)
            await looked(machine, store)
            assert sorted(heard(events), key=str) == [("alarm", "t", "a"), ("alarm", "unread", None)]

    async def test_one_channel_alone(self, machine: Machine) -> None:
        async with machine.store(
            alarms=[Alarm(topic="t", channel="b", depth=1), Alarm(topic="other", depth=1)]
        ) as store:
            topic, events = store.topic("t"), store.events()
            topic.channel("a")
            topic.channel("b")
            await topic.put(b"x")
            await store.topic("third").put(b"x")
            await looked(machine, store)
            assert heard(events) == [("alarm", "t", "b")]


class TestHysteresis:
    async def test_a_value_that_wavers_tells_once(self, machine: Machine) -> None:
        async with machine.store(alarms=(Alarm(depth=10),)) as store:
            jobs, events = store.queue("jobs"), store.events()
            await jobs.put_many([b"x"] * 10)
            await looked(machine, store)
            assert heard(events) == [("alarm", "jobs", "default")]
            for _ in range(5):
                await (await soon(jobs.get())).ack()
                await looked(machine, store)
                assert not store.health().ok
                await jobs.put(b"x")
                await looked(machine, store)
            for _ in range(2):
                await (await soon(jobs.get())).ack()
            await looked(machine, store)
            assert (heard(events), store.health().ok) == ([], False)
            await (await soon(jobs.get())).ack()
            await looked(machine, store)
            assert (heard(events), store.health().ok) == ([("cleared", "jobs", "default")], True)

    async def test_what_is_gone_is_cleared(self, machine: Machine) -> None:
        async with machine.store(alarms=(Alarm(depth=1),)) as store:
            events = store.events()
            await store.queue("jobs").put(b"x")
            await looked(machine, store)
            await store.delete_topic("jobs")
            await looked(machine, store)
            assert heard(events) == [("alarm", "jobs", "default"), ("cleared", "jobs", "default")]

    async def test_they_belong_to_the_process(self, machine: Machine) -> None:
        async with machine.store(alarms=(Alarm(depth=1),)) as store:
            await store.queue("jobs").put(b"x")
            await looked(machine, store)
            assert not store.health()
        async with machine.store() as store:
            machine.clock.advance(10)
            assert store.health()

    async def test_in_a_topic_s_own_options_they_mean_nothing(self, machine: Machine) -> None:
        async with machine.store(alarms=(Alarm(depth=5),)) as store:
            topic = store.topic("t", aiodq.StoreOptions(max_messages=50))
            assert store.topic("t", aiodq.StoreOptions(max_messages=50, alarms=(Alarm(depth=1),))) is topic
            await topic.put(b"x")
            await looked(machine, store)
            assert store.health()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "threshold"),
        ({"depth": 0}, "depth"),
        ({"depth": "10"}, "depth"),
        ({"depth": True}, "depth"),
        ({"oldest_age": -1}, "oldest_age"),
        ({"oldest_age": "5 min"}, "oldest_age"),
        ({"disk_free": 1.5}, "disk_free"),
        ({"topic": 5, "depth": 1}, "topic"),
        ({"dept": 5}, "depth"),
        ({"max_in_flight": 5}, "ChannelOptions"),
    ],
)
def test_an_alarm_that_cannot_be_is_refused_in_words(given: dict[str, Any], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        Alarm(**given)


def test_a_name_that_cannot_be_is_refused() -> None:
    with pytest.raises(aiodq.InvalidNameError):
        Alarm(topic="a/b", depth=1)


@pytest.mark.parametrize("given", [Alarm(depth=1), 5, None, ["depth"], {"depth": 5}])
def test_alarms_are_a_tuple_of_them(given: Any) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=r"alarms is a tuple of Alarm.*write alarms=\(Alarm"):
        aiodq.StoreOptions(alarms=given)
