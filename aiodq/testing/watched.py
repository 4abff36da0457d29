"""A file system that notes each call, and holds it up, fails it, or accompanies it where a test says so."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

from aiodq.format.layout import BytesLike
from aiodq.storage.io.filesystem import File, FileSystem
from aiodq.testing.faults import Call
from aiodq.testing.wrapped import WrappedFile, WrappedFileSystem

Rule: TypeAlias = Callable[["Passed"], object]

__all__ = ["Failing", "Gate", "Passed", "WatchedFileSystem"]

T = TypeVar("T")
RuleT = TypeVar("RuleT", bound="Rule")

_POSITIONED: Final = frozenset({"read", "write", "truncate"})
_LOOKING: Final = frozenset(
    {"read", "size", "sync", "sync_directory", "listdir", "is_directory", "exists", "open", "close"}
)


@dataclass(slots=True)
class Passed:
    """One call of a `WatchedFileSystem`.

    Attributes:
        number: counted from 0.
        kind: which kind of call; `"create"` for an `open` that creates.
        path: the file or directory; the new one where it is renamed.
        data: what a `"write"` was given.
        position: where a `"write"` or a `"read"` begins; the size that a `"truncate"` leaves.
        begun: at which tick of the file system's own clock.
        ended: likewise; 0 where it has not ended, or failed.
        takes: set by a rule, how many bytes a `"write"` takes of `data`.
        fails: set by a rule, what is raised once those were taken.
    """

    number: int
    kind: Call
    path: str
    data: bytes = b""
    position: int = 0
    begun: int = 0
    ended: int = 0
    takes: int | None = None
    fails: OSError | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)

    @property
    def segment(self) -> bool:
        """Whether it is of a segment."""
        return self.path.endswith(".seg")


class Gate:
    """A rule that holds up the calls it is asked about, in their threads, until it is opened.

    Attributes:
        reached: how many calls were held up.
    """

    def __init__(self, matches: Callable[[Passed], bool]) -> None:
        """Begin closed."""
        self.reached: int = 0
        self._matches = matches
        self._open = threading.Event()

    def __call__(self, call: Passed) -> None:
        """Hold it up."""
        if not self._matches(call) or self._open.is_set():
            return
        if threading.current_thread() is threading.main_thread():
            raise AssertionError(f"held up where its loop runs, nobody could open the gate: {call}")
        self.reached += 1
        self._open.wait()

    def open(self) -> None:
        """Let everything through from now on."""
        self._open.set()

    async def wait(self, number: int = 1) -> None:
        """Wait until so many calls are held up, or were. Cancelled: nothing changes."""
        while self.reached < number:  # noqa: ASYNC110 - threads reach it, which set no event of a loop
            await asyncio.sleep(0.001)


class Failing:
    """A rule that fails the calls it is asked about, from the `at`-th on.

    Attributes:
        seen: how many it was asked about.
        hits: how many it disturbed.
    """

    def __init__(
        self, error: int | None, matches: Callable[[Passed], bool], at: int, times: int | None, short: int | None
    ) -> None:
        """See `WatchedFileSystem.fail`."""
        self.seen: int = 0
        self.hits: int = 0
        self._error = error
        self._matches = matches
        self._at = at
        self._times = times
        self._short = short

    def __call__(self, call: Passed) -> None:
        """Fail it, if it is its turn."""
        if not self._matches(call):
            return
        self.seen += 1
        if self.seen < self._at or (self._times is not None and self.hits >= self._times):
            return
        self.hits += 1
        error = None if self._error is None else OSError(self._error, os.strerror(self._error), call.path)
        if self._short is not None:
            call.takes, call.fails = self._short, error
        elif error is not None:
            raise error


class WatchedFileSystem(WrappedFileSystem):
    """Another file system, the machine's where none is given, whose calls are noted, held up and failed.

    ```python
    fs = WatchedFileSystem()
    async with aiodq.open_queue(path, fs=fs) as jobs:
        with_no_room = fs.fail(errno.ENOSPC, "write", match=".seg", times=1)
        with pytest.raises(aiodq.DiskFullError):
            await jobs.put(b"x")
        slow = fs.gate("sync", match=".seg")
        putting = asyncio.create_task(jobs.put(b"y"))
        await slow.wait()
        assert not putting.done()
        slow.open()
    ```

    Nothing waits for the device unless `sync` says so: a test that cuts no power need not.

    Attributes:
        calls: how often each kind of call was made.
        passed: all of them in turn.
        rules: called in turn with each call before it is done, from any thread; they may block, raise, and set what a
            write takes.
        open_files: how many are open.
        bytes_read: in all.
        bytes_written: in all.
        synced: a file's size when it was last synced, by path.
    """

    def __init__(self, inner: FileSystem | None = None, *, sync: bool = False) -> None:
        """Stand before `inner`; with `sync`, what is to be synced is."""
        super().__init__(inner)
        self.rules: list[Rule] = []
        self.open_files: int = 0
        self.synced: dict[str, int] = {}
        self._sync = sync
        self._ticks = count(1)
        self._mutex = threading.RLock()
        self._freeze = threading.RLock()
        self.reset()

    # --- for tests

    def reset(self) -> None:
        """Count from zero again."""
        self.calls: Counter[str] = Counter()
        self.passed: list[Passed] = []
        self.bytes_read: int = 0
        self.bytes_written: int = 0

    def tick(self) -> int:
        """Return a moment between calls, on the clock of `Passed.begun` and `Passed.ended`."""
        return next(self._ticks)

    def add(self, rule: RuleT) -> RuleT:
        """Add a rule, and return it."""
        self.rules.append(rule)
        return rule

    def fail(
        self,
        error: int | None,
        *kinds: str,
        match: str = "",
        at: int = 1,
        times: int | None = None,
        short: int | None = None,
    ) -> Failing:
        """Fail calls of these kinds whose path contains `match`.

        Args:
            error: the errno; None, with `short`, for writes that only take too little.
            kinds: the kinds of calls.
            match: part of the path.
            at: the how-manieth of them from now on is the first to fail, from 1.
            times: how many fail; None for all.
            short: a write takes this many bytes, and then fails.
        """
        return self.add(Failing(error, lambda call: call.kind in kinds and match in call.path, at, times, short))

    def gate(self, *kinds: str, match: str = "") -> Gate:
        """Hold up calls of these kinds whose path contains `match`."""
        return self.add(Gate(lambda call: call.kind in kinds and match in call.path))

    def heal(self) -> None:
        """Let everything pass from now on."""
        for rule in self.rules:
            if isinstance(rule, Gate):
                rule.open()
        self.rules.clear()

    def named(self, *kinds: str, match: str = "", since: int = 0) -> list[Passed]:
        """Return the calls of these kinds whose path contains `match`, from the number `since` on."""
        with self._mutex:
            return [call for call in self.passed[since:] if call.kind in kinds and match in call.path]

    @property
    def events(self) -> list[tuple[str, str]]:
        """The kind and the path of each call in turn."""
        return [(call.kind, call.path) for call in self.passed]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing change on disk meanwhile: a copy made within is what a killed process leaves."""
        with self._freeze:
            yield

    # --- what a call does

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - each call's own
        """See `WrappedFileSystem.passing`."""
        passed = self._note(call, path, args)
        for rule in self.rules.copy():
            rule(passed)
        if call in _LOOKING:
            result = perform(*args)
        else:
            with self._freeze:
                result = (perform if passed.takes is None else _partly(passed, perform))(*args)
        passed.ended = next(self._ticks)
        return result

    def _note(self, call: Call, path: str, args: tuple[Any, ...]) -> Passed:
        data = b"".join(args[0]) if call == "write" else b""
        position = args[-1] if call in _POSITIONED else 0
        with self._mutex:
            passed = Passed(len(self.passed), call, path, data, position, next(self._ticks))
            self.passed.append(passed)
            self.calls[call] += 1
            return passed

    def wrapped(self, file: File, path: str) -> File:
        """See `WrappedFileSystem.wrapped`."""
        with self._mutex:
            self.open_files += 1
        return WatchedFile(self, file, path, sync=self._sync)

    def gone(self) -> None:
        """A file is being closed."""
        with self._mutex:
            self.open_files -= 1

    def sync_directory(self, path: str) -> None:
        """See `aiodq.storage.io.filesystem.FileSystem.sync_directory`."""
        self.passing("sync_directory", path, self.inner.sync_directory if self._sync else _nothing, path)


def _partly(passed: Passed, perform: Callable[..., T]) -> Callable[..., T]:
    """Let a write take what a rule allows, and then perhaps fail."""

    def write(buffers: Sequence[BytesLike], position: int) -> T:
        del buffers
        taken = perform([passed.data[: passed.takes]], position)
        if passed.fails is not None:
            raise passed.fails
        return taken

    return write


def _nothing(path: str = "") -> None:
    """Sync nothing."""
    del path


class WatchedFile(WrappedFile):
    """An open file of a `WatchedFileSystem`."""

    def __init__(self, fs: WatchedFileSystem, file: File, path: str, *, sync: bool) -> None:
        """Stand before `file`."""
        super().__init__(fs, file, path)
        self._watched = fs
        self._sync = sync

    def read_at(self, size: int, position: int) -> bytes:
        """See `aiodq.storage.io.filesystem.File.read_at`."""
        data = super().read_at(size, position)
        self._watched.bytes_read += len(data)
        return data

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `aiodq.storage.io.filesystem.File.write_at`."""
        taken = super().write_at(buffers, position)
        self._watched.bytes_written += taken
        return taken

    def sync(self) -> None:
        """See `aiodq.storage.io.filesystem.File.sync`."""
        self.fs.passing("sync", self.path, self.file.sync if self._sync else _nothing)
        self._watched.synced[self.path] = self.file.size()

    def close(self) -> None:
        """See `aiodq.storage.io.filesystem.File.close`."""
        if not self.closed:
            self._watched.gone()
        super().close()
