"""Runs work in Spark tasks that read by themselves, so that only their results are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spread"]

T = TypeVar("T")


def spread(spark: SparkSession, work: Sequence[T], task: Callable[[T], Iterator[Any]], schema: str) -> DataFrame:
    """Return the rows of the `pyarrow.RecordBatch` objects that a function yields; each piece of work is one task.

    The rows come in the order of the work.
    """

    def do_each(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from task(work[number])

    return spark.range(0, len(work), numPartitions=max(len(work), 1)).mapInArrow(do_each, schema)
