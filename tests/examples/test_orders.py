"""The order services lose no order that they answered with 202, however they are stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import aiodq
from tests.examples.support import NEEDS, PATIENCE, PLAIN, calling, load, require, serving, work_off, worked_off

if TYPE_CHECKING:
    from pathlib import Path

    from tests.examples.support import Service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to be caught")

CUSTOMERS = 16
ORDERS_BEFORE_THE_SIGNAL = 60


@pytest.fixture(params=sorted(NEEDS))
def example(request: pytest.FixtureRequest) -> str:
    """Each of the two services by turns."""
    name: str = request.param
    require(name)
    return name


@dataclass
class Book:
    """What the customers remember.

    Attributes:
        promised: answered with 202.
        refused: answered with 503.
        unanswered: the connection was cut, and the customer cannot know.
    """

    promised: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    stopped: bool = False


async def order(client: httpx.AsyncClient, item: str) -> int:
    return (await client.post("/orders", json={"item": item, "quantity": 1})).status_code


async def shop(service: Service, directory: Path, book: Book, stop: signal.Signals) -> None:
    """Order with many customers at once, stop the service in the middle, and go on until it is gone."""

    async def customer(number: int) -> None:
        for count in range(sys.maxsize):
            item = f"{number}-{count}"
            try:
                status = await order(client, item)
            except httpx.TransportError:
                book.unanswered.add(item)
                return
            assert status in {202, 503}, service.output
            (book.promised if status == 202 else book.refused).add(item)
            if not book.stopped and len(book.promised) >= ORDERS_BEFORE_THE_SIGNAL and worked_off(directory):
                book.stopped = True
                service.process.send_signal(stop)

    async with (
        httpx.AsyncClient(base_url=service.url, timeout=PATIENCE, verify=PLAIN) as client,
        asyncio.TaskGroup() as customers,
    ):
        for number in range(CUSTOMERS):
            customers.create_task(customer(number))


def stopped_in_the_middle(example: str, directory: Path, stop: signal.Signals) -> tuple[Book, int]:
    """Run a service until it is stopped under load, then once more until all is done; return what happened."""
    book = Book()
    # Half a minute for all of them, and the signal comes as soon as one is worked off. So some are left.
    with serving(example, directory, seconds=0.5, workers=1) as service:
        asyncio.run(shop(service, directory, book, stop))
        code = service.wait()
        assert service.complaints() == []
    assert 0 < len(worked_off(directory)) < ORDERS_BEFORE_THE_SIGNAL
    asyncio.run(work_off(example, directory))
    return book, code


@pytest.mark.drawn("example")
def test_sigterm_under_load_loses_and_repeats_nothing(example: str, tmp_path: Path) -> None:
    book, code = stopped_in_the_middle(example, tmp_path, signal.SIGTERM)
    assert code == 0
    done = worked_off(tmp_path)
    assert len(set(done)) == len(done)
    assert set(done) - book.unanswered == book.promised


@pytest.mark.drawn("example")
def test_sigkill_under_load_loses_nothing(example: str, tmp_path: Path) -> None:
    book, code = stopped_in_the_middle(example, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert set(worked_off(tmp_path)) - book.unanswered == book.promised


@pytest.mark.drawn("example")
def test_an_order_in_hand_at_sigterm_comes_again(example: str, tmp_path: Path) -> None:
    items = [str(number) for number in range(10)]
    with serving(example, tmp_path, seconds=3600, workers=4, grace=0.1) as service:
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=PLAIN) as client:
            for item in items:
                assert client.post("/orders", json={"item": item, "quantity": 1}).status_code == 202
        service.wait_until("the workers are busy", in_flight=4, ready=6)
        assert service.stop() == 0, service.output
    assert worked_off(tmp_path) == []
    asyncio.run(work_off(example, tmp_path))
    assert sorted(worked_off(tmp_path)) == items


@pytest.mark.drawn("example")
def test_an_order_in_hand_at_sigterm_is_worked_off_if_it_can_be(example: str, tmp_path: Path) -> None:
    with serving(example, tmp_path, seconds=2, workers=2) as service:
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=PLAIN) as client:
            for item in "abcd":
                assert client.post("/orders", json={"item": item, "quantity": 1}).status_code == 202
        service.wait_until("the workers are busy", in_flight=2)
        done = len(worked_off(tmp_path))
        assert service.stop() == 0, service.output
        assert service.complaints() == []
    assert len(worked_off(tmp_path)) == done + 2


@pytest.mark.drawn("example")
def test_a_full_disk_refuses_orders_keeps_the_others_and_lets_it_end(example: str, tmp_path: Path) -> None:
    book = Book()
    with serving(example, tmp_path, seconds=3600, grace=0, largest_file=64 * 1024) as service:
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=PLAIN) as client:
            while len(book.refused) < 3:
                item = f"{len(book.promised) + len(book.refused)}".ljust(1000, ".")
                status = client.post("/orders", json={"item": item, "quantity": 1}).status_code
                assert status in {202, 503}, service.output
                (book.promised if status == 202 else book.refused).add(item)
                assert len(book.promised) < 100
        assert book.promised
        assert service.stats()["depth"] == len(book.promised)
        assert service.stop() == 0, service.output
        assert service.complaints() == []
    asyncio.run(work_off(example, tmp_path))
    assert sorted(worked_off(tmp_path)) == sorted(book.promised)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"item": "tea", "quantity": 2}', 202),
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b"7", 422),
        (b'{"item": "tea"}', 422),
        (b'{"item": "", "quantity": 1}', 422),
        (b'{"item": 7, "quantity": 1}', 422),
        (b'{"item": "tea", "quantity": 0}', 422),
        (b'{"item": "tea", "quantity": "many"}', 422),
        (b'{"item": "' + b"t" * 20_000 + b'", "quantity": 1}', 413),
        # Its item alone would fit.
        (b'{"item": "' + b"t" * 16_370 + b'", "quantity": 1}', 413),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
async def test_answers(example: str, tmp_path: Path, body: bytes, status: int) -> None:
    module = load(example)
    async with calling(module, tmp_path) as (client, queue):
        answer = await client.post("/orders", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        if status == 202:
            assert int(answer.json()["id"], 16) == 0
        assert queue.stats().depth == (status == 202)


async def test_no_order_is_promised_before_it_is_synced(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, may_sync, sync = threading.Event(), threading.Event(), os.fdatasync

    def held_up(descriptor: int) -> None:
        syncing.set()
        may_sync.wait(PATIENCE)
        sync(descriptor)

    async with calling(load(example), tmp_path) as (client, _):
        assert await order(client, "tea") == 202
        monkeypatch.setattr(os, "fdatasync", held_up)
        try:
            second = asyncio.create_task(order(client, "coffee"))
            while not syncing.is_set():
                await asyncio.sleep(0.01)
            await asyncio.wait([second], timeout=0.2)  # long enough for a wrong answer; the right one cannot come
            assert not second.done()
        finally:
            may_sync.set()
        assert await second == 202


async def test_no_order_is_promised_while_shutting_down(example: str, tmp_path: Path) -> None:
    async with calling(load(example), tmp_path) as (client, queue):
        queue.shutdown()
        assert await order(client, "tea") == 503


async def test_an_order_that_always_fails_is_set_aside(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(example)
    tried: list[int] = []

    async def fail(_: Any, message: aiodq.Message) -> None:
        tried.append(message.attempts)
        raise ValueError("no such item")

    at_once = dataclasses.replace(module.RETRYING, backoff=aiodq.Backoff(first=0.001))
    monkeypatch.setattr(module, "RETRYING", at_once)
    monkeypatch.setattr(module.WorkShop, "work", fail)
    async with calling(module, tmp_path, paused=False) as (client, queue):
        assert await order(client, "tea") == 202
        async with asyncio.timeout(PATIENCE):
            await queue.join()
    assert tried == [1, 2, 3, 4, 5]
    aside = [message.headers for message in aiodq.open_reader(tmp_path / "store").topic("failed").scan()]
    assert [(headers["aiodq-offset"], headers["aiodq-error"]) for headers in aside] == [
        ("0", "ValueError: no such item")
    ]


async def test_a_store_that_fails_ends_the_service(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, ended = load(example), asyncio.Event()
    monkeypatch.setattr(module.signal, "raise_signal", lambda number: ended.set() if number == signal.SIGTERM else None)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    async with calling(module, tmp_path, paused=False) as (client, _):
        monkeypatch.setattr(os, "fdatasync", fail)
        assert await order(client, "tea") == 503
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
