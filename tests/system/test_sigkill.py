"""A process with producers and consumers is killed at any moment, again and again. What it was told must hold."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from tests.processes import read_notes, run_until_killed, when_to_die
from tests.system.child import CHANNELS, TOPIC, digest, options
from tests.system.ledger import Ledger
from tests.system.support import QuickFileSystem, drain

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.options import SyncPolicy

POLICIES: tuple[SyncPolicy, ...] = ("always", "interval", "os")
SEVERAL = aiodq.ChannelOptions(start="earliest", max_in_flight=1_000_000)


def run_and_kill(store: Path, policy: SyncPolicy, rng: random.Random, notes: Path) -> list[list[Any]]:
    """Let a child work on the store until it is killed: by the clock, or at a call of the file system."""
    calls, seed, seconds = when_to_die(rng, 60), rng.getrandbits(32), rng.uniform(0, 0.5)
    run_until_killed("tests.system.child", store, policy, seed, notes, calls=calls, seconds=seconds, begun=notes.exists)
    return read_notes(notes)


async def look(path: Path, policy: SyncPolicy) -> dict[str, dict[int, str]]:
    """Open the store, unaided, and return what each channel would deliver."""
    found: dict[str, dict[int, str]] = {}
    async with aiodq.open(path, options(policy), fs=QuickFileSystem()) as store:
        topic = store.topic(TOPIC)
        stats = topic.stats()
        assert (stats.damages, stats.dropped) == (0, 0)
        for name in CHANNELS:
            channel = topic.channel(name, SEVERAL)
            await topic.settle_in()
            messages = drain(channel)
            offsets = [message.offset for message in messages]
            assert offsets == sorted(set(offsets)), "out of order, or twice within one recovery"
            found[name] = {m.offset: digest(m.body, m.tag, m.key, m.headers) for m in messages}
            assert channel.depth == channel.in_flight() == len(messages)
            assert channel.stats().lost == 0
    return found


def look_beside(path: Path) -> dict[int, str]:
    """Return what a reader sees that does not open the store."""
    reader = aiodq.open_reader(path)
    if TOPIC not in reader.topics():
        return {}
    return {m.offset: digest(m.body, m.tag, m.key, m.headers) for m in reader.topic(TOPIC).scan(strict=True)}


def kill_and_check(tmp_path: Path, policy: SyncPolicy, seed: int, kills: int) -> Ledger:
    """Kill the owner of one store so many times. A copy is looked at, so that the next owner recovers itself."""
    rng = random.Random(seed)
    store, ledger = tmp_path / "store", Ledger()
    for number in range(10 * kills):
        if number >= kills and ledger.order:
            break  # on a busy machine all of them may come before the first put
        ledger.read(run_and_kill(store, policy, rng, tmp_path / f"notes{number}"))
        copy = tmp_path / f"copy{number}"
        if store.exists():
            shutil.copytree(store, copy)
        seen = look_beside(copy) if copy.exists() else {}
        found = asyncio.run(look(copy, policy))
        for messages in found.values():
            assert seen.items() >= messages.items(), "a reader beside the owner sees less than the owner"
        ledger.compare(found)
        assert asyncio.run(look(copy, policy)) == found, "opening it again finds something else"
        shutil.rmtree(copy)
    assert not [name for _, _, names in os.walk(store) for name in names if "damaged" in name]
    shutil.rmtree(store, ignore_errors=True)
    return ledger


@pytest.mark.drawn("policy", 2)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_acknowledged_outlives_sigkill(policy: SyncPolicy, tmp_path: Path, seed: int) -> None:
    ledger = kill_and_check(tmp_path, policy, seed, kills=2)
    assert ledger.order


@pytest.mark.slow
@pytest.mark.parametrize("store", range(20))
def test_what_was_acknowledged_outlives_two_hundred_kills(store: int, tmp_path: Path, seed: int) -> None:
    """Ten kills each of twenty stores."""
    ledger = kill_and_check(tmp_path, POLICIES[store % 3], seed + store, kills=10)
    assert ledger.acknowledged
