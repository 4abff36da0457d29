"""Writing with Spark: all rows or none, once, to whoever owns the store."""

from __future__ import annotations

import asyncio
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

import aiodq
from aiodq.format.codecs import CODEC_NONE
from aiodq.format.columns import Columns
from aiodq.format.decode import decode_frames
from aiodq.spark.options import write_options
from aiodq.spark.source import AiodqDataSource
from aiodq.spark.writing.committing import single_writes, was_committed, was_committed_by_another
from aiodq.spark.writing.rows import check_schema, columns_by_topic
from aiodq.spark.writing.staged_rows import stage
from aiodq.spark.writing.writers import BatchWriter, StreamWriter
from aiodq.storage.bulk.commits import COMMITS, STAGING, read_commits
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.format.support import BASE, CONTEXT, START, TIME
from tests.spark.support import begun, fill, scanned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from aiodq.format.vectorized.encode import ArrowColumns
    from aiodq.spark.writing.staged_rows import StagedByTask

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def bodies(path: Path, topic: str = "orders") -> list[bytes]:
    return [message.body for message in aiodq.open_reader(path).topic(topic).scan()]


def left(path: Path) -> list[Path]:
    """Return what lies staged."""
    return [found for found in (path / STAGING).rglob("*") if found.is_file()]


def numbers(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    return spark.range(start, start + count, numPartitions=3).selectExpr("cast(id as string) as body")


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    frame.write.format("aiodq").mode("append").options(**options).save(str(path))


class TestABatch:
    def test_rows_become_messages_in_their_order(self, spark: SparkSession, tmp_path: Path) -> None:
        save(numbers(spark, 1000), tmp_path / "s", topic="orders")
        save(numbers(spark, 10, 1000), tmp_path / "s", topic="orders", segmentBytes="1k", compression="zstd")
        assert bodies(tmp_path / "s") == [b"%d" % number for number in range(1010)]
        assert left(tmp_path / "s") == []
        assert verify_store(str(tmp_path / "s"), OsFileSystem()).ok

    def test_what_was_read_is_written_with_all_its_columns(self, spark: SparkSession, tmp_path: Path) -> None:
        asyncio.run(fill(tmp_path / "a"))
        asyncio.run(fill(tmp_path / "a", "other", rounds=3))
        frame = spark.read.format("aiodq").load(str(tmp_path / "a"))
        save(frame, tmp_path / "b")
        for topic in ("orders", "other"):
            copied, original = scanned(tmp_path / "b", topic), scanned(tmp_path / "a", topic)
            for row in (*copied, *original):
                del row["timestamp"]
            assert copied == original

    @staticmethod
    def save_elsewhere(spark: SparkSession, path: Path) -> None:
        """Save from a thread that is not the session's; Spark finds sources only from one that has used it."""
        spark.createDataFrame([], "id INT")
        save(numbers(spark, 500), path, topic="orders")

    async def test_a_running_owner_delivers_it(self, spark: SparkSession, tmp_path: Path) -> None:
        async with aiodq.open(tmp_path / "s") as store:
            queue = store.queue("orders")
            await queue.put(b"before")
            await asyncio.to_thread(self.save_elsewhere, spark, tmp_path / "s")
            messages = await asyncio.wait_for(queue.get_many(501, linger=200), 200)
            assert [message.body for message in messages] == [b"before", *(b"%d" % number for number in range(500))]
            assert await queue.put(b"after") == 501
        assert left(tmp_path / "s") == []

    def test_repeated_with_its_name_it_adds_nothing(self, spark: SparkSession, tmp_path: Path) -> None:
        for start in (0, 100):
            save(numbers(spark, 5, start), tmp_path / "s", topic="orders", txnId="load 2026-11-22/ü")
        assert bodies(tmp_path / "s") == [b"%d" % number for number in range(5)]
        save(numbers(spark, 2, 5), tmp_path / "s", topic="orders", txnId="another")
        assert bodies(tmp_path / "s") == [b"%d" % number for number in range(7)]
        assert left(tmp_path / "s") == []

    def test_a_table_of_the_catalog_is_written_where_a_path_is_given_and_is_not_read(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        writer = numbers(spark, 2).write.format("aiodq").mode("append").option("topic", "orders")
        with pytest.raises(
            PySparkException, match=r"'path' is missing: .* option\('path', …\): a table's name is none"
        ):
            writer.saveAsTable("numbers")
        try:
            for _ in range(2):
                writer.option("path", str(tmp_path / "s")).saveAsTable("numbers")
            assert bodies(tmp_path / "s") == [b"0", b"1"] * 2
            with pytest.raises(PySparkException, match="hands none on: instead of CREATE TABLE, CREATE TEMPORARY VIEW"):
                spark.table("numbers").count()
        finally:
            spark.sql("DROP TABLE IF EXISTS numbers")

    def test_sql_inserts_into_a_view(self, spark: SparkSession, tmp_path: Path) -> None:
        save(numbers(spark, 1), tmp_path / "s", topic="orders")
        for count in (2, 3):
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shop USING aiodq OPTIONS (path '{tmp_path}/s')")
            spark.sql("INSERT INTO shop BY NAME SELECT 'orders' AS topic, binary('x') AS body, 'red' AS tag")
            assert spark.sql("SELECT body FROM shop").count() == count
        assert [(row["body"], row["tag"]) for row in scanned(tmp_path / "s")] == [(b"0", None), *[(b"x", "red")] * 2]

    def test_nothing_is_written_of_no_rows(self, spark: SparkSession, tmp_path: Path) -> None:
        save(numbers(spark, 0), tmp_path / "s", topic="orders")
        assert list(aiodq.open_reader(tmp_path / "s").topics()) == []

    def test_a_write_of_no_rows_counts_by_its_name_as_any_other(self, spark: SparkSession, tmp_path: Path) -> None:
        for count in (0, 5):
            save(numbers(spark, count), tmp_path / "s", topic="orders", txnId="load")
        assert single_writes(str(tmp_path / "s")) == {"load": True}
        assert list(aiodq.open_reader(tmp_path / "s").topics()) == []
        save(numbers(spark, 2), tmp_path / "s", topic="orders", txnId="another")
        assert bodies(tmp_path / "s") == [b"0", b"1"]

    def test_a_task_that_fails_leaves_nothing(self, spark: SparkSession, tmp_path: Path) -> None:
        frame = spark.range(0, 900, numPartitions=3).selectExpr("if(id = 700, null, cast(id as string)) as body")
        with pytest.raises(PySparkException, match="a row's body is null"):
            save(frame, tmp_path / "s", topic="orders")
        assert left(tmp_path / "s") == []
        assert read_commits(OsFileSystem(), str(tmp_path / "s")).commits == []
        assert list(aiodq.open_reader(tmp_path / "s").topics()) == []

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ("id as number", "no place for the column 'number'"),
            ("cast(id as string) as body, 'a b' as topic", "is no name for a topic"),
            ("cast(id as string) as body, cast(null as string) as topic", "a row's topic is null"),
        ],
        ids=["driver", "task", "task-null"],
    )
    def test_what_cannot_be_is_said_in_the_first_lines(
        self, spark: SparkSession, tmp_path: Path, columns: str, message: str
    ) -> None:
        with pytest.raises(PySparkException) as caught:
            save(spark.range(3).selectExpr(*columns.split(", ")), tmp_path / "s")
        assert message in str(caught.value)
        assert "topic.json" not in {found.name for found in tmp_path.rglob("*")}

    @pytest.mark.parametrize(
        ("name", "kind", "options", "message"),
        [
            ("number", "long", {"topic": "t"}, "no place for the column 'number'"),
            ("tag", "string", {"topic": "t"}, "the column 'body' is missing"),
            ("body", "long", {"topic": "t"}, "the column 'body' is binary or string, not bigint"),
            ("body", "string", {}, "option 'topic', or a column of that name"),
            ("body", "string", {"topic": "a b"}, "is no name for a topic"),
            ("body", "string", {"topic": "t#ephemeral"}, "lives in its owner's memory"),
            ("body", "string", {"topic": "t", "topics": "u"}, "'topics' is an option of reads"),
            ("body", "string", {"topic": "t", "compression": "lzo"}, "compression is one of none, zstd"),
            ("body", "string", {"topic": "t", "txnAppId": "x"}, "'txnAppId' is for streams"),
        ],
    )
    def test_what_cannot_be_is_refused_before_a_task_begins(
        self, tmp_path: Path, name: str, kind: str, options: dict[str, str], message: str
    ) -> None:
        """What Spark calls in the driver, without Spark: each of its errors costs it a second."""
        source = AiodqDataSource({"path": str(tmp_path / "s"), **options})
        with pytest.raises(aiodq.AiodqError) as caught:
            source.writer(StructType().add(name, kind), overwrite=False)
        assert message in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_headers_whose_value_comes_first_are_written_as_the_error_says(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        frame = spark.sql("SELECT 'x' AS body, array(struct('1' AS value, 'n' AS key)) AS headers")
        save(frame.selectExpr("body", f"{TURNED} AS headers"), tmp_path / "s", topic="orders")
        assert scanned(tmp_path / "s")[0]["headers"] == [("n", "1")]

    def test_another_mode_or_another_directory_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(PySparkException, match=r"mode\('append'\)"):
            numbers(spark, 1).write.format("aiodq").mode("overwrite").option("topic", "t").save(str(tmp_path / "s"))
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        with pytest.raises(PySparkException, match="is no aiodq store"):
            save(numbers(spark, 1), tmp_path / "other", topic="t")


TOPIC = write_options({"path": "/s", "topic": "t"}, stream=False)
KAFKAS = ArrayType(StructType([StructField("key", StringType()), StructField("value", StringType())]))
TURNED = "transform(headers, h -> struct(h.key AS key, CAST(h.value AS BINARY) AS value))"


class TestColumns:
    """Without Spark."""

    @pytest.mark.parametrize(
        ("name", "kind", "told"),
        [
            ("body", DateType(), "'body' is binary or string, not date: write CAST(body AS STRING)"),
            ("body", KAFKAS, "write to_json(body)"),
            ("tag", NullType(), "'tag' is string, not void: write CAST(tag AS STRING)"),
            ("key", DecimalType(10, 2), "'key' is binary or string, not decimal(10,2): write CAST(key AS STRING)"),
            ("headers", MapType(StringType(), IntegerType()), "write CAST(headers AS MAP<STRING, STRING>)"),
            ("headers", KAFKAS, "write CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"),
            ("headers", ArrayType(StructType().add("value", "string").add("key", "string")), f"write {TURNED}"),
            ("headers", StringType(), "not string: write map('name', 'value', …)"),
            ("headers", NullType(), "not void: write CAST(headers AS MAP<STRING, STRING>)"),
            ("Tag", StringType(), "no place for the column 'Tag' in a message: it is called 'tag', in small letters"),
            ("body", StringType(), "there are two columns 'body'"),
        ],
    )
    def test_another_type_or_name_is_an_error_that_says_what_to_write(
        self, name: str, kind: DataType, told: str
    ) -> None:
        columns = [StructField("body", StringType()), StructField(name, kind)]
        if name == "body" and kind != StringType():
            del columns[0]
        with pytest.raises(aiodq.InvalidMessageError, match=re.escape(told)):
            check_schema(StructType(columns), TOPIC)

    async def test_a_body_has_the_bounds_of_its_topic(self, tmp_path: Path) -> None:
        """Those that are kept with it, or those that it will begin with."""
        async with aiodq.open(tmp_path / "s") as store:
            await store.topic("orders", aiodq.StoreOptions(min_message_bytes=1, max_message_bytes=5)).put(b"12345")
        options = write_options({"path": str(tmp_path / "s")}, stream=False)
        most = aiodq.StoreOptions().max_message_bytes

        def rows(*given: tuple[str, str]) -> Any:
            return iter([pa.RecordBatch.from_pylist([{"topic": topic, "body": body} for topic, body in given])])

        stage(options, "fits", rows(("other", ""), ("orders", "1"), ("orders", "12345"), ("other", "x" * most)))
        before = left(tmp_path / "s")
        for topic, body, told in (
            ("orders", "123456", "'orders' has a body of 6 bytes, which begins with b'123456'; it takes 1 to 5"),
            ("orders", "", "'orders' has a body of 0 bytes, which is empty; it takes 1 to 5"),
            (
                "new",
                "y" * (most + 1),
                f"of {most + 1} bytes, which begins with b'{'y' * 32}'; it takes 0 to {most} (min_",
            ),
        ):
            with pytest.raises(aiodq.MessageSizeError, match=re.escape(told)):
                stage(options, "does not", rows((topic, "123"), (topic, body)))
            assert left(tmp_path / "s") == before
        raised = write_options({"path": str(tmp_path / "s"), "maxMessageBytes": str(most + 1)}, stream=False)
        stage(raised, "larger", rows(("new", "y" * (most + 1))))
        for topic, advice in (("new", r"say by maxMessageBytes .* how much this new topic"), ("orders", "configure")):
            with pytest.raises(aiodq.MessageSizeError, match=advice):
                stage(raised, "too large", rows((topic, "y" * (most + 2))))

    @pytest.mark.parametrize("kind", ["file", "link", "dangling"])
    def test_a_topic_that_cannot_be_made_is_refused_before_anything_is_committed(
        self, tmp_path: Path, kind: str
    ) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "LOCK").touch()
        place = tmp_path / "s" / "orders"
        if kind == "file":
            place.touch()
        else:
            place.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
        options = write_options({"path": str(tmp_path / "s"), "topic": "orders"}, stream=False)
        batch = pa.RecordBatch.from_pylist([{"body": "x"}])
        with pytest.raises(aiodq.StorageError, match="a file or a link lies where aiodq keeps a directory") as caught:
            stage(options, "none", iter([batch]))
        assert caught.value.path == str(place)
        assert left(tmp_path / "s") == []

    @pytest.mark.parametrize("name", ["tag", "topic", "headers"])
    def test_text_that_is_no_utf8_is_an_error_by_its_column(self, name: str) -> None:
        """To Spark any bytes may be a string."""
        text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
        column = pa.MapArray.from_arrays(pa.array([0, 1]), pa.array(["n"]), text) if name == "headers" else text
        batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), column], ["body", name])
        with pytest.raises(aiodq.InvalidMessageError, match=rf"'{name}' has text in it that is no UTF-8 .*make_valid"):
            list(columns_by_topic(batch, None if name == "topic" else "t"))


def record_batch(*rows: str) -> Any:
    return pa.RecordBatch.from_pydict({"body": list(rows)})


def values_of(columns: Columns | ArrowColumns) -> Columns:
    """Return what is to be put, if it fits into one frame."""
    if isinstance(columns, Columns):
        return columns
    (part,) = columns.parts()
    frame = part.encode(CONTEXT, first=BASE, watermark=BASE, time_ns=TIME, codec=CODEC_NONE)
    data = b"".join(frame.parts)
    (batch,), _, _ = decode_frames(data, CONTEXT, position=START, limit=START + len(data))
    return batch.columns


class TestTheCommit:
    """Without Spark: what its driver and its tasks call, in the orders in which it may."""

    @pytest.fixture
    def writer(self, tmp_path: Path) -> BatchWriter:
        return BatchWriter(write_options({"path": str(tmp_path / "s"), "topic": "orders"}, stream=False))

    def test_only_the_attempts_that_succeeded_count(self, writer: BatchWriter, tmp_path: Path) -> None:
        first = writer.write(iter([record_batch("a", "b")]))
        writer.write(iter([record_batch("c", "stale")]))
        second = writer.write(iter([record_batch("c")]))
        writer.commit([first, second, writer.write(iter([]))])
        assert bodies(tmp_path / "s") == [b"a", b"b", b"c"]
        assert left(tmp_path / "s") == []

    def test_aborted_after_the_record_it_is_there_all_the_same(
        self, writer: BatchWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        messages = [writer.write(iter([record_batch("a")])), None]
        monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: None)
        writer.commit(messages)
        writer.abort(messages)
        assert len(left(tmp_path / "s")) == 1
        monkeypatch.undo()
        asyncio.run(_open_and_close(tmp_path / "s"))
        assert bodies(tmp_path / "s") == [b"a"]
        writer.abort(messages)
        assert bodies(tmp_path / "s") == [b"a"]

    def test_adoption_that_fails_does_not_fail_what_is_committed(
        self, writer: BatchWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise aiodq.DiskFullError("no space", str(tmp_path))

        monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", refuse)
        with pytest.warns(UserWarning, match="the rows are committed; the next owner takes them over"):
            writer.commit([writer.write(iter([record_batch("a")]))])
        asyncio.run(_open_and_close(tmp_path / "s"))
        assert bodies(tmp_path / "s") == [b"a"]

    def test_where_the_driver_is_killed_after_it_a_repetition_takes_it_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = write_options({"path": str(tmp_path / "s"), "topic": "orders", "txnId": "one"}, stream=False)
        writer = BatchWriter(options)
        assert not was_committed(options, "one")
        monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: None)
        writer.commit([writer.write(iter([record_batch("a")]))])
        assert aiodq.open_reader(tmp_path / "s").topics() == []
        monkeypatch.undo()
        for _ in range(2):
            assert was_committed(options, "one")
            assert bodies(tmp_path / "s") == [b"a"]
        assert not was_committed(options, "another")

    def test_whether_it_was_committed_is_in_its_own_record(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = write_options({"path": str(tmp_path / "s"), "topic": "orders"}, stream=False)
        for name in ("one", "two"):
            writer = BatchWriter(replace(options, name=name))
            writer.commit([writer.write(iter([record_batch(name)]))])
        read: list[str] = []

        def reading(fs: OsFileSystem, path: str) -> bytes | None:
            read.append(path.rpartition("/")[2])
            return read_file(fs, path)

        monkeypatch.setattr("aiodq.storage.bulk.commits.read_file", reading)
        assert was_committed(options, "two")
        assert read == ["write%20two.json"]

    @pytest.mark.parametrize("owned", [True, False])
    def test_which_run_of_a_name_it_is_of_is_known_for_good(
        self, tmp_path: Path, owned: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if owned:
            monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: False)
        store = str(tmp_path / "s")
        given = {"path": store, "topic": "orders", "txnId": "one"}
        assert not was_committed_by_another(store, "one", "a")
        for run in ("a", "b"):
            writer = BatchWriter(write_options({**given, "txnRun": run}, stream=False))
            writer.commit([writer.write(iter([record_batch(run)]))])
        asyncio.run(_open_and_close(tmp_path / "s"))
        assert bodies(tmp_path / "s") == [b"a"]
        assert [was_committed_by_another(store, "one", run) for run in ("a", "b")] == [False, True]
        assert not was_committed_by_another(store, None, "b")
        writer = BatchWriter(write_options({**given, "txnId": "unknown"}, stream=False))
        writer.commit([writer.write(iter([record_batch("c")]))])
        assert not was_committed_by_another(store, "unknown", "a"), "an earlier version has not noted it"

    @pytest.mark.parametrize("name", ["link", "link/"])
    def test_a_store_may_lie_behind_a_link(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        for number in range(2):
            writer = BatchWriter(write_options({"path": f"{tmp_path}/{name}", "topic": "orders"}, stream=False))
            writer.commit([writer.write(iter([record_batch(str(number))]))])
        assert bodies(tmp_path / "real") == [b"0", b"1"]
        assert left(tmp_path / "real") == []

    def test_one_name_for_two_topics_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As where a function for `foreachBatch` names both of its writes by the batch: one would be left out."""

        def write(*topics: str) -> None:
            writer = BatchWriter(write_options({"path": str(tmp_path / "s"), "txnId": "batch 1"}, stream=False))
            bodies, names = pa.array([b"x"] * len(topics)), pa.array(topics)
            writer.commit([writer.write(iter([pa.RecordBatch.from_arrays([bodies, names], ["body", "topic"])]))])

        told = "'batch 1' was committed before, into a, b, and this one is for c, .*a txnId of its own"
        with monkeypatch.context() as patched:
            patched.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: None)
            write("a", "b")
            with pytest.raises(aiodq.InvalidOptionError, match=told):
                write("c")
        asyncio.run(_open_and_close(tmp_path / "s"))
        with pytest.raises(aiodq.InvalidOptionError, match=told):
            write("c")
        write("b", "c")
        write("a")
        write()
        first, same, second = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
        assert "before, with other messages, though as many, and adds none of the 2 that" in same
        assert first.endswith("'batch 1' was committed before, into a, b: nothing is added to c")
        assert "before, with 2 messages, and adds none of the 1 that" in second
        assert {name: bodies(tmp_path / "s", name) for name in aiodq.open_reader(tmp_path / "s").topics()} == {
            "a": [b"x"],
            "b": [b"x"],
        }
        assert left(tmp_path / "s") == []
        assert verify_store(str(tmp_path / "s"), OsFileSystem()).ok

    @pytest.mark.parametrize("adopted", [True, False])
    @pytest.mark.parametrize("stream", [True, False])
    def test_one_name_for_two_writes_into_a_topic_is_told_by_their_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, adopted: bool,
        stream: bool,
    ) -> None:  # fmt: skip
        def write(*texts: str) -> None:
            given = {"path": str(tmp_path / "s"), "topic": "orders", "txnAppId" if stream else "txnId": "batch 1"}
            options = write_options(given, stream=stream)
            if stream:
                writer = StreamWriter(options)
                writer.commit([writer.write(iter([record_batch(text)])) for text in texts], 7)
            else:
                single = BatchWriter(options)
                single.commit([single.write(iter([record_batch(text)])) for text in texts])

        if not adopted:
            monkeypatch.setattr("aiodq.spark.writing.committing.adopt_without_owner", lambda *_: None)
        write("a", "b")
        write("a", "b")
        write()
        assert not [line for line in caplog.records if line.levelname == "WARNING"], "so many are repeated"
        write("b", "a")
        assert not [line for line in caplog.records if line.levelname == "WARNING"], "tasks may divide them otherwise"
        write("a", "a")
        (warning,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
        assert "with other messages, though as many, and adds none of the 2 that it has this time" in warning
        caplog.clear()
        write("c")
        (warning,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
        name = "batch 1, batch 7" if stream else "batch 1"
        assert warning.startswith(f"the write '{name}' was committed to {tmp_path}/s before, with 2 messages, and adds")
        assert "none of the 1 that it has this time" in warning
        asyncio.run(_open_and_close(tmp_path / "s"))
        assert bodies(tmp_path / "s") == [b"a", b"b"]
        assert verify_store(str(tmp_path / "s"), OsFileSystem()).ok

    def test_an_earlier_version_has_not_noted_the_content(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number, text in enumerate(["a", "b"]):
            options = write_options({"path": str(tmp_path / "s"), "topic": "orders", "txnId": "one"}, stream=False)
            single = BatchWriter(options)
            staged = single.write(iter([record_batch(text)]))
            single.commit([staged if number else replace(cast("StagedByTask", staged), content=None)])
        assert bodies(tmp_path / "s") == [b"a"]
        assert not [line for line in caplog.records if line.levelname == "WARNING"]

    def test_aborted_before_it_nothing_is_left(self, writer: BatchWriter, tmp_path: Path) -> None:
        writer.abort([writer.write(iter([record_batch("a")])), None])
        assert left(tmp_path / "s") == []
        assert list((tmp_path / "s" / COMMITS).glob("*.json")) == []

    def test_topics_are_told_apart_and_keep_their_order(self) -> None:
        batch = pa.RecordBatch.from_pydict(
            {"body": ["1", "2", "3", "4"], "topic": ["a", "b", None, "a"], "tag": [None, "x", None, None]}
        )
        named = batch.filter(pc.is_valid(batch["topic"]))
        found = {topic: values_of(columns) for topic, _, columns in columns_by_topic(named, None)}
        assert found == {"a": Columns([b"1", b"4"]), "b": Columns([b"2"], tags=["x"])}
        with pytest.raises(aiodq.InvalidMessageError, match="a row's topic is null: fill that column, or say by"):
            list(columns_by_topic(batch, None))
        assert list(columns_by_topic(batch.slice(0, 0), "c")) == []

    def test_rows_of_many_topics_keep_all_their_columns(self) -> None:
        kinds = {"body": pa.binary(), "tag": pa.string(), "headers": pa.map_(pa.string(), pa.string())}
        arrays = [
            pa.array([b"%d" % number for number in range(90)], kinds["body"]),
            pa.array([None if number % 4 else f"g{number}" for number in range(90)], kinds["tag"]),
            pa.array([[("n", str(number))] if number % 5 else None for number in range(90)], kinds["headers"]),
        ]
        topics = pa.array([f"t{number * number % 7}" for number in range(100)]).slice(10)
        batch = pa.RecordBatch.from_arrays([*arrays, topics], [*kinds, "topic"])
        found = {
            topic: (bodies.to_pylist(), values_of(columns)) for topic, bodies, columns in columns_by_topic(batch, None)
        }
        assert list(found) == list(dict.fromkeys(topics.to_pylist()))
        for topic, (some, columns) in found.items():
            numbers = [number for number in range(90) if f"t{(number + 10) ** 2 % 7}" == topic]
            assert some == columns.bodies == [b"%d" % number for number in numbers]
            assert columns.tags == [None if number % 4 else f"g{number}" for number in numbers]
            assert columns.headers == [{"n": str(number)} if number % 5 else {} for number in numbers]

    def test_the_option_goes_before_the_column(self, spark: SparkSession, tmp_path: Path) -> None:
        """What was read of one topic and is to be written to another does not go back to the first."""
        asyncio.run(fill(tmp_path / "s", rounds=2))
        frame = spark.read.format("aiodq").load(str(tmp_path / "s"))
        save(frame, tmp_path / "s", topic="copy")
        assert bodies(tmp_path / "s", "copy") == bodies(tmp_path / "s")
        assert len(bodies(tmp_path / "s")) == 10
        save(frame.selectExpr("body", "CAST(null AS STRING) AS topic"), f"file://{tmp_path}/s", topic="nulls")
        assert len(bodies(tmp_path / "s", "nulls")) == 10

    @pytest.mark.parametrize(
        ("column", "value", "told"),
        [
            ("headers", [("a", None)], "header is null"),
            ("headers", [("a", "x" * (1 << 20))], "headers of up to"),
            ("tag", "x" * (1 << 17), "a tag is text of up to"),
            ("key", b"x" * ((1 << 20) + 1), "a key is up to"),
        ],
    )
    def test_what_no_message_may_have(self, column: str, value: object, told: str) -> None:
        kinds = {"headers": pa.map_(pa.string(), pa.string()), "tag": pa.string(), "key": pa.binary()}
        batch = pa.RecordBatch.from_arrays(
            [pa.array([b"1", b"2"], pa.binary()), pa.array([None, value], kinds[column])], names=["body", column]
        )
        with pytest.raises(aiodq.InvalidMessageError, match=told):
            list(columns_by_topic(batch, "t"))


async def _open_and_close(path: Path) -> None:
    async with aiodq.open(path):
        pass


class TestAStream:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        asyncio.run(fill(tmp_path / "in", rounds=30))
        return tmp_path / "in"

    def copy(self, spark: SparkSession, tmp_path: Path, **options: str) -> None:
        """Run one query from store to store to the end of what there is."""
        stream = spark.readStream.format("aiodq").option("maxRecordsPerTrigger", "40").load(str(tmp_path / "in"))
        writing = stream.writeStream.format("aiodq").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing = writing.queryName("copy")
        writing = writing.options(**options).trigger(availableNow=True)
        begun(partial(writing.start, str(tmp_path / "out"))).awaitTermination()

    def test_each_message_comes_once_whatever_is_repeated(
        self, spark: SparkSession, tmp_path: Path, source: Path
    ) -> None:
        self.copy(spark, tmp_path)
        assert bodies(tmp_path / "out") == bodies(source)
        commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        assert len(commits) > 2
        commits[-1].unlink()
        commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
        self.copy(spark, tmp_path)
        assert bodies(tmp_path / "out") == bodies(source)
        asyncio.run(fill(source, rounds=2))
        self.copy(spark, tmp_path)
        assert bodies(tmp_path / "out") == bodies(source)
        assert left(tmp_path / "out") == []
        assert len(read_commits(OsFileSystem(), str(tmp_path / "out")).commits) == 1

    @pytest.mark.slow
    def test_begun_anew_it_writes_everything_again(self, spark: SparkSession, tmp_path: Path, source: Path) -> None:
        self.copy(spark, tmp_path)
        shutil.rmtree(tmp_path / "checkpoint")
        self.copy(spark, tmp_path)
        assert bodies(tmp_path / "out") == 2 * bodies(source)
        shutil.rmtree(tmp_path / "checkpoint")
        self.copy(spark, tmp_path, txnAppId="named")
        shutil.rmtree(tmp_path / "checkpoint")
        self.copy(spark, tmp_path, txnAppId="named")
        assert bodies(tmp_path / "out") == 3 * bodies(source)

    def test_one_without_a_name_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(aiodq.InvalidOptionError, match="checkpointLocation"):
            write_options({"path": str(tmp_path)}, stream=True)
        with pytest.raises(aiodq.InvalidOptionError, match="'txnId' is for single writes"):
            write_options({"path": str(tmp_path), "txnId": "x", "txnAppId": "y"}, stream=True)

    @pytest.mark.parametrize("scheme", ["", "file://", "file:"])
    async def test_its_checkpoint_is_not_kept_in_a_topic(self, tmp_path: Path, scheme: str) -> None:
        """Deleted with the topic, it would be another one when the query goes on, and all would come again."""
        async with aiodq.open(tmp_path / "s") as store:
            await store.topic("orders").put(b"a")
        schema = StructType([StructField("body", StringType())])
        for place, inside in (("s/orders/state", True), ("s/#state", True), ("s/state", False), ("state", False)):
            (tmp_path / place).mkdir(parents=True)
            (tmp_path / place / "metadata").write_text('{"id": "7f1c"}')
            given = {"path": str(tmp_path / "out"), "topic": "t", "checkpointLocation": f"{scheme}{tmp_path}/{place}"}
            for options in (given, {**given, "txnAppId": "named"}):
                source = AiodqDataSource(options)
                with pytest.raises(aiodq.NotAStoreError, match="choose a place outside") if inside else nullcontext():
                    source.streamWriter(schema, overwrite=False)

    def test_with_a_checkpoint_elsewhere_it_needs_a_name(self, tmp_path: Path) -> None:
        with pytest.raises(aiodq.InvalidOptionError, match="give the stream a name as 'txnAppId'"):
            write_options({"path": str(tmp_path), "checkpointLocation": "s3://bucket/a"}, stream=True)
        with pytest.raises(aiodq.InvalidOptionError, match="txnAppId is empty"):
            write_options({"path": str(tmp_path), "txnAppId": " "}, stream=True)

    @pytest.mark.parametrize("checkpoint", ["hdfs:/state", "dbfs:/state", "s3://bucket/state"])
    def test_its_checkpoint_may_be_wherever_spark_can_write(self, tmp_path: Path, checkpoint: str) -> None:
        given = {"path": str(tmp_path), "topic": "t", "checkpointLocation": checkpoint, "txnAppId": "named"}
        schema = StructType([StructField("body", StringType())])
        assert AiodqDataSource(given).streamWriter(schema, overwrite=False)

    def test_batches_before_the_last_are_old(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Spark repeats the last one only: of any other a second query of that checkpoint may have lost something."""
        another, writer = (
            StreamWriter(write_options({"path": str(tmp_path / "s"), "topic": topic, "txnAppId": name}, stream=True))
            for topic, name in (("others", "y"), ("orders", "x"))
        )
        another.commit([another.write(iter([record_batch("of another query")]))], 5)
        for number in (0, 1, 1, 0, 2):
            writer.commit([writer.write(iter([record_batch(str(number))]))], number)
        writer.abort([writer.write(iter([record_batch("3")]))], 3)
        assert left(tmp_path / "s") == []
        assert bodies(tmp_path / "s") == [b"0", b"1", b"2"]
        (warning,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
        assert warning.startswith(
            f"batch 0 of the query 'x' adds none of its 1 messages to {tmp_path}/s, as its batch 1 "
        )


KAFKA = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Headers as Spark reads them from Kafka."""


def headers_of(row: Sequence[dict[str, Any] | None] | None, **options: str) -> dict[str, str]:
    wanted = write_options({"path": "/s", "topic": "t", **options}, stream=False)
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([row], KAFKA)], ["body", "headers"])
    ((_, _, columns),) = columns_by_topic(batch, wanted.topic, wanted.repeated)
    headers = values_of(columns).headers
    return dict(headers[0]) if headers else {}


class TestHeadersOfKafka:
    twice = ({"key": "a", "value": b"1"}, {"key": "b", "value": "ü".encode()}, {"key": "a", "value": b"3"})

    def test_they_become_a_messages(self) -> None:
        assert headers_of(list(self.twice[:2])) == {"a": "1", "b": "ü"}
        assert headers_of(None) == {}

    @pytest.mark.parametrize(("which", "value"), [("first", "1"), ("LAST", "3")])
    def test_of_a_name_that_comes_twice_one_is_taken_if_it_is_said_which(self, which: str, value: str) -> None:
        assert headers_of(list(self.twice), repeatedHeaders=which) == {"a": value, "b": "ü"}

    def test_else_it_is_an_error_as_it_is_with_a_map(self) -> None:
        with pytest.raises(aiodq.InvalidMessageError, match="the header 'a' twice"):
            headers_of(list(self.twice))
        maps = pa.array([[("a", "1"), ("a", "2")]], pa.map_(pa.string(), pa.string()))
        batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), maps], ["body", "headers"])
        with pytest.raises(aiodq.InvalidMessageError, match="the header 'a' twice"):
            list(columns_by_topic(batch, "t"))
        ((_, _, columns),) = columns_by_topic(batch, "t", "last")
        assert values_of(columns).headers == [{"a": "2"}]

    @pytest.mark.parametrize(
        ("header", "told"),
        [
            ({"key": "a", "value": None}, "the value of a row's header is null"),
            ({"key": None, "value": b"x"}, "the name of a row's header is null"),
            ({"key": "a", "value": b"\xff"}, "'a' is no UTF-8"),
            (None, "one of a row's headers is null"),
        ],
        ids=str,
    )
    def test_what_no_message_can_have_is_an_error(self, header: dict[str, Any] | None, told: str) -> None:
        with pytest.raises(aiodq.InvalidMessageError, match=told):
            headers_of([header])

    def test_what_may_be_said_of_them(self) -> None:
        with pytest.raises(aiodq.InvalidOptionError, match="repeatedHeaders is one of error, first, last"):
            write_options({"path": "/s", "repeatedHeaders": "both"}, stream=False)

    def test_rows_of_kafka_are_written(self, spark: SparkSession, tmp_path: Path) -> None:
        header = "named_struct('key', {}, 'value', cast({} as binary))"
        row = f"array({header.format(repr('a'), repr('1'))}, {header.format(repr('a'), repr('2'))}) as headers"
        frame = spark.range(2).selectExpr("cast(id as string) as body", row)
        with pytest.raises(PySparkException, match="the header 'a' twice"):
            save(frame, tmp_path / "s", topic="orders")
        save(frame, tmp_path / "s", topic="orders", repeatedHeaders="first")
        assert [row["headers"] for row in scanned(tmp_path / "s")] == [[("a", "1")]] * 2


def test_rows_that_were_staged_where_the_driver_does_not_see_them_are_an_error(tmp_path: Path) -> None:
    """A worker without the driver's file system makes a directory of its own, on its own disk."""
    wanted = write_options({"path": str(tmp_path / "s"), "topic": "orders"}, stream=False)
    writer = BatchWriter(wanted)
    staged = writer.write(iter([pa.RecordBatch.from_arrays([pa.array([b"x"])], ["body"])]))
    (tmp_path / "s" / STAGING).rename(tmp_path / "elsewhere")
    with pytest.raises(aiodq.StorageError, match="a task staged it on a machine that does not share this directory"):
        writer.commit([staged])
    assert list(aiodq.open_reader(tmp_path / "s").topics()) == []
