"""Real processes with transactions on one store: whoever is killed, wherever, each is done once or not at all."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.io.lock import lock_holder
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.processes import WATCHDOG, killed_at_last
from tests.shared.transacting import OPTIONS, PUTTING, work

if TYPE_CHECKING:
    from pathlib import Path


class Child:
    """A process, and what it has said so far."""

    def __init__(self, stack: ExitStack, path: Path, name: str, *numbers: int) -> None:
        arguments = [str(path), name, *map(str, numbers)]
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.shared.transacting", *arguments]
        self.process = stack.enter_context(
            killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        self.name = name
        self.put: list[str] = []
        self.made: list[str] = []
        self.done = False
        self.reading = threading.Thread(target=self._read)
        self.reading.start()
        stack.callback(self.reading.join)
        stack.callback(self.process.kill)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            word, _, rest = line.strip().partition(" ")
            if line.endswith("\n") and word in {"put", "made"}:
                (self.put if word == "put" else self.made).append(rest)
            self.done = self.done or word == "done"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ended(self) -> str:
        """Let it end by itself, and return what it complained of."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(WATCHDOG)
        return self.process.stderr.read() if self.process.stderr is not None else ""


def said(children: list[Child]) -> int:
    return sum(len(child.put) + len(child.made) for child in children)


def wait_for(children: list[Child], more: int) -> None:
    """Wait until so many more are committed, or all are done."""
    least, deadline = said(children) + more, time.monotonic() + WATCHDOG
    while said(children) < least and not all(child.done or not child.alive for child in children):
        assert time.monotonic() < deadline, [(child.name, len(child.put), len(child.made)) for child in children]
        time.sleep(0.002)


async def filled(path: Path, jobs: int) -> None:
    async with aiodq.open(path, OPTIONS) as store:
        await store.queue("jobs").put_many([b"%d" % number for number in range(jobs)])


async def finished(path: Path) -> dict[str, list[str]]:
    """Work off what is left; return what is in each topic."""
    async with aiodq.open(path, OPTIONS) as store:
        working = asyncio.create_task(work(store))
        async with asyncio.timeout(WATCHDOG):
            await store.queue("jobs").join()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return {name: [m.body.decode() async for m in store.topic(name).scan()] for name in ("a", "b", "made")}


@pytest.mark.parametrize(
    ("processes", "kills", "number"),
    [(3, 3, 0), *(pytest.param(4, 15, number, marks=pytest.mark.slow) for number in range(1, 8))],
)
def test_whoever_is_killed_each_is_done_once_or_not_at_all(
    tmp_path: Path, seed: int, processes: int, kills: int, number: int
) -> None:
    rng, path = random.Random(seed + number), tmp_path / "s"
    count, jobs = 8 * kills, 60 * kills
    asyncio.run(filled(path, jobs))
    with ExitStack() as stack:

        def begin(calls: int = 0) -> Child:
            child = Child(stack, path, f"p{len(children)}", count, calls, rng.getrandbits(16))
            children.append(child)
            return child

        children: list[Child] = []
        for _ in range(processes):
            begin(rng.randint(30, 200) if rng.random() < 0.5 else 0)
        for left in reversed(range(kills)):
            wait_for(children, rng.randint(1, 40))
            owner = lock_holder(str(path))
            alive = [child for child in children if child.alive]
            victims = [child for child in alive if owner and child.process.pid == owner.pid] or alive
            nobody_yet = len(alive) == len(children)
            if victims and (rng.random() < 0.8 or (nobody_yet and not left)):
                victim = rng.choice(victims if rng.random() < 0.7 else alive)
                victim.process.kill()
                victim.process.wait()
            while sum(child.alive for child in children) < processes:
                begin(rng.randint(30, 200) if rng.random() < 0.3 else 0)
        begin()
        deadline = time.monotonic() + WATCHDOG
        while not all(child.done or not child.alive for child in children):
            assert time.monotonic() < deadline, [(child.name, len(child.put)) for child in children if child.alive]
            time.sleep(0.01)
        alive = [child for child in children if child.alive]
        # One that has calls left may take over as another ends, and be killed only by that.
        complaints = [child.ended() for child in alive if child.alive]
        assert not any(complaints), complaints
        for child in children:
            child.process.kill()
            child.reading.join()
    assert verify_store(str(path), WatchedFileSystem()).ok
    found = asyncio.run(finished(path))
    assert any(child not in alive for child in children), "somebody was killed"
    made = Counter(found["made"])
    assert made == Counter(map(str, range(jobs))), "each job once"
    assert max(Counter(body for child in children for body in child.made).values()) == 1, "none was told of twice"
    assert Counter(found["a"]) == Counter(found["b"]), "both or none"
    assert max(Counter(found["a"]).values()) == 1
    for child in children:
        for task in range(PUTTING):
            name = f"{child.name}/{task}"
            numbers = [int(body.split()[1]) for body in found["a"] if body.split()[0] == name]
            acked = [int(body.split()[1]) for body in child.put if body.split()[0] == name]
            assert numbers == list(range(len(numbers))), "in the order in which they were put"
            assert acked == numbers[: len(acked)], "what was committed is there"
            assert len(numbers) <= len(acked) + 1 or child not in alive
