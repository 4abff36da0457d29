"""What an owner tells those who look at its whole store: of topics, what has changed since they looked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiodq
from aiodq.engine.stats.active_topics import ActiveTopics
from aiodq.engine.stats.topic_stats import topic_stats
from aiodq.shared import administration
from aiodq.shared.client import owner_report
from aiodq.shared.connection import in_turns
from aiodq.shared.encoding import stats_json
from aiodq.shared.encoding.answers import read_topic
from aiodq.shared.requests import calls
from aiodq.shared.requests.owner_state import overview
from aiodq.shared.requests.owner_state.overview import Overview
from aiodq.stats import ChannelStats, HeldSegment, Latency, TopicStats
from aiodq.wire.layout import JSON
from aiodq.wire.payload import json_bytes
from tests.shared.support import PATIENCE, QUICK, owned, two, until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from aiodq.shared.requests.serving import Owning

NAMES = ["a", "b", "c"]


async def filled(store: aiodq.Store, names: list[str]) -> list[aiodq.Topic]:
    topics = [store.topic(name) for name in names]
    for topic in topics:
        await topic.put(b"x")
    return topics


async def test_a_client_asks_for_the_topics_alone_that_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    looks = 0
    stats, look = calls._STORE["stats"], calls._STORE["store"]

    async def asking(owner: Owning, arguments: Mapping[str, Any]) -> Any:
        asked.append(arguments["topic"])
        return await stats(owner, arguments)

    async def looking(owner: Owning, arguments: Mapping[str, Any]) -> Any:
        nonlocal looks
        looks += 1
        return await look(owner, arguments)

    monkeypatch.setitem(calls._STORE, "stats", asking)
    monkeypatch.setitem(calls._STORE, "store", looking)
    monkeypatch.setattr(owner_report, "_LOOK", 0.002)
    monkeypatch.setattr(owner_report, "_SHARE", 0)
    monkeypatch.setattr(overview, "_FRESH", 0.0)
    monkeypatch.setattr(overview, "_SHARE", 0)
    async with two(tmp_path / "s") as (store, client), asyncio.timeout(PATIENCE):
        topics = await filled(store, NAMES)
        await topics[0].put(b"y")
        await until(lambda: client.topics() == NAMES and client.stats().topics["a"].end_offset == 2)
        seen = looks
        await until(lambda: looks >= seen + 20)  # what came while the topics were made is told by now
        asked.clear()
        await until(lambda: looks >= seen + 60)
        assert asked == []
        await topics[1].put(b"y")
        await until(lambda: client.stats().topics["b"].end_offset == 2)
        assert set(asked) == {"b"}
        await store.delete_topic("c")
        await until(lambda: sorted(client.stats().topics) == ["a", "b"])


async def test_a_topic_of_very_many_channels_is_reported_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CHANNELS", 3)
    path = tmp_path / "s"
    async with two(path, QUICK) as (store, client), asyncio.timeout(PATIENCE):
        [topic] = await filled(store, ["t"])
        names = [f"c{number:02}" for number in range(10)]
        for name in names:
            await topic.channel(name, aiodq.ChannelOptions(start="earliest")).refresh()
        stores: list[Any] = [await aiodq.open(path, mode="client"), client]
        for one in stores:
            async with one:
                await administration.look_anew(one)
                channels = one.stats().topics["t"].channels
                assert list(channels) == names
                assert {each.depth for each in channels.values()} == {1}


async def test_a_client_of_an_earlier_aiodq_is_sent_all_channels_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CHANNELS", 1)
    async with owned(tmp_path / "s") as (store, owner):
        [topic] = await filled(store, ["t"])
        for name in "abc":
            topic.channel(name)
        facts = await calls._STORE["stats"](owner, {"topic": "t"})
        assert (sorted(facts["channels"]), facts["more"]) == (["a", "b", "c"], False)


async def test_a_channel_deleted_between_two_parts_of_a_report_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CHANNELS", 1)
    async with two(tmp_path / "s", QUICK) as (_, client), asyncio.timeout(PATIENCE):
        store: Any = client
        remote = store._remote
        for name in "ab":
            await client.topic("t").channel(name).refresh()
        result, read, over = remote.link.result, asyncio.Event(), asyncio.Event()

        async def slowly(name: str, *args: Any, **named: Any) -> Any:
            found = await result(name, *args, **named)
            if name == "stats" and args[1]["after"] == "a":
                read.set()
                await over.wait()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(remote.link, "result", slowly)
            look = asyncio.create_task(remote.report.look_once())
            await read.wait()
        await client.topic("t").delete_channel("a")
        over.set()
        await look
        assert list(client.stats().topics["t"].channels) == ["b"]


def test_the_longest_report_of_a_topic_has_room_in_a_packet() -> None:
    most, name = 2**64 - 1, "n" * 64 + "#ephemeral"
    latency = Latency(most, *[1 / 3e100] * 4)
    counts: dict[str, Any] = dict.fromkeys(ChannelStats.__dataclass_fields__, most)
    channel = replace(ChannelStats(**counts), name=name, put_to_deliver=latency, put_to_ack=latency)
    held = (HeldSegment(most, most, most, (f"hold {name}",) * 100),) * 100
    fields: dict[str, Any] = dict.fromkeys(TopicStats.__dataclass_fields__, most)
    topic = replace(TopicStats(**fields), name=name, held=held, failed="\U0001f4a5" * 9999, channels={})
    each = stats_json.channel_facts([channel])[name]
    channels = {f"{number:02}{name[2:]}": each for number in range(stats_json.CHANNELS)}
    facts = {**stats_json.topic_facts(topic), "channels": channels, "more": True, "stamp": (most, most)}
    assert len(json_bytes({"result": facts})) < JSON
    assert read_topic(facts) is not None
    assert stats_json.read_topic_stats(facts).held[0].by == (*held[0].by[:5], "…")


async def test_a_stamp_comes_never_again(tmp_path: Path) -> None:
    """A client may ask for the statistics just while they differ from what they were and will be."""
    async with owned(tmp_path / "s") as (store, owner):
        [topic] = await filled(store, ["t"])
        found = owner.overview
        await found.renew()
        [before] = found.stamps(["t"])
        await topic.pause()
        topic.channel("c")
        amid = found.stamp(topic.stats())
        await store.topic("t").delete_channel("c")
        await topic.resume()
        found._due = 0.0
        await found.renew()
        [after] = found.stamps(["t"])
        assert len({before, amid, after}) == 3
        assert found.stamps(["none"]) == [None]
        assert Overview(store._store_engine, owner.epoch + 1).stamp(topic.stats()) != after


async def test_of_many_idle_topics_some_are_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def looking(engine: Any) -> TopicStats:
        looked.append(engine.name)
        return topic_stats(engine)

    monkeypatch.setattr(overview, "_FRESH", 0.0)
    monkeypatch.setattr(overview, "_SHARE", 0)
    monkeypatch.setattr(overview, "_IDLE", 2)
    async with owned(tmp_path / "s") as (store, owner):
        await filled(store, [f"t{number}" for number in range(6)])
        found = owner.overview
        monkeypatch.setattr(ActiveTopics, "take", lambda _: iter(()))
        for _ in range(3):
            await found.renew()
        monkeypatch.setattr(overview, "topic_stats", looking)
        [before] = found.stamps(["t3"])
        store._store_engine.topics["t3"].log.cut_bytes = 7  # a change that nothing notes
        for _ in range(3):
            await found.renew()
        assert sorted(looked) == [f"t{number}" for number in range(6)]
        assert found.stamps(["t3"]) != [before]


async def test_those_who_look_at_once_look_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def looking(engine: Any) -> TopicStats:
        nonlocal looked
        looked += 1
        return topic_stats(engine)

    monkeypatch.setattr(overview, "_FRESH", PATIENCE)
    monkeypatch.setattr(in_turns, "LONGEST_TURN", 0.0)
    async with owned(tmp_path / "s") as (store, owner):
        await filled(store, NAMES)
        monkeypatch.setattr(overview, "topic_stats", looking)
        first, *others = [asyncio.create_task(owner.overview.renew()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        assert first.cancelled()
        assert None not in owner.overview.stamps(NAMES)
        count = looked
        await owner.overview.renew()
        assert looked == count == len(NAMES)
