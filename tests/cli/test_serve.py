"""`aiodq serve` and `who`, and the commands that change a store beside a live owner."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiodq
from aiodq.cli.commands.serve import _Serving
from aiodq.storage.io.lock import LockHolder, lock_holder
from tests.cli.support import PROGRAM, environment, fill, ok
from tests.cli.support import aiodq as run
from tests.processes import WATCHDOG, killed_at_last

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aiodq.shared.handles.shared_store import SharedStore

EXCLUSIVE = """
import asyncio, sys, aiodq
async def main():
    async with aiodq.open(sys.argv[1]):
        print(flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "store", "jobs", [b"a", b"b", b"c"])
    return tmp_path / "store"


@pytest.fixture
def serving(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Return `aiodq serve`, once it serves."""
    with killed_at_last([*PROGRAM, "serve", store, "--json"], env=environment(), stdout=-1, text=True) as child:
        assert heard(child) == {"store": str(store), "owner": child.pid, "serving": True}
        yield child


@pytest.mark.usefixtures("serving")
def test_the_owner_makes_a_backup(store: Path, tmp_path: Path) -> None:
    assert ok("backup", store, tmp_path / "copy").out.decode().startswith(f"{tmp_path / 'copy'}: 1 topic, 3 messages, ")
    assert ok("get", store, "jobs").lines == ok("get", tmp_path / "copy", "jobs").lines == [b"a", b"b", b"c"]


async def who(store: Path, *arguments: str) -> str:
    """Ask beside the event loop, which has to go on for this process to be there."""
    command = [*PROGRAM, "who", str(store), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, env=environment())
    return (await process.communicate())[0].decode()


def heard(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())


def test_it_serves_until_sigterm(store: Path, serving: subprocess.Popen[str]) -> None:
    async def work() -> list[bytes]:
        async with aiodq.open(store, mode="client") as opened:
            await opened.topic("jobs").put(b"d")
            batch = await opened.topic("jobs").channel("default").get_many(4, linger=WATCHDOG)
            await opened.topic("jobs").channel("default").ack_many(batch)
            return [message.body for message in batch]

    assert asyncio.run(work()) == [b"a", b"b", b"c", b"d"]
    serving.send_signal(signal.SIGTERM)
    assert heard(serving) == {"store": str(store), "ended": True}
    assert serving.wait(WATCHDOG) == 0
    assert lock_holder(str(store)) is None
    assert not (store / "#socket").exists()


def test_it_takes_over_from_an_owner_that_dies(store: Path, serving: subprocess.Popen[str]) -> None:
    with killed_at_last([*PROGRAM, "serve", store, "--json"], env=environment(), stdout=-1, text=True) as other:
        assert heard(other) == {"store": str(store), "owner": serving.pid, "serving": False}
        serving.kill()
        assert heard(other) == {"store": str(store), "owner": other.pid, "serving": True}
        assert ok("who", store, "--json").json["owner"]["pid"] == other.pid


def test_an_owner_whose_number_is_equal_in_another_container_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    serving = _Serving("s", json=True)
    facts = {"owner": {"pid": os.getpid()}, "clients": [], "unlisted": 0}
    for owner in (None, object(), object()):
        serving._tell(cast("SharedStore", SimpleNamespace(_remote=SimpleNamespace(owner=owner))), facts)
    said = [json.loads(line)["serving"] for line in capsys.readouterr().out.splitlines()]
    assert said == [False, True]


async def test_it_goes_on_though_nobody_reads_what_it_says(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = asyncio.Event()

    class Saying(_Serving):
        def _say(self, facts: Mapping[str, Any], text: str) -> None:
            said.set()
            super()._say(facts, text)

    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        serving = asyncio.create_task(Saying(str(store), json=True).run(create=False, failover=5))
        await said.wait()
        async with aiodq.open(store, mode="client", failover=5) as client:
            assert await client.topic("jobs").put(b"d") == 3
        assert not serving.done()
        serving.cancel()
        assert await serving == 0


def test_it_ends_where_the_store_is_deleted(store: Path, serving: subprocess.Popen[str]) -> None:
    shutil.rmtree(store)
    assert serving.wait(WATCHDOG) == 2
    assert not store.exists()


def test_serving_what_is_not_there_is_misuse(tmp_path: Path) -> None:
    done = run("serve", tmp_path / "none")
    assert done.code == 2
    assert "no" in done.err


def test_who_shows_owner_and_clients_with_what_they_hold(store: Path, serving: subprocess.Popen[str]) -> None:
    async def look() -> tuple[Any, str]:
        async with aiodq.open(store, mode="client") as opened:
            await opened.topic("jobs").channel("default").get_many(2, linger=WATCHDOG)
            return json.loads(await who(store, "--json")), await who(store)

    facts, text = asyncio.run(look())
    assert facts["owner"]["pid"] == serving.pid
    assert facts["owner"]["lag"] < WATCHDOG
    (own, mine) = facts["clients"]
    assert (own["pid"], own["owner"], own["holds"]) == (serving.pid, True, {})
    assert (mine["pid"], mine["owner"], mine["holds"]) == (os.getpid(), False, {"jobs/default": 2})
    assert text.startswith(f"process {serving.pid} owns it and serves 1 other; its loop is ")
    assert "2 of jobs/default" in text


def test_who_of_a_store_that_one_process_has_for_itself_or_nobody(store: Path) -> None:
    async def exclusive() -> Any:
        async with aiodq.open(store):
            return json.loads(await who(store, "--json"))

    assert asyncio.run(exclusive()) == {"owner": {"pid": os.getpid(), "exclusive": True}, "clients": []}
    assert ok("who", store, "--json").json == {"owner": None, "clients": []}
    assert ok("who", store).out == b"no process has it open\n"
    assert run("who", store / "none").code == 2


def test_commands_that_change_a_store_work_beside_its_owner(store: Path, serving: subprocess.Popen[str]) -> None:
    assert ok("put", store, "jobs", "--json", stdin=b"d\ne\n").json["messages"] == 2
    assert ok("get", store, "jobs", "-n", "2").lines == [b"a", b"b"]
    assert ok("seek", store, "jobs", "default", "3", "--json").json == {
        "topic": "jobs",
        "channel": "default",
        "depth": 2,
        "floor": 3,
    }
    assert ok("get", store, "jobs").lines == [b"d", b"e"]
    created = ok("channels", store, "jobs", "--create", "audit", "--start", "latest", "--json").json
    assert (created["created"], created["depth"]) == (True, 0)
    ok("put", store, "jobs", stdin=b"f\n")
    assert ok("channels", store, "jobs", "--delete", "audit", "--json").json["depth"] == 1
    assert ok("purge", store, "jobs", "--channel", "default", "--json").json["messages"] == 1
    ok("put", store, "jobs", stdin=b"g\n")
    assert ok("purge", store, "jobs", "--json").json["messages"] >= 1
    assert ok("put", store, "new", "--json", stdin=b"x\n").json["messages"] == 1
    assert ok("get", store, "new").lines == [b"x"]
    ok("delete-topic", store, "new", "--yes")
    assert aiodq.open_reader(store).topics() == ["jobs"]
    assert serving.poll() is None
    assert lock_holder(str(store)) == LockHolder(serving.pid)


def test_what_is_ephemeral_is_the_owner_s(store: Path, serving: subprocess.Popen[str]) -> None:
    assert ok("put", store, "t#ephemeral", stdin=b"a\n").out.endswith(b", kept in the memory of the store's owner\n")
    assert ok("put", store, "t#ephemeral", "--json", stdin=b"b\n").json["ephemeral"] is True
    assert "ephemeral" not in ok("put", store, "jobs", "--json", stdin=b"b\n").json
    assert ok("channels", store, "jobs", "--create", "c#ephemeral", "--json").json["created"] is True

    async def bodies() -> list[bytes]:
        async with aiodq.open(store, mode="client") as opened:
            return [
                message.body
                for message in await opened.topic("t#ephemeral").channel("default").get_many(2, linger=WATCHDOG)
            ]

    assert asyncio.run(bodies()) == [b"a", b"b"]
    assert serving.poll() is None


def test_get_follows_beside_an_owner(store: Path, serving: subprocess.Popen[str]) -> None:
    command = [*PROGRAM, "get", str(store), "jobs", "--follow", "-n", "5"]
    with killed_at_last(command, env=environment(), stdout=-1) as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
        ok("put", store, "jobs", stdin=b"d\ne\n")
        assert child.communicate(timeout=WATCHDOG)[0] == b"d\ne\n"
        assert child.returncode == 0
    assert serving.poll() is None


def test_dead_letters_go_back_beside_an_owner(store: Path, serving: subprocess.Popen[str]) -> None:
    async def reject() -> None:
        async with aiodq.open(store, mode="client") as opened:
            channel = opened.topic("jobs").channel("default")
            await channel.configure(aiodq.ChannelOptions(dead_letter="dead"))
            await (await channel.get()).reject("why")
            await opened.topic("dead").channel("default").peek()

    asyncio.run(reject())
    assert ok("requeue-dead", store, "dead", "--json").json == {"topic": "dead", "requeued": 1, "stayed": 0}
    assert sorted(ok("get", store, "jobs").lines) == [b"a", b"b", b"c"]
    assert serving.poll() is None


def test_an_owner_that_serves_nobody_is_named(store: Path) -> None:
    with killed_at_last([sys.executable, "-c", EXCLUSIVE, store], env=environment(), stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        done = run("put", store, "jobs", stdin=b"x\n")
    assert done.code == 2
    assert str(child.pid) in done.err


def test_serve_says_on_standard_error_that_it_waits_for_an_exclusive_owner(store: Path) -> None:
    with killed_at_last([sys.executable, "-c", EXCLUSIVE, store], env=environment(), stdout=-1) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        command = [*PROGRAM, "serve", str(store), "--json"]
        with killed_at_last(command, env=environment(), stdout=-1, stderr=-1, text=True) as child:
            assert child.stderr is not None
            said = child.stderr.readline()
            owner.kill()
            assert heard(child) == {"store": str(store), "owner": child.pid, "serving": True}
    assert said.startswith(f'aiodq: process {owner.pid} has {store} for itself, in mode "exclusive"')
    assert "up to 30 s" in said
