from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.support import Owner, aiodq, fill, flip, ok, only_segment, read_by_nobody

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 64 + 40
"""Where the second of some messages of one byte begins in their segment."""


def damaged(store: Path) -> Path:
    fill(store, "t", [b"a", b"b", b"c"])
    path = only_segment(store, "t")
    flip(path, SECOND + 30)
    return path


def test_a_good_store(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    assert b"3 messages" in ok("verify", tmp_path).out
    report = ok("verify", tmp_path, "--json").json
    assert (report["ok"], report["messages"], report["findings"]) == (True, 3, [])
    assert ok("repair", tmp_path).out == b"nothing to do\n"
    assert ok("repair", tmp_path, "--json").json == []


def test_damage_is_told_by_file_and_position(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    done = aiodq("verify", tmp_path)
    assert (done.code, done.err) == (1, "")
    assert f"{path} at byte {SECOND}: damage: " in done.out.decode()
    assert "(messages 1 to 1)" in done.out.decode()
    done = aiodq("verify", tmp_path, "--json")
    assert done.code == 1
    assert not done.json["ok"]
    (found,) = [each for each in done.json["findings"] if each["severity"] == "damage"]
    assert (found["path"], found["position"], found["first"], found["stop"]) == (str(path), SECOND, 1, 2)


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_damage_is_told_by_the_exit_code_though_nobody_reads_the_report(tmp_path: Path, json: list[str]) -> None:
    damaged(tmp_path)
    assert read_by_nobody("verify", tmp_path, *json) == (1, b"")
    assert read_by_nobody("repair", tmp_path, *json) == (0, b"")
    assert read_by_nobody("verify", tmp_path, *json) == (0, b"")


def test_a_directory_with_nothing_in_it_is_not_said_to_be_without_damage(tmp_path: Path) -> None:
    done = ok("verify", tmp_path)
    assert b"0 files" in done.out
    assert b"no topic yet" in done.out
    assert b"damage" not in done.out
    assert ok("verify", tmp_path, "--json").json["files"] == 0


def test_repair_says_what_it_did_and_satisfies_verify(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    before = path.read_bytes()
    (action, *_) = ok("repair", tmp_path, "--json").json
    assert action["path"] == str(path)
    assert b"".join(kept.read_bytes() for kept in path.parent.glob("*.damaged-*")) in before
    assert aiodq("verify", tmp_path).code == 0
    assert ok("repair", tmp_path).out == b"nothing to do\n"
    assert ok("get", tmp_path, "t").lines == [b"a", b"c"]


def test_repair_in_words(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    text = ok("repair", tmp_path).out.decode()
    assert f"{path}: " in text
    assert ".damaged-" in text


def test_verify_beside_a_live_owner(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        owner.does(b"put a")
        assert ok("verify", tmp_path, "--json").json["messages"] == 1


def test_an_unfinished_write_is_no_damage(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b"])
    with open(only_segment(tmp_path, "t"), "ab") as file:
        file.write(b"\x28\0\0\0torn")
    done = ok("verify", tmp_path)
    assert b"note: unfinished" in done.out
