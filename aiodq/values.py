"""Checks of values given by users: each error says what was given, what is expected, and how to write it."""

from __future__ import annotations

import math
import sys
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from aiodq.errors import InvalidOptionError, InvalidOptionTypeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

__all__ = [
    "LONGEST_SPAN",
    "check_choice",
    "check_flag",
    "check_number",
    "check_offset",
    "check_position",
    "check_scan",
    "check_whole",
    "refuse",
    "several",
    "shown",
    "shown_typed",
    "span_seconds",
    "time_ns",
]

T = TypeVar("T")

LONGEST_SPAN: Final = 100 * 366 * 86_400
"""The longest duration that may be given, in seconds; None stands for endless."""

_LARGEST: Final = 1 << 62
_LAST_OFFSET: Final = (1 << 63) - 1
_MOST_BITS: Final = 4096
_LATEST_NS: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE: Final = "write datetime.now(timezone.utc), or moment.astimezone() for one of local time"


def refuse(what: str, expected: str, given: object, example: str, *, type_is_wrong: bool) -> NoReturn:
    """Raise the error for a value that is not allowed.

    Args:
        what: the name of the option or argument.
        expected: what it may be.
        given: the value.
        example: how to write it.
        type_is_wrong: whether the error is to be a `TypeError` too.

    Raises:
        InvalidOptionError: always.
    """
    if type_is_wrong:
        told = f"{type(given).__name__}(...)" if is_dataclass(given) else shown_typed(given)
        raise InvalidOptionTypeError(f"{what} is {expected}, not {told}: {example}")
    raise InvalidOptionError(f"{what} is {expected}, not {shown(given)}: {example}")


def shown(given: object) -> str:
    """Return the beginning of a value's `repr`, on one line, or a description if its `repr` fails."""
    try:
        text = f"{given!r:.100}"
    except Exception:  # noqa: BLE001 - Python formats no int of more than 4300 digits, and a `__repr__` may raise anything
        bits = f" of {int.bit_length(given)} bits" if isinstance(given, int) else ""
        return f"<{type(given).__name__}{bits}>"
    # A `repr` may have several lines, control characters of terminals, or lone surrogates.
    return text if text.isprintable() else repr(text)[1:-1]


def shown_typed(given: object) -> str:
    """Return what `shown` does, and the name of the type."""
    return f"{shown(given)} ({type(given).__name__})"


def several(given: Iterable[T]) -> Iterator[T] | None:
    """Return an iterator over several values; None if this is a single value, such as text, or not iterable."""
    if isinstance(given, (str, bytes, bytearray, memoryview)):
        return None
    try:
        return iter(given)
    except TypeError:  # numpy's arrays have `__iter__`, and those without dimensions raise
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_whole(what: str, value: object, *, least: int, example: int, most: int = _LARGEST) -> int:
    """Return a whole number from `least` to `most`.

    Raises:
        InvalidOptionError: it is not; also a `TypeError` if it is not an int (a bool does not count as one).
    """
    expected = f"a whole number of at least {least}"
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(what, expected, value, f"write {what}={example}", type_is_wrong=True)
    if not least <= value <= most:
        if value > most:
            expected = f"a whole number from {least} to {most}"
        refuse(what, expected, value, f"write {what}={example}", type_is_wrong=False)
    return value


def check_offset(what: str, value: object) -> None:
    """Make sure that a value may be an offset; no message has to have it.

    Raises:
        InvalidOptionError: it is not an int; also a `TypeError`. Or it has too many digits to be shown.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(what, "an offset, a whole number", value, f"write {what}=0, or what put() returned", type_is_wrong=True)
    if value.bit_length() > _MOST_BITS:
        refuse(what, "an offset", value, f"write {what}=0, or what put() returned", type_is_wrong=False)


def check_scan(start: object, stop: object) -> None:
    """Make sure that `start` and `stop` are offsets or None.

    Raises:
        InvalidOptionError: one is negative or not an int; also a `TypeError` if it is not an int.
    """
    for what, offset in (("start", start), ("stop", stop)):
        if offset is None:
            continue
        check_offset(what, offset)
        if isinstance(offset, int) and offset < 0:
            advice = f"write {what}=0, or end_offset - {-offset} to count from the end"
            refuse(what, "an offset, 0 or more", offset, advice, type_is_wrong=False)


def check_number(what: str, value: object, *, least: float, most: float, example: float) -> float:
    """Return a number from `least` to `most`.

    Raises:
        InvalidOptionError: it is not; also a `TypeError` if it is neither an int nor a float (a bool is neither).
    """
    expected = f"a number of at least {least:g}" if most == math.inf else f"a number from {least:g} to {most:g}"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        refuse(what, expected, value, f"write {what}={example}", type_is_wrong=True)
    if not least <= value <= min(most, sys.float_info.max):
        refuse(what, expected, value, f"write {what}={example}", type_is_wrong=False)
    return value


def check_choice(what: str, value: object, choices: Collection[str | None], example: str) -> None:
    """Make sure that a value is one of these.

    Raises:
        InvalidOptionError: it is not; also a `TypeError` if it is not a text.
    """
    if (value is None or isinstance(value, str)) and value in choices:
        return
    expected = " or ".join(", ".join(repr(choice) for choice in choices).rsplit(", ", 1))
    refuse(what, expected, value, f"write {what}={example!r}", type_is_wrong=not isinstance(value, str))


def check_flag(what: str, value: object) -> None:
    """Make sure that a value is True or False.

    Raises:
        InvalidOptionError: it is neither; a `TypeError` too.
    """
    if not isinstance(value, bool):
        refuse(what, "True or False", value, f"write {what}=True", type_is_wrong=True)


def span_seconds(what: str, span: float | timedelta, *, positive: bool = False, past: bool = False) -> float:
    """Return a duration, given as seconds or as a `timedelta`, in seconds.

    Args:
        what: the name of the option or argument.
        span: what was given.
        positive: whether 0 is refused.
        past: whether a negative span counts as 0, as for a deadline that has passed.

    Raises:
        InvalidOptionError: negative, longer than `LONGEST_SPAN`, or NaN; also a `TypeError` if it is neither a number
            nor a `timedelta`.
    """
    example = f"write {what}=30 or {what}=timedelta(seconds=30)"
    if not isinstance(span, timedelta) and not _is_number(span):
        refuse(what, "a number of seconds or a timedelta", span, example, type_is_wrong=True)
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if past and seconds < 0:
        return 0.0
    if not 0 <= seconds <= LONGEST_SPAN or (positive and not seconds):
        expected = f"a duration from 0 to {LONGEST_SPAN} seconds"
        if positive and seconds <= 0:
            expected = "a positive duration, in seconds or as a timedelta"
        refuse(what, expected, span, example, type_is_wrong=False)
    return seconds


def check_position(what: str, position: object) -> None:
    """Make sure that a value names a place in a log: `"earliest"`, `"latest"`, an offset, or a `datetime` with a zone.

    Raises:
        InvalidOptionError: it does not; also a `TypeError` if it has none of these types.
    """
    expected = "'earliest', 'latest', an offset (int) or a datetime with a time zone"
    if isinstance(position, datetime):
        time_ns(position, what)
    elif isinstance(position, str):
        if position not in {"earliest", "latest"}:
            refuse(what, expected, position, "write 'earliest' or 'latest'", type_is_wrong=False)
    elif not isinstance(position, int) or isinstance(position, bool):
        refuse(what, expected, position, _position_example(position), type_is_wrong=True)
    elif not 0 <= position <= _LAST_OFFSET:
        expected = "an offset of at least 0" if position < 0 else f"an offset of up to {_LAST_OFFSET}"
        refuse(what, expected, position, "write 'latest' for the end", type_is_wrong=False)


def _position_example(position: object) -> str:
    if isinstance(position, float):
        return "write datetime.fromtimestamp(seconds, timezone.utc) for a time, int(offset) for an offset"
    if isinstance(position, date):
        return "write datetime(year, month, day, tzinfo=timezone.utc) for the beginning of a day"
    if isinstance(position, bytes):
        return f"write {position.decode(errors='replace')!r}"
    return "write 'earliest', 'latest', 42 or datetime.now(timezone.utc)"


def _has_zone(moment: datetime) -> bool:
    try:
        return moment.utcoffset() is not None
    except ValueError:
        return False  # pandas' NaT, which is a datetime and no time


def time_ns(moment: datetime, what: str = "the time") -> int:
    """Return nanoseconds since 1970-01-01 UTC, exact to the microsecond, limited to what the files can hold.

    Raises:
        InvalidOptionError: the time has no zone; also a `TypeError` if it is not a `datetime`.
    """
    if not isinstance(moment, datetime):
        refuse(what, "a datetime with a time zone", moment, _ZONE, type_is_wrong=True)
    if not _has_zone(moment):
        refuse(what, "a datetime with a time zone", moment, _ZONE, type_is_wrong=False)
    delta = moment - _EPOCH
    exact = (delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1000
    return max(-_LATEST_NS, min(exact, _LATEST_NS))
