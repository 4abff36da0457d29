"""Many topics, many segments, and the ready-made jobs, each beside a plain pass: `python -m benchmarks.spark_scale`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiodq
from aiodq.spark.pipelines import audit, report, start_session
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from benchmarks.environment import describe
from benchmarks.spark import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

KEEP: Final = aiodq.Retention(consumed="keep")
SIZE: Final = 100


async def fill(path: Path, topics: int, messages: int, segment_bytes: int = 64 << 20, together: int = 10_000) -> None:
    """Put so many messages into each of so many topics, some together: a put is not divided among segments."""
    options = aiodq.StoreOptions(sync="os", retention=KEEP, segment_bytes=segment_bytes)
    bodies = list(lines(messages, SIZE))
    async with aiodq.open(path, options) as store:
        for number in range(topics):
            topic = store.topic(f"t{number:04}")
            for at in range(0, messages, together):
                drafts = [aiodq.Draft(body, tag=f"g{body[8] % 7}") for body in bodies[at : at + together]]
                await topic.put_many(drafts)


def count(spark: SparkSession, store: Path, topics: int | None = None) -> int:
    """Count a store's messages with all their columns read; with a number, of that many topics."""
    wanted = {} if topics is None else {"topics": ",".join(f"t{number}" for number in range(topics))}
    frame = spark.read.format("aiodq").options(**wanted).load(str(store))
    return int(frame.selectExpr("count(offset + length(body))").collect()[0][0])


def plain(store: Path) -> int:
    """Count them in this process, without Spark."""
    reader = aiodq.open_reader(store)
    return sum(batch.num_rows for topic in reader.topics() for batch in reader.topic(topic).record_batches())


def stream(spark: SparkSession, store: Path, place: Path, batches: int) -> list[float]:
    """Run a stream beside an owner that goes on; return the seconds of each batch but the first."""

    async def owner() -> None:
        async with aiodq.open(store, aiodq.StoreOptions(sync="os", retention=KEEP)) as opened:
            topics = [opened.topic(name) for name in opened.topics()]
            while True:
                for topic in topics:
                    await topic.put_many([bytes(SIZE)] * 10)
                done = [batch for batch in query.recentProgress if batch["numInputRows"]]
                if len(done) > batches:
                    return
                await asyncio.sleep(0.2)

    frame = spark.readStream.format("aiodq").load(str(store))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
    query = writer.trigger(processingTime="1 second").start()
    try:
        asyncio.run(owner())
        done = [batch for batch in query.recentProgress if batch["numInputRows"]]
    finally:
        query.stop()
    return [batch["durationMs"]["triggerExecution"] / 1000 for batch in done[1:]]


async def fill_alike(path: Path, topics: int, messages: int, segment_bytes: int = 64 << 20) -> None:
    """Put the same few bodies again and again, so that large stores are filled fast."""
    bodies = list(lines(10_000, SIZE))
    options = aiodq.StoreOptions(sync="os", retention=KEEP, segment_bytes=segment_bytes)
    async with aiodq.open(path, options) as store:
        for number in range(topics):
            for _ in range(0, messages, len(bodies)):
                await store.topic(f"t{number}").put_many(bodies)


def resident(spark: SparkSession) -> dict[str, int]:
    """Return MB of the driver's JVM: its heap after a collection, and what it has of the machine's memory."""
    jvm = spark._jvm  # noqa: SLF001 - pyspark has no other way to ask it
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    pid = jvm.java.lang.ProcessHandle.current().pid()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    heap = runtime.totalMemory() - runtime.freeMemory()
    return {"heap after gc": heap >> 20, "resident": pages * 4096 >> 20}


def write(frame: DataFrame, place: Path, form: str) -> None:
    """Write rows to a new place, and remove it again."""
    place = Path(tempfile.mkdtemp(dir=place)) / "written"
    writer = frame.write.format(form).mode("append")
    (writer.option("topic", "t") if form == "aiodq" else writer).save(str(place))
    shutil.rmtree(place.parent)


def measured(rounds: int, ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Run everything by turns, once to warm up and then so many rounds; return the seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if number:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def show(title: str, seconds: dict[str, list[float]]) -> None:
    """Print medians and ranges."""
    print(f"\n{title}\n\n| | median s | min - max s |\n|---|--:|--:|")
    for name, taken in seconds.items():
        print(f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} - {max(taken):.2f} |")


def run(spark: SparkSession, place: Path, arguments: argparse.Namespace, what: Sequence[str]) -> None:
    """Measure what was asked for."""
    if "topics" in what:
        store = place / "topics"
        asyncio.run(fill(store, arguments.topics, 1000))
        ways: dict[str, Callable[[], object]] = {
            "count": lambda: count(spark, store),
            "plain process": lambda: plain(store),
            "report": lambda: report(spark, store, place / "report.html"),
        }
        show(f"{arguments.topics:,} topics x 1,000 messages", measured(arguments.rounds, ways))
        taken = stream(spark, store, place / "checkpoint", arguments.rounds + 3)
        show("a batch of a stream over them", {"trigger": taken})
        shutil.rmtree(store)
    if "report" in what:
        store = place / "report"
        asyncio.run(fill(store, 12, arguments.messages // 12))
        ways = {"count": lambda: count(spark, store), "report": lambda: report(spark, store, place / "report.html")}
        show(f"12 topics, {arguments.messages:,} messages", measured(arguments.rounds, ways))
    if "size" in what:
        store = place / "size"
        asyncio.run(fill_alike(store, 4, arguments.megabytes * 1_000_000 // SIZE))
        ways = {f"{many} x {arguments.megabytes} MB": partial(count, spark, store, many) for many in (1, 4)}
        show("four times as much", measured(arguments.rounds, ways))
        shutil.rmtree(store)
    if "write" in what:
        asyncio.run(fill(place / "source", 1, arguments.messages))
        spark.read.format("aiodq").load(str(place / "source")).select("body").write.parquet(str(place / "bodies"))
        frame = spark.read.parquet(str(place / "bodies"))
        ways = {form: partial(write, frame, place, form) for form in ("aiodq", "parquet")}
        show(
            f"write of {arguments.messages:,} messages of {SIZE} B, read from Parquet", measured(arguments.rounds, ways)
        )
    if "segments" in what:
        print(f"\ndriver's JVM at first, MB: {resident(spark)}")
        for name, size in (("few", 64 << 20), ("many", 20_000)):
            asyncio.run(fill(place / name, 1, 1_000_000, size, 200))
            found = len(list((place / name).rglob("*.seg")))
            ways = {"count": partial(count, spark, place / name), "audit": partial(audit, spark, place / name)}
            show(f"1,000,000 messages, {found} segments", measured(arguments.rounds, ways))
            print(f"\ndriver's JVM after {found} segments, MB: {resident(spark)}")
    if "audit" in what:
        store = place / "audit"
        size = arguments.megabytes * 1_250_000 // arguments.segments
        asyncio.run(fill_alike(store, 1, arguments.megabytes * 1_000_000 // SIZE, size))
        found = len(list(store.rglob("*.seg")))
        ways = {
            "aiodq verify": lambda: verify_store(str(store), OsFileSystem()),
            "audit": lambda: audit(spark, store),
            "a job of nothing": lambda: spark.range(0, 2, numPartitions=2).mapInArrow(iter, "id LONG").collect(),
        }
        show(f"{arguments.megabytes:,} MB of messages, {found} segments", measured(arguments.rounds, ways))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_scale", description=__doc__)
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        default=["topics", "report", "audit"],
        help="topics, report, audit (these by default), write, segments, size",
    )
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--topics", type=int, default=1000, help="default: %(default)s")
    add("--segments", type=int, default=270, help="about so many (default: %(default)s)")
    add("--messages", type=int, default=3_000_000, help="for `report` and `write` (default: %(default)s)")
    add("--megabytes", type=int, default=1000, help="for `audit`, and four times for `size` (default: %(default)s)")
    add("--master", default="local[2]", help="default: %(default)s")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    arguments = parser.parse_args(argv)
    for name, value in describe(arguments.dir.resolve(), "asyncio").items():
        print(f"{name}: {value}", file=sys.stderr)
    spark = start_session(arguments.master)
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="aiodq-scale-") as directory:
        run(spark, Path(directory), arguments, arguments.what)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
