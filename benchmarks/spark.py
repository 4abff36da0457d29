"""Read the same messages with Spark from aiodq, Parquet, text and binary files: `python -m benchmarks.spark --help`.

Then many topics, many segments, and the ready-made jobs, which `python -m benchmarks.spark_scale` measures alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table

import aiodq
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.format.vectorized.arrow import COLUMNS, ArrowDecoder, schema_of
from aiodq.spark.pipelines import start_session
from aiodq.spark.source import AiodqDataSource
from aiodq.storage.read.arrow_reader import columns_of
from benchmarks import spark_scale
from benchmarks.environment import describe
from benchmarks.log_lines import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from aiodq.storage.segments.segment_files import Segment

TOGETHER = 10_000
"""Messages in one put, where it is not one."""
PRODUCERS = 1000
"""Tasks that put at the same time, each one message; what comes together is one batch on disk."""
CHUNK = 1 << 20
"""Bytes that are decoded at a time."""
READY = 2 << 20
"""Bytes in each of the record batches that are not read from anything."""
FILES = 8
"""So many Parquet, text or binary files are made of the messages, so that every core has its own to read."""
BASIS = "parquet, snappy"
READ = ("offset", "timestamp", "body")
"""The columns that a query needs."""
SOME = ("max(offset)", "max(timestamp)")
"""What is asked for beside the bodies."""
EVERY = (*SOME, "count(topic)", "count(tag)", "count(key)", "count(headers)")
"""Likewise, so that every column is needed: Parquet need not read those that nobody asks for."""


@dataclass(frozen=True)
class Subject:
    """Something that can be read: its name, how, which of its columns holds the bodies, and what else is asked for."""

    name: str
    load: Callable[[SparkSession], DataFrame]
    body: str = "body"
    others: Sequence[str] = SOME

    def read(self, spark: SparkSession) -> int:
        """Read every body, and the others; return the bodies' bytes."""
        return int(self.load(spark).selectExpr(f"sum(length({self.body}))", *self.others).collect()[0][0])


@dataclass(frozen=True)
class Figure:
    """What one subject took for so many messages: seconds, by round."""

    subject: str
    seconds: Sequence[float]
    messages: int
    bytes: int

    @property
    def median(self) -> float:
        """Of the seconds."""
        return statistics.median(self.seconds)


class ReadyMade(DataSource):
    """One record batch, over and over: whatever this takes is Spark's own path from Python to its rows."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return "ready"

    def schema(self) -> str:
        """Return the columns that the other subjects are read with."""
        return AiodqDataSource({"path": ".", "columns": self.options["columns"]}).schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        """Return a reader of so many messages of this size."""
        columns = columns_of(self.options["columns"].split(","))
        return ReadyMadeReader(int(self.options["messages"]), int(self.options["size"]), columns)


class ReadyMadeReader(DataSourceReader):
    """As many tasks as there are cores."""

    def __init__(self, messages: int, size: int, columns: Sequence[str]) -> None:
        """Give these columns of so many messages."""
        self.messages, self.size, self.columns = messages, size, columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return how many messages each task gives."""
        tasks = os.cpu_count() or 1
        return [InputPartition(self.messages * (n + 1) // tasks - self.messages * n // tasks) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batch until there are enough."""
        rows = min(READY // self.size, partition.value)
        values = {
            "topic": ["t"] * rows,
            "offset": range(rows),
            "timestamp": range(rows),
            "body": [bytes(self.size)] * rows,
        }
        schema = schema_of(self.columns)
        arrays = [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for left in range(partition.value, 0, -rows):
            yield batch.slice(0, min(left, rows))


def fill(directory: Path, bodies: Sequence[bytes]) -> None:
    """Store the same messages in every way."""
    asyncio.run(_fill_store(directory / "many", bodies, TOGETHER))
    asyncio.run(_fill_store(directory / "shared", bodies, 1, PRODUCERS))
    asyncio.run(_fill_store(directory / "alone", bodies, 1))
    table = aiodq.open_reader(directory / "many").topic("t").to_arrow()
    part = -(-len(bodies) // FILES)
    for kind in ("snappy", "none", "text", "binary"):
        (directory / kind).mkdir()
    for number in range(FILES):
        mine = table.slice(number * part, part)
        for codec in ("snappy", "none"):
            pq.write_table(mine, directory / codec / f"{number}.parquet", compression=codec)
        content = b"\n".join(bodies[number * part : (number + 1) * part])
        (directory / "text" / f"{number}.txt").write_bytes(content + b"\n")
        (directory / "binary" / f"{number}.bin").write_bytes(content)


async def _fill_store(path: Path, bodies: Sequence[bytes], together: int, producers: int = 1) -> None:
    options = aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep"))
    async with aiodq.open(path, options) as store:
        topic = store.topic("t")
        if together > 1:
            for at in range(0, len(bodies), together):
                await topic.put_many(bodies[at : at + together])
            return
        for at in range(0, len(bodies), producers):
            await asyncio.gather(*map(topic.put, bodies[at : at + producers]))


def subjects(directory: Path, messages: int, size: int) -> list[Subject]:
    """Return all that can be read there."""

    def aiodq_of(store: str, **options: str) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.read.format("aiodq").options(**options).load(str(directory / store))

    def files(kind: str, name: str) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.read.format(kind).load(str(directory / name))

    def ready(columns: Sequence[str]) -> Callable[[SparkSession], DataFrame]:
        wanted = ",".join(columns)
        return lambda spark: spark.read.format("ready").options(messages=messages, size=size, columns=wanted).load()

    columns = ",".join(READ)
    return [
        Subject(f"aiodq, {TOGETHER:,} a put", aiodq_of("many")),
        Subject(f"aiodq, {TOGETHER:,} a put, columns={columns}", aiodq_of("many", columns=columns)),
        Subject(f"aiodq, one a put, {PRODUCERS:,} producers", aiodq_of("shared")),
        Subject("aiodq, one a put, one producer", aiodq_of("alone")),
        Subject(f"aiodq, one a put, one producer, columns={columns}", aiodq_of("alone", columns=columns)),
        Subject(f"aiodq, {TOGETHER:,} a put, every column asked for", aiodq_of("many"), others=EVERY),
        Subject("no source: Spark's path from Python alone", ready(READ)),
        Subject("no source, every column asked for", ready(COLUMNS), others=EVERY),
        Subject(BASIS, files("parquet", "snappy")),
        Subject(f"{BASIS}, every column asked for", files("parquet", "snappy"), others=EVERY),
        Subject("parquet, uncompressed", files("parquet", "none")),
        Subject("text", files("text", "text"), "value", others=()),
        Subject("binaryFile, whole files", files("binaryFile", "binary"), "content", others=()),
    ]


def with_spark(spark: SparkSession, directory: Path, messages: int, size: int, rounds: int) -> list[Figure]:
    """Read everything by turns, once to warm up and then so many rounds; stop the session."""
    spark.dataSource.register(ReadyMade)
    try:
        seconds: dict[str, list[float]] = {}
        at_hand = subjects(directory, messages, size)
        for number in range(rounds + 1):
            for subject in at_hand:
                begun = time.perf_counter()
                found = subject.read(spark)
                taken = time.perf_counter() - begun
                assert found in range(messages * size, messages * (size + 1)), f"{subject.name} read {found} bytes"
                if number:
                    seconds.setdefault(subject.name, []).append(taken)
    finally:
        spark.stop()
    return [Figure(name, taken, messages, messages * size) for name, taken in seconds.items()]


@dataclass(frozen=True)
class Held:
    """Frames in memory: bytes that begin and end with a whole one, from this place in a segment."""

    data: bytes
    segment: Segment
    position: int


def held(store: Path) -> list[Held]:
    """Return all frames of a store's topic, as much at a time as a reader takes."""
    view = aiodq.open_reader(store).topic("t").refresh()
    found = []
    for segment in view.segments:
        content = Path(segment.path).read_bytes()
        end = segment.data_end if segment.sealed else view.data_end
        at = SEGMENT_HEADER.size
        while at < end:
            data = content[at : min(at + CHUNK, end)]
            _, used, error = ArrowDecoder()(data, segment.context, position=at, limit=end)
            if error is not None:
                raise error
            found.append(Held(data[:used], segment, at))
            at += used
    return found


def decoded(chunks: Sequence[Held]) -> Iterator[int]:
    """Yield how many records each of them holds, with every checksum compared."""
    decoder = ArrowDecoder(READ)
    for one in chunks:
        limit = one.position + len(one.data)
        rows, _, _ = decoder(one.data, one.segment.context, position=one.position, limit=limit)
        yield sum(each.stop - each.first for each in rows)


def without_spark(directory: Path, messages: int, size: int, rounds: int) -> list[Figure]:
    """Decode by turns in this process, one thread, a batch at a time."""

    def batches(store: str, columns: Sequence[str] | None = None, *, verify: bool = True) -> Iterator[int]:
        topic = aiodq.open_reader(directory / store).topic("t")
        return (batch.num_rows for batch in topic.record_batches(columns=columns, verify=verify))

    def parquet(kind: str) -> Iterator[int]:
        for path in sorted((directory / kind).iterdir()):
            for batch in pq.ParquetFile(path).iter_batches(65_536, columns=list(READ), use_threads=False):
                yield batch.num_rows

    many, alone = held(directory / "many"), held(directory / "alone")
    pa.set_cpu_count(1)
    ways: dict[str, Callable[[], Iterator[int]]] = {
        f"aiodq, {TOGETHER:,} a put": lambda: batches("many"),
        f"aiodq, {TOGETHER:,} a put, columns=body, unverified": lambda: batches("many", columns=["body"], verify=False),
        "aiodq, one a put, one producer": lambda: batches("alone"),
        "aiodq, one a put, one producer, columns=body, unverified": lambda: batches(
            "alone", columns=["body"], verify=False
        ),
        f"aiodq, {TOGETHER:,} a put, decoded from memory": lambda: decoded(many),
        "aiodq, one a put, one producer, decoded from memory": lambda: decoded(alone),
        BASIS: lambda: parquet("snappy"),
        "parquet, uncompressed": lambda: parquet("none"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            found = sum(way())
            taken = time.perf_counter() - begun
            assert found == messages, f"{name} read {found} messages"
            if number:
                seconds[name].append(taken)
    return [Figure(name, taken, messages, messages * size) for name, taken in seconds.items()]


HEADER = ("read", "messages/s", "MB/s", "min - max s", f"x {BASIS}")


def rows(figures: Sequence[Figure]) -> Iterator[tuple[str, ...]]:
    """Yield a table's rows."""
    basis = next(figure.median for figure in figures if figure.subject == BASIS)
    for figure in figures:
        yield (
            figure.subject,
            f"{figure.messages / figure.median:,.0f}",
            f"{figure.bytes / figure.median / 1e6:,.0f}",
            f"{min(figure.seconds):.2f} - {max(figure.seconds):.2f}",
            f"{basis / figure.median:.2f}",
        )


def show(title: str, figures: Sequence[Figure], console: Console, *, markdown: bool) -> None:
    """Print a table."""
    if markdown:
        print(f"\n{title}\n\n| {' | '.join(HEADER)} |\n|---|--:|--:|--:|--:|")
        for row in rows(figures):
            print(f"| {' | '.join(row)} |")
        return
    table = Table(*HEADER, title=title)
    for row in rows(figures):
        table.add_row(*row)
    console.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Read with Spark, and beside it.")
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="rounds over all that is read (default: %(default)s)")
    add("--megabytes", type=float, default=200, help="bodies of each size, together (default: %(default)s)")
    add("--size", type=int, action="append", help="bytes in a body; may be repeated (default: 100, 1024)")
    add("--master", action="append", help="may be repeated; none is no Spark (default: none, local[1], local[2])")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's; may be repeated")
    add("--scale", action=argparse.BooleanOptionalAction, default=True, help="then all of benchmarks.spark_scale")
    add("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write (default: %(default)s)")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    arguments = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name, value in describe(arguments.dir.resolve(), "asyncio").items():
        print(f"{name}: {value}", file=sys.stderr)
    for size in arguments.size or (100, 1024):
        count = int(arguments.megabytes * 1e6 / size)
        with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="aiodq-bench-") as directory:
            fill(Path(directory), list(lines(count, size)))
            for master in arguments.master or ("none", "local[1]", "local[2]"):
                if master == "none":
                    figures = without_spark(Path(directory), count, size, arguments.rounds)
                else:
                    spark = start_session(master, dict(setting.split("=", 1) for setting in arguments.conf))
                    figures = with_spark(spark, Path(directory), count, size, arguments.rounds)
                title = f"{'one thread, no Spark' if master == 'none' else master}, {count:,} messages of {size:,} B"
                show(title, figures, console, markdown=arguments.markdown)
    if arguments.scale:
        return spark_scale.main([*spark_scale.WHAT, "--rounds", str(arguments.rounds), "--dir", str(arguments.dir)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
