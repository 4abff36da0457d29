"""The examples without asyncio, run as users run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx

import aiodq
import aiodq.sync
from tests.examples.support import EXAMPLES, PATIENCE, PLAIN, run_example
from tests.processes import killed_at_last

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def left(store: Path) -> int:
    return aiodq.open_reader(store).topic("queue").stats().channels["default"].depth


def test_the_script_works_its_files_off_and_once(tmp_path: Path) -> None:
    (tmp_path / "poem").write_text("a b c\nd e\n")
    store = tmp_path / "store"
    first, *lines = run_example("blocking_script.py", store, tmp_path / "poem")
    assert first == f"put 2 lines of {tmp_path / 'poem'}"
    assert sorted(lines) == ["2 words: d e", "3 words: a b c"]
    assert run_example("blocking_script.py", store) == []


def test_the_script_leaves_what_it_was_interrupted_in(tmp_path: Path) -> None:
    (tmp_path / "poem").write_text("a b c\nd e\n" * 50_000)
    store = tmp_path / "store"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "blocking_script.py"), str(store), str(tmp_path / "poem")]
    with killed_at_last(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("put 100000 lines")
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=PATIENCE)
    assert (child.returncode, errors) == (0, "")
    told = re.search(r"interrupted, (\d+) lines left", output)
    assert told is not None
    assert left(store) <= int(told[1])  # none where the signal was a long time on its way


def test_the_views_lose_nothing_at_sigterm(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "blocking_views.py"), str(store), "0"]
    with killed_at_last(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = f"http://127.0.0.1:{child.stdout.readline().split()[-1]}/orders"

        def order(number: int) -> int:
            item = "bomb" if number == 3 else "tea"
            return int(
                httpx.post(url, json={"item": item}, timeout=PATIENCE, verify=PLAIN).raise_for_status().json()["order"]
            )

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(order, range(20))) == list(range(20))
        assert httpx.get(url, verify=PLAIN).json().keys() == {"waiting", "shipped"}
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert "Traceback" not in errors
    assert "Warning" not in errors
    assert left(store) == 0
    assert [letter.headers["aiodq-reason"] for letter in aiodq.open_reader(store).topic("refused").scan()] == [
        "we do not ship that"
    ]


def test_the_notebook_s_cells_run(tmp_path: Path) -> None:
    lines = run_example("blocking_notebook.py", tmp_path)
    assert lines == ["1000 ready, 1 later", "[b'5', b'6', b'7']", "b'tea time'", "950 ready, 0 in flight"]


def test_the_notebook_s_first_cell_may_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, *others = (EXAMPLES / "blocking_notebook.py").read_text().split("\n# %%")
    monkeypatch.setattr("sys.argv", ["notebook", str(tmp_path)])
    names: dict[str, object] = {}
    for cell in (first, first, *others, first, others[-1]):
        exec(f"#{cell}", names)  # noqa: S102 - as a notebook does
    assert left(tmp_path) == 951


def test_preforked_workers_share_a_queue_and_are_replaced(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "output"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "blocking_prefork.py"), str(store), "3"]

    def done() -> list[list[str]]:
        return [line.split() for line in output.read_text().splitlines() if line.endswith(".")]

    with (
        output.open("wb") as sink,
        killed_at_last(command, stdout=sink, stderr=sink, group=True) as child,
        aiodq.sync.open_queue(store, mode="shared") as jobs,
    ):
        for number in range(90):
            jobs.put(b"%d." % number)
            if number in {30, 60}:
                jobs.join(timeout=PATIENCE)
                os.kill(int(done()[-1][0]), signal.SIGKILL)
        jobs.join(timeout=PATIENCE)
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0, output.read_text()
    assert "Traceback" not in output.read_text()
    # Killed between its print and its ack, a worker leaves what another does once more.
    assert {line[-1] for line in done()} == {f"{number}." for number in range(90)}
    assert len({line[0] for line in done()}) > 1
    assert left(store) == 0
