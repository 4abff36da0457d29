"""Files of every released version of the format are read as they were meant, and written again byte by byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from aiodq.format.decode import decode_frames
from aiodq.format.footer import FooterTail, SegmentIndex
from aiodq.format.layout import FOOTER_TAIL, SEGMENT_HEADER
from aiodq.format.scan import frame_before
from aiodq.format.segment import SegmentHeader
from tests.format import make_golden
from tests.format.make_golden import COMPRESSED, as_json, footer_of
from tests.format.support import records_in, walk

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted(make_golden.DIRECTORY.parent.glob("v*/*.seg"))
files = pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")


class Segment(NamedTuple):
    """A golden file taken apart."""

    header: SegmentHeader
    frames: bytes
    footer: bytes
    tail: FooterTail | None

    @property
    def data_end(self) -> int:
        return SEGMENT_HEADER.size + len(self.frames)


def load(path: Path) -> Segment:
    data = path.read_bytes()
    tail = FooterTail.decode(data, len(data), str(path))
    end = len(data) if tail is None else tail.data_end
    return Segment(SegmentHeader.decode(data), data[SEGMENT_HEADER.size : end], data[end:], tail)


def listed(path: Path) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(path.with_suffix(".json").read_text("ascii"))
    return rows


def test_there_are_golden_files() -> None:
    assert {path.stem for path in FILES} == make_golden.make_all().keys()


@files
def test_header(path: Path) -> None:
    header, rows = load(path).header, listed(path)
    assert (header.base, str(header.topic)) == (rows["base"], rows["topic"])
    assert (header.created_ns, header.salt) == (rows["created_ns"], rows["salt"])
    assert (header.version, header.checksum) == (1, 1)


@files
def test_records(path: Path) -> None:
    segment = load(path)
    batches, used, error = decode_frames(
        segment.frames, segment.header.context, position=SEGMENT_HEADER.size, limit=segment.data_end
    )
    assert (used, error) == (len(segment.frames), None)
    assert [as_json(record) for record in records_in(batches)] == listed(path)["records"]


@files
def test_frames_backward(path: Path) -> None:
    segment = load(path)
    frames = []
    at = len(segment.frames)
    while at:
        frames.append(
            frame_before(
                segment.frames,
                at,
                segment.header.context,
                position=SEGMENT_HEADER.size,
                limit=segment.data_end,
            )
        )
        at -= frames[-1].length
    assert frames[::-1] == walk(segment.frames, segment.header.context)


@files
def test_footer(path: Path) -> None:
    segment, rows = load(path), listed(path)
    assert (segment.tail is not None) == rows["sealed"]
    if segment.tail is None:
        return
    frames = walk(segment.frames, segment.header.context)
    assert (segment.tail.records, segment.tail.frames) == (len(rows["records"]), len(frames))
    assert segment.tail.salt == segment.header.salt
    index = SegmentIndex.decode(segment.footer[: -FOOTER_TAIL.size], segment.tail)
    assert sum(index.records) == segment.tail.records
    assert segment.footer == footer_of(segment.header, segment.frames, len(rows["records"]))


@pytest.mark.parametrize("name", sorted(make_golden.make_all().keys() - {COMPRESSED}))
def test_todays_encoder_writes_the_same_bytes(name: str) -> None:
    assert make_golden.make_all()[name].data == (make_golden.DIRECTORY / f"{name}.seg").read_bytes()


def test_todays_script_lists_the_same_records() -> None:
    for name, golden in make_golden.make_all().items():
        assert make_golden.listing(golden) == listed(make_golden.DIRECTORY / f"{name}.seg")


def test_golden_files_have_what_they_are_for() -> None:
    parts = {path.stem: load(path) for path in FILES}
    frames = {name: walk(part.frames, part.header.context) for name, part in parts.items()}
    assert {frame.kind for frame in frames["compact"]} == {0xC5}
    assert {frame.flags for frame in frames["columns"]} == {1, 2, 4, 8, 16, 32, 63}
    assert [frame.flags for frame in frames["run"]] == [0, 0x200, 0x300, 0x100, 0]
    assert [frame.detail for frame in frames[COMPRESSED]] == [1, 1, 0]
    assert {frame.kind for frame in frames["unsealed"]} == {0xB7, 0xC5, 0xEA}
    assert [frame.kind for frame in frames["producers"]][:4] == [0xE1, 0xE0, 0xC5, 0xC5]
    assert [frame.kind for frame in frames["producers"]].count(0xE0) == 3
    tails = {name: part.tail for name, part in parts.items()}
    assert [name for name, tail in tails.items() if tail is None] == ["unsealed"]
    assert max(tail.entries for tail in tails.values() if tail is not None) > 1


def test_the_script_writes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_golden, "DIRECTORY", tmp_path)
    (tmp_path / "plain.seg").write_bytes(b"released")
    make_golden.main()
    assert (tmp_path / "plain.seg").read_bytes() == b"released"
    assert not (tmp_path / "plain.json").exists()
    assert {path.stem for path in tmp_path.glob("*.seg")} == make_golden.make_all().keys()
