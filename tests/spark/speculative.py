"""A program for `test_speculation`: writes whose tasks Spark starts twice, as one of the two attempts seems to hang."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, TASKS = 60, 6


def hang(rows: Iterator[Any], attempts: Path) -> Iterator[Any]:
    """Pass rows on; a first attempt then hangs, when its rows are on their way to be staged."""
    context = TaskContext.get()
    assert context is not None
    (attempts / f"{context.taskAttemptId()}").touch()
    yield from rows
    # Only one, on one of two workers: the other has room for the second attempt.
    if context.partitionId() == 0 and not context.attemptNumber():
        time.sleep(30)


def main(url: str, path: Path) -> None:
    """Write once, and as a stream."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",  # so that the first are staged before the last have come
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    }
    builder = SparkSession.builder.master(url)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("rpad(CAST(id AS STRING), 1000000, ' ') AS body")
    rows.write.parquet(str(path / "lake"))
    stream = spark.readStream.schema("body STRING").parquet(str(path / "lake"))
    for name, frame in (("single", rows), ("stream", stream)):
        attempts = path / f"{name}.attempts"
        attempts.mkdir()
        slow = frame.repartition(TASKS).mapInArrow(partial(hang, attempts=attempts), "body STRING")
        if name == "single":
            slow.write.format("aiodq").mode("append").option("topic", "orders").save(str(path / name))
            continue
        writer = slow.writeStream.format("aiodq").option("topic", "orders").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(path / "checkpoint")).start(str(path / name))
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
