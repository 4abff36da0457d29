"""What is said of the system's errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiodq.errors import StoreNotFoundError
from aiodq.storage.io.os_errors import os_errors

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_missing_comes_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "t" / "00000000000000000000.seg"
    with pytest.raises(StoreNotFoundError) as caught, os_errors(path):
        path.read_bytes()
    said = str(caught.value)
    assert str(path) in said
    for part in ("put it back", "aiodq verify", "aiodq repair", "backup"):
        assert part in said
