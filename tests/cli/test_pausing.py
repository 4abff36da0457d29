"""Deliveries are stopped and go on, from the command line, whoever owns the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiodq import sync
from aiodq.opening import open_reader
from tests.cli.support import aiodq, fill, ok

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[False, True], ids=["alone", "beside an owner"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    fill(tmp_path, "t", [b"a"])
    ok("channels", tmp_path, "t", "--create", "other", "--start", "earliest")
    if not request.param:
        yield tmp_path
        return
    with sync.open(tmp_path, mode="shared"):
        yield tmp_path


def paused(store: Path) -> list[str]:
    return [name for name, channel in open_reader(store).topic("t").stats().channels.items() if channel.paused]


def test_a_channel_is_paused_and_others_are_not(store: Path) -> None:
    assert ok("pause", store, "t", "--channel", "other").lines == [b"paused channel other of t"]
    assert paused(store) == ["other"]
    assert ok("get", store, "t").lines == [b"a"]
    assert b"paused: t/other" in ok("stat", store).out
    assert ok("stat", store, "--json").json["topics"]["t"]["channels"]["other"]["paused"] is True
    assert ok("channels", store, "t").lines[1] == b"other: 1 message to come, from offset 0 on, paused"
    assert ok("resume", store, "t", "--channel", "other").lines == [b"resumed channel other of t"]
    assert ok("get", store, "t", "--channel", "other").lines == [b"a"]
    assert b"paused:" not in ok("stat", store).out


def test_a_topic_is_paused_with_all_channels_and_says_who_still_is(store: Path) -> None:
    assert ok("pause", store, "t").lines == [b"paused t"]
    assert paused(store) == ["default", "other"]
    ok("pause", store, "t", "--channel", "other")
    assert ok("resume", store, "t", "--channel", "other").lines == [
        b"resumed channel other of t; its topic is still paused"
    ]
    ok("pause", store, "t", "--channel", "other")
    assert ok("resume", store, "t", "--json").json == {"topic": "t", "channel": None, "paused": ["other"]}
    assert ok("resume", store, "t").lines == [b"resumed t; still paused: other"]
    assert paused(store) == ["other"]


def test_what_is_not_there_is_not_made(store: Path) -> None:
    for command in ("pause", "resume"):
        assert aiodq(command, store, "u").code == 2
        refused = aiodq(command, store, "t", "--channel", "oter")
        assert refused.code == 2
        assert "did you mean 'other'?" in refused.err
    assert open_reader(store).topics() == ["t"]
