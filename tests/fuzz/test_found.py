"""What fuzzing found, each under the name of what was wrong. The inputs themselves are in the corpus as `found-…`."""

from __future__ import annotations

import pytest

from aiodq.errors import CorruptionError
from aiodq.format.columns import Columns
from aiodq.format.decode import decode_frames
from aiodq.format.frame import encode_frames, read_prefix
from aiodq.format.journal import ChannelImage, decode_checkpoint, encode_checkpoint
from aiodq.format.layout import FRAME_PREFIX, TRAILER
from aiodq.format.segment import SegmentHeader
from aiodq.storage.log.recovery import recover
from aiodq.storage.read.log_reader import LogReader, LogView
from aiodq.testing import SimulatedFileSystem
from tests.format.support import first_frame
from tests.fuzz.mend import SALT, mend_frames
from tests.fuzz.targets import BASE, CONTEXT, START, TOPIC


@pytest.mark.parametrize("detail", [8, 255])
def test_a_control_frame_with_a_detail_that_no_kind_has_is_none_to_every_reader(detail: int) -> None:
    length = FRAME_PREFIX.size + TRAILER.size
    data = mend_frames(FRAME_PREFIX.pack(length, 0, 0xE2, detail, 0, 0, 0, 0) + TRAILER.pack(length))
    with pytest.raises(CorruptionError):
        read_prefix(data, 0, CONTEXT, position=START, limit=START + length)
    assert decode_frames(data, CONTEXT, position=START, limit=START + length)[1] == 0
    assert first_frame(data, 0, CONTEXT, position=START, limit=START + length) is None


def test_a_frame_of_right_checksum_and_wrong_content_is_stepped_over() -> None:
    """The search for what follows found the frame itself, again and again."""
    frames = [
        frame
        for number in range(3)
        for frame in encode_frames(
            Columns([b"body %d" % number]), CONTEXT, first=BASE + number, watermark=BASE, time_ns=1
        )
    ]
    frames[1] = mend_frames(frames[1][:10] + b"\x01\x00" + frames[1][12:])
    path = f"/t/{BASE:020d}.seg"
    fs = SimulatedFileSystem({path: SegmentHeader(BASE, TOPIC, 1, SALT).encode() + b"".join(frames)})
    (segment,) = recover(fs, "/t", TOPIC, 0).segments
    reader = LogReader(fs)
    view = LogView((segment,), segment.end, segment.data_end)
    at = BASE
    bodies: list[bytes] = []
    lost: list[tuple[int, ...]] = []
    while at < view.stop:
        result = reader.read(view, at, 4096)
        assert result.next > at
        bodies += [body for batch in result.batches for body in batch.columns.bodies]
        lost += [(damage.position, damage.end, damage.first, damage.stop) for damage in result.damages]
        at = result.next
    reader.close()
    assert bodies == [b"body 0", b"body 2"]
    assert lost == [(START + 40, START + 80, BASE + 1, BASE + 2)]


@pytest.mark.parametrize(
    "ranges", [[(9, 7)], [(7, 7)], [(7, 9), (8, 12)], [(12, 13), (7, 9)], [(7, 2**63 + 1)]], ids=str
)
def test_a_checkpoint_whose_ranges_are_not_in_order_is_damaged(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(CorruptionError, match="not in order"):
        decode_checkpoint(bytes(encode_checkpoint(ChannelImage(5, ranges), 1)))


def test_a_checkpoint_whose_floor_is_no_offset_is_damaged() -> None:
    with pytest.raises(CorruptionError, match="not in order"):
        decode_checkpoint(bytes(encode_checkpoint(ChannelImage(2**63 + 1), 1)))
