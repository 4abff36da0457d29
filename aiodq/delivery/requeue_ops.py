"""The journal operations of messages that were delivered and are not settled."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from aiodq.format.journal import LONGEST_RUN, MOST_REMAINING, Op, OpKind, due_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.delivery.attempts import Attempts
    from aiodq.delivery.deferrals import Deferrals
    from aiodq.delivery.offset_map import OffsetMap

__all__ = ["deferrals", "deliveries"]

_MILLISECOND: Final = 1_000_000


def deliveries(requeued: list[int], delivered: list[int], attempts: Attempts, suspects: OffsetMap[bool]) -> list[Op]:
    """Return the operations that note how often messages were delivered; those in flight in runs.

    Args:
        requeued: offsets of messages that are not settled.
        delivered: other messages; those that are no longer in flight are left out.
        attempts: the deliveries of each.
        suspects: which of the others may have ended a process.
    """
    if not requeued and len(delivered) == 1:  # as of each message that `async for` hands out
        number = attempts.noted.get(delivered[0])
        return [] if number is None else [Op(OpKind.REQUEUE, delivered[0], 1, number, in_hand=True)]
    ops: list[Op] = []
    noted, before = attempts.noted.among(chain(requeued, delivered)), attempts.before.among(requeued)
    # The last run of messages in flight: its start, its stop, and how often each was delivered.
    start = stop = value = 0
    for offset in sorted(noted.keys() | set(requeued)):
        number = noted.get(offset)
        if offset == stop and number == value and stop - start < LONGEST_RUN:
            stop += 1
            continue
        if start < stop:
            ops.append(Op(OpKind.REQUEUE, start, stop - start, value, in_hand=True))
            start = stop = 0
        if number is None:
            ops.append(Op(OpKind.REQUEUE, offset, value=before.get(offset, 0), in_hand=offset in suspects))
        else:
            start, stop, value = offset, offset + 1, number
    if start < stop:
        ops.append(Op(OpKind.REQUEUE, start, stop - start, value, in_hand=True))
    return ops


def deferrals(offsets: Iterable[int], deferred: Deferrals, suspects: OffsetMap[bool], wall: int, now: int) -> list[Op]:
    """Return the operations that note the due times of those messages that are deferred.

    Args:
        offsets: of the messages, in order.
        deferred: the deferred messages.
        suspects: which messages may have ended a process.
        wall: wall time, nanoseconds.
        now: the same moment on the monotonic clock.
    """
    ops: list[Op] = []
    for offset in offsets:
        due = deferred.due(offset)
        if due is not None:
            remaining = min(max(due - now, 0) // _MILLISECOND + 1, MOST_REMAINING)
            ops.append(Op(OpKind.DEFER, offset, remaining, due_time(due - now + wall, suspect=offset in suspects)))
    return ops
