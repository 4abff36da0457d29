"""What the real go-diskqueue 1.1.0 has written, read and written again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from aiodq.diskqueue import DiskQueueMetadata, list_queues, read, write
from tests.diskqueue.queues import DATA, messages

if TYPE_CHECKING:
    from pathlib import Path

RANGES = {
    "clean": ("orders", [range(20)]),
    "rolled": ("orders:billing", [range(75, 300)]),
    # 73 and 74 were read after the last sync, so they come again.
    "killed": ("orders", [range(73, 300)]),
    "nometa": ("orders", [range(50)]),
    "torn": ("orders", [range(10, 99)]),
    "stale": ("orders", [range(20, 60), range(40)]),
}
FINDINGS = {
    "nometa": [("no-metadata", "meta", 0, 0)],
    "torn": [("torn", "000003", 493, 507)],
    "stale": [("stale-metadata", "000000", 2910, 4450)],
}


def state(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def expected(case: str) -> list[bytes]:
    return [body for numbers in RANGES[case][1] for body in messages(numbers)]


@pytest.mark.parametrize("case", RANGES)
def test_it_delivers_what_its_readme_says(case: str, tmp_path: Path) -> None:
    directory = shutil.copytree(DATA / case, tmp_path / case)
    before = state(directory)
    reader = read(directory, RANGES[case][0])
    assert [found.body for found in reader] == expected(case)
    assert state(directory) == before


@pytest.mark.parametrize("case", RANGES)
def test_it_reports_what_is_wrong_and_nothing_else(case: str) -> None:
    name = RANGES[case][0]
    reader = read(DATA / case, name)
    for _ in range(2):
        assert len(list(reader)) == len(expected(case))
        wanted = [
            (kind, str(DATA / case / f"{name}.diskqueue.{key}.dat"), position, end)
            for kind, key, position, end in FINDINGS.get(case, [])
        ]
        assert [found[:4] for found in reader.findings] == wanted
    assert any(found.loses for found in reader.findings) == (case == "torn")


@pytest.mark.parametrize("case", RANGES)
def test_messages_say_where_they_were_found(case: str) -> None:
    name = RANGES[case][0]
    for found in read(DATA / case, name):
        data = (DATA / case / f"{name}.diskqueue.{found.file:06d}.dat").read_bytes()[found.position :]
        assert data[: 4 + len(found.body)] == len(found.body).to_bytes(4, "big") + found.body


@pytest.mark.parametrize("case", RANGES)
def test_queues_are_listed(case: str) -> None:
    assert list_queues(DATA / case) == [RANGES[case][0]]


def test_an_unread_queue_read_and_written_again_is_the_same_to_the_byte(tmp_path: Path) -> None:
    write(tmp_path, "orders", [found.body for found in read(DATA / "clean", "orders")])
    names = sorted(path.name for path in (DATA / "clean").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (DATA / "clean" / name).read_bytes()


@pytest.mark.parametrize(
    ("case", "limit", "numbers", "shared"),
    [
        ("rolled", 4096, [range(300)], [1, 2, 3, 4]),
        ("killed", 4096, [range(300)], [1, 2, 3, 4]),
        ("nometa", 1 << 20, [range(50)], [0]),
        ("torn", 2048, [range(100)], [0, 1, 2]),
        ("stale", 1 << 20, [range(60), range(40)], [0]),
    ],
)
def test_what_was_put_and_partly_read_since_has_the_same_data_files(
    case: str, limit: int, numbers: list[range], shared: list[int], tmp_path: Path
) -> None:
    name = RANGES[case][0]
    bodies = [body for some in numbers for body in messages(some)]
    done = write(tmp_path, name, bodies, max_bytes_per_file=limit)
    for number in shared:
        file = f"{name}.diskqueue.{number:06d}.dat"
        assert (tmp_path / file).read_bytes() == (DATA / case / file).read_bytes()
    theirs = DATA / case / f"{name}.diskqueue.meta.dat"
    if case not in {"nometa", "stale"}:
        assert done[3:] == DiskQueueMetadata.decode(theirs.read_bytes())[3:]


def test_the_torn_file_is_the_beginning_of_the_whole_one(tmp_path: Path) -> None:
    write(tmp_path, "orders", messages(range(100)), max_bytes_per_file=2048)
    file = "orders.diskqueue.000003.dat"
    assert (tmp_path / file).read_bytes()[:-7] == (DATA / "torn" / file).read_bytes()


@pytest.mark.parametrize("case", [case for case in RANGES if case not in FINDINGS])
def test_metadata_is_written_as_it_was_read(case: str) -> None:
    data = (DATA / case / f"{RANGES[case][0]}.diskqueue.meta.dat").read_bytes()
    assert DiskQueueMetadata.decode(data).encode() == data
