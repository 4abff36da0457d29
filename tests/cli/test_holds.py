from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import Hold, write_hold
from tests.cli.support import aiodq, fill, ok

if TYPE_CHECKING:
    from pathlib import Path


def test_holds_are_shown_and_released(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    assert ok("holds", tmp_path).lines == []
    fs = OsFileSystem()
    write_hold(fs, str(tmp_path), "daily", Hold({"t": 1}, None))
    write_hold(fs, str(tmp_path), "some", Hold({}, ("a*", "b")))
    assert ok("holds", tmp_path).lines == [
        b"daily: keeps t from offset 1 on",
        b"daily: keeps every other topic",
        b"some: keeps all of 2 patterns: a*, b",
    ]
    found = json.loads(ok("holds", tmp_path, "--json").out)
    assert found["some"] == {"offsets": {}, "patterns": ["a*", "b"], "under_way": False}
    assert ok("holds", tmp_path, "--release", "daily").lines == [b"released daily"]
    done = aiodq("holds", tmp_path, "--release", "daily")
    assert (done.code, done.lines) == (1, [])
    assert "there is no hold 'daily'" in done.err
    assert aiodq("holds", tmp_path / "none").code == 2
