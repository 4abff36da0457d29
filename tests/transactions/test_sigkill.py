"""A process that acks what it read and puts what it made of it is killed again and again: all is made exactly once."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.processes import run_until_killed, when_to_die
from tests.transactions.child import COPIES, STEPS, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.options import SyncPolicy

POLICIES: tuple[SyncPolicy, ...] = ("always", "interval", "os")


def run_and_kill(store: Path, policy: SyncPolicy, rng: random.Random) -> None:
    """Let a child work until it is killed: after a while, or at a call of the file system."""
    calls, seed, seconds = when_to_die(rng, 80), rng.getrandbits(32), 0.3 + rng.random() * 0.7
    run_until_killed("tests.transactions.child", store, policy, seed, calls=calls, seconds=seconds)


def kill_and_check(store: Path, policy: SyncPolicy, seed: int, kills: int) -> int:
    """Kill it so many times, let it finish, and count what was made; return how much that is."""
    rng = random.Random(seed)
    for _ in range(kills):
        run_and_kill(store, policy, rng)
    run(str(store), policy, 0, 0, finish=True)
    assert not [finding for finding in verify_store(str(store), OsFileSystem()).findings if finding.severity != "note"]
    reader = aiodq.open_reader(store)
    made = {step: Counter(message.body for message in reader.topic(step).scan(strict=True)) for step in STEPS}
    jobs = list(made["jobs"])
    assert max(made["jobs"].values()) == 1
    for depth, step in enumerate(STEPS):
        numbers = ["".join(f".{number}" for number in numbers) for numbers in product(range(COPIES), repeat=depth)]
        expected = Counter(job + number.encode() for job in jobs for number in numbers)
        assert made[step] == expected, f"{step}: {made[step] - expected} too many, {expected - made[step]} missing"
    shutil.rmtree(store)
    return len(jobs)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_is_made_once_through_sigkill(
    policy: SyncPolicy, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    assert kill_and_check(tmp_path / "store", policy, seed, kills=2)
    record_property("trials", 2)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_each_is_made_once_through_two_hundred_kills(
    number: int, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Ten kills each of twenty stores."""
    assert kill_and_check(tmp_path / "store", POLICIES[number % 3], seed + number, kills=10)
    record_property("trials", 10)
