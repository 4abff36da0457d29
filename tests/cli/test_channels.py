from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from aiodq.opening import open as open_store
from aiodq.options import ChannelOptions, Retention, StoreOptions
from tests.cli.support import Owner, aiodq, fill, ok

if TYPE_CHECKING:
    from pathlib import Path

KEEP = StoreOptions(retention=Retention(consumed="keep"))


def acked(store: Path, number: int) -> None:
    """Let channel `default` of `t` ack so many, and keep them."""

    async def work() -> None:
        async with open_store(store, KEEP) as opened:
            queue = opened.queue("t")
            for _ in range(number):
                await (await queue.get()).ack()

    asyncio.run(work())


def test_channels_are_listed_beside_a_live_owner(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    acked(tmp_path, 1)
    with Owner(tmp_path, "u"):
        assert ok("channels", tmp_path, "t").lines == [b"default: 2 messages to come, from offset 1 on"]
        assert ok("channels", tmp_path, "t", "--json").json["default"]["depth"] == 2
    assert aiodq("channels", tmp_path, "none").code == 2


def test_peek_takes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    acked(tmp_path, 1)
    assert ok("peek", tmp_path, "t").lines == [b"b"]
    assert ok("peek", tmp_path, "t", "-n", "9").lines == [b"b", b"c"]
    assert json.loads(ok("peek", tmp_path, "t", "--json").out)["offset"] == 1
    assert ok("peek", tmp_path, "t", "-n", "0").lines == []
    assert len(ok("get", tmp_path, "t").lines) == 2
    assert aiodq("peek", tmp_path, "t", "--channel", "none").code == 2
    assert "no channel" in aiodq("peek", tmp_path, "t", "--channel", "none").err


def test_seek_lets_messages_come_again(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    acked(tmp_path, 3)
    assert ok("seek", tmp_path, "t", "default", "1").lines == [b"default: 2 messages to come, from offset 1 on"]
    assert ok("get", tmp_path, "t").lines == [b"b", b"c"]
    assert ok("seek", tmp_path, "t", "default", "latest").lines == [b"default: 0 messages to come, from offset 3 on"]
    assert ok("seek", tmp_path, "t", "default", "2100-01-01T00:00:00+00:00").lines[0].startswith(b"default: 0")


def test_seek_where_there_is_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    for position in ("yesterday", "2026-01-01", "-1", "1.5", "9" * 5000):
        done = aiodq("seek", tmp_path, "t", "default", position)
        assert done.code == 2
        assert len(done.err) < 200
    assert aiodq("seek", tmp_path, "t", "default", "9").code == 1
    assert aiodq("seek", tmp_path, "t", "none", "earliest").code == 2
    assert ok("peek", tmp_path, "t").lines == [b"a"]


def test_a_new_channel_begins_where_it_is_asked_to_or_says_where(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    assert ok("channels", tmp_path, "t", "--create", "x", "--start", "1").lines == [
        b"x: 2 messages to come, from offset 1 on"
    ]
    assert ok("channels", tmp_path, "t", "--create", "y", "--start", "9").lines == [
        b"y: 0 messages to come, from offset 3 on: the topic ends there, not at 9"
    ]
    ok("purge", tmp_path, "t")
    assert ok("channels", tmp_path, "t", "--create", "z", "--start", "1").lines == [
        b"z: 0 messages to come, from offset 3 on: the topic begins there by now, not at 1"
    ]
    assert ok("channels", tmp_path, "t", "--create", "z", "--start", "1").lines == [
        b"z: was there; 0 messages to come, from offset 3 on"
    ]


def test_dead_letters_go_back_to_where_they_come_from(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_store(tmp_path) as store:
            queue = store.queue("jobs", ChannelOptions(dead_letter="dead"))
            for number in range(3):
                await queue.put(b"%d" % number, tag="red", headers={"a": "b"})
                await (await queue.get()).reject("no")
            await store.queue("dead").put(b"somebody else's")

    asyncio.run(work())
    assert ok("requeue-dead", tmp_path, "dead", "-n", "1").lines == [b"put back 1 message"]
    assert ok("requeue-dead", tmp_path, "dead").lines == [b"put back 2 messages; 1 without a channel to go to stays"]
    lines = [json.loads(line) for line in ok("get", tmp_path, "jobs", "--json").lines]
    assert [(line["body"], line["tag"], line["headers"]) for line in lines] == [
        (str(number), "red", {"a": "b"}) for number in range(3)
    ]
    assert ok("get", tmp_path, "dead").lines == [b"somebody else's"]
    assert aiodq("requeue-dead", tmp_path, "nowhere").code == 2
