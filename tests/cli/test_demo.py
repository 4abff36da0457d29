"""The demonstration end to end, with a real process and a real SIGKILL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from aiodq.cli import main
from aiodq.cli.demo import run
from aiodq.cli.demo.progress import Narrator
from aiodq.cli.demo.proof import Ledger, Verdict
from aiodq.cli.demo.run import Demonstration, Figures, Outcome
from aiodq.cli.demo.sources import Library, standard_library
from aiodq.cli.demo.traffic import CHANNEL, TOPIC, produce
from aiodq.opening import open as open_store
from aiodq.opening import open_reader
from aiodq.options import StoreOptions
from tests.cli.support import Running, aiodq, environment, ok, on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 3000


def test_it_holds(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store"
    store.parent.mkdir()
    done = aiodq("demo", "--limit", str(LIMIT), "--store", store, "--json", "--producers", "5", "--consumers", "3")
    assert done.code == 0, done.err
    figures = done.json
    assert figures["ok"]
    assert figures["lines"] == LIMIT
    assert (figures["lost"], figures["duplicates"], figures["wrong"], figures["problems"]) == (0, 0, {}, [])
    assert LIMIT // 2 <= figures["acknowledged"] <= figures["recovered"] < LIMIT
    assert figures["redelivered"] > 0, "somebody was in the middle of something"
    assert figures["taken"] == LIMIT + figures["redelivered"]
    assert 0 < figures["consumed"] < figures["taken"]
    assert (figures["not_acked"], figures["damages"]) == (0, 0)
    assert "killed with SIGKILL" in done.err
    assert f"the store is kept: {store}" in done.err

    topic = open_reader(store).topic(TOPIC)
    library = Library(standard_library(), 5, LIMIT)
    assert topic.stats().channels[CHANNEL].depth == 0
    stored = [message.body for message in topic.scan()]
    assert len(stored) == LIMIT
    for share in library.shares:
        wanted = set(share.messages())
        assert [body for body in stored if body in wanted] == list(share.messages())


@pytest.mark.parametrize("arguments", [["--limit", "1"], ["--limit", "40", "--producers", "40", "--consumers", "1"]])
def test_a_small_one(arguments: list[str]) -> None:
    done = aiodq("demo", *arguments, "--json")
    assert done.code == 0, done.err
    assert done.json["ok"]


def test_all_that_was_in_flight_at_the_kill_comes_again() -> None:
    """One consumer, and that one in the middle of its work: whatever it took is redelivered."""
    figures = aiodq("demo", "--limit", "500", "--consumers", "1", "--json").json
    assert figures["redelivered"] == figures["consumed"] > 0


@pytest.mark.parametrize("number", [0, 1])
async def test_a_producer_keeps_its_order_where_the_write_buffer_has_no_room(tmp_path: Path, number: int) -> None:
    (share,) = Library(standard_library(), 1, 20_000).shares
    reached: list[tuple[int, int]] = []
    async with open_store(tmp_path, StoreOptions(memory_bytes=1 << 16)) as store:
        topic = store.topic(TOPIC)
        await produce(topic, share, number, lambda *where: reached.append(where), start=100, stop=19_000)
        assert [message.body async for message in topic.scan()] == list(share.messages(100))[:18_900]
    assert reached[-1] == (number, 19_000)
    assert reached == sorted(reached)


async def test_producers_go_on_behind_what_is_stored_and_not_behind_what_was_acknowledged(tmp_path: Path) -> None:
    library = Library(standard_library(), 2, 1000)
    first, second = library.shares
    async with open_store(tmp_path) as store:
        topic = store.topic(TOPIC)
        await topic.put_many(list(first.messages())[:70])
        await topic.put_many(list(second.messages())[:20])
    demonstration = Demonstration(str(tmp_path), library, consumers=2, limit=1000, told=Narrator(1000))
    demonstration._figures.acknowledged = [50, 20]
    recovery = await demonstration._go_on()
    assert recovery.ok
    assert demonstration._figures.recovered == 90
    verdict = demonstration._delivered.verdict()
    assert verdict.ok
    assert (verdict.delivered, verdict.count("stored twice")) == (1000, 0)
    assert open_reader(tmp_path).topic(TOPIC).end_offset == 1000


async def test_what_was_acknowledged_and_is_not_stored_is_found_before_anything_else_is_put(tmp_path: Path) -> None:
    library = Library(standard_library(), 1, 1000)
    async with open_store(tmp_path) as store:
        await store.topic(TOPIC).put_many(list(library.shares[0].messages())[:70])
    demonstration = Demonstration(str(tmp_path), library, consumers=1, limit=1000, told=Narrator(1000))
    demonstration._figures.acknowledged = [72]
    recovery = await demonstration._go_on()
    assert not recovery.ok
    assert [problem.where for problem in recovery.problems] == [library.shares[0].where(place) for place in (70, 71)]


def test_two_runs_have_the_same_digest_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = (aiodq("demo", "--limit", "500", "--json").json["digest"] for _ in range(2))
    assert first == second
    assert list(tmp_path.iterdir()) == []


def test_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = aiodq("demo", "--limit", "500", "--keep")
    (kept,) = tmp_path.iterdir()
    assert f"the store is kept: {kept}" in done.err
    assert len(ok("tail", kept, TOPIC, "-n", "1000").lines) == 500


def test_where_there_is_no_terminal_it_tells_in_lines() -> None:
    done = aiodq("demo", "--limit", "500")
    assert done.code == 0
    assert "\x1b" not in done.err + done.out.decode()
    said = done.err.splitlines()
    assert re.fullmatch(r"process \d+ puts 500 lines of \d+ files", said[0])
    assert said[-1] == "put 500 of 500, consumed 500"
    text = done.out.decode()
    assert [
        row
        for row in ("messages/s", "fsyncs", "SIGKILL", "recovered", "redelivered", "lost", "digest")
        if row not in text
    ] == []
    assert text.splitlines()[-1] == "proved: everything that was acknowledged was delivered"


def test_on_a_terminal_it_draws_bars() -> None:
    shown = on_a_terminal("demo", "--limit", "500")
    assert "━" in shown.decode()
    assert b"500 of 500" in shown
    assert b"proved" in shown


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_everything_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Running("demo") as demo:
        assert demo.process.stderr is not None
        found = re.match(rb"process (\d+) puts", demo.process.stderr.readline())
        assert found
        done = demo.ended(number)
    assert done.code == 128 + number
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[1]), 0)


def test_the_writing_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "aiodq.cli.demo.writer", str(tmp_path / "s"), "2", "2", "10"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait() == 1


def test_a_writing_process_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["demo", "--limit", "10"]) == 1
    assert "ended by itself, with exit code 1" in capsys.readouterr().err


class Forgetful(Ledger):
    """Stands for a queue that loses what it was given: one message never reaches the account."""

    def deliver(self, offset: int, body: bytes) -> None:
        if offset != 123:
            super().deliver(offset, body)


def test_a_loss_is_found_named_and_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "Ledger", Forgetful)
    store = tmp_path / "store"
    assert main(["demo", "--limit", "500", "--store", str(store)]) == 1
    text = capsys.readouterr().out
    lost = next(message for message in open_reader(store).topic(TOPIC).scan(123))
    name, number, _ = lost.body.decode().split(":", 2)
    assert f"after the kill: lost: {name}:{number}" in text
    assert f"in the end: lost: {name}:{number}" in text
    assert text.splitlines()[-1] == "NOT PROVED"


def test_a_loss_in_the_report_for_machines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Ledger", Forgetful)
    assert main(["demo", "--limit", "500", "--json"]) == 1
    text = capsys.readouterr().out
    assert '"ok": false' in text
    assert '"kind": "lost"' in text


GOOD = Verdict(1, 1, 0, {}, (), (("a", "a"),))
LOST = Verdict(1, 0, 0, {"lost": 1}, (), (("a", "b"),))


@pytest.mark.parametrize(
    ("recovery", "verdict", "not_acked", "damages", "expected"),
    [
        (GOOD, GOOD, 0, 0, True),
        (LOST, GOOD, 0, 0, False),
        (GOOD, LOST, 0, 0, False),
        (GOOD, GOOD, 1, 0, False),
        (GOOD, GOOD, 0, 1, False),
    ],
)
def test_one_thing_wrong_is_enough(
    recovery: Verdict, verdict: Verdict, not_acked: int, damages: int, *, expected: bool
) -> None:
    assert Outcome(Figures([0], not_acked=not_acked, damages=damages), recovery, verdict).ok == expected
