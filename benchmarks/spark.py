"""Read the same messages with Spark from aiodq, Parquet, text and binary files: `python -m benchmarks.spark --help`."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import aiodq
from aiodq.spark.pipelines import start_session
from benchmarks.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

TOGETHER = 10_000
"""Messages in one put, where it is not one."""
FILES = 8
"""So many Parquet, text or binary files are made of the messages, so that every core has its own to read."""
BASIS = "parquet, snappy"
READ = ("offset", "timestamp", "body")
"""The columns that a query needs."""


@dataclass(frozen=True)
class Subject:
    """Something that can be read: its name, how, and which of its columns holds the bodies."""

    name: str
    load: Callable[[SparkSession], DataFrame]
    body: str = "body"
    others: bool = True

    def read(self, spark: SparkSession) -> int:
        """Read every body, and time and offset where there are any; return the bodies' bytes."""
        sums = [f"sum(length({self.body}))", *(["max(offset)", "max(timestamp)"] if self.others else [])]
        return int(self.load(spark).selectExpr(*sums).collect()[0][0])


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


def lines(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """Yield events as they are in logs: JSON of about one size, half of it alike."""
    rng = random.Random(seed)
    for number in range(count):
        head = f'{{"id":{number},"user":"u{rng.randrange(10_000)}","action":"{rng.choice(("view", "buy", "back"))}"'
        yield f'{head},"note":"{rng.randbytes(size).hex()}'[: size - 2].encode() + b'"}'


def fill(directory: Path, bodies: Sequence[bytes]) -> None:
    """Store the same messages in every way."""
    asyncio.run(_fill_store(directory / "many", bodies, TOGETHER))
    asyncio.run(_fill_store(directory / "single", bodies, 1))
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


async def _fill_store(path: Path, bodies: Sequence[bytes], together: int) -> None:
    options = aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep"))
    async with aiodq.open(path, options) as store:
        topic = store.topic("t")
        if together > 1:
            for at in range(0, len(bodies), together):
                await topic.put_many(bodies[at : at + together])
            return
        for at in range(0, len(bodies), 1000):
            await asyncio.gather(*map(topic.put, bodies[at : at + 1000]))


def subjects(directory: Path) -> list[Subject]:
    """Return all that can be read there."""

    def aiodq_of(store: str, **options: str) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.read.format("aiodq").options(**options).load(str(directory / store))

    def files(kind: str, name: str) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: spark.read.format(kind).load(str(directory / name))

    columns = ",".join(READ)
    return [
        Subject(f"aiodq, {TOGETHER:,} a put", aiodq_of("many")),
        Subject(f"aiodq, {TOGETHER:,} a put, columns={columns}", aiodq_of("many", columns=columns)),
        Subject("aiodq, one a put", aiodq_of("single")),
        Subject(f"aiodq, one a put, columns={columns}", aiodq_of("single", columns=columns)),
        Subject(BASIS, files("parquet", "snappy")),
        Subject("parquet, uncompressed", files("parquet", "none")),
        Subject("text", files("text", "text"), "value", others=False),
        Subject("binaryFile, whole files", files("binaryFile", "binary"), "content", others=False),
    ]


def with_spark(master: str, directory: Path, messages: int, size: int, rounds: int) -> list[Figure]:
    """Read everything by turns, once to warm up and then so many rounds."""
    spark = start_session(master)
    try:
        seconds: dict[str, list[float]] = {}
        at_hand = subjects(directory)
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


def without_spark(directory: Path, messages: int, size: int, rounds: int) -> list[Figure]:
    """Decode by turns in this process, one thread, a batch at a time."""

    def batches(store: str, columns: Sequence[str] | None = None, *, verify: bool = True) -> Iterable[Any]:
        topic = aiodq.open_reader(directory / store).topic("t")
        return topic.record_batches(columns=columns, verify=verify)

    def parquet(kind: str) -> Iterator[Any]:
        for path in sorted((directory / kind).iterdir()):
            yield from pq.ParquetFile(path).iter_batches(65_536, columns=list(READ), use_threads=False)

    pa.set_cpu_count(1)
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        f"aiodq, {TOGETHER:,} a put": lambda: batches("many"),
        f"aiodq, {TOGETHER:,} a put, columns=body, unverified": lambda: batches("many", columns=["body"], verify=False),
        "aiodq, one a put": lambda: batches("single"),
        "aiodq, one a put, columns=body, unverified": lambda: batches("single", columns=["body"], verify=False),
        BASIS: lambda: parquet("snappy"),
        "parquet, uncompressed": lambda: parquet("none"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            found = sum(batch.num_rows for batch in way())
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
                    figures = with_spark(master, Path(directory), count, size, arguments.rounds)
                title = f"{'one thread, no Spark' if master == 'none' else master}, {count:,} messages of {size:,} B"
                show(title, figures, console, markdown=arguments.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
