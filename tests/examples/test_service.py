"""A service as users write it, under load, stopped and killed all the time: what it answered with 202 is never lost.

`AIODQ_SERVICE_SECONDS=60 pytest -m slow tests/examples/test_service.py` chooses how long; ten minutes otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

import aiodq
from tests.examples.hostile import ATTEMPTS
from tests.examples.support import EXAMPLES, PATIENCE, PLAIN
from tests.processes import ROOT, environment, reserved_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to be caught")
for package in ("fastapi", "uvicorn"):
    pytest.importorskip(package, reason=f"{package} is not installed: it comes with the extra fastapi")

TEN_MINUTES: Final = float(os.environ.get("AIODQ_SERVICE_SECONDS", "600"))
CUSTOMERS: Final = 4
PAUSE: Final = 0.1
"""Seconds between a customer's orders: at most 40 a second. Those that hang (0.5 s, four times) keep three of eight
workers busy, slow ones (0.5 s) two of four. A service that is asked for more than it can do only falls behind."""

WANTED: Final = {"note": 85, "slow": 6, "poison": 4, "cancel": 3, "hang": 2}
"""What is ordered, and how often among a hundred; what crashes is ordered one by one."""


class Supervisor:
    """Starts the service again whenever it ends, as systemd would.

    Attributes:
        lives: how often it was started.
        codes: with what each life ended.
    """

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.lives = 0
        self.codes: list[int] = []
        self.process: asyncio.subprocess.Process | None = None
        self._over = False

    async def run(self) -> None:
        arguments = ["--store", str(self.directory / "store"), "--port", str(self.port)]
        script = [str(ROOT / "tests" / "examples" / "hostile.py"), str(EXAMPLES / "fastapi_service.py")]
        command = [sys.executable, "-W", "always::ResourceWarning", *script, str(self.directory / "done"), *arguments]
        with (self.directory / "output").open("ab") as sink:
            while not self._over:
                self.lives += 1
                self.process = await asyncio.create_subprocess_exec(
                    *command, env=environment(), stdout=sink, stderr=sink
                )
                self.codes.append(await self.process.wait())

    def kill(self, number: signal.Signals, *, for_good: bool = False) -> None:
        self._over = for_good
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text(encoding="utf-8")


class Book:
    """What customers were promised, by kind, and what they tried to order."""

    def __init__(self) -> None:
        self.promised: dict[str, set[str]] = defaultdict(set)
        self.tried: set[str] = set()

    async def order(self, client: httpx.AsyncClient, kind: str, argument: str) -> bool:
        self.tried.add(argument)
        try:
            answer = await client.post("/jobs", json={"kind": kind, "argument": argument})
        except httpx.TransportError:
            return False  # cut off: the customer cannot know
        assert answer.status_code in {202, 503}, answer.text
        if answer.status_code == 202:
            self.promised[kind].add(argument)
        return answer.status_code == 202


async def customer(client: httpx.AsyncClient, book: Book, number: int, rng: Random, over: asyncio.Event) -> None:
    kinds, weights = list(WANTED), list(WANTED.values())
    for count in range(sys.maxsize):
        if over.is_set():
            return
        kind = rng.choices(kinds, weights)[0]
        await book.order(client, kind, f"{kind}-{number}-{count}")
        await asyncio.sleep(PAUSE)


async def at_work(client: httpx.AsyncClient) -> dict[str, Any] | None:
    """Return the stats, or None where nobody answers at the moment."""
    try:
        answer = await client.get("/stats")
    except httpx.TransportError:
        return None
    found: dict[str, Any] = answer.json()
    return found


async def until_it_answers(client: httpx.AsyncClient) -> None:
    while await at_work(client) is None:
        await asyncio.sleep(0.05)


async def until_it_listens_to_signals(client: httpx.AsyncClient, supervisor: Supervisor) -> None:
    """Wait for an answer of the very process that would be signalled, not of one that has crashed just afterwards.

    Its successor ends at once of a SIGTERM that comes before it has begun.
    """
    answering = None
    while answering is None or supervisor.process is not answering:
        answering = supervisor.process
        await until_it_answers(client)


async def disturb(
    client: httpx.AsyncClient, supervisor: Supervisor, book: Book, rng: Random, *, seconds: float, pause: float
) -> None:
    """Crash it, kill it, stop it: each once at least, by turns, with some peace between."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    for number in range(sys.maxsize):
        if number % 3 == 0 and number and loop.time() >= end:
            return
        await asyncio.sleep(pause * rng.uniform(0.5, 1.5))
        if number % 3 == 0:
            while not await book.order(client, "crash", f"crash-{number}"):
                await asyncio.sleep(0.05)
        else:
            await until_it_listens_to_signals(client, supervisor)
            supervisor.kill(signal.SIGTERM if number % 3 == 1 else signal.SIGKILL)


async def serve(directory: Path, seed: int, *, seconds: float, pause: float) -> tuple[Supervisor, Book]:
    """Run the service under load; return who ran it, and what was promised."""
    with reserved_port() as port:
        supervisor = Supervisor(directory, port)
        return supervisor, await served(supervisor, seed, seconds=seconds, pause=pause)


async def served(supervisor: Supervisor, seed: int, *, seconds: float, pause: float) -> Book:
    book, rng, over = Book(), Random(seed), asyncio.Event()
    running = asyncio.create_task(supervisor.run())
    url = f"http://127.0.0.1:{supervisor.port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, verify=PLAIN) as client:
            await until_it_answers(client)
            async with asyncio.TaskGroup() as tasks:
                for number in range(CUSTOMERS):
                    tasks.create_task(customer(client, book, number, Random(rng.random()), over))
                await disturb(client, supervisor, book, rng, seconds=seconds, pause=pause)
                over.set()
            # What crashes the service takes four lives of it each; what was in hand beside it waits meanwhile.
            async with asyncio.timeout(PATIENCE + seconds / 2):
                while (stats := await at_work(client)) is None or any(lane["depth"] for lane in stats.values()):
                    await asyncio.sleep(0.1)
        supervisor.kill(signal.SIGTERM, for_good=True)
        await asyncio.wait_for(running, PATIENCE)
    finally:
        supervisor.kill(signal.SIGKILL, for_good=True)
    return book


def done(directory: Path) -> dict[str, int]:
    """Return what was done, and when first: nanoseconds since 1970."""
    times: dict[str, int] = {}
    for line in (directory / "done").read_text(encoding="utf-8").splitlines():
        time, _, argument = line.partition(" ")
        times.setdefault(argument, int(time))
    return times


def done_meanwhile(directory: Path, book: Book) -> int:
    """Return how many of the quick jobs were done before the last of what crashes was given up."""
    letters = aiodq.open_reader(directory / "store").topic("jobs.dead").scan()
    end = max(one.timestamp_ns for one in letters if json.loads(one.body)["argument"].startswith("crash"))
    times = done(directory)
    return sum(times[argument] < end for argument in book.promised["note"])


def dead(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the headers of dead letters, by the argument of the job."""
    letters = aiodq.open_reader(directory / "store").topic("jobs.dead").scan()
    return {json.loads(letter.body)["argument"]: dict(letter.headers) for letter in letters}


def check(directory: Path, supervisor: Supervisor, book: Book) -> None:
    worked_off, letters = done(directory).keys(), dead(directory)
    good = book.promised["note"] | book.promised["slow"]
    assert good - worked_off == set(), "lost"
    assert {argument for argument in letters if argument.startswith(("note", "slow"))} == set(), "killed with another"
    assert letters.keys() | worked_off <= book.tried
    for kind in ("poison", "cancel", "hang", "crash"):
        assert book.promised[kind] <= letters.keys(), f"{kind}: neither done nor given up"
    for argument, headers in letters.items():
        check_letter(argument, headers)
    stopped = [code for code in supervisor.codes if code != -signal.SIGKILL]
    assert set(stopped) == {0}, supervisor.output[-5000:]
    for complaint in ("never closed", "never retrieved", "never awaited", "was destroyed", "CRITICAL"):
        assert complaint not in supervisor.output


def check_letter(argument: str, headers: dict[str, Any]) -> None:
    """A letter says why: but where the last attempt ended with its process, that is all there is to be said."""
    error = {
        "poison": f"ValueError: {argument} is poison",
        "cancel": "asyncio.exceptions.CancelledError",
        "hang": "TimeoutError: the handler took longer than 0.5 s",
    }.get(argument.split("-", maxsplit=1)[0])
    assert headers["aiodq-reason"].startswith(f"delivered {ATTEMPTS} times")
    assert headers.get("aiodq-error", error) == error
    assert headers["aiodq-attempts"] == str(ATTEMPTS)


@pytest.mark.timeout(300)  # half a minute, and several beside other work
def test_a_service_under_load_that_is_stopped_killed_and_crashed_loses_nothing(tmp_path: Path, seed: int) -> None:
    supervisor, book = asyncio.run(serve(tmp_path, seed, seconds=0, pause=0.6))
    check(tmp_path, supervisor, book)
    # Each attempt of what crashes the service ended a life: by itself, or stopped or killed with it in hand.
    assert supervisor.lives > ATTEMPTS
    # What fails, hangs and crashes was waited for by itself: most of the others were done while it was.
    assert done_meanwhile(tmp_path, book) >= len(book.promised["note"]) // 2


@pytest.mark.slow
@pytest.mark.timeout(1.5 * TEN_MINUTES + 300)
def test_the_same_for_ten_minutes(tmp_path: Path, seed: int) -> None:
    supervisor, book = asyncio.run(serve(tmp_path, seed, seconds=TEN_MINUTES, pause=8))
    check(tmp_path, supervisor, book)
    promised = {kind: len(arguments) for kind, arguments in book.promised.items()}
    early = done_meanwhile(tmp_path, book)
    print(f"\n{supervisor.lives} lives; promised {promised}, {early} quick ones done beside the crashes")
