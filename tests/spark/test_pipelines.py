"""The ready-made jobs, on stores with everything in them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import aiodq
from aiodq.engine.store.opening import adopt_without_owner
from aiodq.spark.options import batch_options, read_options, write_options
from aiodq.spark.packing import plan_tasks
from aiodq.spark.pipelines import archive, audit, check_stores, compact, query, replay, report
from aiodq.spark.pipelines.archive import _archived
from aiodq.spark.pipelines.audit import _Piece, _tasks
from aiodq.spark.pipelines.census import COLUMNS
from aiodq.spark.pipelines.pictures import Bars, page
from aiodq.spark.pipelines.query import prepare_views
from aiodq.spark.pipelines.report import _counted
from aiodq.spark.pipelines.results import name_of_result
from aiodq.spark.pipelines.spread import spread
from aiodq.spark.planning import plan
from aiodq.spark.visible import Place
from aiodq.spark.writing.committing import was_committed
from aiodq.spark.writing.staged_rows import kept_options
from aiodq.spark.writing.writers import BatchWriter
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds, release_hold
from tests.spark.support import KEEP, fill, scanned
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiodq.spark.options import WriteOptions

T = TypeVar("T")

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "store", rounds=20, segment_bytes=1000))
    return tmp_path / "store"


def in_a_thread(work: Callable[[], T]) -> T:
    """Return what comes of work in a thread that has not used the session: Spark finds no source to write to there."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def without_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what a topic gives anew."""
    return [{name: value for name, value in row.items() if name not in {"offset", "timestamp"}} for row in rows]


@pytest.mark.usefixtures("elsewhere")
def test_each_message_is_archived_once(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    """Of what lies behind a hold that is gone a run is told first. Each run costs seconds: one test has them all."""
    told: list[int] = []
    first = archive(spark, store, tmp_path / "out", most_records=40, progress=told.append)
    assert (first.rows, first.batches) == (100, 3)
    assert told[-1] == 100
    ((name, hold),) = read_holds(OsFileSystem(), str(store)).items()
    assert hold.offsets == {"orders": 100}
    assert release_hold(OsFileSystem(), str(store), name)
    asyncio.run(fill(store, rounds=1))
    with pytest.raises(PySparkException, match=f"the hold '{name}' is gone"):
        archive(spark, store, tmp_path / "out")
    assert archive(spark, store, tmp_path / "out", lossy=True).rows == 5
    assert read_holds(OsFileSystem(), str(store))[name].offsets == {"orders": 105}
    asyncio.run(fill(store, rounds=1))
    asyncio.run(fill(store, "other", rounds=1))
    assert archive(spark, store, tmp_path / "out", hold=name).rows == 10
    # With another checkpoint Spark would take its batches for written, and write nothing.
    with pytest.raises(aiodq.InvalidOptionError, match="was written with another checkpoint"):
        archive(spark, store, tmp_path / "out", checkpoint=tmp_path / "two")
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.count() == 115
    assert [row["offset"] for row in rows.where("topic = 'orders'").orderBy("offset").collect()] == list(range(110))
    days = {row["day"] for row in rows.selectExpr("CAST(date AS STRING) AS day").distinct().collect()}
    assert days == {str(row["timestamp"].date()) for topic in ("orders", "other") for row in scanned(store, topic)}
    shutil.rmtree(tmp_path / "out")
    assert archive(spark, store, tmp_path / "out").rows == 115, "the hold of what is gone is this one's again"


def test_a_lossy_archive_tells_of_what_is_missing_at_a_topics_end(
    spark: SparkSession, tmp_path: Path, store: Path
) -> None:
    last = segments(store / "orders")[-1]
    os.truncate(last, last.stat().st_size // 2)
    left = len(scanned(store))
    done = archive(spark, store, tmp_path / "out", lossy=True)
    assert (done.rows, done.lost) == (left, 100 - left)


@pytest.mark.slow
def test_what_goes_on_ends_when_it_is_told(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    rows: list[int] = []
    done = archive(
        spark, store, tmp_path / "out", once=False, every=0.1, progress=rows.append, stop=lambda: rows[-1] >= 100
    )
    assert done.rows == 100


@pytest.mark.parametrize("spelled", ["out", "link/out"])
def test_a_second_run_of_a_session_into_one_directory_is_refused_and_the_first_goes_on(
    spark: SparkSession, tmp_path: Path, store: Path, spelled: str
) -> None:
    """From another session of the application likewise: Spark would end the first one, which would say it was done."""
    (tmp_path / "link").symlink_to(tmp_path)
    counts: list[int] = []

    def again(rows: int) -> None:
        if rows and not any(counts):
            with pytest.raises(aiodq.InvalidOptionError, match=r"the same SparkSession is archiving into .*/out:"):
                archive(spark, store, tmp_path / spelled)
            with pytest.raises(aiodq.InvalidOptionError, match="_checkpoint is in use: a query of this Spark app"):
                archive(spark.newSession(), store, tmp_path / "out")
            with pytest.raises(aiodq.InvalidOptionError, match="_checkpoint is another directory's"):
                archive(spark.newSession(), store, tmp_path / "two", checkpoint=tmp_path / "out" / "_checkpoint")
            asyncio.run(fill(store, "later", rounds=1))
        counts.append(rows)

    done = archive(
        spark, store, tmp_path / "out", once=False, every=0.1, progress=again, stop=lambda: counts[-1] >= 105
    )
    assert done.rows == 105
    assert spark.conf.get("spark.sql.streaming.stopActiveRunOnRestart") == "true"
    assert archive(spark.newSession(), store, tmp_path / "out").rows == 0, "the first one has ended"


def test_the_path_of_an_archive_may_look_like_that_of_a_topic(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    lake = tmp_path / "topic=all" / "topic=more"
    archive(spark, store, lake)
    assert archive(spark, store, lake).rows == 0
    for topic in ("all", "more"):
        with pytest.raises(aiodq.StoreNotFoundError, match=f"no topic '{topic}' in the archive; there are: orders"):
            replay(spark, lake, tmp_path / "again", topics=[topic])
    assert replay(spark, lake, tmp_path / "again", topics=["orders"]).rows == 100


def test_archived_and_replayed_it_is_what_it_was(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    lake, again = tmp_path / "a lake", tmp_path / "again"
    archive(spark, store, f"file://{lake}")
    before = executions(spark)
    done = replay(spark, lake, again, txn_id="once")
    assert (done.rows, done.repeated, executions(spark) - before) == (100, False, 2), "the offsets, the messages"
    done = replay(spark, lake, again, txn_id="once")
    assert (done.rows, done.repeated, executions(spark) - before) == (0, True, 2)
    assert without_place(scanned(again)) == without_place(scanned(store))
    done = replay(spark, lake, tmp_path / "part", into="new", tags=["red"], first=10, stop=60)
    expected = [row["body"] for row in scanned(store)[10:60] if row["tag"] == "red"]
    assert [row["body"] for row in scanned(tmp_path / "part", "new")] == expected
    assert done.rows == len(expected) > 0
    half = scanned(store)[50]["timestamp"]
    early = replay(spark, lake, tmp_path / "time", until=half, topics=["orders"])
    late = replay(spark, lake, tmp_path / "time", since=half, topics=["orders"])
    assert (early.rows > 0, early.rows + late.rows) == (True, 100)
    assert replay(spark, lake, tmp_path / "time", tags=["none"]).rows == 0
    with pytest.raises(aiodq.InvalidOptionError, match="zone"):
        replay(spark, lake, tmp_path / "time", since=half.replace(tzinfo=None))
    what_is_not_in_it(spark, store, lake)
    moved(spark, store, lake)


class TestARunThatAnotherOneIsQuickerThan:
    """Its commit comes after this one has asked, and before it commits."""

    @pytest.fixture(params=["open", "closed"])
    def earlier(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
        def before(job: str, into: str) -> None:
            def asked(options: WriteOptions, name: str) -> bool:
                monkeypatch.setattr(module, "was_committed", was_committed)
                if request.param == "open":  # as if its owner had not taken it over yet
                    monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: False)
                writer = BatchWriter(replace(options, topic=into, name=name, run="earlier"))
                writer.commit([writer.write(iter([pa.RecordBatch.from_pylist([{"body": b"theirs"}])]))])
                monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", adopt_without_owner)
                return False

            module = import_module(f"aiodq.spark.pipelines.{job}")
            monkeypatch.setattr(module, "was_committed", asked)

        return before

    def test_it_says_of_a_replay_that_it_added_nothing(
        self, spark: SparkSession, tmp_path: Path, store: Path, earlier: Callable[[str, str], None]
    ) -> None:
        archive(spark, store, tmp_path / "lake")
        earlier("replay", "orders")
        done = replay(spark, tmp_path / "lake", tmp_path / "again", txn_id="once")
        assert (done.rows, done.repeated) == (0, True)
        assert [row["body"] for row in scanned(tmp_path / "again")] == [b"theirs"]

    @pytest.mark.parametrize("txn_id", [None, "once"])
    def test_it_says_of_a_compaction_that_it_added_nothing(
        self, spark: SparkSession, tmp_path: Path, earlier: Callable[[str, str], None], txn_id: str | None
    ) -> None:
        asyncio.run(_put_keys(tmp_path))
        earlier("compact", "newest")
        done = compact(spark, tmp_path, "prices", "newest", txn_id=txn_id)
        assert (done.read, done.kept, done.repeated) == (7, 0, True)
        assert [row["body"] for row in scanned(tmp_path, "newest")] == [b"theirs"]


def what_is_not_in_it(spark: SparkSession, store: Path, lake: Path) -> None:
    """Under the name of a run, nothing would count as all of it for good."""
    anew = lake.parent / "anew"
    with pytest.raises(aiodq.StoreNotFoundError, match="no topic 'typo' in the archive; there are: orders"):
        replay(spark, lake, anew, topics=["typo"], txn_id="once")
    (lake.parent / "empty").mkdir()
    with pytest.raises(aiodq.StoreNotFoundError, match="there is nothing to replay"):
        replay(spark, lake.parent / "empty", anew, txn_id="once")
    with pytest.raises(aiodq.InvalidOptionError, match="'s3://b/lake' is no directory"):
        archive(spark, store, "s3://b/lake")


def moved(spark: SparkSession, store: Path, lake: Path) -> None:
    """Move an archive away, and put a link in its place."""
    aside, anew = lake.parent / "moved", lake.parent / "anew"
    lake.rename(aside)
    with pytest.raises(aiodq.InvalidOptionError, match=r"was moved or copied: it was written as .*a lake, where Spark"):
        replay(spark, aside, anew, txn_id="once")
    with pytest.raises(aiodq.InvalidOptionError, match="was moved or copied"):
        archive(spark, store, aside)
    lake.symlink_to("moved")
    asyncio.run(fill(store, rounds=2))
    assert archive(spark, store, lake).rows == 10
    once = partial(replay, spark, lake, f"file://{anew}", topics=["orders"], txn_id="once")
    assert in_a_thread(once).rows == 110
    assert once().repeated


async def _put_anew(path: Path, name: str, number: int) -> None:
    """Put into a topic that is created for it: an earlier one of that name is deleted."""
    async with aiodq.open(path, aiodq.StoreOptions(retention=KEEP, sync="os")) as store:
        if "orders" in store.topics():
            await store.delete_topic("orders")
        await store.topic("orders").put_many([f"{name} {each}".encode() for each in range(number)])


def test_topics_of_one_name_are_replayed_one_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = tmp_path / "s", tmp_path / "lake"
    topics = {"first": 6, "second": 9, "third": 3}
    for name, number in topics.items():
        asyncio.run(_put_anew(path, name, number))
        assert archive(spark, path, lake, lossy=True).rows == number
    expected = [f"{name} {each}".encode() for name, number in topics.items() for each in range(number)]
    assert replay(spark, lake, tmp_path / "again").rows == 18
    assert [row["body"] for row in scanned(tmp_path / "again")] == expected
    replay(spark, lake, tmp_path / "again", into="part", first=2, stop=5)
    part = [f"{name} {each}".encode() for name, number in topics.items() for each in range(2, min(number, 5))]
    assert [row["body"] for row in scanned(tmp_path / "again", "part")] == part
    assert _archived(spark, str(lake), str(path), ("orders", 0, 9)) == 3, "only of the one that the store has"
    earlier = spark.read.parquet(str(lake)).drop("topic_uuid")
    earlier.write.partitionBy("topic").parquet(str(tmp_path / "earlier"))
    assert replay(spark, tmp_path / "earlier", tmp_path / "again", into="earlier").rows == 18
    assert [row["body"] for row in scanned(tmp_path / "again", "earlier")] == expected, "in the order of time"


def test_a_pattern_that_no_topic_matches_is_told(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    for topics in (["typo*"], ["typo"]):
        with pytest.raises(aiodq.StoreNotFoundError, match="typo"):
            audit(spark, store, topics=topics)
        with pytest.raises(aiodq.StoreNotFoundError, match="typo"):
            report(spark, store, tmp_path / "report.html", topics=topics)
        assert not (tmp_path / "report.html").exists()
    check_stores(store, ["typo*"], coming=True)
    with pytest.raises(aiodq.InvalidNameError, match=r"'ord\*'"):
        compact(spark, store, "ord*", "latest")


@pytest.mark.slow
def test_topics_that_look_like_numbers_keep_their_names(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "s", "007", rounds=1))
    archive(spark, tmp_path / "s", tmp_path / "out")
    assert replay(spark, tmp_path / "out", tmp_path / "again", topics=["007"]).rows == 5
    assert aiodq.open_reader(tmp_path / "again").topics() == ["007"]


def test_a_topic_may_be_called_what_spark_calls_a_directory_of_nulls(spark: SparkSession, tmp_path: Path) -> None:
    names = ["__HIVE_DEFAULT_PARTITION__", "orders"]
    for name in names:
        asyncio.run(fill(tmp_path / "s", name, rounds=1))
    lake = tmp_path / "lake"
    spark.read.format("aiodq").load(str(tmp_path / "s")).coalesce(1).write.partitionBy("topic").parquet(str(lake))
    assert replay(spark, lake, tmp_path / "again").rows == 10
    assert [len(scanned(tmp_path / "again", name)) for name in names] == [5, 5]
    assert replay(spark, lake, tmp_path / "one", topics=names[:1]).rows == 5
    assert replay(spark, lake, tmp_path / "one", into="all").rows == 10
    bodies = [row["body"] for row in scanned(tmp_path / "again", "orders")]
    assert [row["body"] for row in scanned(tmp_path / "one", "all")] == bodies * 2, "one topic after the other"


def test_questions_in_sql(spark: SparkSession, store: Path) -> None:
    asyncio.run(fill(store, "a.b-c", rounds=1))
    found = query(spark, store, "SELECT topic, count(*) AS n FROM messages GROUP BY topic ORDER BY topic").collect()
    assert [tuple(row) for row in found] == [("a.b-c", 5), ("orders", 100)]
    (row,) = query(spark, store, "SELECT text, offset FROM `a.b-c` WHERE tag = 'blue'").collect()
    assert tuple(row) == ("red", 4)
    with pytest.raises(aiodq.StoreNotFoundError):
        query(spark, store / "none", "SELECT 1")
    asyncio.run(fill(store.parent / "second", "mail", rounds=1))
    asyncio.run(fill(store.parent / "second", "MAIL", rounds=1))
    both = f"{store},{store.parent / 'second'}"
    (row,) = query(spark, both, "SELECT count(*) FROM orders").collect()
    assert row[0] == 100
    assert set(prepare_views(spark, both)) == {"messages", "orders", "a.b-c"}


def test_views_of_what_options_name(spark: SparkSession, store: Path) -> None:
    asyncio.run(fill(store, "mail", rounds=1))
    by_topic = '{"orders": 98, "mail": "latest"}'
    assert prepare_views(spark, store, topics="orders,m*", startingOffsets=by_topic) == ["messages", "mail", "orders"]
    assert [spark.table(view).count() for view in ("messages", "orders", "mail")] == [2, 2, 0]


def test_views_of_stores_with_commas_in_their_names(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    store.rename(tmp_path / "a,b")
    asyncio.run(fill(tmp_path / "ab", rounds=1))
    (row,) = query(spark, f"{tmp_path}/a*b", "SELECT count(*) FROM orders").collect()
    assert row[0] == 105


async def _put_keys(path: Path) -> None:
    async with aiodq.open(path, aiodq.StoreOptions(retention=KEEP)) as opened:
        topic = opened.topic("prices")
        for number, key in enumerate([b"a", b"b", None, b"a", b"c", None, b"c"]):
            await topic.put(b"" if number == 6 else b"%d" % number, key=key, headers={"n": str(number)})


def test_an_earlier_message_of_a_key_is_not_the_latest_if_later_ones_were_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Retention deletes what every channel has settled, also between others."""

    async def put() -> None:
        async with aiodq.open(tmp_path, aiodq.StoreOptions(segment_bytes=1000)) as store:
            topic = store.topic("prices")
            work = topic.channel("work")
            for number in range(60):
                await topic.put(b"%d" % number + bytes(50), key=b"k" if number in {0, 30} else b"%d" % number)
            await work.ack_many([message for message in await work.get_many(60) if message.offset not in {0, 59}])
            while len(segments(tmp_path / "prices")) > 2:
                await asyncio.sleep(0.01)

    asyncio.run(put())
    first, stop = (int(segment.stem) for segment in segments(tmp_path / "prices"))
    with pytest.raises(aiodq.OffsetError, match=f"has no messages [0-9]+ to {stop - 1} any more: .* with lossy, goes"):
        compact(spark, tmp_path, "prices", "latest")
    assert "latest" not in aiodq.open_reader(tmp_path).topics()
    done = compact(spark, tmp_path, "prices", "latest", lossy=True)
    assert done.kept == done.read == len(scanned(tmp_path, "prices")) < stop - first


def test_bodies_that_are_no_text_are_shown_as_far_as_it_goes(spark: SparkSession, tmp_path: Path) -> None:
    async def put() -> None:
        async with aiodq.open(tmp_path / "store") as store:
            await store.topic("raw").put_many([b"tea \xff\xfe", b"\x00\x80", "gr\u00fcn".encode(), b""])

    asyncio.run(put())
    rows = query(spark, tmp_path / "store", "SELECT text FROM raw WHERE text LIKE '%' ORDER BY offset").collect()
    assert [row["text"] for row in rows] == ["tea \ufffd\ufffd", "\x00\ufffd", "gr\u00fcn", ""]


def test_the_latest_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    """Compacted again, it is there once; also where its topic was deleted since: what was committed then is gone."""
    asyncio.run(_put_keys(tmp_path))
    with pytest.raises(aiodq.InvalidOptionError, match="stays as it is"):
        compact(spark, tmp_path, "prices", "prices")
    with pytest.raises(aiodq.InvalidOptionError, match="txnId is empty"):
        compact(spark, tmp_path, "prices", "newest", txn_id="")
    for deleted in (False, True):
        if deleted:
            asyncio.run(_deleted(tmp_path, "newest"))
        done = in_a_thread(partial(compact, spark, tmp_path, "prices", "newest"))
        assert (done.read, done.kept, done.repeated) == (7, 5, False)
        again = compact(spark, f"file://{tmp_path}", "prices", "newest")
        assert (again.read, again.kept, again.repeated) == (0, 0, True)
        assert [row["body"] for row in scanned(tmp_path, "newest")] == [b"1", b"2", b"3", b"5", b""]
    assert scanned(tmp_path, "newest")[0]["headers"] == [("n", "1")]
    with pytest.raises(aiodq.InvalidOptionError, match="messages 0 to 6; these are 0 to 6, without empty ones: put it"):
        compact(spark, tmp_path, "prices", "newest", drop_empty=True)
    for repeated in (False, True):
        done = compact(spark, tmp_path, "prices", "newest", drop_empty=True, txn_id="alive")
        assert done.repeated == repeated
        assert [row["body"] for row in scanned(tmp_path, "newest")][5:] == [b"1", b"2", b"3", b"5"]
    asyncio.run(_put_keys(tmp_path))
    with pytest.raises(aiodq.InvalidOptionError, match="what was compacted of the messages 0 to 6; these are 0 to 13"):
        compact(spark, tmp_path, "prices", "newest")
    asyncio.run(_put_again(tmp_path, b"c"))
    compact(spark, tmp_path, "prices", "newest", drop_empty=True, target=tmp_path / "other")
    found = [row["body"] for row in scanned(tmp_path / "other", "newest")]
    assert found == [b"2", b"5", b"1", b"2", b"3", b"5", b"again"], "a key that was gone and is there again is kept"


@pytest.mark.parametrize("messages", [0, 2])
def test_a_compaction_that_keeps_nothing_is_done_under_its_name(
    spark: SparkSession, tmp_path: Path, messages: int
) -> None:
    """Run again after a message has come, it would add that one, and the next run would add it a second time."""

    async def put(*bodies: bytes) -> None:
        async with aiodq.open(tmp_path, aiodq.StoreOptions(sync="os", retention=KEEP)) as opened:
            opened.topic("prices").channel("c")
            for body in bodies:
                await opened.topic("prices").put(body, key=b"k")

    asyncio.run(put(*[b"1", b""][:messages]))
    done = compact(spark, tmp_path, "prices", "newest", drop_empty=True, txn_id="monday")
    assert (done.read, done.kept, done.repeated) == (messages, 0, False)
    assert compact(spark, tmp_path, "prices", "newest", drop_empty=True).kept == 0
    asyncio.run(put(b"2"))
    done = compact(spark, tmp_path, "prices", "newest", drop_empty=True, txn_id="monday")
    assert (done.read, done.kept, done.repeated) == (0, 0, True)
    assert aiodq.open_reader(tmp_path).topics() == ["prices"]
    done = compact(spark, tmp_path, "prices", "newest", drop_empty=True, txn_id="tuesday")
    assert (done.kept, [row["body"] for row in scanned(tmp_path, "newest")]) == (1, [b"2"])


async def _put_again(path: Path, key: bytes) -> None:
    async with aiodq.open(path) as opened:
        await opened.topic("prices").put(b"again", key=key)


async def _deleted(path: Path, topic: str) -> None:
    async with aiodq.open(path) as opened:
        await opened.delete_topic(topic)


async def _put_alike(path: Path, count: int, *, key: bool) -> None:
    async with aiodq.open(path, aiodq.StoreOptions(sync="os", retention=KEEP)) as opened:
        drafts = [aiodq.Draft(b"%04d" % each, key=b"%d" % (each % 7) if key else None) for each in range(count)]
        await opened.topic("all").put_many(drafts)


def test_what_is_damaged_fails_a_compaction_or_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its owner deletes between the two passes is not told as written."""
    asyncio.run(_put_keys(tmp_path))
    asyncio.run(fill(tmp_path, "orders"))
    path = segments(tmp_path / "orders")[2]
    flip(path, path.read_bytes().index(b"plain "), 1)
    with pytest.raises(PySparkException, match="archive, compact, query or report with lossy, goes on without"):
        compact(spark, tmp_path, "orders", "newest")
    done = compact(spark, tmp_path, "orders", "newest", lossy=True)
    assert done.read == len(scanned(tmp_path, "orders")) < 200
    assert done.kept == len(scanned(tmp_path, "newest")) > 0
    compacting = import_module(compact.__module__)
    look = compacting._latest

    def deleting(*given: Any, **how: Any) -> Any:
        found = look(*given, **how)
        segments(tmp_path / "prices")[0].unlink()
        return found

    monkeypatch.setattr(compacting, "_latest", deleting)
    done = compact(spark, tmp_path, "prices", "newest", txn_id="again", lossy=True)
    assert (done.read, done.kept) == (7, 0)


def test_a_topic_that_is_compacted_or_replayed_anew_takes_bodies_as_large_as_the_one_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    most, body = aiodq.StoreOptions().max_message_bytes, bytes((16 << 20) + 1)

    async def put() -> None:
        async with aiodq.open(tmp_path / "s") as store:
            await store.topic("big", aiodq.StoreOptions(max_message_bytes=2 * most)).put(body, key=b"k")

    asyncio.run(put())
    (tmp_path / "lake").mkdir()
    pq.write_table(aiodq.open_reader(tmp_path / "s").topic("big").to_arrow(), tmp_path / "lake" / "big.parquet")
    assert compact(spark, tmp_path / "s", "big", "latest").kept == 1
    with pytest.raises(PySparkException, match=r"it takes 0 to 16777216 .* say by maxMessageBytes"):
        replay(spark, tmp_path / "lake", tmp_path / "s", into="again")
    assert replay(spark, tmp_path / "lake", tmp_path / "s", into="again", max_message_bytes=3 * most).rows == 1
    for name, takes in (("latest", 2 * most), ("again", 3 * most)):
        assert [row["body"] == body for row in scanned(tmp_path / "s", name)] == [True]
        kept = kept_options(OsFileSystem(), str(tmp_path / "s"), name)
        assert kept is not None
        assert kept.max_message_bytes == takes


@pytest.mark.parametrize("key", [True, False], ids=["keys", "keyless"])
def test_what_is_compacted_is_in_few_segments(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bool
) -> None:
    asyncio.run(_put_alike(tmp_path, 1000, key=key))
    tasks = tasks_of("compact", monkeypatch)
    done = compact(spark, tmp_path, "all", "latest")
    assert (done.read, done.kept) == (1000, 7 if key else 1000)
    assert [int(path.stem) for path in segments(tmp_path / "latest")] == [0, done.kept], "one, and what comes next"
    assert [row["body"] for row in scanned(tmp_path, "latest")] == [b"%04d" % n for n in range(1000 - done.kept, 1000)]
    assert tasks == [1, 1], "the keys once, and what is kept once"


def test_many_segments_are_compacted_into_few(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(fill(tmp_path, rounds=60, segment_bytes=1000))
    monkeypatch.setattr("aiodq.spark.planning.LEAST_BYTES", 1000)
    tasks = tasks_of("compact", monkeypatch)
    done = compact(spark, tmp_path, "orders", "latest")
    assert done.kept > 200
    assert len(segments(tmp_path / "latest")) == 2, "one, and what comes next"
    assert tasks[-1] == 1
    compact(spark, tmp_path, "orders", "small", segment_bytes=8192)
    assert tasks[-1] == 1, "a task writes several segments"


def test_segments_of_what_is_compacted_are_as_large_as_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(_put_alike(tmp_path, 3000, key=False))
    compact(spark, tmp_path, "all", "latest", segment_bytes=4096)
    size = segments(tmp_path / "all")[0].stat().st_size
    assert size / 4096 * 0.5 < len(segments(tmp_path / "latest")) < size / 4096 * 1.5 + 1
    assert [row["body"] for row in scanned(tmp_path, "latest")] == [b"%04d" % number for number in range(3000)]


def test_an_audit_finds_what_is_not_as_it_was(spark: SparkSession, store: Path) -> None:
    asyncio.run(fill(store, "other", rounds=1))
    clean = audit(spark, store)
    assert (clean.findings, clean.records) == ((), 105)
    assert clean.segments == len(segments(store / "orders")) + 1
    assert clean.bytes == sum(path.stat().st_size for path in store.glob("*/*.seg"))
    paths = segments(store / "orders")
    flip(paths[0], 300, 0)
    flip(paths[1], 200, 0)
    paths[2].unlink()
    found = audit(spark, store, topics=["ord*"]).findings
    assert [finding.path for finding in found] == [str(paths[0]), str(paths[1]), str(paths[3])]
    assert {(finding.store, finding.topic) for finding in found} == {(str(store), "orders")}
    assert 64 <= found[0].position <= 300
    assert "are missing" in found[2].reason
    assert audit(spark, store, topics=["other"]).findings == ()
    assert audit(spark, f"{store.parent}/st*").findings == (*found,)


def tasks_of(pipeline: str, patched: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will have how many tasks each pass of a pipeline has."""
    tasks: list[int] = []

    def watched(session: SparkSession, work: Sequence[Any], *how: Any) -> Any:
        tasks.append(len(work))
        return spread(session, work, *how)

    patched.setattr(import_module(f"aiodq.spark.pipelines.{pipeline}"), "spread", watched)
    return tasks


def test_an_audit_of_many_segments_takes_few_tasks(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of("audit", monkeypatch)
    assert audit(spark, store).segments == len(segments(store / "orders")) > 5
    assert tasks == [1]


def test_a_task_of_an_audit_has_more_to_do_than_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes Spark about as long to begin one as it takes that one to check a hundred megabytes."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    piece = _Piece(0, 0, Place("s/t", uuid4()), "0.seg", 0, 1, 60 << 20, last=False, copied=False)
    assert [[len(task) for task in _tasks([piece] * many)] for many in (1, 2, 24)] == [[1], [2], [12, 12]]
    assert len(_tasks([piece] * 320)) == 18


async def _work(path: Path) -> None:
    async with aiodq.open(path) as opened:
        queue = opened.queue("jobs")
        for number in range(30):
            await queue.put(b"x" * number, tag="<b>" if number % 2 else None)
        for message in await queue.get_many(10, linger=5):
            await message.ack()


@pytest.mark.usefixtures("elsewhere")
def test_a_report_shows_topics_and_channels(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(_work(tmp_path / "s"))
    done = report(spark, tmp_path / "s", tmp_path / "r.html")
    assert (done.topics, done.rows) == (1, 30)
    text = (tmp_path / "r.html").read_text()
    for part in ("Messages a second", "Messages by size", "Messages by tag", "jobs / default", "Age of the oldest"):
        assert part in text
    first, *_, last = (f"{row['timestamp']:%Y-%m-%d %H:%M:%S}" for row in scanned(tmp_path / "s", "jobs"))
    assert f"put from {first} to {last} (UTC)" in text
    assert f"{first[:-2]}" in "".join(re.findall(r"<svg.*?</svg>", text)[0])
    assert "&lt;b&gt;: 15" in text
    assert "jobs / default: 20" in text
    for picture in re.findall(r"<svg.*?</svg>", text):
        bars = ET.fromstring(picture).findall("rect")  # noqa: S314 - made here
        assert all(float(bar.attrib["width"]) >= 0 and float(bar.attrib["height"]) >= 0 for bar in bars)
    assert len(re.findall(r"<svg", text)) == 7


def test_a_report_of_many_topics_is_one_pass(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put() -> None:
        async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(sync="os", retention=KEEP)) as opened:
            for number in range(12):
                drafts = [aiodq.Draft(b"x", tag=f"tag{each % 25:02}") for each in range(40 + number)]
                await opened.topic(f"t{number:02}").put_many(drafts)

    asyncio.run(put())
    tasks = tasks_of("report", monkeypatch)
    before = executions(spark)
    done = report(spark, tmp_path / "s", tmp_path / "r.html")
    assert (done.topics, done.rows) == (12, sum(40 + number for number in range(12)))
    assert (tasks, executions(spark) - before) == ([1], 1)
    text = (tmp_path / "r.html").read_text()
    assert text.index("<h2>t00") < text.index("<h2>t11")
    assert "tag00: 2" in text
    assert "tag20: 2" not in text, "the 20 most frequent"


@pytest.mark.parametrize(("split", "exchanges"), [("1g", 0), ("1k", 1)])
def test_what_tasks_counted_for_a_report_is_exchanged_once(
    spark: SparkSession, store: Path, split: str, exchanges: int
) -> None:
    """Each exchange costs as much as to read hundreds of small topics; what one task has counted needs none."""
    options = read_options({"path": str(store), "columns": COLUMNS, "splitBytes": split})
    plan = _counted(spark, plan_tasks(OsFileSystem(), options), options)
    assert plan._jdf.queryExecution().executedPlan().toString().count("Exchange ") == exchanges
    counted = {(row["kind"], row["text"]): row["count"] for row in plan.collect() if row["kind"] in {"all", "tag"}}
    assert counted == {("all", None): 100, ("tag", "red"): 13, ("tag", "blue"): 7, ("tag", None): 80}


def executions(spark: SparkSession) -> int:
    """Return how many queries and commands the session has run."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return int(spark._jsparkSession.sharedState().statusStore().executionsCount())


def test_a_report_fails_on_damage_or_leaves_it_out(spark: SparkSession, tmp_path: Path, store: Path) -> None:
    flip(segments(store / "orders")[0], 500, 3)
    with pytest.raises(PySparkException, match="query or report with lossy, goes on without"):
        report(spark, store, tmp_path / "report.html")
    done = report(spark, store, tmp_path / "report.html", lossy=True)
    assert (done.rows, done.lost) == (len(scanned(store)), 3) == (97, 3)
    assert "of the offsets 0 to 99, 3 have no message" in (tmp_path / "report.html").read_text()
    shutil.rmtree(store / "orders")
    asyncio.run(fill(store, "orders"))
    done = report(spark, store, tmp_path / "report.html", lossy=True)
    assert done.lost == 0
    assert "no message" not in (tmp_path / "report.html").read_text()


def test_a_report_of_nothing(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(_touched(tmp_path / "s"))
    assert report(spark, tmp_path / "s", tmp_path / "r.html").rows == 0
    assert "There is no topic yet" in (tmp_path / "r.html").read_text()


async def _touched(path: Path) -> None:
    async with aiodq.open(path):
        pass


def test_pictures_of_extremes() -> None:
    for across in (True, False):
        for bars in ([], [("a", 0.0)], [("a" * 99, 1e12), ("b", 0.001)]):
            picture = Bars("<title>", bars, across=across).svg()
            assert ET.fromstring(picture).tag == "svg"  # noqa: S314 - made here
    assert "&lt;title&gt;" in page("x", datetime.now(UTC), [("y", [Bars("<title>", [])])])


def test_figures_in_pictures_have_three_digits_or_all_before_the_point() -> None:
    values = [0.0, 0.25, 1.0, 12.345, 999.4, 999.6, 1000.0, 1234.5, 1e7]
    texts = ET.fromstring(Bars("x", [("a", value) for value in values], across=True).svg()).findall("text")  # noqa: S314 - made here
    shown = ["0", "0.25", "1", "12.3", "999", "1,000", "1,000", "1,234", "10,000,000"]
    assert [text.text for text in texts[1::2]] == shown


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("values", [[5.0], [0.0, 1.0, 1000.0, 500.0], [float(number) for number in range(60)]])
def test_bars_are_as_long_as_their_values_and_within_the_picture(values: list[float], across: bool) -> None:
    picture = ET.fromstring(Bars("x", [(f"b{value:.0f}", value) for value in values], across=across).svg())  # noqa: S314 - made here
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    bars = [{name: float(box.attrib[name]) for name in ("x", "y", "width", "height")} for box in picture.iter("rect")]
    assert [title.text for title in picture.iter("title")] == [f"b{value:.0f}: {value:,.0f}" for value in values]
    assert all(bar["x"] >= 0 and bar["x"] + bar["width"] <= width for bar in bars)
    assert all(bar["y"] >= 0 and bar["y"] + bar["height"] <= height for bar in bars)
    long = [bar["width" if across else "height"] for bar in bars]
    assert long == pytest.approx([max(max(long) * value / max(values), float(value > 0)) for value in values], abs=0.1)
    starts = [bar["y" if across else "x"] for bar in bars]
    assert starts == sorted(set(starts))
    assert across or {bar["y"] + bar["height"] for bar in bars} == {180.0}
    shown = [text.text for text in picture.iter("text")]
    labels = [f"b{value:.0f}" for value in values]
    assert set(shown) >= (set(labels) if across else {labels[0], labels[-1], f"{max(values):,.0f}"})
    assert len(shown) == (2 * len(values) if across else min(len(values), 2) + 1)


def test_a_page_has_all_that_it_is_given() -> None:
    now = datetime(2026, 1, 31, 8, 9, 10, tzinfo=UTC)
    text = page("a <title>", now, [("one", ["<text>", Bars("bars", [("a", 1.0)])]), ("two", ["more"])])
    assert [text.count(each) for each in ("<section>", "</section>", "<figure>", "<rect", "no topic")] == [
        2,
        2,
        1,
        1,
        0,
    ]
    for part in ("<h1>a &lt;title&gt;</h1>", "<h2>one</h2>", "<p>&lt;text&gt;</p>", "<h2>two</h2>", "<p>more</p>"):
        assert part in text
    assert text.endswith("As of 2026-01-31 08:09:10 UTC</footer></body></html>\n")
    assert "There is no topic yet." in page("x", now, [])


async def test_what_was_compacted_with_a_loss_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    fs, place = OsFileSystem(), str(tmp_path / "store")
    await fill(tmp_path / "store", rounds=2)
    splits = plan(fs, batch_options({"path": place, "topic": "orders"}))
    written = name_of_result(fs, place, "latest", splits, drop_empty=True, lossy=True)
    assert written.endswith("-0-10-foundalive-0")
    writer = BatchWriter(write_options({"path": place, "topic": "latest", "txnId": written}, stream=False))
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]))])
    assert name_of_result(fs, place, "latest", splits, drop_empty=True, lossy=True) == written
    told = "messages 0 to 9, without empty ones, with lossy; these are 0 to 9, without empty ones: put"
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        name_of_result(fs, place, "latest", splits, drop_empty=True)


async def test_what_is_compacted_is_known_again_until_its_topic_is_deleted(tmp_path: Path) -> None:
    """Also where a topic of the name is there again, which has had no message yet."""
    fs, place = OsFileSystem(), str(tmp_path / "store")
    await fill(tmp_path / "store", rounds=2)

    def name(*, drop_empty: bool = False, lossy: bool = False) -> str:
        splits = plan(fs, batch_options({"path": place, "topic": "orders"}))
        return name_of_result(fs, place, "latest", splits, drop_empty=drop_empty, lossy=lossy)

    def write() -> str:
        written = name()
        writer = BatchWriter(write_options({"path": place, "topic": "latest", "txnId": written}, stream=False))
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"x"]})]))])
        return written

    for times in range(3):
        assert write().endswith(f"-0-10-all-{times}")
        assert name().endswith(f"-0-10-all-{times}")
        assert name(lossy=True) == name(), "nothing is missing in what is there"
        with pytest.raises(aiodq.InvalidOptionError, match="messages 0 to 9; these are 0 to 9, without empty ones"):
            name(drop_empty=True)
        async with aiodq.open(place) as store:
            await store.delete_topic("latest")
            store.topic("latest").channel("c")
            await store.topic("latest").sync()
        assert (tmp_path / "store" / "latest").exists()
    write()
    await fill(tmp_path / "store", rounds=1)
    with pytest.raises(aiodq.InvalidOptionError, match="of the messages 0 to 9; these are 0 to 14: put it into"):
        name()
    async with aiodq.open(place) as store:
        await store.delete_topic("latest")
    assert write().endswith("-0-15-all-4")
    await fill(tmp_path / "store", rounds=1)
    with pytest.raises(aiodq.InvalidOptionError, match="of the messages 0 to 14; these are 0 to 19: put it into"):
        name()
