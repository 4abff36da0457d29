"""Running the examples as a user would: in a process of their own, stopped by a signal."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from tests.processes import ROOT, environment, killed_at_last, reserved_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from types import ModuleType

    from aiodq import Queue

EXAMPLES: Final = ROOT / "examples"
PATIENCE: Final = 60.0
"""Seconds until a hanging process is given up; nothing is measured."""

PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody, for `verify` of clients: each would read all authorities' certificates, for 50 ms, for plain HTTP."""

NEEDS: Final = {"fastapi_orders": ("fastapi", "uvicorn"), "aiohttp_orders": ("aiohttp",)}
COMPLAINT: Final = re.compile(
    r"^(ERROR|CRITICAL) orders|never (closed|retrieved|awaited|released)|destroyed|shutdown failed"
)
LIMITED: Final = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def require(example: str) -> None:
    """Skip the test where an example's framework is not installed."""
    for package in NEEDS[example]:
        pytest.importorskip(package, reason=f"{package} is not installed: it comes with the extra {NEEDS[example][0]}")


def load(example: str) -> ModuleType:
    """Import an example under its name."""
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Service:
    """One of the two order services, running."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, output: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def complaints(self) -> list[str]:
        """Return what no orderly end says. What the frameworks say of connections that were cut is not among it."""
        return [line for line in self.output.splitlines() if COMPLAINT.search(line)]

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = (
            httpx.get(f"{self.url}/stats", timeout=PATIENCE, verify=PLAIN).raise_for_status().json()
        )
        return answer

    def wait_until(self, what: str, **numbers: int) -> None:
        """Wait until the queue's stats say so, and the service answers at all."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"ended while waiting until {what}: {self.output}"
            try:
                if numbers.items() <= self.stats().items():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        pytest.fail(f"waited in vain until {what}: {self.output}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def serving(
    example: str,
    directory: Path,
    *,
    seconds: float = 0.0,
    workers: int = 4,
    grace: float = PATIENCE,
    largest_file: int | None = None,
) -> Iterator[Service]:
    """Run an order service on the store in `directory`, with a bound on the size of its files perhaps."""
    output = directory / "output"
    script = [str(EXAMPLES / f"{example}.py")]
    limited = [] if largest_file is None else ["-c", LIMITED, str(largest_file)]
    with reserved_port() as port:
        options = {"port": port, "store": directory / "store", "done": directory / "done", "seconds": seconds}
        options["grace"] = grace
        arguments = [f"--{name}={value}" for name, value in {**options, "workers": workers}.items()]
        command = [sys.executable, "-W", "always::ResourceWarning", *limited, *script, *arguments]
        with output.open("wb") as sink, killed_at_last(command, stdout=sink, stderr=sink) as process:
            service = Service(process, port, output)
            service.wait_until("it answers")
            yield service


def worked_off(directory: Path) -> list[str]:
    """Return the items of the orders that were worked off, as often as they were."""
    try:
        lines = (directory / "done").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line)["item"] for line in lines]


@asynccontextmanager
async def calling(
    module: ModuleType, directory: Path, *, paused: bool = True
) -> AsyncIterator[tuple[httpx.AsyncClient, Queue]]:
    """Run a loaded example's application in this process; give a client of it and its queue."""
    app = module.create_app(directory / "store", directory / "done", workers=1, seconds=0)
    if module.__name__ == "fastapi_orders":
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            if paused:
                await app.state.orders.pause()
            yield client, app.state.orders
    else:
        from aiohttp.test_utils import TestServer  # noqa: PLC0415 - an extra that may be missing

        async with (
            TestServer(app) as server,
            httpx.AsyncClient(base_url=str(server.make_url("/")), verify=PLAIN) as client,
        ):
            if paused:
                await app[module.ORDERS].pause()
            yield client, app[module.ORDERS]


async def work_off(example: str, directory: Path) -> None:
    """Start an order service again on the store in `directory`, in this process; end it when all is worked off."""
    async with calling(load(example), directory, paused=False) as (_, queue), asyncio.timeout(PATIENCE):
        await queue.join()


def run_example(name: str, *arguments: str | Path) -> list[str]:
    """Run an example with all warnings as errors; return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()
