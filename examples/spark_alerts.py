"""A Structured Streaming job counts, by window and tag, in a live topic; what is too much it writes into another topic.

    pip install 'aiodq[spark]'
    python examples/spark_alerts.py [DIRECTORY]

One process puts the lines of Python's own library, with the module's name as tag. Spark counts the lines that raise
something, a second a window, and writes an alert where there are many. An asyncio consumer of the same process gets the
alerts, each at least once; the store stays open all the time, and nobody needs another server.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import tempfile
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions

import aiodq
from aiodq.spark.pipelines import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

ALERTS = 5
"""So many alerts end the example."""

MANY = 20
"""Lines in one window, above which there is an alert."""


def library() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the name and the lines of one module after the other, again and again."""
    while True:
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            yield path.stem, path.read_bytes().splitlines()


async def produce(lines: aiodq.Topic) -> None:
    """Put a few modules a second, until cancelled."""
    modules = library()
    while True:
        for name, found in islice(modules, 10):
            await lines.put_many(found, tag=name)
        await asyncio.sleep(1)


async def consume(alerts: aiodq.Queue) -> None:
    """Print as many alerts as are wanted."""
    for _ in range(ALERTS):
        async with await alerts.get() as alert:
            print(alert.body.decode())


def watch(store: str, checkpoint: str, over: threading.Event) -> None:
    """Run the streaming job until `over` is set. Blocking."""
    spark = start_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    lines = spark.readStream.format("aiodq").option("topic", "lines").option("hold", "alerts").load(store)
    raising = lines.withWatermark("timestamp", "2 seconds").where(
        "make_valid_utf8(CAST(body AS STRING)) LIKE '%raise %'"
    )
    counts = raising.groupBy(functions.window("timestamp", "1 second"), "tag").count()
    alerts = counts.where(f"count > {MANY}").selectExpr("tag", "concat(tag, ' raises ', count, ' times') AS body")
    writer = alerts.writeStream.format("aiodq").option("topic", "alerts")
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start(store)
    while not over.is_set() and query.isActive:
        query.awaitTermination(1)
    query.stop()
    spark.stop()


async def main(directory: str) -> None:
    """Put lines and print alerts until there were enough of them."""
    store, over = f"{directory}/store", threading.Event()
    async with aiodq.open(store) as opened:
        producer = asyncio.create_task(produce(opened.topic("lines")))
        watcher = asyncio.create_task(asyncio.to_thread(watch, store, f"{directory}/checkpoint", over))
        consumer = asyncio.create_task(consume(opened.queue("alerts")))
        await asyncio.wait([consumer, watcher], return_when=asyncio.FIRST_COMPLETED)
        producer.cancel()
        over.set()
        await watcher


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="aiodq-") as temporary:
            asyncio.run(main(temporary))
