"""Many topics, many segments, and the ready-made jobs, each beside a plain pass: `python -m benchmarks.spark_scale`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

import aiodq
from aiodq.spark.pipelines import audit, report, start_session
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from benchmarks.environment import describe
from benchmarks.log_lines import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

KEEP: Final = aiodq.Retention(consumed="keep")
SIZE: Final = 100
OTHERS: Final = ("max(timestamp)", "count(topic)", "count(tag)", "count(key)", "count(headers)")
"""What is asked for so that every column is needed."""


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
    return int(frame.selectExpr("count(offset + length(body))", *OTHERS).collect()[0][0])


def plain(store: Path) -> int:
    """Count them in this process, without Spark."""
    reader = aiodq.open_reader(store)
    return sum(batch.num_rows for topic in reader.topics() for batch in reader.topic(topic).record_batches())


def copy_to_parquet(store: Path, place: Path, files: int) -> None:
    """Write each topic to Parquet, in so many files."""
    reader = aiodq.open_reader(store)
    for topic in reader.topics():
        table = reader.topic(topic).to_arrow()
        rows = -(-table.num_rows // files)
        (place / topic).mkdir(parents=True)
        for number in range(files):
            pq.write_table(table.slice(number * rows, rows), place / topic / f"{number}.parquet")


def count_parquet(spark: SparkSession, place: Path) -> int:
    """Count the messages there as `count` does, with the same columns read."""
    frame = spark.read.option("recursiveFileLookup", "true").parquet(str(place))
    return int(frame.selectExpr("count(offset + length(body))", *OTHERS).collect()[0][0])


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


@dataclass(frozen=True)
class Bench:
    """Where to measure, and how much."""

    spark: SparkSession
    place: Path
    sizes: argparse.Namespace

    def measure(self, title: str, ways: dict[str, Callable[[], object]]) -> None:
        """Run everything by turns, and print what it took."""
        show(title, measured(self.sizes.rounds, ways))

    def beside_parquet(self, store: Path, files: int, title: str, others: dict[str, Callable[[], object]]) -> None:
        """Count a store's messages, count them in so many Parquet files a topic, and whatever else is to be run."""
        copy_to_parquet(store, self.place / f"{store.name}-parquet", files)
        counts: dict[str, Callable[[], object]] = {
            "count": lambda: count(self.spark, store),
            "count, Parquet": lambda: count_parquet(self.spark, self.place / f"{store.name}-parquet"),
        }
        self.measure(title, counts | others)
        shutil.rmtree(self.place / f"{store.name}-parquet")


def topics(bench: Bench) -> None:
    """Many small topics: a count, a report, and a stream."""
    store, spark = bench.place / "topics", bench.spark
    asyncio.run(fill(store, bench.sizes.topics, 1000))
    others: dict[str, Callable[[], object]] = {
        "plain process": lambda: plain(store),
        "report": lambda: report(spark, store, bench.place / "report.html"),
    }
    bench.beside_parquet(store, 1, f"{bench.sizes.topics:,} topics x 1,000 messages", others)
    taken = stream(spark, store, bench.place / "checkpoint", bench.sizes.rounds + 3)
    show("a batch of a stream over them", {"trigger": taken})
    shutil.rmtree(store)


def reports(bench: Bench) -> None:
    """A report of a few topics."""
    store, spark, messages = bench.place / "report", bench.spark, bench.sizes.messages
    asyncio.run(fill(store, 12, messages // 12))
    ways: dict[str, Callable[[], object]] = {"report": lambda: report(spark, store, bench.place / "report.html")}
    bench.beside_parquet(store, 1, f"12 topics, {messages:,} messages", ways)
    shutil.rmtree(store)


def size(bench: Bench) -> None:
    """Four times as much."""
    store, megabytes = bench.place / "size", bench.sizes.megabytes
    asyncio.run(fill_alike(store, 4, megabytes * 1_000_000 // SIZE))
    ways = {f"{many} x {megabytes} MB": partial(count, bench.spark, store, many) for many in (1, 4)}
    bench.measure("four times as much", {**ways})
    shutil.rmtree(store)


def writes(bench: Bench) -> None:
    """A write of what is in Parquet, to a store and to Parquet."""
    place, spark, messages = bench.place, bench.spark, bench.sizes.messages
    asyncio.run(fill(place / "source", 1, messages))
    spark.read.format("aiodq").load(str(place / "source")).select("body").write.parquet(str(place / "bodies"))
    frame = spark.read.parquet(str(place / "bodies"))
    ways = {form: partial(write, frame, place, form) for form in ("aiodq", "parquet")}
    bench.measure(f"write of {messages:,} messages of {SIZE} B, read from Parquet", {**ways})


def segments(bench: Bench) -> None:
    """The same messages in few segments and in many, and what the driver has of it."""
    place, spark = bench.place, bench.spark
    print(f"\ndriver's JVM at first, MB: {resident(spark)}")
    for name, segment_bytes in (("few", 64 << 20), ("many", 20_000)):
        asyncio.run(fill(place / name, 1, bench.sizes.messages // 3, segment_bytes, 200))
        found = len(list((place / name).rglob("*.seg")))
        ways: dict[str, Callable[[], object]] = {"audit": partial(audit, spark, place / name)}
        bench.beside_parquet(place / name, found, f"{bench.sizes.messages // 3:,} messages, {found:,} segments", ways)
        print(f"\ndriver's JVM after {found:,} segments, MB: {resident(spark)}")


def audits(bench: Bench) -> None:
    """An audit beside `aiodq verify` in one process."""
    store, megabytes, spark = bench.place / "audit", bench.sizes.megabytes, bench.spark
    asyncio.run(fill_alike(store, 1, megabytes * 1_000_000 // SIZE, megabytes * 1_250_000 // bench.sizes.segments))
    found = len(list(store.rglob("*.seg")))
    ways: dict[str, Callable[[], object]] = {
        "aiodq verify": lambda: verify_store(str(store), OsFileSystem()),
        "audit": lambda: audit(spark, store),
        "a job of nothing": lambda: spark.range(0, 2, numPartitions=2).mapInArrow(lambda b: b, "id LONG").collect(),
    }
    bench.measure(f"{megabytes:,} MB of messages, {found} segments", ways)
    shutil.rmtree(store)


WHAT: Final[dict[str, Callable[[Bench], None]]] = {
    "topics": topics,
    "report": reports,
    "size": size,
    "write": writes,
    "segments": segments,
    "audit": audits,
}
"""What can be measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_scale", description=__doc__)
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        default=list(WHAT),
        metavar="WHAT",
        help=f"some of {', '.join(WHAT)} (default: all)",
    )
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--topics", type=int, default=1000, help="default: %(default)s")
    add("--segments", type=int, default=270, help="about so many (default: %(default)s)")
    add(
        "--messages",
        type=int,
        default=3_000_000,
        help="for `report` and `write`, a third for `segments` (default: %(default)s)",
    )
    add("--megabytes", type=int, default=1000, help="for `audit`, and four times for `size` (default: %(default)s)")
    add("--master", default="local[2]", help="default: %(default)s")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if unknown := sorted({*arguments.what} - {*WHAT}):
        parser.error(f"there is nothing to measure that is called {unknown[0]!r}; there are {', '.join(WHAT)}")
    for name, value in describe(arguments.dir.resolve(), "asyncio").items():
        print(f"{name}: {value}", file=sys.stderr)
    spark = start_session(arguments.master)
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="aiodq-scale-") as directory:
        for what in arguments.what:
            WHAT[what](Bench(spark, Path(directory), arguments))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
