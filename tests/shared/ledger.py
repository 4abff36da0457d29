"""What a crowd of processes has said (`tests.shared.crowd`), and what its store must hold because of that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import aiodq
from aiodq.storage.io.lock import lock_holder
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import WatchedFileSystem
from tests.processes import WATCHDOG, killed_at_last
from tests.shared.crowd import MADE, OPTIONS, TOPIC, TRANSACTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

C = TypeVar("C", bound="Crowd")

__all__ = ["Child", "Crowd", "crowd", "crowd_of"]

_SPARE: Final = 64
"""Messages that are taken at once of those that are left."""


@dataclass
class Child:
    """What one process has said.

    Attributes:
        put: offsets by number; `got`: offsets that it held; `did`: those acked.
        opened: how often it has opened the store; `owners`: whom it found then.
        code: with which it has ended; None while it lives.
        killed: by a test.
    """

    pid: int
    put: dict[int, int] = field(default_factory=dict)
    got: list[int] = field(default_factory=list)
    did: list[int] = field(default_factory=list)
    attempts: set[int] = field(default_factory=set)
    opened: int = 0
    owners: set[int] = field(default_factory=set)
    code: int | None = None
    killed: bool = False


class Crowd:
    """The processes on a store.

    Attributes:
        children: by name.
        said: how much they have said.
        holders: by offset, who has held a message, one after the other.
        usual: texts in lines to standard error that are no complaints.
    """

    # On a machine with other work, both happen.
    usual: tuple[str, ...] = ("the event loop was held up", "or is still opening it")

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self.children: dict[str, Child] = {}
        self.said = 0
        self.holders: dict[int, list[Child]] = {}
        self._process = process
        self._complaints: list[str] = []
        # INVARIANT: both are read all the time: who writes into a pipe that is full waits, and does nothing else.
        self._reading = [threading.Thread(target=read) for read in (self._read, self._read_complaints)]
        for each in self._reading:
            each.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            name, word, *rest = line.split()
            numbers = [int(each) for each in rest]
            if word == "is":
                self.children[name] = Child(numbers[0])
                continue
            self.hear(self.children[name], word, numbers)
            self.said += 1

    def _read_complaints(self) -> None:
        self._complaints.extend(self._process.stderr or ())

    def hear(self, child: Child, word: str, numbers: list[int]) -> None:
        """Note what a process has said."""
        match word:
            case "put":
                child.put[numbers[0]] = numbers[1]
            case "got":
                child.got.append(numbers[0])
                self.holders.setdefault(numbers[0], []).append(child)
                child.attempts.add(numbers[1])
            case "did":
                child.did.append(numbers[0])
            case "sees":
                child.owners = set(numbers[1:])
                child.opened = numbers[0]
            case "ended":
                child.code = numbers[0]

    # --- what is done with them

    def tell(self, *words: object) -> None:
        """Have something done."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def start(self, name: str, loop: str = "asyncio", role: str = "start", *more: object) -> None:
        """Start a process that puts and works off."""
        self.tell(role, name, loop, *more)
        self.wait(lambda: name in self.children)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something is so, while there is news of somebody; none may end otherwise than it was made to."""
        said, deadline = self.said, time.monotonic() + WATCHDOG
        while not condition():
            if self.said != said:  # a machine may be slow
                said, deadline = self.said, time.monotonic() + WATCHDOG
            assert time.monotonic() < deadline, {name: child.code for name, child in self.children.items()}
            assert not self.failed(), self.complaints()
            time.sleep(0.001)

    def wait_for_more(self, number: int) -> None:
        """Wait until so much more was said."""
        least = self.said + number
        self.wait(lambda: self.said >= least)

    def owner(self) -> Child:
        """Return the owner, as soon as there is one."""
        found: list[Child] = []

        def is_there() -> bool:
            owner = lock_holder(str(self.path))
            alive = [child for child in list(self.children.values()) if child.code is None]
            found[:] = [child for child in alive if owner and child.pid == owner.pid]
            return bool(found)

        self.wait(is_there)
        return found[0]

    def end(self, child: Child, number: signal.Signals) -> None:
        """Send a process a signal that ends it, and wait for that."""
        child.killed = child.killed or number == signal.SIGKILL
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)
        self.wait(lambda: child.code is not None)

    def end_all(self) -> None:
        """End who is left, all at once, and have nobody complain."""
        left = [child for child in self.children.values() if child.code is None]
        for child in left:
            os.kill(child.pid, signal.SIGTERM)
        self.wait(lambda: all(child.code is not None for child in left))
        self.close()
        complaints = self.complaints()
        assert not self.failed(), complaints
        assert complaints == "", complaints

    def close(self) -> None:
        """Hear no more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for each in self._reading:
            each.join(WATCHDOG)

    def failed(self) -> list[str]:
        """Return who has ended otherwise than it was made to."""
        expected = {True: (None, -signal.SIGKILL, 0), False: (None, 0)}
        return [name for name, child in list(self.children.items()) if child.code not in expected[child.killed]]

    def complaints(self) -> str:
        """Return what they have written to standard error, but what is `usual`. It ends them."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reading[1].join(WATCHDOG)
        return "".join(line for line in self._complaints if not any(usual in line for usual in self.usual))

    # --- what must be so

    def check(self) -> None:
        """What was acknowledged is there, once and in order; what was acked is not; who lives has kept what it held."""
        assert verify_store(str(self.path), WatchedFileSystem()).ok
        kept = self._check_puts()
        self._check_holders()
        done = {offset for child in self.children.values() for offset in child.did}
        unknown = {offset for child in self.children.values() if child.killed for offset in child.got} - done
        left = asyncio.run(_left(self.path, kept))
        assert not left & done, "what was acked comes again"
        assert kept - done - unknown <= left, "what nobody has acked is gone"
        made = self._made()
        assert len(set(made)) == len(made), "a transaction counts twice"
        assert {offset for offset in done if not offset % TRANSACTED} <= set(made), "a transaction is gone"
        assert not left & set(made), "a transaction was done by half"

    def _made(self) -> list[int]:
        """Return the offsets of what transactions have acked."""
        reader = aiodq.open_reader(self.path)
        return [int(message.body) for message in reader.topic(MADE).scan()] if MADE in reader.topics() else []

    def _check_puts(self) -> set[int]:
        """Return the offsets of all that was put."""
        found: dict[str, dict[int, int]] = {name: {} for name in self.children}
        offsets: set[int] = set()
        for message in aiodq.open_reader(self.path).topic(TOPIC).scan():
            name, number = message.body.decode().split()
            own = found[name]
            assert int(number) not in own, f"{message.body!r} is there twice"
            first = not own or self.children[name].opened  # many producers, each of one message
            assert first or int(number) > next(reversed(own)), f"{message.body!r} is out of order"
            own[int(number)] = message.offset
            offsets.add(message.offset)
        for name, child in self.children.items():
            assert child.put.items() <= found[name].items(), f"what {name} was told of is gone, or elsewhere"
            if not child.killed:
                assert child.put == found[name]
        return offsets

    def _check_holders(self) -> None:
        done = Counter(offset for child in self.children.values() for offset in child.did)
        assert [offset for offset, times in done.items() if times > 1] == [], "done twice"
        for offset, holders in self.holders.items():
            assert all(child.killed for child in holders[:-1]), f"{offset} came again, and its holder lived"
            assert not done[offset] or offset in holders[-1].did, f"{offset} came again, and was acked"
        assert set().union(*(child.attempts for child in self.children.values())) <= {1}, "one was counted again"


async def _left(path: Path, kept: set[int]) -> set[int]:
    """Return the offsets of what is not acked."""
    async with aiodq.open(path, OPTIONS) as store:
        queue = store.queue(TOPIC)
        await queue.topic.settle_in()
        left: set[int] = set()
        while queue.qsize():
            left |= {message.offset for message in await queue.get_many(_SPARE)}
        assert left <= kept
    return left


@contextmanager
def crowd(path: Path) -> Iterator[Crowd]:
    """Begin with nobody; in the end everybody is gone."""
    with crowd_of(Crowd, path) as found:
        yield found


@contextmanager
def crowd_of(kind: type[C], path: Path) -> Iterator[C]:
    """Do as `crowd` with a crowd of another kind."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.shared.crowd", str(path)]
    with killed_at_last(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, group=True
    ) as process:
        crowd = kind(path, process)
        try:
            yield crowd
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            crowd.close()
