"""Copies one store into another as a stream, in a process group of its own that may be killed at any moment."""

from __future__ import annotations

import sys

from aiodq.spark.pipelines import start_session


def main(source: str, target: str, checkpoint: str) -> None:
    """Copy to the end of what there is, in small batches."""
    spark = start_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    stream = spark.readStream.format("aiodq").option("maxRecordsPerTrigger", "150").option("hold", "copy").load(source)
    writer = stream.writeStream.format("aiodq").option("checkpointLocation", checkpoint)
    print("ready", flush=True)
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination()
    error = query.exception()
    if error is not None:
        raise error
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
