"""Loops that end too early, stores that nobody closes, and callers from where nobody may call."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import os
import pkgutil
import random
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import pytest

import aiodq
from aiodq.engine.loop.on_demand import OnDemand
from aiodq.engine.store import watch
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.loops import LOOPS, run_on
from tests.processes import ROOT, WATCHDOG
from tests.queue.support import turns, until
from tests.system.support import (
    QuickFileSystem,
    StallingFileSystem,
    bodies,
    descriptors_under,
    drain,
    engine_threads,
    nothing_left,
    run_script,
)
from tests.system.surface import VALUES, Surface, calls, settlements, uncovered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from aiodq import Message, Queue, Receipt

on_each_loop = pytest.mark.parametrize("loop", LOOPS)


async def contents(path: Path) -> list[bytes]:
    """Open the queue again and return what it delivers, however much that is."""
    found: list[bytes] = []
    async with aiodq.open_queue(path) as queue:
        assert queue.topic_stats().damages == 0
        while messages := drain(queue):
            found += bodies(messages)
            await queue.ack_many(messages)
    return found


async def outcome(call: Callable[[], Any]) -> object:
    """Return what a call gives, or what it raises."""
    try:
        result = call()
        if inspect.isawaitable(result):
            async with asyncio.timeout(WATCHDOG):
                result = await result
    except Exception as error:  # noqa: BLE001 - the test looks at whatever was raised
        return error
    return result


# --- the loop ends first


@on_each_loop
def test_loop_ends_with_everything_pending(loop: str, tmp_path: Path) -> None:
    fs = StallingFileSystem()
    receipts: list[Receipt] = []

    async def main() -> None:
        queue = await aiodq.open_queue(tmp_path / "q", fs=fs)
        await queue.put_many([b"a", b"b", b"c"])
        await (await queue.get()).ack()
        other = await aiodq.open_queue(tmp_path / "empty")
        fs.hold = True
        pending = [queue.put(b"p1"), queue.put_many([b"p2", b"p3"]), other.get(), other.join(), queue.join()]
        kept = [asyncio.create_task(coroutine) for coroutine in pending]
        receipts.extend(queue.put_nowait(b"r%d" % number) for number in range(3))
        await turns(3)
        ended = [task.done() for task in kept[:2]]
        threading.Timer(0.1, fs.release).start()
        assert ended == [False, False]

    with pytest.warns(ResourceWarning, match="never closed"):
        run_on(loop, main())
        gc.collect()
    assert engine_threads() == []
    assert descriptors_under(tmp_path) == []
    left = run_on(loop, contents(tmp_path / "q"))
    assert left[:2] == [b"b", b"c"]
    told = [b"r%d" % number for number, receipt in enumerate(receipts) if decided(receipt)]
    assert [body for body in left if body.startswith(b"r")] == told == [b"r0", b"r1", b"r2"]


def decided(receipt: Receipt) -> bool:
    """Return whether the receipt says that the message is stored; it must say something."""
    assert receipt.done()
    return repr(receipt).startswith("<Receipt offset")


@on_each_loop
@pytest.mark.parametrize("before_the_end", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
def test_receipts_tell_the_truth_when_the_loop_ends(loop: str, before_the_end: int, tmp_path: Path) -> None:
    """In the midst of batches, rolls and syncs: what a receipt confirms is there, and the other way round."""
    receipts: list[Receipt] = []
    sent = [bytes([number]) * 40_000 for number in range(30)]

    async def main() -> None:
        options = aiodq.StoreOptions(segment_bytes=100_000)
        queue = await aiodq.open_queue(tmp_path, options, fs=QuickFileSystem())
        receipts.extend(queue.put_nowait(body) for body in sent)
        await turns(before_the_end)

    with pytest.warns(ResourceWarning, match="never closed"):
        run_on(loop, main())
        gc.collect()
    left = run_on(loop, contents(tmp_path))
    assert left == [body for body, receipt in zip(sent, receipts, strict=True) if decided(receipt)]


@on_each_loop
def test_loop_ends_amid_a_sync(loop: str, tmp_path: Path) -> None:
    fs = StallingFileSystem()

    async def main() -> None:
        queue = await aiodq.open_queue(tmp_path, fs=fs)
        await queue.put(b"a")
        fs.hold = True
        puts = [asyncio.create_task(queue.put(b"b")), asyncio.create_task(queue.put(b"c"))]
        await until(lambda: fs.in_flight)
        puts.append(asyncio.create_task(queue.put(b"d")))
        await turns(2)
        threading.Timer(0.1, fs.release).start()

    with pytest.warns(ResourceWarning, match="never closed"):
        run_on(loop, main())
        gc.collect()
    left = run_on(loop, contents(tmp_path))
    # The writer had taken "b". The others were cancelled with the loop.
    assert left in ([b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"])


CLOSED_AMID_SYNC = """
import asyncio, gc, sys
import aiodq
from tests.loops import LOOPS
from tests.queue.support import until
from tests.system.support import (StallingFileSystem)

fs = StallingFileSystem()
loop = LOOPS[sys.argv[2]]()

async def main():
    queue = await aiodq.open_queue(sys.argv[1], fs=fs)
    await queue.put(b"a")
    fs.hold = True
    task = asyncio.create_task(queue.put(b"b"))
    await until(lambda: fs.in_flight)
    return queue, task

held = loop.run_until_complete(main())
loop.close()
fs.release()
del held, loop
gc.collect()

async def again():
    async with aiodq.open_queue(sys.argv[1]):
        print("opened")

if sys.argv[3] == "again":
    asyncio.run(again())
"""


@pytest.mark.parametrize("loop", [pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
def test_loop_closed_amid_a_sync(loop: str, tmp_path: Path) -> None:
    """Closed without a chance to end anything: the process exits all the same, and nothing is lost."""
    run_script(CLOSED_AMID_SYNC, str(tmp_path), loop, "exit")
    assert run_on(loop, contents(tmp_path)) in ([b"a"], [b"a", b"b"])


@on_each_loop
def test_store_of_a_closed_loop_is_released_by_who_opens_it_again(loop: str, tmp_path: Path) -> None:
    """Once its threads are done, as they may still write."""
    assert run_script(CLOSED_AMID_SYNC, str(tmp_path), loop, "again").stdout.split() == ["opened"]
    assert run_on(loop, contents(tmp_path)) == [b"a", b"b"]


async def test_collected_store_warns_and_lets_go(tmp_path: Path) -> None:
    with nothing_left():
        store = await aiodq.open(tmp_path)
        await store.topic("t").put(b"a")
        store.topic("t").put_nowait(b"accepted")
        with pytest.warns(ResourceWarning, match="never closed"):
            del store
            gc.collect()
        # At once, as in a notebook's cell that is run once more.
        async with aiodq.open(tmp_path) as store:
            assert [message.body async for message in store.topic("t").scan()] == [b"a", b"accepted"]


async def test_cell_of_a_notebook_run_twice(tmp_path: Path) -> None:
    names: dict[str, Any] = {"aiodq": aiodq, "path": tmp_path}
    cell = compile(
        "queue = await aiodq.open_queue(path)\nawait queue.put(b'a')", "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    with nothing_left():
        await eval(cell, names)  # noqa: S307 - as a notebook does it
        with pytest.raises(aiodq.StoreLockedError, match=r"which is this one: .*close it first .* mode='shared'"):
            await eval(cell, names)  # noqa: S307 - likewise
        with pytest.warns(ResourceWarning, match="never closed"):
            del names["queue"]
            gc.collect()
        await eval(cell, names)  # noqa: S307 - likewise
        assert names["queue"].qsize() == 2
        await names["queue"].aclose()


async def test_cell_of_a_notebook_run_twice_with_a_shared_store(tmp_path: Path) -> None:
    names: dict[str, Any] = {"aiodq": aiodq, "path": tmp_path}
    cell = compile(
        "queue = await aiodq.open_queue(path, mode='shared')\nawait queue.put(b'a')",
        "cell",
        "exec",
        ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
    )
    tasks = asyncio.all_tasks()
    with nothing_left():
        await eval(cell, names)  # noqa: S307 - as a notebook does it
        first = names["queue"]
        await eval(cell, names)  # noqa: S307 - likewise
        assert names["queue"] is not first
        await first.put(b"b")
        async with asyncio.timeout(WATCHDOG):
            for body in (b"a", b"a", b"b"):
                async with await names["queue"].get() as message:
                    assert message.body == body
        assert [message.body async for message in first.scan()] == [b"a", b"a", b"b"]
        del message
        with pytest.warns(ResourceWarning, match="never closed"):
            del first
            gc.collect()
        # Whoever is left serves the store from now on, and a cell that binds the name anew drops it.
        with pytest.warns(ResourceWarning, match="never closed"):
            await eval(cell, names)  # noqa: S307 - likewise
            gc.collect()
        assert [message.body async for message in names["queue"].scan()] == [b"a", b"a", b"b", b"a"]
        await names["queue"].aclose()
        # The dropped ones are still taking leave.
        await until(lambda: not asyncio.all_tasks() - tasks)


async def test_collected_store_that_failed_lets_go(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="error"):
        store = await aiodq.open(tmp_path)
        store._store_engine.fail(OSError("broken"))
        del store
        gc.collect()
        async with aiodq.open(tmp_path):
            pass


@pytest.mark.parametrize("kept", ["topic", "channel", "message", "transaction", "getter"])
async def test_store_stays_open_for_what_is_in_use(kept: str, tmp_path: Path) -> None:
    async def main() -> Any:
        store = await aiodq.open(tmp_path, fs=QuickFileSystem())
        topic, channel = store.topic("t"), store.topic("t").channel("c")
        await topic.put(b"a")
        if kept == "getter":
            getting = asyncio.create_task(store.topic("t").channel("later", aiodq.ChannelOptions(start="latest")).get())
            await topic.settle_in()
            await turns(1)
            return getting
        return {"topic": topic, "channel": channel, "message": await channel.get(), "transaction": store.transaction()}[
            kept
        ]

    handle = await asyncio.create_task(main())
    gc.collect()
    with pytest.raises(aiodq.StoreLockedError):
        await aiodq.open(tmp_path)
    with pytest.warns(ResourceWarning, match="never closed"):
        if kept == "message":
            await handle.ack()
        if kept == "getter":
            handle.cancel()
            await asyncio.wait([handle])
        del handle
        gc.collect()
        async with aiodq.open(tmp_path) as store:
            assert store.topic("t").channel("c").qsize() == (kept != "message")


async def test_closed_store_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        store = await aiodq.open(tmp_path)
        await store.aclose()
        del store
        gc.collect()
    assert caught == []


UNTIL_INTERRUPTED = """
import asyncio, os, sys
import aiodq
from tests.loops import LOOPS

async def main():
    if sys.argv[3] == "closed":
        async with aiodq.open_queue(sys.argv[1]) as queue:
            await work(queue)
    else:
        await work(await aiodq.open_queue(sys.argv[1]))

async def work(queue):
    for number in range(1_000_000):
        await queue.put(b"%d" % number)
        os.write(1, b"%d\\n" % number)

with asyncio.Runner(loop_factory=LOOPS[sys.argv[2]]) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize(
    ("loop", "manner"),
    [
        ("asyncio", "closed"),
        ("uvloop", "unclosed"),
        pytest.param("asyncio", "unclosed", marks=pytest.mark.slow),
        pytest.param("uvloop", "closed", marks=pytest.mark.slow),
    ],
)
def test_keyboard_interrupt_during_put(loop: str, manner: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNTIL_INTERRUPTED, str(tmp_path), loop, manner]
    # Unbuffered, as `communicate` passes over what `readline` has read ahead.
    with subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        for _ in range(20):
            assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=WATCHDOG)
    assert child.returncode == -signal.SIGINT, errors.decode()
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    assert b"never retrieved" not in errors
    told = 20 + output.count(b"\n")
    left = run_on(loop, contents(tmp_path))
    assert left == [b"%d" % number for number in range(len(left))]
    assert told <= len(left) <= told + 1


INTERRUPTED: dict[str, tuple[str, Literal["os", "always"]]] = {
    "a put": ("aiodq.storage.log.active_segment.ActiveSegment._noted", "os"),
    "the start of a sync": ("aiodq.engine.monitoring.metrics.SyncTimer.began", "always"),
    "a turn": ("aiodq.engine.topic.commit.publisher.Publisher.written", "always"),
}
"""What is called amid a change, and under which policy."""


@on_each_loop
@pytest.mark.parametrize("where", INTERRUPTED)
def test_keyboard_interrupt_amid_a_change_stops_the_store(
    loop: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook goes on with loop and store: nobody waits for ever, and nothing is written upon what is half done."""
    amid, policy = INTERRUPTED[where]

    async def opened() -> aiodq.Queue:
        return await aiodq.open_queue(tmp_path, aiodq.StoreOptions(sync=policy), fs=QuickFileSystem())

    async def put_all(*bodies: bytes) -> None:
        done, _ = await asyncio.wait([asyncio.create_task(queue.put(body, tag="t")) for body in bodies])
        for task in done:
            task.exception()

    async def put(body: bytes) -> None:
        async with asyncio.timeout(WATCHDOG):
            await queue.put(body, tag="t")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    running = LOOPS[loop]()
    running.set_exception_handler(lambda *_: None)  # nobody can ask for the outcome of a put that was interrupted
    try:
        queue = running.run_until_complete(opened())
        running.run_until_complete(put(b"0"))
        with monkeypatch.context() as patched:
            patched.setattr(amid, interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(put_all(b"1", b"2", b"3"))
        with pytest.raises(aiodq.StoreFailedError, match="KeyboardInterrupt"):
            running.run_until_complete(put(b"4"))
        with suppress(aiodq.StoreFailedError):
            running.run_until_complete(queue.aclose())
    finally:
        running.close()
    left = run_on(loop, contents(tmp_path))
    assert left[0] == b"0"
    assert set(left[1:]) <= {b"1", b"2", b"3"}
    assert verify_store(str(tmp_path), OsFileSystem()).ok


INSTEAD: dict[str, str] = {
    "a turn": "aiodq.engine.topic.commit.request_queue.RequestQueue._take_turn",
    "the turn of those who put again": "aiodq.engine.topic.commit.group_commit.GroupCommit._gathered",
}
"""Callbacks of the loop that an interrupt takes the place of."""


@on_each_loop
@pytest.mark.parametrize("what", INSTEAD)
def test_keyboard_interrupt_instead_of_a_callback_leaves_nobody_waiting(
    loop: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that goes on has forgotten the callback that it was about to call."""

    async def opened() -> aiodq.Queue:
        return await aiodq.open_queue(tmp_path, fs=QuickFileSystem())

    async def put_some(number: int) -> None:
        for _ in range(3):
            await queue.put(b"%d" % number, tag="t")

    async def all_done() -> None:
        async with asyncio.timeout(WATCHDOG):
            await asyncio.gather(*putting)
            await put_some(3)
            await queue.aclose()

    def interrupted(*_: object) -> None:
        patched.undo()
        raise KeyboardInterrupt

    running = LOOPS[loop]()
    try:
        queue = running.run_until_complete(opened())
        running.run_until_complete(put_some(0))
        putting = [running.create_task(put_some(number)) for number in (1, 2)]
        with monkeypatch.context() as patched:
            patched.setattr(INSTEAD[what], interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(asyncio.wait(putting))
        running.run_until_complete(all_done())
    finally:
        running.close()
    assert sorted(run_on(loop, contents(tmp_path))) == sorted(b"%d" % number for number in range(4) for _ in range(3))


async def get_what_is_due(store: aiodq.Store) -> None:
    queue = store.queue("queue")
    await queue.get_many(1)
    await queue.put(b"1", delay=0.3)  # longer than the put takes: it is to come due while it is waited for
    await queue.get()


async def settle_in(store: aiodq.Store) -> None:
    store.topic("queue").put_nowait(b"1")  # else there is nothing to wait for
    await store.topic("queue").settle_in()


async def ack_in_pieces(store: aiodq.Store) -> None:
    queue = store.queue("queue")
    await queue.put_many([b"1", b"2"])
    apart = (await queue.get_many(3))[::2]
    async with store.transaction() as transaction:
        transaction.ack_many(apart)


AMID: dict[str, tuple[str, Callable[[aiodq.Store], Coroutine[Any, Any, Any]]]] = {
    "the ring of an alarm": ("aiodq.engine.channel.source.message_source.MessageSource.prepare", get_what_is_due),
    "the end of work on the log": ("aiodq.engine.topic.topic_engine.settle", settle_in),
    "the end of a transaction": (
        "aiodq.engine.channel.acks.transaction_holds.TransactionHolds.settle",
        ack_in_pieces,
    ),
}
"""What is called amid a callback, and what waits for that."""


@on_each_loop
@pytest.mark.parametrize("where", AMID)
def test_keyboard_interrupt_amid_a_callback_leaves_nobody_waiting(
    loop: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amid, work = AMID[where]
    called, left = pkgutil.resolve_name(amid), 1 if work is ack_in_pieces else 0
    monkeypatch.setattr("aiodq.engine.committing.entries._PIECE", 1)  # the first one is entered elsewhere

    async def opened() -> aiodq.Store:
        store = await aiodq.open(tmp_path, fs=QuickFileSystem())
        await store.queue("queue").put(b"0")
        await store.topic("queue").settle_in()
        return store

    async def told() -> None:
        async with asyncio.timeout(WATCHDOG):
            await asyncio.wait([waiting])

    def interrupted(*given: object) -> object:
        nonlocal left
        if left:
            left -= 1
            return called(*given)
        patched.undo()
        raise KeyboardInterrupt

    running = LOOPS[loop]()
    try:
        store = running.run_until_complete(opened())
        waiting = running.create_task(work(store))
        with monkeypatch.context() as patched:
            patched.setattr(amid, interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(told())
        running.run_until_complete(told())
        assert isinstance(waiting.exception(), aiodq.StoreFailedError)
        with suppress(aiodq.StoreFailedError):
            running.run_until_complete(store.aclose())
    finally:
        running.close()


@on_each_loop
def test_keyboard_interrupt_as_a_thread_is_given_work_on_the_log_leaves_nobody_waiting(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened() -> aiodq.Queue:
        queue = await aiodq.open_queue(tmp_path, fs=QuickFileSystem())
        await queue.put(b"0")
        return queue

    async def told() -> None:
        async with asyncio.timeout(WATCHDOG):
            await asyncio.wait([waiting])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    running = LOOPS[loop]()
    try:
        queue = running.run_until_complete(opened())
        waiting = running.create_task(queue.purge())
        with monkeypatch.context() as patched:
            patched.setattr("aiodq.engine.loop.worker_threads.WorkerThreads.start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(told())
        running.run_until_complete(told())
        assert isinstance(waiting.exception(), aiodq.StoreFailedError)
        with suppress(aiodq.StoreFailedError):
            running.run_until_complete(queue.aclose())
    finally:
        running.close()
    assert run_on(loop, contents(tmp_path)) == [b"0"]


@on_each_loop
def test_keyboard_interrupt_amid_a_transaction_leaves_nobody_waiting(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened() -> aiodq.Store:
        return await aiodq.open(tmp_path, fs=QuickFileSystem())

    async def transact() -> None:
        async with store.transaction() as transaction:
            transaction.put("queue", b"0")

    async def close() -> None:
        async with asyncio.timeout(WATCHDOG):
            await store.aclose()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    running = LOOPS[loop]()
    try:
        store = running.run_until_complete(opened())
        with monkeypatch.context() as patched:
            patched.setattr("aiodq.engine.committing.topic_appender.TopicAppender.add", interrupted)
            committing = running.create_task(transact())
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(committing)
        with suppress(aiodq.StoreFailedError):
            running.run_until_complete(close())
        assert isinstance(committing.exception(), aiodq.StoreFailedError)
    finally:
        running.close()

    async def seen() -> list[bytes]:
        async with aiodq.open(tmp_path) as again:
            return [message.body async for message in again.topic("queue").scan()]

    assert run_on(loop, seen()) == [b"0"], "it was committed"


# --- after the end


async def surface_of(store: aiodq.Store) -> Surface:
    topic = store.topic("queue")
    surface = Surface(store, topic, topic.channel("another", aiodq.ChannelOptions(start=0)), store.queue("queue"))
    await topic.put_many([b"%d" % number for number in range(20)])
    return surface


async def test_use_after_close(tmp_path: Path) -> None:
    with nothing_left():
        async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
            surface = await surface_of(store)
            messages = [await surface.queue.get() for _ in range(9)]
            assert uncovered(surface, messages[0]) == set()
            iterator = aiter(surface.queue)
        for name, call in calls(surface).items():
            assert isinstance(await outcome(call), aiodq.QueueShutDown), name
        for message, name in zip(messages, settlements(messages[0]), strict=False):
            assert isinstance(await outcome(settlements(message)[name]), aiodq.QueueShutDown), name
            assert not message.settled
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
        with pytest.raises(aiodq.QueueShutDown):
            async with messages[7]:
                pass
        with pytest.raises(KeyError, match="the user's"):
            async with messages[8]:
                raise KeyError("the user's")
        answers_questions(surface)
        surface.queue.shutdown()
        await surface.queue.aclose()
        await store.aclose()
    assert await contents(tmp_path) == [b"%d" % number for number in range(20)]


def answers_questions(surface: Surface) -> None:
    for thing in (surface.store, surface.topic, surface.channel, surface.queue):
        for name in VALUES[type(thing).__name__]:
            value = getattr(thing, name)
            assert (value() if inspect.ismethod(value) else value) is not None
    assert surface.topic.end_offset == surface.queue.depth == surface.channel.depth == 20


@pytest.mark.parametrize("reverse", [False, True])
async def test_scan_ends_with_its_store(reverse: bool, tmp_path: Path) -> None:
    with nothing_left():
        async with aiodq.open_queue(tmp_path, fs=QuickFileSystem()) as queue:
            for _ in range(4):
                await queue.put(bytes(300_000))
            scan = aiter(queue.scan(reverse=reverse))
            await anext(scan)
        with pytest.raises(aiodq.QueueShutDown):
            async for _ in scan:
                pass
    assert descriptors_under(tmp_path) == []


async def test_handles_of_a_deleted_topic_say_so(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
        topic, queue = store.topic("x"), store.queue("x")
        await topic.put_many([b"a", b"b"])
        message = await queue.get()
        waiting = [asyncio.create_task(queue.join()), asyncio.create_task(store.topic("x").channel("idle").get())]
        await turns(1)
        deleting = asyncio.create_task(store.delete_topic("x"))
        await turns(1)
        calls: list[Callable[[], Any]] = [
            lambda: topic.put(b"c"), lambda: topic.put_many([b"c"]), lambda: topic.put_nowait(b"c"), topic.sync,
            topic.purge, lambda: topic.channel("new"), queue.get, queue.get_nowait, queue.join, message.ack,
        ]  # fmt: skip
        await deleting
        for call in (*(lambda task=task: task for task in waiting), *calls):
            assert repr(await outcome(call)) == """QueueShutDown("topic 'x' was deleted")"""
        assert await store.topic("x").put(b"anew") == 0


async def test_deleted_topic_is_shut_down(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
        surface = await surface_of(store)
        message = await surface.queue.get()
        waiting = asyncio.create_task(surface.queue.join())
        await store.delete_topic("queue")
        for name, call in calls(surface).items():
            if name.startswith("Store."):
                continue
            looks = name.endswith((".read", ".scan", ".offset_at"))
            assert looks or isinstance(await outcome(call), aiodq.QueueShutDown), name
        for name in ("Topic.read", "Queue.read"):
            assert isinstance(await outcome(calls(surface)[name]), aiodq.AiodqError), name
        for name, call in settlements(message).items():
            assert isinstance(await outcome(call), aiodq.QueueShutDown | aiodq.NotInFlightError), name
        await outcome(lambda: waiting)
        assert store.topics() == []
    assert descriptors_under(tmp_path) == []


async def test_deleting_twice_in_a_row_spares_what_comes_after(tmp_path: Path) -> None:
    with nothing_left():
        async with aiodq.open(tmp_path) as store:
            await store.topic("t").put(b"1")
            first = asyncio.create_task(store.delete_topic("t"))
            await turns(1)
            second_put = store.topic("t").put_nowait(b"2")
            second = asyncio.create_task(store.delete_topic("t"))
            await turns(1)
            third = store.topic("t")
            assert await third.put(b"3") == 0
            await asyncio.gather(first, second)
            assert await third.put(b"4") == 1
            assert await outcome(lambda: second_put) is not None
        async with aiodq.open(tmp_path) as store:
            assert [message.body async for message in store.topic("t").scan()] == [b"3", b"4"]


async def test_aclose_tells_everyone_who_waits(tmp_path: Path) -> None:
    """Getters, joiners, who waits for room: all end. What consumers hold comes again."""
    with nothing_left():
        store = await aiodq.open(tmp_path, aiodq.StoreOptions(max_messages=2))
        queue, empty = store.queue("queue"), store.queue("empty")
        await queue.put_many([b"a", b"b"])
        held = [await queue.get(), await queue.get()]
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(coroutine)
            for coroutine in (
                queue.put(b"no room"),
                queue.join(),
                queue.get(),
                empty.get(),
                empty.get(3600),
                empty.get_many(2),
            )
        ]
        await turns(5)
        acking = asyncio.create_task(held[0].ack())
        await turns(1)
        async with asyncio.timeout(WATCHDOG):
            await store.aclose()
            results = await asyncio.gather(*waiting, acking, return_exceptions=True)
        assert [type(result) for result in results] == [aiodq.QueueShutDown] * 6 + [type(None)]
        assert isinstance(await outcome(held[1].ack), aiodq.QueueShutDown)
    assert await contents(tmp_path) == [b"b"]


async def test_ack_beside_aclose_is_durable_or_refused(tmp_path: Path, seed: int) -> None:
    """Whatever a consumer is told, opening again agrees; each loop tries a third of the steps."""
    for number in random.Random(f"{seed} {type(asyncio.get_running_loop()).__module__}").sample(range(30), 10):
        path = tmp_path / str(number)
        queue = await aiodq.open_queue(path, fs=QuickFileSystem())
        await queue.put_many([b"a", b"b"])
        message = await queue.get()
        closing = asyncio.create_task(queue.aclose())
        await turns(number)
        told = await outcome(message.ack)
        await closing
        assert told is None or isinstance(told, aiodq.QueueShutDown), told
        left = await contents(path)
        assert left == ([b"b"] if told is None else [b"a", b"b"])


async def test_reject_beside_aclose_is_told_its_outcome(tmp_path: Path) -> None:
    """Also if closing comes between its beginning and the first step of putting the dead letter."""
    for number in range(12):
        store = await aiodq.open(tmp_path / str(number), fs=QuickFileSystem())
        topic, dead = store.topic("t"), store.topic("dead")
        channel = topic.channel("c", aiodq.ChannelOptions(dead_letter="dead"))
        await topic.put(b"a")
        await dead.put(b"b")
        message = await channel.get()
        closing = asyncio.create_task(store.aclose())
        await turns(number)
        async with asyncio.timeout(WATCHDOG):
            told = await outcome(message.reject)
        await closing
        assert told is None or isinstance(told, aiodq.QueueShutDown), told


async def test_aclose_twice_at_once(tmp_path: Path) -> None:
    with nothing_left():
        store = await aiodq.open(tmp_path)
        queue = store.queue("queue")
        receipt = queue.put_nowait(b"a")
        await asyncio.gather(*(store.aclose() for _ in range(3)), *(queue.aclose() for _ in range(2)), store.aclose())
        await store.aclose()
        assert await receipt == 0
    assert await contents(tmp_path) == [b"a"]
    assert engine_threads() == []


async def test_exception_inside_the_block_closes(tmp_path: Path) -> None:
    with nothing_left():
        with pytest.raises(KeyError, match="the user's"):
            async with aiodq.open(tmp_path) as store:
                queue = store.queue("queue")
                queue.put_nowait(b"a")
                raise KeyError("the user's")
        with pytest.raises(KeyError, match="the user's"):
            async with aiodq.open_queue(tmp_path) as queue:
                async for message in queue:
                    async with message:
                        raise KeyError("the user's")
        async with aiodq.open_queue(tmp_path) as queue:
            message = await queue.get()
            assert (message.body, message.attempts) == (b"a", 2)
    assert descriptors_under(tmp_path) == []


# --- the wrong caller


def elsewhere(call: Callable[[], Any]) -> object:
    """Return what a call gives or raises in another thread, on a loop of its own."""
    results: list[object] = []

    async def main() -> None:
        results.append(await outcome(call))

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    assert results, "it hangs in another thread"
    return results[0]


def without_a_loop(call: Callable[[], Any]) -> object:
    """Return what a plain call raises in a thread that has no loop."""
    results: list[object] = []

    def main() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - the test looks at whatever was raised
            results.append(error)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(WATCHDOG)
    return results[0]


async def test_use_from_another_thread(tmp_path: Path) -> None:
    with nothing_left():
        async with aiodq.open(tmp_path, fs=QuickFileSystem()) as store:
            surface = await surface_of(store)
            message = await surface.queue.get()
            queue = surface.queue
            ends = {f"{type(one).__name__}.{end.__name__}": end for one, end in (
                (store, store.aclose), (store, store.stop), (queue, queue.aclose), (queue, queue.shutdown),
                (queue, queue.stop),
            )}  # fmt: skip
            everything = {**calls(surface), **settlements(message), **ends}
            for name, call in everything.items():
                assert isinstance(elsewhere(call), aiodq.WrongContextError), name
                if not inspect.iscoroutinefunction(call):
                    refused_without_a_loop(name, call)
            assert not message.settled
            still_works(await queue.get(), queue)
            assert await queue.put(b"last") == 20
            await message.ack()
    assert len(await contents(tmp_path)) == 20


def refused_without_a_loop(name: str, call: Callable[[], Any]) -> None:
    result = without_a_loop(call)
    if inspect.iscoroutine(result):
        result.close()
    else:
        assert isinstance(result, aiodq.WrongContextError), name


def still_works(message: Message, queue: Queue) -> None:
    assert message.body == b"1"
    assert queue.end_offset == queue.depth == 20


@on_each_loop
def test_use_from_the_next_loop(loop: str, tmp_path: Path) -> None:
    """A store outlives its loop only as an object."""

    async def first() -> tuple[Surface, Message]:
        surface = await surface_of(await aiodq.open(tmp_path))
        return surface, await surface.queue.get()

    async def second(surface: Surface, message: Message) -> None:
        for name, call in {**calls(surface), **settlements(message)}.items():
            assert isinstance(await outcome(call), aiodq.WrongContextError | aiodq.QueueShutDown), name

    surface, message = run_on(loop, first())
    run_on(loop, second(surface, message))
    with pytest.warns(ResourceWarning, match="never closed"):
        del surface, message
        gc.collect()
    assert len(run_on(loop, contents(tmp_path))) == 20


# --- more than one owner


async def test_second_owner_in_this_process(tmp_path: Path) -> None:
    path, link = tmp_path / "store", tmp_path / "link"
    link.symlink_to(path)
    async with aiodq.open(path):
        for again in (path, link, tmp_path / "." / "store", os.path.relpath(path)):
            with pytest.raises(aiodq.StoreLockedError) as caught:
                await aiodq.open(again)
            assert caught.value.pid == os.getpid()
            with pytest.raises(aiodq.StoreLockedError):
                await aiodq.open_queue(again)
    async with aiodq.open(link) as store:
        await store.topic("t").put(b"x")
        with pytest.raises(aiodq.StoreLockedError):
            await aiodq.open(path)
    assert (path / "t").is_dir()


SECOND_OWNER = """
import asyncio, os, sys
import aiodq

async def refused(path):
    try:
        await aiodq.open(path)
    except aiodq.StoreLockedError as error:
        print(error.pid, error.retriable)

async def main():
    for path in sys.argv[1:]:
        await refused(path)
    os.unlink(sys.argv[1] + "/LOCK")
    await refused(sys.argv[1])

asyncio.run(main())
"""


@pytest.mark.slow_on_uvloop  # the other process has a loop of its own
async def test_second_owner_in_another_process(tmp_path: Path) -> None:
    path, link = tmp_path / "store", tmp_path / "link"
    link.symlink_to(path)
    async with aiodq.open(path):
        told = run_script(SECOND_OWNER, str(path), str(link)).stdout.splitlines()
        assert told[:2] == [f"{os.getpid()} True"] * 2
        assert len(told) == 3  # refused also where somebody has removed the lock's file
    async with aiodq.open(path):
        pass


FORKING = """
import asyncio, os, sys
import aiodq
from tests.loops import LOOPS
from tests.system.surface import Surface, calls, settlements

async def refused(call):
    try:
        result = call()
        if hasattr(result, "__await__"):
            await asyncio.wait_for(result, 30)
    except aiodq.WrongContextError:
        return True
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    return False

def in_child(runner, surface, message):
    tables = {**calls(surface), **settlements(message), "Store.aclose": surface.store.aclose}
    async def main():
        return [name for name, call in tables.items() if not await refused(call)]
    wrong = asyncio.run(main())
    # As if the child went on in the parent's loop, and unwound it.
    loop = runner.get_loop()
    if sys.argv[2] == "asyncio":
        wrong += loop.run_until_complete(main())
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if sys.argv[2] == "asyncio":
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    return wrong

async def begin():
    store = await aiodq.open(sys.argv[1])
    queue, topic = store.queue("queue"), store.topic("queue")
    await topic.put_many([b"%d" % number for number in range(5)])
    (await queue.get()).ack_nowait()
    # Neither of these is on disk yet when the fork comes.
    receipt = topic.put_nowait(b"5")
    return Surface(store, topic, topic.channel("default"), queue), await queue.get(), receipt

async def go_on(surface, message, receipt):
    assert await receipt == 5
    await message.ack()
    assert await surface.topic.put(b"6") == 6
    try:
        await aiodq.open(sys.argv[1])
    except aiodq.StoreLockedError:
        print("locked")
    if sys.argv[3] == "refork":
        return
    await surface.store.aclose()

with asyncio.Runner(loop_factory=LOOPS[sys.argv[2]]) as runner:
    surface, message, receipt = runner.run(begin())
    pid = os.fork()
    if not pid:
        wrong = in_child(runner, surface, message)
        print(*wrong, file=sys.stderr)
        os._exit(bool(wrong))
    assert os.waitpid(pid, 0)[1] == 0, "the child was not refused"
    runner.run(go_on(surface, message, receipt))
"""


@on_each_loop
def test_fork(loop: str, tmp_path: Path) -> None:
    """The child may do nothing and undoes nothing, not even when it ends the parent's loop in its own copy."""
    done = run_script(FORKING, str(tmp_path), loop, "close")
    assert done.stdout.split() == ["locked"]
    assert run_on(loop, contents(tmp_path)) == [b"2", b"3", b"4", b"5", b"6"]


FORK_AND_EXIT = """
import asyncio, os, sys
import aiodq

async def main():
    async with aiodq.open_queue(sys.argv[1]) as queue:
        await queue.put(b"a")
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        await queue.put(b"b")
        try:
            await aiodq.open(sys.argv[1])
        except aiodq.StoreLockedError:
            print("locked")

asyncio.run(main())
"""


def test_childs_exit_leaves_the_lock(tmp_path: Path) -> None:
    assert run_script(FORK_AND_EXIT, str(tmp_path)).stdout.split() == ["locked"]
    assert asyncio.run(contents(tmp_path)) == [b"a", b"b"]


FORK_IN_BLOCKS = """
import asyncio, os, sys, warnings
import aiodq

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main():
    async with aiodq.open(sys.argv[1], mode=sys.argv[2]) as store, store.queue("jobs") as jobs:
        await jobs.put(b"a")
        async with store.transaction() as tx, await jobs.get() as job, job.renewing():
            tx.put("done", b"c")
            pid = os.fork()
            if not pid:
                sys.exit(3)
            code = ended(pid)
        print(code, jobs.depth, store.topic("done").end_offset)
        for block in (store.transaction(), await jobs.get(await jobs.put(b"b"))):
            pid = 0
            try:
                async with block:
                    pid = os.fork()
            except aiodq.WrongContextError:
                sys.exit(4)
            if not pid:
                return
            print(ended(pid), jobs.depth)
    async with aiodq.open_queue(sys.argv[1] + "/../other", mode=sys.argv[2]) as queue:
        pid = os.fork()
        if not pid:
            raise SystemExit(5)
        print(ended(pid), await queue.put(b"d"))

asyncio.run(main())
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="since Python 3.14 no task ends in a forked child")
@pytest.mark.drawn("mode")
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_child_that_is_forked_in_the_blocks_leaves_them_to_its_parent(tmp_path: Path, mode: str) -> None:
    """What ends the child is its own exception; work of it does not pass for done."""
    done = run_script(FORK_IN_BLOCKS, str(tmp_path / "store"), mode)
    assert done.stdout.splitlines() == ["3 0 1", "4 1", "4 0", "5 0"]
    for complaint in ("Traceback", "destroyed"):
        assert complaint not in done.stderr


@on_each_loop
@pytest.mark.parametrize("worker", ["AckPersister", "SegmentWriter"])
def test_keyboard_interrupt_before_a_worker_s_first_line_leaves_nobody_waiting(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    async def opened() -> aiodq.Queue:
        queue = await aiodq.open_queue(tmp_path, fs=QuickFileSystem())
        await queue.put_many([b"0", b"0"])
        return queue

    async def use() -> None:
        await asyncio.gather(*(message.ack() for message in await queue.get_many(2)))  # one would take no task
        await queue.put_many([b"1", b"2"])
        await queue.put(b"3" * (1 << 20))

    async def told() -> None:
        async with asyncio.timeout(WATCHDOG):
            await asyncio.wait([using])

    async def interrupted() -> None:
        raise KeyboardInterrupt

    def work(self: OnDemand, fail: Callable[[BaseException], None]) -> Coroutine[Any, Any, None]:
        if type(self._run.__self__).__name__ != worker:  # type: ignore[attr-defined]  # a bound method
            return plain(self, fail)
        patched.undo()
        return interrupted()

    monkeypatch.setattr(watch, "_INTERVAL", 0.02)
    plain, running = OnDemand._work, LOOPS[loop]()
    try:
        queue = running.run_until_complete(opened())
        using = running.create_task(use())
        with monkeypatch.context() as patched:
            patched.setattr(OnDemand, "_work", work)
            with pytest.raises(KeyboardInterrupt):
                running.run_until_complete(told())
        running.run_until_complete(told())
        assert using.exception() is None
        running.run_until_complete(queue.aclose())
    finally:
        running.close()
    assert run_on(loop, contents(tmp_path)) == [b"1", b"2", b"3" * (1 << 20)]
