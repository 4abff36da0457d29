"""Writes, reads and audits a store over Spark Connect, and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiodq.spark.pipelines import archive, audit, compact, prepare_views, query, replay, report
from aiodq.spark.source import AiodqDataSource

if TYPE_CHECKING:
    from collections.abc import Callable


def main(url: str, store: str, hidden: str = "") -> None:
    """Run at a Spark Connect server; also with a store that is hidden from its tasks."""
    # A client that is not closed keeps a process that has failed from ending.
    with session(url) as spark, session(url) as other:
        found: dict[str, Any] = {"seen": write_and_read(spark, store)}
        if hidden:
            found["blind"] = read_blind(spark, hidden)
        found["pipelines"] = each_pipeline(spark, store)
        found["relative"] = write_to(spark, "shop")
        found["two"] = two_clients(spark, other, store)
        found["results"] = several_results(spark, store)
    print(json.dumps(found))


def session(url: str) -> SparkSession:
    """Return a new client of a server."""
    spark = SparkSession.builder.remote(url).create()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.dataSource.register(AiodqDataSource)
    return spark


def write_and_read(spark: SparkSession, store: str) -> dict[str, Any]:
    """Write, read and audit."""
    rows = spark.range(0, 500, numPartitions=4).selectExpr("cast(id as string) as body")
    rows.write.format("aiodq").mode("append").option("topic", "orders").option("segmentBytes", "2k").save(store)
    frame = spark.read.format("aiodq").option("splitBytes", "2k").load(store)
    bodies = [bytes(row["body"]).decode() for row in frame.orderBy("offset").collect()]
    found = audit(spark, store)
    return {"bodies": bodies, "findings": len(found.findings), "records": found.records}


def write_to(spark: SparkSession, store: str) -> str:
    """Write a message; return what Spark has against it."""
    try:
        spark.sql("SELECT 'x' AS body, 't' AS topic").write.format("aiodq").mode("append").save(store)
    except PySparkException as error:
        return str(error)
    return "nothing"


def each_pipeline(spark: SparkSession, store: str) -> dict[str, Any]:
    """Run every pipeline over what was written; return how many messages each of them tells of."""
    archived = archive(spark, store, f"{store}.archive")
    replayed = replay(spark, f"{store}.archive", f"{store}.again", txn_id="once")
    again = replay(spark, f"{store}.archive", f"{store}.again", txn_id="once")
    (counted,) = query(spark, store, "SELECT count(*), max(text) FROM orders").collect()
    kept = compact(spark, store, "orders", "latest")
    described = report(spark, store, f"{store}.html")
    return {
        "archive": [archived.rows, archived.batches],
        "replay": [replayed.rows, again.rows, again.repeated],
        "query": list(counted),
        "compact": [kept.read, kept.kept],
        "report": [described.topics, described.rows],
    }


def two_clients(one: SparkSession, two: SparkSession, store: str) -> list[int]:
    """Write by two clients at once under one name; return what each counts in its view of one name of two stores."""

    def write(spark: SparkSession) -> None:
        rows = spark.range(0, 3, numPartitions=1).selectExpr("cast(id as string) as body")
        writer = rows.write.format("aiodq").mode("append").option("topic", "both").option("txnId", "both")
        writer.save(f"{store}.two")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, (one, two)))
    prepare_views(one, store)
    prepare_views(two, f"{store}.two")
    (mine,), (others,) = (spark.sql("SELECT count(*) FROM messages").collect() for spark in (one, two))
    return [mine[0], others[0]]


def several_results(spark: SparkSession, store: str) -> list[object]:
    """Use the results of queries of two stores that have views of the same names, after all were asked for."""
    counting = query(spark, store, "-- how many?\nSELECT count(*) FROM messages")
    named = "WITH some AS (SELECT text FROM both) SELECT max(text), '{both}' FROM some  -- the last\n;"
    largest = query(spark, f"{store}.two", named)
    views = query(spark, f"{store}.two", "SHOW VIEWS")
    try:
        query(spark, store, "SELECT nothing FROM orders")
        error = "none"
    except PySparkException as wrong:
        error = str(wrong)
    (counted,), (most,) = counting.collect(), largest.collect()
    return [counted[0], *most, sorted(row.viewName for row in views.collect()), "frame0" in error, "nothing" in error]


def read_blind(spark: SparkSession, store: str) -> dict[str, Any]:
    """Count, audit and archive; return what came of it."""
    jobs: dict[str, Callable[[], object]] = {
        "count": lambda: spark.read.format("aiodq").option("failOnDataLoss", "false").load(store).count(),
        "audit": lambda: audit(spark, store),
        "archive": lambda: archive(spark, store, f"{store}.archive", lossy=True),
    }
    found: dict[str, Any] = {}
    for name, work in jobs.items():
        try:
            found[name] = f"no error, but {work()}"
        except PySparkException as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
