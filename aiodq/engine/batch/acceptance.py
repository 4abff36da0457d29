"""Acceptance: checks messages that are put into a topic, and converts them to the form in which they are stored."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.many_messages import checked_items, checked_many
from aiodq.engine.batch.put_batch import columns_cost, columns_of
from aiodq.engine.batch.validation import checked, no_body
from aiodq.errors import InvalidMessageError, InvalidMessageTypeError, MessageSizeError
from aiodq.format.columns import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.clock import Clock
    from aiodq.engine.batch.put_batch import Accepted
    from aiodq.format.columns import Columns
    from aiodq.format.layout import BytesLike
    from aiodq.options import StoreOptions

__all__ = ["DRIFT", "Acceptance", "AcceptingTopic"]

_SECOND: Final = 1_000_000_000
DRIFT: Final = 50_000_000
"""Nanoseconds by which the two clocks may diverge unnoticed: a slewed wall clock does so all the time."""


class AcceptingTopic(Protocol):
    """What the checks need of a topic.

    Attributes:
        options: the options in effect.
        clock: gives the time from which delays and times to live count.
    """

    options: StoreOptions
    clock: Clock


class Acceptance:
    """The checks of messages put into one topic: the base class of the put buffer and of its remote substitute."""

    __slots__ = ("_accepting",)

    def __init__(self, topic: AcceptingTopic) -> None:
        """Check for this topic."""
        self._accepting = topic

    def body(self, body: object) -> bytes:
        """Return the body as bytes.

        Raises:
            MessageSizeError: it is outside the topic's bounds.
            InvalidMessageError: it is not bytes-like; a `TypeError` too.
        """
        if type(body) is not bytes:
            if not isinstance(body, (bytes, bytearray, memoryview)):
                raise InvalidMessageTypeError(no_body(body))
            try:
                body = bytes(body)
            except ValueError as cause:
                raise InvalidMessageError(f"a message's body cannot be read: {cause}") from cause
        size, options = len(body), self._accepting.options
        if not options.min_message_bytes <= size <= options.max_message_bytes:
            raise MessageSizeError(
                f"a message of {size} bytes; this topic takes {options.min_message_bytes} to "
                f"{options.max_message_bytes} (min_message_bytes, max_message_bytes)"
            )
        return body

    def accepted(self, draft: Draft) -> Accepted:
        """Return what is to be stored of a draft besides its body.

        Raises:
            InvalidMessageError: it cannot be stored.
        """
        return checked(draft, self._accepting.clock.now_ns)

    def moment(self) -> Callable[[], int]:
        """Return a function that reads the wall time once and repeats it: delays and times to live start then."""
        return cache(self._accepting.clock.now_ns)

    def ahead(self) -> int:
        """Return by how many nanoseconds the wall time is ahead of the monotonic time: for `in_time`, later."""
        clock = self._accepting.clock
        return clock.now_ns() - round(clock.monotonic() * _SECOND)

    def in_time(self, columns: Columns, ahead: int) -> Columns:
        """Return messages that have waited for room, by the wall clock of now if it has jumped since it was `ahead`."""
        by = self.ahead() - ahead
        if (columns.dues is None and columns.expiries is None) or abs(by) < DRIFT:
            return columns
        return columns.moved(by)

    def one_in_time(self, message: Accepted, ahead: int) -> Accepted:
        """Do as `in_time` for one message."""
        by = self.ahead() - ahead
        if not (message.due or message.expiry) or abs(by) < DRIFT:
            return message
        due, expiry = later((message.due, message.expiry), by)
        return message._replace(due=due, expiry=expiry)

    def accepted_many(
        self, bodies: Iterable[BytesLike | Draft], common: Draft
    ) -> tuple[Columns, int] | list[tuple[Accepted, bytes]]:
        """Return what is to be stored of several messages, as `checked_many`.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        return checked_many(self, self._accepting.options, bodies, common)

    def accepted_columns(self, items: list[Any], shared: Accepted, now_ns: Callable[[], int]) -> tuple[Columns, int]:
        """Return several messages as they are stored, and their cost in bytes of memory; otherwise as `accepted_all`.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        found = checked_items(self, self._accepting.options, items, shared, now_ns)
        if isinstance(found, tuple):
            return found
        columns = columns_of(found)
        return columns, columns_cost(columns)

    def accepted_all(
        self, bodies: Iterable[BytesLike | Draft], shared: Accepted, now_ns: Callable[[], int]
    ) -> list[tuple[Accepted, bytes]]:
        """Return what is to be stored of several messages; `shared` gives all but the body of those that are no drafts.

        They are put at one wall time, as given by `moment`.

        Raises:
            MessageSizeError, InvalidMessageError: one cannot be stored.
        """
        return [
            (checked(item, now_ns), self.body(item.body)) if isinstance(item, Draft) else (shared, self.body(item))
            for item in bodies
        ]
