"""The journal operations of messages as they are handed out, where each is acked before the next one, or nearly so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.delivery.leases import ACKED
from aiodq.format.journal import LONGEST_RUN, Op, OpKind

if TYPE_CHECKING:
    from aiodq.delivery.leases import Leases
    from aiodq.delivery.progress import Progress

__all__ = ["handed_ops"]


def handed_ops(leases: Leases, progress: Progress) -> list[Op] | None:
    """Return what is to be journaled before the open lease's newest messages are handed out: their delivery, and acks.

    This counts nothing, so that it costs a consumer of one message after the other little.

    Returns:
        All that `ChannelState.take_ops` would, which need not be called then; None if that has to be called.
    """
    lease, unjournaled = leases.open, progress.unjournaled
    if lease is None or lease.gaps or not unjournaled.is_empty or leases.dirty not in ([], [lease]):
        return None
    begin, floor = max(lease.noted, lease.counted), progress.floor
    if not begin < lease.next <= begin + LONGEST_RUN:
        return None
    if acked := lease.marks.count(ACKED):
        first = lease.marks.find(ACKED)
        in_order = lease.first + first == floor and lease.marks.rfind(ACKED) == first + acked - 1
        if not in_order or progress.settled:
            return None
        floor += acked
    ops = [Op(OpKind.FLOOR, floor)] if floor > unjournaled.floor else []
    start, stop = max(lease.first + begin, floor), lease.first + lease.next
    if start < stop:
        ops.append(Op(OpKind.REQUEUE, start, stop - start, 1, in_hand=True))
    lease.noted, unjournaled.floor = lease.next, floor
    return ops
