"""What may be said to the readers, and that a mistake is told before anything is read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from pyspark import SparkFiles
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

import aiodq
from aiodq.format.vectorized.arrow import COLUMNS
from aiodq.spark.options import batch_options, check_topic, read_options, stream_options, write_options
from aiodq.spark.source import AiodqDataSource
from aiodq.spark.writing.writers import BatchWriter, StreamWriter
from aiodq.storage.bulk.commits import staging_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql.types import DataType


def test_the_defaults() -> None:
    options = read_options({"path": "/a"})
    assert (options.stores, options.topics, options.starting, options.ending) == (("/a",), None, "earliest", "latest")
    assert (options.starting_ns, options.ending_ns, options.tags, options.columns) == (None, None, None, COLUMNS)
    assert (options.split_bytes, options.verify, options.strict) == (None, True, True)


def test_everything_said_in_any_case() -> None:
    options = read_options({
        "PATH": "/a, /b",
        "topics": "x, y*",
        "startingoffsets": '{"x": 3}',
        "endingOffsets": "9",
        "startingTimestamp": "2026-01-31T08:00:00+01:00",
        "endingTimestamp": "1700000000123",
        "tags": "red,blue",
        "columns": "body, offset",
        "splitBytes": "3m",
        "verify": "None",
        "failOnDataLoss": "FALSE",
    })  # fmt: skip
    assert (options.stores, options.topics, options.starting, options.ending) == (
        ("/a", "/b"),
        ("x", "y*"),
        {"x": 3},
        9,
    )
    assert (options.starting_ns, options.ending_ns) == (1_769_842_800_000_000_000, 1_700_000_000_123_000_000)
    assert (options.tags, options.columns) == (frozenset({"red", "blue"}), ("offset", "body"))
    assert (options.split_bytes, options.verify, options.strict) == (3 << 20, False, False)


def test_ends_and_times_by_topic() -> None:
    options = read_options({
        "path": "/a",
        "startingOffsets": '{"x": 3, "y": "latest"}',
        "endingOffsets": '{"x": "latest"}',
        "startingTimestamp": '{"x": 5, "y": "1970-01-01T00:00:01+00:00"}',
    })  # fmt: skip
    assert options.starting == {"x": 3, "y": "latest"}
    assert options.ending == {"x": "latest"}
    assert options.starting_ns == {"x": 5_000_000, "y": 1_000_000_000}


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize(
    ("number", "unit"), [("1767225600", "seconds"), ("1767225600123456", "micro"), ("1767225600123456789", "nano"),
     ("20260101", "a date")],
)  # fmt: skip
def test_a_time_in_another_unit_is_told_with_the_one_that_is_meant(name: str, number: str, unit: str) -> None:
    meant = (
        f"{name} is milliseconds since 1970, and {number} seems to be {unit}.*: write 1767225600[0-9]{{3}}, or 2026-"
    )
    for said in (number, f'{{"a": {number}}}'):
        with pytest.raises(aiodq.InvalidOptionError, match=meant):
            read_options({"path": "/a", name: said})


@pytest.mark.parametrize("number", [0, 999_999_999, 4_102_444_800, 1_767_225_600_000, (1 << 63) - 1])
def test_a_time_that_may_be_milliseconds_is_taken_for_them(number: int) -> None:
    """Also one behind everything, as an end that is none."""
    assert read_options({"path": "/a", "endingTimestamp": f"{number}"}).ending_ns == number * 1_000_000
    early = "1970-01-21T10:53:45.600+00:00"
    assert read_options({"path": "/a", "startingTimestamp": early}).starting_ns == 1_767_225_600_000_000


def test_ends_in_other_letters() -> None:
    """As with Kafka's source."""
    options = read_options({"path": "/a", "startingOffsets": "Latest", "endingOffsets": " EARLIEST"})
    assert (options.starting, options.ending) == ("latest", "earliest")


@pytest.mark.parametrize("name", ["maxRecordsPerTrigger", "maxOffsetsPerTrigger"])
def test_one_limit_by_two_names(name: str) -> None:
    assert stream_options({"path": "/a", name: "7"}).most_records == 7
    with pytest.raises(aiodq.InvalidOptionError, match="another name of 'maxRecordsPerTrigger'"):
        stream_options({"path": "/a", "maxRecordsPerTrigger": "7", "maxOffsetsPerTrigger": "7"})


@pytest.mark.parametrize(
    ("said", "seconds"), [("250ms", 0.25), ("30s", 30), ("15m", 900), ("2 min", 120), ("1H", 3600), ("1d", 86_400)]
)
def test_how_long_a_stream_waits_for_more(said: str, seconds: float) -> None:
    options = stream_options({"path": "/a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": said})
    assert (options.least_records, options.longest_delay) == (5, seconds)


def test_stores_by_a_pattern_and_as_spark_gives_several(tmp_path: Path) -> None:
    for name in ("b1", "b2", "c"):
        (tmp_path / name).mkdir()
    assert read_options({"path": f"{tmp_path}/b*"}).stores == (f"{tmp_path}/b1", f"{tmp_path}/b2")
    assert read_options({"paths": f'["{tmp_path}/c", "/x"]'}).stores == (f"{tmp_path}/c", "/x")


@pytest.mark.parametrize("name", ["a,b", "what?", "x*", "[ab]", "end "])
def test_a_directory_that_is_there_is_meant_whatever_its_name(tmp_path: Path, name: str) -> None:
    """It can be written to, and so it can be read."""
    for there in (name, "a", "b", "whats", "xy"):
        (tmp_path / there).mkdir()
    path = f"{tmp_path}/{name}"
    assert write_options({"path": path, "topic": "t"}, stream=False).store == path
    assert read_options({"path": path}).stores == (path,)
    assert read_options({"path": f"file://{path}"}).stores == (path,)
    assert read_options({"paths": json.dumps([path])}).stores == (path,)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"pth": "/b"}, "unknown option 'pth' .is it path that is meant?"),
        ({"startingoffset": "5"}, "unknown option 'startingoffset' .is it startingOffsets that is meant"),
        ({"inferSchema": "true"}, "unknown option 'inferSchema'; there are path"),
        ({"path": ""}, "'path' is missing"),
        ({"path": "/nowhere-*"}, "no store is found"),
        ({"topic": "a", "topics": "b"}, "exclude each other"),
        ({"subscribe": "a"}, "is it topics that is meant"),
        ({"subscribePattern": "a.(*"}, "subscribePattern is a regular expression"),
        ({"subscribePattern": "a{99999999999}"}, "subscribePattern is a regular expression"),
        ({"subscribePattern": "(" * 5000 + ")" * 5000}, "subscribePattern is a regular expression"),
        ({"subscribePattern": ""}, "subscribePattern is empty"),
        ({"subscribePattern": "a.*", "topics": "a"}, "'topics' and 'subscribePattern' exclude each other"),
        ({"subscribePattern": "a.*", "topic": "a"}, "'topic' and 'subscribePattern' exclude each other"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger is a number of messages"),
        ({"minRecordsPerTrigger": "1", "minOffsetsPerTrigger": "1"}, "another name of 'minRecordsPerTrigger'"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is a time"),
        ({"maxTriggerDelay": "-1s"}, "maxTriggerDelay is a time"),
        ({"minPartitions": "few"}, "minPartitions is a number of tasks"),
        ({"startingTimestamp": "{soon"}, "startingTimestamp is no JSON"),
        ({"startingTimestamp": "{}"}, "startingTimestamp names no topic"),
        ({"splitBytes": f"{1 << 63}"}, "splitBytes is bytes"),
        ({"path": "/a\0b"}, "path has a character of code 0"),
        ({"startingTimestamp": '{"a": "soon"}'}, "startingTimestamp is"),
        ({"startingOffsets": '{"a": "soon"}'}, "startingOffsets is"),
        ({"startingOffsets": "soon"}, "startingOffsets is"),
        ({"startingOffsets": "-1"}, "startingOffsets is"),
        ({"startingOffsets": "{}"}, "startingOffsets is"),
        ({"startingOffsets": "[" * 100_000}, "startingOffsets is"),
        ({"startingTimestamp": '{"a":' * 100_000}, "startingTimestamp is no JSON"),
        ({"startingTimestamp": "9" * 5000}, "startingTimestamp is"),
        ({"splitBytes": "9" * 5000}, "splitBytes is bytes"),
        ({"maxRecordsPerTrigger": "9" * 5000}, "maxRecordsPerTrigger is a number"),
        ({"maxRecordsPerTrigger": f"{1 << 63}"}, "maxRecordsPerTrigger is a number"),
        ({"maxTriggerDelay": f"{'9' * 5000}d"}, "maxTriggerDelay is a time"),
        ({"startingOffsets": "[1]"}, "startingOffsets is"),
        ({"endingOffsets": '{"a": "b"}'}, "endingOffsets is"),
        ({"endingOffsets": "true"}, "endingOffsets is"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is"),
        ({"startingTimestamp": "2026-01-31T08:00:00"}, "with a zone"),
        ({"topics": " , "}, "topics is empty"),
        ({"topic": "a,b.*"}, "'topic' is one name, not 'a,b.*': several are 'topics'"),
        ({"topic": "ord*"}, "'topic' is one name, not 'ord.': patterns are 'topics'"),
        ({"topic": "order?"}, "'topic' is one name, not 'order.': patterns are 'topics'"),
        ({"topic": "[om]*"}, "'topic' is one name, not '.om..': patterns are 'topics'"),
        ({"tags": ""}, "tags is empty"),
        ({"tags": "[]"}, "tags that begin with "),
        ({"tags": '["a", 5]'}, "tags that begin with "),
        ({"tags": '["\\ud800"]'}, "tags that begin with "),
        ({"tags": '["a"'}, "tags is no JSON"),
        ({"tags": "[red]"}, "tags is no JSON"),
        ({"columns": "bodies"}, "columns are some of"),
        ({"columns": ""}, "columns are some of"),
        ({"startingOffsets": '{"a": 1, "b": 2, "a": 3}'}, "startingOffsets names the topic 'a' twice"),
        ({"endingOffsets": '{"a": 1, "a": 1}'}, "endingOffsets names the topic 'a' twice"),
        ({"startingTimestamp": '{"a": 1, "a": 2}'}, "startingTimestamp names the topic 'a' twice"),
        ({"startingOffsets": '{"a": 1'}, "startingOffsets is no JSON"),
        ({"startingOffsets": "9" * 5000}, "startingOffsets is"),
        ({"paths": "/b"}, "paths is no JSON"),
        ({"paths": '"/b"'}, "'paths' is what Spark makes of load"),
        ({"paths": '["/b", 5]'}, "'paths' is what Spark makes of load"),
        ({"splitBytes": "0"}, "splitBytes is bytes"),
        ({"splitBytes": "many"}, "splitBytes is bytes"),
        ({"verify": "all"}, "verify is one of batch, none"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is one of true, false"),
    ],
    ids="{!s:.60}".format,
)
def test_mistakes(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        read_options({"path": "/a", **wrong})


def test_a_stream_that_cannot_be_says_why_whatever_it_is_asked_first() -> None:
    """Where `streamReader` raises, what the user reads last is an UnboundLocalError of pyspark's."""
    source = AiodqDataSource({"path": "/a", "endingOffsets": "5"})
    reader = source.streamReader(StructType([StructField("offset", LongType())]))
    assert isinstance(reader, SupportsTriggerAvailableNow)
    asked: list[Callable[[], object]] = [
        reader.prepareForTriggerAvailableNow,
        reader.getDefaultReadLimit,
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(InputPartition(0)),
    ]
    for ask in asked:
        with pytest.raises(aiodq.InvalidOptionError, match="a stream has no end"):
            ask()


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("offset", LongType(), True), ("offset", LongType(), True)], "not offset bigint"),
        ([("offset", LongType(), True), ("body", StringType(), True)], "not body string"),
        ([("value", LongType(), True)], "not value bigint"),
        ([("offset", LongType(), False)], "not offset bigint not null"),
        ([], "not none"),
    ],
)
def test_a_schema_that_cannot_be(columns: list[tuple[str, DataType, bool]], told: str) -> None:
    schema = StructType([StructField(*column) for column in columns])
    source = AiodqDataSource({"path": "/a"})
    for reader in (lambda: source.reader(schema), lambda: source.streamReader(schema).initialOffset()):
        with pytest.raises(aiodq.InvalidOptionError, match=f"some of the columns topic STRING.*uuid STRING, {told}: "):
            reader()


def test_a_topic_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "q"}')
    schema = StructType([StructField("body", StringType())])
    single = AiodqDataSource({"path": str(tmp_path / "s"), "topic": "t"})
    stream = AiodqDataSource({**single.options, "checkpointLocation": str(tmp_path / "checkpoint")})
    with pytest.raises(aiodq.InvalidOptionError, match=r"write with mode\('append'\)"):
        single.writer(schema, overwrite=True)
    with pytest.raises(aiodq.InvalidOptionError, match=r"write with outputMode\('append'\)"):
        stream.streamWriter(schema, overwrite=True)
    assert not (tmp_path / "s").exists()
    assert isinstance(single.writer(schema, overwrite=False), BatchWriter)
    assert isinstance(stream.streamWriter(schema, overwrite=False), StreamWriter)
    with pytest.raises(aiodq.InvalidOptionError, match="a stream is told by its checkpoint"):
        single.streamWriter(schema, overwrite=False)
    with pytest.raises(aiodq.InvalidMessageError, match="the column 'body' is missing"):
        single.writer(StructType([StructField("tag", StringType())]), overwrite=False)


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("hold", "1", {}),
        ("holdAdvance", "batch", {}),
        ("maxRecordsPerTrigger", "1", {}),
        ("maxOffsetsPerTrigger", "1", {}),
        ("maxBytesPerTrigger", "1", {}),
        ("minRecordsPerTrigger", "1", {}),
        ("minOffsetsPerTrigger", "1", {}),
        ("maxTriggerDelay", "15m", {"minRecordsPerTrigger": "1"}),
    ],
)
def test_what_is_for_streams_is_refused_elsewhere(name: str, value: str, needs: dict[str, str]) -> None:
    assert stream_options({"path": "/a", name: value, **needs})
    with pytest.raises(aiodq.InvalidOptionError, match=f"'{name}' is for streams"):
        batch_options({"path": "/a", name.lower(): value})


def test_a_store_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "link").symlink_to("s")
    for twice in ("s,s", "s,./s/", f"s,file://{tmp_path}/s", "s,l*", "s3://b/s,s3://b/s/"):
        with pytest.raises(aiodq.InvalidOptionError, match="is named twice: its messages would come twice"):
            read_options({"path": twice})
    with pytest.raises(aiodq.InvalidOptionError, match="is named twice"):
        read_options({"path": "s", "paths": '["s"]'})


@pytest.mark.parametrize("path", ["file:/a b", "file:///a b", "file://localhost/a b", "/a b"])
def test_a_path_as_spark_writes_it(path: str) -> None:
    assert read_options({"path": path}).stores == ("/a b",)
    assert write_options({"path": path, "topic": "t"}, stream=False).store == "/a b"


def test_a_path_is_the_same_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's worker is in another one than the driver."""
    monkeypatch.chdir(tmp_path)
    assert read_options({"path": "shop/,s3://b/s"}).stores == (f"{tmp_path}/shop", "s3://b/s")
    assert write_options({"path": "shop", "topic": "t"}, stream=False).store == f"{tmp_path}/shop"


def test_a_relative_path_is_no_place_where_spark_deletes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over Spark Connect what plans a read or a write begins in the directory for the session's own files."""
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    assert read_options({"path": "shop"}).stores == (f"{os.getcwd()}/shop",)
    monkeypatch.chdir(tmp_path)
    for path in ("shop", "./shop", "sh*"):
        with pytest.raises(
            aiodq.InvalidOptionError, match=r"is relative, which over Spark Connect .* write the full path"
        ):
            read_options({"path": path})
    with pytest.raises(aiodq.InvalidOptionError, match="'shop' is relative"):
        write_options({"path": "shop", "topic": "t"}, stream=True)
    assert read_options({"path": "/shop,s3://b/s"}).stores == ("/shop", "s3://b/s")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("~/shop", r"write os.path.expanduser\('~/shop'\)"),
        ("~shop", "begins with '~', which only a shell replaces"),
        ("file://shop/a", "names a machine, 'shop': this one's are file:///shop"),
        ("s3:/bucket/shop", r"one slash after 's3:': write s3://bucket/shop for a URL, or \./s3:/bucket/shop for a"),
        (" ", "'path' is missing: a store's directory"),
    ],
)
def test_a_path_that_would_be_another_place_is_refused(path: str, told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        read_options({"path": path})
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        write_options({"path": path, "topic": "t"}, stream=False)


def test_a_directory_may_be_called_as_a_url_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_options({"path": "./s3:/shop"}).stores == (f"{tmp_path}/./s3:/shop",)
    (tmp_path / "s3:").mkdir()
    assert read_options({"path": "s3:/shop"}).stores == (f"{tmp_path}/s3:/shop",)
    assert write_options({"path": "s3:/shop", "topic": "t"}, stream=False).store == f"{tmp_path}/s3:/shop"


def test_a_path_that_may_not_be_followed_is_for_the_read_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def realpath(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    assert read_options({"path": "/a,/b"}).stores == ("/a", "/b")


def test_an_option_of_the_other_side_is_told_as_such() -> None:
    with pytest.raises(aiodq.InvalidOptionError, match="'txnId' is an option of writes; those of reads: path, paths"):
        read_options({"path": "/a", "txnid": "x"})
    with pytest.raises(aiodq.InvalidOptionError, match="'startingOffsets' is an option of reads; those of writes"):
        write_options({"path": "/a", "topic": "t", "startingoffsets": "5"}, stream=False)


def test_a_write_goes_to_one_store(tmp_path: Path) -> None:
    for several in ("w1,w2", "w*"):
        with pytest.raises(aiodq.InvalidOptionError, match="a write goes to one store"):
            write_options({"path": f"{tmp_path}/{several}", "topic": "t"}, stream=False)
        (tmp_path / several).mkdir()
        assert write_options({"path": f"{tmp_path}/{several}", "topic": "t"}, stream=False)


@pytest.mark.parametrize(
    "given",
    [{}, {"provider": "aiodq", "path": "/a", "location": "/a"}, {"provider": "aiodq", "option.topic": "a"}],
    ids=str,
)
def test_a_table_of_the_catalog_is_refused_with_what_works_instead(given: dict[str, str]) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match="instead of CREATE TABLE, CREATE TEMPORARY VIEW"):
        read_options(given)
    with pytest.raises(aiodq.InvalidOptionError, match="instead of CREATE TABLE, CREATE TEMPORARY VIEW"):
        write_options(given, stream=False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "30", "endingOffsets": "10"}, "endingOffsets lies before startingOffsets"),
        ({"startingOffsets": "30", "endingOffsets": '{"a": 40, "b": 10}'}, "before startingOffsets of topic 'b'"),
        ({"startingOffsets": '{"a": 2}', "endingOffsets": '{"a": 1}'}, "before startingOffsets of topic 'a'"),
        ({"startingTimestamp": "2000", "endingTimestamp": "1999"}, "endingTimestamp lies before startingTimestamp"),
    ],
    ids=str,
)
def test_a_range_does_not_end_before_it_begins(given: dict[str, str], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        batch_options({"path": "/a", **given})


def test_a_range_may_be_empty() -> None:
    assert batch_options({"path": "/a", "startingOffsets": "10", "endingOffsets": "10"})
    assert batch_options({"path": "/a", "startingOffsets": "10", "endingOffsets": '{"a": 10, "b": "latest"}'})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"txnId": "é" * 24}, "txnId is too long"),
        ({"segmentBytes": f"{1 << 40}g"}, "segmentBytes is bytes"),
        ({"maxMessageBytes": "-1"}, "maxMessageBytes is bytes"),
        ({"maxMessageBytes": "4g"}, "maxMessageBytes is bytes, as 33554432 or 32m, at most 2147483648, not '4g'"),
        ({"path": "/a\0b"}, "path has a character of code 0"),
        ({"txnAppId": "a", "txnVersion": "7"}, "is it txnId, made of application and version, that is meant"),
    ],
    ids=str,
)
def test_what_a_write_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        write_options({"path": "/a", "topic": "t", **given}, stream=False)


def test_the_longest_name_of_a_write_can_be_a_file(tmp_path: Path) -> None:
    longest = "é" * 23 + "abc"
    for options in (
        write_options({"path": "/a", "topic": "t", "txnId": longest}, stream=False),
        write_options({"path": "/a", "topic": "t", "txnAppId": longest}, stream=True),
    ):
        assert staging_directory(str(tmp_path), f"stream {options.name}")


@pytest.mark.parametrize("name", ["LOCK", "lock", "topic.json", "a.seg"])
def test_no_topic_can_be_written_to_whose_name_the_store_needs(name: str) -> None:
    with pytest.raises(aiodq.InvalidNameError, match="for its own files"):
        check_topic(name)
