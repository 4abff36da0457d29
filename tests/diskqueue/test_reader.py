"""What is read beside damage, and what is said about it."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.diskqueue import MAX_MESSAGE_BYTES, list_queues, read
from aiodq.errors import InvalidNameError, InvalidOptionError, StorageError, StoreNotFoundError
from aiodq.testing import Fault, SimulatedFileSystem
from tests.diskqueue.queues import AT, NAME, disk, left_open, messages, meta, outcome, path, record, records

if TYPE_CHECKING:
    from pathlib import Path

BODIES = messages(range(12))
FILES: dict[str | int, bytes] = {n: records(*BODIES[4 * n : 4 * n + 4]) for n in range(3)}
GOOD = meta(f"12\n0,0\n2,{len(FILES[2])}\n")


def changed(number: int, data: bytes) -> SimulatedFileSystem:
    return disk({**FILES, **GOOD, number: data})


def without(number: int) -> SimulatedFileSystem:
    return disk({key: data for key, data in (FILES | GOOD).items() if key != number})


def starts(bodies: list[bytes]) -> list[int]:
    """Return where each record begins, and where the last one ends."""
    return [sum(4 + len(body) for body in bodies[:n]) for n in range(len(bodies) + 1)]


def test_the_whole_queue_is_read_and_nothing_is_found() -> None:
    assert outcome(disk({**FILES, **GOOD})) == (BODIES, [])


def test_reading_goes_on_where_the_metadata_says() -> None:
    at = starts(BODIES[4:8])
    said = meta(f"5\n1,{at[3]}\n2,{len(FILES[2])}\n")
    assert outcome(disk({**{n: FILES[n] for n in (1, 2)}, **said})) == (BODIES[7:], [])


def test_reading_goes_on_behind_a_file_that_was_read_to_its_end() -> None:
    said = meta(f"4\n1,{len(FILES[1])}\n2,{len(FILES[2])}\n")
    assert outcome(disk({**{n: FILES[n] for n in (1, 2)}, **said})) == (BODIES[8:], [])


# --- cut files


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("size", range(len(FILES[2])))
def test_the_last_file_cut_anywhere(size: int, said: bool) -> None:
    at = starts(BODIES[8:])
    whole = sum(end <= size for end in at[1:])
    fs = disk({**FILES, 2: FILES[2][:size], **(GOOD if said else {})})
    bodies, findings = outcome(fs)
    assert bodies == BODIES[: 8 + whole]
    findings = [found for found in findings if found.kind != "no-metadata"]
    if size not in at:
        assert [found[:4] for found in findings] == [("torn", path(2), at[whole], size)]
    elif said:
        assert [found[:4] for found in findings] == [("lost-end", path(2), size, len(FILES[2]))]
    else:
        assert findings == []


def test_a_cut_file_in_the_middle_costs_only_itself() -> None:
    bodies, findings = outcome(changed(1, FILES[1][:-1]))
    assert bodies == BODIES[:7] + BODIES[8:]
    assert [found[:4] for found in findings] == [("torn", path(1), starts(BODIES[4:8])[3], len(FILES[1]) - 1)]


def test_a_file_cut_before_the_read_position_is_told() -> None:
    fs = disk({0: FILES[0][:10], 1: FILES[1], **meta(f"5\n0,19\n1,{len(FILES[1])}\n")})
    bodies, findings = outcome(fs)
    assert bodies == BODIES[4:8]
    assert [found[:4] for found in findings] == [("lost-end", path(0), 10, 19)]


def test_a_queue_all_read_and_then_cut_has_lost_nothing() -> None:
    assert outcome(disk({0: b"", **meta("0\n0,19\n0,19\n")})) == ([], [])


# --- lengths


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("length", "kind"),
    [
        (2**31 - 1, "torn"),
        (10_000, "torn"),
        (-1, "bad-length"),
        (-(2**31), "bad-length"),
    ],
)
def test_a_hostile_length_costs_the_rest_of_its_file(length: int, kind: str, number: int) -> None:
    at = starts(BODIES[4 * number : 4 * number + 4])[1]
    data = FILES[number]
    bodies, findings = outcome(changed(number, data[:at] + struct.pack(">i", length) + data[at + 4 :]))
    assert bodies == BODIES[: 4 * number + 1] + BODIES[4 * number + 4 :]
    assert [found[:4] for found in findings] == [(kind, path(number), at, len(data))]
    assert all(found.loses and str(length) in found.reason for found in findings)


def test_a_length_beyond_the_limit_is_damage_even_where_the_file_is_long_enough() -> None:
    fs = disk({0: records(b"a" * 5, b"b" * 6, b"c"), **meta("3\n0,0\n0,24\n")})
    reader = read(AT, NAME, max_message_bytes=5, fs=fs)
    assert [found.body for found in reader] == [b"a" * 5]
    assert [found[:4] for found in reader.findings] == [("bad-length", path(0), 9, 24)]


def test_zeros_are_damage_where_no_message_is_empty() -> None:
    data = FILES[2] + bytes(40)
    bodies, findings = outcome(changed(2, data), least=1)
    assert bodies == BODIES
    assert ("bad-length", path(2), len(FILES[2]), len(data)) in [found[:4] for found in findings]


def test_empty_messages_are_messages() -> None:
    assert outcome(disk({0: records(b"", b"x", b""), **meta("3\n0,0\n0,13\n")})) == ([b"", b"x", b""], [])


def test_no_memory_is_taken_for_a_length_before_the_file_is_asked(tmp_path: Path) -> None:
    file = tmp_path / f"{NAME}.diskqueue.000000.dat"
    file.write_bytes(record(b"good") + struct.pack(">i", MAX_MESSAGE_BYTES))
    os.truncate(file, 64 << 20)
    tracemalloc.start()
    try:
        reader = read(tmp_path, NAME)
        assert [found.body for found in reader] == [b"good"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_messages_larger_than_the_window_and_across_its_edge(tmp_path: Path) -> None:
    bodies = [bytes([n]) * size for n, size in enumerate([65_530, 3, 200_000, 0, 65_532, 65_536, 65_537, 1])]
    (tmp_path / f"{NAME}.diskqueue.000000.dat").write_bytes(records(*bodies))
    found = list(read(tmp_path, NAME))
    assert [one.body for one in found] == bodies
    assert [two.position - one.position for one, two in pairwise(found)] == [4 + len(body) for body in bodies[:-1]]


@given(st.binary(max_size=200), st.binary(max_size=30))
def test_any_bytes_for_a_file_end_somewhere(data: bytes, said: bytes) -> None:
    bodies, findings = outcome(disk({0: data, "meta": said, 1: records(b"behind")}))
    assert bodies[-1] == b"behind" or findings
    read_bytes = sum(4 + len(body) for body in bodies[:-1])
    assert read_bytes == len(data) or findings


# --- files


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_file_is_jumped_over(number: int) -> None:
    bodies, findings = outcome(without(number))
    assert bodies == [body for n, body in enumerate(BODIES) if n // 4 != number]
    assert [found[:4] for found in findings] == [("missing-file", path(number), 0, 0)]


def test_a_missing_last_file_is_told() -> None:
    bodies, findings = outcome(without(2))
    assert bodies == BODIES[:8]
    assert [found[:2] for found in findings] == [("missing-file", path(2))]


def test_a_file_that_is_yet_to_be_written_is_not_missing() -> None:
    assert outcome(disk({0: FILES[0], **meta("4\n0,0\n1,0\n")})) == (BODIES[:4], [])


def test_a_gap_of_a_billion_files_is_one_step() -> None:
    far = 10**9
    bodies, findings = outcome(disk({0: FILES[0], far: FILES[1], **meta(f"8\n0,0\n{far},{len(FILES[1])}\n")}))
    assert bodies == BODIES[:8]
    assert [found[:2] for found in findings] == [("missing-file", path(1))]


def test_without_metadata_the_first_file_may_have_any_number() -> None:
    bodies, findings = outcome(disk({1_000_000: FILES[1], 999_999: FILES[0], 7: b""}))
    assert bodies == BODIES[:8]
    assert [found.kind for found in findings] == ["no-metadata", "missing-file"]


def test_a_file_set_aside_is_not_read() -> None:
    fs = disk({0: FILES[0], 1: FILES[1], **meta(f"8\n0,0\n1,{len(FILES[1])}\n")})
    fs.rename(path(0), path(0) + ".bad")
    bodies, findings = outcome(fs)
    assert bodies == BODIES[4:8]
    assert [found[:2] for found in findings] == [("missing-file", path(0))]


def test_other_names_are_other_queues() -> None:
    image: dict[str, bytes | None] = {AT: None}
    for name in ("a", "a.b", "a:c", "b.diskqueue.000000.dat", "b", "%d"):
        image[f"{AT}/{name}.diskqueue.000000.dat"] = record(name.encode())
    others = ("a.diskqueue.00000.dat", "a.diskqueue.0000001.dat", "a.diskqueue.000001.dat.bad", "a.diskqueue.meta.tmp")
    image |= {f"{AT}/{other}": record(b"no") for other in others}
    fs = SimulatedFileSystem(image)
    for name in list_queues(AT, fs=fs):
        reader = read(AT, name, fs=fs)
        assert [found.body for found in reader] == [name.encode()]
        assert [found.kind for found in reader.findings] == ["no-metadata"]
    assert list_queues(AT, fs=fs) == sorted(["a", "a.b", "a:c", "b.diskqueue.000000.dat", "b", "%d"])


def test_a_file_that_goes_while_it_is_read_is_missing() -> None:
    fs = disk({**FILES, **GOOD})
    reader = read(AT, NAME, fs=fs)
    fs.remove(path(1))
    assert [found.body for found in reader] == BODIES[:4] + BODIES[8:]
    assert [found[:2] for found in reader.findings] == [("missing-file", path(1))]


# --- errors


def test_a_queue_or_directory_that_is_not_there() -> None:
    with pytest.raises(StoreNotFoundError):
        read(AT, "other", fs=disk(FILES))
    with pytest.raises(StoreNotFoundError):
        read("/nowhere", NAME, fs=disk(FILES))
    with pytest.raises(StoreNotFoundError):
        list_queues("/nowhere", fs=disk(FILES))


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a\0b"])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidNameError):
        read(AT, name, fs=disk(FILES))


@pytest.mark.parametrize(("least", "most"), [(-1, 5), (6, 5), (0, 2**31)])
def test_sizes_that_are_none(least: int, most: int) -> None:
    with pytest.raises(InvalidOptionError):
        read(AT, NAME, min_message_bytes=least, max_message_bytes=most, fs=disk(FILES))


@pytest.mark.parametrize(
    ("fault", "retriable"),
    [
        (Fault("open", 3, "EMFILE"), True),
        (Fault("read", 2, "EIO"), False),
        (Fault("size", 3, "EIO"), False),
        (Fault("open", 1, "EACCES"), False),
        (Fault("listdir", 1, "EIO"), False),
    ],
)
def test_what_the_system_refuses_is_never_damage(fault: Fault, retriable: bool) -> None:
    fs = disk({**FILES, **GOOD})
    fs.plan.add(fault)
    with pytest.raises(StorageError) as raised:
        list(read(AT, NAME, fs=fs))
    assert raised.value.errno == getattr(errno, fault.error)
    assert raised.value.retriable is retriable
    assert left_open(fs) == (fault.call == "open")
    fs.plan.clear()
    assert outcome(disk({**FILES, **GOOD})) == (BODIES, [])


def test_an_iteration_left_early_closes_its_file() -> None:
    fs = disk({**FILES, **GOOD})
    found = iter(read(AT, NAME, fs=fs))
    next(found)
    del found
    assert left_open(fs) == 0
