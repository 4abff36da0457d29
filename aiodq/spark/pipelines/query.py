"""SQL over the live backlog."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import batch_options
from aiodq.spark.pipelines.session import load
from aiodq.spark.planning import read_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["prepare_views", "query"]

_TEXT: Final = "make_valid_utf8(CAST(body AS STRING))"
"""The body as text; bytes that are not UTF-8 become U+FFFD. With `decode`, they would fail the whole query."""

_QUERY: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:\(|(?:select|with|from|values|table)\b)", re.DOTALL | re.IGNORECASE
)
"""What a query begins with, after comments: anything else is a command, which Spark runs at once."""

_OF_TOPICS: Final = frozenset({"topic", "topics", "subscribepattern"})
_BY_NAMES: Final = ("identifier", "immediate", "show")
"""Words of SQL by which views may be meant whose names are not in it: `IDENTIFIER('or' || 'ders')`, `SHOW VIEWS`."""
_MADE: Final[WeakKeyDictionary[SparkSession, set[str]]] = WeakKeyDictionary()
"""The views of topics that there are in a session."""
_BY_TOPIC: Final = frozenset({"startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp"})


def prepare_views(spark: SparkSession, stores: str | os.PathLike[str], **options: str) -> list[str]:
    """Create views of the messages as they are now: `messages` for all, and one by topic. Return their names. Blocking.

    A view has the columns `topic`, `offset`, `timestamp`, `tag`, `key`, `headers` and `body`, and `text`, which is the
    body as UTF-8; other bytes become U+FFFD. In SQL, write a topic's name with `.` or `-` in it between backquotes.
    Names of views ignore case: topics whose names differ only in case, and a topic called `messages`, are only in the
    view of all. Views that an earlier call made by the same `spark` are dropped: they may be of another store.

    Args:
        spark: the session.
        stores: a store's directory, several separated by commas, or a pattern.
        options: those of the data source; the topics that they select get views.

    Raises:
        PySparkException: Spark's, with the cause in its text.
        InvalidOptionError: an option is unknown, or has an invalid value.
        StoreNotFoundError: there is no such store, or no topic of a name that was given in full.
    """
    return [*_prepare(spark, stores, options, lambda _: True)]


def _prepare(
    spark: SparkSession, stores: str | os.PathLike[str], options: Mapping[str, str], is_used: Callable[[str], bool]
) -> dict[str, DataFrame]:
    """Make the view of all, and those of topics that are used; return what each shows."""
    fs = AnyFileSystem()
    wanted = batch_options({"path": os.fspath(stores), **options})
    topics: dict[str, list[str]] = {}
    for store in wanted.stores:
        for topic in read_topics(fs, store, wanted):
            topics.setdefault(topic, []).append(store)
    names = Counter(name.lower() for name in ["messages", *topics])
    views = sorted(topic for topic in topics if names[topic.lower()] == 1 and is_used(topic))
    for view in _MADE.get(spark, set()) - set(views):
        spark.catalog.dropTempView(view)
    _MADE[spark] = set(views)
    frames = {"messages": load(spark, list(wanted.stores), **options)}
    for topic in views:
        frames[topic] = load(spark, topics[topic], topic=topic, **_of_topic(topic, options))
    shown = {name: _with_text(frame) for name, frame in frames.items()}
    for name, frame in shown.items():
        frame.createOrReplaceTempView(f"`{name}`")
    return shown


def _of_topic(topic: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for one topic, without those that select topics or concern others."""
    found = {name: value for name, value in options.items() if name.lower() not in _OF_TOPICS}
    for name in [name for name in found if name.lower() in _BY_TOPIC and found[name].lstrip().startswith("{")]:
        by_topic = json.loads(found.pop(name))
        if topic in by_topic:
            found[name] = str(by_topic[topic])
    return found


def _with_text(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", f"{_TEXT} AS text") if "body" in frame.columns else frame


def query(spark: SparkSession, stores: str | os.PathLike[str], sql: str, **options: str) -> DataFrame:
    """Return the result of a query over the views of `prepare_views`. Data is read when the result is used. Blocking.

    Of the views of topics it creates those whose names occur in the query: each takes Spark as long as many messages.

    Raises:
        AnalysisException: Spark's: the query is invalid.
        StoreNotFoundError: there is no such store.
    """
    text = sql.lower()
    every = any(word in text for word in _BY_NAMES)
    frames = _prepare(spark, stores, options, lambda topic: every or topic.lower() in text)
    # Over Spark Connect a name stands for the view of that name when the result is used, and by then it may be another.
    if ".connect." in type(spark).__module__ and _QUERY.match(sql):
        with suppress(PySparkException):  # which Spark raises again of what the user wrote
            return _bound(spark, sql, {name: frame for name, frame in frames.items() if name.lower() in text})
    return spark.sql(sql)


def _bound(spark: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of a query in which names stand for these frames, whatever views there are by then."""
    names = [f"`{name}` AS (TABLE {{frame{number}}})" for number, name in enumerate(frames)]
    query = sql.rstrip().removesuffix(";").replace("{", "{{").replace("}", "}}")
    given: dict[str, Any] = {f"frame{number}": frame for number, frame in enumerate(frames.values())}
    return spark.sql(f"WITH {', '.join(names)} (\n{query}\n)", **given) if frames else spark.sql(sql)
