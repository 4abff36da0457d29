from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.support import Owner, aiodq, fill, ok

if TYPE_CHECKING:
    from pathlib import Path


def test_a_store_of_nobody_is_copied(tmp_path: Path) -> None:
    store, copy, second = tmp_path / "s", tmp_path / "copy", tmp_path / "second"
    fill(store, "jobs", [b"a", b"b"])
    ok("get", store, "jobs", "-n", "1")
    done = ok("backup", store, copy)
    assert done.out.decode().startswith(f"{copy}: 1 topic, 2 messages, ")
    found = ok("backup", store, second, "--json").json
    assert found == {"path": str(second), "topics": 1, "messages": 2, "bytes": found["bytes"]}
    assert ok("verify", copy).out
    assert ok("get", copy, "jobs").lines == [b"b"]
    assert ok("get", store, "jobs").lines == [b"b"]


def test_where_it_cannot_be_made_it_says_why(tmp_path: Path) -> None:
    store = tmp_path / "s"
    fill(store, "jobs", [b"a"])
    refused = {store: "inside the store", tmp_path: "something is there", tmp_path / "a" / "b": "no directory"}
    for target, why in refused.items():
        done = aiodq("backup", store, target)
        assert (done.code, done.out) == (2, b"")
        assert why in done.err
    assert aiodq("backup", tmp_path / "none", tmp_path / "copy").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_an_owner_that_serves_nobody_is_named(tmp_path: Path) -> None:
    store = tmp_path / "s"
    fill(store, "jobs", [b"a"])
    with Owner(store, "jobs") as owner:
        done = aiodq("backup", store, tmp_path / "copy")
    assert done.code == 2
    assert str(owner.process.pid) in done.err
    assert not (tmp_path / "copy").exists()


def test_what_it_says_is_one_line_however_long_a_path_is(tmp_path: Path) -> None:
    place = tmp_path / ("a name with spaces " * 8).strip()
    place.mkdir()
    fill(place / "s", "jobs", [b"a"])
    (line,) = ok("backup", place / "s", place / "copy").lines
    assert line.decode().startswith(f"{place / 'copy'}: 1 topic, 1 message, ")
