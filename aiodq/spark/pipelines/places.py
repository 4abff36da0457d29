"""The directories of archives, and the topics in them."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as f

from aiodq.errors import InvalidOptionError, StoreNotFoundError
from aiodq.spark.objects import is_url, local_path
from aiodq.spark.options import read_options
from aiodq.spark.planning import some_of
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import LOCK_NAME
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.state.json_file import taking_apart
from aiodq.storage.store_layout import refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "ARCHIVED",
    "check_archived",
    "in_order",
    "one_store",
    "refuse_moved",
    "refuse_store",
    "some",
    "target_path",
    "topic_column",
]

ARCHIVED: Final = (
    "topic STRING, offset BIGINT, timestamp TIMESTAMP_LTZ, tag STRING, key BINARY, headers MAP<STRING, STRING>, "
    "body BINARY, topic_uuid STRING"
)
"""The columns of an archive; it also has a date. Spark gives null for one that an archive does not have."""
_LOG = "_spark_metadata"
"""The directory in which Spark records which files count, with their full paths."""
_TOPIC = "topic="
_OF_NULLS = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for the directory of rows whose topic is null. There are none, but a topic may have this name."""


def target_path(target: str | os.PathLike[str]) -> str:
    """Return the full path of a directory for an archive.

    Raises:
        InvalidOptionError: it is a URL, empty, a file, or a store.
        NotAStoreError: it lies among a store's own files, such as a topic's, which are removed with the topic.
    """
    path = local_path(os.fspath(target))
    if not path:
        raise InvalidOptionError("the path of the archive is empty: name a directory for its files")
    if is_url(path):
        raise InvalidOptionError(
            f"{path!r} is no directory: Parquet is archived on a file system that the workers see; to object storage "
            f"go sealed segments (--segments, aiodq.spark.pipelines.ship)"
        )
    if os.path.lexists(path) and not os.path.isdir(path):
        raise InvalidOptionError(f"{path} is no directory: name one for the files of the archive")
    refuse_store(path, "name a directory of its own for the files of the archive")
    refuse_inside_store(OsFileSystem(), os.path.realpath(path))
    return os.path.abspath(path)


def one_store(job: str, store: str | os.PathLike[str]) -> str:
    """Return the full path of the store that a job is for.

    Raises:
        InvalidOptionError: several stores are named.
    """
    stores = read_options({"path": os.fspath(store)}).stores
    if len(stores) > 1:
        raise InvalidOptionError(f"{job} is for one store, not for {len(stores)}: {', '.join(stores)}")
    return stores[0]


def refuse_store(path: str, instead: str) -> None:
    """Make sure that a directory for an archive is not a store.

    Raises:
        InvalidOptionError: it is.
    """
    if os.path.lexists(os.path.join(path, LOCK_NAME)):
        raise InvalidOptionError(f"{path} is a store: {instead}")


def some(what: str, names: Sequence[str] | None) -> list[str]:
    """Return the names that a caller has given; an empty list for None, which means all.

    Raises:
        InvalidOptionError: it is a single text, whose letters would be taken for names; or it is empty.
    """
    if isinstance(names, str):
        raise InvalidOptionError(f"{what} are several names: write {what}=[{names!r}]")
    if names is not None and not names:
        raise InvalidOptionError(f"{what} is empty: leave it out for all of them")
    return list(names or ())


def refuse_moved(archive: str) -> None:
    """Make sure that an archive was not moved: Spark would look for its files at their old paths.

    Raises:
        InvalidOptionError: it was moved or copied.
        CorruptionError: Spark's log of its files cannot be read.
        StorageError: as mapped from the system's error.
    """
    log = os.path.join(archive, _LOG)
    with os_errors(log):
        names = os.listdir(log) if os.path.isdir(log) else []
    for name in sorted(name for name in names if name.partition(".")[0].isdecimal()):
        path = os.path.join(log, name)
        with os_errors(path), open(path, "rb") as file:
            lines = file.read().splitlines()[1:]
        for line in lines[:1]:
            _refuse_elsewhere(archive, line, path)
            return


def _refuse_elsewhere(archive: str, line: bytes, log: str) -> None:
    with taking_apart(log, "Spark's log of the archive's files"):
        url = urlsplit(str(json.loads(line)["path"]))
    place = _apart(unquote(url.path))[0]
    if url.scheme in {"", "file"} and os.path.realpath(place) != os.path.realpath(archive):
        raise InvalidOptionError(
            f"{archive} was moved or copied: it was written as {place}, where Spark looks for its files. Put it, or a "
            f"symbolic link to it, there again, and name that"
        )


def _apart(file: str) -> tuple[str, str | None]:
    """Return the archive that a file is in, and its topic; the whole path and None if no directory names one.

    The last such directory does: the archive's own path may have one, too, such as `/lake/topic=orders`.
    """
    archive, found, rest = file.rpartition(f"/{_TOPIC}")
    return (archive, rest.partition("/")[0]) if found else (file, None)


def topic_column() -> Column:
    """Return a column of the topics of archived rows, taken from their directories."""
    return f.coalesce(f.col("topic"), f.lit(_OF_NULLS))


def check_archived(rows: DataFrame, source: str, topics: Sequence[str] | None) -> DataFrame:
    """Return the rows to replay with their topics; make sure, without a Spark job, that there are any. Blocking.

    Raises:
        StoreNotFoundError: there are no files; or, if each topic has a directory, none for a topic.
    """
    files = [unquote(unquote(file)) for file in rows.inputFiles()]
    if not files:
        raise StoreNotFoundError("there is nothing to replay: no file that archive has written", source)
    there = {topic for _, topic in map(_apart, files) if topic is not None}
    for topic in topics or ():
        if there and topic not in there:
            raise StoreNotFoundError(
                f"there is no topic {topic!r} in the archive; there are: {some_of(sorted(there))}", source
            )
    return rows.withColumn("topic", topic_column()) if _OF_NULLS in there else rows


def in_order(rows: DataFrame, topics: Sequence[str]) -> list[Column]:
    """Return what to sort the archived rows of these topics, or of all, by: topic and offset. It is one Spark job.

    A topic that was deleted and created again has the same offsets: topics of one name come one after the other, the
    one whose first message is older before. Offsets that come twice in one topic are of messages that a power cut took
    after they were archived, and of later ones; only there time decides, as it may have been set back.
    """
    rows = rows.where(f.col("topic").isin(topics)) if topics else rows
    found = (
        rows.groupBy("topic", "topic_uuid")
        .agg(
            f.min(f.unix_micros("timestamp")).alias("began"),
            f.count("offset").alias("rows"),
            (f.max("offset") - f.min("offset") + 1).alias("offsets"),
        )
        .collect()
    )
    topic = f.coalesce(f.col("topic_uuid"), f.col("topic"))
    names = Counter(one.topic for one in found)
    again = sorted((one for one in found if names[one.topic] > 1), key=lambda one: one.began or 0)
    twice = [one.topic_uuid or one.topic for one in found if one["rows"] > (one.offsets or 0)]
    order = [f.col("topic")]
    if again:
        turns = [f.lit(part) for turn, one in enumerate(again) for part in (one.topic_uuid or one.topic, turn)]
        order.append(f.try_element_at(f.create_map(*turns), topic))
    if twice:
        order.append(f.when(topic.isin(twice), f.col("timestamp")))
    return [*order, f.col("offset")]
