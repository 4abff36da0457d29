from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from aiodq import sync
from aiodq.cli.commands.get import was_read
from aiodq.opening import open_reader
from tests.cli.support import PROGRAM, Owner, Running, aiodq, environment, fill, ok

if TYPE_CHECKING:
    from pathlib import Path

MANY = 3000
FILLING = b"." * 60
"""Makes messages of which a pipe holds more than a batch, and less than all."""


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number + FILLING for number in range(count)]


def not_acked(store: Path, channel: str = "default") -> int:
    return open_reader(store).topic("t").stats().channels[channel].depth


def test_everything_that_is_ready_and_then_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"", b"\xff\x00\r", b"d"])
    assert ok("get", tmp_path, "t").out == b"a\n\n\xff\x00\r\nd\n"
    assert ok("get", tmp_path, "t").out == b""
    assert not_acked(tmp_path) == 0


def test_a_number_of_messages(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    assert ok("get", tmp_path, "t", "-n", "0").out == b""
    assert ok("get", tmp_path, "t", "-n", "2").out == b"a\nb\n"
    assert ok("get", tmp_path, "t", "-n", "9").out == b"c\n"


def test_more_than_one_batch(tmp_path: Path) -> None:
    bodies = numbered(MANY)
    ok("put", tmp_path, "t", stdin=b"\n".join(bodies))
    assert ok("get", tmp_path, "t", "-n", str(MANY - 1)).lines == bodies[:-1]
    assert ok("get", tmp_path, "t").lines == bodies[-1:]


def test_channels_are_apart(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b"])
    ok("channels", tmp_path, "t", "--create", "other")
    assert ok("get", tmp_path, "t", "--channel", "other").out == b"", "a later channel begins at the end"
    ok("put", tmp_path, "t", stdin=b"c")
    assert ok("get", tmp_path, "t", "--channel", "other").lines == [b"c"]
    assert ok("get", tmp_path, "t").lines == [b"a", b"b", b"c"]


def test_json_tells_all_of_a_message(tmp_path: Path) -> None:
    ok("put", tmp_path, "t", "--tag", "red", stdin="ä\n".encode())
    ok("put", tmp_path, "t", stdin=b"\xff\n")
    first, second = (json.loads(line) for line in ok("get", tmp_path, "t", "--json").lines)
    assert (first["offset"], first["tag"], first["body"], first["attempts"]) == (0, "red", "ä", 1)
    assert base64.b64decode(second["body_base64"]) == b"\xff"
    assert {"tag", "body"}.isdisjoint(second)
    assert first["timestamp_ns"] <= second["timestamp_ns"]


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    bodies = numbered(MANY)
    ok("put", tmp_path, "t", stdin=b"\n".join(bodies))
    with Running("get", tmp_path, "t") as get:
        assert get.line() == bodies[0] + b"\n"
        get.out.close()
        assert get.process.wait() == 0
        assert get.process.stderr is not None
        assert get.process.stderr.read() == b""
    left = ok("get", tmp_path, "t").lines
    assert left
    assert left == bodies[-len(left) :], "what was written may be gone, what was not comes again, in order"


@pytest.mark.drawn("shown")
@pytest.mark.parametrize("shown", [1, 7])
def test_what_a_shell_s_head_has_not_shown_comes_again(tmp_path: Path, shown: int) -> None:
    bodies = numbered(MANY)
    ok("put", tmp_path, "t", stdin=b"\n".join(bodies))
    command = ["bash", "-o", "pipefail", "-c", f'"$@" | head -{shown}', "bash", *PROGRAM, "get", str(tmp_path), "t"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, bodies[:shown], b"")
    assert ok("get", tmp_path, "t").lines == bodies[shown:]


def test_whether_the_other_end_of_a_pipe_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    assert was_read(writing)
    os.write(writing, b"x")
    monkeypatch.setattr("aiodq.cli.commands.get._READ", 0.001)
    assert not was_read(writing)
    assert os.read(reading, 1) == b"x"
    assert was_read(writing)
    os.write(writing, b"y")
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        was_read(writing)
    os.close(writing)


@pytest.mark.drawn("number")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_a_signal_catches_unacked_comes_again(tmp_path: Path, number: signal.Signals) -> None:
    """Nobody reads on, so the pipe is full and the process is caught in the middle of a write."""
    bodies = numbered(MANY)
    ok("put", tmp_path, "t", stdin=b"\n".join(bodies))
    with Running("get", tmp_path, "t") as get:
        first = get.line()
        while not_acked(tmp_path) == MANY:
            assert get.process.poll() is None
        get.process.send_signal(number)
        get.process.wait()  # not for the pipe, which nobody empties
        done = get.ended()
    assert done.err == ""
    assert done.code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    seen = (first + done.out).split(b"\n")[:-1]
    assert seen == bodies[: len(seen)]
    again = ok("get", tmp_path, "t").lines
    assert again == bodies[-len(again) :]
    assert len(seen) + len(again) >= MANY
    assert len(again) < MANY, "what was written in whole batches was acked"


def test_follow_waits_for_a_topic_and_a_channel(tmp_path: Path) -> None:
    fill(tmp_path, "u", [b"x"])
    with Running("get", tmp_path, "t", "--follow") as get:
        assert get.process.stderr is not None
        assert get.process.stderr.readline() == (
            b"aiodq: waiting: there is no topic 't' in %b; there is u\n" % os.fsencode(tmp_path)
        )
        ok("put", tmp_path, "t", stdin=b"a")
        assert get.line() == b"a\n"
        get.process.send_signal(signal.SIGINT)
        get.process.wait()
    assert open_reader(tmp_path).topics() == ["t", "u"]


def test_follow_takes_what_others_put_and_leaves_them_the_store_meanwhile(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    with Running("get", tmp_path, "t", "--follow") as get:
        assert get.line() == b"a\n"
        for body in (b"b", b"c"):
            ok("put", tmp_path, "t", stdin=body)
            assert get.line() == body + b"\n"
        while not_acked(tmp_path):
            assert get.process.poll() is None
        assert get.ended(signal.SIGINT) == (130, b"", "")


def test_follow_takes_what_becomes_due(tmp_path: Path) -> None:
    with sync.open(tmp_path) as store:
        queue = store.queue("t")
        queue.put(b"a")
        queue.put(b"due later", delay=3)
    with Running("get", tmp_path, "t", "--follow", "-n", "2") as get:
        assert get.ended() == (0, b"a\ndue later\n", "")


@pytest.mark.parametrize("owned", [False, True])
def test_follow_takes_what_a_seek_has_made_ready_again(tmp_path: Path, *, owned: bool) -> None:
    fill(tmp_path, "t", [b"a"])
    with ExitStack() as stack:
        if owned:
            stack.enter_context(sync.open(tmp_path, mode="shared"))
        get = stack.enter_context(Running("get", tmp_path, "t", "--follow", "-n", "2"))
        assert get.line() == b"a\n"
        while not_acked(tmp_path):
            assert get.process.poll() is None
        ok("seek", tmp_path, "t", "default", "earliest")
        assert get.ended() == (0, b"a\n", "")


@pytest.mark.parametrize("grows", [True, False])
def test_a_deleted_channel_ends_follow_and_is_not_made_again(tmp_path: Path, *, grows: bool) -> None:
    fill(tmp_path, "t", [b"a"])
    ok("channels", tmp_path, "t", "--create", "other")
    with Running("get", tmp_path, "t", "--follow") as get:
        assert get.line() == b"a\n"
        while not_acked(tmp_path):
            assert get.process.poll() is None
        ok("channels", tmp_path, "t", "--delete", "default")
        if grows:
            ok("put", tmp_path, "t", stdin=b"b")
        done = get.ended()
    assert (done.code, done.out) == (2, b"")
    assert "no channel 'default'" in done.err
    assert open_reader(tmp_path).topic("t").channels() == ["other"]


def test_follow_up_to_a_number(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    with Running("get", tmp_path, "t", "--follow", "-n", "2") as get:
        assert get.line() == b"a\n"
        ok("put", tmp_path, "t", stdin=b"b\nc\n")
        assert get.ended() == (0, b"b\n", "")
    assert ok("get", tmp_path, "t").lines == [b"c"]


@pytest.mark.drawn("topic")
@pytest.mark.parametrize("topic", ["t", "missing"])
def test_follow_ends_as_it_waits_once_nobody_reads(tmp_path: Path, topic: str) -> None:
    fill(tmp_path, "t", [b"a"])
    with Running("get", tmp_path, topic, "--follow") as get:
        assert get.process.stderr is not None
        if topic == "t":
            assert get.line() == b"a\n"
        else:
            assert get.process.stderr.readline().startswith(b"aiodq: waiting: ")
        get.out.close()
        assert get.process.wait() == 0
        assert get.process.stderr.read() == b""
    assert not_acked(tmp_path) == (topic == "missing")


def test_follow_waits_for_an_owner_to_go(tmp_path: Path) -> None:
    with Owner(tmp_path, "t") as owner:
        owner.does(b"put a")
        get = Running("get", tmp_path, "t", "--follow", "-n", "1")
        assert get.process.stderr is not None
        said = get.process.stderr.readline().decode()
        assert said.startswith("aiodq: waiting: ")
        assert f"process {owner.process.pid}" in said
    with get:
        assert get.ended() == (0, b"a\n", "")


def test_output_to_a_file(tmp_path: Path) -> None:
    fill(tmp_path / "s", "t", [b"a", b"b"])
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run([*PROGRAM, "get", str(tmp_path / "s"), "t"], stdout=out, env=environment(), check=False)
    assert done.returncode == 0
    assert (tmp_path / "out").read_bytes() == b"a\nb\n"


def test_nothing_is_acked_that_could_not_be_written(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a", b"b"])
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "get", str(tmp_path), "t"], stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"aiodq: [Errno 28] No space left on device\n"
    assert ok("get", tmp_path, "t").lines == [b"a", b"b"]


def test_a_deleted_topic_ends_follow(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    with Running("get", tmp_path, "t", "--follow") as get:
        assert get.line() == b"a\n"
        os.rename(tmp_path / "t", tmp_path / "elsewhere")
        done = get.ended()
    assert done.code == 2
    assert len(done.err.splitlines()) in {1, 2}, "if the store is still open then, its log says it, too"
    assert aiodq("get", tmp_path, "t").code == 2


@pytest.mark.parametrize("channel", [(), ("--channel", "default")])
@pytest.mark.parametrize("owned", [False, True])
def test_a_paused_channel_is_told_and_follow_goes_on_once_it_is_resumed(
    tmp_path: Path, channel: tuple[str, ...], *, owned: bool
) -> None:
    fill(tmp_path, "t", [b"a"])
    with ExitStack() as stack:
        if owned:
            stack.enter_context(sync.open(tmp_path, mode="shared"))
        ok("pause", tmp_path, "t", *channel)
        refused = aiodq("get", tmp_path, "t")
        assert (refused.code, refused.out) == (2, b"")
        assert "is paused" in refused.err
        assert "aiodq resume" in refused.err
        get = stack.enter_context(Running("get", tmp_path, "t", "--follow", "-n", "1"))
        assert get.process.stderr is not None
        assert b"is paused" in get.process.stderr.readline()
        time.sleep(2.5)  # it has looked twice: the first look is compared with nothing
        ok("resume", tmp_path, "t", *channel)
        assert get.ended() == (0, b"a\n", "")


def test_follow_closes_the_store_when_its_terminal_goes(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # else whoever runs this under nohup has it ignored
    try:
        get = Running("get", tmp_path, "t", "--follow")
    finally:
        signal.signal(signal.SIGHUP, before)
    with get:
        assert get.line() == b"a\n"
        while not_acked(tmp_path):
            assert get.process.poll() is None
        assert get.ended(signal.SIGHUP) == (128 + signal.SIGHUP, b"", "")


def test_follow_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        get = Running("get", tmp_path, "t", "--follow", "-n", "2")
    finally:
        signal.signal(signal.SIGHUP, before)
    with get:
        assert get.line() == b"a\n"
        get.process.send_signal(signal.SIGHUP)
        ok("put", tmp_path, "t", stdin=b"b")
        assert get.ended() == (0, b"b\n", "")
