"""Whoever asks for help on a queue's method is told all of it there."""

from __future__ import annotations

import inspect
import re

import pytest

import aiodq
import aiodq.sync

METHODS = [
    name
    for name, member in inspect.getmembers(aiodq.Queue)
    if not name.startswith("_") and inspect.isfunction(member) and name != "check"
]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_queue_is_described_whole(name: str) -> None:
    method = getattr(aiodq.Queue, name)
    doc = inspect.getdoc(method) or ""
    assert doc
    assert not re.search(r"\b[Aa]s there\b|\bSee `(Topic|Channel)\.|As `get`", doc)
    if inspect.iscoroutinefunction(method):
        assert "Cancellation:" in doc
        assert "Raises:" in doc
    for parameter in list(inspect.signature(method).parameters)[1:]:
        assert re.search(rf"\b{parameter}\b", doc), parameter


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_blocking_queue_is_described_whole(name: str) -> None:
    name = {"aclose": "close"}.get(name, name)
    method = getattr(aiodq.sync.Queue, name)
    doc = inspect.getdoc(method) or ""
    assert doc
    asynchronous = getattr(aiodq.Queue, {"close": "aclose"}.get(name, name))
    if inspect.iscoroutinefunction(asynchronous):
        assert "Interrupted:" in doc
        assert "Raises:" in doc
    for parameter in list(inspect.signature(method).parameters)[1:]:
        assert re.search(rf"\b{parameter}\b", doc), parameter
    assert inspect.signature(asynchronous).parameters.keys() <= inspect.signature(method).parameters.keys()


@pytest.mark.parametrize("name", ["maxsize", "qsize", "full"])
def test_what_counts_for_the_bound_is_said_where_it_is_asked_for(name: str) -> None:
    member = getattr(aiodq.Queue, name)
    doc = inspect.getdoc(member) or ""
    assert "depth" in doc or "not settled" in doc


async def test_a_queue_has_the_channels_of_its_topic(tmp_path: object) -> None:
    async with aiodq.open_queue(str(tmp_path)) as jobs:
        audit = jobs.channel("audit", aiodq.ChannelOptions(start="earliest"))
        await jobs.put(b"x")
        assert jobs.channels() == ["audit", "default"]
        assert (await audit.get()).body == b"x"
        await jobs.delete_channel("audit")
        assert jobs.channels() == ["default"]
