from __future__ import annotations

import io
import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from rich.table import Table

from aiodq.cli.exits import complain
from aiodq.cli.output import Output
from tests.cli.support import Owner, Running, aiodq, fill, flip, ok, on_a_terminal, only_segment

if TYPE_CHECKING:
    from pathlib import Path


def test_tail_shows_the_newest_and_consumes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"%d" % number for number in range(25)])
    assert ok("tail", tmp_path, "t").lines == [b"%d" % number for number in range(15, 25)]
    assert ok("tail", tmp_path, "t", "-n", "2").lines == [b"23", b"24"]
    assert ok("tail", tmp_path, "t", "-n", "0").lines == []
    assert len(ok("tail", tmp_path, "t", "-n", "99").lines) == 25
    assert len(ok("get", tmp_path, "t").lines) == 25


HOSTILE = "a\x1b[31m\x9b2J\u202eb\tü".encode() + b"\xff"
SHOWN = "a\\u001b[31m\\u009b2J\\u202eb\tü\\xff"


@pytest.mark.drawn("command")
@pytest.mark.parametrize("command", ["tail", "peek", "get"])
def test_a_body_does_not_steer_the_terminal(tmp_path: Path, command: str) -> None:
    fill(tmp_path, "t", [HOSTILE])
    if command != "get":
        assert ok(command, tmp_path, "t").out == HOSTILE + b"\n"
    # A terminal makes two characters of a newline, and spaces of a tab perhaps.
    assert on_a_terminal(command, tmp_path, "t").decode().expandtabs().splitlines() == [SHOWN.expandtabs()]


def test_no_text_of_a_table_or_an_error_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE.decode(errors="backslashreplace")
    complain(text)
    assert capsys.readouterr().err == f"aiodq: {SHOWN}\n".replace("\t", " ")
    shown = io.StringIO()
    table = Table(text.expandtabs(), box=None, padding=0)
    table.add_row(text.expandtabs())
    Output(file=shown, force_terminal=True, width=80, color_system=None).print(table, text.expandtabs())
    assert shown.getvalue().split() == 3 * SHOWN.split()


def test_tail_json(tmp_path: Path) -> None:
    ok("put", tmp_path, "t", "--tag", "red", stdin=b"a")
    fields = json.loads(ok("tail", tmp_path, "t", "--json").out)
    assert (fields["offset"], fields["tag"], fields["body"]) == (0, "red", "a")


def test_tail_follows_a_live_owner(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        owner.does(b"put a")
        with Running("tail", tmp_path, "t", "--follow") as tail:
            assert tail.line() == b"a\n"
            for body in (b"b", b"c"):
                owner.does(b"put " + body)
                assert tail.line() == body + b"\n"
            assert tail.ended(signal.SIGINT) == (130, b"", "")
        owner.does(b"put d")


def test_tail_follows_across_segments(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"x" * 100], segment_bytes=256)
    with Running("tail", tmp_path, "t", "-n", "1", "--follow") as tail:
        assert tail.line() == b"x" * 100 + b"\n"
        bodies = [b"%03d" % number + b"y" * 97 for number in range(20)]
        fill(tmp_path, "t", bodies, segment_bytes=256)
        assert [tail.line() for _ in bodies] == [body + b"\n" for body in bodies]
    assert len(list((tmp_path / "t").glob("*.seg"))) > 5


def test_tail_to_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    ok("put", tmp_path, "t", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000)
    with Running("tail", tmp_path, "t", "-n", "20001") as tail:
        assert tail.line() == b"x" * 99 + b"\n"
        tail.out.close()
        assert tail.process.wait() == 0
        assert tail.process.stderr is not None
        assert tail.process.stderr.read() == b""


def test_tail_ends_as_it_waits_once_nobody_reads(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    with Running("tail", tmp_path, "t", "--follow") as tail:
        assert tail.line() == b"a\n"
        tail.out.close()
        assert tail.process.wait() == 0
        assert tail.process.stderr is not None
        assert tail.process.stderr.read() == b""


def test_tail_steps_over_damage(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    flip(only_segment(tmp_path, "t"), 64 + 40 + 30)
    assert ok("tail", tmp_path, "t").lines == [b"a", b"c"]


def test_stat_beside_a_live_owner(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        for body in (b"put a", b"put b", b"put c"):
            owner.does(body)
        owner.does(b"ack")
        figures = ok("stat", tmp_path, "--json").json
        topic = figures["topics"]["t"]
        assert figures["path"] == str(tmp_path)
        assert (topic["begin_offset"], topic["end_offset"], topic["messages"], topic["damages"]) == (0, 3, 3, [])
        channel = topic["channels"]["default"]
        assert time.time_ns() - 3600 * 10**9 < channel.pop("oldest_ns") <= time.time_ns()
        assert channel.items() >= {"name": "default", "floor": 1, "depth": 2, "ready": 2, "deferred": 0}.items()
        assert channel["returned"] == 0
        assert topic["held"] == []
        text = ok("stat", tmp_path).out.decode()
        assert [word for word in ("default", "ready", "messages", str(tmp_path)) if word not in text] == []


def shown(store: Path, in_flight: int) -> dict[str, Any]:
    """Return the figures of the channel once its owner, who shows some each second, has shown that so many are out."""
    while True:
        channel: dict[str, Any] = ok("stat", store, "--json").json["topics"]["t"]["channels"]["default"]
        if channel["in_flight"] == in_flight:
            return channel
        time.sleep(0.1)


def test_stat_shows_what_only_the_owner_knows(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        for number in range(6):
            owner.does(b"put %d" % number)
        for command in (b"ack", b"reject", b"hold", b"hold"):
            owner.does(command)
        channel = shown(tmp_path, 2)
        assert channel.items() >= {"depth": 4, "timed_out": 0, "dead": 1}.items()
        assert channel["backlog_bytes"] > 0
        assert channel["put_to_deliver"]["messages"] == 4
        assert set(channel["put_to_ack"]) == {"messages", "p50", "p90", "p99", "max"}
        waiting, settled, _ = [line for line in ok("stat", tmp_path).out.decode().splitlines() if "t/default" in line]
        assert waiting.split()[:6] == ["t/default", "4", "2", "2", "0", "0"]
        assert settled.split() == ["t/default", "2", "0", "1", "0", "0"]
        owner.process.kill()
    channel = ok("stat", tmp_path, "--json").json["topics"]["t"]["channels"]["default"]
    assert channel.items() >= {"depth": 4, "in_flight": None, "timed_out": None, "dead": None}.items()
    assert (tmp_path / "#figures").exists()
    ok("verify", tmp_path)
    with Owner(tmp_path, "t") as owner:
        owner.does(b"hold")
        shown(tmp_path, 1)
    assert not (tmp_path / "#figures").exists()


def test_stat_of_an_empty_store(tmp_path: Path) -> None:
    assert b"no topic" in ok("stat", tmp_path).out
    assert ok("stat", tmp_path, "--json").json["topics"] == {}


def test_stat_tells_damage(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    path = only_segment(tmp_path, "t")
    flip(path, 64 + 40 + 30)
    assert f"{path} at byte {64 + 40}" in ok("stat", tmp_path).out.decode()
    (damage,) = ok("stat", tmp_path, "--json").json["topics"]["t"]["damages"]
    assert damage["position"] == 64 + 40


def test_stat_tells_what_is_lost_until_a_repair(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    only_segment(tmp_path, "t").unlink()
    fill(tmp_path, "t", [b"d"])
    assert "lost: 3 messages of topic 't'" in ok("stat", tmp_path).out.decode()
    assert ok("stat", tmp_path, "--json").json["topics"]["t"]["lost"] == 3
    ok("repair", tmp_path)
    assert b"lost: " not in ok("stat", tmp_path).out


def test_stat_watch_shows_what_comes_and_goes(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        owner.does(b"put a")
        with Running("stat", tmp_path, "--watch") as watch:
            assert tmp_path.name.encode() in watch.line()
            for command in (b"put b", b"ack"):
                owner.does(command)
            text = b""
            while b"acked/s" not in text:
                line = watch.line()
                assert line
                text += line
            assert b"put/s" in text
            assert watch.ended(signal.SIGINT).code == 130


def test_stat_shows_the_others_beside_a_topic_that_may_not_be_read(tmp_path: Path) -> None:
    fill(tmp_path, "bad", [b"a"])
    fill(tmp_path, "good", [b"b", b"c"])
    description = tmp_path / "bad" / "topic.json"
    description.rename(tmp_path / "kept.json")
    description.symlink_to(tmp_path / "kept.json")
    done = aiodq("stat", tmp_path)
    assert (done.code, done.err) == (1, "")
    assert b"good" in done.out
    assert b"topic 'bad' is refused: " in done.out
    done = aiodq("stat", tmp_path, "--json")
    assert done.code == 1
    assert {name: topic["messages"] for name, topic in done.json["topics"].items()} == {"good": 2}
    assert str(description) in done.json["refused"]["bad"].replace("\n", "")
