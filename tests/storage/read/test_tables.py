"""What reads Arrow reads a live backlog: pyarrow, pandas, Polars and DuckDB, each by its own front door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest

import aiodq

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Summary = list[tuple[str | None, int, int]]


def by_pyarrow(table: Any) -> Summary:
    table = table.append_column("size", pc.binary_length(table["body"]))
    found = table.group_by("tag").aggregate([("offset", "count"), ("size", "sum")]).to_pylist()
    return [(row["tag"], row["offset_count"], row["size_sum"]) for row in found]


def by_pandas(table: Any) -> Summary:
    frame = table.to_pandas()
    frame["size"] = frame["body"].map(len)
    found = frame.groupby("tag", dropna=False).agg({"offset": "count", "size": "sum"})
    sums = zip(found.index, found["offset"], found["size"], strict=True)
    return [(tag if isinstance(tag, str) else None, int(count), int(size)) for tag, count, size in sums]


def by_polars(table: Any) -> Summary:
    found = (
        pl.DataFrame(table)
        .group_by("tag")
        .agg(pl.col("offset").count(), pl.col("body").bin.size().sum().cast(pl.Int64).alias("size"))
    )
    return found.rows()


def by_duckdb(table: Any) -> Summary:
    found = duckdb.from_arrow(table).aggregate("tag, count(*), sum(octet_length(body))")
    return [(tag, count, int(size)) for tag, count, size in found.fetchall()]


@pytest.mark.parametrize("summary", [by_pyarrow, by_pandas, by_polars, by_duckdb])
async def test_a_live_backlog(tmp_path: Path, summary: Callable[[Any], Summary]) -> None:
    async with aiodq.open(tmp_path) as store:
        topic, reader = store.topic("t"), None
        for rounds in range(1, 4):
            await topic.put(b"alone")
            await topic.put_many([b"a", aiodq.Draft(b"bb", tag="x", key=b"k", headers={"h": "1"})] * 1000)
            reader = reader or aiodq.open_reader(tmp_path).topic("t")
            expected = {(None, 1001 * rounds, 1005 * rounds), ("x", 1000 * rounds, 2000 * rounds)}
            assert set(summary(reader.to_arrow())) == expected


async def test_keys_headers_and_times(tmp_path: Path) -> None:
    async with aiodq.open(tmp_path) as store:
        await store.topic("t").put_many([b"a", aiodq.Draft(b"b", key=b"k", headers={"h": "1"})])
        messages = list(aiodq.open_reader(tmp_path).topic("t").scan())
        table = aiodq.open_reader(tmp_path).topic("t").to_arrow()
    rows = duckdb.from_arrow(table).project('"key", headers, epoch_us("timestamp")').fetchall()
    times = [round(message.timestamp.timestamp() * 1e6) for message in messages]
    assert rows == [(None, None, times[0]), (b"k", {"h": "1"}, times[1])]
    assert pl.DataFrame(table)["timestamp"].dt.epoch("us").to_list() == times
