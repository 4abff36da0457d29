"""Writes, reads and audits a store with whatever Spark it is given, and prints what came of it as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from aiodq.spark.java import prepare
from aiodq.spark.pipelines import audit
from aiodq.spark.source import AiodqDataSource


def main(where: str, url: str, store: str) -> None:
    """Run on a master, or on a Spark Connect server."""
    prepare(url)
    builder = SparkSession.builder.remote(url) if where == "remote" else SparkSession.builder.master(url)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(AiodqDataSource)
    rows = spark.range(0, 500, numPartitions=4).selectExpr("cast(id as string) as body")
    rows.write.format("aiodq").mode("append").option("topic", "orders").option("segmentBytes", "2k").save(store)
    frame = spark.read.format("aiodq").option("splitBytes", "2k").load(store)
    bodies = [bytes(row["body"]).decode() for row in frame.orderBy("offset").collect()]
    found = audit(spark, store)
    print(json.dumps({"bodies": bodies, "findings": len(found.findings), "records": found.records}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
