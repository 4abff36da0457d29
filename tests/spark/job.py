"""Writes, reads and audits a store with whatever Spark it is given, and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiodq.spark.java import prepare
from aiodq.spark.pipelines import archive, audit, compact, query, replay, report
from aiodq.spark.source import AiodqDataSource

if TYPE_CHECKING:
    from collections.abc import Callable


def main(where: str, url: str, store: str, hidden: str = "") -> None:
    """Run on a master, or on a Spark Connect server; also with a store that is hidden from the workers."""
    prepare(url)
    builder = SparkSession.builder.remote(url) if where == "remote" else SparkSession.builder.master(url)
    # Nothing waits for data to be near: all workers have their share of the tasks.
    builder = builder.config("spark.locality.wait", "0s").config("spark.task.maxFailures", "1")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(AiodqDataSource)
    found: dict[str, Any] = {"seen": write_and_read(spark, store)}
    if hidden:
        found["blind"] = read_blind(spark, hidden)
    if where == "remote":
        found["pipelines"] = each_pipeline(spark, store)
        found["relative"] = write_to(spark, "shop")
    print(json.dumps(found))
    spark.stop()


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
