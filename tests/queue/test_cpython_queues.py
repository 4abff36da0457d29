"""CPython's own tests of `asyncio.Queue`, as this interpreter brings them, run with a queue on disk.

Only what makes a queue is put in their place: opening one takes an `await`, which their constructor has not. The tests
put numbers and texts, which stand as JSON in the bodies. What they know of the inside of `asyncio.Queue`, or ask that a
durable queue does not promise, is named below.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
import unittest
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from tests.queue.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOT_OURS = {
    "LifoQueueTests": "a log has one order",
    "PriorityQueueTests": "likewise",
    "LifoQueueJoinTests": "likewise",
    "PriorityQueueJoinTests": "likewise",
    "LifoQueueShutdownTests": "likewise",
    "PriorityQueueShutdownTests": "likewise",
}
EXCEPTIONS = {
    "test_repr": "asyncio's own form of repr",
    "test_str": "likewise",
    "test_format": "asyncio's own _format",
    "test_generic_alias": "asks for the class, not for a queue",
    "test_get_with_putters": "looks at _putters",
    "test_cancelled_getters_not_being_held_in_self_getters": "looks at _wait_queue",
    "test_cancelled_puts_not_being_held_in_self_putters": "looks at _putters",
    "test_float_maxsize": "max_messages is a whole number",
    "test_maxsize": "asks that a put ends in the turn of the loop in which it begins; a batch is written in the next",
    "test_put_cancelled": "likewise",
    "test_put_cancelled_race": "likewise",
}
AT_ONCE = {
    "test_nonblocking_get",
    "test_blocking_put_wait",
    "test_cancelled_put_silence_value_error_exception",
    "test_get_cancel_drop_one_pending_reader",
    "test_nonblocking_put",
    "test_put_cancel_drop",
    "test_why_are_putters_waiting",
    "test_shutdown_empty",
    "test_shutdown_immediate_with_unfinished",
    "test_shutdown_nonempty",
}
"""In a store that is shared the owner is asked: these want what was just put, or an end, before it can answer."""

SIZES = {0: 4, 1: 2, 2: 1, 5: 1}
"""How many queues of which bound a test makes at most."""


class Adapted:
    """A queue of aiodq under the name of `asyncio.Queue`."""

    waiting: defaultdict[int, list[aiodq.Queue]]
    """Queues that are open, by their bound."""

    def __init__(self, maxsize: int = 0) -> None:
        self._queue = self.waiting[maxsize].pop()
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def put(self, item: Any) -> None:
        await self._queue.put(json.dumps(item).encode())

    def put_nowait(self, item: Any) -> None:
        self._queue.put_nowait(json.dumps(item).encode())

    async def get(self) -> Any:
        return json.loads((await self._queue.get()).body)

    def get_nowait(self) -> Any:
        return json.loads(self._queue.get_nowait().body)

    def shutdown(self, immediate: bool = False) -> None:  # noqa: FBT002 - asyncio's signature
        self._queue.shutdown(immediate)
        self._ended = self._ended or immediate

    def qsize(self) -> int:
        # What asyncio drops is kept here for the next time.
        return 0 if self._ended else self._queue.qsize()


def suites() -> Iterator[type[unittest.IsolatedAsyncioTestCase]]:
    """Return CPython's classes of tests that are about queues such as ours."""
    try:
        found = importlib.import_module("test.test_asyncio.test_queues")
    except ImportError:
        return  # some distributions leave CPython's tests out of Python, or in a package of their own
    for name, suite in vars(found).items():
        known = isinstance(suite, type) and issubclass(suite, unittest.IsolatedAsyncioTestCase)
        if known and suite.__module__ == found.__name__ and name not in NOT_OURS:
            yield suite


NAMES = [(suite, name) for suite in suites() for name in unittest.defaultTestLoader.getTestCaseNames(suite)]
CASES = [pytest.param(suite, name, id=f"{suite.__name__}-{name}") for suite, name in NAMES if name not in EXCEPTIONS]
SHARED_CASES = [
    pytest.param(suite, name, id=f"{suite.__name__}-{name}")
    for suite, name in NAMES
    if name not in EXCEPTIONS and name not in AT_ONCE
]


def test_the_interpreter_brings_its_tests() -> None:
    if not CASES:
        pytest.skip("this Python comes without the package `test`, in which CPython's tests of asyncio.Queue are")
    assert {name for _, name in NAMES} >= EXCEPTIONS.keys(), "each exception is to be of a test that is there"


@pytest.mark.parametrize("sync", ["os", "interval"])
@pytest.mark.parametrize(("suite", "name"), CASES)
def test_cpython(
    suite: type[unittest.IsolatedAsyncioTestCase], name: str, sync: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case(suite, name, {"sync": sync}, tmp_path, monkeypatch))


@pytest.mark.parametrize(("suite", "name"), SHARED_CASES)
def test_cpython_in_a_store_that_is_shared(
    suite: type[unittest.IsolatedAsyncioTestCase], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case(suite, name, {"sync": "os", "mode": "shared"}, tmp_path, monkeypatch))


def check(tried: unittest.TestCase) -> None:
    result = unittest.TestResult()
    tried.run(result)
    problems = [text for _, text in (*result.errors, *result.failures)]
    assert not problems, problems[0]
    assert result.testsRun == 1


def case(
    suite: type[unittest.IsolatedAsyncioTestCase],
    name: str,
    opened: dict[str, Any],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> unittest.TestCase:
    """Return one of CPython's tests, which finds its queues open when it makes them."""
    sync, mode = opened["sync"], opened.get("mode", "exclusive")
    found: Any = suite  # a class that mypy cannot know
    known = types.SimpleNamespace(**{**vars(asyncio), "Queue": Adapted})
    monkeypatch.setattr(sys.modules[suite.__module__], "asyncio", known)

    # What asyncio gives out is gone; only those who call `task_done` and `join` tell when they are through.
    settles = not any(word in suite.__name__ for word in ("Join", "Shutdown"))

    class OnDisk(found):  # type: ignore[misc]  # its base is known only when it runs
        q_class = Adapted

        async def asyncSetUp(self) -> None:
            # unittest has asyncio keep the stack of whoever makes a future, which takes a third of the time.
            asyncio.get_running_loop().set_debug(False)
            Adapted.waiting = defaultdict(list)
            store = await self.enterAsyncContext(aiodq.open(path, aiodq.StoreOptions(sync=sync), mode=mode))
            for size, number in SIZES.items():
                for count in range(number):
                    store.topic(f"q{size}-{count}", aiodq.StoreOptions(sync=sync, max_messages=size or None))
                    channel = aiodq.ChannelOptions(auto_ack=settles)
                    queue = store.queue(f"q{size}-{count}", channel)
                    Adapted.waiting[size].append(queue)
            await asyncio.gather(*(queue.topic.settle_in() for queues in Adapted.waiting.values() for queue in queues))

    test = getattr(OnDisk, name)

    async def within_a_loop(self: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            result = test(self)
            if result is not None:
                await result

    setattr(OnDisk, name, within_a_loop)
    return OnDisk(name)
