"""What an object says of itself where somebody prints it: name, state, what is before it, and where."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.testing import SimulatedFileSystem
from tests.channels.support import Machine, soon

if TYPE_CHECKING:
    from pathlib import Path


class SilentFileSystem(SimulatedFileSystem):
    """Fails whoever touches it once it is to be silent."""

    silent = False

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_") and name != "silent" and self.silent:
            raise AssertionError(f"a repr did I/O: {name}")
        return super().__getattribute__(name)


async def test_of_a_store_a_topic_a_channel_and_a_queue() -> None:
    machine = Machine()
    machine.fs = SilentFileSystem()
    async with machine.store() as store:
        assert repr(store) == "<Store '/s' open, 0 topics>"
        jobs = store.queue("jobs")
        audit = jobs.topic.channel("audit")
        repr((jobs, jobs.topic, audit))  # of what is not there yet
        await jobs.put_many([b"a", b"b", b"c", b"d"])
        await (await jobs.get()).nack(60)
        held = await jobs.get()
        machine.fs.silent = True
        assert repr(store) == "<Store '/s' open, 1 topic>"
        assert repr(jobs.topic) == "<Topic 'jobs' open, offsets 0 to before 4, 2 channels [/s]>"
        assert repr(jobs) == "<Queue 'jobs' open, 2 ready, 1 in flight, 1 deferred [/s]>"
        assert repr(audit) == "<Channel 'audit' of topic 'jobs' open, 4 ready, 0 in flight, 0 deferred [/s]>"
        machine.fs.silent = False
        await audit.pause()
        assert repr(audit).startswith("<Channel 'audit' of topic 'jobs' paused,")
        await jobs.topic.delete_channel("audit")
        assert repr(audit).startswith("<Channel 'audit' of topic 'jobs' deleted,")
        jobs.shutdown()
        assert repr(jobs).startswith("<Queue 'jobs' shut down,")
        await held.ack()
        gone = store.topic("gone")
        await gone.put(b"x")
        await store.delete_topic("gone")
        assert repr(gone).startswith("<Topic 'gone' deleted,")
    machine.fs.silent = True
    assert repr(store) == "<Store '/s' closed, 1 topic>"
    assert repr(jobs) == "<Queue 'jobs' closed, 2 ready, 0 in flight, 1 deferred [/s]>"
    machine.fs.silent = False


async def test_of_a_store_that_failed(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs")
        await jobs.put(b"a")
        store._store_engine.fail(aiodq.StoreFailedError("broken", "/s"))
        assert repr(store).startswith("<Store '/s' failed")
        assert repr(jobs).startswith("<Queue 'jobs' failed, ")


async def test_of_messages(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
        await jobs.put(b"a" * 40)
        message = await jobs.get()
        body = repr(b"a" * 32) + "…"
        assert repr(message) == f"<Message jobs:0 {body} in flight in 'default', attempt 1>"
        machine.clock.advance(6)
        again = await soon(jobs.get())
        assert repr(message) == f"<Message jobs:0 {body} taken away in 'default', attempt 1>"
        assert repr(again) == f"<Message jobs:0 {body} in flight in 'default', attempt 2>"
        await again.ack()
        assert repr(again) == f"<Message jobs:0 {body} settled in 'default', attempt 2>"
        assert repr(await jobs.read(0)) == f"<Message jobs:0 {body} only looked at>"


async def test_of_receipts_and_transactions(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = store.queue("jobs")
        receipt = jobs.put_nowait(b"a")
        assert repr(receipt) == "<Receipt not durable yet>"
        await receipt
        assert repr(receipt) == "<Receipt offset 0>"
        transaction = store.transaction()
        assert repr(transaction) == "<Transaction not begun, 0 to ack, 0 to put [/s]>"
        message = await jobs.get()
        async with transaction:
            transaction.ack(message)
            transaction.put("jobs", b"b")
            transaction.put("other", b"c")
            assert repr(transaction) == "<Transaction under way, 1 to ack, 2 to put [/s]>"
        assert repr(transaction).startswith("<Transaction over")
        lost = jobs.put_nowait(b"lost")
        store._store_engine.fail(aiodq.StoreFailedError("broken", "/s"))
        await asyncio.sleep(0)
        assert repr(lost).startswith("<Receipt not stored: StoreFailedError(")


def test_of_what_was_not_awaited_and_of_readers(tmp_path: Path) -> None:
    place = str(tmp_path.resolve() / "s")
    unused = aiodq.open(place)
    opening = aiodq.open_queue(place)
    assert repr(unused) == f"<StoreOpening {place!r} not awaited yet>"
    assert repr(opening) == f"<QueueOpening {place!r} not awaited yet>"

    async def main() -> None:
        async with opening as queue:
            await queue.put(b"a")
            told: list[str] = []
            other = threading.Thread(target=lambda: told.append(repr(queue)))  # where nobody may use it
            other.start()
            other.join()
            assert told == [f"<Queue 'queue' open, 1 ready, 0 in flight, 0 deferred [{place}]>"]

    aiodq.run(main())
    reader = aiodq.open_reader(place)
    assert repr(reader) == f"<StoreReader {place!r} read-only>"
    assert repr(reader.topic("queue")) == f"<TopicReader 'queue' read-only, offsets 0 to before 1 [{place}]>"
    with pytest.warns(RuntimeWarning, match="never awaited"):
        del unused
        gc.collect()


def test_of_a_message_that_no_channel_made() -> None:
    assert repr(aiodq.Message()) == "<Message of no topic>"
    assert repr(aiodq.StoredMessage()) == "<StoredMessage of no topic>"


def test_an_opening_made_without_arguments_is_refused_quietly() -> None:
    opening: Any = aiodq.StoreOpening
    with pytest.raises(TypeError, match="missing"):
        opening()
    gc.collect()  # a warning of its `__del__` is an error here


def test_every_public_class_says_more_than_its_address() -> None:
    plain = [
        name
        for name in aiodq.__all__
        if isinstance(found := getattr(aiodq, name), type)
        and "__repr__" not in {key for base in found.__mro__[:-1] for key in vars(base)}
    ]
    assert [name for name in plain if name not in {"Clock", "SystemClock"}] == []
