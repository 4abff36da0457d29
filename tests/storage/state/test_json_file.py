"""Small JSON files: indented for people as long as that is cheap."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from aiodq import Backoff, ChannelOptions, CorruptionError
from aiodq.storage.state.json_file import decode_checked, encode_checked
from aiodq.storage.state.topic.topic_meta import TopicMeta, decode_meta, encode_meta

if TYPE_CHECKING:
    from types import FrameType


@pytest.mark.parametrize("number", [1, 5000])
def test_a_file_of_any_length_is_read_as_it_was_written(number: int) -> None:
    content: dict[str, object] = {"rows": [["ä", each, None] for each in range(number)], "more": {"b": 1, "a": True}}
    data = encode_checked("kind", 3, content)
    assert decode_checked(data, "kind", 3, "path", "the file") == {"version": 3, **content}
    assert data.endswith(b"\n")
    assert (data.count(b"\n") > 1) is (number == 1)
    for at in range(0, len(data) - 1, max(len(data) // 50, 1)):
        other = bytearray(data)
        other[at] ^= 1
        with pytest.raises(CorruptionError, match="the file"):
            decode_checked(bytes(other), "kind", 3, "path", "the file")


def test_a_change_of_one_channel_among_many_takes_few_steps() -> None:
    names = [f"channel-{number}" for number in range(1000)]
    options = {name: ChannelOptions(max_in_flight=7, backoff=Backoff(first=1), tags={"a"}) for name in names}
    meta = TopicMeta(uuid4(), channels=dict.fromkeys(names, 3), channel_options=options)
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        data = encode_meta(meta)
    finally:
        sys.setprofile(None)
    assert calls < 5 * len(names)
    assert decode_meta(data, "path") == meta
