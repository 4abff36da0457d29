"""What a crowd of `tests.shared.settling` has said, and what must be so of its store.

That goes by the owners' order of deliveries, never by when a process has said something: it may be late to say it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import aiodq
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.processes import WATCHDOG
from tests.shared.crowd import OPTIONS, TOPIC
from tests.shared.ledger import Child, Crowd
from tests.shared.settling import AUDIT, CHANNELS, DEAD, MOST_ATTEMPTS, SHORT, STRICT, UNWANTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.storage.read.stored_message import StoredMessage

__all__ = ["ENDLESS", "KEPT", "Settlers"]

KEPT: Final = 5.0
"""Seconds for which an owner keeps what a process holds that is alive and does not come for it, unless it is told."""

ENDLESS: Final = 2 * WATCHDOG
"""So many where nothing is ever to be taken away, however late a machine lets a process be."""

_RETURNS: Final = frozenset({"back", "frees"})
_WORDS: Final = frozenset({"got", "did", "gives", "lost", "either", *_RETURNS})
_MICROSECONDS: Final = 1_000_000
_SECOND: Final = 1_000_000_000


@dataclass
class Taking:
    """One delivery of a message, and what became of it.

    Attributes:
        attempts: with which it came.
        delivery, epoch: the owner's number of it, and whose; -1 and 0 if it was taken away before it was told of.
        at: when it was told of, seconds.
        words: what was told of it since, and when.
        by: the epoch of the owner that had it settled; 0 if that was not told.
    """

    child: Child
    attempts: int
    delivery: int
    epoch: int
    at: float
    words: dict[str, float] = field(default_factory=dict)
    by: int = 0

    @property
    def returned(self) -> bool:
        return not _RETURNS.isdisjoint(self.words)

    @property
    def settled(self) -> bool:
        return "did" in self.words


class Settlers(Crowd):
    """A crowd of `tests.shared.settling`.

    Attributes:
        takings: of each message, by channel and offset, each by the process's id and its own number of it.
        story: what was done to whom, and who was served by whom, with the time in seconds.
        owners: processes by the epoch in which they own the store.
        killed: when a process was killed, by its id.
        ends: the processes that have ended, in that order.
        stalled: how often somebody was told that the owner does not answer.
        drained: who has found the channels empty.
        many: how many there are to be that put, too.
        patience: seconds for which an owner keeps what a process holds that is alive and does not come for it.
        figures: of dead letters: how many there are of each kind.
    """

    usual = (*Crowd.usual, "is dead (", "more dead", "given up", "slow sync", "disk is slow", "timed out")

    def __init__(self, path: Path, process: Any) -> None:
        self.takings: dict[tuple[int, int], dict[tuple[int, int], Taking]] = {}
        self.story: list[tuple[float, str]] = []
        self.owners: dict[int, int] = {}
        self.killed: dict[int, float] = {}
        self.ends: list[int] = []
        self.stalled = 0
        self.drained: set[int] = set()
        self.many = 0
        self.patience = ENDLESS
        self.figures: Counter[str] = Counter()
        super().__init__(path, process)

    # --- what they say

    def hear(self, child: Child, word: str, numbers: list[int]) -> None:
        if word == "ended":
            self.ends.append(child.pid)
            self.tell_of(child, f"has ended with {numbers[0]}")
            super().hear(child, word, numbers)
            return
        *numbers, microseconds = numbers
        at = microseconds / _MICROSECONDS
        match word:
            case "stalled":
                self.stalled += 1
                self.tell_of(child, "hears nothing of its owner", at)
            case "drained":
                self.drained.add(child.pid)
            case "owner":
                self.owners[numbers[1]] = numbers[0]
                self.tell_of(child, f"is served by {self._name(numbers[0])} ({numbers[1]:x})", at)
            case _ if word in _WORDS:
                self._hear_of(child, word, numbers, at)
            case _:
                super().hear(child, word, numbers)

    def _hear_of(self, child: Child, word: str, numbers: list[int], at: float) -> None:
        channel, offset, number, *more = numbers
        takings = self.takings.setdefault((channel, offset), {})
        if word == "got":
            attempts, delivery, epoch = more
            takings[child.pid, number] = Taking(child, attempts, delivery, epoch, at)
            return
        taking = takings[child.pid, number]
        taking.words[word] = at
        if word == "did":
            [taking.by] = more

    def tell_of(self, child: Child, text: str, at: float | None = None) -> None:
        """Note what a failure is to be explained by."""
        self.story.append((time.monotonic() if at is None else at, f"{self._name(child.pid)} {text}"))

    def _name(self, pid: int) -> str:
        return next((name for name, child in list(self.children.items()) if child.pid == pid), str(pid))

    # --- what is done to them

    @property
    def alive(self) -> list[Child]:
        return [child for child in list(self.children.values()) if child.code is None]

    def end(self, child: Child, number: signal.Signals) -> None:
        self.tell_of(child, f"gets {number.name}")
        if number == signal.SIGKILL:
            self.killed[child.pid] = time.monotonic()
        super().end(child, number)

    def stop(self, child: Child, until: Callable[[], object]) -> None:
        """Stop a process until something is so."""
        self.tell_of(child, "is stopped")
        os.kill(child.pid, signal.SIGSTOP)
        try:
            self.wait(until)
        finally:
            os.kill(child.pid, signal.SIGCONT)
            self.tell_of(child, "goes on")

    def stop_for(self, child: Child, pause: float, *, meanwhile: Child | None) -> None:
        """Stop a process for seconds, and kill another meanwhile."""
        until = time.monotonic() + pause

        def is_over() -> bool:
            return time.monotonic() > until and (meanwhile is None or meanwhile.code is not None)

        if meanwhile is not None:
            self.tell_of(meanwhile, "gets SIGKILL")
            self.killed[meanwhile.pid] = time.monotonic()
            meanwhile.killed = True
            os.kill(meanwhile.pid, signal.SIGKILL)
        self.stop(child, is_over)

    def drain(self) -> None:
        """Have no more put, and everything settled by those who are there."""
        for child in self.alive:
            os.kill(child.pid, signal.SIGUSR1)
        # However much is left: as long as they settle something.
        while not self._is_drained():
            self._wait_for_any()

    def _is_drained(self) -> bool:
        return all(child.pid in self.drained for child in self.alive)

    def _wait_for_any(self) -> None:
        said = self.said
        self.wait(lambda: self._is_drained() or self.said > said)

    # --- what must be so

    def check(self) -> None:
        """What was put is settled, once; what was settled never came again; what was given up was so for a reason."""
        assert verify_store(str(self.path), WatchedFileSystem()).ok
        kept = self._check_puts()
        assert asyncio.run(_depths(self.path)) == [0] * len(CHANNELS)
        for (channel, offset), takings in self.takings.items():
            in_order = self._in_order(takings)
            if channel == STRICT or self.patience < ENDLESS:
                self._check_taken_away(channel, offset, in_order)
            else:
                self._check_endless(channel, offset, in_order)
        letters = [self._letters(channel) for channel in range(len(DEAD))]
        for channel in range(len(CHANNELS)):
            for offset in kept:
                takings = self.takings.get((channel, offset), {})
                given_up = channel != AUDIT and offset in letters[channel]
                settled = any(one.settled or "either" in one.words for one in takings.values())
                unheard = any(one.child.killed for one in takings.values())
                assert settled or unheard or given_up, self._shown("is gone", channel, offset)
        self._check_letters(letters)
        if self.patience >= ENDLESS:
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

    def _in_order(self, takings: dict[tuple[int, int], Taking]) -> list[Taking]:
        """Return the deliveries of a message in the order in which owners have made them, as far as that is known."""
        # INVARIANT: who owns the store after another begins when that has ended.
        rank = {pid: number for number, pid in enumerate(self.ends)}
        known = [one for one in takings.values() if one.epoch in self.owners]
        return sorted(known, key=lambda one: (rank.get(self.owners[one.epoch], len(rank)), one.delivery))

    def _check_endless(self, channel: int, offset: int, takings: list[Taking]) -> None:
        """Check the deliveries of a message that is never taken away from who holds it."""
        assert not any({"lost", "either"} & one.words.keys() for one in takings), self._shown(
            "was taken", channel, offset
        )
        assert takings[0].attempts == 1, self._shown("was counted", channel, offset)
        for one, after in pairwise(takings):
            assert not one.settled, self._shown("was settled", channel, offset)
            killed = self.killed.get(one.child.pid)
            lived = killed is None or killed > after.at
            assert one.returned or not lived, self._shown("came again, and its holder lived", channel, offset)
            # A rejection that was begun counts, too: its letter is not put more often than is allowed.
            counted = one.attempts + (not one.words.keys().isdisjoint({"back", "gives"}))
            # What a process has made ready again that was killed, it need not have made ready durably.
            right = after.attempts == counted if killed is None else after.attempts <= counted
            assert right, self._shown("was counted wrong", channel, offset)

    def _check_taken_away(self, channel: int, offset: int, takings: list[Taking]) -> None:
        """Check the deliveries of a message that may be taken away from who holds it: it times out, or that is late."""
        for one, after in pairwise(takings):
            # An owner does not know who has settled what a process asks it for that came too late for an earlier one.
            assert one.by != one.epoch, self._shown("was settled", channel, offset)
            if one.epoch == after.epoch:
                assert one.attempts <= after.attempts, self._shown("was counted wrong", channel, offset)

    def _letters(self, channel: int) -> dict[int, list[StoredMessage]]:
        reader = aiodq.open_reader(self.path)
        letters: dict[int, list[StoredMessage]] = {}
        for letter in reader.topic(DEAD[channel]).scan() if DEAD[channel] in reader.topics() else ():
            letters.setdefault(int(letter.headers["aiodq-offset"]), []).append(letter)
        return letters

    def _check_letters(self, letters: list[dict[int, list[StoredMessage]]]) -> None:
        put = {message.offset: message.timestamp_ns for message in aiodq.open_reader(self.path).topic(TOPIC).scan()}
        for channel, own in enumerate(letters):
            for offset, those in own.items():
                takings = self.takings.get((channel, offset), {}).values()
                self.figures["twice"] += len(those) > 1
                for letter in those:
                    if letter.headers["aiodq-reason"] == UNWANTED:
                        self.figures["rejected"] += 1
                        assert any("gives" in one.words for one in takings), self._shown("is dead", channel, offset)
                        continue
                    self.figures["tired"] += 1
                    assert channel == STRICT, self._shown("is dead", channel, offset)
                    attempts = int(letter.headers["aiodq-attempts"])
                    assert attempts >= MOST_ATTEMPTS, letter.headers
                    # Others it had that were killed before they said so, or it timed out before anybody took it there.
                    span = (letter.timestamp_ns - put[offset]) / _SECOND
                    unheard = len(self.killed) + int(span / SHORT)
                    assert len(takings) + unheard >= attempts, self._shown("was given up too early", channel, offset)
        for (channel, offset), those_taken in self.takings.items():
            # One that was taken away before it was told of has neither epoch.
            if any("gives" in one.words and one.settled and one.by == one.epoch for one in those_taken.values()):
                assert offset in letters[channel], self._shown("was rejected, and there is no letter", channel, offset)

    def _check_order(self) -> None:
        """Each consumer of `audit` has them in order, unless those of one that was killed come back to it."""
        firsts: dict[int, list[tuple[float, int]]] = {}
        for (channel, offset), takings in self.takings.items():
            if channel == AUDIT and (in_order := self._in_order(takings)):
                firsts.setdefault(in_order[0].child.pid, []).append((in_order[0].at, offset))
        audits = [child for name, child in self.children.items() if name.startswith("a")]
        for number, child in enumerate(audits):
            if any(one.killed for one in audits[max(number - 2, 0) : number]):
                continue
            for (_, one), (_, after) in pairwise(sorted(firsts.get(child.pid, []))):
                assert one < after, self._shown("came before an earlier one", AUDIT, one, after)

    def _shown(self, text: str, channel: int, *offsets: int) -> str:
        """Return what explains a failure."""
        lines = list(self.story)
        for offset in offsets:
            for one in self.takings.get((channel, offset), {}).values():
                name = self._name(one.child.pid)
                told = f"({one.attempts} attempts, delivery {one.delivery} by {one.epoch:x})"
                lines.append((one.at, f"{name} got {offset} {told}"))
                lines += [(at, f"{name} {word} {offset} ({one.by:x})") for word, at in one.words.items()]
        shown = "\n".join(f"{at:.6f} {what}" for at, what in sorted(lines))
        return f"{CHANNELS[channel]} {', '.join(map(str, offsets))} {text}:\n{shown}"


async def _depths(path: Path) -> list[int]:
    async with aiodq.open(path, OPTIONS) as store:
        topic = store.topic(TOPIC)
        await topic.settle_in()
        return [topic.channel(name).depth for name in CHANNELS]
