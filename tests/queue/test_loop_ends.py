"""An event loop that ends with a store open, as where `asyncio.run` ends with an error: what was settled is written."""

from __future__ import annotations

import asyncio
import errno
import gc
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.channel.acks import ack_persister
from aiodq.testing import WatchedFileSystem
from tests.queue.support import fill, numbered, options, ready_now, take

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.testing.watched import Gate

_DROPPED = "del store; gc.collect()"
POLICIES = pytest.mark.parametrize("policy", ["always", "os"])


def left(path: Path, fs: WatchedFileSystem, *channels: str) -> dict[str, list[bytes]]:
    """Return what the next owner has to deliver, by channel."""
    fs.heal()

    async def delivered() -> dict[str, list[bytes]]:
        async with aiodq.open(path, fs=fs) as store:
            topic = store.topic("jobs")
            return {name: ready_now(topic.channel(name)) for name in channels}

    return asyncio.run(delivered())


@POLICIES
def test_acks_that_were_put_off_are_written(path: Path, policy: str, kept: list[aiodq.Store]) -> None:
    fs = WatchedFileSystem()

    async def main() -> None:
        store = await aiodq.open(path, options(sync=policy), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        channel = topic.channel("c")
        await fill(topic, numbered(3))
        (message,) = await take(channel, 1)
        fs.fail(errno.ENOSPC, "write", match="channels")
        with pytest.raises(aiodq.DiskFullError):
            await message.ack()
        fs.heal()

    asyncio.run(main())
    assert left(path, fs, "c") == {"c": numbered(2, start=1)}


@POLICIES
def test_acks_of_one_channel_are_written_though_those_of_another_cannot_be(
    path: Path, policy: str, kept: list[aiodq.Store]
) -> None:
    fs = WatchedFileSystem()

    async def main() -> None:
        store = await aiodq.open(path, options(sync=policy), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        channels = [topic.channel(name) for name in "abc"]
        await fill(topic, numbered(3))
        fs.fail(errno.ENOSPC, "write", match="b/journal")
        for channel in channels:
            (await channel.get()).ack_nowait()

    asyncio.run(main())
    assert left(path, fs, *"abc") == {"a": numbered(2, start=1), "b": numbered(3), "c": numbered(2, start=1)}


@POLICIES
def test_acks_are_written_though_puts_cannot_be(
    path: Path, policy: str, kept: list[aiodq.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_persister, "_LULL", 3600)  # else the ack might be written before the loop ends
    fs = WatchedFileSystem()
    receipts: list[aiodq.Receipt] = []
    since: list[int] = []

    async def main() -> None:
        store = await aiodq.open(path, options(sync=policy), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        channel = topic.channel("c")
        await fill(topic, numbered(3))
        (await channel.get()).ack_nowait()
        fs.fail(errno.ENOSPC, "write", match=".seg")
        since.append(len(fs.passed))
        receipts.extend(topic.put_nowait(bytes(200_000)) for _ in range(2))  # too much to be written at once

    asyncio.run(main())
    assert left(path, fs, "c") == {"c": numbered(2, start=1)}
    assert all(receipt.done() and "DiskFullError" in repr(receipt) for receipt in receipts)
    # No ack is durable of a message that is not.
    synced, acked = fs.named("sync", match=".seg", since=since[0]), fs.named("sync", match="journal", since=since[0])
    assert synced[0].number < acked[0].number


@POLICIES
def test_what_was_accepted_is_written_into_as_many_segments_as_it_takes(
    path: Path, policy: str, kept: list[aiodq.Store]
) -> None:
    fs = WatchedFileSystem()
    bodies = [b"%d" % number + bytes(50_000) for number in range(20)]
    receipts: list[aiodq.Receipt] = []

    async def main() -> None:
        store = await aiodq.open(path, options(sync=policy, segment_bytes=200_000), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        topic.channel("c")
        await fill(topic, numbered(1))
        receipts.extend(map(topic.put_nowait, bodies))

    asyncio.run(main())
    assert left(path, fs, "c") == {"c": [*numbered(1), *bodies]}
    assert [repr(receipt) for receipt in receipts] == [f"<Receipt offset {offset}>" for offset in range(1, 21)]


def test_acks_are_written_of_which_a_checkpoint_was_being_written(path: Path, kept: list[aiodq.Store]) -> None:
    fs = WatchedFileSystem()

    async def main() -> None:
        store = await aiodq.open(path, options(sync="os"), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        channel = topic.channel("c")
        await fill(topic, numbered(3))
        fs.fail(errno.ENOSPC, "write", match="journal", times=2)
        fs.fail(errno.ENOSPC, "write", match="checkpoint")
        gate = fs.gate("create", match="checkpoint")
        (await channel.get()).ack_nowait()
        syncing = asyncio.ensure_future(topic.sync())
        await gate.wait()
        threading.Timer(0.1, gate.open).start()
        syncing.cancel()

    asyncio.run(main())
    assert left(path, fs, "c") == {"c": numbered(2, start=1)}


def test_options_that_were_being_stored_are_no_failure_and_all_else_is_written(
    path: Path, kept: list[aiodq.Store], caplog: pytest.LogCaptureFixture
) -> None:
    fs = WatchedFileSystem()

    async def open_at_the_end(gate: Gate) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gate.open()

    async def main() -> list[asyncio.Task[None]]:
        store = await aiodq.open(path, options(), fs=fs)
        kept.append(store)
        topic = store.topic("jobs")
        channel = topic.channel("c")
        await fill(topic, numbered(3))
        gate = fs.gate("rename", match="topic.json")
        tasks = [asyncio.create_task(topic.configure(options(max_messages=9)))]
        tasks.append(asyncio.create_task(open_at_the_end(gate)))
        await gate.wait()
        (await channel.get()).ack_nowait()
        topic.put_nowait(b"3")
        return tasks

    assert all(task.cancelled() for task in asyncio.run(main()))
    assert left(path, fs, "c") == {"c": numbered(3, start=1)}
    assert "failed" not in caplog.text


@POLICIES
def test_a_handler_that_ends_the_program_leaves_nothing_wrong_to_be_said(
    path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    store: aiodq.Store

    async def leave(_: aiodq.Message) -> None:
        store.topic("jobs").put_nowait(b"last")
        raise SystemExit(3)

    async def main() -> None:
        nonlocal store
        async with aiodq.open(path, options(sync=policy)) as store:
            await fill(store.topic("jobs"), numbered(2))
            await store.topic("jobs").channel("c").consume(leave)

    with pytest.raises(SystemExit, match="3"):
        asyncio.run(main())
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    assert left(path, WatchedFileSystem(), "c") == {"c": [*numbered(2), b"last"]}


@pytest.mark.parametrize("named", [(), ("jobs", "more")], ids=["just opened", "just named"])
def test_a_store_whose_tasks_have_not_begun_leaves_nothing_to_be_said(
    path: Path, named: tuple[str, ...], kept: list[aiodq.Store]
) -> None:
    async def main() -> None:
        store = await aiodq.open(path)
        kept.append(store)
        if named:
            await store.topic("earlier").put(b"")  # the tasks that it has from the start have begun
        for name in named:
            store.topic(name)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(warning.message) for warning in said] == []


@pytest.mark.parametrize(
    ("module", "dropped"),
    [
        pytest.param("asyncio", "", id="asyncio kept"),
        pytest.param("uvloop", _DROPPED, id="uvloop dropped"),
        pytest.param("uvloop", "", id="uvloop kept", marks=pytest.mark.slow),
        pytest.param("asyncio", _DROPPED, id="asyncio dropped", marks=pytest.mark.slow),
    ],
)
def test_a_loop_that_is_closed_by_hand_leaves_one_warning(path: Path, module: str, dropped: str) -> None:
    program = f"""
import asyncio, gc, sys, uvloop
import aiodq

async def main():
    store = await aiodq.open(sys.argv[1])
    await store.queue("jobs").put(b"")
    return store

loop = {module}.new_event_loop()
store = loop.run_until_complete(main())
loop.close()
{dropped}
"""
    _leaves_one_warning(program, path)


@pytest.mark.parametrize("keeper", ["asyncio", "os"])
@pytest.mark.parametrize("end", ["loop.close()", "os.loop = loop"], ids=["closed", "never closed"])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_store_that_outlives_the_modules_of_the_interpreter_leaves_one_warning(
    path: Path, mode: str, end: str, keeper: str
) -> None:
    program = f"""
import asyncio, os, sys
import aiodq

async def main():
    {keeper}.kept = await aiodq.open(sys.argv[1], mode={mode!r})
    await {keeper}.kept.queue("jobs").put(b"")

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
{end}
"""
    _leaves_one_warning(program, path)


def _leaves_one_warning(program: str, path: Path) -> None:
    command = [sys.executable, "-W", "always", "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
    assert len([line for line in said if "never closed" in line]) == 1
    assert [line for line in said if "never closed" not in line and "tracemalloc" not in line] == []


@pytest.mark.parametrize(
    ("module", "mode"),
    [
        ("asyncio", "exclusive"),
        ("uvloop", "shared"),
        pytest.param("uvloop", "exclusive", marks=pytest.mark.slow),
        pytest.param("asyncio", "shared", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_ends_with_a_message_in_hand_leaves_no_complaint(path: Path, module: str, mode: str) -> None:
    """The message keeps its queue open until the task that has it is gone: when the loop is ending already."""
    program = f"""
import asyncio, sys, uvloop
import aiodq

async def main():
    jobs = await aiodq.open_queue(sys.argv[1], mode={mode!r})
    await jobs.put(b"a")
    await jobs.get()

with asyncio.Runner(loop_factory={module}.new_event_loop) as runner:
    runner.run(main())
"""
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
