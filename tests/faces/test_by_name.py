"""Calls with keyword arguments that they do not have: the error names the call and says where an option belongs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args

import pytest

import aiodq
import aiodq.sync
from aiodq.opening import Mode

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = {
    "max_attempts": "store.queue has no argument 'max_attempts': it is one of ChannelOptions, write "
    "store.queue(name, ChannelOptions(max_attempts=...))",
    "max_bytes": "store.queue has no argument 'max_bytes': it is one of StoreOptions, write "
    "store.queue(name, options=StoreOptions(max_bytes=...))",
    "max_age": "store.queue has no argument 'max_age': it is one of Retention, write "
    "StoreOptions(retention=Retention(max_age=...))",
    "option": "store.queue has no argument 'option': write options=...",
    "size": "store.queue has no argument 'size': there are name, channel, options",
}
TOPIC = {
    "max_attempts": "store.topic has no argument 'max_attempts': it is one of ChannelOptions, write "
    "topic.channel(name, ChannelOptions(max_attempts=...))",
    "sync": "store.topic has no argument 'sync': it is one of StoreOptions, write "
    "store.topic(name, StoreOptions(sync=...))",
}
CHANNEL = {
    "tags": "topic.channel has no argument 'tags': it is one of ChannelOptions, write "
    "topic.channel(name, ChannelOptions(tags=...))",
    "factor": "topic.channel has no argument 'factor': it is one of Backoff, write "
    "ChannelOptions(backoff=Backoff(factor=...))",
}
CONFIGURE = {
    "channel": "channel.configure has no argument 'tags': it is one of ChannelOptions, write "
    "channel.configure(ChannelOptions(tags=...))",
    "topic": "topic.configure has no argument 'tags': it is one of ChannelOptions, write "
    "channel.configure(ChannelOptions(tags=...))",
    "queue": "queue.configure has no argument 'tags': it is one of ChannelOptions, write "
    "queue.configure(ChannelOptions(tags=...))",
}
OPENED = {
    "sync": "{}(path, StoreOptions(sync=...))",
    "max_bytes": "{}(path, StoreOptions(max_bytes=...))",
}


def told(call: Any, *args: Any, **given: Any) -> str:
    with pytest.raises(aiodq.InvalidOptionError) as caught:
        call(*args, **given)
    assert isinstance(caught.value, TypeError)
    return str(caught.value)


def checked(store: Any) -> dict[str, Any]:
    """Return a channel, a topic and a queue of a store, whose calls tell where an option belongs."""
    queue = store.queue("jobs")
    topic = queue.topic
    for call, expected in ((store.queue, QUEUE), (store.topic, TOPIC), (topic.channel, CHANNEL)):
        for name, text in expected.items():
            assert told(call, "x", **{name: 3}) == text
    return {"channel": topic.channel("c"), "topic": topic, "queue": queue}


@pytest.mark.parametrize("mode", get_args(Mode)[:2])
async def test_an_option_that_is_given_directly_is_told_where_it_belongs(tmp_path: Path, mode: Any) -> None:
    async with aiodq.open(tmp_path, mode=mode) as store:
        things = checked(store)
        for what, text in CONFIGURE.items():
            assert inspect.iscoroutinefunction(things[what].configure)
            with pytest.raises(aiodq.InvalidOptionError) as caught:
                await things[what].configure(tags=3)
            assert str(caught.value) == text
        assert store.topics() == ["jobs"]


def test_so_it_is_without_await(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        things = checked(store)
        for what, text in CONFIGURE.items():
            assert told(things[what].configure, tags=3) == text


@pytest.mark.parametrize("name", OPENED)
def test_so_it_is_when_a_store_is_opened(tmp_path: Path, name: str) -> None:
    for package, called in ((aiodq, "aiodq"), (aiodq.sync, "aiodq.sync")):
        for call in ("open", "open_queue"):
            text = told(getattr(package, call), tmp_path / "s", **{name: 3})
            assert text.startswith(f"{called}.{call} has no argument {name!r}: it is one of StoreOptions, write ")
            assert text.endswith(OPENED[name].format(f"{called}.{call}"))
    assert "channel=ChannelOptions(tags=...)" in told(aiodq.open_queue, tmp_path / "s", tags=3)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("mode", get_args(Mode)[:2])
async def test_what_python_says_of_a_call_names_a_class_that_users_know(tmp_path: Path, mode: Any) -> None:
    async with aiodq.open(tmp_path, mode=mode) as store:
        queue = store.queue("jobs")
        for thing in (store, queue, queue.topic, queue.topic.channel("c")):
            for name, method in inspect.getmembers(thing, inspect.ismethod):
                if name.startswith("_"):
                    continue
                with pytest.raises(TypeError) as caught:
                    await method(*range(99))
                assert str(caught.value).split(".")[0] in {"Store", "Topic", "Channel", "Queue"}, name
