"""What is committed for a topic that cannot be made: it waits, whole, and is reported; nothing else waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.storage.bulk.commits import CommitKey, read_commits
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.testing import Fault, SimulatedFileSystem
from tests.bulk.support import STORE, STREAM, adopted, left, load, shown
from tests.queue.support import until

if TYPE_CHECKING:
    from tests.channels.support import Machine

ONCE = CommitKey("load", once=True)


def plant(machine: Machine, path: str) -> None:
    machine.fs.open(path, create=True).close()


def damaged(machine: Machine) -> list[str]:
    return [finding.path for finding in verify_store(STORE, machine.fs).damages]


async def test_it_waits_until_the_place_is_free(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"j")
    plant(machine, "/s/made")
    assert load(machine, CommitKey(STREAM, 0), {"made": [b"m"], "also": [b"a"]})
    assert load(machine, CommitKey(STREAM, 1), {"also": [b"b"]})
    assert load(machine, ONCE, {"jobs": [b"k"]})
    assert damaged(machine) == ["/s/made"]
    for _ in range(2):
        async with machine.store() as store:
            # The batch is there whole or not at all, and the stream's next one does not overtake it.
            await until(lambda: len(read_commits(machine.fs, STORE).pending) == 2)
            assert await shown(store.topic("jobs")) == [b"j", b"k"]
            assert await shown(store.topic("also")) == []
            assert damaged(machine) == ["/s/made"]
    async with machine.store() as store:
        await until(lambda: any("the bulk load 'stream' waits" in text for text in caplog.messages))
        machine.fs.remove("/s/made")
        await adopted(machine)
        assert await shown(store.topic("made")) == [b"m"]
        assert await shown(store.topic("also")) == [b"a", b"b"]
    assert verify_store(STORE, machine.fs).findings == ()


async def test_one_whose_offset_was_decided_waits_as_well(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"j")
        await store.topic("made").put(b"a")
    assert load(machine, ONCE, {"made": [b"m", b"n"]})
    machine.fs.plan.add(Fault("rename", 1, "EIO", match="/s/made/0"))
    with pytest.raises(aiodq.StorageError):
        async with machine.store():
            pass
    (commit,) = read_commits(machine.fs, STORE).pending
    assert commit.bases == {"made": 1}
    whole = machine.fs.image()
    others = {path: data for path, data in whole.items() if not path.startswith("/s/made")}
    machine.fs = SimulatedFileSystem({**others, "/s/made": b"foreign"})
    for _ in range(2):
        async with machine.store() as store:
            assert await shown(store.topic("jobs")) == [b"j"]
            assert damaged(machine) == ["/s/made"]
            with pytest.raises(aiodq.StorageError):
                # Whatever lies there now: what is put before the next opening would take the others' offsets.
                await store.topic("made").put(b"x")
        assert len(left(machine)) == 1
    machine.fs = SimulatedFileSystem(whole)
    async with machine.store() as store:
        assert await shown(store.topic("made")) == [b"a", b"m", b"n"]
        await store.topic("made").put(b"x")
        assert await shown(store.topic("made")) == [b"a", b"m", b"n", b"x"]
    assert left(machine) == []


async def test_a_load_into_a_reserved_name_is_reported_and_set_aside(machine: Machine) -> None:
    async with machine.store() as store:
        await store.topic("jobs").put(b"j")
    assert load(machine, ONCE, {"LOCK": [b"m"], "jobs": [b"k"]})
    for _ in range(2):
        async with machine.store() as store:
            assert await shown(store.topic("jobs")) == [b"j"]
        (found,) = verify_store(STORE, machine.fs).damages
        assert "no topic can be called 'LOCK'" in found.reason
    assert len(repair_store(STORE, machine.fs)) == 1
    assert verify_store(STORE, machine.fs).ok
    assert len(left(machine)) == 2
