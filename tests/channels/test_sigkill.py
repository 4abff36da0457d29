"""Delays, requeues, timeouts and dead letters through SIGKILL: nothing lost, nothing early, attempts kept. G3, G16."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.channels.child import CHANNEL, DEAD, OPTIONS, TOPIC
from tests.channels.support import PATIENCE
from tests.processes import read_notes, run_until_killed, when_to_die

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLACK_NS = 5_000_000
"""What the wall clock may differ from the monotonic one while a process lives."""


def run_and_kill(store: Path, notes: Path, rng: random.Random) -> None:
    """Let a child work until it is killed: after a while, at first with something put, or at a call."""
    first = not notes.exists()
    calls = 0 if first else when_to_die(rng, 60)

    def begun() -> bool:
        return not first or (notes.exists() and b'"put"' in notes.read_bytes())

    seconds = rng.random() * 0.7 + (0.0 if first else 0.3)
    seed = rng.getrandbits(32)
    run_until_killed("tests.channels.child", store, notes, seed, calls=calls, seconds=seconds, begun=begun)


class Told:
    """What the processes noted, looked through in order."""

    def __init__(self, notes: list[list[Any]]) -> None:
        self.attempts: defaultdict[str, int] = defaultdict(int)
        self.due: dict[str, int] = {}
        self.of: defaultdict[str, set[str]] = defaultdict(set)
        for kind, body, *rest in notes:
            self.of[kind].add(body)
            if kind == "got":
                self.got(body, *rest)
            elif kind == "nacked":
                self.attempts[body] = max(self.attempts[body], rest[0])
                self.due[body] = rest[1]

    def got(self, body: str, attempts: int, now: int) -> None:
        """A delivery: not early, counted on, and not of what had ended."""
        due = max(int(body.split()[1]), self.due.get(body, 0))
        assert now >= due - SLACK_NS, f"{body} came {due - now} ns early"
        assert attempts > self.attempts[body], f"{body}: attempt {attempts} after {self.attempts[body]}"
        assert body not in self.of["acked"] | self.of["rejected"], f"{body} came again"


async def kill_and_check(directory: Path, seed: int, kills: int) -> int:
    """Kill it so many times, then see where each message is; return how many there are."""
    rng, store, notes = random.Random(seed), directory / "store", directory / "notes"
    for _ in range(kills):
        run_and_kill(store, notes, rng)
    told = Told(read_notes(notes))
    async with aiodq.open(store) as opened:
        # Nothing that is taken here times out, and comes again in another's place, before all is taken.
        patient = replace(OPTIONS, visibility_timeout=3600.0)
        channel, dead = opened.topic(TOPIC).channel(CHANNEL, patient), opened.topic(DEAD)
        await opened.topic(TOPIC).settle_in()
        waiting: dict[str, int] = {}
        async with asyncio.timeout(PATIENCE):
            # What is out of attempts is taken by nobody, and counts until its letter is durable.
            while len(waiting) < channel.depth:
                with suppress(TimeoutError):
                    message = await channel.get(timeout=0.1)
                    waiting[message.body.decode()] = message.attempts
        buried = {message.body.decode() async for message in dead.scan()}
    assert not verify_store(str(store), OsFileSystem()).damages
    of = told.of
    assert waiting.keys() <= of["putting"]
    assert buried <= of["got"]
    assert not waiting.keys() & (of["acked"] | of["rejected"]), "ended, and there again"
    lost = of["put"] - waiting.keys() - buried - of["acking"]
    assert not lost, f"lost: {sorted(lost)}"
    assert of["rejected"] <= buried
    short = {body: n for body, n in waiting.items() if n <= told.attempts[body]}
    assert not short, f"attempts forgotten: {short}"
    shutil.rmtree(store)
    return len(of["put"])


@pytest.mark.slow_on_uvloop  # the processes that are killed have loops of their own
async def test_nothing_is_lost_early_or_forgotten_through_sigkill(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    assert await kill_and_check(tmp_path, seed, kills=5)
    record_property("trials", 5)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
async def test_nothing_is_lost_early_or_forgotten_through_two_hundred_kills(
    number: int, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Ten kills each of twenty stores, half of them under each loop."""
    assert await kill_and_check(tmp_path, seed + number, kills=10)
    record_property("trials", 10)
