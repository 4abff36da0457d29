"""A channel's checkpoint and journal: what was settled stays settled, and nothing else ever is."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import AiodqError, CorruptionError, DiskFullError, StoreFailedError
from aiodq.format.journal import (
    JOURNAL_HEADER,
    ChannelImage,
    Op,
    OpKind,
    decode_blocks,
    decode_checkpoint,
    encode_block,
    encode_checkpoint,
    encode_journal_header,
    replayed,
    unsettled,
)
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.state import channel_files
from aiodq.storage.state.channel_files import read_channel
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import Passed, WatchedFileSystem
from tests.storage.full import FullFileSystem
from tests.storage.logs import copy, flip, open_log, set_aside

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 8 + 24
BLOCKS_OF_THREE = JOURNAL_HEADER.size + 3 * BLOCK
RESERVE = 4 * 4096
EDGES = st.sampled_from([0, 3, 8, 9, 2**31, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
TIMES = st.sampled_from([0, 1, 2**32, 2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1])


def ack(offset: int, count: int = 1) -> Op:
    return Op(OpKind.ACK, offset, count)


def opened(directory: Path, fs: WatchedFileSystem | None = None, start: int = 0) -> ChannelJournal:
    return ChannelJournal(fs or WatchedFileSystem(), str(directory), start)


def found(directory: Path, start: int = 0) -> tuple[ChannelImage, list[Op]]:
    """Return what a channel's files say to its next owner."""
    journal = opened(directory, start=start)
    journal.close()
    return journal.image, journal.ops


def written(directory: Path) -> bytes:
    """Return a journal's bytes but for its reserve. The value of the last operation ends in eight zeros."""
    data = (directory / "journal").read_bytes().rstrip(b"\0")
    return data + bytes(-(len(data) - JOURNAL_HEADER.size) % BLOCK)


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


# --- what was written comes back


def test_a_new_channel_begins_where_it_is_told(channel: Path) -> None:
    assert found(channel, start=7) == (ChannelImage(7), [])
    # Twice: nothing but the start says so until there is a checkpoint.
    assert found(channel, start=7) == (ChannelImage(7), [])


def test_operations_come_back_in_order_without_close(channel: Path) -> None:
    journal = opened(channel)
    ops = [ack(3), Op(OpKind.FLOOR, 2), Op(OpKind.REQUEUE, 5, value=-4), ack(2**40, 2**20), ack(0)]
    journal.append(ops[:2])
    journal.append(ops[2:])
    assert journal.pending == 5
    assert found(channel) == (ChannelImage(0), ops)
    journal.close()


def test_an_empty_append_writes_nothing(channel: Path) -> None:
    journal = opened(channel)
    journal.append([])
    journal.append([ack(1)])
    journal.append(iter(()))
    journal.append([ack(2)])
    journal.close()
    assert found(channel)[1] == [ack(1), ack(2)]


def test_a_fold_replaces_both(channel: Path) -> None:
    journal = opened(channel)
    for generation in range(3):
        journal.append([ack(generation)])
        image = ChannelImage(10 + generation, [(20, 25), (30, 31)], {15: 2})
        journal.fold(image)
        assert journal.pending == 0
        assert found(channel) == (image, [])
    journal.append([ack(11)])
    assert found(channel) == (image, [ack(11)])
    assert len(written(channel)) == JOURNAL_HEADER.size + BLOCK
    journal.close()


def test_the_checkpoint_is_durable_before_the_journal_is_emptied(channel: Path) -> None:
    fs = WatchedFileSystem()
    journal = opened(channel, fs)
    journal.append([ack(1)])
    fs.reset()
    journal.fold(ChannelImage(2))
    kinds = [(kind, Path(path).name) for kind, path in fs.events if kind not in {"open", "close", "size", "exists"}]
    temporary = f"checkpoint{TEMPORARY}"
    assert kinds == [
        ("create", temporary),
        ("write", temporary),
        ("sync", temporary),
        ("rename", "checkpoint"),
        ("sync_directory", channel.name),
        ("truncate", "journal"),
        ("write", "journal"),
        ("write", "journal"),
        ("sync", "journal"),
    ]
    journal.close()


# --- crashes


def three_blocks(channel: Path) -> None:
    journal = opened(channel)
    journal.fold(ChannelImage(5))
    for offset in (6, 8, 10):
        journal.append([ack(offset)])
    journal.close()


def test_a_journal_torn_at_any_byte_keeps_its_whole_blocks(channel: Path, tmp_path: Path) -> None:
    three_blocks(channel)
    for size in range(JOURNAL_HEADER.size + 3 * BLOCK + 1):
        work = copy(channel, tmp_path / "work")
        os.truncate(work / "journal", size)
        blocks = max((size - JOURNAL_HEADER.size) // BLOCK, 0)
        journal = opened(work)
        assert (journal.image, journal.ops) == (ChannelImage(5), [ack(6), ack(8), ack(10)][:blocks])
        torn = size > JOURNAL_HEADER.size and (size - JOURNAL_HEADER.size) % BLOCK != 0
        assert journal.unclean == (torn or 0 < size < JOURNAL_HEADER.size)
        journal.append([ack(99)])
        journal.close()
        assert found(work)[1] == [*[ack(6), ack(8), ack(10)][:blocks], ack(99)]


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\xff" * 500, b"\x18" + b"\0" * 40])
def test_what_stands_behind_the_last_block_is_cut(channel: Path, tail: bytes) -> None:
    three_blocks(channel)
    with (channel / "journal").open("ab") as file:
        file.write(tail)
    journal = opened(channel)
    assert journal.ops == [ack(6), ack(8), ack(10)]
    assert (channel / "journal").stat().st_size >= RESERVE, "it has a reserve again"
    journal.append([ack(12)])
    journal.close()
    assert found(channel)[1] == [ack(6), ack(8), ack(10), ack(12)]
    assert set_aside(channel) == []


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory", "truncate"])
def test_a_fold_cut_short_anywhere_leaves_the_old_or_the_new(channel: Path, kind: str) -> None:
    before = (ChannelImage(5), [ack(6), ack(8), ack(10)])
    after: tuple[ChannelImage, list[Op]] = (ChannelImage(11, [(20, 21)]), [])
    for number in range(1, 10):
        work = channel.with_name(f"w{number}")
        three_blocks(work)
        fs = WatchedFileSystem()
        journal = opened(work, fs)
        fault = fs.fail(errno.EIO, kind, at=number, times=1)
        try:
            journal.fold(after[0])
        except AiodqError:
            # As if the process had died right there.
            assert found(work) in (before, after)
        journal.close()
        assert fs.open_files == 0
        if not fault.hits:
            assert found(work) == after
            break
    assert number > 1


@pytest.mark.parametrize("taken", [0, 10, None])
def test_a_fold_whose_journal_cannot_begin_loses_nothing_that_follows(channel: Path, taken: int | None) -> None:
    three_blocks(channel)
    fs = WatchedFileSystem()
    journal = opened(channel, fs)
    if taken is None:
        fs.fail(errno.ENOSPC, "truncate", times=1)
    else:
        fs.fail(errno.ENOSPC, "write", match="channel/journal", short=taken, times=1)
    with pytest.raises(DiskFullError):
        journal.fold(ChannelImage(20))
    journal.append([ack(21)])
    assert found(channel) == (ChannelImage(20), [ack(21)])
    journal.append([ack(22)])
    journal.close()
    assert found(channel) == (ChannelImage(20), [ack(21), ack(22)])


@pytest.mark.parametrize("taken", [0, 1, 8, 31, 40])
def test_a_failed_append_adds_nothing(channel: Path, taken: int) -> None:
    three_blocks(channel)
    fs = WatchedFileSystem()
    journal = opened(channel, fs)
    fs.fail(errno.ENOSPC, "write", short=taken, times=1)
    with pytest.raises(DiskFullError):
        journal.append([ack(30), ack(31)])
    assert journal.pending == 3
    journal.append([ack(32)])
    journal.close()
    assert found(channel)[1] == [ack(6), ack(8), ack(10), ack(32)]


def test_a_failed_sync_is_final(channel: Path) -> None:
    fs = WatchedFileSystem()
    journal = opened(channel, fs)
    journal.append([ack(1)])
    fs.fail(errno.EIO, "sync", times=1)
    with pytest.raises(StoreFailedError):
        journal.sync()
    journal.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", [1, 2])
def test_a_directory_that_fails_to_sync_stops_the_store(channel: Path, error: int, at: int) -> None:
    """Of the channel's parent, which holds its name, and of itself, which holds the journal's."""
    for _ in range(2):
        fs = WatchedFileSystem()
        fs.fail(error, "sync_directory", at=at, times=1)
        with pytest.raises(StoreFailedError):
            opened(channel, fs)
        assert fs.open_files == 0


def test_a_journal_whose_name_an_owner_left_unsynced_is_named_durably(channel: Path) -> None:
    opened(channel).close()
    fs = WatchedFileSystem()
    opened(channel, fs).close()
    assert ("sync_directory", str(channel)) in fs.events


@pytest.mark.parametrize("kind", ["open", "create", "read", "write", "size", "truncate", "sync", "listdir"])
def test_opening_fails_whole_and_works_later(channel: Path, kind: str) -> None:
    three_blocks(channel)
    with (channel / "journal").open("ab") as file:
        file.write(b"torn")
    (channel / f"checkpoint{TEMPORARY}").write_bytes(b"half")
    for number in range(1, 20):
        fs = WatchedFileSystem()
        fault = fs.fail(errno.EMFILE, kind, at=number, times=1)
        try:
            opened(channel, fs).close()
        except AiodqError as error:
            assert getattr(error, "errno", None) == errno.EMFILE
        assert fs.open_files == 0
        assert set_aside(channel) == []
        if not fault.hits:
            break
    assert not fault.hits
    assert found(channel)[1] == [ack(6), ack(8), ack(10)]
    assert [path.name for path in sorted(channel.iterdir())] == ["checkpoint", "journal"]


# --- the reserve


def full(channel: Path, journal: ChannelJournal, fs: FullFileSystem) -> list[Op]:
    """Fill the disk, then ack until no ack is taken any more."""
    fs.room = 0
    ops: list[Op] = []
    with pytest.raises(DiskFullError):
        for offset in range(100_000):
            journal.append([ack(offset)])
            journal.sync()
            ops.append(ack(offset))
    assert found(copy(channel, channel.with_name("beside")))[1] == ops
    return ops


def test_a_full_disk_takes_acks_as_long_as_there_is_a_reserve(channel: Path) -> None:
    fs = FullFileSystem()
    journal = ChannelJournal(fs, str(channel), 0)
    ops = full(channel, journal, fs)
    assert len(ops) >= RESERVE // BLOCK - 1
    assert journal.scant
    fs.room = 1 << 20
    journal.append([ack(7, 7)])
    journal.sync()
    assert not journal.scant
    journal.close()
    assert found(channel)[1] == [*ops, ack(7, 7)]


def test_the_reserve_grows_with_what_is_acked_and_stays_ahead(channel: Path) -> None:
    fs = FullFileSystem()
    journal = ChannelJournal(fs, str(channel), 0)
    for number in range(200):
        journal.append([ack(number * 50 + other) for other in range(50)])
        journal.sync()
        assert not journal.scant
    reserve = (channel / "journal").stat().st_size - len(written(channel))
    assert 2 * RESERVE <= reserve <= 4 * RESERVE
    assert len(found(channel)[1]) == 10_000
    journal.close()


def test_a_full_disk_takes_a_fold_in_the_reserve_s_place(channel: Path) -> None:
    fs = FullFileSystem()
    journal = ChannelJournal(fs, str(channel), 0)
    fs.room = 0
    for generation in range(5):
        for offset in range(RESERVE // BLOCK // 2 + 1):
            journal.append([ack(offset)])
            journal.sync()
        image = ChannelImage(10 + generation, [(20, 25)])
        journal.fold(image)
        assert found(copy(channel, channel.with_name("beside"))) == (image, [])
    journal.append([ack(99)])
    journal.close()
    assert found(channel) == (image, [ack(99)])


def test_a_fold_that_finds_no_room_leaves_everything_as_it_was(channel: Path) -> None:
    fs = FullFileSystem()
    journal = ChannelJournal(fs, str(channel), 0)
    fs.room = 0
    journal.append([ack(1)])
    journal.sync()
    large = ChannelImage(0, [(3 * n, 3 * n + 1) for n in range(1, 3000)])
    for offset in (2, 3):
        with pytest.raises(DiskFullError):
            journal.fold(large)
        assert sorted(os.listdir(channel)) == ["journal"]
        # The room that both wanted is the journal's again, before another file takes it.
        assert not journal.scant
        journal.append([ack(offset)])
    journal.close()
    assert found(channel)[1] == [ack(1), ack(2), ack(3)]


def test_what_is_appended_while_the_reserve_gives_way_is_not_cut_off(channel: Path) -> None:
    fs = FullFileSystem()
    journal = ChannelJournal(fs, str(channel), 0)
    fs.room = 0
    journal.append([ack(1)])
    taken: list[bool] = []

    def beside(call: Passed) -> None:
        if call.kind == "truncate" and not taken:
            taken.append(False)
            taken[0] = journal.append([ack(2)], wait=False)

    fs.add(beside)
    with pytest.raises(DiskFullError):
        journal.fold(ChannelImage(0, [(3 * n, 3 * n + 1) for n in range(1, 3000)]))
    if not taken.pop():
        journal.append([ack(2)])
    journal.close()
    assert found(channel)[1] == [ack(1), ack(2)]


def test_a_reserve_that_cannot_be_written_is_no_error(channel: Path) -> None:
    fs = WatchedFileSystem()
    fs.fail(errno.ENOSPC, "write", at=2, times=1)
    journal = opened(channel, fs)
    assert journal.scant
    fault = fs.fail(errno.EIO, "write", at=2, times=1)
    journal.append([ack(1)])
    journal.sync()
    assert fault.hits
    journal.sync()
    assert not journal.scant
    journal.close()
    assert found(channel)[1] == [ack(1)]


def test_a_journal_without_a_reserve_gets_one(channel: Path) -> None:
    three_blocks(channel)
    os.truncate(channel / "journal", BLOCKS_OF_THREE)
    journal = opened(channel)
    assert (journal.ops, journal.unclean, journal.scant) == ([ack(6), ack(8), ack(10)], False, False)
    journal.close()
    assert (channel / "journal").stat().st_size >= RESERVE


def test_a_block_torn_in_the_reserve_is_no_damage(channel: Path, tmp_path: Path) -> None:
    three_blocks(channel)
    whole = (channel / "journal").read_bytes()
    at = BLOCKS_OF_THREE - BLOCK
    for size in range(BLOCK):
        work = copy(channel, tmp_path / "work")
        (work / "journal").write_bytes(whole[: at + size] + bytes(len(whole) - at - size))
        journal = opened(work)
        complete = not any(whole[at + size : at + BLOCK])
        assert journal.ops == [ack(6), ack(8), ack(10)][: 3 if complete else 2]
        assert (journal.damages, journal.unclean) == ([], size > 0 and not complete)
        journal.append([ack(11)])
        journal.close()
        assert found(work)[1] == [*journal.ops, ack(11)]


def test_a_block_behind_one_that_never_arrived_counts_and_nothing_is_damaged(channel: Path) -> None:
    three_blocks(channel)
    at = JOURNAL_HEADER.size + BLOCK
    with (channel / "journal").open("r+b") as file:
        file.seek(at)
        file.write(bytes(BLOCK))
    for _ in range(2):  # also where an owner ends before it has written a checkpoint
        journal = opened(channel)
        assert (journal.ops, journal.damages, journal.unclean) == ([ack(6), ack(10)], [], True)
        journal.close()
    journal = opened(channel)
    journal.fold(replayed(journal.image, journal.ops))
    journal.close()
    assert found(channel) == (ChannelImage(5, [(6, 7), (10, 11)]), [])
    assert set_aside(channel) == []


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("kind", [OpKind.REQUEUE, OpKind.DEFER])
@pytest.mark.parametrize("count", range(1, 4))
def test_a_block_of_which_a_sector_never_arrived_is_no_damage(
    channel: Path, count: int, kind: OpKind, lost: str
) -> None:
    sector = 512
    ops = [Op(kind, 500 + n, 1, 77) for n in range(count)]
    for fill in range(1, 4):  # so that the boundary cuts it at different places
        journal = opened(channel)
        journal.append([ack(n) for n in range(fill)])
        end = JOURNAL_HEADER.size + 8 + 24 * fill
        while end + BLOCK <= sector:
            journal.append([ack(end)])
            end += BLOCK
        before = found(channel)[1]
        journal.append(ops)
        journal.append([ack(1000)])
        journal.close()
        data = bytearray((channel / "journal").read_bytes())
        stop = end + 8 + 24 * count
        if lost == "before":
            data[end:sector] = bytes(sector - end)
        else:
            data[sector:stop] = bytes(stop - sector)
        (channel / "journal").write_bytes(data)
        journal = opened(channel)
        assert (journal.damages, journal.unclean) == ([], True)
        assert journal.ops == [*before, ack(1000)]
        journal.close()
        (channel / "journal").unlink()


def test_a_block_of_the_journal_before_in_the_place_of_a_sector_is_no_damage(channel: Path) -> None:
    sector = 512
    journal = opened(channel)
    for n in range(40):
        journal.append([ack(2 * n)])
    former = (channel / "journal").read_bytes()
    journal.fold(replayed(journal.image, [ack(2 * n) for n in range(40)]))
    for n in range(50, 90):  # while what the fold wrote is not synced
        journal.append([ack(2 * n)])
    journal.close()
    data = (channel / "journal").read_bytes()
    (channel / "journal").write_bytes(data[:sector] + former[sector : 2 * sector] + data[2 * sector :])
    journal = opened(channel)
    journal.close()
    assert (journal.damages, journal.unclean) == ([], True)
    assert 20 < len(journal.ops) < 40
    assert set(journal.ops) < {ack(2 * n) for n in range(50, 90)}


def test_a_journal_whose_reserve_arrived_and_whose_header_did_not_is_new(channel: Path) -> None:
    channel.mkdir()
    (channel / "journal").write_bytes(bytes(RESERVE))
    journal = opened(channel)
    assert (journal.ops, journal.damages, journal.unclean) == ([], [], False)
    journal.append([ack(1)])
    journal.close()
    assert found(channel)[1] == [ack(1)]


# --- damage


@pytest.mark.parametrize("block", [0, 1])
def test_damage_in_the_middle_costs_one_block(channel: Path, block: int) -> None:
    three_blocks(channel)
    at = JOURNAL_HEADER.size + block * BLOCK
    for byte in range(at, at + BLOCK, 5):
        flip(channel / "journal", byte, 2)
        bad = (channel / "journal").read_bytes()[at : at + BLOCK]
        for _ in range(2):
            journal = opened(channel)
            assert journal.ops == [op for number, op in enumerate([ack(6), ack(8), ack(10)]) if number != block]
            assert [(damage.position, damage.end) for damage in journal.damages] == [(at, at + BLOCK)]
            assert journal.unclean
            journal.close()
        assert bad in [path.read_bytes() for path in set_aside(channel)]
        flip(channel / "journal", byte, 2)
    journal = opened(channel)
    assert (journal.ops, journal.unclean) == ([ack(6), ack(8), ack(10)], False)
    journal.close()


def test_a_damaged_header_does_not_cost_the_blocks(channel: Path) -> None:
    three_blocks(channel)
    before = (channel / "journal").read_bytes()
    for byte in range(JOURNAL_HEADER.size):
        if byte in range(8, 12):
            continue  # the version: only with its checksum
        (channel / "journal").write_bytes(before)
        flip(channel / "journal", byte, 0)
        journal = opened(channel)
        assert journal.ops == [ack(6), ack(8), ack(10)]
        assert journal.unclean
        journal.append([ack(12)])
        journal.close()
        assert (channel / "journal").read_bytes()[: JOURNAL_HEADER.size] == before[: JOURNAL_HEADER.size]
        assert found(channel)[1] == [ack(6), ack(8), ack(10), ack(12)]


def test_without_its_checkpoint_a_journal_still_counts(channel: Path, tmp_path: Path) -> None:
    three_blocks(channel)
    whole = (channel / "checkpoint").read_bytes()
    for content in (None, b"", whole[:-1], whole[:20], bytes(len(whole)), b"junk"):
        work = copy(channel, tmp_path / "work")
        if content is None:
            (work / "checkpoint").unlink()
        else:
            (work / "checkpoint").write_bytes(content)
        for _ in range(2):
            journal = opened(work, start=1)
            assert (journal.image, journal.ops) == (ChannelImage(1), [ack(6), ack(8), ack(10)])
            assert [Path(damage.path).name for damage in journal.damages] == ["checkpoint"]
            assert journal.unclean
            journal.close()
        journal = opened(work, start=1)
        journal.fold(replayed(journal.image, journal.ops))
        journal.close()
        journal = opened(work, start=1)
        assert (journal.image.floor, journal.image.ranges, journal.unclean) == (1, [(6, 7), (8, 9), (10, 11)], False)
        journal.close()
        assert [path.read_bytes() for path in set_aside(work)] == ([content] if content else [])


def test_an_older_checkpoint_does_not_undo_the_journal(channel: Path) -> None:
    three_blocks(channel)
    older = (channel / "checkpoint").read_bytes()
    journal = opened(channel)
    journal.fold(ChannelImage(12))
    journal.append([ack(15)])
    journal.close()
    (channel / "checkpoint").write_bytes(older)
    journal = opened(channel)
    assert (journal.image, journal.ops) == (ChannelImage(5), [ack(15)])
    assert journal.damages
    journal.close()


def test_an_older_journal_is_what_a_crash_leaves_and_counts_for_nothing(channel: Path) -> None:
    three_blocks(channel)
    older = (channel / "journal").read_bytes()
    journal = opened(channel)
    journal.fold(ChannelImage(12))
    journal.close()
    (channel / "journal").write_bytes(older)
    journal = opened(channel)
    assert (journal.image, journal.ops, journal.unclean) == (ChannelImage(12), [], False)
    journal.append([ack(13)])
    journal.close()
    assert found(channel) == (ChannelImage(12), [ack(13)])


def test_a_missing_journal_is_reported(channel: Path) -> None:
    three_blocks(channel)
    (channel / "journal").unlink()
    journal = opened(channel)
    assert (journal.image, journal.ops, journal.unclean) == (ChannelImage(5), [], True)
    assert [Path(damage.path).name for damage in journal.damages] == ["journal"]
    journal.close()


@pytest.mark.parametrize("names", [["checkpoint"], ["journal"], ["checkpoint", "journal"]])
@pytest.mark.parametrize("other", ["a/channels/d", "b/channels/c"])
def test_another_channel_s_files_settle_nothing_here(tmp_path: Path, other: str, names: list[str]) -> None:
    for topic in "ab":
        open_log(tmp_path / topic).close()
        (tmp_path / topic / "channels").mkdir()
    mine, theirs = tmp_path / "a/channels/c", tmp_path / other
    for directory, offset in ((mine, 3), (theirs, 50)):
        journal = opened(directory)
        journal.fold(ChannelImage(offset))
        journal.append([ack(offset + 1)])
        journal.close()
    kept = [(theirs / name).read_bytes() for name in names]
    for name in names:
        (mine / name).write_bytes((theirs / name).read_bytes())
    image, ops = found(mine)
    assert image == ChannelImage(0 if "checkpoint" in names else 3)
    assert ops == ([] if "journal" in names else [ack(4)])
    assert sorted(path.read_bytes() for path in set_aside(mine)) == sorted(kept)


def test_without_its_topic_s_description_a_channel_s_files_are_taken_at_their_word(tmp_path: Path) -> None:
    open_log(tmp_path / "a").close()
    (tmp_path / "a/channels").mkdir()
    journal = opened(tmp_path / "a/channels/c")
    journal.fold(ChannelImage(3))
    journal.append([ack(4)])
    journal.close()
    (tmp_path / "a/topic.json").unlink()
    assert found(tmp_path / "a/channels/c") == (ChannelImage(3), [ack(4)])
    assert not set_aside(tmp_path)


def test_a_journal_of_random_bytes_settles_nothing(channel: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        channel.mkdir(exist_ok=True)
        (channel / "journal").write_bytes(rng.randbytes(rng.randrange(1, 3000)))
        assert found(channel) == (ChannelImage(0), [])


@pytest.mark.parametrize(
    ("left", "reasons"),
    [
        (b"", []),  # as a fold that was cut short leaves it
        (bytes(JOURNAL_HEADER.size), []),
        (bytes(RESERVE), ["the journal's header is not what was written"]),
    ],
)
def test_beside_a_checkpoint_a_journal_may_be_emptied_but_not_become_zeros(
    channel: Path, left: bytes, reasons: list[str]
) -> None:
    journal = opened(channel)
    journal.fold(ChannelImage(3))
    journal.close()
    (channel / "journal").write_bytes(left)
    read = read_channel(WatchedFileSystem(), str(channel), 0, described=True)
    assert [damage.reason for damage in read.damages] == reasons
    assert (read.image, read.ops, read.end) == (ChannelImage(3), [], 0)
    journal = opened(channel)
    journal.close()
    assert journal.damages == read.damages
    assert read_channel(WatchedFileSystem(), str(channel), 0, described=True).damages == []


@pytest.mark.parametrize(("described", "reasons"), [(False, []), (True, ["the journal is empty"])])
def test_a_journal_whose_first_header_was_written_in_part_holds_nothing_yet(
    channel: Path, described: bool, reasons: list[str]
) -> None:
    opened(channel).close()
    whole = (channel / "journal").read_bytes()[: JOURNAL_HEADER.size]
    for length in range(1, JOURNAL_HEADER.size):
        (channel / "journal").write_bytes(whole[:length])
        read = read_channel(WatchedFileSystem(), str(channel), 0, described=described)
        assert [damage.reason for damage in read.damages] == reasons
    (channel / "journal").write_bytes(whole)
    assert read_channel(WatchedFileSystem(), str(channel), 0, described=described).damages == []
    (channel / "journal").write_bytes(whole[:5] + b"x")
    read = read_channel(WatchedFileSystem(), str(channel), 0, described=described)
    assert [damage.reason for damage in read.damages] == ["the journal's header is cut short"]


@pytest.mark.parametrize("name", ["journal", "checkpoint"])
def test_a_sparse_file_costs_what_is_written_in_it(channel: Path, name: str) -> None:
    journal = opened(channel)
    journal.fold(ChannelImage(3))
    journal.append([ack(5)])
    journal.close()
    os.truncate(channel / name, 1 << 26)
    tracemalloc.start()
    try:
        read = read_channel(WatchedFileSystem(), str(channel), 0)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert read.sizes[name] == 1 << 26
    assert read.ops == [ack(5)]
    assert read.image == ChannelImage(3 if name == "journal" else 0)
    assert [os.path.basename(damage.path) for damage in read.damages] == ["checkpoint"] * (name == "checkpoint")
    assert not read.torn
    with (channel / "journal").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert read_channel(WatchedFileSystem(), str(channel), 0).torn


def test_a_hostile_journal_of_blocks_that_overlap_is_searched_once(
    channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each eight bytes say that a block as long as half of the file begins there."""
    journal = opened(channel)
    journal.append([ack(5)])
    journal.close()
    path = channel / "journal"
    size = 1 << 18
    path.write_bytes(path.read_bytes()[: JOURNAL_HEADER.size + BLOCK] + (24 * 5000).to_bytes(8, "little") * (size // 8))
    checked = list[int]()

    def watched(data: bytes, *args: Any) -> tuple[list[Op], int]:
        checked.append(len(data))
        return decode_blocks(data, *args)

    monkeypatch.setattr(channel_files, "decode_blocks", watched)
    monkeypatch.setattr(channel_files, "_CHECKED", 8 * size)
    read = read_channel(WatchedFileSystem(), str(channel), 0)
    assert read.ops == [ack(5)]
    assert [damage.reason for damage in read.damages] == ["too much in the journal looks like operations and is not"]
    assert len(checked) > 1
    assert sum(checked) < 16 * size


# --- what it comes to


@given(
    floor=st.integers(0, 20),
    ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))),
    ops=st.lists(st.tuples(st.sampled_from(list(OpKind)), st.integers(0, 40), st.integers(1, 9))),
)
def test_applied_is_the_set_it_stands_for(
    floor: int, ranges: list[tuple[int, int]], ops: list[tuple[OpKind, int, int]]
) -> None:
    image = ChannelImage(floor, [(start, start + count) for start, count in ranges], {3: 1, 30: 2}, {30: 7})
    settled = set(range(floor)) | {n for start, count in ranges for n in range(start, start + count)}
    attempts, deferred = dict(image.attempts), dict(image.deferred)
    for kind, offset, count in ops:
        if kind is OpKind.ACK:
            settled |= set(range(offset, offset + count))
        elif kind is OpKind.FLOOR:
            settled |= set(range(offset))
        elif kind is OpKind.SEEK:
            settled = set(range(offset))
            attempts, deferred = {}, {}
        elif kind is OpKind.DEFER:
            attempts.setdefault(offset, 0)
            deferred[offset] = count
        else:
            for delivered in range(offset, offset + count):
                attempts[delivered] = count
                deferred.pop(delivered, None)
    result = replayed(image, [Op(kind, offset, count, count) for kind, offset, count in ops])
    covered = set(range(result.floor)) | {n for start, stop in result.ranges for n in range(start, stop)}
    assert covered == settled
    assert result.floor not in settled
    assert all(a < b for a, b in result.ranges)
    assert all(one[1] < two[0] for one, two in pairwise(result.ranges))
    assert result.attempts == {offset: count for offset, count in attempts.items() if offset not in settled}
    assert result.deferred == {offset: due for offset, due in deferred.items() if offset not in settled}
    for start, stop in ((0, 60), (10, 30), (30, 10), (5, 6)):
        assert unsettled(result, start, stop) == len(set(range(start, stop)) - settled)


def test_a_checkpoint_of_version_1_is_read() -> None:
    """It has no due times, and nobody knows when it was noted."""
    saved = Path(__file__).parents[2] / "fuzz/corpus/checkpoint/version-1-1"
    image, generation = decode_checkpoint(saved.read_bytes()[1:])  # the first byte is for the fuzzer
    assert image == ChannelImage(5, [(7, 9), (12, 13)], {5: 2, 10: 1})
    assert generation == 0xABCD_0000_0001


@given(
    image=st.builds(
        ChannelImage,
        st.sampled_from([0, 5, 2**63 - 1]),
        st.sampled_from([[], [(7, 9), (2**62, 2**63 - 1)]]),
        st.dictionaries(EDGES, st.sampled_from([0, 1, 2**32 - 1]), max_size=2),
        st.dictionaries(EDGES, TIMES, max_size=2),
        TIMES,
    ),
    ops=st.lists(
        st.builds(
            Op, st.sampled_from(list(OpKind)), EDGES, st.sampled_from([0, 1, 9, 2**32 - 2, 2**32 - 1]), TIMES,
            in_hand=st.booleans(),
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_whatever_files_of_right_checksums_say_fits_into_a_checkpoint(image: ChannelImage, ops: list[Op]) -> None:
    image, generation = decode_checkpoint(bytes(encode_checkpoint(image, 7)))
    ops, _ = decode_blocks(encode_journal_header(generation) + encode_block(ops, generation), generation)
    result = replayed(image, ops, 10)
    assert decode_checkpoint(bytes(encode_checkpoint(result, 7))) == (result, 7)


def test_what_is_unsettled_between_very_many_ranges_is_found_at_once() -> None:
    class Range(tuple[int, int]):
        """A range that counts how often any is taken apart."""

        __slots__ = ()
        seen = 0

        def __iter__(self) -> Iterator[int]:
            Range.seen += 1
            return super().__iter__()

    image = ChannelImage(3, [Range((n, n + 2)) for n in range(5, 4005, 4)])
    assert unsettled(image, 0, 5000) == 4997 - 2000
    Range.seen = 0
    assert [unsettled(image, n, n + 1) for n in (4, 5, 6, 7, 1006, 2007, 4003, 4004)] == [1, 0, 0, 1, 0, 1, 1, 1]
    assert Range.seen < 20


@pytest.mark.parametrize(
    ("op", "reach"),
    [
        (Op(OpKind.ACK, 3, 4), 7),
        (Op(OpKind.REQUEUE, 5, value=2), 6),
        (Op(OpKind.DEFER, 8, value=9), 9),
        (Op(OpKind.FLOOR, 2), 2),
        (Op(OpKind.SEEK, 4), 4),
    ],
)
def test_a_journal_reaches_behind_the_last_message_that_it_names(channel: Path, op: Op, reach: int) -> None:
    journal = opened(channel)
    journal.append([op])
    journal.close()
    journal = opened(channel)
    assert journal.reach == reach
    journal.close()


def test_a_large_checkpoint_is_encoded_in_pieces_that_let_others_run(
    channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that makes one lets go of the interpreter between two pieces, for long enough for another to wake up."""
    rows = 0
    longest: list[int] = []

    class Counting(dict[int, int]):
        def items(self) -> Any:
            nonlocal rows
            for item in super().items():
                rows += 1
                yield item

    def sleep(seconds: float) -> None:
        nonlocal rows
        assert seconds >= 0.0001
        longest.append(rows)
        rows = 0

    image = ChannelImage(0, [(1, 2)], Counting.fromkeys(range(50_000), 3), Counting.fromkeys(range(20_001), 4))
    journal = opened(channel)
    monkeypatch.setattr("aiodq.storage.state.channel_journal.time", SimpleNamespace(sleep=sleep))
    journal.fold(image)
    assert journal.noted == 70_002
    journal.close()
    assert found(channel) == (image, [])
    assert len(longest) >= 35
    assert max(*longest, rows) <= 2000


def test_a_checkpoint_cut_short_is_damage_though_its_checksum_is_right() -> None:
    whole = bytes(encode_checkpoint(ChannelImage(5), 1)[:-4])
    for size in range(len(whole)):
        body = whole[:size]
        with pytest.raises(CorruptionError):
            decode_checkpoint(body + zlib.crc32(body).to_bytes(4, "little"))


def test_a_checkpoint_with_any_bit_turned_round_is_damage(channel: Path) -> None:
    journal = opened(channel)
    journal.fold(ChannelImage(5, [(7, 9)], {5: 2}, {10: 3}))
    journal.close()
    whole = (channel / "checkpoint").read_bytes()
    for position in range(len(whole)):
        wrong = bytearray(whole)
        wrong[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError):
            decode_checkpoint(bytes(wrong))


@pytest.mark.parametrize("torn", [False, True])
def test_acks_that_an_owner_left_unsynced_are_written_and_synced_again(channel: Path, *, torn: bool) -> None:
    three_blocks(channel)
    if torn:
        with (channel / "journal").open("ab") as file:
            file.write(b"\xff" * 500)
    fs = WatchedFileSystem()
    opened(channel, fs).close()
    kinds = [kind for kind, path in fs.events if path == str(channel / "journal") and kind in {"write", "sync"}]
    assert kinds[:2] == ["write", "sync"]


def test_the_number_of_a_seek_is_found_by_the_next_owner_whatever_was_folded(tmp_path: Path) -> None:
    ops = [Op(OpKind.SEEK, 3, value=7), ack(4), Op(OpKind.REQUEUE, 5, 1, 2), Op(OpKind.DEFER, 5, value=9)]
    journal = opened(tmp_path)
    journal.sought(7)
    journal.append(ops)
    journal.close()
    found_after = opened(tmp_path)
    assert found_after.seeks == {7}
    assert found_after.ops == ops
    found_after.close()
    journal = opened(tmp_path)
    journal.sought(8)
    journal.append([Op(OpKind.SEEK, 5, value=8)])
    journal.fold(ChannelImage(5))
    journal.append([ack(6)])
    journal.close()
    journal = opened(tmp_path)
    assert journal.seeks == {7, 8}
    assert replayed(journal.image, journal.ops) == ChannelImage(5, [(6, 7)])
    assert journal.pending == 1, "the numbers alone need no checkpoint"
    journal.close()


def test_the_numbers_of_seeks_go_on_through_the_checkpoints_of_later_owners(tmp_path: Path) -> None:
    for number in range(1, 101):
        journal = opened(tmp_path)
        assert journal.seeks == set(range(max(number - 64, 1), number))
        journal.sought(number)
        journal.append([Op(OpKind.SEEK, number, value=number)])
        journal.fold(ChannelImage(number))
        journal.close()
    for _ in range(2):
        journal = opened(tmp_path)
        assert (journal.seeks, journal.pending) == (frozenset(range(37, 101)), 0)
        journal.append([ack(200)])
        journal.fold(ChannelImage(100, [(200, 201)]))
        journal.close()


@pytest.mark.parametrize("taken", [0, 10, 24, 60, 100])
def test_a_journal_that_cannot_begin_at_once_keeps_the_numbers_of_seeks(channel: Path, taken: int) -> None:
    """And what was appended since the image."""
    fs = WatchedFileSystem()
    journal = opened(channel, fs)
    journal.sought(7)
    journal.append([Op(OpKind.SEEK, 3, value=7)])
    journal.imaged()
    journal.sought(8)
    journal.append([Op(OpKind.SEEK, 5, value=8)])
    fs.fail(errno.ENOSPC, "write", match="channel/journal", short=taken, times=1)
    with pytest.raises(DiskFullError):
        journal.fold(ChannelImage(3))
    assert journal.pending == 0
    journal.append([ack(6)])
    counted = journal.pending
    journal.close()
    journal = opened(channel)
    assert journal.seeks == {7, 8}
    assert journal.pending == counted == 2
    assert replayed(journal.image, journal.ops) == ChannelImage(5, [(6, 7)])
    journal.close()


def test_no_number_of_a_seek_is_written_before_the_seek(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.imaged()
    journal.sought(7)
    journal.fold(ChannelImage(2))
    journal.close()
    journal = opened(tmp_path)
    assert journal.seeks == frozenset()
    journal.imaged()
    journal.sought(8)
    journal.append([Op(OpKind.SEEK, 9, value=8)])
    journal.fold(ChannelImage(2))
    journal.close()
    journal = opened(tmp_path)
    assert journal.seeks == {8}
    assert replayed(journal.image, journal.ops) == ChannelImage(9)
    journal.close()


HEADER = "41494f44514a4e310100000001000000050000009d926455"


@pytest.mark.parametrize(
    ("blocks", "seeks"),
    [
        # By a version that numbers no seeks: a seek to 3, and an ack of two from 4 on.
        (
            (
                "18000000cbdb6886050000000100000003000000000000000000000000000000"
                "180000002bf03ebd010000000200000004000000000000000000000000000000"
            ),
            set(),
        ),
        # The same with the number 7, and with that of a seek that a checkpoint holds.
        (
            (
                "18000000d2d2ad8c050000000100000003000000000000000700000000000000"
                "30000000b169d58e02000000010000000000000000000000ffffffffffffff3f"
                "010000000200000004000000000000000000000000000000"
            ),
            {7, (1 << 62) - 1},
        ),
    ],
)
def test_journals_with_and_without_numbers_of_seeks_are_read(tmp_path: Path, blocks: str, seeks: set[int]) -> None:
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(ChannelImage(9), 5 << 32 | 1))
    (tmp_path / "journal").write_bytes(bytes.fromhex(HEADER + blocks))
    journal = opened(tmp_path)
    journal.close()
    assert journal.seeks == seeks
    assert journal.damages == []
    assert replayed(journal.image, journal.ops) == ChannelImage(3, [(4, 6)])
