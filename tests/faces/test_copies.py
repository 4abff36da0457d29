"""Copies and pickles: what is open belongs to its process, and an attempt to copy it does it no harm."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
import aiodq.sync

if TYPE_CHECKING:
    from pathlib import Path


def refused(thing: object) -> None:
    """Make sure that a thing is neither copied nor pickled."""
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy({"in": [one]})):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            attempt(thing)


def copied(thing: Any) -> list[Any]:
    return [copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))]  # noqa: S301 - its own


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_what_is_open_is_not_copied_and_stays_open(tmp_path: Path, mode: Any) -> None:
    async with aiodq.open(tmp_path, mode=mode) as store:
        topic, queue = store.topic("topic"), store.queue("queue")
        await queue.put(b"x")
        message = await queue.get()
        receipt = queue.put_nowait(b"y")
        for thing in (store, topic, topic.channel("c"), queue, message, receipt, store.transaction(), store.events()):
            refused(thing)
        await receipt
        with pytest.raises(aiodq.StoreLockedError):
            await aiodq.open(tmp_path)
        await message.ack()
        for looked_at in copied(await queue.peek()):
            assert (looked_at.body, looked_at.offset) == (b"y", 1)
    async with aiodq.open_queue(tmp_path) as again:
        assert again.topic.name


async def test_messages_that_were_looked_at_are_copied_with_all_they_say(tmp_path: Path) -> None:
    async with aiodq.open_queue(tmp_path) as queue:
        await queue.put(b"x", tag="t", key=b"k", headers={"a": "b"})
        await queue.put(b"y", delay=60)
        peeked = await queue.peek()
        assert peeked is not None
        (deferred,) = [message async for message in queue.deferred_messages()]
        for one in copied(peeked):
            assert (one.tag, one.key, one.headers, one.topic) == ("t", b"k", {"a": "b"}, peeked.topic)
            assert (one.timestamp_ns, one.attempts, repr(one)) == (peeked.timestamp_ns, 0, repr(peeked))
            with pytest.raises(aiodq.NotInFlightError):
                one.ack_nowait()
        for one in copied(deferred):
            assert (one.body, one.due, one.timestamp_ns) == (b"y", deferred.due, deferred.timestamp_ns)


def test_stored_messages_are_copied(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        store.topic("topic").put(b"x", tag="t")
    (stored,) = aiodq.StoreReader(str(tmp_path)).topic("topic").scan()
    for one in copied(stored):
        assert (one.body, one.tag, one.topic, one.timestamp) == (b"x", "t", "topic", stored.timestamp)


async def test_an_opening_is_not_copied(tmp_path: Path) -> None:
    for opening in (aiodq.open(tmp_path / "store"), aiodq.open_queue(tmp_path / "queue")):
        refused(opening)
        async with opening:
            refused(opening)


def test_what_threads_have_is_not_copied_and_stays_open(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        topic, queue = store.topic("topic"), store.queue("queue")
        queue.put(b"x")
        message, receipt = queue.get(), queue.put_nowait(b"y")
        for thing in (store, topic, topic.channel("c"), queue, message, receipt, store.transaction(), store.events()):
            refused(thing)
        assert receipt.result() == 1
        message.ack()


def test_outcomes_are_copied() -> None:
    for retry in copied(aiodq.Retry(5)):
        assert (retry.delay, str(retry), repr(retry)) == (5, "after 5", "Retry(5)")
    for retry in copied(aiodq.Retry()):
        assert (retry.delay, str(retry)) == (None, "as the channel waits")
    for reject in copied(aiodq.Reject("no")):
        assert reject.reason == "no"
