"""Damage: every bit of a record, every file, lengths that lie. Nothing wrong is delivered, nothing goes unsaid."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import tempfile
import tracemalloc
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import aiodq
from aiodq.errors import AiodqError, FormatVersionError, StorageError
from aiodq.format.codecs import CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.journal import ChannelImage, Op, OpKind, replayed
from aiodq.format.layout import BATCH_HEADER, FRAME_PREFIX, KIND_BATCH, KIND_COMPACT, SEGMENT_HEADER
from aiodq.storage.io.quarantine import Damage, quarantine, quarantined
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import (
    alike,
    contents,
    copy,
    flip,
    messages,
    open_log,
    overwrite,
    put,
    put_each,
    segments,
    set_aside,
    tree,
)
from tests.storage.stores import a_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.storage.log.topic_log import TopicLog


# --- every bit of a record (G8)


class Place(NamedTuple):
    """A frame: of which segment, from which byte to which, holding which offsets."""

    segment: int
    start: int
    end: int
    offsets: range


def four_segments(directory: Path, codec: int = 0) -> tuple[dict[int, bytes], list[Place]]:
    """Write records of all forms into four segments, the last one unsealed; return messages and frames."""
    log = open_log(directory, segment_bytes=1 << 20, codec=codec)
    places: list[Place] = []
    for segment in range(4):
        for number in range(3):
            mark = bytes([65 + segment * 5 + number])
            for columns in (
                Columns([mark * 60]),
                Columns(
                    [mark * 40, b"", mark * 9],
                    tags=["x", None, "y"],
                    keys=[None, mark, b""],
                    headers=[{"a": "b"}, {}, {}],
                ),
            ):
                start = log.segments[-1].data_end
                offsets = log.stage(columns, 7, atomic=False)
                assert offsets is not None
                log.flush()
                log.commit()
                log.sync()
                places.append(Place(segment, start, log.segments[-1].data_end, range(*offsets)))
        if segment < 3:
            log.roll()
    found = messages(log)
    log.close()
    return found, places


def covered(damages: Iterable[Damage]) -> set[int]:
    return {offset for damage in damages for offset in range(damage.first, damage.stop)}


def check_flip(work: Path, expected: dict[int, bytes], lost: range, evidence: bytes) -> None:
    """Whoever reads gets all but the lost messages, knows of them, and finds the bytes as they were."""
    reader = TopicReader(WatchedFileSystem(), str(work), "t")
    assert {message.offset: message.body for message in reader.scan()} == expected
    assert set(lost) <= covered(reader.damages)
    for _ in range(2):
        log = open_log(work)
        found, damages = contents(log)
        assert found == expected
        assert covered(damages) == set(lost)
        assert log.end == max(lost.stop, *expected, 0) + (lost.stop <= max(expected))
        log.abandon()
    kept = [path.read_bytes() for path in (*set_aside(work), *segments(work))]
    assert any(evidence in data for data in kept)


PLACES = [
    pytest.param(segment, frame, footer, id=f"segment {segment} frame {frame} {'sealed' if footer else 'unsealed'}")
    for segment in (0, 1, 3)
    for frame in (0, 2, 3, 5)
    for footer in ((True, False) if segment < 3 else (False,))
]


def flip_bits(
    tmp_path: Path, segment: int, frame: int, *, footer: bool, codec: int = 0, sample: int | None, seed: int
) -> int:
    """Flip each bit of a frame in turn; return how many that were."""
    whole = tmp_path / "whole"
    messages_, places = four_segments(whole, codec)
    place = [place for place in places if place.segment == segment][frame]
    path = segments(whole)[segment]
    if not footer and segment < 3:
        log = open_log(whole)
        os.truncate(path, log.segments[segment].data_end)
        log.abandon()
    expected = {offset: body for offset, body in messages_.items() if offset not in place.offsets}
    bits = [(byte, bit) for byte in range(place.start, place.end) for bit in range(8)]
    if sample is not None:
        bits = random.Random(seed).sample(bits, sample)
    for byte, bit in bits:
        work = copy(whole, tmp_path / "work")
        flip(segments(work)[segment], byte, bit)
        evidence = segments(work)[segment].read_bytes()[place.start : place.end]
        check_flip(work, expected, place.offsets, evidence)
    return len(bits)


@pytest.mark.parametrize(("segment", "frame", "footer"), PLACES)
def test_a_flipped_bit_costs_its_own_record_and_is_reported(
    tmp_path: Path, segment: int, frame: int, seed: int, *, footer: bool
) -> None:
    flip_bits(tmp_path, segment, frame, footer=footer, sample=6, seed=seed)


def test_a_flipped_bit_in_a_compressed_batch_costs_that_batch(tmp_path: Path, seed: int) -> None:
    flip_bits(tmp_path, 1, 3, footer=True, codec=CODEC_ZSTD, sample=20, seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("segment", "frame", "footer"), PLACES)
def test_every_flipped_bit_costs_its_own_record_and_is_reported(
    tmp_path: Path, segment: int, frame: int, seed: int, *, footer: bool
) -> None:
    assert flip_bits(tmp_path, segment, frame, footer=footer, sample=None, seed=seed) > 700


@pytest.mark.parametrize("segment", [0, 2, 3])
def test_a_flipped_bit_in_a_header_or_footer_costs_nothing(tmp_path: Path, segment: int, seed: int) -> None:
    expected, places = four_segments(tmp_path / "whole")
    size = segments(tmp_path / "whole")[segment].stat().st_size
    behind = max(place.end for place in places if place.segment == segment)
    bits = [(byte, bit) for byte in (*range(SEGMENT_HEADER.size), *range(behind, size)) for bit in range(8)]
    for byte, bit in random.Random(seed).sample(bits, 20):
        work = copy(tmp_path / "whole", tmp_path / "work")
        flip(segments(work)[segment], byte, bit)
        for _ in range(2):
            log = open_log(work)
            assert messages(log) == expected
            log.abandon()


# --- every file of a topic (G9, PEER-ISSUES 7)


def a_topic(directory: Path, mark: bytes) -> dict[int, bytes]:
    """Write four segments and a channel with checkpoint and journal."""
    files, found = _topic(mark)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return found


@cache
def _topic(mark: bytes) -> tuple[dict[str, bytes], dict[int, bytes]]:
    """Return the files of that topic, which is made once only, and its messages."""
    with tempfile.TemporaryDirectory() as made:
        found = _make_topic(Path(made) / "topic", mark)
        return tree(Path(made) / "topic"), found


def _make_topic(directory: Path, mark: bytes) -> dict[int, bytes]:
    log = open_log(directory, segment_bytes=428)
    put_each(log, [mark + bytes([n]) * 50 for n in range(10)])
    log.description.add_channels({"c": (0, None)})
    (directory / "channels").mkdir()
    journal = ChannelJournal(WatchedFileSystem(), str(directory / "channels" / "c"), 0)
    journal.fold(ChannelImage(1, [(4, 5)]))
    journal.append([Op(OpKind.ACK, 6)])
    journal.append([Op(OpKind.ACK, 8)])
    journal.close()
    found = messages(log)
    log.close()
    return found


SETTLED = {0, 4, 6, 8}
FILES = ["topic.json", "watermark", "channels/c/checkpoint", "channels/c/journal", *(f"segment {n}" for n in range(5))]


def delete(path: Path, _: Path) -> None:
    path.unlink()


def truncate_to_half(path: Path, _: Path) -> None:
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) // 2)  # a journal ends in zeros


def truncate_to_nothing(path: Path, _: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path, _: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def scramble(path: Path, _: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def swap_with_another_topic_s(path: Path, other: Path) -> None:
    shutil.copy(other, path)


def overwrite_with_a_neighbour(path: Path, _: Path) -> None:
    neighbours = sorted(entry for entry in path.parent.iterdir() if entry.is_file() and entry != path)
    shutil.copy(neighbours[0], path)


def duplicate(path: Path, _: Path) -> None:
    number = f"{7777:020d}.seg" if path.suffix == ".seg" else f"{path.name} (copy)"
    shutil.copy(path, path.with_name(number))


FAULTS = [
    delete,
    truncate_to_half,
    truncate_to_nothing,
    zero,
    scramble,
    swap_with_another_topic_s,
    overwrite_with_a_neighbour,
    duplicate,
]


def file_of(directory: Path, name: str) -> Path:
    return segments(directory)[int(name[-1])] if name.startswith("segment") else directory / name


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_it_was(tmp_path: Path, name: str, fault: Callable[[Path, Path], None]) -> None:
    expected = a_topic(tmp_path / "a", b"a")
    a_topic(tmp_path / "b", b"b")
    bases = [int(path.stem) for path in segments(tmp_path / "a")] + [10]
    hit = range(bases[int(name[-1])], bases[int(name[-1]) + 1]) if name.startswith("segment") else range(0)
    if fault is duplicate:
        hit = range(0)
    fault(file_of(tmp_path / "a", name), file_of(tmp_path / "b", name))
    for again in (False, True):
        log = open_log(tmp_path / "a", segment_bytes=428)
        found, damages = contents(log)
        assert {offset: body for offset, body in expected.items() if offset not in hit}.items() <= found.items()
        assert found.items() <= expected.items()
        missing = set(expected) - set(found)
        assert missing <= covered((*log.damages, *damages))
        if missing:
            assert log.damages or damages
        assert log.end == 10 or missing
        journal = ChannelJournal(WatchedFileSystem(), str(tmp_path / "a" / "channels" / "c"), 0)
        check_channel(journal, name, fault, again=again)
        journal.close()
        log.abandon()
    log = open_log(tmp_path / "a", segment_bytes=428)
    offset = put(log, [b"next"]).start
    assert offset >= 10
    log.close()
    log = open_log(tmp_path / "a", segment_bytes=428)
    assert contents(log)[0] == {**found, offset: b"next"}
    log.close()


def check_channel(journal: ChannelJournal, name: str, fault: object, *, again: bool) -> None:
    """A channel may deliver again, but settles nothing that nobody settled; and it says so."""
    image = replayed(journal.image, journal.ops)
    settled = {*range(image.floor), *(n for start, stop in image.ranges for n in range(start, stop))}
    assert settled <= SETTLED
    assert settled or name.startswith("channels/c")
    if fault is duplicate or not name.startswith("channels/c"):
        assert settled == SETTLED
        assert not journal.unclean
    elif not again:
        assert journal.unclean or fault is truncate_to_nothing
        # Half a journal still has its first block; a half or a foreign checkpoint leaves the whole journal.
        if name == "channels/c/checkpoint":
            assert settled == {6, 8}
        elif fault is truncate_to_half:
            assert settled == {0, 4}
        else:
            assert settled == {0, 4}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_set_aside_holds_the_bytes_that_were_there(tmp_path: Path, fault: Callable[[Path, Path], None]) -> None:
    for name in FILES:
        directory, other = tmp_path / f"a{FILES.index(name)}", tmp_path / f"b{FILES.index(name)}"
        a_topic(directory, b"a")
        a_topic(other, b"b")
        fault(file_of(directory, name), file_of(other, name))
        before = tree(directory)
        log = open_log(directory, segment_bytes=428)
        ChannelJournal(WatchedFileSystem(), str(directory / "channels" / "c"), 0).close()
        log.abandon()
        after = tree(directory)
        bytes_there = b"".join(after.values())
        for file, data in before.items():
            if file == "channels/c/journal" and fault is truncate_to_half:
                continue  # a last block that is not whole is an unfinished write: nothing tells it from damage
            if file == "topic.json" and name != file:
                continue  # it may say what is lost now
            if file != "watermark" and any(data):
                kept = alike(data, after.get(file, b""))
                assert data[kept:] in bytes_there or data in bytes_there, (name, file)


@pytest.mark.parametrize("description", [None, b"{"])
def test_a_wrong_bit_in_each_header_costs_nothing_without_the_description(
    tmp_path: Path, description: bytes | None, seed: int
) -> None:
    directory, rng = tmp_path / "a", random.Random(seed)
    a_topic(directory, b"a")
    log = open_log(directory)
    before = contents(log)[0]
    log.close()
    assert before
    (directory / "topic.json").unlink()
    if description is not None:
        (directory / "topic.json").write_bytes(description)
    for path in segments(directory):
        data = bytearray(path.read_bytes())
        data[rng.randrange(SEGMENT_HEADER.size)] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    log = open_log(directory)
    assert contents(log)[0] == before
    log.close()


def test_a_whole_topic_of_missing_segments_does_not_loop(tmp_path: Path) -> None:
    a_topic(tmp_path / "a", b"a")
    for path in segments(tmp_path / "a"):
        path.unlink()
    log = open_log(tmp_path / "a")
    assert contents(log)[0] == {}
    assert covered(log.damages) >= set(range(10)) - SETTLED
    assert put(log, [b"next"]).start == 10
    log.close()
    assert set_aside(tmp_path / "a") == []


def plant(path: Path, kind: str) -> None:
    """Put a FIFO, a socket or a device in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("devices are made by root")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
@pytest.mark.parametrize(
    "name", ["topic.json", "watermark", f"{0:020d}.seg", "channels/default/journal", "channels/default/checkpoint"]
)
async def test_a_topic_with_a_fifo_for_a_file_is_unusable_and_says_why(tmp_path: Path, name: str, kind: str) -> None:
    async with aiodq.open(tmp_path / "s") as store:
        await store.queue("jobs").put(b"x")
        await store.queue("other").put(b"y")
    path = tmp_path / "s" / "jobs" / name
    plant(path, kind)
    async with aiodq.open(tmp_path / "s") as store:
        assert (await store.queue("other").get()).body == b"y"
        with pytest.raises(StorageError, match="something lies there that aiodq did not make; move it away") as caught:
            await store.topic("jobs").put(b"z")
        assert (caught.value.path, caught.value.errno) == (str(path), errno.EEXIST)
    assert not stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory"])
@pytest.mark.parametrize("name", ["topic.json", "watermark", f"{99:020d}.seg"])
def test_what_is_no_file_is_refused_and_nothing_is_followed(tmp_path: Path, name: str, kind: str) -> None:
    a_topic(tmp_path / "a", b"a")
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = tmp_path / "a" / name
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "planted")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StorageError):
        open_log(tmp_path / "a")
    assert outside.read_bytes() == b"precious"
    assert not (tmp_path / "planted").exists()


# --- newer versions


@pytest.mark.parametrize("name", ["topic.json", "channels/c/checkpoint", "channels/c/journal"])
def test_newer_versions_of_small_files_are_refused_and_left(tmp_path: Path, name: str) -> None:
    a_topic(tmp_path / "a", b"a")
    path = tmp_path / "a" / name
    newer(path)
    before = tree(tmp_path / "a")
    opening = open_log if name == "topic.json" else a_journal
    with pytest.raises(FormatVersionError):
        opening(tmp_path / "a" if name == "topic.json" else path.parent)
    assert tree(tmp_path / "a") == before


def a_journal(directory: Path) -> ChannelJournal:
    return ChannelJournal(WatchedFileSystem(), str(directory), 0)


def newer(path: Path) -> None:
    """Raise a file's version beyond what is known, with its checksum right."""

    data = bytearray(path.read_bytes())
    if path.name == "topic.json":
        topic = json.loads(data)["topic"] | {"version": 9}
        text = json.dumps(topic, sort_keys=True, separators=(",", ":")).encode()
        path.write_text(json.dumps({"topic": topic, "crc32": f"{zlib.crc32(text):08x}"}))
        return
    data[8:12] = (9).to_bytes(4, "little")
    end = 20 if path.name == "journal" else len(data) - 4
    data[end : end + 4] = zlib.crc32(data[:end]).to_bytes(4, "little")
    path.write_bytes(data)


# --- lengths that lie (G10)


LENGTHS = [0, 1, 7, 8, 2**16, 2**20, 2**24, 2**25, 2**26, 2**31, 2**32 - 8, 2**32 - 1]


def opened_within(directory: Path, limit: int = 8 << 20) -> tuple[TopicLog, set[int]]:
    """Open and read a log, with a bound on the memory that takes; return the offsets found."""
    reader = LogReader(WatchedFileSystem())
    found: set[int] = set()
    at = 0
    tracemalloc.start()
    try:
        log = open_log(directory)
        while at < log.end:
            result = reader.read(log.view(), at, 4096)
            found.update(offset for batch in result.batches for offset in range(batch.first, batch.stop))
            at = result.next
        assert tracemalloc.get_traced_memory()[1] <= limit
    finally:
        tracemalloc.stop()
        reader.close()
    return log, found


@pytest.mark.parametrize("kind", [KIND_COMPACT, KIND_BATCH])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("sample", [4, pytest.param(len(LENGTHS), marks=pytest.mark.slow)])
def test_a_length_that_lies_takes_no_memory(tmp_path: Path, kind: int, sample: int, seed: int, *, sealed: bool) -> None:
    log = open_log(tmp_path / "t", segment_bytes=1 << 30)
    put_each(log, [b"a", b"b", b"c"])
    # Room for the lie, with a good record far behind it.
    large = b"L" * 100_000
    for _ in range(20):
        put(log, [large] * 9, sync=False)
    put(log, [b"last"])
    count = log.end
    if sealed:
        log.roll()
    log.close()
    for length in random.Random(f"{seed}:{kind}:{sealed}").sample(LENGTHS, sample):
        path = segments(copy(tmp_path / "t", tmp_path / "work"))[0]
        start = SEGMENT_HEADER.size + 40
        overwrite(path, start, (length & 0xFFFFFFFF).to_bytes(4, "little"))
        overwrite(path, start + 8, bytes([kind]))
        if kind == KIND_BATCH:
            lies = BATCH_HEADER.pack(length & 0xFFFFFFFF, 0, kind, 0, 0, 1, 0, 0, length, length, length)
            overwrite(path, start, lies[: BATCH_HEADER.size])
        log, found = opened_within(tmp_path / "work")
        # The three small records share 120 bytes; a batch header over the second takes nothing but that one.
        assert set(range(count)) - found == {1}, length
        log.close()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_tail_whose_length_lies_is_cut(tmp_path: Path, length: int) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, [b"a", b"b"])
    log.abandon()
    path = segments(tmp_path / "t")[0]
    with path.open("ab") as file:
        file.write(FRAME_PREFIX.pack(length, 0, KIND_COMPACT, 0, 0, 2, 0, 0))
        file.truncate(1 << 25)
    log, found = opened_within(tmp_path / "t")
    assert (found, log.damages) == ({0, 1}, [])
    assert path.stat().st_size == 64 + 80
    log.close()


# --- setting aside


def test_the_copy_is_durable_and_whole_before_it_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    fs = WatchedFileSystem()
    target = quarantine(fs, str(path), 50, 150)
    assert (tmp_path / "file.damaged-000000000050").read_bytes() == bytes(range(50, 150))
    assert [kind for kind, _ in fs.events if kind in {"create", "write", "sync", "rename", "sync_directory"}] == [
        "create",
        "write",
        "sync",
        "rename",
        "sync_directory",
    ]
    assert quarantined(fs, str(tmp_path)) == ["file.damaged-000000000050"]
    assert quarantine(fs, str(path), 50, 150) == target
    assert quarantine(fs, str(path), 50, 120) == target
    assert len(set_aside(tmp_path)) == 1
    assert quarantine(fs, str(path), 50, 160) == f"{target}.1"
    assert (tmp_path / "file.damaged-000000000050").read_bytes() == bytes(range(50, 150))


@pytest.mark.parametrize("kind", ["open", "create", "read", "write", "sync", "rename", "sync_directory"])
def test_setting_aside_fails_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"evidence")
    fs = WatchedFileSystem()
    fs.fail(28, kind, times=1)
    with pytest.raises(AiodqError):
        quarantine(fs, str(path), 0, 8)
    assert path.read_bytes() == b"evidence"
    assert fs.open_files == 0
    quarantine(fs, str(path), 0, 8)
    assert [copied.read_bytes() for copied in set_aside(tmp_path) if not copied.name.endswith("tmp")] == [b"evidence"]


def test_nothing_is_cut_when_it_cannot_be_set_aside(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, [b"a", b"b", b"c"])
    log.close()
    overwrite(segments(tmp_path / "t")[0], 64 + 40 + 30, b"\xff")
    overwrite(segments(tmp_path / "t")[0], 64 + 80 + 30, b"\xff")
    before = segments(tmp_path / "t")[0].read_bytes()
    fs = WatchedFileSystem()
    fs.fail(28, "create", match=".damaged-", times=1)
    with pytest.raises(AiodqError):
        open_log(tmp_path / "t", fs)
    assert segments(tmp_path / "t")[0].read_bytes() == before
    assert fs.open_files == 0


# --- what is counted and said


@pytest.mark.parametrize("name", ["channels/one/checkpoint", "channels/two/journal", "topic.json"])
async def test_damage_to_what_is_kept_beside_the_messages_is_counted_and_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_store(tmp_path / "s")
    path = tmp_path / "s" / "t" / name
    path.write_bytes(b"XXXXXXXXXXXXXXXXXXXX")
    with caplog.at_level("INFO", "aiodq"):
        async with aiodq.open(tmp_path / "s") as store:
            assert store.topic("t").stats().damages == 1
            assert store.stats().topics["u"].damages == 0
    assert [record.getMessage() for record in caplog.records if f"{path} at byte" in record.getMessage()]
    assert any("1 damage" in record.getMessage() for record in caplog.records)
    assert set_aside(path.parent)
    async with aiodq.open(tmp_path / "s") as store:
        assert store.topic("t").stats().damages == 0
