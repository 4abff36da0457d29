from __future__ import annotations

import io
import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from aiodq.cli import show
from aiodq.cli.show import Meter
from aiodq.errors import StorageError
from aiodq.opening import open_reader
from tests.cli.support import PROGRAM, Running, aiodq, environment, ok

if TYPE_CHECKING:
    from pathlib import Path


def bodies(store: Path, topic: str = "t") -> list[bytes]:
    return [message.body for message in open_reader(store).topic(topic).scan()]


@pytest.mark.parametrize("options", [[], ["--lines"]])
@pytest.mark.parametrize("dash", [[], ["-"]])
def test_each_line_of_standard_input_is_a_message(tmp_path: Path, options: list[str], dash: list[str]) -> None:
    done = ok("put", tmp_path / "s", "t", *dash, *options, stdin=b"a\n\nb\r\n\xff\x00\nlast")
    assert done.out.startswith(b"5 messages")
    assert bodies(tmp_path / "s") == [b"a", b"", b"b\r", b"\xff\x00", b"last"]


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert ok("put", tmp_path / "s", "t", "--json").json["messages"] == 0


def test_files_and_standard_input_come_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1\n2")
    (tmp_path / "two").write_bytes(b"5\n")
    done = ok("put", tmp_path / "s", "t", tmp_path / "one", "-", tmp_path / "two", "--json", stdin=b"3\n4\n")
    figures = done.json
    assert (figures["messages"], figures["bytes"]) == (5, 5)
    assert (figures["first_offset"], figures["last_offset"]) == (0, 4)
    assert bodies(tmp_path / "s") == [b"1", b"2", b"3", b"4", b"5"]


def test_whole_files(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1\n2\n")
    (tmp_path / "empty").write_bytes(b"")
    ok("put", tmp_path / "s", "t", "--whole", tmp_path / "one", tmp_path / "empty", "-", stdin=b"\n")
    assert bodies(tmp_path / "s") == [b"1\n2\n", b"", b"\n"]


def test_a_whole_file_larger_than_a_message_may_be(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate((16 << 20) + 1)
    done = aiodq("put", tmp_path / "s", "t", "--whole", tmp_path / "large")
    assert done.code == 1
    assert "large is longer than 16777216 bytes" in done.err


def test_jsonl_names_the_bad_line_and_keeps_what_came_before(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b'{"a": 1}\n[2]\n')
    (tmp_path / "two").write_bytes(b"3\n{4\n5\n")
    done = aiodq("put", tmp_path / "s", "t", "--jsonl", tmp_path / "one", tmp_path / "two")
    assert done.code == 1
    assert f"line 2 of {tmp_path / 'two'} is no JSON" in done.err
    assert "3 messages were put" in done.err
    assert len(done.err.splitlines()) == 1
    assert bodies(tmp_path / "s") == [b'{"a": 1}', b"[2]", b"3"]


def test_a_tag_is_kept(tmp_path: Path) -> None:
    ok("put", tmp_path / "s", "t", "--tag", "red", stdin=b"a\n")
    (message,) = open_reader(tmp_path / "s").topic("t").scan()
    assert message.tag == "red"


def test_a_file_that_cannot_be_read_keeps_all_from_being_put(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1\n")
    assert aiodq("put", tmp_path / "s", "t", tmp_path / "one", tmp_path / "none").code == 2
    assert not (tmp_path / "s").exists()


def peak_kilobytes(arguments: list[str]) -> int:
    """Run a command and return the most memory it had."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


def test_a_file_larger_than_what_it_may_cost_in_memory(tmp_path: Path) -> None:
    line = b"x" * 65_535 + b"\n"
    (tmp_path / "small").write_bytes(line)
    with open(tmp_path / "large", "wb") as file:
        file.writelines(line * 32 for _ in range(64))
    small, large = (
        peak_kilobytes([*PROGRAM, "put", str(tmp_path / "s"), "t", str(tmp_path / name)]) for name in ("small", "large")
    )
    assert (tmp_path / "large").stat().st_size == 128 << 20
    assert large - small < 32 << 10
    assert open_reader(tmp_path / "s").topic("t").end_offset == 1 + 64 * 32


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_waits_for_input(tmp_path: Path, number: signal.Signals) -> None:
    with Running("put", tmp_path / "s", "t", stdin=subprocess.PIPE) as put:
        assert put.process.stdin is not None
        put.process.stdin.write(b"one\ntwo\nunfinished")
        put.process.stdin.flush()
        while True:
            assert put.process.poll() is None, put.ended()
            with suppress(StorageError):  # the store is only just being made
                if len(bodies(tmp_path / "s")) == 2:
                    break
        put.process.send_signal(number)
        # Its input stays open: it must not wait for the end of that.
        assert put.process.wait() == 128 + number
        assert put.process.stderr is not None
        assert put.process.stderr.read().startswith(b"aiodq: interrupted")
    assert bodies(tmp_path / "s") == [b"one", b"two"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "_SECONDS_BEFORE_BAR", 0.0)
    with Meter("put", 100) as meter:
        meter.advance(50)
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with Meter("put", 100) as meter:
        meter.advance(50, "file.txt")
    assert "50/100 bytes" in terminal.getvalue()
    assert "file.txt" in terminal.getvalue()


def test_no_progress_for_what_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "_SECONDS_BEFORE_BAR", 3600.0)
    monkeypatch.setattr("sys.stderr", Terminal())
    with Meter("put", 100) as meter:
        meter.advance(50)
        assert meter._progress is None
