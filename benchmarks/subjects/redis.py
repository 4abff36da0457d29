"""Redis Streams over redis.asyncio: a server of our own on a Unix socket, started and stopped with each session."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as NotConnectedError

from benchmarks.harness import BATCH, KEPT, Durability, Guarantee, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS", "prepare", "server_command"]

Policy = Literal["always", "everysec"]

STREAM, GROUP, CONSUMER, FIELD = "queue", "group", "consumer", b"b"
STARTING = 20.0
"""Seconds that a server may take to load what it has."""
MOST = 1000
"""Connections at once, one for each task that waits for the server."""
TASKS = 100
"""Connections that are made before the clock runs, as many as most cases have tasks."""
TOGETHER = 100
"""Messages that are read at once, worked off one by one, and acked together."""


class _Session(Session):
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def put(self, body: bytes) -> None:
        await self._client.xadd(STREAM, {FIELD: body})

    async def put_many(self, bodies: list[bytes]) -> None:
        async with self._client.pipeline(transaction=True) as pipeline:
            for body in bodies:
                pipeline.xadd(STREAM, {FIELD: body})
            await pipeline.execute()

    async def _read(self, count: int) -> list[bytes]:
        """Take so many at most; return their identifiers."""
        read: Any = await self._client.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=count)
        ((_stream, entries),) = read
        return [number for number, _fields in entries]

    async def take(self) -> None:
        await self._client.xack(STREAM, GROUP, *await self._read(1))

    async def _consume(self, count: int, together: int) -> None:
        left = count
        while left > 0:
            numbers = await self._read(min(left, together))
            await self._client.xack(STREAM, GROUP, *numbers)
            left -= len(numbers)

    async def iterate(self, count: int) -> None:
        await self._consume(count, TOGETHER)

    async def take_many(self, count: int) -> None:
        await self._consume(count, BATCH)


def server_command(path: Path, policy: Policy) -> list[str]:
    """Return the command that starts a server; where it can be, it is told to end with us, however we end."""
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    options = {
        "port": "0",
        "unixsocket": str(path / "redis.sock"),
        "dir": str(path),
        "appendonly": "yes",
        "appendfsync": policy,
        "save": "",
        "logfile": str(path / "redis.log"),
    }
    return [*guard, "redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]


async def _connected(client: Redis) -> None:
    """Wait until the server has loaded what there is, and make the group."""
    async with asyncio.timeout(STARTING):
        while True:
            try:
                await client.ping()
                break
            except (NotConnectedError, BusyLoadingError):
                await asyncio.sleep(0.005)
    try:
        await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


@asynccontextmanager
async def _open(path: Path, policy: Policy) -> AsyncIterator[Session]:
    server = await asyncio.create_subprocess_exec(*server_command(path, policy), stdout=subprocess.DEVNULL)
    try:
        async with Redis(unix_socket_path=str(path / "redis.sock"), protocol=2, max_connections=MOST) as client:
            await _connected(client)
            await asyncio.gather(*(client.ping() for _ in range(TASKS)))
            yield _Session(client)
    finally:
        server.terminate()
        await server.wait()


def prepare() -> str:
    """Return why there is no server, or nothing, having installed it where this user may."""
    if shutil.which("redis-server") is not None:
        return ""
    if shutil.which("apt-get") is None:
        return "skipped: redis-server has to be installed by hand where there is no apt-get"
    if os.geteuid() != 0:
        return "skipped: there is no redis-server, and only root may install it"
    environment, told = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, ""
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "redis-server"]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - written right there
        told = done.stderr.strip()
    return "" if shutil.which("redis-server") else f"skipped: apt-get could not install redis-server: {told}"


def _subject(policy: Policy, durability: Durability, promise: str, put: Guarantee, take: Guarantee) -> Subject:
    return Subject(
        name=f"Redis Streams {policy}",
        package="redis",
        durability=durability,
        promise=promise,
        blocking=False,
        operations=frozenset(Operation) - {Operation.MOVE},
        open=partial(_open, policy=policy),
        put=put,
        take=take,
    )


SUBJECTS = [
    _subject("always", Durability.SYNCED, "the server's log is fsynced before it answers", KEPT, KEPT),
    _subject(
        "everysec",
        Durability.DEFERRED,
        "in the server's log; fsync each second",
        Guarantee("kept", "lost: up to 2 s"),
        Guarantee("kept", "again: up to 2 s"),
    ),
]
