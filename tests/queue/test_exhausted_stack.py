"""Calls on an exhausted stack, with ever fewer frames left: whoever else waits is served, or told why not."""

from __future__ import annotations

import asyncio
import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from aiodq.options import SyncPolicy

    Call = Callable[[], Awaitable[object]]
    Work = Callable[[aiodq.Store, "Others", Callable[[Call], Call]], Awaitable[None]]

POLICIES: Final[tuple[SyncPolicy, ...]] = ("always", "interval", "os")

_EXHAUSTIVE: Final = [pytest.param(policy, 1, marks=pytest.mark.slow) for policy in POLICIES]
EACH: Final = pytest.mark.parametrize(("policy", "stride"), [*((policy, 3) for policy in POLICIES), *_EXHAUSTIVE])
INTERVAL: Final = pytest.mark.parametrize(("policy", "stride"), [("interval", 2), *_EXHAUSTIVE])
"""For what differs from a put under the others in whom it wakes, not in how it is written and synced."""

LEFT: Final = range(32)
"""Frames that the call finds: from too few for anything to more than it needs."""

ROOM: Final = 120
"""Frames for everything else."""

PATIENCE: Final = 60.0
"""Seconds of simulated time after which what has not ended hangs."""


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # What is destroyed on such a stack, as a task that could not be made, cannot be reported there: no hook can run.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    before = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(before)


class Others:
    """What is under way beside the call."""

    def __init__(self, store: aiodq.Store) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self._last = store.topic("t").sync, store.aclose

    def start(self, *calls: Call) -> None:
        self.tasks += [asyncio.ensure_future(_outcome(call)) for call in calls]

    async def end(self) -> None:
        """See that everything ends, and the closing of the store, too."""
        for call in self._last:
            self.start(call)
            await asyncio.wait(self.tasks, timeout=PATIENCE)
            assert [task for task in self.tasks if not task.done()] == []


async def _outcome(call: Call) -> BaseException | None:
    try:
        await call()
    except (aiodq.AiodqError, RecursionError) as error:
        return error
    return None


async def deep(call: Call, frames: int) -> None:
    if frames:
        await deep(call, frames - 1)
    else:
        await call()


def at_depths(policy: SyncPolicy, work: Work, depths: Iterable[int]) -> None:
    """Do the work anew with each of these numbers of frames left, and hand it what makes a call one so deep."""

    async def main(left: int) -> None:
        fs = SimulatedFileSystem()
        executor = SimulatedExecutor(asyncio.get_running_loop(), fs, 1)
        store = await aiodq.open("/store", aiodq.StoreOptions(sync=policy), fs=fs, clock=FakeClock(), executor=executor)
        others = Others(store)
        sys.setrecursionlimit(len(inspect.stack(0)) + ROOM)
        await work(store, others, lambda call: lambda: deep(call, ROOM - left))
        await others.end()

    for left in depths:
        run(partial(main, left))


@EACH
def test_a_put(policy: SyncPolicy, stride: int, seed: int) -> None:
    async def work(store: aiodq.Store, others: Others, deeply: Callable[[Call], Call]) -> None:
        topic = store.topic("t")
        await topic.put(b"first")
        others.start(deeply(lambda: topic.put(b"deep")), lambda: topic.put(b"x"), lambda: topic.put(b"y"))
        await asyncio.sleep(0)
        others.start(lambda: topic.put(b"z"))

    at_depths(policy, work, LEFT[seed % stride :: stride])


@INTERVAL
def test_a_put_that_wakes_getters(policy: SyncPolicy, stride: int, seed: int) -> None:
    async def work(store: aiodq.Store, others: Others, deeply: Callable[[Call], Call]) -> None:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.settle_in()
        others.start(channel.get, channel.get)
        await asyncio.sleep(0)
        others.start(deeply(lambda: topic.put(b"deep")), lambda: topic.put_many([b"x", b"y"]))

    at_depths(policy, work, LEFT[seed % stride :: stride])


@INTERVAL
def test_a_put_that_waits_for_room_ahead_of_others(policy: SyncPolicy, stride: int, seed: int) -> None:
    async def work(store: aiodq.Store, others: Others, deeply: Callable[[Call], Call]) -> None:
        topic = store.topic("t", aiodq.StoreOptions(sync=policy, max_messages=4))
        channel = topic.channel("c")
        await topic.put_many([b"x"] * 4)
        messages = await channel.get_many(4)
        others.start(deeply(lambda: topic.put(b"deep")))
        await asyncio.sleep(0)
        others.start(*[lambda: topic.put(b"x")] * 3)
        await asyncio.sleep(1)
        for message in messages:
            message.ack_nowait()

    at_depths(policy, work, LEFT[seed % stride :: stride])


@INTERVAL
def test_a_requeue_that_wakes_getters(policy: SyncPolicy, stride: int, seed: int) -> None:
    async def work(store: aiodq.Store, others: Others, deeply: Callable[[Call], Call]) -> None:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.put_many([b"x"] * 3)
        messages = await channel.get_many(3)
        others.start(channel.get, channel.get)
        await asyncio.sleep(0)
        others.start(deeply(messages[0].nack), messages[1].nack, messages[2].nack)

    at_depths(policy, work, LEFT[seed % stride :: stride])


@INTERVAL
def test_an_ack(policy: SyncPolicy, stride: int, seed: int) -> None:
    async def work(store: aiodq.Store, others: Others, deeply: Callable[[Call], Call]) -> None:
        topic = store.topic("t")
        channel = topic.channel("c")
        await topic.put_many([b"x"] * 3)
        messages = await channel.get_many(3)
        others.start(deeply(messages[0].ack), messages[1].ack)
        await asyncio.sleep(1)
        others.start(messages[2].ack)

    at_depths(policy, work, LEFT[seed % stride :: stride])
