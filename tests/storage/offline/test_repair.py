"""Repair: what can be read stays readable, every byte that cannot is kept, and a second run finds nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from aiodq.errors import AiodqError, FormatVersionError, NotAStoreError, StoreLockedError, StoreNotFoundError
from aiodq.format.journal import Op, OpKind, encode_block, replayed
from aiodq.format.segment import SegmentHeader
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.offline.repair import RepairAction, repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.channel_files import read_channel
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import alike, contents, copy, open_log, overwrite, put, read_topic, segments, set_aside, tree
from tests.storage.stores import BREAKS, COUNT, LEFTOVERS, a_store

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = {**LEFTOVERS, **BREAKS}


def repaired(store: Path, fs: WatchedFileSystem | None = None) -> list[RepairAction]:
    return repair_store(str(store), fs or WatchedFileSystem())


def is_ok(store: Path) -> bool:
    return verify_store(str(store), WatchedFileSystem()).ok


def settled(store: Path) -> dict[str, object]:
    """Return what the channels of `t` have settled, where that can be read."""
    fs = WatchedFileSystem()
    found: dict[str, object] = {}
    for name in ("one", "two"):
        read = read_channel(fs, str(store / "t" / "channels" / name), 0)
        image = replayed(read.image, read.ops)
        found[name] = (image.floor, image.ranges)
    return found


def gone(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return the files of which some byte is neither where it was nor quarantined."""
    everything = b"\n".join(after.values())
    lost = []
    for name, data in before.items():
        now = after.get(name, b"")
        head = alike(data, now)
        tail = alike(data[head:][::-1], now[head:][::-1])
        if data[head : len(data) - tail] not in everything and not name.endswith(".aiodq-tmp"):
            lost.append(name)
    return lost


@pytest.fixture
def store(tmp_path: Path) -> Path:
    a_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("broken", ALL.values(), ids=ALL)
def test_after_repair_all_is_well_and_nothing_more_is_lost(store: Path, broken: Callable[[Path], object]) -> None:
    broken(store)
    before, readable = tree(store), read_topic(store / "t")
    actions = repaired(store)
    report = verify_store(str(store), WatchedFileSystem())
    assert report.ok, report.damages
    assert read_topic(store / "t") == readable
    after = tree(store)
    assert gone(before, after) == []
    assert all(Path(action.kept).exists() for action in actions if action.kept)
    assert all(action.what for action in actions)
    # What changed was told.
    different = {name for name in before | after if before.get(name) != after.get(name)}
    changed = {os.path.dirname(name) for name in different - {"LOCK"}}
    assert changed == {os.path.dirname(os.path.relpath(action.path, store)) for action in actions}
    assert repaired(store) == []
    assert {name: data for name, data in tree(store).items() if name != "LOCK"} == {
        name: data for name, data in after.items() if name != "LOCK"
    }


def test_what_is_not_whole_at_the_end_of_a_journal_is_cut_off_and_kept(store: Path) -> None:
    journal, before = store / "t/channels/one/journal", settled(store)
    LEFTOVERS["an unfinished block"](store)
    (action,) = repaired(store)
    assert (action.path, "not whole" in action.what) == (str(journal), True)
    assert Path(action.kept).read_bytes().endswith(b"torn")
    assert b"torn" not in journal.read_bytes()
    assert settled(store) == before


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_a_repaired_store_opens_without_a_word_and_goes_on(store: Path, broken: Callable[[Path], object]) -> None:
    broken(store)
    repaired(store)
    readable, channels = read_topic(store / "t"), settled(store)
    log = open_log(store / "t", segment_bytes=528)
    assert log.damages == []
    assert contents(log)[0] == readable
    offset = put(log, [b"next"]).start
    assert offset == 21
    log.close()
    log = open_log(store / "t", segment_bytes=528)
    assert log.damages == []
    assert contents(log)[0] == {**readable, offset: b"next"}
    log.close()
    assert is_ok(store)
    assert settled(store) == channels


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_a_store_that_its_owner_opened_first_can_be_repaired_as_well(
    store: Path, broken: Callable[[Path], object]
) -> None:
    broken(store)
    log = open_log(store / "t", segment_bytes=528)
    put(log, [b"next"])
    log.close()
    readable = read_topic(store / "t")
    repaired(store)
    assert is_ok(store)
    assert read_topic(store / "t") == readable
    assert repaired(store) == []


@pytest.mark.drawn("kind", 4)
@pytest.mark.parametrize("kind", ["open", "create", "write", "truncate", "sync", "sync_directory", "rename", "remove"])
@pytest.mark.parametrize(
    "name",
    [
        "a flipped bit in a sealed segment",
        "a header that is gone",
        "a flipped bit in an index",
        "a missing segment",
        "another topic's segment",
        "another topic's description",
        "a checkpoint of junk",
        "an unfinished block",
    ],
)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_repair_cut_short_anywhere_can_be_repeated(store: Path, name: str, kind: str, step: int, seed: int) -> None:
    # Each run tries others of the calls. Of the many opens, most fail in the look that repair takes before it touches
    # anything.
    step *= 5 if kind == "open" else 1
    ALL[name](store)
    readable, before = read_topic(store / "t"), tree(store)
    for number in range(Random(f"{seed}:{name}:{kind}").randint(1, step), 400, step):
        work = copy(store, store.parent / "work")
        fs = WatchedFileSystem()
        fault = fs.fail(errno.ENOSPC, kind, at=number, times=1)
        try:
            repaired(work, fs)
        except AiodqError:
            assert read_topic(work / "t") == readable
            assert gone(before, tree(work)) == []
        assert fs.open_files == 0
        if not fault.hits:
            break
        fs.heal()
        repaired(work)
        assert is_ok(work)
        assert read_topic(work / "t") == readable
    assert not fault.hits


def test_several_things_at_once(store: Path) -> None:
    for name in (
        "a flipped bit in a sealed segment",
        "a flipped bit in a run",
        "a missing segment",
        "a promised tail that is gone",
        "a description of junk",
        "a watermark that is gone",
        "a flipped bit in a journal",
        "an unfinished file",
    ):
        ALL[name](store)
    readable = read_topic(store / "t")
    repaired(store)
    report = verify_store(str(store), WatchedFileSystem())
    assert report.ok
    assert {offset for finding in report.losses for offset in range(finding.first, finding.stop)} == (
        set(range(19)) - set(readable)
    )
    assert read_topic(store / "t") == readable
    assert repaired(store) == []


def test_a_clean_copy_has_the_healthy_frames_byte_by_byte(store: Path) -> None:
    path = segments(store / "t")[0]
    whole = path.read_bytes()
    BREAKS["a flipped bit in a sealed segment"](store)
    damaged = path.read_bytes()
    repaired(store)
    # The first of three frames of 88 bytes is gone.
    assert path.read_bytes()[: 64 + 2 * 88] == whole[:64] + whole[64 + 88 : 64 + 3 * 88]
    assert [copied.read_bytes() for copied in set_aside(store)] == [damaged]


def test_nothing_is_touched_before_it_is_set_aside(store: Path) -> None:
    for name in ("a flipped bit in a sealed segment", "a header that is gone", "an unfinished write"):
        ALL[name](store)
    fs = WatchedFileSystem()
    repaired(store, fs)
    synced: set[str] = set()
    named: set[str] = set()
    done: set[str] = set()
    for kind, path in fs.events:
        if kind == "sync":
            synced.add(path)
        if kind == "rename" and ".damaged-" in path:
            assert path + TEMPORARY in synced
            named.add(path.partition(".damaged-")[0])
        if kind == "sync_directory":
            done |= {each for each in named if os.path.dirname(each) == path}
        if kind in {"write", "truncate", "rename"} and path.endswith(".seg"):
            assert path in done, path
    assert len(done) == 3


def test_a_store_that_somebody_has_open_is_refused(store: Path) -> None:
    BREAKS["a header that is gone"](store)
    lock = StoreLock.acquire(str(store))
    try:
        before = tree(store)
        told = f"repair needs the store for itself, and process {os.getpid()} has it open"
        with pytest.raises(StoreLockedError, match=told) as refused:
            repaired(store)
        assert refused.value.pid == os.getpid()
        assert tree(store) == before
    finally:
        lock.release()
    assert repaired(store)
    # And the lock is given back, also after a failure.
    fs = WatchedFileSystem()
    fs.fail(errno.EIO, "listdir", at=3)
    with pytest.raises(AiodqError):
        repaired(store, fs)
    StoreLock.acquire(str(store)).release()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        repaired(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError):
        repaired(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_newer_version_anywhere_keeps_everything_untouched(store: Path) -> None:
    BREAKS["a flipped bit in a sealed segment"](store)
    LEFTOVERS["an unfinished file"](store)
    path = segments(store / "u")[0]
    header = SegmentHeader.decode(path.read_bytes())
    newer = SegmentHeader(header.base, header.topic, header.created_ns, header.salt, header.checksum, version=2)
    overwrite(path, 0, newer.encode())
    before = tree(store)
    with pytest.raises(FormatVersionError):
        repaired(store)
    after = tree(store)
    after.pop("LOCK")
    assert after == before


def test_files_of_others_stay(store: Path) -> None:
    (store / "notes.txt").write_bytes(b"mine")
    (store / "t" / "notes.txt").write_bytes(b"mine")
    (store / "t" / "channels" / "notes.txt").write_bytes(b"mine")
    assert repaired(store) == []
    assert (store / "notes.txt").read_bytes() == (store / "t" / "notes.txt").read_bytes() == b"mine"
    assert (store / "t" / "channels" / "notes.txt").read_bytes() == b"mine"


# --- what may not be read


def may_not_be_read(store: Path) -> WatchedFileSystem:
    """Break the description and the watermark of a topic, and refuse one channel's journal."""
    (store / "t" / "topic.json").write_bytes(b"{")
    (store / "t" / "channels" / "two" / "checkpoint").write_bytes(b"x" * 100)
    fs = WatchedFileSystem()
    fs.fail(errno.EACCES, "open", match="channels/one/journal")
    return fs


def test_what_may_not_be_read_is_left_alone_and_told_beside_what_was_done(store: Path) -> None:
    fs = may_not_be_read(store)
    journal = store / "t" / "channels" / "one" / "journal"
    (damage,) = verify_store(str(store), fs).damages
    assert (damage.path, damage.by_hand) == (str(journal), True)
    actions = repaired(store, fs)
    assert {os.path.relpath(action.path, store) for action in actions if not action.left} == {
        "t/topic.json",
        "t/channels/two/checkpoint",
    }
    (left,) = [action for action in actions if action.left]
    assert left.path == str(journal)
    assert "left alone" in left.what
    assert "not permitted" in left.what
    assert [action.left for action in repaired(store, fs)] == [True]
    fs.heal()
    assert repaired(store) == []
    assert is_ok(store)


def test_an_error_that_may_pass_ends_the_repair(store: Path) -> None:
    fs = may_not_be_read(store)
    fs.fail(errno.EIO, "open", match="channels/one/journal")
    fs.rules.reverse()
    with pytest.raises(AiodqError):
        repaired(store, fs)


def test_it_says_what_comes_again_without_a_checkpoint(store: Path) -> None:
    checkpoint = store / "t" / "channels" / "two" / "checkpoint"
    checkpoint.write_bytes(b"x" * 100)
    (action,) = [action for action in repaired(store) if action.path == str(checkpoint)]
    assert "what the channel had acked from offset 0 on is delivered again" in action.what
    assert settled(store)["two"] == (0, [(17, 18), (19, 20)])


def test_operations_on_messages_that_nobody_has_are_left_out(store: Path) -> None:
    directory = store / "t" / "channels" / "two"
    found = read_channel(WatchedFileSystem(), str(directory), 0)
    runs = [Op(OpKind.REQUEUE, at, 2**32 - 1, 2**63 - 1) for at in (COUNT - 2, 2**40, 2**62, 2**64 - 1)]
    others = [Op(OpKind.ACK, 2**64 - 1, 2**32 - 1), Op(OpKind.DEFER, 3, 2**32 - 2, -(2**63))]
    block = encode_block([*runs, *others], found.generation)
    journal = directory / "journal"
    journal.write_bytes(journal.read_bytes()[: found.end] + block + b"torn")
    (action,) = repaired(store)
    assert "not whole" in action.what
    assert is_ok(store)
    image = read_channel(WatchedFileSystem(), str(directory), 0).image
    assert image.ranges == [(14, 16), (17, 18), (19, 20)]
    assert image.attempts == {3: 0, COUNT - 1: 2**31 - 1}
    assert image.deferred == {3: -(2**63)}
