"""`topic.json`: replaced whole or not at all, and never trusted more than the segments."""

from __future__ import annotations

import errno
import json
import zlib
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from aiodq.errors import AiodqError, CorruptionError, FormatVersionError, StoreFailedError
from aiodq.storage.io.durable_io import TEMPORARY, ensure_directory, read_file, replace_file, sweep_temporaries
from aiodq.storage.state.topic.topic_meta import (
    KnownMeta,
    TopicMeta,
    decode_meta,
    describe,
    find_meta,
    load_meta,
    read_meta,
    save_meta,
)
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import messages, open_log, overwrite, put_each, segments, set_aside, tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    directory = tmp_path / "t"
    directory.mkdir()
    return directory


def written(**changes: object) -> bytes:
    """Return a description's bytes, its checksum right."""
    topic = {"version": 1, "uuid": str(uuid4()), "begin": 0, "channels": {}} | changes
    text = json.dumps(topic, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"topic": topic, "crc32": f"{zlib.crc32(text):08x}"}).encode()


def test_what_is_saved_is_read(topic: Path) -> None:
    fs = WatchedFileSystem()
    meta = TopicMeta(uuid4(), 12, {"a": 3, "b#ephemeral": 2**62})
    save_meta(fs, str(topic), meta)
    assert read_meta(fs, str(topic)) == meta
    assert load_meta(fs, str(topic)) == (meta, [])


def test_what_tells_channels_of_one_name_apart_is_read_as_it_is_written(topic: Path) -> None:
    fs = WatchedFileSystem()
    (topic / "topic.json").write_bytes(written(channels={"a": 1, "b": 2}, made={"a": "0f1e2d3c4b5a"}))
    meta = read_meta(fs, str(topic))
    assert meta is not None
    assert (meta.channels, meta.made) == ({"a": 1, "b": 2}, {"a": "0f1e2d3c4b5a"})  # an earlier aiodq has made b
    data = (topic / "topic.json").read_bytes()
    save_meta(fs, str(topic), meta)
    assert json.loads((topic / "topic.json").read_bytes()) == json.loads(data)


def test_what_is_known_is_taken_apart_again_only_when_it_changes(topic: Path) -> None:
    fs, known = WatchedFileSystem(), KnownMeta()
    for begin in (1, 2):
        save_meta(fs, str(topic), TopicMeta(uuid4(), begin))
        meta = read_meta(fs, str(topic), known)
        assert meta == read_meta(fs, str(topic))
        assert read_meta(fs, str(topic), known) is meta
    (topic / "topic.json").write_bytes(b"junk")
    with pytest.raises(CorruptionError):
        read_meta(fs, str(topic), known)
    (topic / "topic.json").unlink()
    assert read_meta(fs, str(topic), known) is None


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "remove"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_replacement_that_fails_leaves_the_old_content(topic: Path, kind: str, error: int) -> None:
    fs = WatchedFileSystem()
    old, new = TopicMeta(uuid4(), 1), TopicMeta(uuid4(), 2)
    save_meta(fs, str(topic), old)
    (topic / f"topic.json{TEMPORARY}").write_bytes(b"from an earlier failure")
    fs.fail(error, kind, short=10 if kind == "write" else None, times=1)
    with pytest.raises(AiodqError) as caught:
        save_meta(fs, str(topic), new)
    assert isinstance(caught.value, StoreFailedError) == (kind == "sync")
    assert read_meta(fs, str(topic)) == old
    assert fs.open_files == 0
    save_meta(fs, str(topic), new)
    assert read_meta(fs, str(topic)) == new
    assert [path.name for path in topic.iterdir()] == ["topic.json"]


def test_a_rename_that_is_not_durable_is_a_failed_sync(topic: Path) -> None:
    fs = WatchedFileSystem()
    save_meta(fs, str(topic), TopicMeta(uuid4(), 1))
    fs.fail(errno.EIO, "sync_directory", times=1)
    with pytest.raises(StoreFailedError):
        save_meta(fs, str(topic), TopicMeta(uuid4(), 2))


def test_the_content_is_durable_before_it_has_its_name(topic: Path) -> None:
    fs = WatchedFileSystem()
    replace_file(fs, str(topic / "x"), b"content")
    kinds = [kind for kind, _ in fs.events if kind not in {"close", "exists"}]
    assert kinds == ["create", "write", "sync", "rename", "sync_directory"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"topic": {}, "crc32": ""}',
        written()[:-5],
        written(uuid="no uuid"),
        written(begin="later"),
        written(begin=float("inf")),
        written(begin=-5),
        written(begin=2**63),
        written(channels={"a": -1}),
        written(channels={"a": 10**30}),
        written(lost=[[-9, 3]]),
        written(lost=[[5, 2]]),
        written(deleted=[[0, 2**63]]),
        written(channels=["a"]),
        written(channels={"a": None}),
        written(channels={"../a": 0}),
        written(channels={"": 0}),
        b"\0" * 200,
    ],
)
def test_a_description_that_is_none_is_damage_and_made_again(topic: Path, content: bytes) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, [b"x" * 60] * 10)
    uuid, expected = log.meta.uuid, messages(log)
    (topic / "channels").mkdir()
    for name in ("one", "two"):
        (topic / "channels" / name).mkdir()
    (topic / "channels" / "no name!").mkdir()
    (topic / "channels" / "file").touch()
    log.close()
    path = topic / "topic.json"
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        read_meta(WatchedFileSystem(), str(topic))
    before = tree(topic)
    seen, damages = describe(WatchedFileSystem(), str(topic))
    assert tree(topic) == before
    assert (seen.uuid, seen.begin, seen.channels) == (uuid, 0, {"one": 0, "two": 0})
    assert [damage.path for damage in damages] == [str(path)]
    log = open_log(topic, segment_bytes=300)
    assert (log.meta, messages(log)) == (seen, expected)
    assert [damage.path for damage in log.damages] == [str(path)]
    assert [copied.read_bytes() for copied in set_aside(topic)] == ([content] if content else [])
    log.close()
    assert open_log(topic).damages == []


def test_a_missing_description_is_made_again_and_reported(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a"])
    log.close()
    (topic / "topic.json").unlink()
    log = open_log(topic)
    assert (messages(log), len(log.damages)) == ({0: b"a"}, 1)
    log.close()


def test_a_new_topic_has_nothing_to_report(tmp_path: Path) -> None:
    log = open_log(tmp_path / "new")
    assert log.damages == []
    log.close()


def test_another_topic_s_description_does_not_cost_the_segments(topic: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, [b"x" * 60] * 10)
    uuid, expected = log.meta.uuid, messages(log)
    log.close()
    (topic / "topic.json").write_bytes(written(begin=7, channels={"theirs": 3}))
    for _ in range(2):
        log = open_log(topic, segment_bytes=300)
        assert (log.meta.uuid, log.begin, log.meta.channels, messages(log)) == (uuid, 0, {}, expected)
        log.close()
    assert [path.suffixes[-1][:9] for path in set_aside(topic)] == [".damaged-"]
    assert len(segments(topic)) == len(log.segments)


def test_a_known_description_is_compared_with_the_segments_again_only_when_it_changes(topic: Path) -> None:
    log, fs, known = open_log(topic), WatchedFileSystem(), KnownMeta()
    put_each(log, [b"x"])
    own = log.meta
    log.close()
    assert find_meta(fs, str(topic), known) == (own, [], True, True)
    fs.reset()
    assert find_meta(fs, str(topic), known) == (own, [], True, True)
    assert {call.path for call in fs.passed} == {str(topic / "topic.json")}
    (topic / "topic.json").write_bytes(written())
    for _ in range(2):
        found = find_meta(fs, str(topic), known)
        assert (found.meta.uuid, [damage.reason for damage in found.damages]) == (
            own.uuid,
            ["the description is another topic's"],
        )
    save_meta(fs, str(topic), own)
    assert find_meta(fs, str(topic), known) == (own, [], True, True)


def test_most_segments_outvote_one_that_is_in_the_wrong_place(topic: Path, tmp_path: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, [b"x" * 60] * 10)
    uuid = log.meta.uuid
    log.close()
    other = open_log(tmp_path / "other", segment_bytes=300)
    put_each(other, [b"o" * 60] * 10)
    other.close()
    segments(topic)[0].write_bytes(segments(tmp_path / "other")[0].read_bytes())
    (topic / "topic.json").unlink()
    log = open_log(topic, segment_bytes=300)
    assert log.meta.uuid == uuid
    assert list(messages(log)) == list(range(log.segments[0].base, 10))
    log.close()


def test_headers_that_cannot_be_read_leave_the_description_alone(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a", b"b"])
    uuid = log.meta.uuid
    log.close()
    overwrite(segments(topic)[0], 0, b"\xff" * 64)
    log = open_log(topic)
    assert (log.meta.uuid, messages(log)) == (uuid, {0: b"a", 1: b"b"})
    log.close()


def test_a_newer_version_is_refused_and_nothing_is_touched(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, [b"a"])
    log.close()
    (topic / "topic.json").write_bytes(written(version=2))
    (topic / f"x{TEMPORARY}").write_bytes(b"left over")
    before = tree(topic)
    with pytest.raises(FormatVersionError, match="version 2"):
        open_log(topic)
    assert tree(topic) == before


# --- the tools below


def test_sweeping_takes_only_unfinished_files(tmp_path: Path) -> None:
    for name in (f"a{TEMPORARY}", f"b.seg{TEMPORARY}", "c.tmp", "d", f"{TEMPORARY}.not"):
        (tmp_path / name).touch()
    assert sweep_temporaries(WatchedFileSystem(), str(tmp_path)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["c.tmp", "d", f"{TEMPORARY}.not"])


def test_a_directory_that_a_killed_owner_made_becomes_durable(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    assert ensure_directory(fs, str(tmp_path / "new"))
    assert ("sync_directory", str(tmp_path)) in fs.events
    fs.reset()
    assert not ensure_directory(fs, str(tmp_path / "new"))
    assert ("sync_directory", str(tmp_path)) in fs.events
    # Whose parent may not even be opened did not get its directory from aiodq.
    fs.fail(errno.EACCES, "sync_directory", times=1)
    assert not ensure_directory(fs, str(tmp_path / "new"))


def test_reading_a_small_file(tmp_path: Path) -> None:
    fs = WatchedFileSystem()
    assert read_file(fs, str(tmp_path / "x")) is None
    (tmp_path / "x").write_bytes(b"0123456789")
    assert read_file(fs, str(tmp_path / "x")) == b"0123456789"
    assert read_file(fs, str(tmp_path / "x"), 4) == b"0123"
    assert fs.open_files == 0


def test_a_description_with_another_number_in_it_is_damage(topic: Path) -> None:
    save_meta(WatchedFileSystem(), str(topic), TopicMeta(uuid4(), 12, {"a": 3}))
    whole = (topic / "topic.json").read_bytes()
    for right, wrong in ((b'"begin": 12', b'"begin": 13'), (b'"a": 3', b'"a": 2'), (b'"a"', b'"c"')):
        assert right in whole
        (topic / "topic.json").write_bytes(whole.replace(right, wrong))
        with pytest.raises(CorruptionError, match="checksum"):
            read_meta(WatchedFileSystem(), str(topic))


def test_a_description_is_read_with_numbers_of_changes_and_without_and_with_what_a_later_version_adds() -> None:
    assert decode_meta(written(), "p").changes == ()
    assert decode_meta(written(changes=[3, 1 << 61]), "p").changes == (3, 1 << 61)
    assert decode_meta(written(later=[1], begin=4), "p").begin == 4
    with pytest.raises(CorruptionError):
        decode_meta(written(changes=["x"]), "p")
