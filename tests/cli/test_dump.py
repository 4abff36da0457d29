from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.cli.commands.dump import dump
from tests.cli.support import Done, aiodq, fill, flip, ok, only_segment

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 64 + 40


def parts(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.lines]


def kinds(done: Done) -> list[str]:
    return [part["part"] for part in parts(done)]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    fill(tmp_path, "t", [b"a", b"b", b"\xff"])
    return only_segment(tmp_path, "t")


def test_a_segment_in_words(segment: Path) -> None:
    lines = ok("dump", segment).out.decode().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["0", "header"],
        ["64", "frame"],
        [str(SECOND), "frame"],
        ["144", "frame"],
        ["184", "end"],
    ]
    assert "messages 1 to 1" in lines[2]
    assert "not sealed" in lines[4]


def test_bodies(segment: Path) -> None:
    assert "body='b'" in ok("dump", segment, "--bodies").out.decode()
    frames = [part for part in parts(ok("dump", segment, "--bodies", "--json")) if part["part"] == "frame"]
    messages = [message for frame in frames for message in frame["messages"]]
    assert [message["offset"] for message in messages] == [0, 1, 2]
    assert (messages[0]["body"], messages[2]["body_base64"]) == ("a", "/w==")


def test_a_batch_with_tags(tmp_path: Path) -> None:
    ok("put", tmp_path, "t", "--tag", "red", stdin=b"a\nb\n")
    _, frame, _ = parts(ok("dump", only_segment(tmp_path, "t"), "--json", "--bodies"))
    assert (frame["kind"], frame["count"], frame["flags"]) == ("batch", 2, ["TAGS"])
    assert [message["tag"] for message in frame["messages"]] == ["red", "red"]


def test_a_sealed_segment(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"x" * 100] * 3, segment_bytes=256)
    first = min((tmp_path / "t").glob("*.seg"))
    found = parts(ok("dump", first, "--json"))
    footer, end = found[-2:]
    assert (footer["part"], footer["records"]) == ("footer", 1)
    assert end == {"part": "end", "position": first.stat().st_size, "sealed": True}
    assert "sealed" in ok("dump", first).out.decode()


def test_damage_in_the_middle(segment: Path) -> None:
    flip(segment, SECOND + 30)
    done = aiodq("dump", segment, "--json")
    assert (done.code, done.err) == (1, "")
    assert kinds(done) == ["header", "frame", "damage", "frame", "end"]
    damage = parts(done)[2]
    assert (damage["position"], damage["end"]) == (SECOND, 144)
    assert f"{SECOND} damage  to 144" in aiodq("dump", segment).out.decode()


def test_a_cut_tail(segment: Path) -> None:
    segment.write_bytes(segment.read_bytes()[:-1])
    done = aiodq("dump", segment, "--json")
    assert (done.code, kinds(done)) == (1, ["header", "frame", "frame", "damage", "end"])


def test_a_damaged_header_is_told_from_name_and_topic(segment: Path) -> None:
    flip(segment, 20)
    done = aiodq("dump", segment, "--json")
    assert (done.code, kinds(done)) == (1, ["damage", "frame", "frame", "frame", "end"])


def test_a_damaged_header_and_nobody_who_knows_better(segment: Path) -> None:
    flip(segment, 20)
    (segment.parent / "topic.json").unlink()
    done = aiodq("dump", segment, "--json")
    assert (done.code, kinds(done)) == (1, ["damage", "damage", "end"])


def test_a_damaged_header_is_told_from_the_footer(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"x" * 100] * 3, segment_bytes=256)
    first = min((tmp_path / "t").glob("*.seg"))
    (first.parent / "topic.json").unlink()
    flip(first, 20)
    assert kinds(aiodq("dump", first, "--json")) == ["damage", "frame", "footer", "end"]


@pytest.mark.parametrize("from_end", [20, 100, 9])
def test_a_damaged_footer(tmp_path: Path, from_end: int) -> None:
    fill(tmp_path, "t", [b"x" * 100] * 3, segment_bytes=256)
    first = min((tmp_path / "t").glob("*.seg"))
    flip(first, first.stat().st_size - from_end)
    done = aiodq("dump", first, "--json")
    assert done.code == 1
    assert kinds(done)[:3] == ["header", "frame", "damage"]


def test_every_cut_and_every_wrong_byte_is_shown_without_a_traceback(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = segment.read_bytes()
    for size in range(len(whole)):
        segment.write_bytes(whole[:size])
        assert dump(str(segment), json=True, bodies=True) == (0 if size in {64, SECOND, 144} else 1)
    for position in range(len(whole)):
        segment.write_bytes(whole)
        flip(segment, position)
        assert dump(str(segment), json=True, bodies=True) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [b"", bytes(64), bytes(1000)])
def test_a_file_by_a_segment_s_name_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"{0:020d}.seg"
    path.write_bytes(content)
    done = aiodq("dump", path, "--json")
    assert (done.code, done.err) == (1, "")


def test_zeros_written_ahead_are_told_and_no_damage(segment: Path) -> None:
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(bytes(5000))
    done = ok("dump", segment, "--json")
    assert kinds(done) == ["header", "frame", "frame", "frame", "zeros", "end"]
    assert [parts(done)[-2][name] for name in ("position", "end")] == [size, size + 5000]
    assert f"to {size + 5000}: written ahead" in ok("dump", segment).out.decode()
