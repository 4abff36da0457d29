"""What an HTTP client is answered for what a service does not take: what is wrong with it, or when to try again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import aiodq.sync
from tests.examples.support import EXAMPLES, PATIENCE, PLAIN, calling, load
from tests.processes import environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="see the examples' other tests")

SERVICES = {
    "fastapi_orders": "fastapi",
    "fastapi_service": "fastapi",
    "fastapi_workers": "fastapi",
    "aiohttp_orders": "aiohttp",
}


def told(text: str) -> bytes:
    """Return an order, or a job, of which one text is this JSON."""
    return f'{{"kind": "mail", "quantity": 1, "item": {text}, "argument": {text}}}'.encode()


WRONG = {
    "is too long": (told('"%s"' % ("x" * 200_000)), 413),
    "is not Unicode": (told('"\\ud800"'), 422),
    "is no number": (told("NaN"), 422),
    "is nested": (b"[" * 10_000, 422),
    "is no text": (b"\xff\xfe", 422),
    "is nothing": (b"", 422),
    "is a number without end": (told("9" * 5000), 422),
}


KEPT = {
    "fastapi_workers": [wrong for wrong, (_, status) in WRONG.items() if status == 422],  # as it is sent
    "aiohttp_orders": ["is not Unicode"],  # kept as JSON, which may say so
}


@pytest.fixture(params=sorted(SERVICES))
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip(SERVICES[request.param])
    monkeypatch.setenv("ORDERS", str(tmp_path / "store"))
    monkeypatch.setenv("DONE", str(tmp_path / "done"))
    return load(request.param)


@asynccontextmanager
async def client_of(module: ModuleType, directory: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str, Any]]:
    """Return a client of a service in this process, the path that takes something, and its queue, which is paused."""
    if module.__name__.endswith("_orders"):
        async with calling(module, directory) as (client, queue):
            yield client, "/orders", queue
        return
    app = module.app if module.__name__ == "fastapi_workers" else module.create_app(directory / "store")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        jobs = module.__name__ == "fastapi_service"
        queue = app.state.queues[module.QUICK] if jobs else app.state.orders
        await queue.pause()
        yield client, "/jobs" if jobs else "/orders", queue


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_wrong_is_told_and_not_kept(module: ModuleType, tmp_path: Path, wrong: str) -> None:
    body, status = WRONG[wrong]
    async with client_of(module, tmp_path) as (client, path, queue):
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        if wrong in KEPT.get(module.__name__, ()):
            assert answer.status_code == 202
            return
        assert answer.status_code in ({400, 422} if status == 422 else {status})
        if module.__name__ != "aiohttp_orders":
            assert "detail" in answer.json()
        assert queue.depth == 0


async def test_what_is_not_promised_may_be_tried_again(module: ModuleType, tmp_path: Path) -> None:
    async with client_of(module, tmp_path) as (client, path, queue):
        queue.shutdown()
        answer = await client.post(path, content=told('"a@b"'), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


async def test_latencies_are_named(module: ModuleType, tmp_path: Path) -> None:
    async with client_of(module, tmp_path) as (client, path, queue):
        await client.post(path, content=told('"a@b"'), headers={"Content-Type": "application/json"})
        await queue.resume()
        await queue.join()
        stats = (await client.get("/stats")).json()
    if module.__name__ == "fastapi_workers":
        assert stats.keys() == {"depth", "worker"}
        return
    found = stats.get("jobs.quick", stats)
    assert found["put_to_ack"].keys() == {"messages", "p50", "p90", "p99", "max"}


@contextmanager
def views_of(directory: Path) -> Iterator[tuple[aiodq.sync.Queue, str, int]]:
    """Serve the views on a queue in this process."""
    module = load("blocking_views")
    with (
        aiodq.sync.open_queue(directory) as orders,
        module.make_server("127.0.0.1", 0, module.Views(orders), module.Server, module.Quiet) as server,
    ):
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield orders, f"http://127.0.0.1:{server.server_port}/orders", server.server_port
        server.shutdown()
        serving.join()


def test_the_views_tell_what_is_wrong(tmp_path: Path) -> None:
    with views_of(tmp_path) as (orders, url, port):
        for body, status in WRONG.values():
            if b"ud800" not in body:  # JSON may say so, and what is kept is the JSON
                assert httpx.post(url, content=body, verify=PLAIN).status_code == status
        for line in (b"", b"Content-Length: -1\r\n", b"Content-Length: many\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"POST /orders HTTP/1.0\r\n" + line + b"\r\n")
                assert connection.makefile("rb").readline().split()[1] == b"411"
        assert orders.depth == 0
        orders.shutdown()
        answer = httpx.post(url, content=json.dumps({"item": "tea"}), verify=PLAIN)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize("name", ["blocking_script", "blocking_prefork", "blocking_views"])
def test_without_its_directory_a_script_says_what_it_takes(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"usage: {name}.py DIRECTORY")
    assert len(done.stderr.splitlines()) == 1
