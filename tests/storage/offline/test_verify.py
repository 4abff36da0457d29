"""Reading every byte: what is wrong is found, what is not is left in peace, beside an owner and on a copy."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.errors import FormatVersionError, NotAStoreError, StorageError, StoreNotFoundError
from aiodq.format.journal import ChannelImage, Op, OpKind
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.segment import SegmentHeader
from aiodq.storage.offline import verify_segment
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.segments import frame_scan as scan
from aiodq.storage.segments.segment_files import list_segments
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.watermark import WATERMARK, WatermarkFile
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import copy, flip, open_log, overwrite, put, put_each, segments, tree
from tests.storage.stores import BREAKS, COUNT, LEFTOVERS, a_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.frame import Frame
    from aiodq.storage.offline.store_report import StoreReport


def verified(store: Path, fs: WatchedFileSystem | None = None) -> StoreReport:
    return verify_store(str(store), fs or WatchedFileSystem())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    a_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["journal", "checkpoint"])
def test_what_a_deletion_of_a_channel_that_was_cut_short_has_left_is_no_damage(store: Path, name: str) -> None:
    channel = store / "t" / "channels" / "deleted"
    journal = ChannelJournal(WatchedFileSystem(), str(channel), 0)
    journal.fold(ChannelImage(3))
    journal.close()
    (channel / name).unlink()
    report = verified(store)
    assert (report.ok, report.findings) == (True, ())
    assert repair_store(str(store), WatchedFileSystem()) == []


def test_a_whole_store_is_ok_and_every_byte_of_it_was_read(store: Path) -> None:
    fs = WatchedFileSystem()
    before = tree(store)
    report = verified(store, fs)
    assert (report.ok, report.findings, report.path) == (True, (), str(store))
    assert report.records == COUNT + 3
    assert report.bytes == sum(len(data) for data in before.values())
    assert {os.path.relpath(file.path, store): file.bytes for file in report.files} == {
        name: len(data) for name, data in before.items()
    }
    assert fs.bytes_read >= sum(path.stat().st_size for path in (*segments(store / "t"), *segments(store / "u")))
    assert set(fs.calls) <= {"open", "read", "size", "listdir", "close", "exists", "is_directory"}
    assert fs.open_files == 0
    assert tree(store) == before
    kinds = {os.path.relpath(file.path, store): file.kind for file in report.files if file.topic == "t"}
    assert kinds == {
        "t/topic.json": "topic",
        "t/watermark": "watermark",
        "t/channels/one/checkpoint": "checkpoint",
        "t/channels/one/journal": "journal",
        "t/channels/two/checkpoint": "checkpoint",
        "t/channels/two/journal": "journal",
        **{f"t/{path.name}": "segment" for path in segments(store / "t")},
    }


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_what_is_broken_is_found_by_file_and_position(store: Path, broken: Callable[[Path], object]) -> None:
    before = tree(store)
    broken(store)
    after = tree(store)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    report = verified(store)
    assert not report.ok
    found = {os.path.relpath(finding.path, store) for finding in report.damages}
    # A missing file is told from what lies behind it, or from the watermark.
    assert found & changed or changed - set(after)
    assert all(finding.position >= 0 and finding.reason for finding in report.damages)
    assert tree(store) == after


@pytest.mark.parametrize("left", LEFTOVERS.values(), ids=LEFTOVERS)
def test_what_is_left_over_is_not_wrong(store: Path, left: Callable[[Path], object]) -> None:
    left(store)
    report = verified(store)
    assert report.ok
    assert (report.damages, report.losses) == ((), ())
    assert len(report.findings) == (left not in {LEFTOVERS["nothing"], LEFTOVERS["files of others"]})
    assert all(finding.severity == "note" for finding in report.findings)
    assert report.records == COUNT + 3


@pytest.mark.parametrize("noted", [4, 6, None])
def test_a_footer_without_its_frames_is_unfinished_if_they_were_not_durable(tmp_path: Path, noted: int | None) -> None:
    topic = tmp_path / "t"
    log = open_log(topic)
    for number in range(6):
        put(log, [bytes([65 + number]) * 50], sync=number < 4)
    log.roll()
    [segment, _] = log.segments
    log.abandon()
    segments(topic)[-1].unlink()
    size = (segment.data_end - SEGMENT_HEADER.size) // 6
    overwrite(segments(topic)[0], SEGMENT_HEADER.size + 4 * size, bytes(size))
    if noted is None:
        (topic / WATERMARK).unlink()
    else:
        slots = WatermarkFile(WatchedFileSystem(), str(topic / WATERMARK))
        for _ in range(2):
            slots.write(noted, 0)
        slots.close()
    report = verified(tmp_path)
    unfinished = noted == 4
    assert report.ok is unfinished
    assert [finding.severity for finding in report.findings][-1] == ("note" if unfinished else "damage")
    assert report.records == (4 if unfinished else 5)
    log = open_log(topic)
    assert log.end == (4 if unfinished else 6)
    log.abandon()


def test_every_flipped_bit_of_a_segment_is_found(store: Path, seed: int) -> None:
    rng = random.Random(seed)
    for path in [segments(store / "t")[number] for number in (0, 2, -1)]:
        whole = path.read_bytes()
        for position in rng.sample(range(len(whole)), 16):
            flip(path, position, rng.randrange(8))
            assert path in {Path(finding.path) for finding in verified(store).damages}
            path.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_flipped_bit_of_every_small_segment_is_found(store: Path) -> None:
    for path in segments(store / "t"):
        whole = path.read_bytes()
        for position in range(len(whole)) if len(whole) < 10_000 else ():
            for bit in range(8):
                flip(path, position, bit)
                assert path in {Path(finding.path) for finding in verified(store).damages}
                path.write_bytes(whole)


def test_offsets_that_were_lost_are_told(store: Path) -> None:
    BREAKS["a missing segment"](store)
    BREAKS["a missing last segment"](store)
    spans = [(finding.first, finding.stop) for finding in verified(store).damages]
    assert spans == [(3, 6), (19, 21)]


def test_beside_a_live_owner(store: Path) -> None:
    log = open_log(store / "t", segment_bytes=428)
    for number in range(30):
        put(log, [bytes([number]) * 60], sync=number % 3 == 0)
        assert verified(store).findings == ()
    gone = log.segments[:4]
    log.description.give_up(gone[-1].end)
    log.hide(gone)
    log.remove(gone)
    assert verified(store).ok
    log.abandon()
    assert verified(store).ok


def test_a_segment_that_is_deleted_meanwhile_is_left_out(store: Path) -> None:
    path = segments(store / "t")[0]
    log = open_log(store / "t")
    log.description.give_up(3)
    log.close()

    class Deleting(WatchedFileSystem):
        def listdir(self, directory: str) -> list[str]:
            names = super().listdir(directory)
            if len(list_segments(WatchedFileSystem(), str(store / "t"))) > 1 and self.calls["listdir"] > 6:
                path.unlink(missing_ok=True)
            return names

    assert verified(store, Deleting()).ok
    assert not path.exists()


@pytest.mark.parametrize("look", [1, 2, 3], ids=["the description", "the header", "all of it"])
def test_what_an_owner_deletes_between_others_is_not_missing(tmp_path: Path, look: int) -> None:
    """Where no channel has settled it, nothing but the listing tells that it was there."""
    log = open_log(tmp_path / "t", segment_bytes=300)
    put_each(log, [b"x" * 100] * 6)
    log.close()
    gone = segments(tmp_path / "t")[1 if look > 1 else 0]

    class Deleting(WatchedFileSystem):
        looks = 0

        def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
            self.looks += path == str(gone)
            if self.looks == (look if look == 1 else look - 1):
                gone.unlink(missing_ok=True)
            return super().open(path, write=write, create=create)

    assert verified(tmp_path, Deleting()).findings == ()
    assert not gone.exists()


@pytest.mark.parametrize("again", [True, False], ids=["created again", "deleted"])
def test_a_topic_that_is_deleted_meanwhile_is_left_out(store: Path, *, again: bool) -> None:
    other = copy(store / "u", store.with_name("u"))
    last = segments(store / "t")[-1]

    class Deleting(WatchedFileSystem):
        def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
            if path == str(last) and last.exists():
                shutil.rmtree(store / "t")
                if again:
                    shutil.copytree(other, store / "t")
            return super().open(path, write=write, create=create)

    report = verified(store, Deleting())
    assert report.findings == ()
    assert report.records == (6 if again else 3)


def test_a_copy_with_an_unfinished_tail_is_ok(store: Path, tmp_path: Path) -> None:
    log = open_log(store / "t")
    put(log, [b"x" * 100], sync=False)
    log.abandon()
    size = segments(store / "t")[-1].stat().st_size
    for cut in range(1, 130, 3):
        work = copy(store, tmp_path / "work")
        os.truncate(segments(work / "t")[-1], size - cut)
        report = verified(work)
        assert report.ok
        assert [finding.severity for finding in report.findings] == ["note"]
        assert report.records == COUNT + 3


def test_what_lies_around_is_named(store: Path) -> None:
    (store / "notes.txt").write_bytes(b"mine")
    (store / "other").mkdir()
    (store / "LOCK").touch()
    (store / "t" / f"{0:020d}.seg.damaged-000000000000").write_bytes(b"evidence")
    (store / "t" / "staging").mkdir()
    (store / "t" / "link").symlink_to("/nowhere")
    (store / "t" / "channels" / "file").touch()
    (store / "t" / "channels" / "one" / "notes").touch()
    (store / "#commits").mkdir()
    (store / "#commits" / "notes").touch()
    report = verified(store)
    kinds = {os.path.relpath(file.path, store): (file.kind, file.bytes) for file in report.files}
    assert kinds["notes.txt"] == ("unknown", 4)
    assert kinds["other"] == ("unknown", 0)
    assert kinds["LOCK"] == ("lock", 0)
    assert kinds[f"t/{0:020d}.seg.damaged-000000000000"] == ("quarantined", 8)
    assert kinds["t/staging"] == kinds["t/link"] == kinds["t/channels/file"] == ("unknown", 0)
    assert kinds["t/channels/one/notes"] == kinds["#commits/notes"] == ("unknown", 0)
    assert report.findings == ()


def test_damage_that_recovery_left_in_place_is_still_damage(store: Path) -> None:
    flip(segments(store / "t")[-1], 100, 2)
    log = open_log(store / "t")
    put(log, [b"next"])
    log.roll()
    log.close()
    report = verified(store)
    assert [(finding.first, finding.stop) for finding in report.damages] == [(19, 20)]


def test_frames_are_walked_backward_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []

    def backward(*args: Any) -> list[Frame]:
        frames = list(real(*args))
        walked.append(len(frames))
        return frames

    real = scan.frames_backward
    monkeypatch.setattr(verify_segment, "frames_backward", backward)
    assert verified(store).ok
    assert walked == [3, 3, 2, 3, 3, 3, 2, 3]  # the run is one of three frames
    monkeypatch.setattr(verify_segment, "frames_backward", lambda *args: list(real(*args))[:2])
    assert len(verified(store).damages) == 6


@pytest.mark.parametrize("kind", ["open", "read", "size", "listdir"])
def test_a_system_that_refuses_is_no_damage(store: Path, kind: str) -> None:
    for number in (1, 3, 10, 20):
        fs = WatchedFileSystem()
        fs.fail(5, kind, at=number, times=1)
        try:
            report = verified(store, fs)
        except StorageError as error:
            assert error.errno == 5
        else:
            assert report.ok
        assert fs.open_files == 0


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        verified(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError):
        verified(tmp_path)


def test_a_newer_version_is_refused(store: Path) -> None:
    path = segments(store / "t")[2]
    header = SegmentHeader.decode(path.read_bytes())
    newer = SegmentHeader(header.base, header.topic, header.created_ns, header.salt, header.checksum, version=9)
    overwrite(path, 0, newer.encode())
    with pytest.raises(FormatVersionError):
        verified(store)


def test_an_empty_store_is_ok(tmp_path: Path) -> None:
    report = verified(tmp_path)
    assert (report.ok, report.files, report.bytes, report.records) == (True, (), 0, 0)


def test_a_topic_without_messages_is_ok(tmp_path: Path) -> None:
    open_log(tmp_path / "t").close()
    assert verified(tmp_path).findings == ()


def test_what_retention_deleted_is_no_loss(store: Path) -> None:
    """Both channels have settled offsets 14 and 15; a segment of just those may go."""
    log = open_log(store / "t", segment_bytes=428)
    put_each(log, [b"y" * 60] * 10)
    log.close()

    middle = log.segments[5]
    for name in ("one", "two"):
        journal = ChannelJournal(WatchedFileSystem(), str(store / "t" / "channels" / name), 0)
        journal.append([Op(OpKind.ACK, middle.base, middle.end - middle.base)])
        journal.close()
    Path(middle.path).unlink()
    assert verified(store).findings == ()
