"""A topic's log in its owner's hands: order, rolling, failing calls, and what survives them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from aiodq.errors import AiodqError, DiskFullError, ReadOnlyError, StorageError, StoreFailedError
from aiodq.format.columns import Columns
from aiodq.format.layout import FOOTER_TAIL, MAX_BASE, SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader, topic_salt
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.log.active_segment import cuts
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.state.watermark import WATERMARK, WatermarkFile, read_slot_file
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import (
    CLOCK,
    contents,
    messages,
    open_log,
    put,
    put_each,
    read_topic,
    reopened,
    segments,
    set_aside,
)

NO_PASSING_ERROR = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.EACCES, errno.ENOSPC, errno.EINTR, errno.EAGAIN)


def bodies(count: int, size: int = 40, start: int = 0) -> list[bytes]:
    return [f"{number}:".encode().ljust(size, b"x") for number in range(start, start + count)]


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    return tmp_path / "orders"


# --- order, rolling, names


def test_offsets_are_contiguous_and_order_is_kept_across_segments(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1000)
    expected = bodies(100)
    assert put(log, expected[:3]) == range(3)
    put_each(log, expected[3:])
    assert messages(log) == dict(enumerate(expected))
    assert len(log.segments) > 5
    assert [int(path.stem) for path in segments(topic)] == [segment.base for segment in log.segments]
    log.close()
    assert reopened(topic) == dict(enumerate(expected))


def test_a_segment_rolls_before_it_would_exceed_its_size(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1000)
    put_each(log, bodies(60))
    assert max(segment.size for segment in log.segments) <= 1000
    assert all(segment.sealed for segment in log.segments[:-1])
    log.close()


def test_no_file_is_larger_than_its_segment_may_be_but_for_one_put(topic: Path, seed: int) -> None:
    random = Random(seed)
    for segment_bytes in (300, 1000, 5000, 20_000):
        directory = topic / str(segment_bytes)
        directory.parent.mkdir(exist_ok=True)
        puts: dict[int, int] = {}
        log = open_log(directory, segment_bytes=segment_bytes)
        for number in range(60):
            size = random.choice((0, 10, 100, 1000, 4200, 9000))
            some = [b"x" * random.randrange(size + 1) for _ in range(random.choice((1, 1, 1, 7, 40)))]
            for part in _parts(some, atomic=random.random() < 0.5):
                if log.stage(part, CLOCK.now_ns(), atomic=True) is None:
                    log.flush()
                    log.commit()
                    log.roll()
                    assert log.stage(part, CLOCK.now_ns(), atomic=True) is not None
                puts[sum(puts.values())] = len(part.bodies)
            if random.random() < 0.5:
                log.flush()
                log.commit()
            if number % 20 == 19:
                log.close()
                log = open_log(directory, segment_bytes=segment_bytes)
        log.flush()
        log.commit()
        log.roll()
        assert len(log.segments) > 2
        for segment in log.segments:
            assert segment.size == Path(segment.path).stat().st_size
            assert segment.size <= segment_bytes or segment.records == puts[segment.base]
        log.close()


def _parts(some: list[bytes], *, atomic: bool) -> list[Columns]:
    return [Columns(some)] if atomic else [Columns([body]) for body in some]


def test_what_is_rolled_back_takes_no_room_in_the_footer(topic: Path) -> None:
    log = open_log(topic, segment_bytes=30_000)
    put(log, [b"first" * 1000])
    for _ in range(100):
        assert log.stage(Columns([b"x" * 5000]), CLOCK.now_ns(), atomic=True) is not None
        log.rollback()
    put_each(log, [b"x" * 5000] * 4)
    log.roll()
    assert [segment.records for segment in log.segments] == [5, 0]
    assert Path(log.segments[0].path).stat().st_size <= 30_000
    log.close()


def test_a_larger_message_gets_a_segment_of_its_own(topic: Path) -> None:
    log = open_log(topic, segment_bytes=1000)
    put_each(log, [b"small", b"L" * 5000, b"small again"])
    assert [segment.records for segment in log.segments] == [1, 1, 1]
    assert list(messages(log).values()) == [b"small", b"L" * 5000, b"small again"]
    log.close()


def test_a_put_of_many_frames_stays_in_one_segment(topic: Path) -> None:
    log = open_log(topic, segment_bytes=100_000)
    put(log, [b"before"])
    many = bodies(3000, 100)
    assert list(cuts(Columns(many), atomic=True)) == [Columns(many)]
    assert len(list(cuts(Columns(many), atomic=False))) > 1
    put(log, many, atomic=True)
    assert [segment.records for segment in log.segments] == [1, 3000]
    assert list(messages(log).values()) == [b"before", *many]
    log.close()


def begin_at(topic: Path, base: int) -> None:
    """Make a topic without messages whose next one has this offset."""
    log = open_log(topic)
    uuid = log.meta.uuid
    log.close()
    (topic / WATERMARK).unlink()
    (topic / f"{0:020d}.seg").unlink()
    (topic / f"{base:020d}.seg").write_bytes(SegmentHeader(base, uuid, 0, topic_salt(uuid)).encode())


def test_a_topic_at_the_end_of_all_offsets_takes_no_more_and_keeps_what_it_has(topic: Path) -> None:
    begin_at(topic, MAX_BASE - 1)
    log = open_log(topic, segment_bytes=1)
    put_each(log, [b"a", b"b"])
    held = {MAX_BASE - 1 + number: body for number, body in enumerate([b"a", b"b"])}
    for again in (True, False):
        assert log.stage(Columns([b"c"]), CLOCK.now_ns(), atomic=False) is None
        with pytest.raises(StorageError, match="no offset left"):
            log.roll()
        with pytest.raises(StorageError, match="no offset left"):
            log.adopt([("staged", 5)], lambda _: None)
        assert messages(log) == held
        log.close()
        assert [int(path.stem) for path in segments(topic)] == [MAX_BASE - 1, MAX_BASE]
        assert reopened(topic) == read_topic(topic) == held
        if again:
            log = open_log(topic, segment_bytes=1)


def test_a_segment_that_claims_all_offsets_takes_no_more(topic: Path) -> None:
    """A repair notes what was durable and is missing as the end of the last segment, however much that is."""
    log = open_log(topic)
    put(log, [b"a"])
    salt = topic_salt(log.meta.uuid)
    log.close()
    slots = WatermarkFile(OsFileSystem(), str(topic / WATERMARK))
    slots.write(2**63 - 1, salt)
    slots.close()
    assert repair_store(str(topic.parent), WatchedFileSystem())
    log = open_log(topic)
    assert log.end == 2**63 - 1
    assert log.append(b"b", CLOCK.now_ns()) < 0
    assert log.stage(Columns([b"b"]), CLOCK.now_ns(), atomic=False) is None
    with pytest.raises(StorageError, match="no offset left"):
        log.roll()
    log.close()
    assert read_topic(topic) == {0: b"a"}


def test_a_segment_that_could_hold_messages_beyond_all_offsets_is_not_written_to(topic: Path) -> None:
    begin_at(topic, MAX_BASE + 1)
    with pytest.raises(StorageError, match="no offset left"):
        open_log(topic)
    assert [path.stat().st_size for path in segments(topic)] == [SEGMENT_HEADER.size]


def test_an_empty_segment_does_not_roll(topic: Path) -> None:
    log = open_log(topic)
    log.roll()
    log.roll()
    assert len(log.segments) == 1
    log.close()


@pytest.mark.parametrize("name", ["100%", "per cent %s %d", "white  space ", "ünï\ncode", "%(name)s"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    log = open_log(directory / "t", segment_bytes=200)
    put_each(log, bodies(20))
    log.close()
    assert len(reopened(directory / "t")) == 20
    assert len(read_topic(directory / "t")) == 20


def test_files_and_directories_are_private(topic: Path) -> None:
    before = os.umask(0)
    try:
        log = open_log(topic)
        put(log, [b"x"])
        log.close()
    finally:
        os.umask(before)
    assert topic.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in topic.iterdir()} == {0o600}


# --- state never depends on close (PEER-ISSUES 3, 20, 23)


def test_nothing_is_lost_without_close(topic: Path) -> None:
    log = open_log(topic, segment_bytes=500)
    put_each(log, bodies(30))
    log.abandon()
    log = open_log(topic, segment_bytes=500)
    assert (log.end, log.begin, log.damages, log.cut_bytes) == (30, 0, [], 0)
    assert messages(log) == dict(enumerate(bodies(30)))
    log.abandon()


def test_an_open_log_can_be_read_by_another_owner_at_any_moment(topic: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    for number in range(12):
        put(log, bodies(1, start=number))
        # As after SIGKILL: the files as they are, and nobody who closes them.
        again = open_log(topic, segment_bytes=300)
        assert messages(again) == dict(enumerate(bodies(number + 1)))
        again.abandon()
        log.abandon()
        log = open_log(topic, segment_bytes=300)
    log.abandon()


# --- PEER-ISSUES 1, 2


def test_a_reader_that_keeps_up_across_rolls_quarantines_nothing(topic: Path) -> None:
    log = open_log(topic, segment_bytes=150)
    for number in range(40):
        put(log, bodies(1, start=number))
        found, damages = contents(log)
        assert len(found) == number + 1
        assert damages == []
    log.close()
    assert set_aside(topic) == []


def test_bytes_that_were_written_are_never_written_again(topic: Path) -> None:
    log = open_log(topic, segment_bytes=400)
    put_each(log, bodies(25))
    log.abandon()
    before = {path: path.read_bytes() for path in segments(topic)}
    for stale in (b"", b"\0" * 8192, (topic / WATERMARK).read_bytes()[:4096] + bytes(4096)):
        (topic / WATERMARK).write_bytes(stale)
        log = open_log(topic, segment_bytes=400)
        put(log, [b"more"])
        log.abandon()
        assert all(path.read_bytes().startswith(data) for path, data in before.items())
    assert list(reopened(topic).values()) == [*bodies(25), b"more", b"more", b"more"]


# --- opening reads little


def test_opening_a_hundred_sealed_segments_reads_their_two_ends(topic: Path) -> None:
    log = open_log(topic, segment_bytes=3000)
    while len(log.segments) < 101:
        put(log, bodies(20, 60))
    put(log, [b"last"])
    log.close()
    sizes = [path.stat().st_size for path in segments(topic)]
    assert sum(sizes) > 200_000
    fs = WatchedFileSystem()
    log = open_log(topic, fs, segment_bytes=3000)
    others = 8192 + 2 * (topic / "topic.json").stat().st_size + SEGMENT_HEADER.size
    assert fs.bytes_read <= 101 * (SEGMENT_HEADER.size + FOOTER_TAIL.size) + sizes[-1] + others
    assert len(log.segments) == 101
    log.close()


# --- the order of what reaches the disk


def test_a_segment_is_sealed_and_synced_before_the_next_has_a_name(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs, segment_bytes=300)
    put_each(log, bodies(4))
    fs.reset()
    log.roll()
    old, new = (str(path) for path in segments(topic)[-2:])
    order = [(kind, path) for kind, path in fs.events if kind in {"write", "sync", "create", "sync_directory"}]
    assert [event for event in order if WATERMARK not in event[1]] == [
        ("write", old),
        ("sync", old),
        ("create", new),
        ("write", new),
        ("sync", new),
        ("sync_directory", str(topic)),
    ]
    log.close()


def test_the_watermark_follows_the_sync(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    fs.reset()
    put(log, [b"a", b"b"])
    assert [kind for kind, _ in fs.events] == ["write", "sync", "write"]
    assert read_slot_file(fs, str(topic / WATERMARK))[0] == 2
    put(log, [b"c"], sync=False)
    assert (log.durable, log.end) == (2, 3)
    assert read_slot_file(fs, str(topic / WATERMARK))[0] == 2
    log.close()
    assert read_slot_file(fs, str(topic / WATERMARK))[0] == 3


def test_a_failed_sync_promises_nothing(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put(log, [b"a"])
    fs.fail(errno.EIO, "sync", times=1)
    with pytest.raises(StoreFailedError):
        put(log, [b"b"])
    assert log.durable == 1
    log.abandon()
    assert read_slot_file(fs, str(topic / WATERMARK))[0] == 1


# --- short writes, full disk


def test_short_writes_are_completed(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs, segment_bytes=2000)
    fs.fail(None, "write", short=7)
    put_each(log, bodies(30))
    put(log, bodies(5, 500, start=30), atomic=True)
    fs.heal()
    log.close()
    assert reopened(topic) == dict(enumerate([*bodies(30), *bodies(5, 500, start=30)]))


def test_a_write_that_takes_nothing_does_not_loop(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    fs.fail(None, "write", short=0)
    with pytest.raises(StorageError):
        put(log, [b"x"])
    fs.heal()
    log.rollback()
    log.close()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 20, 39, 40, 100])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_half_record_is_cut_at_once_or_before_the_next_append(
    topic: Path, taken: int, error: int, later: bool
) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5))
    size = segments(topic)[0].stat().st_size
    fs.fail(error, "write", short=taken, times=1)
    if later:
        fs.fail(errno.EIO, "truncate", times=1)
    with pytest.raises(StorageError) as caught:
        put(log, bodies(3, start=5))
    assert isinstance(caught.value, DiskFullError) == (error != errno.EIO)
    log.rollback()
    assert (log.end, log.staged_bytes) == (5, 0)
    assert messages(log) == dict(enumerate(bodies(5)))
    assert read_topic(topic) == dict(enumerate(bodies(5)))
    fs.reset()
    if not later:
        assert segments(topic)[0].stat().st_size == size
    put(log, [b"next"])
    assert [kind for kind, _ in fs.events[: 1 + later]] == ["truncate"] * later + ["write"]
    assert segments(topic)[0].stat().st_size == size + 40
    log.abandon()
    assert list(reopened(topic).values()) == [*bodies(5), b"next"]


def test_a_flush_that_failed_may_be_repeated_as_it_is(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put(log, [b"first"])
    log.stage(Columns([b"second"]), 1, atomic=False)
    fs.fail(errno.ENOSPC, "write", short=10, times=1)
    with pytest.raises(DiskFullError):
        log.flush()
    log.flush()
    log.commit()
    log.close()
    assert list(reopened(topic).values()) == [b"first", b"second"]


def test_what_was_flushed_and_taken_back_is_cut(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"first"])
    log.stage(Columns([b"taken back" * 30]), 1, atomic=False)
    log.flush()
    log.rollback()
    put(log, [b"second"])
    assert segments(topic)[0].stat().st_size == log.segments[0].data_end
    log.abandon()
    assert list(reopened(topic).values()) == [b"first", b"second"]


@pytest.mark.parametrize("taken", [0, 40, 60, 110, 150])
def test_of_what_was_refused_nothing_is_found_after_a_kill(topic: Path, taken: int) -> None:
    """Two frames are written together, and the device takes the first one."""
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put(log, [b"first"])
    for number in range(2):
        log.stage(Columns([b"%d" % number * 30]), 1, atomic=True)
    fs.fail(errno.ENOSPC, "write", short=taken, times=1)
    with pytest.raises(DiskFullError):
        log.flush()
    log.rollback()
    assert list(read_topic(topic).values()) == [b"first"]
    log.abandon()
    assert list(reopened(topic).values()) == [b"first"]


def test_close_cuts_what_a_failed_write_left(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put(log, [b"first"])
    size = segments(topic)[0].stat().st_size
    fs.fail(errno.ENOSPC, "write", short=10, times=1)
    with pytest.raises(DiskFullError):
        put(log, [b"second"])
    log.rollback()
    log.close()
    assert segments(topic)[0].stat().st_size == size


def test_a_segment_rolled_after_a_failed_write_keeps_its_footer(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5))
    fs.fail(errno.ENOSPC, "write", short=10, times=1)
    with pytest.raises(DiskFullError):
        put(log, [b"second"])
    log.rollback()
    log.roll()
    log.close()
    fs.reset()
    log = open_log(topic, fs)
    assert log.segments[0].sealed
    assert log.damages == []
    assert ("truncate", str(segments(topic)[0])) not in fs.events
    log.close()


@pytest.mark.parametrize("taken", [0, 10, 60])
def test_a_roll_that_fails_while_sealing_leaves_a_segment_that_goes_on(topic: Path, taken: int) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5))
    fs.fail(errno.ENOSPC, "write", short=taken, times=1)
    with pytest.raises(DiskFullError):
        log.roll()
    put(log, [b"small"])
    log.roll()
    put(log, [b"next"])
    log.abandon()
    assert list(reopened(topic).values()) == [*bodies(5), b"small", b"next"]
    assert set_aside(topic) == []


def test_a_roll_that_cannot_cut_behind_the_footer_leaves_a_segment_that_goes_on(topic: Path) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5, 5000))
    fs.fail(errno.EIO, "truncate", times=1)
    with pytest.raises(StorageError):
        log.roll()
    # A whole footer is there now. A frame over its first bytes must not end up inside what its tail calls the index.
    put(log, [b"small"])
    log.abandon()
    assert list(reopened(topic).values()) == [*bodies(5, 5000), b"small"]


@pytest.mark.parametrize("kind", ["create", "write", "sync_directory"])
def test_a_roll_that_cannot_begin_the_next_segment_writes_nothing_behind_the_footer(topic: Path, kind: str) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5))
    fs.fail(errno.ENOSPC, kind, at=3 if kind == "write" else 1, times=1)
    with pytest.raises(AiodqError):
        log.roll()
    assert log.stage(Columns([b"small"]), 1, atomic=False) is None
    log.roll()
    put(log, [b"small"])
    log.abandon()
    assert list(reopened(topic).values()) == [*bodies(5), b"small"]


@pytest.mark.parametrize("then", ["remove", "close"])
def test_a_roll_whose_unfinished_segment_could_not_be_removed_is_repeated(topic: Path, then: str) -> None:
    fs = WatchedFileSystem()
    log = open_log(topic, fs)
    put_each(log, bodies(5))
    fs.fail(errno.ENOSPC, "write", at=3, times=1)
    fs.fail(errno.EIO, then, match="005.seg", times=1)
    with pytest.raises(DiskFullError):
        log.roll()
    log.roll()
    put(log, [b"small"])
    log.abandon()
    assert list(reopened(topic).values()) == [*bodies(5), b"small"]


def test_a_roll_leaves_what_another_program_has_put_where_the_next_segment_would_be(topic: Path) -> None:
    log = open_log(topic)
    put_each(log, bodies(5))
    foreign = topic / "00000000000000000005.seg"
    foreign.write_bytes(b"not ours")
    for _ in range(2):
        with pytest.raises(StorageError, match="did not make"):
            log.roll()
    assert foreign.read_bytes() == b"not ours"
    log.abandon()


# --- failing calls at open are never read as damage (PEER-ISSUES 4, 7)


def a_log_with_everything(topic: Path) -> dict[int, bytes]:
    """Leave files such that opening has to scan, cut, seal and sweep."""
    log = open_log(topic, segment_bytes=300)
    put_each(log, bodies(12))
    log.close()
    with segments(topic)[-1].open("ab") as file:
        file.write(b"torn")
    # One sealed segment has lost its footer.
    os.truncate(segments(topic)[1], log.segments[1].data_end)
    (topic / "topic.json.aiodq-tmp").write_bytes(b"left over")
    return dict(enumerate(bodies(12)))


@pytest.mark.parametrize("error", NO_PASSING_ERROR)
@pytest.mark.parametrize("kind", ["open", "read", "size", "listdir"])
def test_a_system_that_refuses_to_read_damages_nothing(topic: Path, kind: str, error: int) -> None:
    expected = a_log_with_everything(topic)
    before = {path.name: path.read_bytes() for path in topic.iterdir()}
    fs = WatchedFileSystem()
    fs.fail(error, kind)
    with pytest.raises(StorageError) as caught:
        open_log(topic, fs)
    assert caught.value.errno == error
    assert isinstance(caught.value, ReadOnlyError) == (error == errno.EACCES)
    assert caught.value.retriable == (error not in {errno.EIO, errno.EACCES})
    assert {path.name: path.read_bytes() for path in topic.iterdir()} == before
    assert fs.open_files == 0
    assert reopened(topic) == expected


@pytest.mark.parametrize(
    "kind", ["open", "create", "read", "write", "size", "truncate", "sync", "rename", "remove", "listdir"]
)
def test_opening_survives_any_call_that_fails_once(topic: Path, kind: str) -> None:
    expected = a_log_with_everything(topic)
    fs = WatchedFileSystem()
    for number in range(1, 200):
        fault = fs.fail(errno.EIO, kind, at=number, times=1)
        try:
            log = open_log(topic, fs, segment_bytes=300)
        except AiodqError:
            assert fault.hits
            assert fs.open_files == 0
            fs.heal()
            continue
        fs.heal()
        assert messages(log) == expected
        log.abandon()
        break
    assert not fault.hits
    # Two were torn or lacked their footer when this began; nothing else may ever be quarantined.
    assert [path.name[:24] for path in set_aside(topic)] in ([], [segments(topic)[1].name])


@pytest.mark.parametrize("kind", ["open", "create", "write", "truncate", "sync", "sync_directory", "rename", "remove"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_no_call_that_fails_costs_what_was_acknowledged(topic: Path, kind: str, error: int) -> None:
    for number in range(1, 200):
        fs = WatchedFileSystem()
        directory = topic.with_name(f"t{number}")
        fault = fs.fail(error, kind, at=number, short=5 if kind == "write" else None, times=1)
        acknowledged = workload(directory, fs)
        assert fs.open_files == 0
        found = list(reopened(directory, segment_bytes=300).values())
        # In order, nothing acknowledged missing, nothing that was never put.
        assert [body for body in found if body in acknowledged] == acknowledged
        assert [body for body in WORK if body in found] == found
        if not fault.hits:
            assert acknowledged == WORK
            break
    else:
        pytest.fail("the workload never ends")


WORK = bodies(9)


def workload(directory: Path, fs: WatchedFileSystem) -> list[bytes]:
    """Put and roll; return what was acknowledged. A failed put is given up, a failed sync ends it all."""
    acknowledged: list[bytes] = []
    try:
        log = open_log(directory, fs, segment_bytes=300)
    except AiodqError:
        return acknowledged
    for body in WORK:
        try:
            put(log, [body])
            acknowledged.append(body)
        except StoreFailedError:
            break
        except AiodqError:
            log.rollback()
    log.abandon()
    return acknowledged


def test_opening_and_failing_to_open_leak_no_descriptor(topic: Path) -> None:
    expected = a_log_with_everything(topic)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    fs = WatchedFileSystem()
    for number in range(1, 60):
        fs.fail(errno.EIO, "read", at=number, times=1)
        with suppress(AiodqError):
            open_log(topic, fs, segment_bytes=300).abandon()
        fs.heal()
    log = open_log(topic, fs)
    assert messages(log) == expected
    log.abandon()
    assert fs.open_files == 0
    assert (len(os.listdir("/proc/self/fd")) if before else 0) == before


# --- giving up


def test_what_is_given_up_stays_given_up(topic: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, bodies(20))
    gone = [segment for segment in log.segments[:-1] if segment.end <= 13]
    log.description.give_up(13)
    log.hide(gone)
    log.remove(gone)
    log.remove(gone)  # a second time is fine
    assert log.begin == 13
    log.abandon()
    log = open_log(topic, segment_bytes=300)
    assert (log.begin, log.damages) == (13, [])
    assert list(messages(log)) == list(range(13, 20))
    log.close()


def test_a_purge_counts_even_before_its_files_are_gone(topic: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, bodies(20))
    log.description.give_up(20)
    log.abandon()
    log = open_log(topic, segment_bytes=300)
    assert messages(log) == {}
    assert put(log, [b"next"]) == range(20, 21)
    log.close()


def test_what_was_given_up_and_not_deleted_is_deleted_at_the_next_opening(topic: Path) -> None:
    log = open_log(topic, segment_bytes=300)
    put_each(log, bodies(20))
    begin, kept = log.segments[2].base, [Path(segment.path) for segment in log.segments[2:]]
    log.description.give_up(begin)
    log.abandon()
    log = open_log(topic, segment_bytes=300)
    assert (log.begin, segments(topic)) == (begin, kept)
    assert list(messages(log)) == list(range(begin, 20))
    log.close()


def test_what_is_only_staged_is_written_at_the_end(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"x"])
    assert log.stage(Columns([b"y"]), CLOCK.now, atomic=False) == (1, 2)
    log.close()
    assert reopened(topic) == {0: b"x", 1: b"y"}


def test_the_segment_being_written_is_never_hidden(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"x"])
    log.hide(log.segments)
    assert messages(log) == {0: b"x"}
    log.close()


def test_a_real_file_system_will_do(topic: Path) -> None:
    log = open_log(topic, OsFileSystem(), segment_bytes=300)
    put_each(log, bodies(20))
    log.close()
    assert reopened(topic) == dict(enumerate(bodies(20)))


def test_times_come_back(topic: Path) -> None:
    log = open_log(topic)
    put(log, [b"x"], time_ns=CLOCK.now)
    assert log.segments[0].newest_ns == CLOCK.now
    log.close()
