"""Commands make nothing by mistake, delete nothing that they were not told to, and say what there is instead."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
from typing import TYPE_CHECKING

import pytest

from aiodq.opening import open as open_store
from aiodq.opening import open_reader
from aiodq.options import ChannelOptions, Retention, StoreOptions
from tests.cli.support import PROGRAM, Owner, aiodq, environment, fill, flip, ok, only_segment
from tests.queue.descriptions import make_older

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = 60
KEEP = StoreOptions(sync="os", segment_bytes=300, retention=Retention(consumed="keep"))


def history(store: Path) -> int:
    """Make a topic with a history that was worked off and is kept, and others; return its number of segments."""

    async def run() -> None:
        async with open_store(store) as opened:
            events = opened.queue("events", options=KEEP)
            for number in range(HISTORY):
                await events.put(b"%d" % number)
            for message in await events.get_many(HISTORY):
                message.ack_nowait()
            jobs = opened.queue("jobs", ChannelOptions(dead_letter="dead"))
            opened.topic("dead").channel("default")
            for body in (b"a", b"b", b"c"):
                await jobs.put(body)
            await (await jobs.get()).reject()

    asyncio.run(run())
    return segments(store)


def segments(store: Path) -> int:
    return len(list((store / "events").glob("*.seg")))


def tree(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.name != "LOCK")


ELSEWHERE = [
    ("put", "jobs"),
    ("put", "new"),
    ("get", "jobs"),
    ("seek", "jobs", "default", "earliest"),
    ("requeue-dead", "dead"),
    ("channels", "jobs", "--create", "c"),
    ("purge", "jobs"),
    ("pause", "jobs"),
    ("resume", "jobs"),
    ("delete-topic", "jobs", "--yes"),
]
THERE = [
    ("put", "events"),
    ("get", "events"),
    ("seek", "events", "default", "latest"),
    ("channels", "events", "--create", "c"),
    ("purge", "events", "--channel", "default"),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a history, of which each test takes a copy."""
    store = tmp_path_factory.mktemp("history") / "store"
    assert history(store) > 8
    return store


class TestHistory:
    @pytest.mark.drawn("command", 4)
    @pytest.mark.parametrize("older", [False, True])
    @pytest.mark.parametrize("command", [*ELSEWHERE, *THERE], ids=" ".join)
    def test_no_command_cuts_what_is_kept(
        self, kept: Path, tmp_path: Path, command: tuple[str, ...], older: bool
    ) -> None:
        store = shutil.copytree(kept, tmp_path / "store")
        before = segments(store)
        if older:
            make_older(store)
        ok(command[0], store, *command[1:], stdin=b"x")
        ok("get", store, "events", "-n", "1")
        assert segments(store) >= before
        assert open_reader(store).topic("events").begin_offset == 0


class TestNames:
    @pytest.mark.parametrize(
        "command",
        [
            ("get", "evnts"),
            ("tail", "evnts"),
            ("channels", "evnts"),
            ("channels", "evnts", "--create", "c"),
            ("peek", "evnts"),
            ("seek", "evnts", "default", "latest"),
            ("requeue-dead", "evnts"),
            ("purge", "evnts"),
            ("delete-topic", "evnts", "--yes"),
            ("export-diskqueue", "evnts", "/nonexistent", "q"),
        ],
        ids=" ".join,
    )
    def test_a_topic_that_is_not_there(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        fill(tmp_path, "events", [b"a"])
        fill(tmp_path, "jobs", [b"a"])
        before = tree(tmp_path)
        done = aiodq(command[0], tmp_path, *command[1:])
        assert done.code == 2
        assert "no topic 'evnts'" in done.err
        assert "did you mean 'events'? there are events, jobs" in done.err
        assert tree(tmp_path) == before

    @pytest.mark.parametrize(
        "command",
        [
            ("get", "t", "--channel", "bilings"),
            ("peek", "t", "--channel", "bilings"),
            ("seek", "t", "bilings", "latest"),
            ("purge", "t", "--channel", "bilings"),
            ("channels", "t", "--delete", "bilings"),
        ],
        ids=" ".join,
    )
    def test_a_channel_that_is_not_there(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        fill(tmp_path, "t", [b"a"])
        ok("channels", tmp_path, "t", "--create", "billing")
        before = tree(tmp_path)
        done = aiodq(command[0], tmp_path, *command[1:])
        assert done.code == 2
        assert "topic 't' has no channel 'bilings'; did you mean 'billing'? there are billing, default" in done.err
        assert "--create bilings makes it" in done.err
        assert tree(tmp_path) == before

    @pytest.mark.parametrize(
        "name", ["get", "tail", "channels", "peek", "requeue-dead", "purge", "pause", "resume", "delete-topic"]
    )
    def test_a_store_that_is_not_there_is_not_made(self, tmp_path: Path, name: str) -> None:
        done = aiodq(name, tmp_path / "none", "t")
        assert done.code == 2
        assert str(tmp_path / "none") in done.err
        assert not (tmp_path / "none").exists()

    def test_many_names_are_not_all_shown(self, tmp_path: Path) -> None:
        async def run() -> None:
            async with open_store(tmp_path, StoreOptions(sync="os")) as store:
                for number in range(13):
                    await store.topic(f"t{number:02}").put(b"x")

        asyncio.run(run())
        assert "t09, and 3 more" in aiodq("get", tmp_path, "zzz").err


class TestChannels:
    def test_made_and_deleted(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a", b"b"])
        assert ok("channels", tmp_path, "t", "--create", "late").lines == [
            b"late: 0 messages to come, from offset 2 on"
        ]
        assert ok("channels", tmp_path, "t", "--create", "early", "--start", "earliest", "--json").json == {
            "topic": "t", "channel": "early", "created": True, "depth": 2, "floor": 0,
        }  # fmt: skip
        assert ok("channels", tmp_path, "t", "--create", "late").lines[0].startswith(b"late: was there; 0 messages")
        assert ok("get", tmp_path, "t", "--channel", "early").lines == [b"a", b"b"]
        assert ok("channels", tmp_path, "t", "--delete", "early").lines == [b"early: deleted, with 0 messages to come"]
        assert ok("channels", tmp_path, "t", "--delete", "late", "--json").json["deleted"] is True
        assert list(ok("channels", tmp_path, "t", "--json").json) == ["default"]

    @pytest.mark.parametrize(
        "wrong",
        [
            ("--create", "a", "--delete", "b"),
            ("--start", "latest"),
            ("--create", "a/b"),
            ("--create", "a", "--start", "x"),
        ],
        ids=" ".join,
    )
    def test_misuse(self, tmp_path: Path, wrong: tuple[str, ...]) -> None:
        fill(tmp_path, "t", [b"a"])
        assert aiodq("channels", tmp_path, "t", *wrong).code == 2
        assert list(ok("channels", tmp_path, "t", "--json").json) == ["default"]


class TestPurge:
    def test_a_topic_and_a_channel(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a", b"b", b"c"])
        ok("channels", tmp_path, "t", "--create", "other", "--start", "earliest")
        assert ok("purge", tmp_path, "t", "--channel", "other").lines == [b"dropped 3 messages from channel other of t"]
        assert ok("get", tmp_path, "t", "-n", "1").lines == [b"a"]
        assert ok("purge", tmp_path, "t", "--json").json == {"topic": "t", "channel": None, "messages": 2}
        assert ok("get", tmp_path, "t").lines == []
        assert ok("purge", tmp_path, "t").lines == [b"dropped 0 messages from t"]


class TestDeleteTopic:
    def test_with_yes(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a", b"b"])
        fill(tmp_path, "u", [b"a"])
        done = ok("delete-topic", tmp_path, "t", "--yes")
        assert done.lines == [b"deleted t with 2 messages and 1 channel"]
        assert ok("delete-topic", tmp_path, "u", "--yes", "--json").json == {
            "topic": "u", "messages": 1, "channels": ["default"],
        }  # fmt: skip
        assert open_reader(tmp_path).topics() == []

    def test_damage_that_was_set_aside_goes_too_and_is_told(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a" * 100, b"b" * 100])
        path = only_segment(tmp_path, "t")
        flip(path, path.stat().st_size // 2)
        ok("get", tmp_path, "t")  # opens it
        assert any(".damaged-" in name for name in tree(tmp_path))
        (line,) = ok("delete-topic", tmp_path, "t", "--yes").lines
        assert line.endswith(b" and 1 quarantined file")
        assert not any(".damaged-" in name for name in tree(tmp_path))

    def test_where_nobody_can_be_asked_it_says_so(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a"])
        done = aiodq("delete-topic", tmp_path, "t", stdin=b"y\n")
        assert done.code == 2
        assert "--yes" in done.err
        assert open_reader(tmp_path).topics() == ["t"]

    @pytest.mark.parametrize(("answer", "left"), [(b"y\n", []), (b"\n", ["t"])])
    def test_on_a_terminal_it_asks(self, tmp_path: Path, answer: bytes, left: list[str]) -> None:
        fill(tmp_path, "t", [b"a"])
        child, terminal = pty.fork()
        if child == 0:
            os.execve(PROGRAM[0], [*PROGRAM, "delete-topic", str(tmp_path), "t"], environment())  # noqa: S606 - as a shell does
        os.write(terminal, answer)
        shown = b""
        try:
            while part := os.read(terminal, 4096):
                shown += part
        except OSError:
            pass  # this is how a terminal ends whose process has
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if left else 0)
        assert b"Delete topic t of" in shown
        assert open_reader(tmp_path).topics() == left

    def test_not_while_somebody_has_it(self, tmp_path: Path) -> None:
        with Owner(tmp_path, "t"):
            assert aiodq("delete-topic", tmp_path, "t", "--yes").code == 2
            assert open_reader(tmp_path).topics() == ["t"]


def test_what_has_no_dead_letter_topic_is_counted_and_shown(tmp_path: Path) -> None:
    """`max_attempts` alone drops for good: `stat` says how many, also where nobody else looks."""

    async def run() -> str:
        async with open_store(tmp_path) as store:
            queue = store.queue("t", ChannelOptions(max_attempts=1))
            await queue.put_many([b"poison", b"x"])
            await (await queue.get()).nack()
            assert queue.stats().dead == 1
            while True:
                shown = await asyncio.to_thread(ok, "stat", tmp_path, "--json")
                if shown.json["topics"]["t"]["channels"]["default"]["dead"] == 1:
                    break
                await asyncio.sleep(0.05)
            return (await asyncio.to_thread(ok, "stat", tmp_path)).out.decode()

    assert "dead" in asyncio.run(run())
