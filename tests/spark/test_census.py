"""What tasks count for a report is what a scan gives, however the work is shared. Without a JVM."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.spark.options import read_options
from aiodq.spark.packing import plan_tasks
from aiodq.spark.pipelines import census as counting
from aiodq.spark.pipelines.census import COLUMNS, MOMENTS, census, coarser, step_for
from aiodq.spark.pipelines.report import _channels, _rate, _sizes
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.store_reader import StoreReader, TopicReader
from tests.storage.logs import SECOND, open_log, put

if TYPE_CHECKING:
    from pathlib import Path


def counted(path: Path, **options: str) -> list[dict[str, Any]]:
    """Return the rows of all tasks."""
    wanted, fs = read_options({"path": str(path), "columns": COLUMNS, **options}), OsFileSystem()
    return [row for task in plan_tasks(fs, wanted) for batch in census(fs, task, wanted) for row in batch.to_pylist()]


def summed(rows: list[dict[str, Any]], topic: str, kind: str, name: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows:
        if (row["topic"], row["kind"]) == (topic, kind):
            found[row[name]] += row["count"]
    return found


@pytest.mark.parametrize("seconds", [30, 5000, 400_000, 90_000_000])
@pytest.mark.parametrize(("split", "most"), [("1", 65_536), ("1g", 65_536), ("1g", 30)])
def test_the_moments_of_tasks_add_up_to_those_of_all(  # noqa: PLR0917 - fixtures
    tmp_path: Path, seconds: int, split: str, most: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches a task reads, over which what a moment is grows."""
    monkeypatch.setattr("aiodq.spark.reading._CHUNK", 600)
    monkeypatch.setattr("aiodq.spark.reading._MOST_ROWS", most)
    monkeypatch.setattr(counting, "MOMENTS", min(most, MOMENTS))
    rng = random.Random(seed)
    (tmp_path / "LOCK").touch()
    log = open_log(tmp_path / "t", segment_bytes=3000)
    times = sorted(rng.randrange(1_700_000_000, 1_700_000_000 + seconds) for _ in range(400))
    for time in times:
        put(log, [b"x" * 20], time_ns=time * SECOND)
    log.close()
    rows = counted(tmp_path, splitBytes=split)
    moments = summed(rows, "t", "moment", "number")
    step = step_for(times[0], times[-1])
    assert coarser(moments, step) == Counter(time // step * step for time in times)
    totals = [row for row in rows if row["kind"] == "all"]
    assert len(moments) <= len(totals) * 2 * MOMENTS
    assert (len(totals) > 1) is (split == "1")
    assert min(row["first"] for row in totals) == times[0] * 1_000_000
    assert max(row["last"] for row in totals) == times[-1] * 1_000_000


async def test_sizes_tags_and_totals_by_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [0, 1, 2, 3, 4, 7, 8, 1023, 1024, 5000]
    async with aiodq.open(tmp_path) as store:
        for topic in ("a", "b"):
            drafts = [aiodq.Draft(bytes(size), tag=f"{topic}{size % 3}" if size % 3 else None) for size in sizes]
            await store.topic(topic).put_many(drafts)
    for most in (100_000, 1):
        monkeypatch.setattr(counting, "_MOST_TAGS", most)
        rows = counted(tmp_path)
        for topic in ("a", "b"):
            powers = Counter(size.bit_length() - 1 for size in sizes)
            assert summed(rows, topic, "size", "number") == powers
            tags = Counter(f"{topic}{size % 3}" if size % 3 else None for size in sizes)
            assert summed(rows, topic, "tag", "text") == tags
            totals = [row for row in rows if (row["topic"], row["kind"]) == (topic, "all")]
            assert sum(row["count"] for row in totals) == len(sizes)
            assert sum(row["bytes"] for row in totals) == sum(sizes)
            stamps = [int(m.timestamp.timestamp() * 1e6) for m in aiodq.open_reader(tmp_path).topic(topic).scan()]
            assert abs(min(row["first"] for row in totals) - min(stamps)) <= 1
            assert abs(max(row["last"] for row in totals) - max(stamps)) <= 1


@pytest.mark.parametrize("begin", [-30.5, -0.5, 0.5, 1_700_000_000.5])
@pytest.mark.parametrize("seconds", [0, 1, 50, 5000])
def test_every_message_is_in_a_bar_whenever_it_was_put(tmp_path: Path, begin: float, seconds: int) -> None:
    """Before 1970, a part of a second belongs to the second before."""
    (tmp_path / "LOCK").touch()
    log = open_log(tmp_path / "t")
    for number in range(20):
        put(log, [b"x"], time_ns=int((begin + seconds * number / 19) * SECOND))
    log.close()
    rows = counted(tmp_path)
    (total,) = (row for row in rows if row["kind"] == "all")
    first, last = (datetime.fromtimestamp(total[name] / 1e6, UTC) for name in ("first", "last"))
    bars = _rate(summed(rows, "t", "moment", "number"), first, last).bars
    step = step_for(int(begin // 1), int((begin + seconds) // 1))
    assert round(sum(rate for _, rate in bars) * step) == 20
    assert bars[0][1] > 0
    assert bars[-1][1] > 0


def test_every_size_has_a_bar_between_the_smallest_and_the_largest() -> None:
    bars = _sizes({-1: 2, 0: 1, 3: 4}).bars
    assert list(bars) == [("0", 2), ("1 to 1", 1), ("2 to 3", 0), ("4 to 7", 0), ("8 to 15", 4)]


async def test_a_report_says_how_long_the_oldest_waits(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"a", b"b"])
        await (await jobs.get()).ack()
        jobs.channel("done", aiodq.ChannelOptions(start="latest"))
        await store.topic("jobs").settle_in()
    put = next(aiodq.open_reader(tmp_path).topic("jobs").scan()).timestamp
    depths, ages, _, _ = _channels(str(tmp_path), ["jobs"])
    assert dict(depths.bars) == {"jobs / default": 1, "jobs / done": 0}
    assert 0 <= dict(ages.bars)["jobs / default"] <= (datetime.now(UTC) - put).total_seconds()
    assert all(picture.across for picture in (depths, ages))
    assert dict(ages.bars)["jobs / done"] == 0


async def test_a_report_looks_only_into_topics_that_somebody_consumes(tmp_path: Path, monkeypatch: Any) -> None:
    """Each look walks through a segment: of 1,000 topics that took longer than to count all their messages."""
    async with aiodq.open(tmp_path) as store:
        for number in range(5):
            await store.topic(f"t{number}").put(b"x")
        await store.queue("jobs").put(b"x")
    looks: list[str] = []
    look = StoreReader.topic

    def watched(reader: StoreReader, name: str) -> TopicReader:
        looks.append(name)
        return look(reader, name)

    monkeypatch.setattr(StoreReader, "topic", watched)
    bars = _channels(str(tmp_path), [*(f"t{number}" for number in range(5)), "jobs"])
    assert looks == ["jobs"]
    assert bars == _channels(str(tmp_path), ["deleted meanwhile", "jobs"])[:1] + bars[1:]
    assert [names for names, _ in bars[0].bars] == ["jobs / default"]
