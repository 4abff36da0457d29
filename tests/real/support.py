"""What the tests with real system calls share: the process they happen in, and what has to hold afterwards."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import aiodq
from tests.processes import ROOT, read_notes
from tests.real.child import OPTIONS, Job
from tests.system.child import TOPIC
from tests.system.ledger import Ledger
from tests.system.test_sigkill import look

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Ended", "FaultLedger", "Zygote", "held"]


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: its exit code, negative for a signal.
        notes: what it noted.
        lines: what strace wrote.
        told: the errors that callers were given, by class.
        store: where it worked.
    """

    code: int
    notes: list[list[Any]]
    lines: list[str]
    told: list[str]
    store: Path

    @property
    def injected(self) -> int:
        """How many calls were made to fail."""
        return sum("(INJECTED)" in line for line in self.lines)


class Zygote:
    """A process that forks those that work."""

    def __init__(self, directory: Path) -> None:
        """Start it; what it complains about goes to a file in `directory`."""
        self._errors = directory / "errors"
        self._numbers = 0
        self._directory = directory
        with self._errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.real.child"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def run(
        self, work: str, seed: int, operations: int, *, store: Path | None = None, calls: str = "", inject: str = ""
    ) -> Ended:
        """Do some work, on a new store where none is given, and return how it ended."""
        self._numbers += 1
        notes = self._directory / f"{self._numbers}.notes"
        store = store or self._directory / f"{self._numbers}.store"
        job = Job(work, str(store), str(notes), seed, operations, calls, (inject,) if inject else ())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        strace = notes.with_name(notes.name + ".strace")
        lines = strace.read_text(encoding="utf-8", errors="replace").splitlines() if strace.exists() else []
        found = read_notes(notes) if not work.startswith("together") else []
        return Ended(code, found, lines, [note[1] for note in found if note[0] == "told"], store)

    def complaints(self) -> str:
        """Return what was written to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class FaultLedger(Ledger):
    """Also knows of puts that were refused, and of a store that stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._refusals: list[list[str]] = []

    def _told(self, *_: str) -> None:
        """Whether the call was an error is all that counts."""

    def _refused(self, number: int) -> None:
        self._refusals.append(self._open_puts.pop(number).digests)

    def _put_after_failure(self, number: int) -> None:
        raise AssertionError(f"put {number} was acknowledged by a store that had stopped")

    def compare(self, found: Mapping[str, Mapping[int, str]]) -> None:
        super().compare(found)
        there = {digest for messages in found.values() for digest in messages.values()}
        for digests in self._refusals:
            assert not there.intersection(digests), "a put that was told of a full disk is there"


def held(ended: Ended, ledger: FaultLedger | None = None) -> FaultLedger:
    """Open the store in this process and assert that what the other was told holds, twice, and that puts go on."""
    ledger = ledger or FaultLedger()
    ledger.read(ended.notes)
    found = asyncio.run(look(ended.store, "always"))
    ledger.compare(found)
    assert asyncio.run(look(ended.store, "always")) == found, "opening it again finds something else"
    return ledger


async def put_one(store: Path) -> None:
    """Put a message: opening again heals."""
    async with aiodq.open(store, OPTIONS) as opened:
        await opened.topic(TOPIC).put(b"after all")
