"""Batch reads in a local session."""

from __future__ import annotations

import shutil
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import TimestampType

import aiodq
from aiodq.spark.pipelines import archive, replay
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.topic.topic_meta import describe
from tests.spark.support import KEEP, begun, fill, scanned
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

# What pyspark and py4j leave to the garbage collector is theirs.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store")
    return tmp_path / "store"


def load(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("aiodq").options(**options).load(str(path))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows as those of a scan."""
    rows = [row.asDict() for row in frame.orderBy("offset").collect()]
    for row in rows:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
        row["key"] = None if row["key"] is None else bytes(row["key"])
        row["headers"] = list(row["headers"].items()) if row["headers"] else None
        row["body"] = bytes(row["body"])
    return rows


def test_the_rows_of_a_scan(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store)
    assert frame.schema.simpleString() == (
        "struct<topic:string,offset:bigint,timestamp:timestamp,tag:string,key:binary,"
        "headers:map<string,string>,body:binary>"
    )
    assert rows_of(frame) == scanned(store)
    assert rows_of(load(spark, store, splitBytes="2k")) == scanned(store)


def test_a_schema_names_columns(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("aiodq").option("tags", "red").schema("body BINARY, offset BIGINT")
    expected = [(row["body"], row["offset"]) for row in scanned(store) if row["tag"] == "red"]
    assert [(bytes(row["body"]), row["offset"]) for row in reader.load(f"file://{store}").collect()] == expected
    stream = spark.readStream.format("aiodq").schema("body STRING").load(str(store)).writeStream.format("noop")
    for wrong in ("body STRING", "body BINARY, Offset BIGINT", "offset BIGINT NOT NULL"):
        with pytest.raises(
            PySparkException, match="InvalidOptionError: a schema names some of the columns topic STRING"
        ):
            spark.read.format("aiodq").schema(wrong).load(str(store)).count()
    with pytest.raises(PySparkException, match=r"a schema names some of .* not body string: leave it out"):
        begun(stream.option("checkpointLocation", str(store.parent / "checkpoint")).start).processAllAvailable()


def test_a_schema_may_have_the_columns_in_any_order(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("aiodq").schema("body BINARY, tag STRING, key BINARY, topic STRING")
    expected = [(row["body"], row["tag"], row["key"], row["topic"]) for row in scanned(store)]
    assert [tuple(row) for row in reader.load(str(store)).collect()] == expected


def test_times_have_a_zone_in_a_session_where_a_timestamp_has_none(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert load(spark, store).schema["timestamp"].dataType == TimestampType()
        assert rows_of(load(spark, store)) == scanned(store)
        rows = spark.read.format("aiodq").schema("timestamp TIMESTAMP_LTZ").load(str(store)).collect()
        assert len(rows) == len(scanned(store))
        with pytest.raises(PySparkException, match=r"timestamp TIMESTAMP_LTZ, .*, not timestamp timestamp_ntz"):
            spark.read.format("aiodq").schema("timestamp TIMESTAMP").load(str(store)).collect()
        archive(spark, store, tmp_path / "lake")
        assert replay(spark, tmp_path / "lake", tmp_path / "again").rows == len(rows)
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_a_schema_may_ask_for_the_uuid_of_the_topic(spark: SparkSession, store: Path) -> None:
    uuid = str(describe(OsFileSystem(), str(store / "orders"))[0].uuid)
    for schema in ("topic_uuid STRING", "body BINARY, topic_uuid STRING, tag STRING"):
        rows = spark.read.format("aiodq").option("tags", "red").schema(schema).load(str(store)).collect()
        assert {row["topic_uuid"] for row in rows} == {uuid}
        assert len(rows) == sum(row["tag"] == "red" for row in scanned(store))
    with pytest.raises(PySparkException, match="columns are some of topic, offset"):
        load(spark, store, columns="topic_uuid")


def test_a_filtered_query_and_then_an_unfiltered_one(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store)
    assert frame.where("offset < 5").count() == 5
    assert frame.count() == 200
    assert frame.where("tag = 'red'").limit(3).count() == 3
    assert frame.count() == 200


def test_columns_and_nothing_at_all(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, columns="body,offset", tags="red")
    assert frame.columns == ["offset", "body"]
    assert frame.count() == sum(row["tag"] == "red" for row in scanned(store))
    assert load(spark, store, startingOffsets="200").count() == 0
    assert load(spark, store, topics="none*").collect() == []


async def test_beside_a_live_owner(spark: SparkSession, tmp_path: Path) -> None:
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(retention=KEEP, segment_bytes=2000)) as owner:
        for rounds in range(1, 3):
            await owner.topic("t").put_many([b"%d" % number for number in range(100)])
            assert load(spark, tmp_path / "s").count() == 100 * rounds


def test_several_stores(spark: SparkSession, store: Path) -> None:
    shutil.copytree(store, store.parent / "copy")
    assert load(spark, f"{store},{store.parent}/copy").count() == 400
    frame = spark.read.format("aiodq").load([str(store), str(store.parent / "copy")])
    assert frame.count() == 400


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pth": "x"}, "unknown option 'pth'"),
        ({"topic": "nope"}, "there is no topic 'nope'"),
        ({"startingOffsets": "201"}, "the read is to start at 201"),
    ],
    ids=str,
)
def test_mistakes_are_told(spark: SparkSession, store: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, store, **options).count()
    assert told in str(caught.value)


class _One(DataSource, DataSourceReader):
    """A Python source of one row that has nothing of aiodq."""

    @classmethod
    def name(cls) -> str:
        return "one"

    def schema(self) -> str:
        return "number INT"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        return self

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002 - likewise
        yield (1,)


def test_without_a_limit_of_rows_per_arrow_batch_spark_reads_no_python_source(spark: SparkSession, store: Path) -> None:
    """Once it reads that one, aiodq's page about Spark need not tell of this any more."""
    spark.dataSource.register(_One)
    one, name = spark.read.format("one").load(), "spark.sql.execution.arrow.maxRecordsPerBatch"
    try:
        for limit, frame in (("0", one), ("-1", load(spark, store))):
            spark.conf.set(name, limit)
            with pytest.raises(AnalysisException, match=f"should be greater than 0, but got '{limit}'"):
                frame.count()
        spark.conf.set(name, "1")
        assert load(spark, store).count() == 200
    finally:
        spark.conf.unset(name)


def test_a_path_that_is_no_store(spark: SparkSession, store: Path) -> None:
    with pytest.raises(AnalysisException, match="it is no aiodq store"):
        load(spark, store.parent).count()
    with pytest.raises(AnalysisException, match="StoreNotFoundError"):
        load(spark, store / "nowhere").count()


def test_damage_is_told(spark: SparkSession, store: Path) -> None:
    path = segments(store / "orders")[0]
    flip(path, path.read_bytes().index(b"plain 3"), 1)
    with pytest.raises(PySparkException, match="failOnDataLoss=false") as caught:
        load(spark, store).count()
    assert path.name in str(caught.value)
    assert load(spark, store, failOnDataLoss="false").count() == 199
