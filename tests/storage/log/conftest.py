"""A topic whose messages are all synced, and its watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiodq.storage.state.watermark import WATERMARK, WatermarkFile
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import open_log, put_each

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [b"a", b"bb" * 9, b"", b"ccc" * 30, b"d" * 17]
ALL = [b"x" * 50] * 4 + SMALL


@pytest.fixture
def synced(tmp_path: Path) -> Path:
    """A topic of two segments, with all of it synced and noted so."""
    directory = tmp_path / "synced"
    log = open_log(directory, segment_bytes=600)
    put_each(log, [b"x" * 50] * 4)
    log.roll()
    put_each(log, SMALL)
    log.abandon()
    return directory


def note(directory: Path, value: int) -> None:
    slots = WatermarkFile(WatchedFileSystem(), str(directory / WATERMARK))
    slots.write(value, 0)
    slots.close()
