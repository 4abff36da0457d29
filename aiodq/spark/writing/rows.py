"""Rows as messages: which columns a message may have, and the columns of a batch of rows."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiodq.engine.batch.validation import LONGEST_KEY, LONGEST_TAG, check_headers, check_labels
from aiodq.errors import InvalidMessageError
from aiodq.format.columns import Columns
from aiodq.format.vectorized.encode import ArrowColumns
from aiodq.spark.options import check_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from aiodq.spark.options import WriteOptions

__all__ = ["check_schema", "columns_by_topic"]

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "key": ("binary", "string"),
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
}
_Header = tuple[str | None, str | None] | dict[str, Any]
_READ_ONLY: Final = frozenset({"offset", "timestamp", "topic_uuid"})
"""Columns of messages that were read; the topic assigns new values when they are written."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Make sure that rows of this schema can be messages.

    Raises:
        InvalidMessageError: a column is missing, unknown, or has a type that it cannot have.
    """
    types: dict[str, str] = {}
    for column in schema:
        name, found = column.name, column.dataType.simpleString()
        if name in types:
            raise InvalidMessageError(f"there are two columns {name!r}: a message has one; drop or rename the other")
        types[name] = found
        if name in _READ_ONLY:
            continue
        if name not in _TYPES:
            raise InvalidMessageError(
                f"there is no place for the column {name!r} in a message{_meant(name)}; there are {', '.join(_TYPES)}"
            )
        if found not in _TYPES[name]:
            raise InvalidMessageError(
                f"the column {name!r} is {' or '.join(_TYPES[name])}, not {found}: write {_as_written(name, found)}"
            )
    if "body" not in types:
        raise InvalidMessageError("the column 'body' is missing: the bytes or the text of each message")
    if "topic" not in types and options.topic is None:
        raise InvalidMessageError("whose messages are they? Give the option 'topic', or a column of that name")


def _meant(name: str) -> str:
    """Return advice about an unknown column: the one that may be meant. Spark ignores case in names; this does not."""
    if name.lower() in _TYPES:
        return f": it is called {name.lower()!r}, in small letters"
    return " (Kafka's value is the body here)" if name == "value" else ""


def _as_written(name: str, found: str) -> str:
    """Return the expression that converts a column of another type, for an error."""
    if name == "headers":
        if found.lower().startswith("array<struct<value:"):  # a cast goes by position
            return "transform(headers, h -> struct(h.key AS key, CAST(h.value AS BINARY) AS value))"
        if found.startswith(("array<struct<", "array<void>")):
            return "CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
        return (
            "CAST(headers AS MAP<STRING, STRING>)" if found.startswith(("map<", "void")) else "map('name', 'value', …)"
        )
    return f"to_json({name})" if found.startswith(("struct<", "array<", "map<")) else f"CAST({name} AS STRING)"


def columns_by_topic(
    batch: pa.RecordBatch, into: str | None, repeated: str | None = None
) -> Iterator[tuple[str, pa.BinaryArray, Columns | ArrowColumns]]:
    """Yield a batch's rows by topic, in their order: the bodies of each, and all that is to be put.

    Args:
        batch: the rows.
        into: the topic of all rows, whatever their column says, as with Kafka's sink; None: each names its own. Rows
            that were read name the topic that they come from, and should not go back there.
        repeated: which value of a repeated header counts, "first" or "last"; None: a repeated header is an error.

    Raises:
        InvalidMessageError: a row has no body, no topic, or an invalid topic or headers.
    """
    if not batch.num_rows:
        return
    names = set(batch.schema.names)
    if into is not None:
        check_topic(into)
        yield into, *_columns(batch, names, repeated)
        return
    column = batch.column("topic").dictionary_encode(null_encoding="encode")
    topics, numbers = _values("topic", column.dictionary), column.indices.to_numpy()
    if len(topics) > 1:
        # Once for all topics: to look through the rows for each of them takes much longer where there are many.
        batch = batch.take(pa.array(np.argsort(numbers, kind="stable")))
    start = 0
    for topic, count in zip(topics, np.bincount(numbers).tolist(), strict=True):
        if topic is None:
            raise InvalidMessageError(
                "a row's topic is null: fill that column, or say by the option 'topic' where all rows go"
            )
        check_topic(topic)
        yield topic, *_columns(batch.slice(start, count), names, repeated)
        start += count


def _columns(
    rows: pa.RecordBatch, names: set[str], repeated: str | None
) -> tuple[pa.BinaryArray, Columns | ArrowColumns]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise InvalidMessageError("a row's body is null: a message has at least an empty one")
    bodies = bodies.cast(pa.binary())
    tags, keys, headers = (
        rows.column(name) if name in names and rows.column(name).null_count < len(rows) else None
        for name in ("tag", "key", "headers")
    )
    keys = None if keys is None else keys.cast(pa.binary())
    if headers is None and _are_labels(tags, LONGEST_TAG) and _are_labels(keys, LONGEST_KEY):
        return bodies, ArrowColumns(bodies, tags, keys)
    columns = Columns(bodies.to_pylist())
    columns.tags = None if tags is None else _values("tag", tags)
    columns.keys = None if keys is None else _values("key", keys)
    columns.headers = None if headers is None else [_headers(row, repeated) for row in _values("headers", headers)]
    for tag, key in zip_longest(columns.tags or (), columns.keys or ()):
        check_labels(tag, key)
    return bodies, columns


def _are_labels(column: pa.Array | None, longest: int) -> bool:
    """Return whether messages may have these tags or keys: text that is UTF-8, and none of it too long."""
    if column is None:
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return bool(pc.max(pc.binary_length(column)).as_py() <= longest)


def _headers(row: Sequence[_Header | None] | None, repeated: str | None) -> Mapping[str, str]:
    """Return a row's headers, from a map or from the format of Spark's Kafka source."""
    headers: dict[str, str] = {}
    for header in row or ():
        if header is None:
            raise InvalidMessageError("one of a row's headers is null: leave it out of the array")
        name, value = (header["key"], header["value"]) if isinstance(header, dict) else header
        if name is None or value is None:
            raise InvalidMessageError(f"{'the name' if name is None else 'the value'} of a row's header is null")
        if name in headers and repeated is None:
            raise InvalidMessageError(
                f"a row has the header {name!r} twice: say which one counts by repeatedHeaders=first or last"
            )
        if name not in headers or repeated == "last":
            headers[name] = _text(name, value)
    return check_headers(headers)


def _text(name: str, value: str | bytes) -> str:
    """Return a header's value as text.

    Raises:
        InvalidMessageError: it is not UTF-8.
    """
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as cause:
        raise InvalidMessageError(f"the value of a row's header {name!r} is no UTF-8: {cause}") from cause


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column's values. Strings of Spark may hold any bytes.

    Raises:
        InvalidMessageError: a text is not UTF-8.
    """
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as cause:
        raise InvalidMessageError(
            f"the column {name!r} has text in it that is no UTF-8 ({cause}): write make_valid_utf8(…) of it"
        ) from cause
    return values
