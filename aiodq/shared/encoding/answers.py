"""Decoding an owner's answers: anything unexpected is a `ProtocolError`, not an accidental error here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from aiodq.errors import InvalidOptionError, ProtocolError
from aiodq.shared.encoding.stats_json import read_topic_stats
from aiodq.stats import BackupReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Json",
    "read_backup",
    "read_deferred",
    "read_flag",
    "read_held",
    "read_letters",
    "read_name",
    "read_nothing",
    "read_number",
    "read_offset",
    "read_span",
    "read_store",
    "read_topic",
    "read_visitors",
    "understood",
]

T = TypeVar("T")

Json: TypeAlias = Any
"""A value decoded from JSON: its parts are checked where they are used."""

_WRONG: Final = (AttributeError, IndexError, InvalidOptionError, KeyError, OverflowError, TypeError, ValueError)


def understood(read: Callable[[Json], T], answer: object, what: str) -> T:
    """Return what `read` makes of an owner's answer to `what`.

    Raises:
        ProtocolError: `read` cannot decode it.
    """
    try:
        return read(answer)
    except _WRONG as cause:
        raise ProtocolError(f"this is no answer to {what}: {answer!r:.100}") from cause


def read_number(answer: object) -> int:
    """Read an integer."""
    if type(answer) is not int:
        raise TypeError(answer)
    return answer


def read_name(answer: object) -> str:
    """Read a name."""
    if not isinstance(answer, str):
        raise TypeError(answer)
    return answer


def read_flag(answer: object) -> bool:
    """Read a boolean."""
    if not isinstance(answer, bool):
        raise TypeError(answer)
    return answer


def read_span(answer: Json) -> tuple[int, int]:
    """Read a range of offsets: the first, and the one after the last."""
    first, stop = map(read_number, answer)
    return first, stop


def read_offset(answer: object) -> int | None:
    """Read a message's offset, None if there is no message."""
    return None if answer is None else read_number(answer)


def read_deferred(answer: Json) -> tuple[list[tuple[int, int, int]], int]:
    """Read deferred messages: offsets, due times, numbers of deliveries. Then the last one's place, -1 if unknown."""
    found, last = (answer, -1) if isinstance(answer, list) else (answer["rows"], read_number(answer["last"]))
    rows = [tuple(map(read_number, row)) for row in found]
    return [(offset, due, attempts) for offset, due, attempts in rows], last


def read_nothing(_answer: object) -> None:
    """Ignore an answer without contents."""


def read_store(answer: Json) -> Mapping[str, Json]:
    """Read the state of a store, with a page of its topics. The caller checks the rest."""
    names, more, stamps = answer["topics"], read_flag(answer["more"]), answer.get("stamps")
    if not all(isinstance(name, str) for name in names) or (more and not names):
        raise ValueError(answer)
    if stamps is not None and len(stamps) != len(names):
        raise ValueError(answer)
    found: Mapping[str, Json] = answer
    return found


def read_topic(answer: Json) -> Mapping[str, Json] | None:
    """Read the state of a topic, with a page of its channels, None if there is none."""
    if answer is not None:
        read_topic_stats(answer)
        # An owner of an earlier aiodq sends all channels, or fails.
        if read_flag(answer.get("more", False)) and not answer["channels"]:
            raise ValueError(answer)
    found: Mapping[str, Json] | None = answer
    return found


def read_letters(answer: Json) -> tuple[list[int], int | None]:
    """Read the offsets of dead letters, and the offset of the next page, None if there is none."""
    offsets = list(map(read_number, answer["offsets"]))
    return offsets, None if answer["next"] is None else read_number(answer["next"])


def read_backup(answer: Json) -> BackupReport:
    """Read what a backup holds."""
    path, *counts = answer
    topics, messages, size = map(read_number, counts)
    return BackupReport(read_name(path), topics, messages, size)


def read_held(answer: Json, most: int) -> tuple[dict[int, int], set[int]]:
    """Read the delivery numbers of the messages that an owner has left here, at most `most`, by offset.

    Then the offsets of unsettled messages that it has not left here; an owner of an earlier aiodq names none.
    """
    rows = [tuple(map(read_number, row)) for facts in answer for row in facts.get("held", ())]
    if sum(count for _, _, count in rows) > most:
        raise ValueError(most)
    elsewhere = {read_number(offset) for facts in answer for offset in facts.get("elsewhere", ())}
    return {first + at: number + at for first, number, count in rows for at in range(count)}, elsewhere


def read_visitors(answer: Json) -> Mapping[str, Json]:
    """Read the owner and the clients of a store."""
    owner = answer["owner"]
    read_number(owner["pid"])
    if not isinstance(owner["host"], str) or not isinstance(owner["lag"], (int, float)):
        raise TypeError(owner)
    for client in answer["clients"]:
        read_number(client["pid"])
        read_flag(client["owner"])
        for held in client["holds"].values():
            read_number(held)
        if not isinstance(client["program"], str):
            raise TypeError(client)
    found: Mapping[str, Json] = {"unlisted": 0, **answer}  # an owner of an earlier aiodq lists all, or fails
    read_number(found["unlisted"])
    return found
