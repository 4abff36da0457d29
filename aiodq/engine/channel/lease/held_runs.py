"""The runs that messages in flight form: those of a run are checked and settled as a whole, not one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from aiodq.delivery.leases import APART, HELD, MEASURED, SETTLED
from aiodq.engine.channel.lease.in_flight import InFlight, neighbours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiodq.engine.channel.lease.message_lease import MessageLease

__all__ = ["HeldRuns", "held_runs", "in_pieces", "is_held", "is_in", "mark_settled"]

M = TypeVar("M", bound=InFlight)

HeldRuns: TypeAlias = "dict[MessageLease, list[tuple[int, int]]]"
"""Runs of messages by lease: the first index of each, and how many follow it with it."""

_Piece: TypeAlias = "tuple[MessageLease, int, int, int]"
"""A lease, the first index in it of messages that follow each other there, and where in a list these begin and end."""

_SHORT: Final = 32
"""Messages of a run, if it ends amid a lease, below which it costs less to look at each by itself."""


def held_runs(messages: list[M], belongs: Callable[[MessageLease], bool]) -> tuple[HeldRuns, list[M]]:
    """Return the runs of consecutive messages of leases that can be settled as they are, and all other messages.

    A message that is given twice is among the others at least once.

    Args:
        messages: messages that were handed out.
        belongs: whether the caller may settle a lease's messages.
    """
    runs: HeldRuns = {}
    apart: list[M] = []
    pieces, end = in_pieces(messages)
    rest = messages[end:]
    for lease, first, at, stop in pieces:
        if lease in runs:
            rest += messages[at:stop]
        elif belongs(lease) and is_held(lease, first, stop - at):
            runs[lease] = [(first, stop - at)]
        else:
            apart += messages[at:stop]
    return runs, [*apart, *_in_no_order(rest, runs, belongs)]


def in_pieces(messages: list[M]) -> tuple[list[_Piece], int]:
    """Return the runs that messages begin with, as `get_many` gives them, and where the first is that is in none."""
    pieces: list[_Piece] = []
    those = cast("list[InFlight]", messages)
    at, end = 0, len(those)
    while at < end:
        lease, first = those[at]._run, those[at]._index  # noqa: SLF001 - as in `_in_no_order`
        stop = neighbours(those, at)
        count = stop - at
        if not count or (count < _SHORT and stop < end and first + count < len(lease.marks)):
            break
        pieces.append((lease, first, at, stop))
        at = stop
    return pieces, at


def mark_settled(messages: Iterable[InFlight]) -> None:
    """Note that their consumers have settled messages, as `Message` does for one."""
    for message in messages:
        run: MessageLease = message._run  # noqa: SLF001 - as below
        run.marks[message._index] = SETTLED  # noqa: SLF001 - as below
        message._store_ref = None  # noqa: SLF001 - as below


def is_in(index: int, runs: Iterable[tuple[int, int]]) -> bool:
    """Return whether one of these runs of a lease has this index."""
    return any(first <= index < first + count for first, count in runs)


def is_held(lease: MessageLease, first: int, count: int) -> bool:
    """Return whether these messages of a lease can be settled as a run."""
    stop, marks, engine = first + count, lease.marks, lease.channel_engine
    if marks.count(HELD, first, stop) + marks.count(MEASURED, first, stop) == count:
        return True
    if engine is None or marks.count(APART, first, stop) < count:
        return False
    offset = lease.first + first
    return engine.holds_all(offset, offset + count, lease.number + first)


def _in_no_order(messages: list[M], runs: HeldRuns, belongs: Callable[[MessageLease], bool]) -> list[M]:
    """Add the runs that messages form which do not follow each other; return those that form none."""
    leases: dict[MessageLease, list[M]] = {}
    for message in messages:
        leases.setdefault(message._run, []).append(message)  # noqa: SLF001 - a message has no other name for its place
    apart: list[M] = []
    for lease, those in leases.items():
        places = sorted([each._index for each in those])  # noqa: SLF001 - as above
        found, before = _runs_of(places), runs.get(lease, [])
        alone = len(set(places)) == len(places) and not (before and any(is_in(place, before) for place in places))
        if alone and belongs(lease) and all(is_held(lease, first, count) for first, count in found):
            runs[lease] = before + found
        else:
            apart += those
    return apart


def _runs_of(places: list[int]) -> list[tuple[int, int]]:
    """Return the runs of indexes that follow each other: the first, and how many."""
    if places[-1] - places[0] + 1 == len(places):
        return [(places[0], len(places))]
    edges = [at for at in range(1, len(places)) if places[at] - places[at - 1] != 1]
    return [(places[at], stop - at) for at, stop in zip([0, *edges], [*edges, len(places)], strict=True)]
