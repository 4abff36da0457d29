"""What the owner of a store shows of its channels to those who look on."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.engine.stats import stats_publisher as showing
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.state.owner_stats import FIGURES, ChannelFigures, read_figures, write_figures
from aiodq.testing import FakeClock, WatchedFileSystem
from tests.containers import in_a_container
from tests.queue.support import fill, numbered, soon, store, take, turns, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aiodq.engine.channel.channel_engine import ChannelEngine


TOOK = aiodq.Latency(5, 0.001, 0.002, 0.5, 1.5)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "_INTERVAL", 0.002)


def counts(fs: WatchedFileSystem, path: Path) -> object:
    """Return what is shown, without how long messages took."""
    found = read_figures(fs, str(path))
    return found and {t: {c: bare(row) for c, row in rows.items()} for t, rows in found.items()}


def bare(row: ChannelFigures) -> ChannelFigures:
    return row._replace(put_to_deliver=None, put_to_ack=None)


async def test_it_follows_the_channels_and_is_gone_at_the_end(path: Path) -> None:
    fs = WatchedFileSystem()

    def shown() -> object:
        return counts(fs, path)

    clock = FakeClock()
    async with store(path, fs=fs, clock=clock) as opened:
        await until(lambda: shown() == {})
        topic = opened.topic("a")
        channel = topic.channel("c", aiodq.ChannelOptions(visibility_timeout=5))
        await fill(topic, numbered(5))
        held = await take(channel, 3)
        await held[0].reject()
        clock.advance(5)
        await until(lambda: shown() == {"a": {"c": ChannelFigures(0, 2, 1)}})
        await channel.configure(aiodq.ChannelOptions())
        await take(channel, 1)
        await until(lambda: shown() == {"a": {"c": ChannelFigures(1, 2, 1)}})
        assert aiodq.open_reader(path).topic("a").stats().channels["c"].in_flight == 1
    assert FIGURES not in os.listdir(path)
    assert shown() is None
    assert aiodq.open_reader(path).topic("a").stats().channels["c"].in_flight is None


async def test_nothing_is_written_while_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = WatchedFileSystem()
    look, looks = showing.StatsPublisher._look, 0

    def count(one: showing.StatsPublisher, names: Iterable[str]) -> object:
        nonlocal looks
        looks += 1
        return look(one, names)

    async with store(path, fs=fs) as opened:
        topic = opened.topic("a")
        await fill(topic, numbered(5))
        await take(topic.channel("c"), 2)
        await until(lambda: counts(fs, path) == {"a": {"c": ChannelFigures(2, 0, 0)}})
        written = len(fs.named("write", match=FIGURES))
        monkeypatch.setattr(showing.StatsPublisher, "_look", count)
        await until(lambda: looks > 5)
        assert len(fs.named("write", match=FIGURES)) == written
        assert fs.named("sync", match=FIGURES) == []


async def test_looking_at_many_channels_leaves_turns_to_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "_AT_ONCE", 2)
    async with store(path) as opened:
        topic = opened.topic("a")
        for number in range(6):
            topic.channel(f"c{number}")
        await topic.settle_in()
        looking = asyncio.create_task(opened._store_engine._stats_publisher._look(["a"]))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 3
        assert looking.result()[0] == {}


async def test_only_what_is_active_is_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, clock, looked = WatchedFileSystem(), FakeClock(), list[str]()
    figures_of = showing._figures

    def look(channel_engine: ChannelEngine[Any]) -> ChannelFigures | None:
        looked.append(channel_engine.name)
        return figures_of(channel_engine)

    monkeypatch.setattr(showing, "_figures", look)
    async with store(path, fs=fs, clock=clock, sync_interval=0.01) as opened:
        topics = [opened.topic(f"t{number}") for number in range(5)]
        channels = [topic.channel(f"c{number}") for number, topic in enumerate(topics)]
        for topic in topics:
            await fill(topic, numbered(3))
        await until(lambda: {*looked} == {"c0", "c1", "c2", "c3", "c4"})
        await soon(quiet(looked))
        for _ in range(2):  # the second one comes out of an open lease
            # A message that was delivered and acked has a latency, which is shown for a minute.
            await (await channels[1].get()).ack()
            await until(lambda: counts(fs, path) == {"t1": {"c1": ChannelFigures()}})
            await looks(looked, 5)
            assert {*looked} == {"c1"}
            assert counts(fs, path) == {"t1": {"c1": ChannelFigures()}}
            clock.advance(61)
            await until(lambda: counts(fs, path) == {})
            await soon(quiet(looked))
        held = await channels[2].get()
        await until(lambda: counts(fs, path) == {"t2": {"c2": ChannelFigures(1)}})
        assert {*looked} == {"c2"}
        held.release()
        await opened.delete_topic("t2")
        await until(lambda: counts(fs, path) == {})
        await soon(quiet(looked))


async def looks(looked: list[str], count: int) -> None:
    """Wait until so many channels were looked at."""
    stop = len(looked) + count
    await until(lambda: len(looked) >= stop)


async def quiet(looked: list[str]) -> None:
    """Wait until no channel is looked at any more."""
    passes = 0
    while passes < 20:
        looked.clear()
        await asyncio.sleep(0.005)
        passes = 0 if looked else passes + 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE])
async def test_where_it_cannot_be_shown_all_else_goes_on(path: Path, error: int) -> None:
    fs = WatchedFileSystem()
    fs.fail(error, "create", "write", match=FIGURES)
    async with store(path, fs=fs) as opened:
        topic = opened.topic("a")
        await fill(topic, numbered(5))
        await until(lambda: len(fs.named("create", match=FIGURES)) > 3)
        assert len(await take(topic.channel("c"), 5)) == 5
        fs.heal()
        await until(lambda: counts(fs, path) == {"a": {"c": ChannelFigures(5, 0, 0)}})
        fs.fail(error, "remove", match=FIGURES)
    async with store(path, fs=fs):
        await until(lambda: read_figures(fs, str(path)) == {})


async def test_closing_while_it_is_written_leaves_nothing(path: Path) -> None:
    fs = WatchedFileSystem()
    gate = fs.gate("write", match=FIGURES)
    async with store(path, fs=fs) as opened:
        await opened.topic("a").put(b"a")
        await gate.wait()
        closing = asyncio.ensure_future(opened.aclose())
        await turns(20)
        gate.open()
        await soon(closing)
    assert FIGURES not in os.listdir(path)


@pytest.mark.parametrize("junk", [b"", b"x", b"00000000 ", b"zzzzzzzz {}", bytes(range(100, 200))], ids=range(5))
def test_junk_shows_nothing(path: Path, junk: bytes) -> None:
    path.mkdir()
    (path / FIGURES).write_bytes(junk)
    assert read_figures(WatchedFileSystem(), str(path)) is None


def test_what_is_cut_off_or_changed_shows_nothing(path: Path) -> None:
    path.mkdir()
    write_figures(WatchedFileSystem(), str(path), {"t": {"c": ChannelFigures(1, 2, 3, 4, TOOK)}})
    data = (path / FIGURES).read_bytes()
    assert read_figures(WatchedFileSystem(), str(path)) == {"t": {"c": ChannelFigures(1, 2, 3, 4, TOOK)}}
    for cut in range(len(data)):
        (path / FIGURES).write_bytes(data[:cut])
        assert read_figures(WatchedFileSystem(), str(path)) is None
        (path / FIGURES).write_bytes(data[:cut] + bytes([data[cut] ^ 1]) + data[cut + 1 :])
        assert read_figures(WatchedFileSystem(), str(path)) is None


def test_what_an_owner_that_is_gone_left_behind_shows_nothing(path: Path) -> None:
    path.mkdir()
    program = (
        "import sys; from aiodq.storage.state.owner_stats import write_figures;"
        "from aiodq.storage.io.filesystem import OsFileSystem; write_figures(OsFileSystem(), sys.argv[1], {})"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert (path / FIGURES).exists()
    assert read_figures(WatchedFileSystem(), str(path)) is None


def test_another_container_is_shown_them_as_long_as_there_is_an_owner(path: Path) -> None:
    path.mkdir()
    shown = {"t": {"c": ChannelFigures(1, 2, 3, 4, TOOK)}}
    write_figures(WatchedFileSystem(), str(path), shown)
    program = (
        "import sys; from aiodq.storage.state.owner_stats import read_figures;"
        "from aiodq.storage.io.filesystem import OsFileSystem; print(read_figures(OsFileSystem(), sys.argv[1]))"
    )
    look = in_a_container([sys.executable, "-c", program, str(path)], sees_others=False)
    owner = StoreLock.acquire(str(path))
    there = subprocess.run(look, capture_output=True, text=True, check=True).stdout
    owner.release()
    gone = subprocess.run(look, capture_output=True, text=True, check=True).stdout
    assert (there.strip(), gone.strip()) == (str(shown), "None")
