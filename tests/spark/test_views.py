"""Which views a query is asked over, and what of the options is said of each. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import aiodq
from aiodq.spark.pipelines import prepare_views, query
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Made = dict[str, tuple[list[str], dict[str, str]]]
"""By view: the stores that it reads, and the options."""


class Session:
    """Takes any query, and drops views."""

    catalog = property(lambda self: self)

    def __init__(self) -> None:
        self.made: Made = {}

    def dropTempView(self, name: str) -> None:  # noqa: N802 - Spark's
        """Drop a view."""
        self.made.pop(name, None)

    def sql(self, text: str) -> str:
        """Return the query."""
        return text


class Frame:
    """What is read, on its way to a view."""

    def __init__(self, made: Made, stores: list[str], options: Mapping[str, str]) -> None:
        self._made, self._stores, self._options = made, stores, options
        self.columns = options.get("columns", "offset,body").split(",")

    def selectExpr(self, *_: str) -> Frame:  # noqa: N802 - Spark's, here and below
        assert "body" in self.columns
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        self._made[name.strip("`")] = self._stores, dict(self._options)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what will have been made of views."""
    found: Made = {}

    def load(_: object, stores: list[str], **options: str) -> Frame:
        return Frame(found, stores, options)

    monkeypatch.setitem(query.__globals__, "load", load)
    monkeypatch.setattr(SESSION, "made", found)
    return found


SESSION = Session()
SPARK = cast("Any", SESSION)


async def a_store(path: Path, *topics: str) -> str:
    for topic in topics:
        await fill(path, topic, rounds=1)
    return str(path)


async def test_each_topic_whose_name_is_its_own_is_a_view_of_the_stores_that_have_it(
    tmp_path: Path, made: Made
) -> None:
    one = await a_store(tmp_path / "one", "orders", "mail", "Messages", "ODD")
    two = await a_store(tmp_path / "two", "Orders", "mail", "a.b-c")
    assert prepare_views(SPARK, f"{one},{two}") == ["messages", "ODD", "a.b-c", "mail"]
    assert {view: stores for view, (stores, _) in made.items()} == {
        "messages": [one, two],
        "ODD": [one],
        "a.b-c": [two],
        "mail": [one, two],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TOPICS": "orders,m*", "verify": "none"}, {"verify": "none"}),
        ({"columns": "offset"}, {"columns": "offset"}),
        ({"subscribePattern": "orders|mail"}, {}),
        ({"StartingOffsets": ' {"orders": 3, "mail": "latest"}'}, {"StartingOffsets": "3"}),
        ({"endingOffsets": '{"mail": 1}'}, {}),
        (
            {"verify": "none", "startingTimestamp": '{"orders": 1767225600000}'},
            {"verify": "none", "startingTimestamp": "1767225600000"},
        ),
        ({"EndingTimestamp": '{"orders": "2026-01-31T00:00:00Z"}'}, {"EndingTimestamp": "2026-01-31T00:00:00Z"}),
    ],
    ids=["topics", "columns", "pattern", "by-topic", "of-another", "and-for-all", "time"],
)
async def test_of_one_topic_is_said_what_concerns_it(
    tmp_path: Path, made: Made, given: dict[str, str], said: dict[str, str]
) -> None:
    store = await a_store(tmp_path / "store", "orders", "mail")
    assert prepare_views(SPARK, store, **given) == ["messages", "mail", "orders"]
    assert made["orders"] == ([store], {"topic": "orders", **said})
    assert made["messages"] == ([store], given)


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("SELECT count(*) FROM messages", []),
        ("SELECT * FROM ORDERS JOIN `a.b-c` USING (key)", ["a.b-c", "orders"]),
        ("SELECT * FROM IDENTIFIER('or' || 'ders')", ["a.b-c", "mail", "orders"]),
        ("EXECUTE IMMEDIATE concat('SELECT * FROM or', 'ders')", ["a.b-c", "mail", "orders"]),
        ("show views", ["a.b-c", "mail", "orders"]),
    ],
    ids=["none", "two", "identifier", "immediate", "show"],
)
async def test_a_query_has_the_views_that_it_names(tmp_path: Path, made: Made, sql: str, views: list[str]) -> None:
    """Each takes Spark a while, and there may be thousands of topics."""
    store = await a_store(tmp_path / "store", "orders", "mail", "a.b-c")
    assert cast("Any", query(SPARK, store, sql)) == sql
    assert sorted(made) == sorted(["messages", *views])
    with pytest.raises(aiodq.StoreNotFoundError):
        query(SPARK, tmp_path / "none", sql)


async def test_views_of_an_earlier_store_are_not_those_of_the_next(tmp_path: Path, made: Made) -> None:
    """A question about a topic that this store does not have would be answered out of the other one."""
    one, two = await a_store(tmp_path / "one", "orders", "mail"), await a_store(tmp_path / "two", "mail")
    made["mine"] = [], {}
    prepare_views(SPARK, one)
    query(SPARK, two, "SELECT * FROM mail JOIN orders")
    assert {view: stores for view, (stores, _) in made.items()} == {"mine": [], "messages": [two], "mail": [two]}
