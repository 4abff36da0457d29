"""Processes of one machine, all of them simulated in this one: each opens the store for itself, and may be killed."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from unittest import mock

import aiodq
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.storage.io.os_errors import os_error
from aiodq.testing import FaultPlan, SimulatedExecutor, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.clock import Clock
    from aiodq.opening import Mode
    from aiodq.shared.client.remote_store import RemoteStore
    from aiodq.shared.server.owner import Owner
    from aiodq.storage.io.filesystem import Lock
    from aiodq.testing import Call
    from aiodq.testing.tree import Node

__all__ = ["Process", "Threads"]

_NOWHERE: Final = f"{os.devnull}/nowhere"
"""A path at which nothing can be written."""


class _Lock:
    """What a process has locked."""

    def __init__(self, lock: Lock) -> None:
        self._lock: Lock | None = lock

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:  # or somebody else may hold it by now
            lock.release()


class _Disk(SimulatedFileSystem):
    """The machine's disk, as one process sees it: its calls fail by a plan of its own, and end with it.

    Attributes:
        doomed: called once a sync has taken effect, when the process ends before anybody is told of that; or None.
    """

    def __init__(self, machine: SimulatedFileSystem) -> None:
        self.__dict__.update(vars(machine))
        self.plan = FaultPlan()
        self.doomed: Callable[[], object] | None = None
        self._taken = list[_Lock]()

    @property
    def over(self) -> bool:
        return self._lost

    def _sync(self, node: Node, path: str, call: Call) -> None:
        super()._sync(node, path, call)
        if self.doomed is not None:
            self.end()
            self.doomed()
            raise os_error(errno.EIO, path)

    def lock(self, path: str) -> Lock:
        self._taken.append(_Lock(super().lock(path)))
        return self._taken[-1]

    def end(self) -> None:
        """Let nothing more reach the disk, and release what was locked."""
        self.unplug()
        for lock in self._taken:
            lock.release()


class Threads(SimulatedExecutor):
    """The threads of all processes, of which one moves at a time. They end with the run, and not with a store."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002 - the base's
        """Do nothing."""
        del wait, cancel_futures

    def end(self) -> None:
        """Bring all work to its end, at once."""
        super().shutdown()


class Process:
    """One process.

    Attributes:
        mode: in which it opens the store.
        disk: the machine's, as it sees it.
        store: what it has open.
        killed: whether it was killed.
    """

    def __init__(self, mode: Mode, machine: SimulatedFileSystem, threads: Threads) -> None:
        """Begin on this machine, with some of its threads."""
        self.mode, self.disk, self.killed = mode, _Disk(machine), False
        self.store: aiodq.Store
        self._threads = threads

    def __str__(self) -> str:
        return f"{self.mode}{'!' if self.owns else ''}"

    @property
    def owns(self) -> bool:
        """Whether it owns the store."""
        return not isinstance(self.store, SharedStore) or self.store._remote.owner is not None

    async def open(self, path: str, options: aiodq.StoreOptions, clock: Clock) -> None:
        """Open the store."""
        threads = partial(WorkerThreads, executor=self._threads)
        with mock.patch("aiodq.shared.client.remote_store.WorkerThreads", threads):
            self.store = await aiodq.open(
                path, options, mode=self.mode, fs=self.disk, clock=clock, executor=self._threads
            )

    async def close(self) -> None:
        """Close the store."""
        await self.store.aclose()

    def disconnect(self) -> None:
        """Have the connection to the owner end, if that is another process."""
        wire = self.store._remote.link._wire if isinstance(self.store, SharedStore) else None
        if isinstance(wire, SocketWire):
            wire.abort()

    async def sync_once_more(self) -> None:
        """Have it get no further than to its next sync, for which it has a tenth of a second."""
        self.killed = True
        # In the next turn of the loop, before anybody hears of the sync.
        self.disk.doomed = partial(asyncio.get_running_loop().call_soon, self._hang_up)
        for _ in range(100):
            if not self.disk.over:
                await asyncio.sleep(0.001)

    def _hang_up(self) -> None:
        if isinstance(self.store, SharedStore) and self.store._remote.owner is not None:
            _hang_up(self.store._remote.owner)

    async def kill(self) -> None:
        """End without a word: what the others see of it from now on is that its connections are gone."""
        self.killed = True
        self.disk.end()
        with suppress(aiodq.AiodqError):
            if isinstance(self.store, SharedStore):
                await _cut(self.store._remote)
            else:
                await self.store.aclose()


async def _cut(remote: RemoteStore) -> None:
    remote._closing = True
    if remote.owner is not None:
        await _silence(remote.owner)
    if remote.link._wire is not None:
        remote.link._wire.abort()
    await remote._release()


def _hang_up(owner: Owner) -> None:
    owner.closing = True
    owner._noted._path, owner._noted._written = _NOWHERE, None
    for connection in list(owner._connections):
        connection.abort()


async def _silence(owner: Owner) -> None:
    """Have an owner note and answer nothing any more, and leave its socket behind."""
    _hang_up(owner)
    await owner._accept_no_more()
    if owner._listening is not None:
        owner._listening.stop()
