"""What a channel's journal is told of messages that were delivered and are not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.format.journal import LONGEST_RUN, MOST_REMAINING, Op, OpKind, due_time

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from aiodq.delivery.timers import Deferrals

__all__ = ["deferrals", "deliveries"]

_MILLISECOND: Final = 1_000_000


def deliveries(
    offsets: Iterable[int], noted: Mapping[int, int], attempts: Mapping[int, int], suspects: Container[int]
) -> list[Op]:
    """Return operations that say how often messages were delivered; those in flight in runs.

    Args:
        offsets: the messages', in order.
        noted: how often those in flight were.
        attempts: how often the others were.
        suspects: which of the others may have ended a process.
    """
    ops: list[Op] = []
    run: Op | None = None
    for offset in offsets:
        number = noted.get(offset)
        if number is None:
            run = None
            ops.append(Op(OpKind.REQUEUE, offset, value=attempts.get(offset, 0), in_hand=offset in suspects))
        elif run is not None and (run.run.stop, run.value) == (offset, number) and run.length < LONGEST_RUN:
            run = ops[-1] = run._replace(length=run.length + 1)
        else:
            run = Op(OpKind.REQUEUE, offset, value=number, in_hand=True)
            ops.append(run)
    return ops


def deferrals(offsets: Iterable[int], deferred: Deferrals, suspects: Container[int], wall: int, now: int) -> list[Op]:
    """Return operations that say until when messages are deferred, as far as they are.

    Args:
        offsets: the messages', in order.
        deferred: what is deferred.
        suspects: which messages may have ended a process.
        wall: wall time, nanoseconds.
        now: the same moment on the clock that never goes back.
    """
    ops: list[Op] = []
    for offset in offsets:
        due = deferred.due(offset)
        if due is not None:
            remaining = min(max(due - now, 0) // _MILLISECOND + 1, MOST_REMAINING)
            ops.append(Op(OpKind.DEFER, offset, remaining, due_time(due - now + wall, suspect=offset in suspects)))
    return ops
