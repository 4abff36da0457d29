"""What a method raises once what it is called on is over, its docstring names."""

from __future__ import annotations

import asyncio
import inspect
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
import aiodq.sync

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLASSES = ("Channel", "Topic", "Queue", "Store")
ENDS = ("closed", "failed", "topic deleted", "channel deleted")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ack_many": ([],),
    "cancel": (0,),
    "channel": ("other",),
    "consume": (lambda _: None,),
    "delete_channel": ("default",),
    "backup": ("/dev/null/b",),
    "delete_topic": ("t",),
    "drain": (0,),
    "get": (0.01,),
    "get_many": (1,),
    "join": (0.01,),
    "offset_at": (datetime.now(UTC),),
    "put": (b"x",),
    "put_many": ([b"x"],),
    "put_nowait": (b"x",),
    "queue": ("t",),
    "read": (0,),
    "requeue_dead": ("t",),
    "seek": ("earliest",),
    "stop": (0,),
    "topic": ("t",),
}
LEFT_OUT = {"aclose", "check", "close", "events"}
"""Those that end something, and those that go on for ever. `check` is aiodq's own."""


def arguments(thing: object, name: str) -> tuple[Any, ...]:
    if name == "configure":
        return (aiodq.StoreOptions() if "Topic" in type(thing).__name__ else aiodq.ChannelOptions(),)
    if name == "join" and type(thing).__module__.startswith("aiodq.") and ".sync." not in type(thing).__module__:
        return ()
    return ARGUMENTS.get(name, ())


def methods(thing: object) -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(thing, inspect.ismethod)
    return [(name, method) for name, method in found if not name.startswith("_") and name not in LEFT_OUT]


def told(method: Callable[..., Any], error: BaseException) -> bool:
    """Return whether a docstring's *Raises* names an error, or one of its bases that says about as much."""
    section = re.search(r"Raises:\n(.*?)(\n\n|\Z)", inspect.getdoc(method) or "", re.DOTALL)
    names = set(re.findall(r"\w+", section[1])) if section else set()
    kinds = {kind.__name__ for kind in type(error).__mro__} - {"AiodqError", "Exception", "BaseException", "object"}
    return bool(kinds & names)


async def called(method: Callable[..., Any], given: tuple[Any, ...]) -> None:
    result = method(*given)
    if inspect.isawaitable(result):
        await result
    elif hasattr(result, "__anext__"):
        await anext(result)


async def end(store: aiodq.Store, how: str) -> None:
    if how == "closed":
        await store.aclose()
    elif how == "failed":
        store._store_engine.fail(OSError(5, "the disk is gone"))
    elif how == "topic deleted":
        await store.delete_topic("t")
    else:
        await store.topic("t").delete_channel("default")


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", CLASSES)
async def test_what_a_method_raises_at_the_end_is_told(tmp_path: Path, kind: str, how: str) -> None:
    store = await aiodq.open(tmp_path)
    queue, topic = store.queue("t"), store.topic("t")
    await queue.put(b"x")
    things = {"Channel": topic.channel("default"), "Topic": topic, "Queue": queue, "Store": store}
    raised: dict[str, tuple[Exception, bool]] = {}
    try:
        await end(store, how)
        for name, method in methods(things[kind]):
            try:
                async with asyncio.timeout(5):
                    await called(method, arguments(things[kind], name))
            except (aiodq.AiodqError, aiodq.QueueShutDown, aiodq.QueueEmpty, aiodq.QueueFull, ValueError) as error:
                raised[name] = error, told(method, error)
            except (StopAsyncIteration, TimeoutError):
                continue
    finally:
        await asyncio.gather(store.aclose(), return_exceptions=True)
    assert {name: error for name, (error, is_told) in raised.items() if not is_told} == {}
    assert raised or (kind, how) in {("Store", "topic deleted"), ("Store", "channel deleted")}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", CLASSES)
def test_what_a_blocking_method_raises_at_the_end_is_told(tmp_path: Path, kind: str, how: str) -> None:
    store = aiodq.sync.open(tmp_path)
    queue, topic = store.queue("t"), store.topic("t")
    queue.put(b"x")
    things = {"Channel": topic.channel("default"), "Topic": topic, "Queue": queue, "Store": store}
    raised: dict[str, tuple[Exception, bool]] = {}
    try:
        if how == "closed":
            store.close()
        else:
            store._loop_thread.run(end, store._store, how)
        for name, method in methods(things[kind]):
            try:
                result = method(*arguments(things[kind], name))
                if hasattr(result, "__next__"):
                    next(result, None)
            except TimeoutError:
                continue
            except (aiodq.AiodqError, aiodq.QueueShutDown, aiodq.QueueEmpty, aiodq.QueueFull, ValueError) as error:
                raised[name] = error, told(method, error)
    finally:
        try:
            store.close()
        except aiodq.StoreFailedError as error:
            assert how == "failed", error
    assert {name: error for name, (error, is_told) in raised.items() if not is_told} == {}
    assert raised or (kind, how) in {("Store", "topic deleted"), ("Store", "channel deleted")}
