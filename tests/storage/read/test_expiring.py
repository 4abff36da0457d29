"""Which messages of a log have a time to live, in runs of neighbours that expire together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.storage.read.expiring import expiring_from, expiring_in
from aiodq.storage.read.log_reader import LogReader
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import open_log

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("expiries", "runs"),
    [
        (None, []),
        ([0, 0], []),
        ([9], [(5, 1, 100, 9)]),
        ([9, 9, 9], [(5, 3, 100, 9)]),
        ([0, 9, 9, 0], [(6, 2, 101, 9)]),
        ([9, 8, 8, 7], [(5, 1, 100, 9), (6, 2, 101, 8), (8, 1, 103, 7)]),
    ],
)
def test_neighbours_that_expire_together_are_one_run(
    expiries: list[int] | None, runs: list[tuple[int, int, int, int]]
) -> None:
    bodies = [b""] * len(expiries or [0])
    times = list(range(100, 100 + len(bodies)))
    assert list(expiring_in(Batch(5, 77, Columns(bodies, expiries=expiries, times=times)))) == runs
    together = [(first, number, 77, expiry) for first, number, _, expiry in runs]
    assert list(expiring_in(Batch(5, 77, Columns(bodies, expiries=expiries)))) == together


def test_only_segments_that_hold_such_messages_are_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "orders")
    for expiries in (None, [0, 9], None, [8]):
        assert log.stage(Columns([b"x"] * len(expiries or [0]), expiries=expiries), 77, atomic=False) is not None
        log.flush()
        log.commit()
        log.roll()
    fs, view = WatchedFileSystem(), log.view()
    assert expiring_from(LogReader(fs), view, 0) == ([(2, 1, 77, 9)], 3)
    assert expiring_from(LogReader(fs), view, 2) == ([(2, 1, 77, 9)], 3)
    assert expiring_from(LogReader(fs), view, 3) == ([(4, 1, 77, 8)], 5)
    assert expiring_from(LogReader(fs), view, 5) == ([], 5)
    log.close()
