"""Lets Spark find the format `"aiodq"` by itself: it looks for a `DefaultSource` in every module named `pyspark_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


def _found() -> type[DataSource]:
    try:
        from aiodq.spark.source import AiodqDataSource  # noqa: PLC0415 - what raises is caught
    except MissingExtraError as error:
        # Raised here, it would be lost, and Spark would say that there is no format of this name.
        from pyspark_aiodq.refusal import refusing  # noqa: PLC0415 - for this one case

        return refusing(str(error))
    return AiodqDataSource


DefaultSource = _found()
