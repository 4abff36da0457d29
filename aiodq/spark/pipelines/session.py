"""A Spark session that finds its Java, and the format `"aiodq"`, by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from aiodq.errors import StoreNotFoundError
from aiodq.spark.java import prepare
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import read_options
from aiodq.spark.pipelines.places import some
from aiodq.spark.planning import topics_of
from aiodq.spark.source import AiodqDataSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

__all__ = ["check_stores", "load", "loss_option", "start_session", "topics_option", "use_here"]


def topics_option(topics: Sequence[str] | None) -> dict[str, str]:
    """Return the option that names these topics; no option for all topics.

    Raises:
        InvalidOptionError: it is no list, or an empty one.
    """
    return {} if topics is None else {"topics": ",".join(some("topics", topics))}


def loss_option(*, lossy: bool) -> dict[str, str]:
    """Return the option that says whether deleted or damaged messages are left out, or are an error."""
    return {"failOnDataLoss": "false" if lossy else "true"}


def check_stores(stores: str | os.PathLike[str], topics: Sequence[str] | None = None, *, coming: bool = False) -> None:
    """Make sure that what a job reads exists; before Java starts, which takes seconds.

    Args:
        stores: a store's directory, several separated by commas, or a pattern.
        topics: names or patterns; None: all.
        coming: whether patterns may match only topics that do not exist yet.

    Raises:
        InvalidOptionError: no store matches the pattern; or `topics` is no list.
        StoreNotFoundError: there is no such store, no topic of a name given in full, or none that matches.
        NotAStoreError: a directory holds something else.
    """
    options = read_options({"path": os.fspath(stores), **topics_option(topics)})
    found = [topic for store in options.stores for topic in topics_of(AnyFileSystem(), store, options.topics)]
    if topics and not found and not coming:
        raise StoreNotFoundError(f"no topic matches {', '.join(topics)}", ", ".join(options.stores))


def start_session(master: str = "local[*]", conf: Mapping[str, str] | None = None, name: str = "aiodq") -> SparkSession:
    """Return the session of this process, started if there is none. Blocking.

    On a cluster, the workers need aiodq with its extra `spark`, and a file system with the stores under the same paths.

    Args:
        master: as in Spark: `local[*]` for all cores of this machine, `spark://host:7077`, `yarn`.
        conf: settings of Spark; they override those made here.
        name: the name of the job on Spark's pages.

    Raises:
        MissingExtraError: there is no Java.
    """
    prepare(master, os.environ)
    builder = SparkSession.builder.master(master).appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        **(conf or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(AiodqDataSource)
    return session


def use_here(spark: SparkSession) -> None:
    """Let this thread write with a session, even if another thread started it.

    Spark looks for a data source written in Python in the session that its own thread used last. The cheapest way to
    give a thread a session is to create a DataFrame without rows.
    """
    spark.createDataFrame([], "nothing INT")


def load(spark: SparkSession, stores: list[str], **options: str) -> DataFrame:
    """Return the messages of stores, as they are now."""
    return spark.read.format("aiodq").options(**options).load(stores)
