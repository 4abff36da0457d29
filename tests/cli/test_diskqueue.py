from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from aiodq.cli.app import run
from aiodq.cli.commands.diskqueue import taken_over
from aiodq.cli.show import Meter
from aiodq.diskqueue import list_queues, read, write
from aiodq.options import StoreOptions
from aiodq.sync import open as open_sync
from tests.cli.support import aiodq, fill, flip, ok, only_segment

DATA = Path(__file__).parents[1] / "data" / "diskqueue"


@pytest.mark.parametrize("case", ["clean", "nometa", "killed"])
def test_what_a_queue_holds_is_imported(case: str, tmp_path: Path) -> None:
    (name,) = list_queues(DATA / case)
    bodies = [message.body for message in read(DATA / case, name)]
    done = aiodq("import-diskqueue", DATA / case, name, tmp_path, "t")
    assert (done.code, done.lines) == (0, [b"imported %d messages" % len(bodies)])
    assert ("no-metadata" in done.err) == (case == "nometa")
    assert ok("get", tmp_path, "t").out == b"".join(body + b"\n" for body in bodies)


def test_lost_messages_are_an_exit_code(tmp_path: Path) -> None:
    (name,) = list_queues(DATA / "torn")
    done = aiodq("import-diskqueue", DATA / "torn", name, tmp_path, "t")
    assert (done.code, done.lines) == (1, [b"imported 89 messages"])
    assert "torn" in done.err
    assert aiodq("import-diskqueue", tmp_path, "none", tmp_path, "t").code == 2
    assert aiodq("import-diskqueue", DATA / "torn", name, tmp_path / "s", "t#ephemeral").code == 2
    assert not (tmp_path / "s").exists()


async def test_large_messages_are_put_a_few_at_a_time(tmp_path: Path) -> None:
    """A put is held in memory whole, and the owner of a shared store takes 64 MiB at a time."""
    write(tmp_path, "q", [b"a" * 400_000] * 5 + [b"b" * 2_000_000, b"c"])
    put: list[list[bytes]] = []

    async def put_many(bodies: list[bytes]) -> None:
        put.append(bodies)

    async for taken in taken_over(read(tmp_path, "q"), put_many):
        assert taken is put[-1]
    assert [[body[:1] for body in bodies] for bodies in put] == [[b"a"] * 2, [b"a"] * 2, [b"a"], [b"b"], [b"c"]]


def test_an_import_that_cannot_go_on_says_how_much_was_put(tmp_path: Path) -> None:
    write(tmp_path, "q", [b"a" * 600_000] * 2 + [b"b" * 900_000, b"c"])
    with open_sync(tmp_path / "s") as store:
        store.topic("t", StoreOptions(max_message_bytes=800_000)).channel("default")
    done = aiodq("import-diskqueue", tmp_path, "q", tmp_path / "s", "t")
    assert done.code == 1
    assert "a message of 900000 bytes" in done.err
    assert done.err.endswith("; before that, 2 messages were put\n")
    assert len(ok("get", tmp_path / "s", "t").lines) == 2


def test_a_topic_is_exported_and_comes_back(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 30 for number in range(50)]
    fill(tmp_path / "s", "t", bodies)
    (tmp_path / "q").mkdir()
    export = ("export-diskqueue", tmp_path / "s", "t", tmp_path / "q", "orders")
    assert ok(*export, "--max-bytes-per-file", "500").lines == [b"exported 50 messages"]
    assert [message.body for message in read(tmp_path / "q", "orders")] == bodies
    assert len(list((tmp_path / "q").glob("*.dat"))) > 3
    assert aiodq(*export).code == 1
    ok("get", tmp_path / "s", "t", "-n", "20")
    shutil.rmtree(tmp_path / "q")
    (tmp_path / "q").mkdir()
    assert ok(*export, "--channel", "default").lines == [b"exported 30 messages"]
    assert aiodq("export-diskqueue", tmp_path / "s", "t", tmp_path / "q", "n", "--channel", "none").code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_is_ended_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Without its metadata, go-diskqueue would write over them; and they are in the way of the next export."""
    fill(tmp_path / "s", "t", [b"a"] * 3)
    (tmp_path / "q").mkdir()
    monkeypatch.setattr(Meter, "advance", lambda *_: signal.raise_signal(number))
    ours = lambda *_: None  # noqa: E731 - to be compared
    before = signal.signal(number, ours)
    try:
        with pytest.raises(SystemExit) as ended:
            run(["export-diskqueue", str(tmp_path / "s"), "t", str(tmp_path / "q"), "n"])
        assert signal.getsignal(number) is ours
    finally:
        signal.signal(number, before)
    assert ended.value.code == 128 + number
    assert list((tmp_path / "q").iterdir()) == []


def test_damage_in_the_store_is_told(tmp_path: Path) -> None:
    fill(tmp_path / "s", "t", [b"a" * 50])
    fill(tmp_path / "s", "t", [b"b" * 50])
    flip(only_segment(tmp_path / "s", "t"), 100)
    (tmp_path / "q").mkdir()
    done = aiodq("export-diskqueue", tmp_path / "s", "t", tmp_path / "q", "n")
    assert (done.code, done.lines) == (1, [b"exported 1 message"])
    assert "damage" in done.err
