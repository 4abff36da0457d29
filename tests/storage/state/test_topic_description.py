"""What an owner notes in `topic.json`: durable when the call returns, and as before when it raises."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from aiodq.errors import AiodqError
from aiodq.options import ChannelOptions, StoreOptions
from aiodq.storage.state.topic.stored_options import StoredOptions
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.storage.state.topic.topic_meta import TopicMeta, read_meta, save_meta
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import messages, open_log, put_each

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    directory = tmp_path / "t"
    directory.mkdir()
    return directory


def described(topic: Path, fs: WatchedFileSystem, begin: int = 0) -> TopicDescription:
    meta = TopicMeta(uuid4(), begin)
    save_meta(fs, str(topic), meta)
    return TopicDescription(fs, str(topic), meta)


def test_a_log_goes_on_with_its_old_description(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, [b"a", b"b"])
    fs.fail(errno.EIO, "rename", times=1)
    with pytest.raises(AiodqError):
        log.description.give_up(1)
    assert (log.begin, log.meta.begin) == (0, 0)
    fs.fail(errno.ENOSPC, "create", times=1)
    with pytest.raises(AiodqError):
        log.description.add_channels({"c": (0, None)})
    assert log.meta.channels == {}
    log.close()
    log = open_log(topic)
    assert messages(log) == {0: b"a", 1: b"b"}
    log.close()


def test_a_channel_that_is_deleted_leaves_neither_options_nor_a_pause(topic: Path) -> None:
    fs = WatchedFileSystem()
    description = described(topic, fs)
    options = ChannelOptions(max_attempts=2)
    description.add_channels({"a": (3, options), "b": (4, None)}, {"a": "0f1e2d3c4b5a", "b": "6a7988f0e1d2"})
    description.pause("a", paused=True)
    description.choose_for_channel("c", options)  # there is no such channel
    description.remove_channel("a")
    seen = read_meta(fs, str(topic))
    assert seen == description.meta
    assert (seen.channels, seen.channel_options, seen.paused) == ({"b": 4}, {}, frozenset())
    assert seen.made == {"b": "6a7988f0e1d2"}


def test_what_is_given_up_never_comes_back(topic: Path) -> None:
    fs = WatchedFileSystem()
    description = described(topic, fs, begin=5)
    before = len(fs.events)
    description.give_up(4)
    assert (description.meta.begin, fs.events[before:]) == (5, [])
    description.give_up(6)
    seen = read_meta(fs, str(topic))
    assert seen is not None
    assert seen.begin == 6


def test_a_full_disk_takes_a_loss_with_the_next_note(topic: Path) -> None:
    fs = WatchedFileSystem()
    description = described(topic, fs)
    fs.fail(errno.ENOSPC, "create", times=1)
    description.note_losses((), ((2, 4),))
    seen = read_meta(fs, str(topic))
    assert seen is not None
    assert (seen.lost, description.meta.lost) == ((), ((2, 4),))
    description.give_up(1)
    assert read_meta(fs, str(topic)) == description.meta


def test_the_last_numbered_changes_are_noted_with_what_they_changed(topic: Path) -> None:
    fs = WatchedFileSystem()
    description = described(topic, fs)
    description.add_channels({"a": (0, None)})
    description.pause("a", paused=True, change=1)
    description.pause("a", paused=True, change=2)  # nothing changes
    description.choose_for_channel("a", ChannelOptions(max_attempts=2), 3)
    description.choose_for_channel("b", ChannelOptions(), 4)  # there is no such channel
    description.choose(StoredOptions(named=True, options=StoreOptions()), 5)
    description.pause("", paused=True)
    assert (description.meta.changes, description.meta.configured) == ((1, 3, 5), 5)
    for number in range(6, 100):
        description.pause("", paused=bool(number % 2), change=number)
    seen = read_meta(fs, str(topic))
    assert seen is not None
    assert seen.configured == 5
    assert seen == description.meta
    assert seen.changes == tuple(range(99 - len(seen.changes) + 1, 100))
    assert len(seen.changes) == 64
    description.choose(StoredOptions(named=True, options=StoreOptions()))
    assert read_meta(fs, str(topic)) == description.meta
    assert (description.meta.changes, description.meta.configured) == (seen.changes, 0)
