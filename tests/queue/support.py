"""What these tests share: a file system that is watched and disturbed, crash images, and ways to wait for an event."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiodq
from aiodq.storage.io.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, Lock

T = TypeVar("T")
RuleT = TypeVar("RuleT", bound="Callable[[Call], None]")

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


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so that nobody tells."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


# ------------------------------------------------------------------------------------------------------- file system


@dataclass(slots=True)
class Call:
    """One call of the file system.

    Attributes:
        number: counted from 0.
        kind: the method's name; `create` for an `open` that creates.
        path: the file or directory.
        data: what was written.
        begun, ended: at which tick of the file system's own clock; 0 where it has not ended.
    """

    number: int
    kind: str
    path: str
    data: bytes = b""
    begun: int = 0
    ended: int = 0

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def segment(self) -> bool:
        return self.path.endswith(".seg")


class Gate:
    """Holds up the calls it is asked about, in their threads, until it is opened."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self._matches = matches
        self._open = threading.Event()
        self.reached = 0

    def __call__(self, call: Call) -> None:
        if self._matches(call) and not self._open.is_set():
            # A gate in the event loop's own way would hold up the test as well.
            assert threading.current_thread() is not threading.main_thread(), call
            self.reached += 1
            assert self._open.wait(PATIENCE * 2)

    def open(self) -> None:
        self._open.set()

    async def wait(self, number: int = 1) -> None:
        """Wait until so many calls are held up, or were."""
        await until(lambda: self.reached >= number)


class Fault:
    """Fails the calls it is asked about, from the `at`-th on; `times` of them, or all."""

    def __init__(self, error: int, matches: Callable[[Call], bool], at: int = 1, times: int | None = None) -> None:
        self._error = error
        self._matches = matches
        self._at = at
        self._times = times
        self.seen = 0
        self.hits = 0

    def __call__(self, call: Call) -> None:
        if not self._matches(call):
            return
        self.seen += 1
        if self.seen >= self._at and (self._times is None or self.hits < self._times):
            self.hits += 1
            raise OSError(self._error, os.strerror(self._error), call.path)


class SpyFileSystem:
    """The machine's file system; each call is noted, and may be held up or failed.

    Nothing is synced to the device unless `sync` says so: the tests that use this cut no power.
    """

    def __init__(self, *, sync: bool = False) -> None:
        self._real = OsFileSystem()
        self._sync = sync
        self._mutex = threading.RLock()
        self._freeze = threading.RLock()
        self._ticks = 0
        self.calls: list[Call] = []
        self.rules: list[Callable[[Call], None]] = []
        self.open_files = 0

    # --- for tests

    def tick(self) -> int:
        """Return a moment between calls, on the clock of `Call.begun` and `Call.ended`."""
        with self._mutex:
            self._ticks += 1
            return self._ticks

    def add(self, rule: RuleT) -> RuleT:
        self.rules.append(rule)
        return rule

    def fail(self, error: int, *kinds: str, match: str = "", at: int = 1, times: int | None = None) -> Fault:
        """Fail calls of these kinds whose path contains `match`."""
        return self.add(Fault(error, lambda call: call.kind in kinds and match in call.path, at, times))

    def gate(self, *kinds: str, match: str = "") -> Gate:
        """Hold up calls of these kinds whose path contains `match`."""
        return self.add(Gate(lambda call: call.kind in kinds and match in call.path))

    def heal(self) -> None:
        """Let everything pass from now on."""
        for rule in self.rules:
            if isinstance(rule, Gate):
                rule.open()
        self.rules.clear()

    def named(self, *kinds: str, match: str = "", since: int = 0) -> list[Call]:
        with self._mutex:
            return [call for call in self.calls[since:] if call.kind in kinds and match in call.path]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing changes on disk meanwhile."""
        with self._freeze:
            yield

    @contextmanager
    def passing(self, kind: str, path: str, data: bytes = b"") -> Iterator[Call]:
        with self._mutex:
            call = Call(len(self.calls), kind, path, data, self.tick())
            self.calls.append(call)
        for rule in list(self.rules):
            rule(call)
        if kind in {"read", "sync", "sync_directory", "listdir", "open"}:
            yield call
        else:
            with self._freeze:
                yield call
        call.ended = self.tick()

    # --- FileSystem

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        with self.passing("create" if create else "open", path):
            file = self._real.open(path, write=write, create=create)
        with self._mutex:
            self.open_files += 1
        return SpyFile(self, file, path, sync=self._sync)

    def listdir(self, path: str) -> list[str]:
        with self.passing("listdir", path):
            return self._real.listdir(path)

    def is_directory(self, path: str) -> bool:
        return self._real.is_directory(path)

    def exists(self, path: str) -> bool:
        return self._real.exists(path)

    def make_directory(self, path: str) -> None:
        with self.passing("make_directory", path):
            self._real.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        with self.passing("rename", target):
            self._real.rename(source, target)

    def remove(self, path: str) -> None:
        with self.passing("remove", path):
            self._real.remove(path)

    def remove_directory(self, path: str) -> None:
        with self.passing("remove_directory", path):
            self._real.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        with self.passing("sync_directory", path):
            if self._sync:
                self._real.sync_directory(path)

    def lock(self, path: str) -> Lock:
        return self._real.lock(path)


class SpyFile:
    """A file of a `SpyFileSystem`."""

    def __init__(self, fs: SpyFileSystem, file: File, path: str, *, sync: bool) -> None:
        self._fs = fs
        self._file = file
        self._path = path
        self._sync = sync
        self._closed = False

    def read_at(self, size: int, position: int) -> bytes:
        with self._fs.passing("read", self._path):
            return self._file.read_at(size, position)

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        with self._fs.passing("write", self._path, b"".join(buffers)):
            return self._file.write_at(buffers, position)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        with self._fs.passing("truncate", self._path):
            self._file.truncate(size)

    def sync(self) -> None:
        with self._fs.passing("sync", self._path):
            if self._sync:
                self._file.sync()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._fs._mutex:
                self._fs.open_files -= 1
        self._file.close()


def log_syncs(fs: SpyFileSystem, since: int = 0) -> int:
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
def healed(fs: SpyFileSystem) -> Iterator[None]:
    """Let a test that fails close its store: what it left closed would hold that up."""
    try:
        yield
    except BaseException:
        fs.heal()
        raise


@asynccontextmanager
async def queue(
    path: Path | str, *, fs: SpyFileSystem | None = None, channel: aiodq.ChannelOptions | None = None, **given: object
) -> AsyncIterator[aiodq.Queue]:
    """Open a queue that does not wait for the device."""
    fs = fs or SpyFileSystem()
    async with aiodq.open_queue(path, options(**given), channel, fs=fs) as opened:
        with healed(fs):
            yield opened


@asynccontextmanager
async def store(path: Path | str, *, fs: SpyFileSystem | None = None, **given: object) -> AsyncIterator[aiodq.Store]:
    """Open a store that does not wait for the device."""
    fs = fs or SpyFileSystem()
    async with aiodq.open(path, options(**given), fs=fs) as opened:
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


def crash_image(path: Path | str, target: Path, fs: SpyFileSystem | None = None) -> Path:
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
        fs: SpyFileSystem,
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

    def __call__(self, call: Call) -> None:
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
