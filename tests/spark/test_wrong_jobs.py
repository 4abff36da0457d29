"""Jobs with wrong arguments: told before Spark is asked for anything, and so without Spark here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.spark.pipelines import archive, audit, check_stores, compact, replay, report, ship
from aiodq.spark.pipelines.replay import check_range
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NONE: Any = object()
"""No session: whoever asks it for something gets an AttributeError."""

EARLIER, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

TOPICS: list[Callable[[Path, Any], object]] = [
    lambda store, topics: archive(NONE, store, store / "lake", topics=topics),
    lambda store, topics: replay(NONE, store / "lake", store, topics=topics),
    lambda store, topics: report(NONE, store, store / "report.html", topics=topics),
    lambda store, topics: audit(NONE, store, topics=topics),
    lambda store, topics: ship(store, "memory://bucket/shop", topics=topics),
    check_stores,
]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store", rounds=2)
    return tmp_path / "store"


@pytest.mark.parametrize("job", TOPICS, ids=["archive", "replay", "report", "audit", "ship", "check_stores"])
async def test_topics_are_a_list(store: Path, job: Callable[[Path, Any], object]) -> None:
    """Of a text the letters would be names; of none at all, every topic."""
    with pytest.raises(aiodq.InvalidOptionError, match=r"topics are several names: write topics=\['orders'\]"):
        job(store, "orders")
    with pytest.raises(aiodq.InvalidOptionError, match="topics is empty: leave it out for all of them"):
        job(store, [])


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (lambda store: archive(NONE, store, store), "is a store: name a directory of its own"),
        (lambda store: archive(NONE, store, ""), "the path of the archive is empty"),
        (lambda store: archive(NONE, store, store / "LOCK"), "is no directory: name one for the files"),
        (lambda store: archive(NONE, f"{store},{store}/b", store / "lake"), "archive is for one store, not for 2: /"),
        (lambda store: report(NONE, f"{store},{store}/b", "r.html"), "report is for one store, not for 2"),
        (lambda store: compact(NONE, f"{store},/b", "orders", "latest"), "compact is for one store, not for 2"),
        (lambda store: replay(NONE, store / "lake", store, first=10, stop=9), "to stop before 9, and its first .* 10"),
        (
            lambda store: replay(NONE, store / "lake", store, since=LATER, until=EARLIER),
            "it is to end before 2026-01-01",
        ),
        (lambda store: replay(NONE, store, store), "is a store: replay reads what archive wrote"),
        (lambda store: replay(NONE, store / "lake", store, tags="red"), r"write tags=\['red'\]"),
        (lambda store: replay(NONE, store / "lake", store, into="t#ephemeral"), "only its owner can put into it"),
        (lambda store: replay(NONE, store / "lake", store, txn_id=" "), "txnId is empty"),
        (lambda store: replay(NONE, store / "lake", "s3://bucket/shop"), "is in object storage"),
        (lambda store: compact(NONE, store, "orders", "t#ephemeral"), "only its owner can put into it"),
        (lambda store: compact(NONE, store, "orders", "latest", segment_bytes=0), "segmentBytes is bytes"),
        (lambda store: compact(NONE, store, "orders", "latest", target="s3://b/s"), "is in object storage"),
    ],
)
async def test_what_no_job_can_do(store: Path, job: Callable[[Path], object], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        job(store)


@pytest.mark.parametrize(
    "job",
    [
        lambda store: replay(NONE, store / "lake", store, into="a/b"),
        lambda store: compact(NONE, store, "orders", "a/b"),
    ],
)
async def test_names_that_no_topic_can_have(store: Path, job: Callable[[Path], object]) -> None:
    with pytest.raises(aiodq.InvalidNameError, match="'a/b' is no name for a topic"):
        job(store)


async def test_what_is_no_place_for_a_store_is_told_before_anything_is_read(store: Path) -> None:
    (store.parent / "file").touch()
    for path, error in ((store.parent / "file", aiodq.NotAStoreError), (store / "no" / "s", aiodq.StoreNotFoundError)):
        with pytest.raises(error, match="no directory"):
            replay(NONE, store.parent / "lake", path)
        with pytest.raises(error, match="no directory"):
            compact(NONE, store, "orders", "latest", target=path)
        assert not (store / "no").exists()


async def test_a_pattern_may_name_the_one_store(store: Path) -> None:
    with pytest.raises(aiodq.StoreNotFoundError, match="there is no topic 'unknown'"):
        report(NONE, f"{store.parent}/sto*", "report.html", topics=["unknown"])


async def test_a_report_that_cannot_be_written_is_not_counted_for(store: Path) -> None:
    with pytest.raises(FileNotFoundError):
        report(NONE, store, store / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError):
        report(NONE, store, store)


@pytest.mark.parametrize(
    "given",
    [
        (None, None, None, None),
        (5, None, None, None),
        (None, 5, None, None),
        (5, 5, None, None),
        (0, 5, None, None),
        (None, None, LATER, None),
        (None, None, None, EARLIER),
        (None, None, EARLIER, EARLIER),
        (9, 10, EARLIER, LATER),
    ],
)
def test_a_range_that_can_be(given: tuple[int | None, int | None, datetime | None, datetime | None]) -> None:
    check_range(*given)
