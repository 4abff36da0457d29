"""One version beside another: an aiodq that knows nothing of shared stores reads and owns one, and the other way.

What two versions say to each other is in `tests/shared/test_strangers.py`, and each version's bytes in
`tests/data/golden/wire`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.shared.encoding.stats_json import channel_facts, health_facts, topic_facts
from aiodq.shared.requests import calls, client_events
from aiodq.stats import HeldSegment, Latency
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS
from aiodq.testing import WatchedFileSystem
from tests.processes import ROOT, WATCHDOG
from tests.shared.support import PATIENCE, two, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Any

BEFORE = "8eb56846730d25c763cd0438fc519e91c391a9f7^"
"""The last state of aiodq in which nobody wrote which producer put what."""

OPTIONS = aiodq.StoreOptions(segment_bytes=5_000, retention=aiodq.Retention(consumed="keep"))
COUNT = 300

OLD = """
import asyncio, sys
import aiodq
assert aiodq.__file__.startswith(sys.argv[2]), aiodq.__file__
assert not hasattr(aiodq, "OwnerLostError")
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.io.filesystem import OsFileSystem

def whole():
    report = verify_store(sys.argv[1], OsFileSystem())
    assert report.ok, report.damages

async def main():
    options = aiodq.StoreOptions(segment_bytes=5_000, retention=aiodq.Retention(consumed="keep"))
    async with aiodq.open(sys.argv[1], options) as store:
        queue = store.queue("jobs")
        bodies = [message.body async for message in queue.scan()]
        messages = await queue.get_many(1000)
        await queue.ack_many(messages[:10])
        for message in messages[10:]:
            message.release()
        for number in range(50):
            await queue.put(b"old %d" % number)
        assert sorted(store.topics()) == ["jobs", "made"]
        made = [message.body async for message in store.topic("made").scan()]
        assert len(made) == len(set(made)) == 20, made
        async with store.transaction() as tx:
            tx.put("made", b"old")
    return bodies, messages

whole()
read = [message.body for message in aiodq.open_reader(sys.argv[1]).topic("jobs").scan()]
bodies, messages = asyncio.run(main())
assert read == bodies, "by a reader, and by an owner"
whole()
assert repair_store(sys.argv[1], OsFileSystem()) == []
print(len(bodies), len(messages), messages[0].body.decode())
"""


async def test_a_client_and_an_owner_of_an_earlier_version_go_by_the_number_of_what_is_deferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_PAGE", 3)
    before = calls._CHANNEL["deferred"]

    async def by_number(owner: Any, topic: aiodq.Topic, channel: aiodq.Channel, arguments: Mapping[str, Any]) -> Any:
        return await before(owner, topic, channel, {"from": arguments["from"]})

    monkeypatch.setattr(calls, "_CHANNEL", {**calls._CHANNEL, "deferred": by_number})
    async with two(tmp_path) as (_, client):
        queue = client.queue("jobs")
        await queue.put_many([b"%d" % n for n in range(7)], delay=60)
        assert [message.offset async for message in queue.deferred_messages()] == list(range(7))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a checkout of the version before."""
    done = subprocess.run(["git", "archive", BEFORE, "aiodq"], cwd=ROOT, capture_output=True, check=False)  # noqa: S607
    if done.returncode:
        pytest.skip(f"needs the history of the sources: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


async def share(path: Path, name: str) -> None:
    """Put by two who share the store, of which the owner ends in between; ack some."""
    async with (
        aiodq.open(path, OPTIONS, mode="shared") as first,
        aiodq.open(path, OPTIONS, mode="shared") as second,
    ):
        queues = [first.queue("jobs"), second.queue("jobs")]
        await asyncio.gather(*(queues[n % 2].put(f"{name} {n}".encode()) for n in range(COUNT - 100)))
        await first.aclose()
        await queues[1].put_many([f"{name} {n}".encode() for n in range(COUNT - 100, COUNT)])
        await queues[1].ack_many(await queues[1].get_many(20))
        for number in range(20):
            async with second.transaction() as tx:
                tx.put("made", f"{name} {number}".encode())
            if number == 10:
                async with second._store_engine.owner.engine.without_transactions():  # type: ignore[attr-defined]
                    pass
        # As a kill would leave it: the next owner finds in the file of transactions what they put, and whose they are.
        left = (path / TRANSACTIONS).read_bytes()
    (path / TRANSACTIONS).write_bytes(left)


def run_old(path: Path, old: Path) -> str:
    """Let the version before use a store, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", OLD, str(path), str(old)],
        env={**os.environ, "PYTHONPATH": str(old)},
        cwd=old,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
async def test_a_version_that_knows_no_producers_steps_over_them(
    tmp_path: Path, old: Path, record_property: Callable[[str, Any], None]
) -> None:
    path = tmp_path / "s"
    await share(path, "new")
    read, ready, _ = (await asyncio.to_thread(run_old, path, old)).split(maxsplit=2)
    assert (int(read), int(ready)) == (COUNT, COUNT - 20)
    await share(path, "newer")
    assert verify_store(str(path), WatchedFileSystem()).ok
    bodies = [message.body for message in aiodq.open_reader(path).topic("jobs").scan()]
    assert len(bodies) == len(set(bodies)) == 2 * COUNT + 50
    made = [message.body for message in aiodq.open_reader(path).topic("made").scan()]
    assert len(made) == len(set(made)) == 2 * 20 + 1
    record_property("trials", len(bodies))


async def test_an_owner_of_another_version_may_say_more_of_a_store_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client_events._facts

    def other(stats: aiodq.TopicStats) -> dict[str, Any]:
        facts = {**topic_facts(stats), "later": 1, "held": [[0, 5, 100, ["c"], "later"]]}
        del facts["recovered_bytes"]
        return facts

    def others(channels: Iterable[aiodq.ChannelStats]) -> dict[str, Any]:
        facts = channel_facts(channels)
        for each in facts.values():
            each |= {"later": 1, "put_to_deliver": [1, 0.1, 0.2, 0.3, 0.4, "later"]}
            del each["filtered"]
        return facts

    monkeypatch.setattr(calls, "topic_facts", other)
    monkeypatch.setattr(calls, "channel_facts", others)
    monkeypatch.setattr(calls, "health_facts", lambda health: {**health_facts(health), "later": 1})
    monkeypatch.setattr(client_events, "_facts", lambda event: {**before(event), "later": 1})
    async with two(tmp_path) as (owner, _):
        topic = owner.topic("jobs")
        await topic.put(b"a")
        await (await topic.channel("c").get()).ack()
        async with aiodq.open(tmp_path, mode="client") as client:
            stats = client.topic("jobs").stats()
            assert (stats.recovered_bytes, stats.held) == (0, (HeldSegment(0, 5, 100, ("c",)),))
            latency = stats.channels["c"].put_to_deliver
            assert (stats.channels["c"].filtered, latency) == (0, Latency(1, 0.1, 0.2, 0.3, 0.4))
            assert client.health()
            events, serving = client.events(), owner._store_engine
            listeners = serving.owner.engine.reporter.listeners  # type: ignore[attr-defined]
            await until(lambda: listeners)
            await topic.put(b"b")
            await (await client.topic("jobs").channel("c").get()).reject("bad")
            async with asyncio.timeout(PATIENCE):
                assert (await anext(events)).kind == "dead"
