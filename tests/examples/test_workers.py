"""A service with several workers, under load: workers are killed and replaced, the server is ended.

What was answered with 202 is worked off, and nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest

import aiodq
from aiodq.shared.requests.owner_state.visitors import ask_visitors
from tests.examples.load import Load
from tests.examples.support import EXAMPLES, PATIENCE, PLAIN
from tests.examples.support import load as load_example
from tests.processes import environment, killed_at_last, reserved_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)  # so many processes begin and end in each, beside other work perhaps

ROUND: Final = 120
"""Orders, while which the owner is killed, and another worker."""

SERVERS: Final = {
    "uvicorn": ("uvicorn", ["uvicorn", "--app-dir", str(EXAMPLES), "--port"]),
    "gunicorn": (
        "gunicorn",
        ["gunicorn", "--chdir", str(EXAMPLES), "-k", "uvicorn_worker.UvicornWorker", "--bind"],
    ),
    # Without these it ends where a worker does, waits 3.5 s for each, and for ever for one that it is just starting.
    "granian": (
        "granian",
        [
            *("granian", "--interface", "asgi", "--working-dir", str(EXAMPLES)),
            *("--respawn-failed-workers", "--respawn-interval", "0.1", "--workers-kill-timeout", "30", "--port"),
        ],
    ),
}


class Server:
    """A server of the example, with its workers.

    Attributes:
        process: the one that watches the workers.
        url: where it answers.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str, directory: Path, workers: int) -> None:
        self.process = process
        self.url = url
        self._store = directory / "orders"
        self._output = directory / "output"
        self._workers = workers

    def wait_until_answering(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._output.read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/stats", timeout=PATIENCE, verify=PLAIN).is_success:
                    return
            time.sleep(0.05)
        pytest.fail(f"it does not answer: {self._output.read_text()}")

    def workers(self) -> tuple[int, list[int]]:
        """Return the owner of the queue, and the others that have it open."""
        facts = asyncio.run(ask_visitors(str(self._store)))
        owner = facts["owner"]["pid"]
        # This process has asked before, and may be seen going.
        return owner, [client["pid"] for client in facts["clients"] if client["pid"] not in {owner, os.getpid()}]

    def wait_for_workers(self) -> tuple[int, list[int]]:
        """Return them once there are as many as there shall be, as those that died are replaced."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(aiodq.AiodqError):
                owner, others = self.workers()
                if len(others) >= self._workers - 1:
                    return owner, others
            time.sleep(0.05)
        pytest.fail(f"there are not {self._workers} workers: {self._output.read_text()}")

    def wait_until_started(self) -> None:
        """Wait until granian has started every worker: one that it is just starting does not hear of its end."""
        deadline = time.monotonic() + PATIENCE
        while (text := self._output.read_text()).count("Spawning worker-") > text.count("Started worker-"):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def all_workers(self) -> set[int]:
        """Likewise, the owner among them."""
        owner, others = self.wait_for_workers()
        return {owner, *others}

    def wait_until_done(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = httpx.get(f"{self.url}/stats", timeout=PATIENCE, verify=PLAIN)
                if answer.is_success and answer.json()["depth"] == 0:
                    return
            time.sleep(0.05)
        pytest.fail(f"orders are left: {self._output.read_text()}")

    def end(self) -> None:
        """Send SIGTERM, and wait for a good end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self._output.read_text()


@contextmanager
def serving(kind: str, directory: Path, *more: str, workers: int) -> Iterator[Server]:
    package, command = SERVERS[kind]
    pytest.importorskip(package, reason=f"{package} is not installed: it comes with the extra dev")
    env = environment(ORDERS=str(directory / "orders"), DONE=str(directory / "done"))
    with (
        reserved_port() as port,
        (directory / "output").open("ab") as output,
        killed_at_last(
            [
                *(sys.executable, "-m", *command, f"127.0.0.1:{port}" if command[-1] == "--bind" else str(port)),
                *("--workers", str(workers), *more, "fastapi_workers:app"),
            ],
            env=env,
            stdout=output,
            stderr=output,
            group=True,
        ) as process,
    ):
        server = Server(process, f"http://127.0.0.1:{port}", directory, workers)
        server.wait_until_answering()
        yield server


async def work_off(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the example's application, in this process, work off what is left."""
    patch.setenv("ORDERS", str(directory / "orders"))
    patch.setenv("DONE", str(directory / "done"))
    app = load_example("fastapi_workers").app
    async with app.router.lifespan_context(app), asyncio.timeout(PATIENCE):
        await app.state.orders.join()


def started(pid: int) -> int:
    """Return when a process was started, as a number that grows with time."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def worked_off(directory: Path) -> list[int]:
    """Return the numbers of the orders that were worked off, as often as they were."""
    done = [
        parcel for parcel in (directory / "done").iterdir() if not parcel.suffix
    ]  # else of a worker that was killed
    return [json.loads(parcel.read_bytes())["number"] for parcel in done]


def check(directory: Path, load: Load) -> None:
    """What was accepted is worked off, and nothing is there or was done twice."""
    done = Counter(worked_off(directory))
    assert set(load.accepted) <= done.keys()
    assert [number for number, times in done.items() if times > 1] == []
    assert done.keys() <= {*load.accepted, *load.refused}
    stored = Counter(
        json.loads(message.body)["number"] for message in aiodq.open_reader(directory / "orders").topic("queue").scan()
    )
    assert [number for number, times in stored.items() if times > 1] == []


@pytest.mark.drawn("kind")
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_lost_nor_done_twice(
    kind: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    one_at_a_time = threading.Lock()
    with serving(kind, tmp_path, workers=3) as server:  # one owns the queue, one is killed besides, and one is left
        load = Load(server.url)

        def kill(number: int) -> None:
            if number % ROUND in {40, 100}:
                with one_at_a_time:  # orders go on meanwhile, and may reach the next kill
                    owner, others = server.wait_for_workers()
                    # Not the one that was started last: granian takes it for one that always crashes, and ends.
                    killed.append(owner if number % ROUND == 40 else min(others, key=started))
                    os.kill(killed[-1], signal.SIGKILL)

        load.run(ROUND * rounds, kill)
        assert len(killed) == 2 * rounds
        assert len(load.accepted) > ROUND * rounds * 3 // 4
        assert server.wait_for_workers()[0] not in killed
        server.wait_until_done()
        server.wait_until_started()

        def end(number: int) -> None:
            if number == ROUND * rounds + 30:
                server.process.send_signal(signal.SIGTERM)

        load.run(80, end)
        assert server.process.wait(PATIENCE) == 0
    asyncio.run(work_off(tmp_path, monkeypatch))
    check(tmp_path, load)


@pytest.mark.drawn("kind")
# granian ends a worker so many seconds after it has started the next one, which has to listen by then.
@pytest.mark.parametrize(
    ("kind", "more"), [("gunicorn", ["--max-requests", "40"]), ("granian", ["--respawn-interval", "3"])]
)
def test_workers_that_are_recycled_and_reloaded_leave_nothing_behind(
    kind: str, more: list[str], tmp_path: Path
) -> None:
    with serving(kind, tmp_path, *more, workers=2) as server:
        before = server.all_workers()
        load = Load(server.url)

        def reload(number: int) -> None:
            if number == 60:
                server.process.send_signal(signal.SIGHUP)

        load.run(120, reload)
        deadline = time.monotonic() + PATIENCE
        while not before.isdisjoint(server.all_workers()):
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            load.run(20)
        server.wait_until_done()
        server.wait_until_started()
        server.end()
    check(tmp_path, load)
    assert len(load.refused) < 50
