"""Very many messages are checked column by column, and give what they give one by one, or the same error."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.engine.batch import many_messages
from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.many_messages import checked_many
from aiodq.engine.batch.put_batch import accepted_cost, columns_cost, columns_of
from aiodq.engine.batch.validation import checked
from aiodq.errors import InvalidMessageError, MessageSizeError
from aiodq.options import StoreOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.engine.batch.put_batch import Accepted

OPTIONS = StoreOptions(min_message_bytes=1, max_message_bytes=8)


class OneByOne:
    """What a put buffer does with messages that are special."""

    def __init__(self) -> None:
        self.asked = False

    def moment(self) -> Callable[[], int]:
        return lambda: 1_000

    def accepted_all(
        self, bodies: Iterable[Any], shared: Accepted, now_ns: Callable[[], int]
    ) -> list[tuple[Accepted, bytes]]:
        self.asked = True
        return [
            (checked(item, now_ns), sized(item.body)) if isinstance(item, Draft) else (shared, sized(item))
            for item in bodies
        ]


def sized(body: Any) -> bytes:
    if not 1 <= len(body) <= 8:
        raise MessageSizeError("of another size")
    return bytes(body)


bodies = st.binary(min_size=1, max_size=8)
texts = st.sampled_from(["", "a", "ä", "\N{GRINNING FACE}"])
spans = st.sampled_from([None, None, 0, 1, 1.0, 2.5])
drafts = st.builds(
    Draft,
    bodies,
    tag=st.none() | texts,
    key=st.none() | st.binary(max_size=3),
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
    delay=spans,
    ttl=spans,
)
odd: Any = st.sampled_from(
    [
        Draft(b""),
        Draft(bytearray(b"1")),
        Draft(b"x" * 9),
        Draft(b"1", tag="\ud800"),
        Draft(b"1", tag="x" * 65_537),
        Draft(b"1", tag=7),  # type: ignore[arg-type]  # wrong on purpose
        Draft(b"1", key=bytearray(b"k")),
        Draft(b"1", key=bytes(1 << 20 | 1)),
        Draft(b"1", headers={"aiodq-for": "c"}),
        Draft(b"1", headers={"\ud800": "c"}),
        Draft(b"1", headers={"c": "\ud800"}),
        Draft(b"1", headers={"c": 7}),  # type: ignore[dict-item]  # wrong on purpose
        Draft(b"1", headers={7: "c"}),  # type: ignore[dict-item]  # wrong on purpose
        Draft(b"1", headers={"c": "x" * (1 << 20)}),
        Draft(b"1", headers=[("a", "b")]),  # type: ignore[arg-type]  # wrong on purpose
        Draft(b"1", delay=-1),
        Draft(b"1", delay=True),
        Draft(b"1", delay=timedelta(seconds=3)),
        Draft(b"1", ttl=float("nan")),
        b"body",
    ]
)


def outcome(items: list[Any], common: Draft) -> tuple[object, bool]:
    buffer = OneByOne()
    try:
        found = checked_many(buffer, OPTIONS, items, common)
    except (InvalidMessageError, MessageSizeError) as error:
        return repr(error), buffer.asked
    if isinstance(found, tuple):
        assert found[1] == columns_cost(found[0])
        return found, buffer.asked
    columns = columns_of(found)
    assert columns_cost(columns) == sum(accepted_cost(*each) for each in found)
    return (columns, columns_cost(columns)), buffer.asked


@given(st.lists(drafts, min_size=1, max_size=30) | st.lists(bodies, min_size=1, max_size=30), drafts)
def test_by_columns_they_are_what_they_are_one_by_one(items: list[Any], common: Draft) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_messages, "_MANY", 1)
        by_columns, asked = outcome(items, common)
        patch.setattr(many_messages, "_MANY", 1_000)
        assert (by_columns, asked) == (outcome(items, common)[0], False)


@given(st.lists(drafts, max_size=3), odd, st.lists(drafts, max_size=3))
def test_what_is_odd_is_looked_at_by_itself(before: list[Any], one: Any, behind: list[Any]) -> None:
    items = [*before, one, *behind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_messages, "_MANY", 1)
        found = outcome(items, Draft(b""))
        assert found[1] or one == b"body"
        patch.setattr(many_messages, "_MANY", 1_000)
        assert found[0] == outcome(items, Draft(b""))[0]


def test_headers_are_a_copy() -> None:
    headers = {"a": "b"}
    found = checked_many(OneByOne(), OPTIONS, [Draft(b"1", headers=headers)] * 50, Draft(b""))
    assert isinstance(found, tuple)
    headers["a"] = "c"
    assert found[0].headers == [{"a": "b"}] * 50
