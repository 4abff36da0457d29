"""The syncer: when the log is synced, and which batches wait for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.engine.loop.futures import settle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiodq.engine.loop.sync_backend import SyncBackend, Synced
    from aiodq.engine.monitoring.metrics import SyncTimer
    from aiodq.options import StoreOptions

__all__ = ["NEVER", "Syncer"]

NEVER: Final = 1 << 62
"""No log ends here."""


class Syncer:
    """Counts batches by serial number: which were written, and which of those are on the device.

    At most one sync is in flight; what is written meanwhile waits for the next.

    Attributes:
        busy: whether a sync is in flight.
        due: whether a sync is due: by time under `"interval"`, or on request.
        written: the serial number of the last batch written.
        count: the number of syncs so far.
        options: the topic's options.
        waiting: the futures of calls that wait for a batch to be durable, with its serial number.
        wake: gives the ioLoop a turn.
    """

    __slots__ = (
        "_begun",
        "_pressing",
        "_report",
        "_synced",
        "_syncs",
        "_target",
        "_timer",
        "busy",
        "count",
        "due",
        "options",
        "waiting",
        "wake",
        "written",
    )  # fmt: skip

    def __init__(
        self,
        options: StoreOptions,
        syncs: SyncBackend,
        timer: SyncTimer,
        wake: Callable[[], None],
        report: Callable[[None, BaseException | None], None],
        *,
        end: int,
    ) -> None:
        """Start with nothing written from the offset `end` on; `report` tells the ioLoop how a sync has ended."""
        self.busy: bool = False
        self.due: bool = False
        self.written: int = 0
        self.count: int = 0
        self.options: StoreOptions = options
        self._syncs = syncs
        self.wake: Callable[[], None] = wake
        self._report = report
        self._timer = timer
        self._synced = 0
        self._target = 0
        self._pressing = 0
        self._begun = end
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def wrote(self, serial: int, *, pressing: bool = True) -> None:
        """Note that a batch is in the file; `pressing`: it is shown once it is synced, which is to be at once."""
        self.written = serial
        if pressing:
            self._pressing = serial

    def due_at(self) -> int:
        """Return the offset up to which the log is shown once a sync is due by `sync_every`, under `"interval"`."""
        return self._begun + self.options.sync_every

    @property
    def lagging(self) -> bool:
        """Whether something was written that is not on the device."""
        return self.written > self._synced

    def sync_now(self) -> None:
        """Have everything written synced at once, whatever the policy."""
        self.due = True

    def nothing_to_sync(self) -> None:
        """Note that the last write added no bytes."""
        if not self.busy:
            self._synced = self.written

    def needed(self, end: int) -> bool:
        """Return whether a sync is to be started now, for a log that is shown up to `end`."""
        if self.busy or self.written <= self._synced:
            self.due = self.due and self.written > self._synced
            return False
        # INVARIANT: what is shown once it is synced is synced, also if the policy has changed since it was written.
        if self.waiting or self.due or self._pressing > self._synced:
            return True
        return self.options.sync == "interval" and end >= self.due_at()

    def start(self, log: Synced, end: int, then: Callable[[], None] | None = None) -> None:
        """Sync everything written so far, off the loop; a thread that does so calls `then` before it notifies the loop.

        Args:
            log: the log.
            end: the offset up to which it is shown.
            then: see `SyncBackend.start`.
        """
        self.busy = True
        self.due = False
        self._target = self.written
        self._begun = end
        self._timer.began()
        self._syncs.start(log, self._report, then)

    def ended(self, error: BaseException | None) -> None:
        """Note that the sync in flight has ended.

        Raises:
            StoreFailedError: the sync failed.
        """
        self.busy = False
        self._timer.ended()
        if error is not None:
            raise error
        self.count += 1
        self._synced = max(self._synced, self._target)

    def wait(self, serial: int, done: asyncio.Future[None]) -> None:
        """Settle `done` once this batch is on the device."""
        self.waiting.append((serial, done))

    def resolve(self) -> None:
        """Resolve the waiters of durable batches."""
        waiting, self.waiting = self.waiting, []
        for serial, done in waiting:
            if serial <= self._synced:
                settle(done, None, None)
            else:
                self.waiting.append((serial, done))

    def fail(self, error: Exception) -> None:
        """Fail all waiters."""
        for _, done in self.waiting:
            settle(done, None, error)
        self.waiting.clear()
