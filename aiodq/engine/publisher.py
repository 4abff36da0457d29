"""Showing channels what was written, as soon as it may be seen, and telling those who put it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiodq.engine.aimed import aimed_in
from aiodq.errors import StoreFailedError
from aiodq.format.frames import Batch

if TYPE_CHECKING:
    from aiodq.engine.batch import Part
    from aiodq.engine.ioloop import IoLoop
    from aiodq.engine.requests import Written

__all__ = ["Publisher"]


class Publisher:
    """One per topic.

    What a transaction put is durable before it is in the log, so that it need not wait for the log's sync, only for
    what stands before it.

    Attributes:
        unsynced: what is written and waits for a sync, oldest first.
    """

    def __init__(self, ioloop: IoLoop) -> None:
        """Publish for this topic."""
        self.unsynced: deque[tuple[Part, Batch]] = deque()
        self._ioloop = ioloop

    def written(self, serial: int, result: Written, *, durably: bool) -> None:
        """The segment writer is done with a batch; `durably`: it may be seen once it is synced.

        Raises:
            StoreFailedError: that is how it ended.
        """
        ioloop = self._ioloop
        pressing = False
        for part in result.parts:
            batch = Batch(part.first, part.time_ns, part.columns)
            if durably:
                pressing = pressing or part.columns.transaction is None
                self.unsynced.append((part, batch))
            else:
                self._publish(part, batch)
        ioloop.vitals.written(ioloop.name, result.error)
        ioloop.syncer.wrote(serial, sum(len(part.columns.bodies) for part in result.parts), pressing=pressing)
        for part in result.failed:
            part.fail(result.error or StoreFailedError("the batch was not written"))
            ioloop.intake.done(part)
        if isinstance(result.error, StoreFailedError):
            raise result.error
        if durably and ioloop.log.durable >= ioloop.log.end:
            ioloop.syncer.nothing_to_sync()
        self.synced()

    def synced(self) -> None:
        """Show what a sync has made durable, and what needed none."""
        durable = self._ioloop.log.durable
        while self.unsynced:
            part, batch = self.unsynced[0]
            if batch.stop > durable and part.columns.transaction is None:
                return
            self._publish(part, batch)
            self.unsynced.popleft()

    def _publish(self, part: Part, batch: Batch) -> None:
        ioloop = self._ioloop
        ioloop.visible = batch.stop
        if batch.columns.expiries is not None:
            ioloop.lifetimes.note(batch.first, ioloop.log.begin)
        if ioloop.outlets:
            tail = ioloop.tail
            tail.append(batch)
            aimed = aimed_in(batch)
            for outlet in ioloop.outlets.values():
                outlet.extend(batch)
                if aimed:
                    outlet.pass_over(aimed)
            if len(ioloop.outlets) == 1 or tail.cost * 2 > tail.limit:
                tail.trim(min(outlet.position for outlet in ioloop.outlets.values()))
        part.resolve()
        ioloop.intake.done(part)

    def adopted(self) -> None:
        """Show what the log holds now that did not come through here: channels read it from disk."""
        ioloop = self._ioloop
        ioloop.lifetimes.note(ioloop.visible, ioloop.log.begin)
        ioloop.visible = ioloop.log.end
        ioloop.tail.clear()  # it is one stretch without a gap
        for outlet in ioloop.outlets.values():
            if outlet.state is not None:
                outlet.state.extend(ioloop.visible)
                outlet.wake()
        ioloop.retain_soon()

    def fail(self, error: Exception) -> None:
        """Tell everybody who waits."""
        for part, _ in self.unsynced:
            part.fail(error)
        self.unsynced.clear()
