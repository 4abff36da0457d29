"""An event loop that ends with a store open, as where `asyncio.run` ends with an error: others own the store next."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import aiodq
import aiodq.sync
from tests.processes import WATCHDOG
from tests.shared.support import QUICK, until

if TYPE_CHECKING:
    from pathlib import Path


async def _left_open(path: Path, kept: list[aiodq.Store]) -> None:
    store = await aiodq.open(path, QUICK, mode="shared")
    kept.append(store)
    await store.queue("jobs").put(b"a")


async def _got(path: Path) -> bytes:
    async with aiodq.open(path, QUICK, mode="shared") as store, asyncio.timeout(WATCHDOG):
        return (await store.queue("jobs").get()).body


def test_the_next_loop_owns_it(tmp_path: Path, kept: list[aiodq.Store]) -> None:
    asyncio.run(_left_open(tmp_path, kept))
    assert asyncio.run(_got(tmp_path)) == b"a"


def test_the_store_is_not_healthy_any_more_and_its_objects_say_why(tmp_path: Path, kept: list[aiodq.Store]) -> None:
    async def program() -> aiodq.Queue:
        await _left_open(tmp_path, kept)
        return kept[0].queue("jobs")

    jobs = asyncio.run(program())
    assert kept[0].health().reasons == ("the store is closing",)  # its own tasks could not close it
    assert "closing" in repr(kept[0])
    assert "closing" in repr(jobs)
    assert kept[0].topics() == ["jobs"]


def test_a_loop_that_is_closed_at_once_leaves_no_descriptor(tmp_path: Path, kept: list[aiodq.Store]) -> None:
    counts = set[int]()
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_left_open(tmp_path, kept))
        loop.close()
        assert asyncio.run(_got(tmp_path)) == b"a"  # this releases it
        counts.add(len(os.listdir("/dev/fd")))
    assert len(counts) == 1


def test_who_was_connected_goes_on(tmp_path: Path, kept: list[aiodq.Store]) -> None:
    async def connected() -> aiodq.sync.Store:
        await _left_open(tmp_path, kept)
        return await asyncio.to_thread(aiodq.sync.open, tmp_path, QUICK, mode="shared")

    with asyncio.run(connected()) as other:
        jobs = other.queue("jobs")
        assert jobs.put(b"b", timeout=WATCHDOG) == 1
        assert [jobs.get(timeout=WATCHDOG).body for _ in range(2)] == [b"a", b"b"]


def test_puts_that_wait_for_room_do_not_hold_it_up(tmp_path: Path, kept: list[aiodq.Store]) -> None:
    """Of two tasks that wait for each other, either may be cancelled first: with so many, both happen."""

    async def program() -> list[asyncio.Task[int]]:
        kept.append(store := await aiodq.open(tmp_path, QUICK, mode="shared"))
        full = store.queue("full", options=aiodq.StoreOptions(sync="os", max_messages=1))
        await full.put(b"a")
        owner = store._store_engine.owner  # type: ignore[attr-defined]  # of a store that is shared
        putting = [asyncio.create_task(full.put(b"b")) for _ in range(20)]
        await until(lambda: len(owner.puts_in_progress) >= 10)
        return putting

    assert all(each.cancelled() for each in asyncio.run(program()))


def test_transactions_under_way_are_cancelled_and_no_error_of_them_is_reported(
    tmp_path: Path, kept: list[aiodq.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []

    async def program() -> list[asyncio.Task[None]]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        kept.append(store := await aiodq.open(tmp_path, QUICK, mode="shared"))
        committer = store._store_engine.owner.engine.committer  # type: ignore[attr-defined]  # of a store that is shared
        begun = asyncio.Event()

        async def wait_durable(_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def work() -> None:
            async with store.transaction() as tx:
                tx.put("made", b"a")

        monkeypatch.setattr(committer, "_wait_durable", wait_durable)
        working = [asyncio.create_task(work()) for _ in range(20)]
        await begun.wait()
        return working

    assert all(each.cancelled() for each in asyncio.run(program()))
    assert not reported


@pytest.mark.parametrize("end", ["closing", "failed"])
def test_it_does_not_end_before_what_clients_held_is_given_back(
    tmp_path: Path, kept: list[aiodq.Store], end: str
) -> None:
    """A task that was begun since all others were cancelled would be destroyed, and asyncio print that."""

    def joined() -> aiodq.sync.Store:
        client = aiodq.sync.open(tmp_path, QUICK, mode="shared")
        client.queue("jobs").get(timeout=WATCHDOG)
        return client

    async def program() -> tuple[asyncio.AbstractEventLoop, aiodq.sync.Store]:
        await _left_open(tmp_path, kept)
        client = await asyncio.to_thread(joined)
        engine = kept[0]._store_engine
        owner = engine.owner  # type: ignore[attr-defined]  # of a store that is shared
        if end == "closing":
            kept.append(asyncio.create_task(kept[0].aclose()))  # type: ignore[arg-type]  # it is only to be kept
        else:
            owner.engine.fail(RuntimeError("of this test"))
            owner.failed()
        while not owner.closing:
            await asyncio.sleep(0)
        return asyncio.get_running_loop(), client

    loop, client = asyncio.run(program())
    with client:
        assert not asyncio.all_tasks(loop)


@pytest.mark.parametrize("owns", [True, False])
def test_a_handler_that_ends_the_program_ends_it(tmp_path: Path, owns: bool) -> None:
    store: aiodq.Store

    async def leave(message: aiodq.Message) -> None:
        store.queue("jobs").put_nowait(message.body)
        raise SystemExit(3)

    async def main() -> None:
        nonlocal store
        async with aiodq.open(tmp_path, QUICK, mode="shared") as store:
            await store.queue("jobs").put(b"a")
            await store.queue("jobs").consume(leave)

    with ExitStack() as stack:
        if not owns:
            stack.enter_context(aiodq.sync.open(tmp_path, QUICK, mode="shared"))
        with pytest.raises(SystemExit, match="3"):
            asyncio.run(main())
        assert asyncio.run(_got(tmp_path)) == b"a"


@pytest.mark.parametrize("begun", [True, False], ids=["as_it_closes", "open"])
def test_it_is_said_once_that_a_store_was_never_closed_and_only_where_nobody_asked(tmp_path: Path, begun: bool) -> None:
    async def program() -> None:
        store = await aiodq.open(tmp_path, QUICK, mode="shared")
        await store.queue("jobs").put(b"a")
        if begun:
            closing = asyncio.create_task(store.aclose())
            await asyncio.sleep(0)
            closing.cancel()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(program())
        gc.collect()
    assert [each.category for each in said] == ([] if begun else [ResourceWarning])
    assert asyncio.run(_got(tmp_path)) == b"a"
