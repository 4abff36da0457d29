"""An error that is raised again and again, such as that of a shutdown, keeps nothing of those who got it before."""

from __future__ import annotations

import errno
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.testing import WatchedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiodq.opening import Mode


async def shut_down(_: aiodq.Store, jobs: aiodq.Queue) -> None:
    jobs.shutdown(immediate=True)


async def stop(_: aiodq.Store, jobs: aiodq.Queue) -> None:
    await jobs.purge()
    await jobs.stop()


async def delete_the_topic(store: aiodq.Store, _: aiodq.Queue) -> None:
    await store.delete_topic("jobs")


async def delete_the_channel(_: aiodq.Store, jobs: aiodq.Queue) -> None:
    await jobs.topic.delete_channel("default")


async def close(store: aiodq.Store, _: aiodq.Queue) -> None:
    await store.aclose()


async def length(call: Callable[[], Any]) -> int:
    """Return how many frames the traceback of a call's error has, 0 if it succeeds."""
    try:
        done = call()
        if hasattr(done, "__await__"):
            await done
    except aiodq.AiodqError as error:
        return len(list(traceback.walk_tb(error.__traceback__)))
    return 0


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("end", [shut_down, stop, delete_the_topic, delete_the_channel, close])
async def test_its_traceback_is_that_of_one_call(tmp_path: Path, mode: Mode, end: Callable[..., Any]) -> None:
    async with aiodq.open(tmp_path, mode=mode) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"one", b"two", b"three"])
        held, other = await jobs.get(), await jobs.get()
        await end(store, jobs)
        if end is shut_down:
            await jobs.purge()
        calls: list[Callable[[], Any]] = [
            jobs.get, lambda: jobs.get(timeout=1), lambda: jobs.get_many(2), jobs.get_nowait, jobs.peek, jobs.join,
            lambda: jobs.put(b"x"), lambda: jobs.put_many([b"x"]), lambda: jobs.put_nowait(b"x"), jobs.sync,
            held.ack_nowait, other.ack, other.nack, other.touch, other.reject, lambda: jobs.ack_many([other]),
            jobs.purge, jobs.pause, jobs.refresh, lambda: jobs.seek("earliest"), lambda: jobs.cancel(2),
        ]  # fmt: skip
        for call in calls:
            lengths = [await length(call) for _ in range(4)]
            assert len(set(lengths[1:])) == 1, (call, lengths)


async def test_that_of_a_failed_store_says_why_each_time(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    store = await aiodq.open(tmp_path, fs=fs)
    jobs = store.queue("jobs")
    await jobs.put(b"one")
    held = await jobs.get()
    fs.fail(errno.EIO, "sync", match=".seg")
    with pytest.raises(aiodq.StoreFailedError):
        await jobs.put(b"two")
    for call in (held.ack, lambda: jobs.put(b"three"), jobs.get, jobs.join):
        for _ in range(3):
            with pytest.raises(aiodq.StoreFailedError) as failed:
                await call()
            assert isinstance(failed.value.__cause__, OSError | aiodq.StorageError)
            assert len(list(traceback.walk_tb(failed.value.__traceback__))) < 10
    await store.aclose()
