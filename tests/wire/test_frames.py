"""Messages in packets: all that a message may have arrives; what is changed on the way is a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given

from aiodq.errors import ProtocolError
from aiodq.format.codecs import CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.frame import FrameContext, encode_frames
from aiodq.wire.frames import decode_messages, encode_messages
from tests.format.support import (
    CONTEXT,
    TIME,
    all_columns,
    columns_strategy,
    control_frame,
    flipped,
    records_in,
    records_of,
)

OURS = FrameContext(0, CONTEXT.checksum, 0)


@given(columns_strategy())
def test_messages_arrive_as_they_were_sent(columns: Columns) -> None:
    batches = decode_messages(encode_messages(columns, TIME), 1000, len(columns.bodies))
    assert records_in(batches) == records_of(1000, TIME, columns)


@pytest.mark.parametrize("codec", [0, CODEC_ZSTD])
def test_many_messages_are_several_frames(codec: int) -> None:
    columns = Columns([b"%d " % number * 100 for number in range(3000)])
    batches = decode_messages(encode_messages(columns, TIME, codec), 7, 3000)
    assert len(batches) > 3
    assert records_in(batches) == records_of(7, TIME, columns)


def test_any_bit_that_is_not_right_is_noticed() -> None:
    data = encode_messages(all_columns(3), TIME)
    for bit in range(len(data) * 8):
        with pytest.raises(ProtocolError):
            decode_messages(flipped(data, bit), 0, 3)


def test_any_bit_of_a_lone_message_with_labels_that_is_not_right_is_noticed() -> None:
    data = encode_messages(Columns([b"body"], tags=["t"], keys=[b"k"], headers=[{"a": "b"}]), TIME)
    for bit in range(len(data) * 8):
        with pytest.raises(ProtocolError):
            decode_messages(flipped(data, bit), 0, 1)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_messages(data[:size], 0, 1)


def test_what_is_cut_short_or_does_not_follow_is_refused() -> None:
    one, other = encode_messages(Columns([b"a", b"b"]), TIME), encode_messages(Columns([b"c"]), TIME)
    for size in range(len(one)):
        with pytest.raises(ProtocolError):
            decode_messages(one[:size], 0)
    for data in (one + other, one + one, control_frame(OURS, first=0), one + control_frame(OURS, first=2)):
        with pytest.raises(ProtocolError, match="follow"):
            decode_messages(data, 0)
    for count in (1, 3, 0):
        with pytest.raises(ProtocolError, match=f"holds {count} messages, and it holds 2"):
            decode_messages(one, 0, count)
    gap = b"".join(encode_frames(Columns([b"c"]), OURS, first=3, watermark=0, time_ns=TIME))
    with pytest.raises(ProtocolError, match="follow"):
        decode_messages(one + gap, 0)
