"""A frame is known again by its time and checksum, and what was put after its loss is told from what was before."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

from aiodq.format.columns import Columns
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.read.frame_marks import FrameMark, find_frame, first_other
from aiodq.storage.read.log_reader import LogReader
from aiodq.storage.read.snapshot import LogSnapshot
from tests.storage.logs import SECOND, START, flip, open_log, put, put_each, segments

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.storage.read.log_reader import LogView

FS = OsFileSystem()


def view_of(directory: Path) -> LogView:
    snapshot = LogSnapshot(FS, str(directory))
    snapshot.refresh()
    return snapshot.view


def marks(view: LogView) -> list[FrameMark | None]:
    found = [find_frame(FS, view, offset) for offset in range(view.stop)]
    return [None if place is None else place.mark for place in found]


def fill(directory: Path) -> None:
    """Put single messages, batches and runs, over several segments, the last one not sealed."""
    with closing(open_log(directory, segment_bytes=8192)) as log:
        for number in range(40):
            put_each(log, [b"x" * number] * 3, sync=number % 7 == 0)
            put(log, [b"y" * 30] * 9, sync=False)
            put(log, [b"z" * 900] * 3, atomic=True, sync=False)


def test_each_message_is_found_in_the_frame_that_has_it(tmp_path: Path) -> None:
    fill(tmp_path)
    view, reader = view_of(tmp_path), LogReader(FS)
    assert len(view.segments) > 3
    at = 0
    while at < view.stop:
        for batch in (result := reader.read(view, at, 1)).batches:
            times = batch.columns.times or [batch.time_ns] * (batch.stop - batch.first)
            for offset in range(max(batch.first, at), batch.stop):
                place = find_frame(FS, view, offset, check=True)
                assert place is not None
                assert place.mark.time_ns == times[offset - batch.first]
                assert place.is_kept(FS)
        at = result.next
    reader.close()
    assert find_frame(FS, view, view.stop) is None
    assert find_frame(FS, view, -1) is None


def test_what_is_durable_is_said_and_lies_in_the_segment(tmp_path: Path) -> None:
    fill(tmp_path)
    view = view_of(tmp_path)
    for segment in view.segments:
        found = [find_frame(FS, view, offset) for offset in range(segment.base, segment.end)]
        assert all(place is not None and segment.base <= place.mark.durable <= segment.end for place in found)
    assert len({None if mark is None else mark.durable for mark in marks(view)}) > len(view.segments)


def test_a_frame_that_was_deleted_or_damaged_is_none(tmp_path: Path) -> None:
    fill(tmp_path)
    view = view_of(tmp_path)
    first, second, *_ = view.segments
    places = [find_frame(FS, view, segment.base) for segment in (first, second)]
    assert places[0] is not None
    assert places[1] is not None
    flip(segments(tmp_path)[0], places[0].position + 25, 1)
    assert find_frame(FS, view, first.base) is not None
    assert find_frame(FS, view, first.base, check=True) is None
    segments(tmp_path)[1].unlink()
    assert not places[1].is_kept(FS)
    assert [find_frame(FS, view, offset) for offset in (second.base, second.end - 1)] == [None, None]


def test_what_was_put_after_a_loss_is_told_by_its_time(tmp_path: Path) -> None:
    with closing(open_log(tmp_path / "log")) as log:
        put_each(log, [b"x"] * 100)
    shutil.copytree(tmp_path / "log", tmp_path / "saved")
    with closing(open_log(tmp_path / "log")) as log:
        put_each(log, [b"x"] * 100)
    before = marks(view_of(tmp_path / "log"))
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "saved", tmp_path / "log")
    with closing(open_log(tmp_path / "log")) as log:
        put_each(log, [b"other"] * 150)
    view = view_of(tmp_path / "log")
    after = marks(view)
    assert before[:100] == after[:100]
    assert not set(before[100:]) & set(after)
    for mark in before[100:]:
        assert mark is not None
        assert first_other(FS, view, mark, 200) == 100
        assert first_other(FS, view, mark, 100) is None
        assert first_other(FS, view, mark._replace(time_ns=1 << 62), 200) is None


def test_a_segment_that_begins_where_there_was_none_is_another(tmp_path: Path) -> None:
    """It may have been written elsewhere, long before."""
    with closing(open_log(tmp_path)) as log:
        put(log, [b"x"] * 10)
        log.roll()
        put(log, [b"staged"] * 10, time_ns=START)
        log.roll()
        put(log, [b"x"] * 10)
    view = view_of(tmp_path)
    times = [segment.newest_ns for segment in view.segments]
    assert times[1] < times[0] < times[2]
    mark = FrameMark(times[2] - SECOND, 0, 4)
    assert first_other(FS, view, mark, 30) == 10
    assert first_other(FS, view, mark._replace(durable=10), 30) == 20
    assert first_other(FS, view, mark._replace(time_ns=times[0] - 1), 30) == 0
    assert first_other(FS, view, mark, 10) is None


def test_what_cannot_be_read_may_be_another(tmp_path: Path) -> None:
    with closing(open_log(tmp_path)) as log:
        put_each(log, [b"x" * 3000] * 20)
    view = view_of(tmp_path)
    place = find_frame(FS, view, 10)
    assert place is not None
    flip(segments(tmp_path)[0], place.position, 3)
    flip(segments(tmp_path)[0], place.position + 8, 7)
    found = first_other(FS, view, place.mark, 20)
    assert found is not None
    assert found <= 11


def test_messages_of_one_put_have_one_mark(tmp_path: Path) -> None:
    with closing(open_log(tmp_path)) as log:
        log.stage(Columns([b"x"] * 5), START, atomic=False)
        log.flush()
        log.commit()
    assert len(set(marks(view_of(tmp_path)))) == 1


def test_a_reader_that_runs_while_an_earlier_copy_is_brought_back_sees_that_one(tmp_path: Path) -> None:
    """A segment of the same name may be sealed at another place in it, which looking again does not read."""
    with closing(open_log(tmp_path / "log")) as log:
        put_each(log, [b"x"] * 5)
    shutil.copytree(tmp_path / "log", tmp_path / "saved")
    snapshot = LogSnapshot(FS, str(tmp_path / "log"))
    for count, size in ((3, 10), (40, 100)):
        with closing(open_log(tmp_path / "log")) as log:
            put_each(log, [bytes(size)] * count)
            log.roll()
            put_each(log, [bytes(size)] * 20)
        snapshot.refresh()
        assert snapshot.view == view_of(tmp_path / "log")
        shutil.rmtree(tmp_path / "log")
        shutil.copytree(tmp_path / "saved", tmp_path / "log")
