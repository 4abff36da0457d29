"""Looking into a store beside its owner, on a copy, and on what a crash left."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.errors import (
    CorruptionError,
    InvalidNameError,
    InvalidOptionError,
    NotAStoreError,
    StorageError,
    StoreNotFoundError,
)
from aiodq.format.columns import Columns
from aiodq.format.journal import ChannelImage, Op, OpKind
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.store_reader import StoreReader, TopicReader
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.holds import Hold, write_hold
from aiodq.storage.state.owner_stats import ChannelFigures, write_figures
from aiodq.storage.store_layout import check_store_directory, delete_topic, list_topics
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import (
    copy,
    flip,
    messages,
    open_log,
    overwrite,
    put,
    put_each,
    reopened,
    segments,
    set_aside,
    tree,
)

if TYPE_CHECKING:
    from aiodq.storage.log.topic_log import TopicLog


@pytest.fixture
def store(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    directory.mkdir()
    (directory / "LOCK").touch()
    return directory


def topic_of(store: Path, fs: WatchedFileSystem | None = None) -> TopicReader:
    return StoreReader(str(store), fs or WatchedFileSystem()).topic("t")


def scanned(reader: TopicReader, start: int | None = None, stop: int | None = None) -> dict[int, bytes]:
    return {message.offset: message.body for message in reader.scan(start, stop)}


def forty(log: TopicLog) -> dict[int, bytes]:
    put_each(log, [bytes([n]) * 50 for n in range(40)])
    return messages(log)


# --- beside an owner


def test_what_is_put_is_seen_at_once(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    reader = topic_of(store)
    for number in range(30):
        put(log, [bytes([number]) * 40], sync=False)
        assert list(scanned(reader)) == list(range(number + 1))
        assert (reader.begin_offset, reader.end_offset) == (0, number + 1)
    assert reader.damages == ()
    log.close()


def test_it_writes_nothing_locks_nothing_and_keeps_no_file_open(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    with segments(store / "t")[-1].open("ab") as file:
        file.write(b"unfinished")
    before = tree(store)
    fs = WatchedFileSystem()
    reader = StoreReader(str(store), fs)
    for _ in range(2):
        assert len(scanned(reader.topic("t"))) == 40
        reader.stats()
        next(iter(reader.topic("t").scan()))
    assert tree(store) == before
    assert fs.open_files == 0
    assert set(fs.calls) <= {"open", "read", "size", "listdir", "close", "exists", "is_directory"}
    log.abandon()


def test_a_torn_batch_is_the_end_until_it_is_whole(store: Path) -> None:
    log = open_log(store / "t")
    put(log, [b"first"])
    path = segments(store / "t")[0]
    before = path.stat().st_size
    put(log, [b"second", b"third"])
    whole = path.read_bytes()
    reader = topic_of(store)
    for size in range(before, len(whole)):
        path.write_bytes(whole[:size])
        assert scanned(reader) == {0: b"first"}
    path.write_bytes(whole)
    assert scanned(reader) == {0: b"first", 1: b"second", 2: b"third"}
    log.abandon()


def test_a_run_is_seen_whole_or_not_at_all(store: Path) -> None:
    log = open_log(store / "t")
    run = [bytes([n]) * 40_000 for n in range(5)]
    put(log, run, atomic=True, sync=False)
    path = segments(store / "t")[0]
    whole = path.read_bytes()
    reader = TopicReader(WatchedFileSystem(), str(store / "t"), "t")
    for size in range(64, len(whole), 9973):
        path.write_bytes(whole[:size])
        assert scanned(reader) == {}
    path.write_bytes(whole)
    assert scanned(reader) == dict(enumerate(run))
    log.abandon()


def test_a_refresh_reads_only_what_is_new(store: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(store / "t", segment_bytes=1 << 22)
    put_each(log, [b"x" * 1000] * 1000, sync=False)
    reader = topic_of(store, fs)
    for number in range(3):
        put(log, [b"y" * 100] * 10)
        fs.reset()
        reader.refresh()
        assert reader.end_offset == 1010 + 10 * number
        assert fs.bytes_read < 5000
        fs.reset()
        assert len(scanned(reader, 1000 + 10 * number)) == 10
        assert fs.bytes_read < 15_000
    log.close()


def test_a_write_that_was_taken_back_is_forgotten(store: Path) -> None:
    log = open_log(store / "t")
    put(log, [b"first"])
    log.stage(Columns([b"taken back" * 3]), 1, atomic=False)
    log.flush()
    reader = topic_of(store)
    assert list(scanned(reader)) == [0, 1]
    log.rollback()
    put(log, [b"other"])
    assert scanned(reader) == {0: b"first", 1: b"other"}
    put(log, [b"third"])
    assert scanned(reader) == {0: b"first", 1: b"other", 2: b"third"}
    assert reader.damages == ()
    log.close()


def test_segments_that_the_owner_deletes_are_stepped_over(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    expected = forty(log)
    reader = topic_of(store)
    scan = reader.scan()
    read = [next(scan).offset for _ in range(3)]
    gone = log.segments[:8]
    # Whichever way retention notes it: all channels had settled it.
    log.description.give_up(gone[-1].end)
    log.hide(gone)
    log.remove(gone)
    rest = [message.offset for message in scan]
    assert rest[-1] == 39
    assert [offset for offset in rest if offset >= log.begin] == list(range(log.begin, 40))
    assert read == [0, 1, 2]
    assert scanned(reader) == {offset: body for offset, body in expected.items() if offset >= log.begin}
    assert reader.damages == ()
    assert next(iter(reader.scan(strict=True))).offset == reader.begin_offset == log.begin
    log.close()


def test_a_scan_is_what_there_was_when_it_began(store: Path) -> None:
    log = open_log(store / "t")
    put(log, [b"a", b"b"])
    scan = topic_of(store).scan()
    assert next(scan).body == b"a"
    put(log, [b"c"])
    assert [message.body for message in scan] == [b"b"]
    log.close()


def test_a_scan_between_two_offsets(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    put(log, [bytes([n]) for n in range(5)])
    put_each(log, [bytes([n]) * 30 for n in range(5, 30)])
    reader = topic_of(store)
    for start, stop in itertools.product((None, 0, 2, 7, 29, 30, 100), (None, 0, 3, 8, 30, 100)):
        expected = list(range(30))[start:stop]
        assert list(scanned(reader, start, stop)) == expected
    log.close()


@pytest.mark.parametrize("wrong", ["3", 1.5, True, -1])
def test_what_is_no_offset_is_refused_when_asked_for(store: Path, wrong: Any) -> None:
    open_log(store / "t").close()
    reader = topic_of(store)
    for ask, (start, stop) in itertools.product(
        (reader.scan, reader.record_batches, reader.to_arrow), ((wrong, None), (0, wrong))
    ):
        with pytest.raises(InvalidOptionError) as caught:
            ask(start, stop)
        assert isinstance(caught.value, TypeError) == (wrong != -1)


@pytest.mark.parametrize("wrong", ["a b", None, ["c"]])
def test_what_cannot_be_a_channels_name_is_refused(store: Path, wrong: Any) -> None:
    open_log(store / "t").close()
    with pytest.raises(InvalidNameError):
        topic_of(store).waiting(wrong)


def test_messages_come_with_all_they_have(store: Path) -> None:
    log = open_log(store / "t")
    columns = Columns([b"a", b"b"], tags=["x", None], keys=[None, b"k"], headers=[{}, {"h": "v"}], times=[5, 6])
    log.stage(columns, 6, atomic=False)
    log.flush()
    log.commit()
    one, two = topic_of(store).scan()
    assert (one.body, one.tag, one.key, dict(one.headers), one.timestamp_ns, one.topic) == (b"a", "x", None, {}, 5, "t")
    assert (two.offset, two.tag, two.key, dict(two.headers), two.timestamp_ns) == (1, None, b"k", {"h": "v"}, 6)
    assert (two.id, two.timestamp.year) == ("0000000000000001", 1970)
    log.close()


# --- figures


def a_channel(store: Path, log: TopicLog, name: str, floor: int, ranges: list[tuple[int, int]]) -> ChannelJournal:
    log.description.add_channels({name: (0, None)})
    (store / "t" / "channels").mkdir(exist_ok=True)
    journal = ChannelJournal(WatchedFileSystem(), str(store / "t" / "channels" / name), 0)
    journal.fold(ChannelImage(floor, ranges))
    return journal


def test_stats_are_what_the_files_say(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    put(log, [b"unsynced"], sync=False)
    one = a_channel(store, log, "one", 10, [(20, 25)])
    one.append([Op(OpKind.ACK, 30, 2), Op(OpKind.FLOOR, 12), Op(OpKind.REQUEUE, 13, value=3), Op(OpKind.ACK, 12)])
    two = a_channel(store, log, "two", 0, [])
    summary = StoreReader(str(store), WatchedFileSystem()).stats()
    assert list(summary.topics) == ["t"]
    stats = summary.topics["t"]
    assert (stats.begin_offset, stats.end_offset, stats.durable_offset) == (0, 41, 40)
    assert (stats.messages, stats.segments, stats.damages) == (41, len(log.segments), ())
    assert stats.disk_bytes == sum(path.stat().st_size for path in segments(store / "t"))
    assert {name: (c.floor, c.depth) for name, c in stats.channels.items()} == {"one": (13, 21), "two": (0, 41)}
    one.close()
    two.close()
    log.close()


@pytest.mark.parametrize(("code", "passes"), [("EACCES", False), ("EMFILE", True), ("EIO", True)])
def test_stats_leave_out_a_topic_that_may_not_be_read_and_raise_what_may_pass(
    store: Path, code: str, *, passes: bool
) -> None:
    log = open_log(store / "t")
    put(log, [b"a"])
    log.close()
    fs = WatchedFileSystem()
    reader = StoreReader(str(store), fs)
    fs.fail(getattr(errno, code), "open", match="/t/")
    if passes:
        with pytest.raises(StorageError):
            reader.stats()
    else:
        summary = reader.stats()
        assert (list(summary.topics), list(summary.refused)) == ([], ["t"])


async def test_stats_of_many_topics_look_at_each_once_and_once_at_what_is_of_all(tmp_path: Path) -> None:
    """An owner's figures are one file: to take it apart for each topic took seconds where there are a thousand."""
    async with aiodq.open(tmp_path) as owner:
        for number in range(5):
            owner.topic(f"t{number}").channel("c")
            await owner.topic(f"t{number}").put(b"x")
    write_figures(OsFileSystem(), str(tmp_path), {"t3": {"c": ChannelFigures(in_flight=1)}})
    write_hold(OsFileSystem(), str(tmp_path), "h", Hold({"t2": 0}))
    fs, seen = WatchedFileSystem(), Counter[str]()
    reader = StoreReader(str(tmp_path), fs)
    fs.add(lambda call: seen.update([str(Path(call.path).relative_to(tmp_path))] if call.kind == "open" else []))
    summary = reader.stats()
    assert [summary.topics[f"t{number}"].channels["c"].in_flight for number in range(5)] == [0, 0, 0, 1, 0]
    assert (seen["#figures"], seen["#holds/h.json"]) == (1, 1)
    assert {seen[f"t{number}/watermark"] for number in range(5)} == {1}
    seen.clear()
    assert reader.stats(["t3", "none"]).topics == {"t3": summary.topics["t3"]}
    assert (seen["#figures"], seen["t3/watermark"], seen["t1/watermark"]) == (1, 1, 0)


def test_depth_does_not_count_what_retention_deleted_in_the_middle(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    middle = log.segments[3]
    channel = a_channel(store, log, "one", 1, [(middle.base, middle.end)])
    log.hide([middle])
    log.remove([middle])
    reader = topic_of(store)
    assert reader.stats().channels["one"].depth == 39 - middle.records
    assert len(list(reader.scan(strict=True))) == 40 - middle.records
    assert reader.damages == ()
    channel.close()
    log.close()
    # Nor does the owner take for a loss what every channel had settled.
    log = open_log(store / "t", segment_bytes=300)
    assert log.damages == []
    log.close()


def test_a_loss_is_what_some_channel_had_not_settled(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    middle = log.segments[3]
    for name, stop in (("one", middle.end), ("two", middle.end - 1)):
        a_channel(store, log, name, 0, [(middle.base, stop)]).close()
    log.close()
    os.unlink(middle.path)
    reader = topic_of(store)
    assert [(damage.first, damage.stop) for damage in reader.damages] == [(middle.base, middle.end)]
    log = open_log(store / "t", segment_bytes=300)
    assert [(damage.first, damage.stop) for damage in log.damages] == [(middle.base, middle.end)]
    log.close()


def test_a_missing_first_segment_is_a_loss_to_a_channel_that_had_not_settled_it(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    first = log.segments[0]
    a_channel(store, log, "one", first.end, []).close()
    log.close()
    Path(first.path).unlink()
    assert topic_of(store).damages == ()
    log = open_log(store / "t", segment_bytes=300)
    assert log.damages == []
    a_channel(store, log, "two", first.end - 1, []).close()
    log.close()
    assert [(damage.first, damage.stop) for damage in topic_of(store).damages] == [(0, first.end)]
    log = open_log(store / "t", segment_bytes=300)
    assert [(damage.first, damage.stop) for damage in log.damages] == [(0, first.end)]
    log.close()


# --- damage


def test_damage_is_stepped_over_and_noted_once(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    expected = forty(log)
    log.close()
    bad = log.segments[2]
    flip(Path(bad.path), 100, 3)
    reader = topic_of(store)
    for _ in range(3):
        assert scanned(reader) == {n: body for n, body in expected.items() if n != bad.base}
        assert [(d.path, d.position, d.first, d.stop) for d in reader.damages] == [
            (bad.path, 64, bad.base, bad.base + 1)
        ]
    assert reader.stats().damages == reader.damages
    assert set_aside(store) == []


def test_strict_raises_where_damage_is_met(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    log.close()
    bad = log.segments[2]
    flip(Path(bad.path), 100, 3)
    found: list[int] = []
    with pytest.raises(CorruptionError) as caught:
        found.extend(message.offset for message in topic_of(store).scan(strict=True))
    assert (caught.value.path, caught.value.position) == (bad.path, 64)
    assert found == list(range(bad.base))
    assert len(list(topic_of(store).scan(bad.base + 1, strict=True))) == 39 - bad.base


def test_strict_raises_where_messages_are_missing(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    forty(log)
    log.close()
    gone = log.segments[2]
    os.unlink(gone.path)
    found: list[int] = []
    with pytest.raises(CorruptionError, match=f"{gone.base} to {gone.end - 1}"):
        found.extend(message.offset for message in topic_of(store).scan(strict=True))
    assert found == list(range(gone.base))
    assert [(damage.first, damage.stop) for damage in topic_of(store).damages] == [(gone.base, gone.end)]


def test_a_promised_tail_that_is_gone_is_noted(store: Path) -> None:
    log = open_log(store / "t")
    put_each(log, [b"a", b"b", b"c"])
    log.close()
    os.truncate(segments(store / "t")[0], 64 + 2 * 40)
    reader = topic_of(store)
    assert scanned(reader) == {0: b"a", 1: b"b"}
    assert (2, 3) in [(damage.first, damage.stop) for damage in reader.damages]
    found = reader._log.damages
    reader.refresh()
    assert reader._log.damages == found


def test_it_sees_what_the_next_owner_will_recover(store: Path, tmp_path: Path) -> None:
    log = open_log(store / "t", segment_bytes=2000)
    put_each(log, [bytes([n]) * 50 for n in range(20)])
    put_each(log, [bytes([n]) * 50 for n in range(20, 40)], sync=False)
    log.abandon()
    whole = segments(store / "t")[-1].read_bytes()
    for position in range(0, len(whole), 61):
        work = copy(store, tmp_path / "work")
        overwrite(segments(work / "t")[-1], position, b"\xff\xff")
        seen = scanned(topic_of(work))
        assert seen == reopened(work / "t")


def test_a_lost_description_does_not_hide_the_messages(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=300)
    expected = forty(log)
    log.close()
    for content in (b"", b"{}", b"junk", None):
        if content is None:
            (store / "t" / "topic.json").unlink()
        else:
            (store / "t" / "topic.json").write_bytes(content)
        reader = topic_of(store)
        assert scanned(reader) == expected
        assert [Path(damage.path).name for damage in reader.damages] == ["topic.json"]


# --- which directory is a store


def test_what_is_not_there_is_not_found(tmp_path: Path, store: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        StoreReader(str(tmp_path / "nowhere"))
    reader = StoreReader(str(store))
    assert reader.topics() == []
    with pytest.raises(StoreNotFoundError):
        reader.topic("t")
    with pytest.raises(InvalidNameError):
        reader.topic("../t")


@pytest.mark.parametrize("files", [["notes.txt"], ["LOCK", "CURRENT"], ["sub/file"], ["LOCK", "sub/file"], ["t.seg"]])
def test_a_directory_of_others_is_refused_untouched(tmp_path: Path, files: list[str]) -> None:
    directory = tmp_path / "mine"
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_bytes(b"mine")
    before = tree(directory)
    with pytest.raises(NotAStoreError):
        StoreReader(str(directory))
    with pytest.raises(NotAStoreError):
        aiodq.open_reader(directory)
    assert tree(directory) == before


def test_a_topic_that_may_not_be_looked_into_is_not_denied(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "topic.json").touch()
    fs = WatchedFileSystem()
    fs.fail(errno.EACCES, "listdir", match="orders")
    with pytest.raises(NotAStoreError, match="holds no topic, unless 'orders' is one: permission is denied to look"):
        StoreReader(str(tmp_path), fs)
    (tmp_path / "orders").rename(tmp_path / "no name")
    with pytest.raises(NotAStoreError, match="holds no topic, so it is no aiodq store"):
        StoreReader(str(tmp_path), fs)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError):
        StoreReader(str(tmp_path / "file"))


@pytest.mark.parametrize(
    "remnants",
    [
        [],
        ["LOCK"],
        ["lost+found/"],
        ["half.aiodq-tmp"],
        ["LOCK", "t/"],
        ["LOCK", "t/topic.json.aiodq-tmp"],
        ["LOCK", "t/watermark", "t/channels/"],
        ["LOCK", "t/topic.json.damaged-000000000000"],
        ["LOCK", "t#deleted/00000000000000000000.seg"],
        ["t/topic.json", "notes.txt"],
        ["t/00000000000000000000.seg", "notes.txt"],
    ],
)
def test_what_an_owner_leaves_that_was_killed_is_a_store(tmp_path: Path, remnants: list[str]) -> None:
    for name in remnants:
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.touch()
    (tmp_path / "store").mkdir(exist_ok=True)
    check_store_directory(WatchedFileSystem(), str(tmp_path / "store"))


def test_topics_are_the_directories_that_hold_one(store: Path) -> None:
    for name in ("b", "a", "a.b-c_D"):
        open_log(store / name).close()
    (store / "empty").mkdir()
    (store / "not a name").mkdir()
    (store / "not a name" / "topic.json").touch()
    (store / "link").symlink_to(store / "a")
    (store / "file").touch()
    assert list_topics(WatchedFileSystem(), str(store)) == ["a", "a.b-c_D", "b"]
    assert StoreReader(str(store)).topics() == ["a", "a.b-c_D", "b"]


def test_to_look_into_a_topic_the_others_are_not_looked_at(store: Path) -> None:
    for number in range(20):
        open_log(store / f"t{number}").close()
    fs = WatchedFileSystem()
    reader = StoreReader(str(store), fs)
    calls = Counter(fs.calls)
    reader.topic("t7")
    assert 0 < Counter(fs.calls)["listdir"] - calls["listdir"] < 10


@pytest.mark.parametrize("looks", [0, 1])
def test_a_topic_that_is_deleted_while_the_store_is_looked_at(tmp_path: Path, looks: int) -> None:
    store = tmp_path / "store"
    for name in ("a", "b"):
        (store / name).mkdir(parents=True)
        (store / name / "topic.json").touch()
    (store / "LOCK").touch()
    left = [None] * looks

    class Late(OsFileSystem):
        def listdir(self, path: str) -> list[str]:
            if path == str(store / "a"):
                if not left:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                left.pop()
            return super().listdir(path)

    check_store_directory(Late(), str(store))


def test_a_topic_that_was_deleted_is_gone(store: Path) -> None:
    open_log(store / "t").close()
    reader = StoreReader(str(store))
    reader.topic("t")
    delete_topic(WatchedFileSystem(), str(store), "t")
    assert reader.topics() == []
    with pytest.raises(StoreNotFoundError):
        reader.topic("t")
    assert list(store.iterdir()) == [store / "LOCK"]


def test_the_front_door_leads_here(store: Path) -> None:
    log = open_log(store / "t")
    put(log, [b"x"])
    log.close()
    assert [message.body for message in aiodq.open_reader(store).topic("t").scan()] == [b"x"]
