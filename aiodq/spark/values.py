"""Parses the texts of options: numbers, sizes, times, names and offsets. Anything else is refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from aiodq.errors import InvalidOptionError
from aiodq.options import time_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Bound",
    "Moment",
    "bound_of",
    "choice_of",
    "count_of",
    "delay_of",
    "json_of",
    "labels_of",
    "list_of",
    "names_of",
    "size_of",
    "time_of",
]

T = TypeVar("T")

End = Literal["earliest", "latest"]

Bound = int | End | dict[str, int | End]
"""One offset for all topics, or one by topic."""

Moment = int | dict[str, int]
"""One time for all topics, or one by topic, in nanoseconds since the epoch."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_OTHER_UNITS: Final = {"seconds": 1, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
"""How many of each unit are a second."""
_CENTURY: Final = range(1_000_000_000, 4_102_444_800)
"""Seconds since 1970, from September 2001 to the end of 2099."""
_DELAY: Final = re.compile(r"([0-9]{1,12}) *(ms|s|m|min|h|d)")
_NUMBER: Final = re.compile("[0-9]{1,30}")
_SIZE: Final = re.compile(r"([0-9]{1,30}) *([bkmg]?)b?", re.IGNORECASE)
_LARGEST: Final = (1 << 63) - 1
_HALF: Final = re.compile("[\ud800-\udfff]")
"""Matches half a character, which JSON can name, and no UTF-8."""


def delay_of(options: Mapping[str, str], name: str, default: float) -> float:
    """Return the duration that an option names, in seconds.

    Raises:
        InvalidOptionError: it is no duration.
    """
    value = options.get(name)
    if value is None:
        return default
    match = _DELAY.fullmatch(value.strip().lower())
    if match is None:
        raise InvalidOptionError(f"{name} is a time, as 500ms, 30s or 15m, not {value!r}")
    return int(match[1]) * _SECONDS[match[2]]


def names_of(options: Mapping[str, str], name: str) -> list[str]:
    """Return the names that an option lists.

    Raises:
        InvalidOptionError: there are none.
    """
    found = list_of(options[name])
    if not found:
        raise InvalidOptionError(f"{name} is empty: leave it out for all of them")
    return found


def labels_of(options: Mapping[str, str], name: str) -> list[str]:
    """Return the texts that an option lists, between commas or as JSON: in a list of JSON, they may have commas.

    Raises:
        InvalidOptionError: there are none, or it is another list.
    """
    value = options[name]
    if not value.lstrip().startswith("["):
        return names_of(options, name)
    found = json_of(name, value)
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(each, str) and not _HALF.search(each) for each in found)
    ):
        raise InvalidOptionError(
            f'{name} that begin with [ are a list of texts in JSON (["a,b", "c"]), not {value!r:.200}'
        )
    return found


def list_of(value: str) -> list[str]:
    """Return the parts between commas."""
    return [item.strip() for item in value.split(",") if item.strip()]


def bound_of(options: Mapping[str, str], name: str, default: Bound) -> Bound:
    """Return the offsets that an option names as a beginning or an end.

    Raises:
        InvalidOptionError: it is something else, or names a topic twice.
    """
    value = options.get(name)
    if value is None:
        return default
    if value.strip().lower() in {"earliest", "latest"}:
        return "earliest" if value.strip().lower() == "earliest" else "latest"
    found: Any = int(value) if _NUMBER.fullmatch(value.strip()) else None
    if value.lstrip().startswith("{"):
        found = json_of(name, value)
    offsets = list(found.values()) if isinstance(found, dict) else [found]
    ends = {"earliest", "latest"} if isinstance(found, dict) else set[str]()
    if not all(each in ends if isinstance(each, str) else _is_offset(each) for each in offsets) or found == {}:
        raise InvalidOptionError(
            f'{name} is "earliest", "latest", an offset, or any of them by topic as JSON ({{"orders": 5}}), '
            f"not {value!r:.200}"
        )
    return found if isinstance(found, int) else dict(found)


def json_of(name: str, value: str) -> Any:  # noqa: ANN401 - it may be anything
    """Return the value of an option that is JSON.

    Raises:
        InvalidOptionError: it is no JSON, or has a key twice, of which JSON would take the last.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for topic, each in pairs:
            if topic in found:
                raise InvalidOptionError(f"{name} names the topic {topic!r} twice")
            found[topic] = each
        return found

    try:
        return json.loads(value, object_pairs_hook=once)
    except InvalidOptionError:
        raise
    except (ValueError, RecursionError) as cause:
        raise InvalidOptionError(f"{name} is no JSON: {value!r:.200} ({cause})") from cause


def _is_offset(value: object) -> bool:
    return type(value) is int and value >= 0


def time_of(options: Mapping[str, str], name: str) -> Moment | None:
    """Return the time that an option names, or one by topic; None if the option is not given.

    Raises:
        InvalidOptionError: it is no time, a time in another unit, or names a topic twice.
    """
    value = options.get(name)
    if value is None:
        return None
    if value.lstrip().startswith("{"):
        found = json_of(name, value)
        if not found:
            raise InvalidOptionError(f"{name} names no topic: leave it out, or give one time for all")
        return {topic: _moment(name, str(each)) for topic, each in found.items()}
    return _moment(name, value)


def _moment(name: str, value: str) -> int:
    if _NUMBER.fullmatch(value):
        _refuse_other_units(name, int(value))
        return int(value) * 1_000_000
    try:
        return time_ns(datetime.fromisoformat(value))
    except ValueError as cause:
        raise InvalidOptionError(
            f"{name} is milliseconds since 1970, or a time with a zone (2026-01-31T08:00:00+00:00), or one of them by "
            f"topic as JSON, not {value!r:.200}"
        ) from cause


def _refuse_other_units(name: str, number: int) -> None:
    """Make sure that a time is in milliseconds: with another unit, everything would be read, or nothing.

    Raises:
        InvalidOptionError: in another unit it is a time of this century, and in milliseconds early in 1970 or far away.
    """
    meant = {unit: number * 1000 // a_second for unit, a_second in _OTHER_UNITS.items()}
    with suppress(ValueError):
        meant["a date"] = int(datetime.strptime(f"{number:08}Z", "%Y%m%d%z").timestamp()) * 1000
    for unit, milliseconds in meant.items():
        if (seconds := milliseconds // 1000) in _CENTURY:
            raise InvalidOptionError(
                f"{name} is milliseconds since 1970, and {number} seems to be {unit}: write {milliseconds}, or "
                f"{datetime.fromtimestamp(seconds, UTC).isoformat()}"
            )


def size_of(options: Mapping[str, str], name: str, default: int, *, most: int = _LARGEST) -> int:
    """Return the number of bytes that an option names, at most `most`.

    Raises:
        InvalidOptionError: it is no size, or more.
    """
    value = options.get(name)
    if value is None:
        return default
    match = _SIZE.fullmatch(value.strip())
    size = 0 if match is None else int(match[1]) * _UNITS[match[2].lower()]
    if not 0 < size <= most:
        bound = "" if most == _LARGEST else f", at most {most}"
        raise InvalidOptionError(f"{name} is bytes, as 33554432 or 32m{bound}, not {value!r:.200}")
    return size


def count_of(options: Mapping[str, str], name: str, of: str = "messages") -> int | None:
    """Return the number that an option names; None if it is not given.

    Raises:
        InvalidOptionError: it is no number, or 0.
    """
    value = options.get(name)
    if value is None:
        return None
    if not _NUMBER.fullmatch(value) or not 0 < int(value) <= _LARGEST:
        raise InvalidOptionError(f"{name} is a number of {of}, not {value!r:.200}")
    return int(value)


def choice_of(options: Mapping[str, str], name: str, choices: Mapping[str, T], *, default: T) -> T:
    """Return the choice that an option names.

    Raises:
        InvalidOptionError: it is none of the choices.
    """
    value = options.get(name)
    if value is None:
        return default
    if value.lower() not in choices:
        raise InvalidOptionError(f"{name} is one of {', '.join(choices)}, not {value!r}")
    return choices[value.lower()]
