"""Real processes that settle in every way, some of them killed, stopped or ended: each message is settled once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

import aiodq
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.figures import figure
from tests.shared.crowd import OPTIONS, TOPIC
from tests.shared.ledger import Child, Crowd, crowd_of
from tests.shared.settling import AUDIT, CHANNELS, DEAD, MOST_ATTEMPTS, STRICT, UNWANTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aiodq.storage.read.stored_message import StoredMessage

    Record = Callable[[str, Any], None]

LOOPS = ("asyncio", "uvloop")
EXHAUSTIVE = [pytest.mark.slow, pytest.mark.timeout(7200)]

_KEPT: Final = 4.0
"""Seconds for which an owner surely keeps what a process holds that is alive and does not claim it."""

_PAUSES: Final = (0.1, 2.0)
_LONG_PAUSES: Final = (0.1, 2.0, 7.0)
"""Seconds for which a client is stopped: it misses the timeout of what it holds, or all that it holds is taken away."""


class Said(NamedTuple):
    """What a process has said about a message."""

    child: Child
    word: str
    attempts: int


class Settlers(Crowd):
    """A crowd of `tests.shared.settling`.

    Attributes:
        about: what was said of each message, by channel and offset.
        stalled: how often somebody was told that the owner does not answer.
        drained: who has found the channels empty.
        stopped, late: who was stopped, and for so long that it may lose what it holds, by process id.
        many: how many there are to be that put, too.
        figures: of dead letters: how many there are of each kind.
    """

    usual = (*Crowd.usual, "is dead (", "more dead", "given up", "slow sync", "disk is slow", "timed out")

    def __init__(self, *arguments: Any) -> None:
        self.about: dict[tuple[int, int], list[Said]] = {}
        self.stalled = 0
        self.drained: set[int] = set()
        self.stopped: set[int] = set()
        self.late: set[int] = set()
        self.many = 0
        self.figures: Counter[str] = Counter()
        super().__init__(*arguments)

    def hear(self, child: Child, word: str, numbers: list[int]) -> None:
        match word:
            case "stalled":
                self.stalled += 1
            case "drained":
                self.drained.add(child.pid)
            case "got" | "back" | "gives" | "did" | "lost":
                channel, offset, *attempts = numbers
                self.about.setdefault((channel, offset), []).append(Said(child, word, *(attempts or [0])))
                if word == "got":
                    child.got.append(offset)
            case _:
                super().hear(child, word, numbers)

    # --- what is done to them

    @property
    def alive(self) -> list[Child]:
        return [child for child in list(self.children.values()) if child.code is None]

    def stop(self, child: Child, until: Callable[[], object]) -> None:
        """Stop a process until something is so."""
        self.stopped.add(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            self.wait(until)
        finally:
            os.kill(child.pid, signal.SIGCONT)

    def stop_for(self, child: Child, pause: float, *, meanwhile: Child | None) -> None:
        """Stop a process for seconds, and kill another meanwhile."""
        if pause > _KEPT:
            self.late.add(child.pid)
        until = time.monotonic() + pause

        def is_over() -> bool:
            return time.monotonic() > until and (meanwhile is None or meanwhile.code is not None)

        if meanwhile is not None:
            meanwhile.killed = True
            os.kill(meanwhile.pid, signal.SIGKILL)
        self.stop(child, is_over)

    def drain(self) -> None:
        """Have no more put, and everything settled by those who are there."""
        for child in self.alive:
            os.kill(child.pid, signal.SIGUSR1)
        self.wait(lambda: all(child.pid in self.drained for child in self.alive))

    # --- what must be so

    def check(self) -> None:
        """What was put is settled, once; what was settled never came again; what was given up was so for a reason."""
        assert verify_store(str(self.path), WatchedFileSystem()).ok
        kept = self._check_puts()
        assert asyncio.run(_depths(self.path)) == [0] * len(CHANNELS)
        for (channel, _), said in self.about.items():
            # What is taken away from one that is late, it may not know of as it acks without waiting.
            if channel == STRICT or not any(each.child.pid in self.late for each in said):
                self._check_settled_once(channel, said)
            self._check_attempts(channel, said)
        letters = [self._letters(channel) for channel in range(len(DEAD))]
        for channel in range(len(CHANNELS)):
            for offset in kept:
                said = self.about.get((channel, offset), [])
                given_up = channel != AUDIT and offset in letters[channel]
                settled = any(each.word == "did" for each in said)
                unheard = any(each.child.killed for each in said)
                assert settled or unheard or given_up, f"{CHANNELS[channel]} {offset} is gone: {self._shown(said)}"
        self._check_letters(letters)
        self._check_order()

    def _check_puts(self) -> set[int]:
        found: dict[str, dict[int, int]] = {name: {} for name in self.children}
        for message in aiodq.open_reader(self.path).topic(TOPIC).scan():
            name, number = message.body.decode().split()
            assert not found[name] or int(number) > next(reversed(found[name])), f"{message.body!r}: twice, or late"
            found[name][int(number)] = message.offset
        for name, child in self.children.items():
            assert child.put.items() <= found[name].items(), f"what {name} was told of is gone, or elsewhere"
        return {offset for own in found.values() for offset in own.values()}

    def _check_settled_once(self, channel: int, said: list[Said]) -> None:
        holder: Child | None = None
        settled = False
        for each in said:
            match each.word:
                case "did":
                    # An owner does not know who has settled what a process asks it for that was stopped for so long.
                    late = channel == STRICT and each.child.pid in self.stopped
                    assert late or not settled, f"{CHANNELS[channel]}: settled twice: {self._shown(said)}"
                    settled, holder = True, None
                case "back":
                    holder = None
                case "got":
                    # One that was stopped may not know yet what was taken away meanwhile.
                    known = each.child.pid not in self.stopped or channel != STRICT
                    assert not settled or not known, f"{CHANNELS[channel]}: came again: {self._shown(said)}"
                    assert channel == STRICT or holder is None or holder.killed, (
                        f"{CHANNELS[channel]}: came again, and its holder lived: {self._shown(said)}"
                    )
                    holder = each.child
                case "lost":
                    assert channel == STRICT, f"{CHANNELS[channel]}: taken away: {self._shown(said)}"

    def _check_attempts(self, channel: int, said: list[Said]) -> None:
        attempts, failed, killed = 0, 0, False
        for each in said:
            if each.word in {"back", "gives"}:
                failed += 1
                killed = killed or each.child.killed
            if each.word == "got" and each.child.pid not in self.stopped:
                # What a process has made ready that was killed, it need not have made ready durably.
                assert killed or each.attempts >= attempts, (
                    f"{CHANNELS[channel]}: attempts go down: {self._shown(said)}"
                )
                assert channel == STRICT or each.attempts <= failed + 1, f"counted: {self._shown(said)}"
                attempts = each.attempts

    def _letters(self, channel: int) -> dict[int, list[StoredMessage]]:
        reader = aiodq.open_reader(self.path)
        letters: dict[int, list[StoredMessage]] = {}
        for letter in reader.topic(DEAD[channel]).scan() if DEAD[channel] in reader.topics() else ():
            letters.setdefault(int(letter.headers["aiodq-offset"]), []).append(letter)
        return letters

    def _check_letters(self, letters: list[dict[int, list[StoredMessage]]]) -> None:
        unheard = len(self.stopped) + sum(child.killed for child in self.children.values())
        for channel, own in enumerate(letters):
            for offset, those in own.items():
                said = self.about.get((channel, offset), [])
                words = Counter(each.word for each in said)
                self.figures["twice"] += len(those) > 1
                for letter in those:
                    if letter.headers["aiodq-reason"] == UNWANTED:
                        self.figures["rejected"] += 1
                        assert words["gives"], f"{CHANNELS[channel]}: nobody has rejected {self._shown(said)}"
                    else:
                        self.figures["tired"] += 1
                        self.figures["unheard"] += words["got"] < MOST_ATTEMPTS
                        assert channel == STRICT
                        assert int(letter.headers["aiodq-attempts"]) >= MOST_ATTEMPTS, letter.headers
                        assert words["got"] + unheard >= MOST_ATTEMPTS, f"given up too early: {self._shown(said)}"
        for (channel, offset), said in self.about.items():
            words_of: dict[int, str] = {}
            for each in said:
                rejected = each.word == "did" and words_of.get(each.child.pid) == "gives"
                if rejected and each.child.pid not in self.stopped:  # else others may have settled it, as above
                    assert offset in letters[channel], f"rejected, and no letter: {self._shown(said)}"
                words_of[each.child.pid] = each.word

    def _check_order(self) -> None:
        """Each consumer of `audit` has them in order, unless those of one that was killed come back to it."""
        before = None
        for child in [child for name, child in self.children.items() if name.startswith("a")]:
            firsts = [
                offset for (channel, offset), said in self.about.items() if channel == AUDIT and said[0].child is child
            ]
            if child.pid not in self.late and (before is None or not before.killed):
                assert firsts == sorted(firsts), "out of order"
            before = child

    def _shown(self, said: list[Said]) -> str:
        names = {child.pid: name for name, child in self.children.items()}
        return ", ".join(
            f"{names[child.pid]}{'!' * child.killed}{'=' * (child.pid in self.stopped)} {word} {number}"
            for child, word, number in said
        )


async def _depths(path: Path) -> list[int]:
    async with aiodq.open(path, OPTIONS) as store:
        topic = store.topic(TOPIC)
        await topic.settle_in()
        return [topic.channel(name).depth for name in CHANNELS]


def harm(settlers: Settlers, rng: random.Random, names: Iterator[str], pauses: Sequence[float]) -> None:
    """Do something to one of them, and begin others for those that ended."""
    owner = settlers.owner()
    clients = [child for child in settlers.alive if child is not owner]
    victim = owner if rng.random() < 0.6 or not clients else rng.choice(clients)
    match rng.choice(("kill", "kill", "end", "stop")):
        case "kill":
            settlers.end(victim, signal.SIGKILL)
        case "end":
            settlers.end(victim, signal.SIGTERM)
        case "stop" if victim is owner:
            stalled = settlers.stalled
            settlers.stop(owner, lambda: settlers.stalled > stalled)
        case "stop":
            settlers.stop_for(victim, rng.choice(pauses), meanwhile=owner if rng.random() < 0.5 else None)
    replace(settlers, rng, names)


def replace(settlers: Settlers, rng: random.Random, names: Iterator[str]) -> None:
    """Begin a process for each that ended."""
    alive = {name for name, child in settlers.children.items() if child.code is None}
    if not any(name.startswith("a") for name in alive):
        settlers.start(f"a{next(names)}", rng.choice(LOOPS), "audit")
    for _ in range(settlers.many - sum(name.startswith("p") for name in alive)):
        settlers.start(f"p{next(names)}", rng.choice(LOOPS), "settle")


@pytest.mark.parametrize(
    ("processes", "harms", "pauses"),
    # Where several run at once, a process may come too late for what it holds: then these see what is allowed as wrong.
    [
        pytest.param(3, 5, _PAUSES, marks=pytest.mark.slow),
        pytest.param(5, figure("kills") // 4, _LONG_PAUSES, marks=EXHAUSTIVE),
    ],
    ids=["few", "many"],
)
def test_whoever_is_killed_or_stopped_each_message_is_settled_once(
    tmp_path: Path, seed: int, record_property: Record, *, processes: int, harms: int, pauses: Sequence[float]
) -> None:
    rng = random.Random(seed)
    names = map(str, range(1_000_000))
    with crowd_of(Settlers, tmp_path / "s") as settlers:
        settlers.many = processes
        replace(settlers, rng, names)
        for _ in range(harms):
            settlers.wait_for_more(rng.randint(1, 400))
            harm(settlers, rng, names, pauses)
        settlers.wait_for_more(50)
        settlers.drain()
        settlers.end_all()
    settlers.check()
    record_property("trials", harms)
