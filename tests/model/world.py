"""The stores under test: opened in one of the modes, closed, killed, their power cut, their owner replaced."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import aiodq
from aiodq.shared.connection.wires.socket_wire import SocketWire
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.store_layout import CLIENTS, SOCKET
from aiodq.testing import FakeClock, SimulatedExecutor, SimulatedFileSystem, WatchedFileSystem
from tests.model.threads import ThreadsClock, open_in_threads
from tests.processes import environment

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from aiodq.opening import Mode
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["MODES", "Kind", "World"]

Kind: TypeAlias = Literal["simulated", "exclusive", "threads", "shared", "client"]
MODES: Final[tuple[Kind, ...]] = ("simulated", "exclusive", "threads", "shared", "client")
"""In `simulated`, disk, threads and time are simulated, so that a seed repeats a run exactly; `threads`: aiodq.sync."""


_MEMBERS: Final[dict[Kind, list[Mode]]] = {
    "simulated": ["exclusive"],
    "exclusive": ["exclusive"],
    "threads": ["exclusive"],
    "shared": ["shared"],
    "client": ["shared", "shared", "client"],
}

_OWNER_FIRST: Final = 0.05
"""How often the owner leaves first. The next one may wait some seconds for who is gone by then."""


_STOPPED: Final = 0.3
"""How many members end their deliveries as at SIGTERM."""


def _place(member: aiodq.Store) -> int:
    """Return how much others depend on a member: on the owner, and on who may be the next one."""
    remote = member._remote if isinstance(member, SharedStore) else None
    return 0 if remote is None else remote._may_own + (remote.owner is not None)


class World:
    """One store, and its members: the objects through which it is used, of which the first one may be its owner.

    Attributes:
        kind: what is tried.
        child: another process that owns the store.
        power: whether power cuts are possible.
    """

    def __init__(self, kind: Kind, rng: Random, directory: Path, options: aiodq.StoreOptions) -> None:
        self.kind, self.rng, self.options = kind, rng, options
        self.clock = ThreadsClock() if kind == "threads" else FakeClock()
        self.members: list[aiodq.Store] = []
        self.power = kind == "simulated"
        self._directory, self._lives = directory, 0
        self._simulated = SimulatedFileSystem()
        self._watched = WatchedFileSystem()
        self._path = "/store" if kind == "simulated" else str(directory / "0")
        self.child: asyncio.subprocess.Process | None = None

    @property
    def exact(self) -> bool:
        """Whether one process has the store for itself, so that nothing is read ahead for others."""
        return self.kind in {"simulated", "exclusive", "threads"}

    @property
    def still(self) -> bool:
        """Whether nothing happens between two calls."""
        return self.kind in {"simulated", "exclusive"}

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._path

    @property
    def disk(self) -> FileSystem:
        """The file system that it is on."""
        return self._simulated if self.kind == "simulated" else self._watched

    def verify(self) -> None:
        """Read every byte: nothing may be wrong, whether somebody has the store open or not."""
        report = verify_store(self._path, self.disk)
        assert report.ok, f"a verification finds {report.damages}"

    def any(self) -> aiodq.Store:
        """Return one of the members."""
        return self.rng.choice(self.members)

    async def open(self, *, elsewhere: bool = False) -> None:
        """Open the store as often as this mode has it; with `elsewhere`, a process that is to be killed owns it."""
        if elsewhere:
            options = json.dumps({"sync": self.options.sync, "sync_every": self.options.sync_every})
            arguments = [self._path, str(self.clock.monotonic()), options]
            command = [sys.executable, "-m", "tests.model.owner", *arguments]
            self.child = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, env=environment())
            assert self.child.stdout is not None
            assert await self.child.stdout.readline() == b"serving\n"
        for mode in _MEMBERS[self.kind]:
            self.members.append(await self._opened(mode))

    async def _opened(self, mode: Mode) -> aiodq.Store:
        if self.kind == "simulated":
            executor = SimulatedExecutor(asyncio.get_running_loop(), self._simulated, self.rng.getrandbits(32))
            return await aiodq.open(self._path, self.options, fs=self._simulated, clock=self.clock, executor=executor)
        if isinstance(self.clock, ThreadsClock):
            store: aiodq.Store = await open_in_threads(self._path, self.options, self._watched, self.clock)
            return store
        return await aiodq.open(self._path, self.options, mode=mode, fs=self._watched, clock=self.clock)

    async def close(self) -> None:
        """Have all members leave: the owner last, or sometimes first, so that the next one has to take over."""
        await self.kill_owner()
        members, self.members = self.members, []
        members.sort(key=_place)
        if self.rng.random() < _OWNER_FIRST and _place(members[-1]) > 1:
            members.insert(0, members.pop())
        for member in members:
            await (member.stop(grace=0.0) if self.rng.random() < _STOPPED else member.aclose())

    async def kill_owner(self) -> None:
        """Kill the process that owns the store; one of the members takes over."""
        if self.child is not None:
            self.child.kill()
            await self.child.wait()
            self.child = None

    async def crash(self, *, power: bool) -> None:
        """Go on with what is on disk now, as if all processes had been killed, or as if the power had been cut."""
        if self.kind == "simulated":
            image = self._simulated.durable() if power else self._simulated.image()
            await self.close()
            self._simulated = SimulatedFileSystem(image)
        else:
            await self.kill_owner()
            target = self.another_place()
            with self._watched.frozen():
                shutil.copytree(self._path, target, ignore=shutil.ignore_patterns(f"{SOCKET}*", CLIENTS))
            await self.close()
            shutil.rmtree(self._path)
            self._path = target
        self.verify()
        await self.open()

    def connections(self) -> list[SocketWire]:
        """Return the connections of the members to an owner outside, as far as there are any."""
        wires = [member._remote.link._wire for member in self.members if isinstance(member, SharedStore)]
        return [wire for wire in wires if isinstance(wire, SocketWire)]

    def another_place(self) -> str:
        """Return a path at which nothing is."""
        self._lives += 1
        return f"/{self._lives}" if self.kind == "simulated" else str(self._directory / str(self._lives))

    async def go_on_with(self, copy: str, *, power: bool) -> None:
        """Have a copy of the store in its place; with `power`, its power is cut before, if that is possible."""
        image = self._simulated.durable() if power else self._simulated.image()
        await self.close()
        if self.kind == "simulated":
            self._simulated = SimulatedFileSystem(image)
        else:
            shutil.rmtree(self._path)
        self._path = copy
        await self.open()

    async def replace(self, number: int) -> aiodq.Store:
        """Have a member leave and another one come; return who left."""
        gone = self.members.pop(number)
        await gone.aclose()
        self.members.insert(number, await self._opened(_MEMBERS[self.kind][number]))
        return gone
