"""What these tests share: a file system that is watched and disturbed, crash images, and ways to wait for an event."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiodq
from aiodq.testing import Passed, WatchedFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from aiodq.clock import Clock

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which what should have ended counts as hanging. No test waits for it to pass."""


async def soon(awaitable: Awaitable[T]) -> T:
    """Return what comes of it; a hang is a failure."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def turns(number: int = 5) -> None:
    """Let everything that is ready to run do so, several times over."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that nobody tells."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def log_syncs(fs: WatchedFileSystem, since: int = 0) -> int:
    """Return how often a segment was synced."""
    return len(fs.named("sync", match=".seg", since=since))


# -------------------------------------------------------------------------------------------------------------- time


@dataclass(slots=True)
class FakeClock:
    """Wall time that stands still until it is moved."""

    now: int = 1_700_000_000_000_000_000

    def now_ns(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e9

    def move(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


# ------------------------------------------------------------------------------------------------------------ queues


def options(**given: Any) -> aiodq.StoreOptions:
    """Return options with small segments unless something else is asked for."""
    return aiodq.StoreOptions(**given)


@contextmanager
def healed(fs: WatchedFileSystem) -> Iterator[None]:
    """Let a test that fails close its store: what it left closed would hold that up."""
    try:
        yield
    except BaseException:
        fs.heal()
        raise


@asynccontextmanager
async def queue(
    path: Path | str,
    *,
    fs: WatchedFileSystem | None = None,
    channel: aiodq.ChannelOptions | None = None,
    **given: object,
) -> AsyncIterator[aiodq.Queue]:
    """Open a queue that does not wait for the device."""
    fs = fs or WatchedFileSystem()
    async with aiodq.open_queue(path, options(**given), channel, fs=fs) as opened:
        with healed(fs):
            yield opened


@asynccontextmanager
async def store(
    path: Path | str, *, fs: WatchedFileSystem | None = None, clock: Clock | None = None, **given: object
) -> AsyncIterator[aiodq.Store]:
    """Open a store that does not wait for the device."""
    fs = fs or WatchedFileSystem()
    async with aiodq.open(path, options(**given), fs=fs, clock=clock) as opened:
        with healed(fs):
            yield opened


async def fill(target: aiodq.Queue | aiodq.Topic, bodies: Iterable[bytes]) -> list[int]:
    """Put bodies one by one."""
    return [await target.put(body) for body in bodies]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return bodies that tell their place."""
    return [b"%d" % number for number in range(start, start + count)]


async def take(channel: aiodq.Channel, count: int) -> list[aiodq.Message]:
    """Get so many messages."""
    return [await soon(channel.get()) for _ in range(count)]


async def drain(channel: aiodq.Channel) -> list[bytes]:
    """Get and ack everything that is ready; return the bodies."""
    bodies = []
    while not channel.empty():
        message = await soon(channel.get())
        bodies.append(message.body)
        await message.ack()
    return bodies


def ready_now(channel: aiodq.Channel) -> list[bytes]:
    """Take everything that may be had at once; return the bodies."""
    bodies = []
    with suppress(aiodq.QueueEmpty):
        while True:
            bodies.append(channel.get_nowait().body)
    return bodies


def bodies_of(messages: Iterable[aiodq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def crash_image(path: Path | str, target: Path, fs: WatchedFileSystem | None = None) -> Path:
    """Copy the directory as a killed process would leave it at this moment."""
    with fs.frozen() if fs is not None else nullcontext():
        shutil.copytree(path, target)
    return target


class Camera:
    """Takes crash images of a store, from any thread, and notes with each what was promised by then.

    Attributes:
        images: (the copy, what `before` gave just before it was taken, what `after` gave just after).
    """

    def __init__(
        self,
        fs: WatchedFileSystem,
        path: Path,
        target: Path,
        *kinds: str,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self._fs = fs
        self._path = path
        self._target = target
        self._kinds = frozenset(kinds)
        self._before = before
        self._after = after
        self._mutex = threading.Lock()
        self.images: list[tuple[Path, Any, Any]] = []

    def __call__(self, call: Passed) -> None:
        if call.kind in self._kinds:
            self.take()

    def take(self) -> None:
        with self._mutex, self._fs.frozen():
            if self._path.exists():
                before = self._before()
                copy = crash_image(self._path, self._target / str(len(self.images)))
                self.images.append((copy, before, self._after()))

    @property
    def copies(self) -> list[Path]:
        return [copy for copy, _, _ in self.images]


CHANGES = ("write", "create", "rename", "remove", "truncate", "sync", "make_directory", "remove_directory")
"""The kinds of calls before which an image may differ from the one before the last such call."""


def files_under(path: Path | str) -> dict[str, bytes]:
    """Return every file's content, by its path."""
    root = Path(path)
    return {str(found.relative_to(root)): found.read_bytes() for found in sorted(root.rglob("*")) if found.is_file()}


def segments(path: Path | str, topic: str = "queue") -> list[Path]:
    """Return a topic's segment files in order."""
    return sorted((Path(path) / topic).glob("*.seg"))


def odd_files(path: Path | str) -> list[str]:
    """Return the names of files that tell of damage, or that somebody forgot."""
    names = [found.name for found in Path(path).rglob("*") if found.is_file()]
    return [name for name in names if "damaged" in name or name.endswith((".bad", ".aiodq-tmp"))]


@dataclass(slots=True)
class Tasks:
    """Tasks of a test, each of which must have ended with it."""

    running: list[asyncio.Task[object]] = field(default_factory=list)

    def start(self, awaitable: Awaitable[T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(awaitable)
        assert isinstance(task, asyncio.Task)
        self.running.append(task)
        return task

    async def end(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


def outcome(task: asyncio.Task[object]) -> object:
    """Return what a task ended with: its result, or its exception."""
    assert task.done(), task
    return task.exception() or task.result()
