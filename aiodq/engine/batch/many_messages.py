"""Checking many messages column by column, with hardly a Python statement for each of them."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.put_batch import OVERHEAD, accepted_cost, plain_lengths
from aiodq.engine.batch.validation import (
    LONGEST_KEY,
    LONGEST_TAG,
    MOST_HEADERS,
    RESERVED_HEADER,
    checked,
    list_bodies,
    span_ns,
)
from aiodq.errors import InvalidMessageError
from aiodq.format.columns import Columns
from aiodq.format.many import all_are

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.format.layout import BytesLike
    from aiodq.options import StoreOptions

__all__ = ["checked_items", "checked_many"]

_BODY, _TAG, _KEY = attrgetter("body"), attrgetter("tag"), attrgetter("key")
_HEADERS, _DELAY, _TTL = attrgetter("headers"), attrgetter("delay"), attrgetter("ttl")

_MANY: Final = 20
"""Messages from which on columns cost less."""

_WIDEST: Final = 4
"""The most bytes of a character in UTF-8."""

_NO_HEADERS: Final[Mapping[str, str]] = {}


class _OneByOneError(Exception):
    """A message has to be checked by itself, if only for its error message."""


class Accepting(Protocol):
    """Accepts messages for a topic: `aiodq.engine.topic.puts.put_buffer.PutBuffer`, or its remote substitute."""

    def moment(self) -> Callable[[], int]: ...

    def accepted_all(
        self, bodies: Iterable[BytesLike | Draft], shared: Accepted, now_ns: Callable[[], int]
    ) -> list[tuple[Accepted, bytes]]: ...


def checked_many(
    buffer: Accepting, options: StoreOptions, bodies: Iterable[BytesLike | Draft], common: Draft
) -> tuple[Columns, int] | list[tuple[Accepted, bytes]]:
    """Return messages column by column, with their cost in bytes of memory; or one by one, if they are few or special.

    Args:
        buffer: of the topic they are put into.
        options: the topic's.
        bodies: bodies and drafts.
        common: gives all but the body of those that are no drafts.

    Raises:
        MessageSizeError, InvalidMessageError: one cannot be stored.
    """
    items, now_ns = list_bodies(bodies), buffer.moment()
    return checked_items(buffer, options, items, checked(common, now_ns), now_ns)


def checked_items(
    buffer: Accepting, options: StoreOptions, items: list[Any], shared: Accepted, now_ns: Callable[[], int]
) -> tuple[Columns, int] | list[tuple[Accepted, bytes]]:
    """Do as `checked_many`, if `shared` is checked, and with what time it is."""
    found = _columns_at_once(items, shared, options, now_ns) if len(items) >= _MANY else None
    return buffer.accepted_all(items, shared, now_ns) if found is None else found


def _columns_at_once(
    items: list[Any], shared: Accepted, options: StoreOptions, now_ns: Callable[[], int]
) -> tuple[Columns, int] | None:
    """Return messages column by column, and their cost in bytes of memory; None if each has to be looked at by itself.

    Args:
        items: at least one; either bodies, which must be bytes, or drafts, whose bodies must be.
        shared: the labels and times of bodies; drafts have their own.
        options: the topic's.
        now_ns: returns when they are put.
    """
    drafts = all_are(items, Draft)
    bodies = list(map(_BODY, items)) if drafts else items
    found = plain_lengths(bodies, options)
    if found is None:
        return None
    lengths, total = found
    count, columns = len(bodies), Columns(bodies, lengths=lengths)
    if not drafts:
        columns.tags = [shared.tag] * count if shared.tag is not None else None
        columns.keys = [shared.key] * count if shared.key is not None else None
        columns.headers = [shared.headers] * count if shared.headers else None
        columns.dues = [shared.due] * count if shared.due else None
        columns.expiries = [shared.expiry] * count if shared.expiry else None
        return columns, total + accepted_cost(shared, b"") * count
    try:
        columns.tags, tags = _tags(list(map(_TAG, items)))
        columns.keys, keys = _keys(list(map(_KEY, items)))
        columns.headers, headers = _headers(list(map(_HEADERS, items)))
        columns.dues = _times(list(map(_DELAY, items)), "delay", now_ns, 0)
        columns.expiries = _times(list(map(_TTL, items)), "ttl", now_ns, None)
    except (_OneByOneError, InvalidMessageError, UnicodeEncodeError):
        return None
    return columns, total + OVERHEAD * count + tags + keys + headers


def _only(values: list[Any], *types: type) -> None:
    if not set(map(type, values)) <= {*types}:
        raise _OneByOneError


def _tags(tags: list[Any]) -> tuple[list[str | None] | None, int]:
    """Return the tags, or None if there are none, and how many characters they have."""
    if tags.count(None) == len(tags):
        return None, 0
    _only(tags, str, NoneType)
    given: list[str] = list(filter(None, tags))
    if given and max(map(len, given)) * _WIDEST > LONGEST_TAG:
        raise _OneByOneError
    text = "".join(given)
    text.encode()
    return tags, len(text)


def _keys(keys: list[Any]) -> tuple[list[bytes | None] | None, int]:
    """Return the keys, or None if there are none, and how many bytes they have."""
    if keys.count(None) == len(keys):
        return None, 0
    _only(keys, bytes, NoneType)
    lengths = list(map(len, filter(None, keys)))
    if lengths and max(lengths) > LONGEST_KEY:
        raise _OneByOneError
    return keys, sum(lengths)


def _headers(headers: list[Any]) -> tuple[list[Mapping[str, str]] | None, int]:
    """Return a copy of the headers, or None if there are none, and how many characters they have."""
    if headers.count(None) == len(headers):
        return None, 0
    _only(headers, dict, NoneType)
    given: list[dict[str, str]] = list(map(dict.copy, filter(None, headers)))
    if not given:
        return None, 0
    names = set(chain.from_iterable(given))
    values: list[Any] = list(chain.from_iterable(map(dict.values, given)))
    most = max(map(len, given))
    _only([*names], str)
    _only(values, str)
    longest = max(map(len, names)) + max(map(len, values))
    if RESERVED_HEADER in names or most >= MOST_HEADERS or most * longest * _WIDEST > LONGEST_KEY:
        raise _OneByOneError
    "".join(names).encode()
    text = "".join(values)
    text.encode()
    size = len(text) + sum(map(len, chain.from_iterable(given)))
    if len(given) == len(headers):
        return cast("list[Mapping[str, str]]", given), size
    copies = iter(given)
    return [next(copies) if own else _NO_HEADERS for own in headers], size


def _times(spans: list[Any], what: str, now_ns: Callable[[], int], none: int | None) -> list[int] | None:
    """Return the wall times at which these spans end, 0 for a span of `none`; None if all of them are 0."""
    if spans.count(None) == len(spans):
        return None
    _only(spans, int, float, NoneType)
    ends = {}
    for span in set(spans):
        wait = span_ns(span, what)
        ends[span] = 0 if wait is None or wait == none else now_ns() + wait
    return list(map(ends.__getitem__, spans)) if any(ends.values()) else None
