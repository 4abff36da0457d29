"""Ctrl-C instead of a callback: Python raises it before the first line, and the loop does not call that one again."""

from __future__ import annotations

import asyncio
import sys
from asyncio.events import Handle
from typing import TYPE_CHECKING, Any

import pytest

import aiodq

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from types import FrameType

PATIENCE = 30.0
_CALLING = Handle._run.__code__


class Interrupting:
    """Raises `KeyboardInterrupt` where the loop calls a function of that name for the first time, or a later one."""

    def __init__(self, name: str, before: int = 0) -> None:
        self.raised = False
        self._name = name
        self._before = before

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        called = event == "call" and frame.f_back is not None and frame.f_back.f_code is _CALLING
        if called and frame.f_code.co_qualname == self._name and frame.f_globals["__name__"].startswith("aiodq."):
            if self._before:
                self._before -= 1
                return
            sys.setprofile(None)
            self.raised = True
            raise KeyboardInterrupt


def run(loop: asyncio.AbstractEventLoop, doing: Coroutine[Any, Any, object]) -> list[BaseException]:
    """Run something to its end, as a program does that goes on after each Ctrl-C; return what it raised."""
    errors = list[BaseException]()
    task = loop.create_task(doing)
    while not task.done():
        try:
            loop.run_until_complete(asyncio.wait([task], timeout=PATIENCE))
        except KeyboardInterrupt as interrupt:
            errors.append(interrupt)
        else:
            assert task.done(), "it hangs"
    if (error := task.exception()) is not None:
        errors.append(error)
    return errors


async def use(store: aiodq.Store) -> None:
    jobs, dead, late, short = (store.topic(name) for name in ("jobs", "dead", "late", "short"))
    channel = jobs.channel("c", aiodq.ChannelOptions(max_attempts=1, dead_letter="dead"))
    letters, delayed, expiring = (topic.channel("c") for topic in (dead, late, short))
    await late.put(b"x", delay=0.3)
    await asyncio.gather(*(short.put(b"x", ttl=0.01) for _ in range(3)))
    await jobs.put_many([b"1", b"2"])
    for message in await channel.get_many(2):
        await message.nack()
    async with store.transaction() as tx:
        for letter in await letters.get_many(2):
            tx.ack(letter)
        tx.put("jobs", b"3")
    assert (await channel.get()).body == b"3"
    await (await delayed.get()).ack()
    await expiring.join()
    await channel.purge()
    await store.delete_topic("jobs")


@pytest.mark.pure("the names of what is called are seen")
@pytest.mark.parametrize(
    ("name", "stops"),
    [
        ("shielded.<locals>.end", False),
        ("ClockTimer._look", False),
        ("OnDemand._try", False),
        ("TopicEngine.guarded.<locals>.callback", False),
        ("Letters._tell", False),
        ("DeadLetterOffice._ended", False),
        ("DeadLetterOffice._put", True),
        ("Deletions._delete", True),
        ("StoreTasks._run", True),
    ],
)
def test_ctrl_c_instead_of_a_callback_leaves_nobody_waiting(tmp_path: Path, name: str, *, stops: bool) -> None:
    async def close() -> None:
        await store.aclose()

    async def opened() -> aiodq.Store:
        return await aiodq.open(tmp_path / "s")

    loop = asyncio.new_event_loop()
    interrupting = Interrupting(name)
    try:
        store = loop.run_until_complete(opened())
        sys.setprofile(interrupting)
        errors = run(loop, use(store))
        sys.setprofile(None)
        assert interrupting.raised
        assert {type(error) for error in errors} <= {KeyboardInterrupt, aiodq.StoreFailedError}
        assert isinstance(errors[-1], KeyboardInterrupt) or stops
        assert all(isinstance(error, aiodq.StoreFailedError) for error in run(loop, close()))
        assert not store.health().ok or not stops
    finally:
        sys.setprofile(None)
        loop.close()


OF_AN_OWNER = (
    "ClientPuts._put_in",
    "ClientPuts.put.<locals>.<lambda>",
    "Inside._end",
    "Lending._run",
    "Lending.told",
    "PacketProtocol._go_on",
    "RemoteCommitter._over",
    "RequestsInProgress._answered",
    "StoreTasks._run",
)


@pytest.mark.pure("the names of what is called are seen")
@pytest.mark.parametrize(
    ("name", "before"),
    [
        *((name, 0) for name in OF_AN_OWNER),
        *(("SessionEnd._run", before) for before in range(2)),  # of either end's connection
        *(("surely.<locals>.call", before) for before in range(0, 45, 3)),
        *(("SettlementSender._send_acks.<locals>.<lambda>", before) for before in range(0, 6, 2)),
        *(("RequestsInProgress._settled", before) for before in range(0, 6, 2)),
    ],
)
def test_ctrl_c_instead_of_a_callback_in_the_owner_leaves_no_process_waiting(
    tmp_path: Path, name: str, before: int
) -> None:
    async def opened() -> tuple[aiodq.Store, aiodq.Store]:
        path = tmp_path / "s"
        return await aiodq.open(path, mode="shared"), await aiodq.open(path, mode="client")

    async def close() -> None:
        await client.aclose()
        await owner.aclose()

    loop = asyncio.new_event_loop()
    interrupting = Interrupting(name, before)
    try:
        owner, client = loop.run_until_complete(opened())
        sys.setprofile(interrupting)
        errors: list[BaseException] = []
        for _ in range(5):  # some are called only if others come at the right moment
            if not interrupting.raised:
                errors += run(loop, use(client))
        # What the owner had lent may be delivered again by the next one.
        assert {type(error) for error in errors} <= {KeyboardInterrupt, aiodq.NotInFlightError}
        errors = run(loop, close())
        assert {type(error) for error in errors} <= {KeyboardInterrupt, aiodq.StoreFailedError}
        assert interrupting.raised
        left = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(loop)]
        assert "Lending._run" not in left, "no loop reports that it was destroyed"
    finally:
        sys.setprofile(None)
        loop.close()
