"""Stores in memory, the clock that stands still, and the examples of `aiodq.testing` itself."""

from __future__ import annotations

import ast
import doctest
import errno
import inspect
import re
import textwrap
from contextlib import suppress
from types import FunctionType
from typing import Any

import pytest

import aiodq
from aiodq import testing
from aiodq.testing import FakeClock, Fault, FaultPlan, SimulatedFileSystem, memory_queue, memory_store


async def test_a_queue_in_memory_is_a_queue() -> None:
    async with memory_queue(aiodq.StoreOptions(max_messages=3), aiodq.ChannelOptions(max_in_flight=1)) as queue:
        await queue.put_many([b"a", b"b"])
        async with await queue.get() as message:
            assert (message.body, queue.maxsize) == (b"a", 3)
            with pytest.raises(aiodq.QueueEmpty):
                queue.get_nowait()
        assert (await queue.get()).body == b"b"


async def test_stores_in_memory_have_nothing_to_do_with_each_other() -> None:
    async with memory_store() as first, memory_store() as second:
        assert await first.topic("t").put(b"x") == await second.topic("t").put(b"y") == 0
        assert (await first.topic("t").read(0)).body == b"x"
        assert first.topics() == second.topics() == ["t"]
    async with memory_store() as third:
        assert third.topics() == []


async def test_a_store_in_memory_goes_by_the_clock_it_is_given() -> None:
    clock = FakeClock(1_700_000_000_000_000_000)
    async with memory_store(clock=clock) as store, memory_queue(clock=clock) as queue:
        await store.topic("t").put(b"x")
        clock.advance(1.5)
        await queue.put(b"y")
        assert (await store.topic("t").read(0)).timestamp_ns == 1_700_000_000_000_000_000
        assert (await queue.get()).timestamp_ns == 1_700_000_001_500_000_000


def test_a_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock()
    begin = clock.now_ns(), clock.monotonic()
    assert (clock.now_ns(), clock.monotonic()) == begin
    clock.advance(2.5)
    assert (clock.now_ns() - begin[0], clock.monotonic() - begin[1]) == (2_500_000_000, 2.5)
    clock.jump(-3600)
    assert (clock.now_ns() - begin[0], clock.monotonic() - begin[1]) == (2_500_000_000 - 3600 * 10**9, 2.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


async def test_a_second_opening_is_refused_and_a_power_cut_frees_the_store() -> None:
    fs = SimulatedFileSystem()
    store = await aiodq.open("/shop", fs=fs)
    await store.topic("t").put(b"kept")
    with pytest.raises(aiodq.StoreLockedError):
        await aiodq.open("/shop", fs=fs)
    after = fs.power_cut(seed=3)
    async with aiodq.open("/shop", fs=after) as again:
        assert [message.body async for message in again.topic("t").scan()] == [b"kept"]
    with pytest.raises(aiodq.StorageError):
        await store.topic("t").put(b"no disk any more")
    with suppress(aiodq.StorageError):
        await store.aclose()


@pytest.mark.parametrize("short", [None, 0, 5])
async def test_a_full_disk_refuses_and_goes_on_once_there_is_space(short: int | None) -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open_queue("/q", fs=fs, clock=FakeClock()) as queue:
        await queue.put(b"first")
        fs.plan.add(Fault("write", 1, "ENOSPC", lasting=True, short=short, match=".seg"))
        for _ in range(3):
            with pytest.raises(aiodq.DiskFullError) as caught:
                await queue.put(b"second")
            assert (caught.value.errno, caught.value.retriable) == (errno.ENOSPC, True)
        fs.plan.clear()
        assert await queue.put(b"third") == 1
    async with aiodq.open_queue("/q", fs=fs.power_cut()) as queue:
        assert [message.body async for message in queue.scan()] == [b"first", b"third"]


async def test_every_call_that_fails_at_opening_is_reported_and_leaves_the_store_as_it_was() -> None:
    fs = SimulatedFileSystem()
    async with aiodq.open_queue("/q", fs=fs) as queue:
        await queue.put(b"kept")
    before = fs.image()
    for call in (call for call in testing.CALLS if call != "close"):
        for at in range(1, 40):
            found = SimulatedFileSystem(before, plan=FaultPlan([Fault(call, at, "EIO")]))
            try:
                async with aiodq.open_queue("/q", fs=found) as queue:
                    assert [message.body async for message in queue.scan()] == [b"kept"]
            except aiodq.AiodqError as error:
                assert isinstance(error, aiodq.StorageError), (call, at)
            found.plan.clear()
            async with aiodq.open_queue("/q", fs=found.power_cut()) as queue:
                assert queue.depth == 1
                assert queue.topic_stats().damages == 0
            if found.calls.get(call, 0) < at:
                break


# --- the examples


def examples() -> list[str]:
    """Return the snippets of the package's docstring."""
    text = inspect.getdoc(testing) or ""
    found = re.findall(r"::\n\n((?:    .*\n|\n)+)", text)
    return [textwrap.dedent(source) for source in found]


async def perform(source: str, names: dict[str, Any]) -> None:
    code = compile(source, "aiodq.testing", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    await FunctionType(code, names)()


async def test_the_examples_of_the_package_run() -> None:
    names: dict[str, Any] = {"aiodq": aiodq, **{name: getattr(testing, name) for name in testing.__all__}}
    in_memory, full, every_moment = examples()
    await perform(in_memory, names)
    await perform(full, names)
    used = "async with aiodq.open('/shop', fs=fs) as s: await s.topic('t').put(b'x')    #"
    await perform(every_moment.replace("...    ", used, 1), names)
    assert names["operations"] == len(names["fs"].trace)


def test_the_examples_of_the_plan_run() -> None:
    assert doctest.testmod(testing.faults).attempted > 1
    assert doctest.testmod(testing.faults).failed == 0


def test_whatever_is_public_is_listed_and_described() -> None:
    for name in testing.__all__:
        thing = getattr(testing, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name
