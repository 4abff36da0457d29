"""Names of topics and channels: which may be, and that no other ever reaches the file system."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiodq
from aiodq.names import check_name, check_topic_name, is_ephemeral
from aiodq.storage import store_layout as layout
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.segments.segment_files import segment_path
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE
from aiodq.testing import WatchedFileSystem
from tests.channels.one_case import OneCase
from tests.channels.support import soon
from tests.queue.support import files_under, ready_now, store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = [
    "a", "A", "0", "_", "-", "...", ".a", "a.", "a-b_c.d", "x" * 64, "CON", "nul", "-rf", "LOCK2", "channels",
    "LOCK#ephemeral", "LOCK.", "seg", "a.seg.b", "topic.json.x", "a#ephemeral", "x" * 54 + "#ephemeral", "staging",
]  # fmt: skip
RESERVED = [
    "LOCK", "lock", "Lock", "topic.json", "Topic.JSON", "00000000000000000000.seg", "a.SEG", ".seg",
    "topic.json.aiodq-tmp", "a.AIODQ-tmp",
]  # fmt: skip
BAD = [
    "", ".", "..", "x" * 65, "x" * 10_000, "x" * 55 + "#ephemeral", "#ephemeral", "a#", "#", "a#Ephemeral", "a#b",
    "a#ephemeral#ephemeral", "a#ephemeral ", "a/b", "/", "/etc/passwd", "../a", "a/..", "a\\b", "a\0", "\0", "a\0b",
    "a b",
    " a", "a ", "a\n", "\na", "a\t", "a\r\n", "*", "?", "a:b", "a;b", "~", "$HOME", "%2e%2e", "ä", "\uff41",
    "\u0430",  # Cyrillic a
    "a\u200b",  # zero width space
    "a\u0301",  # combining accent
    "a\u202eb",  # right-to-left override
    "\u2024\u2024",  # one dot leaders
    "\uff0e\uff0e", "\u0660", "²", "\ud800", "a\udc00", "🎉", "ﬀ", "\x7f", "\x1b[0m",
]  # fmt: skip


def kind_of(name: str) -> str:
    return f"{name!a}"[:40]


@pytest.mark.parametrize("name", GOOD, ids=kind_of)
async def test_good_names(path: Path, name: str) -> None:
    async with store(path) as opened:
        topic = opened.topic(name)
        channel = topic.channel(name)
        await topic.put(b"a")
        assert (topic.name, channel.name) == (name, name)
        await (await channel.get()).nack()
        await topic.put(b"b")
        assert ready_now(channel) == [b"a", b"b"]
    async with store(path) as opened:
        if is_ephemeral(name):
            assert opened.topics() == []
            return
        assert opened.topics() == [name]
        assert opened.topic(name).channels() == [name]
        assert ready_now(opened.topic(name).channel(name)) == [b"a", b"b"]


@pytest.mark.parametrize("name", BAD, ids=kind_of)
async def test_bad_names(path: Path, name: str) -> None:
    fs = WatchedFileSystem()
    async with store(path, fs=fs) as opened:
        topic = opened.topic("good")
        await topic.put(b"a")
        before, since = files_under(path), len(fs.passed)
        calls: list[Callable[[], object]] = [
            lambda: opened.topic(name),
            lambda: opened.queue(name),
            lambda: topic.channel(name),
        ]
        for call in calls:
            with pytest.raises(aiodq.InvalidNameError) as caught:
                call()
            assert isinstance(caught.value, ValueError)
            assert len(str(caught.value)) < 400
            str(caught.value).encode()
        with pytest.raises(aiodq.InvalidNameError):
            await opened.delete_topic(name)
        assert fs.passed[since:] == []
        assert files_under(path) == before
        assert opened.topics() == ["good"]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("name", RESERVED, ids=kind_of)
async def test_no_topic_takes_a_name_that_the_store_needs(path: Path, name: str) -> None:
    async with store(path) as opened:
        topic = opened.topic("good")
        await topic.put(b"a")
        before = files_under(path)
        for call in (opened.topic, opened.queue, lambda name: aiodq.ChannelOptions(dead_letter=name)):
            with pytest.raises(aiodq.InvalidNameError, match="for its own files"):
                call(name)
        async with opened.transaction() as transaction:
            with pytest.raises(aiodq.InvalidNameError, match="for its own files"):
                transaction.put(name, b"a")
        assert files_under(path) == before
        # A channel lies in a directory of its own.
        topic.channel(name)
        await topic.settle_in()
        assert topic.channels() == [name]


def test_every_file_of_a_store_is_kept_apart_from_its_topics() -> None:
    own = (LOCK_NAME, TOPIC_FILE, f"a{TEMPORARY}", segment_path("", 0), *layout.OWN)
    for name in own:
        with pytest.raises(aiodq.InvalidNameError):
            check_topic_name(name)


async def test_an_old_topic_keeps_a_name_that_is_reserved_by_now(path: Path) -> None:
    async with store(path) as opened:
        await opened.queue("orders").put(b"a")
    (path / "orders").rename(path / "lock")
    async with store(path) as opened:
        assert opened.topics() == ["lock"]
        assert ready_now(opened.queue("lock")) == [b"a"]
        async with opened.transaction() as transaction:
            transaction.put("lock", b"b")
        await opened.topic("lock").settle_in()
        assert ready_now(opened.queue("lock")) == [b"b"]


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"], object()], ids=lambda name: type(name).__name__)
async def test_what_is_no_text(path: Path, name: Any) -> None:
    async with store(path) as opened:
        with pytest.raises(aiodq.InvalidNameError):
            opened.topic(name)
        with pytest.raises(aiodq.InvalidNameError):
            opened.topic("a").channel(name)


@given(st.text(max_size=80))
def test_any_text_is_safe_or_refused(name: str) -> None:
    try:
        check_name(name)
    except aiodq.InvalidNameError:
        return
    plain = name.removesuffix("#ephemeral")
    assert name.isascii()
    assert 1 <= len(name) <= 64
    assert plain
    assert all(letter.isalnum() or letter in "._-" for letter in plain)
    assert name not in {".", ".."}
    assert os.path.basename(name) == name


@pytest.mark.parametrize("at_once", [True, False])
async def test_where_case_does_not_count_two_channels_never_share_a_directory(*, at_once: bool) -> None:
    fs = OneCase()
    async with aiodq.open("/s", fs=fs) as own:
        topic = own.topic("orders")
        mine = topic.channel("mail")
        if not at_once:
            await topic.put(b"a")
        other = topic.channel("Mail")
        for wanted in (other.get(), other.peek(), other.seek("earliest")):
            with pytest.raises(aiodq.InvalidNameError, match="differs in case alone"):
                await soon(wanted)
        await topic.put_many([b"b", b"c"])
        await (await soon(mine.get())).ack()
        await topic.delete_channel("Mail")
        depth = mine.depth
    async with aiodq.open("/s", fs=fs) as own:
        topic = own.topic("orders")
        assert (topic.channels(), topic.channel("mail").depth, topic.stats().damages) == (["mail"], depth, 0)


@pytest.mark.parametrize("foreign", ["notes.txt", "src/x.py", ".git/config", "topic.json.bak"])
async def test_no_topic_is_made_among_other_files_with_which_it_would_be_deleted(path: Path, foreign: str) -> None:
    async with store(path) as opened:
        await opened.topic("a").put(b"a")
        mine = path / "b" / foreign
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        before = files_under(path / "b")
        for _ in range(2):
            with pytest.raises(aiodq.StorageError, match="other files lie where this topic would") as caught:
                await soon(opened.topic("b").put(b"b"))
            assert caught.value.path == str(path / "b")
        await soon(opened.delete_topic("b"))
        assert files_under(path / "b") == before
        (path / "b").rename(path / "moved away")
        assert await soon(opened.topic("b").put(b"b")) == 0


@pytest.mark.parametrize("left", ["", "topic.json.aiodq-tmp", "watermark"])
async def test_what_a_topic_s_creation_left_is_in_nobody_s_way(path: Path, left: str) -> None:
    async with store(path) as opened:
        await opened.topic("a").put(b"a")
        (path / "b").mkdir()
        if left:
            (path / "b" / left).write_bytes(b"")
        assert await soon(opened.topic("b").put(b"b")) == 0
