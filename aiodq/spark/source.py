"""The data source of the format `"aiodq"`: `spark.read.format("aiodq").option("path", STORE).load()`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from aiodq.errors import AiodqError, InvalidOptionError
from aiodq.spark.objects import AnyFileSystem, check_outside_stores
from aiodq.spark.options import batch_options, read_options, stream_options, write_options
from aiodq.spark.packing import plan_tasks
from aiodq.spark.reading import UUID, Partition, read_partition
from aiodq.spark.stream.streaming import StreamReader
from aiodq.spark.writing.rows import check_schema
from aiodq.spark.writing.writers import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from aiodq.spark.options import ReadOptions, WriteOptions

__all__ = ["AiodqDataSource"]

_TYPES: Final = {
    "topic": "STRING",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP_LTZ",  # in a session, TIMESTAMP may be TIMESTAMP_NTZ
    "tag": "STRING",
    "key": "BINARY",
    "headers": "MAP<STRING, STRING>",
    "body": "BINARY",
}
_IN_SCHEMAS: Final = {**_TYPES, UUID: "STRING"}
"""The columns that a schema of the user's may have."""


class AiodqDataSource(DataSource):
    """Topics as rows. Spark makes it in several processes, so making it does no work."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "aiodq"

    def schema(self) -> str:
        """Return the columns that the option `columns` names, all of them by default.

        Raises:
            InvalidOptionError: an option is unknown, or has a value that it cannot have.
        """
        return ", ".join(f"{name} {_TYPES[name]}" for name in read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the messages that there are now, with the columns of a schema.

        Raises:
            InvalidOptionError: an option is unknown, or has a value that it cannot have; or there is no such column.
        """
        return _Reader(_asked(batch_options(self.options), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return a reader of present and future messages, with the columns of a schema.

        If an option is unknown or has an invalid value, or a column is unknown, the first call of the reader raises
        `InvalidOptionError`.
        """
        try:
            return StreamReader(_asked(stream_options(self.options), schema))
        except AiodqError as error:
            return _RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return a writer that appends all of its rows or none.

        Raises:
            InvalidOptionError: as for `write_options`; or the mode is not `append`.
            InvalidMessageError: a column is missing, unknown, or has a type that it cannot have.
        """
        if overwrite:
            raise InvalidOptionError("a topic is appended to: write with mode('append')")
        return BatchWriter(self._checked(schema, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - likewise
        """Return a writer that appends each batch exactly once, all of it or nothing.

        Raises:
            InvalidOptionError: as for `write_options`; or the output mode is not `append`.
            InvalidMessageError: a column is missing, unknown, or has a type that it cannot have.
            NotAStoreError: the checkpoint lies among a store's own files, such as a topic's.
        """
        if overwrite:
            raise InvalidOptionError("a topic is appended to: write with outputMode('append')")
        if "checkpointLocation" in self.options:
            check_outside_stores(self.options["checkpointLocation"])
        return StreamWriter(self._checked(schema, stream=True))

    def _checked(self, schema: StructType, *, stream: bool) -> WriteOptions:
        options = write_options(self.options, stream=stream)
        check_schema(schema, options)
        return options


def _asked(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Return options with the columns of a schema, in its order. It is that of `schema`, or one that the user gave.

    Raises:
        InvalidOptionError: a column is unknown, comes twice, has another type, or is `NOT NULL`.
    """
    types = {name: kind.lower().replace(" ", "").removesuffix("_ltz") for name, kind in _IN_SCHEMAS.items()}
    found = [(c.name, c.dataType.simpleString() + ("" if c.nullable else " not null")) for c in schema]
    wrong = [
        f"{name} {kind}"
        for number, (name, kind) in enumerate(found)
        if types.get(name) != kind or (name, kind) in found[:number]
    ]
    if wrong or not found:
        columns = ", ".join(f"{name} {kind}" for name, kind in _IN_SCHEMAS.items())
        raise InvalidOptionError(
            f"a schema names some of the columns {columns}, not {wrong[0] if wrong else 'none'}: leave it out, or cast "
            f"what was read"
        )
    return replace(options, columns=tuple(name for name, _ in found))


class _RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that raises the error of its options.

    If `streamReader` itself raises, pyspark 4.3 ends with an UnboundLocalError of its own.
    """

    def __init__(self, error: AiodqError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 - Spark's names, here and below
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        raise self._error

    def initialOffset(self) -> NoReturn:  # noqa: N802
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:  # noqa: ARG002, N802 - see above; it never gets so far
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002 - likewise
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002 - likewise
        raise self._error


class _Reader(DataSourceReader):
    """A reader of a snapshot: messages put after `partitions` was called are not in it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [Partition(splits) for splits in plan_tasks(AnyFileSystem(), self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return read_partition(AnyFileSystem(), partition, self._options)
