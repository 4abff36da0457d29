"""Metadata that is right, wrong, or about another queue than the one that is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.diskqueue import DiskQueueMetadata
from aiodq.errors import CorruptionError
from tests.diskqueue.queues import disk, meta, outcome, path, records

BODIES = [b"one", b"two", b"three", b"four"]
FILES: dict[str | int, bytes] = {3: records(b"one", b"two"), 4: records(b"three", b"four")}

GARBAGE = [
    b"",
    b"\n\n\n",
    b"4\n3,0\n4,17",
    b"4\n3,0\n4,17\n\n",
    b"4\r\n3,0\r\n4,17\r\n",
    b" 4\n3,0\n4,17\n",
    b"4\n3,-1\n4,17\n",
    b"4\n3,0\n",
    b"4,3\n0,4\n17\n",
    b"4\n3;0\n4;17\n",
    b"4\n4,1\n4,0\n",
    b"4\n5,0\n4,17\n",
    b"0x4\n3,0\n4,17\n",
    "٤\n3,0\n4,17\n".encode(),
    b"4\n3,0\n4,9223372036854775808\n",
    b"4\n3,0\n4,99999999999999999999\n",
    b"4\n3,0\n4,17\n" + bytes(100),
    bytes(16),
    b"9" * 100_000,
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_is_no_metadata(data: bytes) -> None:
    with pytest.raises(CorruptionError) as raised:
        DiskQueueMetadata.decode(data, "here")
    assert (raised.value.path, raised.value.position) == ("here", 0)


@pytest.mark.parametrize("data", GARBAGE)
def test_with_garbage_for_metadata_all_is_read(data: bytes) -> None:
    bodies, findings = outcome(disk({**FILES, "meta": data}))
    assert bodies == BODIES
    assert [found[:4] for found in findings] == [("bad-metadata", path("meta"), 0, 0)]


@given(st.binary(max_size=60))
def test_any_bytes_for_metadata_lose_nothing_silently(data: bytes) -> None:
    bodies, findings = outcome(disk({**FILES, "meta": data}))
    assert bodies == BODIES or findings


NUMBER = st.integers(0, 2**63 - 1)


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.tuples(NUMBER, NUMBER), st.tuples(NUMBER, NUMBER))
def test_metadata_is_read_as_it_was_written(depth: int, one: tuple[int, int], other: tuple[int, int]) -> None:
    low, high = sorted([one, other])
    said = DiskQueueMetadata(depth, *low, *high)
    assert said.encode() == f"{depth}\n{low[0]},{low[1]}\n{high[0]},{high[1]}\n".encode()
    assert DiskQueueMetadata.decode(said.encode()) == said


def test_the_documented_example() -> None:
    assert DiskQueueMetadata.decode(b"0\n1,14\n1,14\n") == (0, 1, 14, 1, 14)


def test_a_negative_depth_is_what_go_diskqueue_may_leave() -> None:
    assert outcome(disk({**FILES, **meta("-1\n3,0\n4,17\n")})) == (BODIES, [])


def test_missing_metadata_reads_all() -> None:
    bodies, findings = outcome(disk(FILES))
    assert bodies == BODIES
    assert [found[:3] for found in findings] == [("no-metadata", path("meta"), 0)]


def test_metadata_of_a_queue_far_ahead_reads_all() -> None:
    bodies, findings = outcome(disk({**FILES, **meta("4\n900,0\n901,17\n")}))
    assert bodies == BODIES
    assert [found.kind for found in findings] == ["bad-metadata"]


def test_a_read_position_inside_a_message_reads_its_file_from_the_beginning() -> None:
    bodies, findings = outcome(disk({**FILES, **meta("3\n3,8\n4,17\n")}))
    assert bodies == BODIES
    assert [found[:3] for found in findings] == [("bad-position", path(3), 8)]


def test_a_read_position_behind_damage_is_believed() -> None:
    damaged = b"\xff\xff\xff\xff" + FILES[3][4:]
    bodies, findings = outcome(disk({**FILES, 3: damaged, **meta("3\n3,7\n4,17\n")}))
    assert bodies == BODIES[1:]
    assert not findings


def test_a_file_before_the_read_position_is_told_and_not_read() -> None:
    bodies, findings = outcome(disk({**FILES, **meta("2\n4,0\n4,17\n")}))
    assert bodies == BODIES[2:]
    assert [found[:3] for found in findings] == [("already-read", path(3), 0)]
    assert not findings[0].loses


@pytest.mark.parametrize(
    ("text", "stale"),
    [("2\n3,0\n3,14\n", (4, 0, 0)), ("1\n3,0\n3,7\n", (4, 0, 0)), ("3\n3,0\n4,9\n", (4, 9, 17))],
)
def test_older_metadata_keeps_nothing_back(text: str, stale: tuple[int, int, int]) -> None:
    bodies, findings = outcome(disk({**FILES, **meta(text)}))
    assert bodies == BODIES
    number, position, end = stale
    assert ("stale-metadata", path(number), position, end) in [found[:4] for found in findings]
    assert not any(found.loses for found in findings)


@pytest.mark.parametrize("text", ["0\n4,17\n4,17\n", "0\n5,0\n5,0\n"])
def test_an_empty_queue_has_nothing_to_read(text: str) -> None:
    bodies, findings = outcome(disk({4: FILES[4], **meta(text)}))
    assert bodies == []
    assert {found.kind for found in findings} <= {"already-read"}


def test_a_queue_that_never_had_a_message_has_metadata_only() -> None:
    assert outcome(disk(meta("0\n0,0\n0,0\n"))) == ([], [])
