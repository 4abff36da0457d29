"""A format `"aiodq"` that only tells why it does not work here. It needs no more of pyspark than 4.0 has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from aiodq.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["refusing"]


def refusing(reason: str) -> type[DataSource]:
    """Return a source that fails with this reason, whatever is asked of it."""

    class Refusing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "aiodq"

        def schema(self) -> NoReturn:
            raise MissingExtraError(reason)

        # Where the user gives a schema, nobody asks for one.
        def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002 - Spark's
            raise MissingExtraError(reason)

        def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802 - Spark's
            raise MissingExtraError(reason)

        def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, FBT001 - Spark's
            raise MissingExtraError(reason)

        def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, FBT001, N802 - Spark's
            raise MissingExtraError(reason)

    return Refusing
