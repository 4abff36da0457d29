"""Real processes that hold letters while others put them back, and owners are killed: each letter is in one place."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.figures import figure
from tests.shared.crowd import OPTIONS, TOPIC
from tests.shared.ledger import Child, Crowd, crowd_of
from tests.shared.lettering import LETTERS
from tests.shared.settlers import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = Callable[[str, Any], None]

LOOPS = ("asyncio", "uvloop")
EXHAUSTIVE = [pytest.mark.slow, pytest.mark.timeout(7200)]


class Letters(Crowd):
    """A crowd of `tests.shared.lettering`.

    Attributes:
        taken: the letters that each process has acked.
        lost: those that it had in hand and could not ack.
        open: those that it has, or had when it was killed.
    """

    usual = (*Crowd.usual, "is dead (", "more dead", "given up", "slow sync", "disk is slow")

    def __init__(self, path: Path, process: Any) -> None:
        self.taken: list[int] = []
        self.lost: list[str] = []
        self.open: Counter[tuple[int, int]] = Counter()
        super().__init__(path, process)

    def hear(self, child: Child, word: str, numbers: list[int]) -> None:
        match word:
            case "got":
                child.got.append(numbers[0])
            case "holds":
                self.open[child.pid, numbers[0]] += 1
            case "frees" | "took" | "lost":
                self.open[child.pid, numbers[0]] -= 1
                self.taken += numbers if word == "took" else []
                self.lost += [f"letter {numbers[0]} of {child.pid}"] if word == "lost" else []
            case _:
                super().hear(child, word, numbers)

    def check(self) -> None:
        assert verify_store(str(self.path), WatchedFileSystem()).ok
        assert self.lost == [], "taken away from who was alive"
        assert len(set(self.taken)) == len(self.taken), "done twice"
        left, unread = asyncio.run(_left(self.path))
        assert not unread & set(self.taken), "what was acked comes again"
        reader = aiodq.open_reader(self.path)
        stored = list(reader.topic(TOPIC).scan())
        letters = list(reader.topic(LETTERS).scan())
        copies, written = Counter(one.body for one in stored), Counter(one.body for one in letters)
        assert all(number <= 1 + written[body] for body, number in copies.items()), "put back more often than given up"
        put_back = len(stored) - len(copies)
        # Of one that a killed process had in hand, it need not have said that its ack was done.
        unheard = sum(self.open.values())
        done = len(letters) - len(unread) - put_back
        assert len(self.taken) <= done <= len(self.taken) + unheard, "a letter is in two places, or in none"
        self._check_messages(
            {one.offset for one in stored}, left, {int(one.headers["aiodq-offset"]) for one in letters}
        )

    def _check_messages(self, kept: set[int], left: set[int], given_up: set[int]) -> None:
        children = self.children.values()
        assert {offset for child in children for offset in child.put.values()} <= kept
        done = {offset for child in children for offset in child.did}
        assert not left & done, "what was acked comes again"
        unknown = {offset for child in children if child.killed for offset in child.got}
        assert kept - left <= done | given_up | unknown, "what nobody has settled is gone"


async def _left(path: Path) -> tuple[set[int], set[int]]:
    """Return the offsets of the messages, and of the letters, that are not settled."""
    found: list[set[int]] = []
    async with aiodq.open(path, OPTIONS) as store:
        for name in (TOPIC, LETTERS):
            queue = store.queue(name)
            await queue.topic.settle_in()
            found.append(set())
            while queue.qsize():
                found[-1] |= {message.offset for message in await queue.get_many(64)}
    return found[0], found[1]


@pytest.mark.parametrize(
    ("processes", "kills"), [(3, 3), pytest.param(6, figure("kills") // 10, marks=EXHAUSTIVE)], ids=["few", "many"]
)
def test_a_letter_is_in_one_place_whoever_is_killed(
    tmp_path: Path, seed: int, processes: int, kills: int, record_property: Record
) -> None:
    rng = random.Random(seed)
    with crowd_of(Letters, tmp_path / "s") as children:
        for number in range(processes):
            children.start(f"p{number}", LOOPS[number % 2], "letters", ENDLESS)
        for number in range(kills):
            children.wait_for_more(rng.randint(1, 100))
            children.end(children.owner(), rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            children.start(f"r{number}", rng.choice(LOOPS), "letters", ENDLESS)
        children.end_all()
    children.check()
    record_property("trials", kills)
