"""One topic cannot be made, or not be used: it costs nothing but itself, and what is committed for it is kept."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.format.transactions import Commit, Puts
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.transactions.parked_transactions import ASIDE, read_owed
from aiodq.storage.state.transactions.transaction_log import TransactionFile, read_transactions
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem
from tests.channels.one_case import OneCase
from tests.channels.support import Machine, counts, soon
from tests.transactions.test_commit import transact
from tests.transactions.test_recovery import shown, started
from tests.watching.support import at_hand, flip

if TYPE_CHECKING:
    import logging

    from aiodq.storage.offline.store_report import Finding

FOREIGN = b"not of aiodq"


def plant(machine: Machine, path: str) -> None:
    """Put somebody else's file there."""
    file = machine.fs.open(path, create=True)
    file.write_at([FOREIGN], 0)
    file.sync()
    file.close()
    machine.fs.sync_directory("/s")


def planted(machine: Machine, topic: str) -> None:
    """Cut the power, and find somebody else's file in a topic's place."""
    image = machine.fs.durable()
    for path in [path for path in image if path == f"/s/{topic}" or path.startswith(f"/s/{topic}/")]:
        del image[path]
    image[f"/s/{topic}"] = FOREIGN
    machine.fs = SimulatedFileSystem(image)


def findings(machine: Machine) -> list[Finding]:
    return list(verify_store("/s", machine.fs).findings)


async def committed(machine: Machine) -> None:
    """Commit to two topics, and cut the power before anything but the file of transactions is durable."""
    async with machine.store() as store:
        jobs = await started(store)
        await transact(store, {"made": [b"a", b"b"], "log": [b"x"]}, await jobs.get())
        machine.crash()


async def test_damage_to_what_is_parked_is_told(machine: Machine) -> None:
    await committed(machine)
    planted(machine, "made")
    async with machine.store():
        pass
    machine.fs.remove("/s/made")
    ((one,),) = read_owed(machine.fs, "/s").values()
    flip(machine.fs, one.path, (machine.fs.image()[one.path] or b"").rindex(b"b"))
    async with machine.store() as store:
        (event,) = [event for event in at_hand(store.events()) if event.kind == "damage"]
        assert one.path in event.text


async def test_a_transaction_into_a_place_that_is_taken_does_nothing(machine: Machine) -> None:
    async with machine.store() as store:
        jobs = await started(store)
        plant(machine, "/s/out")
        message = await jobs.get()
        for _ in range(2):
            with pytest.raises(aiodq.StorageError, match="move it away") as caught:
                await transact(store, {"made": [b"a"], "out": [b"x"]}, message)
            assert caught.value.path == "/s/out"
            assert counts(jobs) == (2, 1, 0)
        assert await shown(store, "made") == []
        assert store.topics() == ["jobs", "made"]
        assert "move it away" in (store.stats().topics["out"].failed or "")
        assert read_transactions(machine.fs, "/s").blocks == []
        machine.fs.remove("/s/out")
        await transact(store, {"out": [b"x"]}, message)
        assert await shown(store, "out") == [b"x"]
        assert store.stats().topics["out"].failed is None


async def test_a_foreign_file_stops_its_topic_alone(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    await committed(machine)
    planted(machine, "made")
    assert [finding.path for finding in findings(machine) if finding.severity == "damage"] == ["/s/made"]
    for _ in range(3):
        caplog.clear()
        async with machine.store() as store:
            assert [record.name for record in _warnings(caplog)] == ["aiodq.store"]
            assert counts(store.queue("jobs")) == (2, 0, 0)
            assert await shown(store, "log") == [b"x"]
            assert store.topics() == ["jobs", "log"]
            assert "move it away" in (store.stats().topics["made"].failed or "")
            with pytest.raises(aiodq.StorageError, match="move it away"):
                await store.topic("made").put(b"c")
            # The others go on committing: nothing waits for the bad one.
            await transact(store, {"log": [b"y"]})
            assert await store.topic("log").purge() == 2
            await transact(store, {"log": [b"x"]})
        assert read_transactions(machine.fs, "/s").blocks == []
        assert [len(one.blocks) for one in read_owed(machine.fs, "/s")["made"]] == [1]
        assert [finding.path for finding in findings(machine) if finding.severity == "damage"] == ["/s/made"]
        assert any("of 1 committed transactions, what is for topic 'made'" in one.reason for one in findings(machine))
        machine.crash()
    machine.fs.remove("/s/made")
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b"]
        machine.crash()
    assert len(machine.fs.listdir(f"/s/{ASIDE}")) == 1
    for _ in range(2):
        async with machine.store() as store:
            assert await shown(store, "made") == [b"a", b"b"]
        assert machine.fs.listdir(f"/s/{ASIDE}") == []
    assert findings(machine) == []


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelname == "WARNING"]


async def test_once_the_file_is_gone_a_running_store_takes_up_what_is_owed(machine: Machine) -> None:
    await committed(machine)
    planted(machine, "made")
    async with machine.store() as store:
        machine.fs.remove("/s/made")
        assert await soon(store.topic("made").put(b"c")) == 2
        assert await shown(store, "made") == [b"a", b"b", b"c"]
        assert machine.fs.listdir(f"/s/{ASIDE}") == []
        machine.crash()
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b", b"c"]


async def test_nothing_comes_before_what_is_owed_where_the_disk_is_full(machine: Machine) -> None:
    await committed(machine)
    planted(machine, "made")
    async with machine.store() as store:
        machine.fs.remove("/s/made")
        # The first write there is the header.
        machine.fs.plan.add(Fault("write", 2, "ENOSPC", lasting=True, match="/made/00000000000000000000.seg"))
        with pytest.raises(aiodq.DiskFullError, match="free some") as caught:
            await soon(store.topic("made").put(b"c"))
        assert caught.value.path == "/s/made"
        with pytest.raises(aiodq.DiskFullError):
            await soon(store.topic("made").put(b"c"))
        assert len(machine.fs.listdir(f"/s/{ASIDE}")) == 1
        machine.fs.plan.clear()
        assert await soon(store.topic("made").put(b"c")) == 2
        assert await shown(store, "made") == [b"a", b"b", b"c"]
        assert machine.fs.listdir(f"/s/{ASIDE}") == []
        machine.crash()
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b", b"c"]


async def test_repair_makes_way(machine: Machine) -> None:
    await committed(machine)
    planted(machine, "made")
    async with machine.store():
        pass
    (action,) = repair_store("/s", machine.fs)
    assert machine.fs.image()[action.kept] == FOREIGN
    assert not [finding for finding in findings(machine) if finding.severity == "damage"]
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b"]
    assert repair_store("/s", machine.fs) == []


async def test_what_was_committed_to_a_reserved_name_is_kept_and_the_store_opens(machine: Machine) -> None:
    async with machine.store() as store:
        await started(store)
    file = TransactionFile(machine.fs, "/s", machine.clock.now_ns())
    commit = Commit([], [Puts("LOCK", 0, Columns([b"a"])), Puts("log", 0, Columns([b"x"]))])
    file.append([commit], machine.clock.now_ns())
    file.close()
    for _ in range(2):
        async with machine.store() as store:
            assert await shown(store, "log") == [b"x"]
            assert store.topics() == ["jobs", "log", "made"]
            with pytest.raises(aiodq.InvalidNameError):
                store.topic("LOCK")
        (owed,) = read_owed(machine.fs, "/s")["LOCK"]
        assert [put.columns.bodies for block in owed.blocks for put in block.commit.puts] == [[b"a"]]
        (found,) = findings(machine)
        assert (found.severity, found.path) == ("damage", owed.path)
    (action,) = repair_store("/s", machine.fs)
    assert b"a" in (machine.fs.image()[action.kept] or b"")
    assert not verify_store("/s", machine.fs).damages


@pytest.mark.parametrize("error", ["EACCES", "EPERM"])
async def test_a_topic_that_may_not_be_read_stops_itself_alone(machine: Machine, error: str) -> None:
    await committed(machine)
    async with machine.store() as store:
        await store.queue("made").put(b"c")
        await transact(store, {"made": [b"d"], "log": [b"y"]}, await store.queue("made").get())
        machine.crash()
    machine.fs.plan = FaultPlan([Fault("listdir", 1, error, lasting=True, match="/s/made")])
    for _ in range(2):
        async with machine.store() as store:
            assert await shown(store, "log") == [b"x", b"y"]
            assert store.topics() == ["jobs", "log", "made"]
            made = store.topic("made")
            for call in (lambda: made.put(b"e"), lambda: made.read(0), lambda: transact(store, {"made": [b"e"]})):
                with pytest.raises(aiodq.ReadOnlyError) as caught:
                    await call()
                assert caught.value.path == "/s/made"
            with pytest.raises(aiodq.ReadOnlyError):
                store.queue("made")
            assert "not permitted" in (store.stats().topics["made"].failed or "")
            assert not await store.drain(0)
        (found,) = verify_store("/s", machine.fs).damages
        assert found.path == "/s/made"
        assert [(one.path, one.left) for one in repair_store("/s", machine.fs)] == [("/s/made", True)]
        machine.crash()
        machine.fs.plan = FaultPlan([Fault("listdir", 1, error, lasting=True, match="/s/made")])
    machine.fs.plan = FaultPlan()
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b", b"c", b"d"]
        # The ack came with the put of the same transaction.
        assert counts(store.queue("made")) == (3, 0, 0)
    assert machine.fs.listdir(f"/s/{ASIDE}") == []
    async with machine.store() as store:
        assert counts(store.queue("made")) == (3, 0, 0)


@pytest.mark.parametrize("error", ["EMFILE", "ENFILE", "ENOSPC", "EIO", "EINTR", "ENOMEM", "EROFS"])
async def test_what_may_pass_is_raised_at_opening(machine: Machine, error: str) -> None:
    await committed(machine)
    machine.fs.plan = FaultPlan([Fault("listdir", 1, error, lasting=True, match="/s/jobs")])
    with pytest.raises(aiodq.StorageError):
        async with machine.store():
            pass
    machine.fs.plan = FaultPlan()
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b"]


async def test_a_topic_that_cannot_be_used_can_be_deleted_with_what_it_is_owed(machine: Machine) -> None:
    await committed(machine)
    planted(machine, "made")
    async with machine.store() as store:
        await store.delete_topic("made")
        assert store.topics() == ["jobs", "log"]
        assert read_owed(machine.fs, "/s") == {}
    assert machine.fs.image()["/s/made"] == FOREIGN
    machine.fs.remove("/s/made")
    async with machine.store() as store:
        assert store.topics() == ["jobs", "log"]


@pytest.mark.slow_on_uvloop  # what a disk keeps is the same on each loop
async def test_whenever_the_power_is_cut_it_is_there_once(machine: Machine, seed: int) -> None:
    await committed(machine)
    planted(machine, "made")
    recorded = machine.fs = SimulatedFileSystem(machine.fs.durable(), record=True)
    async with machine.store():
        pass
    machine.fs.remove("/s/made")
    async with machine.store() as store:
        assert await shown(store, "made") == [b"a", b"b"]
    states = list(recorded.power_cuts(seed, 2))
    chosen = random.Random(seed).sample(states, 20)
    for _, image in chosen:
        # The file may be back; whoever saw it go takes it away again.
        machine.fs = SimulatedFileSystem({path: data for path, data in image.items() if data != FOREIGN})
        for _ in range(2):
            async with machine.store() as store:
                assert await shown(store, "made") == [b"a", b"b"]
                assert await shown(store, "log") == [b"x"]
                machine.crash()


async def test_where_case_does_not_count_two_topics_never_share_a_directory(machine: Machine) -> None:
    machine.fs = OneCase()
    async with machine.store() as store:
        await store.topic("orders").put(b"a")
        with pytest.raises(aiodq.InvalidNameError, match="differs in case alone"):
            await store.topic("Orders").put(b"b")
        with pytest.raises(aiodq.InvalidNameError, match="differs in case alone"):
            await transact(store, {"Orders": [b"b"]})
        await store.delete_topic("Orders")
        await store.topic("orders").put(b"c")
    async with machine.store() as store:
        assert (store.topics(), await shown(store, "orders")) == (["orders"], [b"a", b"c"])
