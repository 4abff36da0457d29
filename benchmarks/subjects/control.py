"""Not queues: what the disk and the event loop do by themselves, to read the other figures by."""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Durability, Operation, Session, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["SUBJECTS"]

# macOS has no fdatasync.
_sync = getattr(os, "fdatasync", os.fsync)


class _WriteOnly(Session):
    """A yardstick for puts: its `operations` have no case ask for more."""

    async def take(self) -> None:
        raise io.UnsupportedOperation("nothing can be taken from a yardstick")


class _File(_WriteOnly):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def put(self, body: bytes) -> None:
        os.write(self._descriptor, body)
        _sync(self._descriptor)

    async def put_many(self, bodies: list[bytes]) -> None:
        await self.put(b"".join(bodies))


class _Idle(_WriteOnly):
    async def put(self, body: bytes) -> None:  # noqa: ARG002 - puts nothing
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _open_file(path: Path) -> AsyncIterator[Session]:
    descriptor = os.open(path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield _File(descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def _open_idle(_path: Path) -> AsyncIterator[Session]:
    yield _Idle()


SUBJECTS = [
    Subject(
        name="control: write + fdatasync",
        package="control",
        durability=Durability.SYNCED,
        promise="the disk alone: one write and one sync a call",
        blocking=True,
        operations=frozenset({Operation.PUT, Operation.PUT_MANY, Operation.TIMED_PUT, Operation.LAG}),
        open=_open_file,
    ),
    Subject(
        name="control: idle loop",
        package="control",
        durability=Durability.SYNCED,
        promise="the loop alone: nothing is put",
        blocking=False,
        operations=frozenset({Operation.LAG}),
        open=_open_idle,
    ),
]
