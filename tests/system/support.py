"""What the system tests share: engines without threads, files that stall."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aiodq import QueueEmpty
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.kernel_aio import KernelAio
from aiodq.testing import WrappedFileSystem
from tests.processes import ROOT, WATCHDOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aiodq import Channel, Message, Queue
    from aiodq.storage.io.filesystem import File
    from aiodq.testing import Call

T = TypeVar("T")

# --- running


def run_script(script: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter; a hang is a failure."""
    command = [sys.executable, "-X", "dev", "-c", script, *arguments]
    # All of the development mode but its allocator, which looks for mistakes in C and takes a tenth of a short child.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONMALLOC": "pymalloc"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WATCHDOG, env=environment, cwd=ROOT, check=False
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def drain(channel: Channel | Queue) -> list[Message]:
    """Take everything that is ready."""
    messages: list[Message] = []
    while True:
        try:
            messages.append(channel.get_nowait())
        except QueueEmpty:
            return messages


def bodies(messages: Sequence[Message]) -> list[bytes]:
    """Return their bodies."""
    return [message.body for message in messages]


# --- what must not be left behind


def open_descriptors() -> dict[int, str]:
    """Return what this process has open, by descriptor."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that listed them
    return found


def descriptors_under(path: Path) -> list[str]:
    """Return the files below `path` that this process has open."""
    return sorted(target for target in open_descriptors().values() if target.startswith(str(path)))


def engine_threads() -> list[str]:
    """Return the names of the engine's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("aiodq")]


@contextmanager
def nothing_left() -> Iterator[None]:
    """Assert that no task stays pending and that the loop is told of no exception that nobody took."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    known = asyncio.all_tasks()
    try:
        yield
        gc.collect(0)
        assert not asyncio.all_tasks() - known
    finally:
        loop.set_exception_handler(before)
    assert not complaints, complaints


# --- an engine whose every step is a step of the loop


class InlineOffload:
    """In the place of `WorkerThreads`: the work is done on the loop, a step after it was asked for.

    So a run consists of the loop's steps and nothing else, and "cancelled after step n" means the same every time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, fail: object = None) -> None:
        self._loop = loop
        self.workers, self.fail = workers, fail
        self._outstanding = 0

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = self._loop.create_future()

        def report(result: object, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        self.start(lambda: function(*args, **kwargs), report)
        return await done

    def start(
        self,
        function: Callable[[], Any],
        report: Callable[[Any, BaseException | None], None],
        _then: Callable[[], None] | None = None,
    ) -> None:
        # Nobody is told of anything before the loop is: it does all of this itself.
        self._outstanding += 1
        self._loop.call_soon(self._work, function, report)

    def _work(self, function: Callable[[], Any], report: Callable[[Any, BaseException | None], None]) -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:  # noqa: BLE001 - handed on whatever it is, as `WorkerThreads` does
            error = raised
        self._outstanding -= 1
        self._loop.call_soon(report, result, error)

    async def over(self) -> None:
        while self._outstanding:
            await asyncio.sleep(0)

    def tell_ended(self) -> None:
        """Nothing ends but on the loop."""

    def shutdown(self, *, wait: bool = True) -> None:
        """There is nothing to end."""


# --- file systems


def require_aio() -> None:
    """Skip a test on a system whose kernel does not sync in the background."""
    import pytest  # noqa: PLC0415 - a third of a short child's imports, and children import this module

    try:
        KernelAio().close()
    except OSError as refused:
        pytest.skip(f"needs io_submit, which this system does not give: {refused}")


class QuickFileSystem(OsFileSystem):
    """The machine's, but nothing waits for the device: for tests that cut no power."""

    __slots__ = ()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return QuickFile(super().open(path, write=write, create=create))

    def sync_directory(self, path: str) -> None:
        pass


class QuickFile:
    """As lean as can be: it is under what is counted and timed."""

    def __init__(self, file: File) -> None:
        self.read_at = file.read_at
        self.write_at = file.write_at
        self.size = file.size
        self.truncate = file.truncate
        self.close = file.close

    def sync(self) -> None:
        pass


class StallingFileSystem(WrappedFileSystem):
    """A slow disk under the test's control: while `hold`, a segment's sync waits until it is let go.

    Attributes:
        events: of segments: ("write", data) when done, ("sync", number) when it begins, ("synced", number) at its end.
        syncs: how many began; a sync's number is its place in that count, from 1.
        ended: how many ended.
        match: what the path of a segment has to contain for its syncs to be held.
    """

    def __init__(self, match: str = "") -> None:
        super().__init__()
        self.events: list[tuple[str, bytes | int]] = []
        self.syncs = self.ended = 0
        self.hold = False
        self.match = match
        self._passes = threading.Semaphore(0)

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        if not path.endswith(".seg") or self.match not in path or call not in {"write", "sync"}:
            return super().passing(call, path, perform, *args)
        number = self.stall() if call == "sync" else 0
        result = super().passing(call, path, perform, *args)
        if call == "sync":
            self.ended += 1
            self.events.append(("synced", number))
        else:
            self.events.append(("write", b"".join(args[0])[: cast("int", result)]))
        return result

    @property
    def in_flight(self) -> int:
        """How many syncs have begun and not ended."""
        return self.syncs - self.ended

    def let_go(self, number: int = 1) -> None:
        """Let this many syncs pass."""
        self._passes.release(number)

    def release(self) -> None:
        """Hold nothing any more."""
        self.hold = False
        self._passes.release(1000)

    def stall(self) -> int:
        self.syncs += 1
        number = self.syncs
        self.events.append(("sync", number))
        if self.hold and not self._passes.acquire(timeout=WATCHDOG):
            raise TimeoutError("nobody let the sync go")
        return number
