"""Real processes on one store: whoever owns it is killed, another takes over, and every put counts once, in order."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.processes import killed_at_last
from tests.shared.child import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


WATCHDOG = 20.0


class Child:
    """A process, and what it has said so far."""

    def __init__(self, stack: ExitStack, path: Path, name: str, count: int) -> None:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.shared.child", str(path), name, str(count)]
        self.process = stack.enter_context(
            killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        self.name = name
        self.acked: dict[int, int] = {}
        self.got: list[int] = []
        self.did: list[int] = []
        self.done = threading.Event()
        self.reading = threading.Thread(target=self._read)
        self.reading.start()
        stack.callback(self.reading.join)
        stack.callback(self.process.kill)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            word, _, rest = line.partition(" ")
            if word == "done":
                self.done.set()
            elif word in {"got", "did"}:
                (self.got if word == "got" else self.did).append(int(rest))
            elif rest.endswith("\n"):
                self.acked[int(word)] = int(rest)

    def ended(self) -> str:
        """Let it end by itself, and return what it complained of."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(WATCHDOG)
        return self.process.stderr.read() if self.process.stderr is not None else ""


def owner_pid(path: Path) -> int | None:
    found = re.match(rb" (\d+)\n", (path / "LOCK").read_bytes()) if (path / "LOCK").exists() else None
    return None if found is None else int(found[1])


def until(children: list[Child], acked: int) -> None:
    """Wait until so many puts are acknowledged in all, or everybody is done."""
    deadline = time.monotonic() + WATCHDOG
    while sum(len(child.acked) for child in children) < acked and not all(child.done.is_set() for child in children):
        assert time.monotonic() < deadline, [(child.name, len(child.acked)) for child in children]
        time.sleep(0.002)


def kept(path: Path) -> dict[str, list[tuple[int, int]]]:
    """Return what each process has put: number and offset, in the order of the log."""
    found: dict[str, list[tuple[int, int]]] = {}
    for message in aiodq.open_reader(path).topic(TOPIC).scan():
        name, number = message.body.decode().split()
        found.setdefault(name, []).append((int(number), message.offset))
    return found


MANY = [(2, 2), (4, 3), pytest.param(3, 20, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("processes", "kills"), MANY)
def test_owners_are_killed_and_every_put_counts_once_in_order(
    tmp_path: Path, seed: int, processes: int, kills: int
) -> None:
    rng, path, count = random.Random(seed), tmp_path / "s", 600 + 150 * kills
    with ExitStack() as stack:
        children = [Child(stack, path, f"p{number}", count) for number in range(processes)]
        for number in range(kills):
            until(children, sum(len(child.acked) for child in children) + rng.randint(1, 600))
            pid = owner_pid(path)
            victim = next((child for child in children if child.process.pid == pid), None)
            if victim is None or victim.done.is_set():
                continue
            victim.process.kill()
            victim.process.wait()
            children.append(Child(stack, path, f"q{number}", count))
        alive = [child for child in children if child.process.poll() is None]
        for child in alive:
            if not child.done.wait(WATCHDOG):
                child.process.send_signal(signal.SIGABRT)
                pytest.fail(f"{child.name} hangs after {len(child.acked)} puts: {child.ended()}")
        assert [child.ended() for child in alive] == [""] * len(alive)
        for child in children:
            child.reading.join()
    assert verify_store(str(path), WatchedFileSystem()).ok
    found = kept(path)
    assert any(child not in alive for child in children), "somebody was killed"
    for child in children:
        own = found.get(child.name, [])
        numbers = [number for number, _ in own]
        assert numbers == sorted(set(numbers)), "each once, and in the order in which they were put"
        offsets = dict(own)
        assert {number: offsets.get(number) for number in child.acked} == child.acked
        if child in alive:
            assert numbers == list(range(count))


@pytest.mark.parametrize(("processes", "kills"), MANY)
def test_owners_are_killed_and_who_holds_a_message_keeps_it(
    tmp_path: Path, seed: int, processes: int, kills: int
) -> None:
    rng, path, count = random.Random(seed), tmp_path / "s", 200 * kills
    asyncio.run(fill(path, count))
    with ExitStack() as stack:
        children = [Child(stack, path, f"w{number}", 0) for number in range(processes)]
        killed: list[Child] = []
        for number in range(kills):
            wait_for(children, lambda: sum(len(child.did) for child in children), rng.randint(10, 150))
            pid = owner_pid(path)
            victim = next((child for child in children if child.process.pid == pid), None)
            if victim is not None:
                victim.process.kill()
                victim.process.wait()
                killed.append(victim)
                children.append(Child(stack, path, f"x{number}", 0))
        alive = [child for child in children if child not in killed]
        deadline = time.monotonic() + WATCHDOG
        while left := to_be_done(children, killed, count):
            assert time.monotonic() < deadline, sorted(left)[:9]
            time.sleep(0.01)
        assert [child.ended() for child in alive] == [""] * len(alive)
        for child in children:
            child.reading.join()
    assert killed
    done = [offset for child in children for offset in child.did]
    assert len(done) == len(set(done)), "none was done twice"
    for offset in range(count):
        holders = [child for child in children for got in child.got if got == offset]
        finished = [child for child in children if offset in child.did]
        assert all(child in killed for child in holders if child not in finished), "who lives keeps what it holds"
        assert sum(child not in killed for child in holders) <= 1


def to_be_done(children: list[Child], killed: list[Child], count: int) -> set[int]:
    """Return what is not done yet; of what a killed process held, only the log knows whether it was acked."""
    done = {offset for child in children for offset in child.did}
    held = {offset for child in killed for offset in child.got}
    in_hand = {offset for child in children if child not in killed for offset in child.got} - done
    return (set(range(count)) - done - held) | in_hand


def wait_for(children: list[Child], number: Callable[[], int], more: int) -> None:
    """Wait until a number has grown by so many."""
    least, deadline = number() + more, time.monotonic() + WATCHDOG
    while number() < least:
        assert time.monotonic() < deadline, [(child.name, len(child.did)) for child in children]
        time.sleep(0.002)


async def fill(path: Path, count: int) -> None:
    """Make a store with so many messages."""
    async with aiodq.open(path) as store:
        await store.queue(TOPIC).put_many([b"%d" % number for number in range(count)])
