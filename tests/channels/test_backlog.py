"""Taking many messages at once of a backlog that is on disk: what comes next is waited for, not read once more."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.engine.reading.prefetch_reader import PrefetchingReader
from aiodq.storage.read.log_reader import LogReader
from tests.channels.support import Machine, soon, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

    import aiodq

COUNT = 400
SIZE = 4096
"""So that not all of them are read ahead at once."""


@pytest.fixture
async def backlog(machine: Machine) -> AsyncIterator[aiodq.Queue]:
    async with machine.jobs() as jobs:
        await jobs.put_many([b"%d" % number + bytes(SIZE) for number in range(COUNT)])
    async with machine.jobs() as jobs:
        yield jobs


class Gate:
    """Lets no thread read the log, once it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = threading.Event()
        read = LogReader.read

        def reading(reader: LogReader, *args: Any, **options: Any) -> Any:
            if not self._open.is_set():
                assert threading.current_thread() is not threading.main_thread(), "the loop reads"
                self.waiting.set()
                self._open.wait()
            return read(reader, *args, **options)

        monkeypatch.setattr(LogReader, "read", reading)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


async def test_the_loop_reads_nothing_of_it(backlog: aiodq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    read_now: list[int] = []
    monkeypatch.setattr(PrefetchingReader, "read_now", lambda _, offset: read_now.append(offset))
    messages = await soon(backlog.get_many(COUNT))
    assert [message.offset for message in messages] == list(range(COUNT))
    assert not read_now
    assert await soon(asyncio.to_thread(len, messages)) == COUNT
    # Nothing is on its way any more: what is left is given out, and nobody waits for more.
    await backlog.put(b"last")
    assert len(await soon(backlog.get_many(2))) == 1


async def waiting(backlog: aiodq.Queue, gate: Gate) -> asyncio.Task[list[aiodq.Message]]:
    """Return a task that has taken some of the messages, and waits for what is read ahead."""
    (await backlog.get()).release()
    gate.shut()
    getting = asyncio.create_task(backlog.get_many(COUNT))
    await until(gate.waiting.is_set)
    await until(lambda: backlog.in_flight() > 0)
    assert not getting.done()
    return getting


async def test_cancelled_meanwhile_it_gives_back_what_it_has(backlog: aiodq.Queue, gate: Gate) -> None:
    getting = await waiting(backlog, gate)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(getting)
    assert (backlog.in_flight(), backlog.qsize()) == (0, COUNT)
    gate.open()
    assert [message.offset for message in await soon(backlog.get_many(COUNT))] == list(range(COUNT))


@pytest.mark.parametrize("how", ["closed", "shut down"])
async def test_it_ends_with_what_it_has(machine: Machine, gate: Gate, how: str) -> None:
    jobs: AbstractAsyncContextManager[aiodq.Queue] = machine.jobs()
    async with jobs as backlog:
        await backlog.put_many([bytes(SIZE)] * COUNT)
    async with machine.store() as store:
        backlog = store.queue("jobs")
        getting = await waiting(backlog, gate)
        if how == "closed":
            closing = asyncio.create_task(store.aclose())
            messages = await soon(getting)
            gate.open()
            await soon(closing)
            assert 0 < len(messages) < COUNT
        else:
            backlog.shutdown(immediate=True)
            gate.open()
            assert 0 < len(await soon(getting)) < COUNT
