"""What an owner finds after a crash: a prefix, whole puts only, and nothing that was promised is missing unreported."""

from __future__ import annotations

import contextlib
import os
import random
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from aiodq.errors import FormatVersionError
from aiodq.format.columns import Columns
from aiodq.format.decode import index_singles
from aiodq.format.footer import SegmentIndex, encode_footer
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.format.vectorized import frame_arrays as vectorized
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.log.producer_table import Origin
from aiodq.storage.segments import segment_contents as storage_contents
from aiodq.storage.state.watermark import WATERMARK, WatermarkFile
from aiodq.testing import SimulatedFileSystem, WatchedFileSystem, Wrote
from tests.storage.log.conftest import ALL, SMALL, note
from tests.storage.logs import (
    START,
    contents,
    copy,
    flip,
    messages,
    open_log,
    overwrite,
    put,
    put_each,
    read_topic,
    reopened,
    segments,
    set_aside,
    tree,
)


def frame_ends(directory: Path) -> list[int]:
    """Return where each frame of the last segment ends, without opening the log: that would make all of it durable."""
    return frame_ends_below(directory, segments(directory)[-1].stat().st_size)


def frame_ends_below(directory: Path, data_end: int) -> list[int]:
    """Return the same of a segment whose frames end there."""
    ends = []
    data = segments(directory)[-1].read_bytes()
    position = SEGMENT_HEADER.size
    while position < data_end:
        position += int.from_bytes(data[position : position + 4], "little")
        ends.append(position)
    return ends


@pytest.fixture
def unsynced(tmp_path: Path) -> Path:
    """A topic of two segments; of the second nothing but the first record was ever synced."""
    directory = tmp_path / "unsynced"
    log = open_log(directory, segment_bytes=600)
    put_each(log, [b"x" * 50] * 4)
    log.roll()
    put(log, SMALL[:1])
    put_each(log, SMALL[1:], sync=False)
    log.abandon()
    return directory


def last_three(directory: Path) -> tuple[int, list[int]]:
    """Return the number of records before the last three, and where frames end from there on."""
    ends = frame_ends(directory)
    return 4 + len(ends) - 3, ends[-4:]


def whole_frames(data: bytes, work: bytes, ends: list[int]) -> int:
    """Return how many of the frames that end at `ends[1:]` are in `work` as they are in `data`."""
    return sum(work[:end] == data[:end] for end in ends[1:])


# --- a torn tail, at every byte of the last three records (G6)


def check_tail(work: Path, whole: int, expected: list[bytes]) -> None:
    """Open twice, put, and open again: `whole` records of `expected`, then what was put, each time."""
    log = open_log(work)
    assert messages(log) == dict(enumerate(expected[:whole]))
    assert (log.damages, log.end, set_aside(work)) == ([], whole, [])
    log.abandon()
    after = tree(work)
    log = open_log(work)
    assert (messages(log), log.cut_bytes) == (dict(enumerate(expected[:whole])), 0)
    assert {n: d for n, d in tree(work).items() if n != WATERMARK} == {n: d for n, d in after.items() if n != WATERMARK}
    put(log, [b"next"])
    log.abandon()
    assert list(reopened(work).values()) == [*expected[:whole], b"next"]


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tail_torn_at_any_byte_costs_only_the_torn_record(
    unsynced: Path, tmp_path: Path, stride: int, seed: int
) -> None:
    before, ends = last_three(unsynced)
    for size in range(ends[0] + seed % stride, ends[-1] + 1, stride):
        work = copy(unsynced, tmp_path / "work")
        os.truncate(segments(work)[-1], size)
        check_tail(work, before + sum(end <= size for end in ends[1:]), ALL)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tail", ["zeros", "random", "stale"])
def test_whatever_stands_where_the_tail_was_never_written_is_cut(
    unsynced: Path, tmp_path: Path, tail: str, stride: int, seed: int
) -> None:
    rng = random.Random(seed)
    before, ends = last_three(unsynced)
    # Stale: what another topic's segment held, as a file system may leave it in a block that it gave to this one.
    other = open_log(tmp_path / "other")
    put_each(other, [b"o" * 50] * 40)
    other.abandon()
    stale = segments(tmp_path / "other")[0].read_bytes()[SEGMENT_HEADER.size :]
    for size in range(ends[0] + rng.randrange(stride), ends[-1] + 1, stride):
        work = copy(unsynced, tmp_path / "work")
        length = rng.randrange(1, 400)
        junk = {"zeros": bytes(length), "random": rng.randbytes(length), "stale": stale[:length]}[tail]
        path = segments(work)[-1]
        data = path.read_bytes()
        path.write_bytes(data[:size] + junk)
        check_tail(work, before + whole_frames(data, path.read_bytes(), ends), ALL)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tail", ["cut", "zeros", "random"])
def test_a_promised_tail_that_is_gone_is_reported_and_its_offsets_are_not_given_again(
    synced: Path, tmp_path: Path, tail: str, stride: int, seed: int
) -> None:
    rng = random.Random(seed)
    before, ends = last_three(synced)
    for size in range(ends[0] + rng.randrange(stride), ends[-1], stride):
        work = copy(synced, tmp_path / "work")
        path = segments(work)[-1]
        rest = ends[-1] - size
        junk = {"cut": b"", "zeros": bytes(rest), "random": rng.randbytes(rest)}[tail]
        data = path.read_bytes()
        path.write_bytes(data[:size] + junk)
        if path.read_bytes() == data:
            continue  # the last bytes were zeros already
        kept = whole_frames(data, path.read_bytes(), ends)
        lost, whole = path.read_bytes()[ends[kept] :], before + kept
        log = open_log(work)
        found, _ = contents(log)
        assert found == dict(enumerate(ALL[:whole]))
        assert any(damage.first == whole and damage.stop == len(ALL) for damage in log.damages)
        assert b"".join(copied.read_bytes() for copied in set_aside(work)) == lost
        assert put(log, [b"next"]).start == len(ALL)
        log.abandon()
        assert reopened(work) == {**dict(enumerate(ALL[:whole])), len(ALL): b"next"}
        assert b"".join(copied.read_bytes() for copied in set_aside(work)) == lost


def test_what_is_recovered_is_synced_before_it_counts(unsynced: Path) -> None:
    os.truncate(segments(unsynced)[-1], segments(unsynced)[-1].stat().st_size - 3)
    fs = WatchedFileSystem()
    log = open_log(unsynced, fs)
    last = str(segments(unsynced)[-1])
    assert [kind for kind, path in fs.events if path == last and kind in {"truncate", "sync"}] == ["truncate", "sync"]
    assert ("sync_directory", str(unsynced)) in fs.events
    assert log.durable == log.end == 8
    log.abandon()


# --- runs


def a_run(directory: Path, *, sync: bool) -> list[int]:
    """Put one record, then a run of several frames; return where its frames end."""
    log = open_log(directory)
    put(log, [b"before"])
    put(log, [bytes([65 + n % 26]) * 30_000 for n in range(7)], atomic=True, sync=sync)
    log.abandon()
    return frame_ends(directory)


def test_a_run_torn_anywhere_is_absent_as_a_whole(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ends = a_run(tmp_path / "run", sync=False)
    assert len(ends) > 3
    borders = [ends[0], ends[0] + 1, *(end + delta for end in ends[1:-1] for delta in (-1, 0, 1)), ends[-1] - 1]
    for size in (*borders, *(rng.randrange(ends[0], ends[-1]) for _ in range(30))):
        work = copy(tmp_path / "run", tmp_path / "work")
        os.truncate(segments(work)[-1], size)
        assert read_topic(work) == {0: b"before"}
        log = open_log(work)
        assert messages(log) == {0: b"before"}
        assert put(log, [b"next"]).start == 1
        log.abandon()
        assert reopened(work) == {0: b"before", 1: b"next"}


@pytest.mark.parametrize("frame", [1, 2, 3])
def test_a_run_with_a_hole_is_absent_as_a_whole(tmp_path: Path, frame: int) -> None:
    ends = a_run(tmp_path / "run", sync=False)
    overwrite(segments(tmp_path / "run")[-1], ends[frame] - 4096, bytes(512))
    assert read_topic(tmp_path / "run") == {0: b"before"}
    assert reopened(tmp_path / "run") == {0: b"before"}


def test_a_promised_run_with_a_hole_is_lost_as_a_whole_and_what_follows_is_delivered(tmp_path: Path) -> None:
    ends = a_run(tmp_path / "run", sync=True)
    log = open_log(tmp_path / "run")
    put(log, [b"behind"])
    log.abandon()
    overwrite(segments(tmp_path / "run")[-1], ends[2] - 4096, bytes(512))
    assert read_topic(tmp_path / "run") == {0: b"before", 8: b"behind"}
    log = open_log(tmp_path / "run")
    assert [(damage.first, damage.stop) for damage in log.damages] == [(1, 8)]
    found, damages = contents(log)
    assert found == {0: b"before", 8: b"behind"}
    assert [(damage.first, damage.stop) for damage in damages] == [(1, 8)]
    log.abandon()


# --- holes and damage, told apart by the watermark


@pytest.mark.parametrize("record", [5, 6, 7])
def test_a_hole_beyond_the_watermark_is_cut_to_a_prefix(unsynced: Path, record: int) -> None:
    ends = frame_ends(unsynced)
    overwrite(segments(unsynced)[-1], ends[record - 5], bytes(8))
    log = open_log(unsynced)
    assert messages(log) == dict(enumerate(ALL[:record]))
    assert (log.end, log.damages, set_aside(unsynced)) == (record, [], [])
    put(log, [b"next"])
    log.abandon()
    assert list(reopened(unsynced).values()) == [*ALL[:record], b"next"]


@pytest.mark.parametrize("noted", ["kept", "missing", "stale"])
@pytest.mark.parametrize("record", [4, 5, 6])
def test_damage_below_the_watermark_is_set_aside_and_what_follows_is_delivered(
    synced: Path, record: int, noted: str
) -> None:
    ends = [SEGMENT_HEADER.size, *frame_ends(synced)]
    path = segments(synced)[-1]
    overwrite(path, ends[record - 4] + 10, b"\xff" * 6)
    bad = path.read_bytes()[ends[record - 4] : ends[record - 3]]
    if noted == "missing":
        (synced / WATERMARK).unlink()
    elif noted == "stale":
        (synced / WATERMARK).write_bytes(bytes(8192))
    expected = {offset: body for offset, body in enumerate(ALL) if offset != record}
    assert read_topic(synced) == expected
    for _ in range(3):
        log = open_log(synced)
        # Where the note is gone, the watermark in the frames behind the damage says that it had been promised.
        assert [(d.path, d.position, d.first, d.stop) for d in log.damages] == [
            (str(path), ends[record - 4], record, record + 1)
        ]
        assert contents(log)[0] == expected
        assert [copied.read_bytes() for copied in set_aside(synced)] == [bad]
        assert log.end == len(ALL)
        log.abandon()


def test_evidence_of_another_damage_at_the_same_place_is_kept_beside(synced: Path) -> None:
    path = segments(synced)[-1]
    for number, junk in enumerate((b"\xff" * 6, b"\xee" * 6)):
        overwrite(path, SEGMENT_HEADER.size + 10, junk)
        reopened(synced)
        assert len(set_aside(synced)) == number + 1
    assert [junk in set_aside(synced)[n].read_bytes() for n, junk in enumerate((b"\xff" * 6, b"\xee" * 6))] == [
        True,
        True,
    ]


def test_a_file_full_of_damage_is_set_aside_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, [bytes([n]) * 40 for n in range(60)])
    log.abandon()
    ends = frame_ends(tmp_path / "t")
    for end in ends[:-1:2]:
        overwrite(segments(tmp_path / "t")[0], end + 9, b"\xff")
    damaged = segments(tmp_path / "t")[0].read_bytes()
    assert sorted(reopened(tmp_path / "t")) == [0, *range(2, 60, 2)]
    assert [copied.read_bytes() for copied in set_aside(tmp_path / "t")] == [damaged]


# --- sealing and beginning, cut short


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_footer_torn_at_any_byte_is_made_again_or_cut(synced: Path, tmp_path: Path, stride: int, seed: int) -> None:
    log = open_log(synced)
    log.roll()
    log.abandon()
    sealed = segments(synced)[-2]
    whole = sealed.read_bytes()
    footer = log.segments[-2].data_end
    for size in range(footer + seed % stride, len(whole), stride):
        work = copy(synced, tmp_path / "work")
        # Crash point 4: the next segment has not begun yet.
        segments(work)[-1].unlink()
        os.truncate(segments(work)[-1], size)
        log = open_log(work)
        assert (messages(log), log.damages, set_aside(work)) == (dict(enumerate(ALL)), [], [])
        put(log, [b"next"])
        log.abandon()
        assert list(reopened(work).values()) == [*ALL, b"next"]
        # Once it has begun, the footer was durable: its loss is damage, and it is made again as it was.
        work = copy(synced, tmp_path / "work")
        os.truncate(segments(work)[-2], size)
        log = open_log(work)
        assert messages(log) == dict(enumerate(ALL))
        assert ["footer" in damage.reason for damage in log.damages] == [True] * (size > footer)
        log.abandon()
        assert segments(work)[-2].read_bytes() == whole


def test_a_tail_that_ends_like_another_segment_s_footer_seals_nothing(unsynced: Path) -> None:
    """As where a write of a message that holds a whole segment file was torn at just the wrong byte."""
    path = segments(unsynced)[-1]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(encode_footer(SegmentIndex(), data_end=size, end=0, salt=1)[1])
    assert read_topic(unsynced) == dict(enumerate(ALL))
    log = open_log(unsynced)
    assert (messages(log), log.end) == (dict(enumerate(ALL)), len(ALL))
    log.abandon()


@pytest.mark.parametrize(
    "size",
    [size if size in {0, 1, 20, 40, 63, 64} else pytest.param(size, marks=pytest.mark.slow) for size in range(65)],
)
@pytest.mark.parametrize("blank", [True, False])
def test_a_segment_that_had_just_begun_is_made_anew(synced: Path, size: int, *, blank: bool) -> None:
    log = open_log(synced)
    log.roll()
    log.abandon()
    path = segments(synced)[-1]
    whole = path.read_bytes()
    path.write_bytes(bytes(size) if blank else whole[:size])
    log = open_log(synced)
    assert (messages(log), log.damages, set_aside(synced)) == (dict(enumerate(ALL)), [], [])
    assert put(log, [b"next"]).start == len(ALL)
    log.abandon()
    assert list(reopened(synced).values()) == [*ALL, b"next"]


@pytest.mark.parametrize("content", [b"", b"\x89AIODQ\r\n\x01\x00", bytes(64)], ids=["empty", "torn", "blank"])
def test_a_promised_segment_of_which_nothing_is_left_is_set_aside(synced: Path, content: bytes) -> None:
    path = segments(synced)[-1]
    path.write_bytes(content)
    log = open_log(synced)
    assert contents(log)[0] == dict(enumerate(ALL[:4]))
    assert [copied.read_bytes() for copied in set_aside(synced)] == [content]
    assert sorted((damage.first, damage.stop) for damage in log.damages) == [(0, 0), (4, len(ALL))]
    assert put(log, [b"next"]).start == len(ALL)
    log.abandon()


def test_before_another_segment_even_a_torn_tail_is_damage(synced: Path) -> None:
    """The next segment begins only after this one was synced, whatever the watermark says."""
    (synced / WATERMARK).unlink()
    path = segments(synced)[0]
    os.truncate(path, SEGMENT_HEADER.size + 4 * 88 - 5)
    torn = path.read_bytes()[SEGMENT_HEADER.size + 3 * 88 :]
    log = open_log(synced)
    assert list(contents(log)[0]) == [0, 1, 2, *range(4, len(ALL))]
    assert [copied.read_bytes() for copied in set_aside(synced)] == [torn]
    assert (3, 4) in [(damage.first, damage.stop) for damage in log.damages]
    log.abandon()


def test_an_old_frame_behind_damage_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, [bytes([n]) * 50 for n in range(4)])
    put(log, [b"r" * 30_000] * 5, atomic=True)
    put_each(log, [bytes([n]) * 50 for n in range(9, 12)])
    log.abandon()
    path = segments(tmp_path / "t")[0]
    start = SEGMENT_HEADER.size
    run = start + 4 * 88
    behind = path.stat().st_size - 3 * 88
    # Three things in a row: a bad record, a run with a bad frame in its middle, a copy of record 1.
    overwrite(path, start + 3 * 88 + 20, b"\xff\xff")
    overwrite(path, (run + behind) // 2, b"\xff\xff")
    overwrite(path, behind, path.read_bytes()[start + 88 : start + 2 * 88])
    log = open_log(tmp_path / "t")
    assert list(contents(log)[0]) == [0, 1, 2, 10, 11]
    assert [(damage.first, damage.stop) for damage in log.damages] == [(3, 10)]
    log.abandon()
    assert list(read_topic(tmp_path / "t")) == [0, 1, 2, 10, 11]


def test_a_header_that_is_gone_is_told_from_name_topic_and_frames(synced: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        work = copy(synced, tmp_path / "work")
        path = segments(work)[number]
        overwrite(path, 0, b"\xff" * SEGMENT_HEADER.size)
        assert read_topic(work) == dict(enumerate(ALL))
        for again in (False, True):
            log = open_log(work)
            assert messages(log) == dict(enumerate(ALL))
            # A sealed one stays as it is; the other one is being written, so its header is made again at once.
            assert [damage.path for damage in log.damages] == ([] if number == 1 and again else [str(path)])
            log.abandon()
        assert [copied.read_bytes() for copied in set_aside(work)] == [b"\xff" * SEGMENT_HEADER.size]


# --- what is not there, twice there, or somebody else's


@pytest.mark.parametrize("offset", [25, 10**9, 2**63 - 1])
def test_a_copy_under_another_number_is_set_aside(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path / "t", segment_bytes=300)
    put_each(log, [bytes([n]) * 40 for n in range(20)])
    log.abandon()
    before = messages(open_log(tmp_path / "t"))
    stranger = tmp_path / "t" / f"{offset:020d}.seg"
    stranger.write_bytes(segments(tmp_path / "t")[1].read_bytes())
    log = open_log(tmp_path / "t", segment_bytes=300)
    assert messages(log) == before
    assert log.end == 20
    assert [path.name for path in set_aside(tmp_path / "t")] == [f"{stranger.name}.damaged-000000000000"]
    assert len(log.damages) == 1
    log.abandon()


@pytest.mark.parametrize("junk", [b"junk" * 100, b"\0" * 500, bytes(range(256))])
@pytest.mark.parametrize("number", [5, 99999])
def test_junk_under_a_segment_s_name_is_set_aside_whole(synced: Path, junk: bytes, number: int) -> None:
    path = synced / f"{number:020d}.seg"
    path.write_bytes(junk)
    log = open_log(synced)
    assert messages(log) == dict(enumerate(ALL))
    assert [damage.path for damage in log.damages] == [str(copied) for copied in set_aside(synced)]
    assert [copied.read_bytes() for copied in set_aside(synced)] == [junk]
    put(log, [b"next"])
    log.abandon()
    assert list(reopened(synced).values()) == [*ALL, b"next"]


def test_names_that_no_segment_can_have_are_left_alone(synced: Path) -> None:
    names = [
        "1.seg",
        "99999999999999999999.seg",
        "notes.txt",
        "0000000000000000000x.seg",
        ".seg",
        "\u0663" * 20 + ".seg",
    ]
    for name in names:
        (synced / name).write_bytes(b"mine")
    (synced / "directory").mkdir()
    assert read_topic(synced) == dict(enumerate(ALL))
    assert reopened(synced) == dict(enumerate(ALL))
    assert all((synced / name).read_bytes() == b"mine" for name in names)
    assert set_aside(synced) == []


def test_a_segment_that_repeats_offsets_is_set_aside(synced: Path) -> None:
    log = open_log(synced)
    header = SegmentHeader(2, log.meta.uuid, 0, topic_salt(log.meta.uuid))
    log.abandon()
    (synced / f"{2:020d}.seg").write_bytes(header.encode())
    log = open_log(synced)
    assert messages(log) == dict(enumerate(ALL))
    assert len(log.damages) == 1
    assert len(set_aside(synced)) == 1
    log.abandon()


def test_another_topic_s_segment_is_set_aside(synced: Path) -> None:
    other = uuid4()
    (synced / f"{50:020d}.seg").write_bytes(SegmentHeader(50, other, 0, topic_salt(other)).encode() + b"x" * 100)
    log = open_log(synced)
    assert messages(log) == dict(enumerate(ALL))
    assert (log.end, len(log.damages), len(set_aside(synced))) == (len(ALL), 1, 1)
    log.abandon()


# --- temporaries, versions


@pytest.mark.parametrize("number", [0, 1])
def test_a_newer_version_is_refused_and_nothing_is_touched(synced: Path, number: int) -> None:
    # So that there would be something to do: a torn tail, a leftover.
    with segments(synced)[-1].open("ab") as file:
        file.write(b"torn")
    (synced / f"topic.json{TEMPORARY}").write_bytes(b"left over")
    path = segments(synced)[number]
    header = SegmentHeader.decode(path.read_bytes())
    newer = SegmentHeader(header.base, header.topic, header.created_ns, header.salt, header.checksum, version=2)
    overwrite(path, 0, newer.encode())
    before = tree(synced)
    fs = WatchedFileSystem()
    with pytest.raises(FormatVersionError, match="version 2"):
        open_log(synced, fs)
    assert tree(synced) == before
    assert fs.open_files == 0


def test_messages_put_one_by_one_are_counted_as_each_would_be(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path, segment_bytes=64 << 20)
    put_each(log, [bytes(number) for number in range(100)], sync=False)
    put(log, [bytes(40_000)] * 3, atomic=True, sync=False)  # a run of three frames
    for each in range(rng.randrange(20, 40)):
        size = rng.choice([0, 5, 900, 9000, 40_000, 300_000])
        for sequence in range(rng.choice([0, 1, 30])):  # as of other processes: each has a control frame
            assert log.stage(Columns([rng.randbytes(size % 907)]), START, atomic=True, origin=Origin(each, sequence))
        for _ in range(rng.choice([0, 1, 30])):
            columns = Columns([rng.randbytes(size % 907)], tags=["t"], expiries=[START] if rng.random() < 0.5 else None)
            assert log.stage(columns, START + rng.randrange(100), atomic=True)
        log.flush()
        log.commit()
        if rng.random() < 0.8:
            put_each(log, [rng.randbytes(size)] * (1 if size > 9000 else rng.choice([1, 3, 60])), sync=False)
        else:
            put(log, [rng.randbytes(size)] * 3, atomic=rng.random() < 0.5, sync=False)
    context, end = log.view().segments[0].context, log.view().data_end
    log.close()
    [path] = segments(tmp_path)
    for position in (None, *(rng.randrange(end) & ~7 for _ in range(8))):
        if position is not None:
            flip(path, position, rng.randrange(8))
        with contextlib.closing(OsFileSystem().open(str(path))) as file:
            look = partial(
                storage_contents.examine, file, context, str(path), limit=end, durable_end=rng.choice([0, 10**9])
            )
            found = look(singles=rng.choice([index_singles, vectorized.index_singles]))
            with monkeypatch.context() as without:
                without.setattr(storage_contents, "_take_apart", lambda *_: None)
                without.setattr(storage_contents, "_is_apart", lambda *_: False)
                assert look() == found


@pytest.mark.parametrize("flipped", ["magic", "base", "topic", "checksum"])
def test_a_segment_under_anothers_name_is_known_by_a_header_with_a_wrong_bit(tmp_path: Path, flipped: str) -> None:
    """Else its messages would get the other's offsets: neither end of the file says by itself where it begins."""
    log = open_log(tmp_path / "t")
    for number in range(4):
        put(log, [b"%d" % number] * 2)
        log.roll()
    log.close()
    second, third = segments(tmp_path / "t")[1:3]
    flip(second, {"magic": 3, "base": 16, "topic": 30, "checksum": 61}[flipped], 2)
    at_rest = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(at_rest)
    log = open_log(tmp_path / "t")
    assert contents(log)[0] == {0: b"0", 1: b"0", 6: b"3", 7: b"3"}
    assert [(damage.first, damage.stop) for damage in log.damages if damage.stop] == [(2, 6)]
    assert len(set_aside(tmp_path / "t")) == 2
    log.close()


@pytest.mark.parametrize("size", [0, 1, SEGMENT_HEADER.size - 1, SEGMENT_HEADER.size])
@pytest.mark.parametrize("junk", ["zeros", "random"])
def test_a_new_segment_with_anything_for_a_header_is_an_empty_one(
    tmp_path: Path, seed: int, size: int, junk: str
) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, SMALL)
    log.roll()
    log.close()
    # Its name is durable, and its content not: nothing was promised in it.
    last = segments(tmp_path / "t")[-1]
    last.write_bytes(bytes(size) if junk == "zeros" else random.Random(seed).randbytes(size))
    log = open_log(tmp_path / "t")
    assert (log.damages, set_aside(tmp_path / "t")) == ([], [])
    put_each(log, [b"next"])
    log.close()
    log = open_log(tmp_path / "t")
    assert (log.damages, messages(log)) == ([], dict(enumerate([*SMALL, b"next"])))
    log.close()


@pytest.mark.parametrize("rest", [True, False])
def test_a_header_damaged_in_a_segment_with_promised_messages_is_damage(
    tmp_path: Path, seed: int, *, rest: bool
) -> None:
    log = open_log(tmp_path / "t")
    put_each(log, SMALL)
    log.roll()
    put_each(log, [b"promised"])
    log.close()
    last = segments(tmp_path / "t")[-1]
    last.write_bytes(
        random.Random(seed).randbytes(SEGMENT_HEADER.size) + last.read_bytes()[SEGMENT_HEADER.size :] * rest
    )
    log = open_log(tmp_path / "t")
    assert log.damages
    assert contents(log)[0] == dict(enumerate([*SMALL, b"promised"] if rest else SMALL))
    assert log.end == len(SMALL) + 1
    log.close()


# --- what was not promised may only seem to be there


@pytest.mark.parametrize("sealed", [True, False])
def test_whatever_was_not_promised_is_written_again(*, sealed: bool) -> None:
    """A sync may have failed and forgotten it: the next one would succeed without it."""
    disk = SimulatedFileSystem({"/t": None})
    log = open_log(Path("/t"), disk)
    put_each(log, [b"x" * 3000] * 12)
    frames = log.segments[0].data_end - SEGMENT_HEADER.size
    if sealed:
        log.roll()
        disk.remove(log.segments[-1].path)
    log.abandon()
    for promised in range(1, 13):
        fs = SimulatedFileSystem(disk.image(), record=True)
        slots = WatermarkFile(fs, f"/t/{WATERMARK}")
        slots.write(promised, 0)
        slots.close()
        assert fs.trace is not None
        before = len(fs.trace)
        log = open_log(Path("/t"), fs)
        assert (log.end, log.damages) == (12, [])
        written = [each for each in fs.trace[before:] if isinstance(each, Wrote) and len(each.data) > 3000]
        again = sum(len(each.data) for each in written)
        assert again >= frames * (12 - promised) // 12
        log.abandon()


def test_a_footer_that_came_without_frames_of_its_segment_seals_nothing(synced: Path, tmp_path: Path) -> None:
    log = open_log(synced)
    log.roll()
    log.abandon()
    segments(synced)[-1].unlink()
    ends = [SEGMENT_HEADER.size, *frame_ends_below(synced, log.segments[-2].data_end)]
    for whole in (len(ALL) - 1, len(ALL) - 2):
        work = copy(synced, tmp_path / "work")
        overwrite(segments(work)[-1], ends[whole - 4], bytes(ends[-1] - ends[whole - 4]))
        note(work, whole)
        check_tail(work, whole, ALL)
