"""The lease that a channel hands out from, with everything that handing out the next message needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiodq.delivery.leases import MEASURED
from aiodq.engine.channel.lease.held_by_task import HeldByTask, TakenByTask, is_settled
from aiodq.engine.channel.lease.in_flight import InFlight
from aiodq.engine.channel.lease.message_lease import MessageLease
from aiodq.engine.loop.home_loop import task_of
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.engine.monitoring.latency import LatencyMeter

__all__ = ["OpenLease", "Taking", "fitting"]

M = TypeVar("M", bound=InFlight)


class OpenLease:
    """The open lease of a channel, which is replaced by the next one when it is used up.

    Attributes:
        lease, bodies: the lease, and the bodies of its messages. Handing out the next one only takes incrementing an
            index, as long as that is below the lease's limit and it is not yet `until`.
        monotonic: the store's clock.
        until: the clock's monotonic time from which on the channel's state has to be checked first.
        special: whether each message needs further work before the getter gets it.
    """

    __slots__ = ("bodies", "lease", "monotonic", "special", "until")

    def __init__(self, topic: str, monotonic: Callable[[], float]) -> None:
        """Start with a lease of nothing."""
        self.lease: MessageLease = MessageLease(topic, Batch(0, 0, Columns([])))
        self.bodies: list[bytes] = []
        self.monotonic: Callable[[], float] = monotonic
        self.until: float = 0.0
        self.special: bool = False

    def measure(self, latency: LatencyMeter, at: int, stop: int) -> int:
        """Measure the latency of the sampled messages among those handed out next, before index `stop`.

        Args:
            latency: the channel's.
            at: the delivery number from which on the next message is to be measured.
            stop: the index after the last.

        Returns:
            The delivery number from which on the next one is to be measured.
        """
        lease = self.lease
        while (index := max(at - lease.number, lease.next)) < stop:
            lease.marks[index] = MEASURED
            at = latency.delivered(lease.number + index, lease.first + index, lease.since(index), 1)
        lease.limit = min(lease.room, at - lease.number)
        return at

    def let_go(self) -> None:
        """Keep the bodies only if there is something to be handed out."""
        if not (self.lease.open and self.lease.next < len(self.lease.marks)):
            self.bodies = []


class Taking(Generic[M]):
    """What `async for` takes from a channel, message by message."""

    __slots__ = ("_held_by_task", "_kind", "_open", "_store_ref", "_taken", "_task")

    def __init__(self, opened: OpenLease, kind: type[M], store_ref: object, held_by_task: HeldByTask[M] | None) -> None:
        """Take messages of this class, each of which is to hold `store_ref`.

        Args:
            opened: the channel's.
            kind: the class of its messages.
            store_ref: the reference that each message holds to keep the store open.
            held_by_task: notes which task got a message; None if that is not needed.
        """
        self._open = opened
        self._kind = kind
        self._store_ref = store_ref
        self._held_by_task = held_by_task
        self._taken: TakenByTask[M] | None = None
        self._task: asyncio.Task[Any] | None = None

    def next(self) -> M | None:
        """Hand out the next message of the open lease, as `ChannelEngine.take_next` does; note who has it."""
        opened = self._open
        lease = opened.lease
        index = lease.next
        if index >= lease.limit:
            return None
        now = opened.monotonic()
        if now >= opened.until:
            return None
        lease.next, lease.last = index + 1, now
        # The body of `message_of`, as all of this runs for every message.
        message = self._kind()
        message._run, message._index, message.body = lease, index, opened.bodies[index]  # noqa: SLF001
        message._store_ref = self._store_ref  # noqa: SLF001
        held_by_task = self._held_by_task
        if held_by_task is not None and not opened.special:
            # The body of `HeldByTask.note`, as in `aiodq.consuming.iteration`.
            taken, task = self._taken, task_of(held_by_task.loop)
            if taken is None or task is not self._task:
                self._taken, self._task = held_by_task.note(message), task
            elif is_settled(taken.last):
                taken.last = message
            else:
                taken.add(message)
        return message


def fitting(bodies: list[bytes], size: int) -> int:
    """Return a number of leading bodies that have at most `size` bytes together."""
    count = len(bodies)
    while count and sum(map(len, bodies[:count])) > size:
        count //= 2
    return count
