"""An event loop whose time is simulated, and threads that take turns with it: the same seed, the same run.

Time goes by only when nothing is ready, and then at once: an hour's timeout costs nothing. Blocking work that the store
gives to threads runs in real threads of which only one moves at a time. It hands over at every call of the simulated
file system, and the seed decides how many turns the loop takes meanwhile, or how much time goes by. So whatever may
happen while a sync is under way does happen under some seed, and happens again under the same one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from random import Random
from typing import Any, Final, ParamSpec, TypeVar

from aiodq.storage.io.filesystem import File
from aiodq.testing.faults import Call
from aiodq.testing.filesystem import SimulatedFile, SimulatedFileSystem

__all__ = ["SimulatedExecutor", "SimulatedKernel", "SimulatedLoop", "StalledError", "run"]

P = ParamSpec("P")
T = TypeVar("T")

_SLOW: Final = 0.25
_LONGEST_CALL: Final = 0.01
_STUCK_SECONDS: Final = 5.0
"""Real seconds after which a thread that neither goes on nor hands over is taken for waiting: more than a busy machine
lets it wait for a processor, or the same seed would not give the same run there."""

_GLANCE_SECONDS: Final = 0.01
_GLANCES: Final = 10
"""Where the system tells what a thread does, so many times in a row it has to sleep to be taken for waiting: whoever
waits for a processor does not sleep, and nobody else holds the interpreter's lock for so long."""


class StalledError(RuntimeError):
    """Nothing is ready and nothing is scheduled: all waiters would wait for ever."""


class _Selector(selectors.SelectSelector):
    """Looks at descriptors without waiting, and lets simulated time go by instead."""

    def __init__(self) -> None:
        super().__init__()
        self.time: float = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if len(ready) > 1:  # in an order that does not depend on which numbers the system gave
            watched = list(self.get_map())
            ready.sort(key=lambda each: watched.index(each[0].fd))
        if not ready and timeout is None:
            raise StalledError("every task waits for something that nothing will bring")
        if not ready and timeout is not None and timeout > 0:
            # A little more than was asked, or rounding could leave the timer for ever about to be due.
            self.time += timeout + 1e-9
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits. Sockets and other threads do not wake it: it is for what is all in this process.

    A loop on which nothing can happen any more raises `StalledError` out of `run_until_complete`.
    """

    def __init__(self) -> None:
        """Begin at time 0."""
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        """Return simulated seconds."""
        return self._simulated.time


class _Job:
    """A thread's work, and whose turn it is."""

    __slots__ = ("ended", "future", "here", "out", "there", "thread", "work")

    def __init__(self, work: Callable[[], None], future: Future[Any]) -> None:
        self.work = work
        self.future = future
        self.here = _closed_gate()
        self.there = _closed_gate()
        self.thread: threading.Thread | None = None
        self.out = False
        self.ended = False


def _closed_gate() -> threading.Lock:
    """Return what a thread waits at until another opens it: a semaphore would do, too, for several times the cost."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def _sleeps(thread: threading.Thread) -> bool:
    """Return whether the system says that a thread waits; False where it says nothing."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"S")
    except OSError:
        return False


class SimulatedExecutor(Executor):
    """Threads that move only when the loop lets them, between two of its steps.

    Give it to `aiodq.open(path, fs=fs, executor=SimulatedExecutor(loop, fs, seed))`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fs: SimulatedFileSystem, seed: int, longest: int = 3) -> None:
        """Hand over at every call of `fs`.

        Args:
            loop: where the store is opened.
            fs: its file system.
            seed: decides everything.
            longest: how many turns the loop takes between two calls, at most. Unless it is 0, every fourth time up to
                10 ms go by instead: a loop that spins without sleeping would then spin for ever.
        """
        self._loop = loop
        self._random = Random(seed)
        self._longest = longest
        self._jobs: list[_Job] = []
        self._threads: dict[int, _Job] = {}
        self._over = False
        fs.before = self._call

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a thread, a few turns from now on.

        Raises:
            RuntimeError: after `shutdown`.
        """
        if self._over:
            raise RuntimeError("the executor was shut down")
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is handed to the waiter, whatever it is
                future.set_exception(error)

        job = _Job(work, future)
        self._jobs.append(job)
        self._later(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - the base's
        """Take nothing more, and with `wait` end what was submitted, at once."""
        self._over = True
        for job in self._jobs if cancel_futures else ():
            job.future.cancel()
        while wait and self._jobs:
            self._move(self._jobs[0])

    def kernel(self) -> SimulatedKernel:
        """Return what syncs by itself, in one of these threads.

        Raises:
            OSError: the machine has no eventfd.
        """
        return SimulatedKernel(self)

    def _later(self, job: _Job) -> None:
        if self._longest and self._random.random() < _SLOW:
            self._loop.call_later(self._random.random() * _LONGEST_CALL, self._turn, job, 0)
        else:
            self._loop.call_soon(self._turn, job, self._random.randint(0, self._longest))

    def _turn(self, job: _Job, left: int) -> None:
        if job.ended:
            return
        if left:
            self._loop.call_soon(self._turn, job, left - 1)
            return
        self._move(job)
        if not job.ended:
            self._later(job)

    def _move(self, job: _Job) -> None:
        """Let a thread go on until it hands over or ends."""
        self._start(job)
        while not self._is_back(job, _STUCK_SECONDS):
            # It waits for a lock that another thread took before it handed over.
            for other in [other for other in self._jobs if other is not job]:
                if self._is_back(other, 0):
                    self._start(other)
                    self._is_back(other, _STUCK_SECONDS)

    def _start(self, job: _Job) -> None:
        if job.ended or job.out:
            return
        job.out = True
        if job.thread is None:
            job.thread = threading.Thread(target=self._run, args=(job,), name="aiodq simulated", daemon=True)
            job.thread.start()
        else:
            job.there.release()

    def _is_back(self, job: _Job, patience: float) -> bool:
        """Return whether a thread has handed over or ended, after at most so many seconds."""
        if job.out:
            if not self._hands_over(job, patience):
                return False
            job.out = False
            if job.ended and job.thread is not None:
                self._jobs.remove(job)
                job.thread.join()
        return True

    @staticmethod
    def _hands_over(job: _Job, patience: float) -> bool:
        """Wait until a thread has handed over; return False once it sleeps instead, or `patience` is at its end."""
        if job.here.acquire(timeout=min(patience, _GLANCE_SECONDS)):
            return True
        asleep = 0
        for _ in range(int(patience / _GLANCE_SECONDS)):
            if job.here.acquire(timeout=_GLANCE_SECONDS):
                return True
            asleep = asleep + 1 if job.thread is not None and _sleeps(job.thread) else 0
            if asleep == _GLANCES:
                return False
        return False

    def _run(self, job: _Job) -> None:
        ident = threading.get_ident()
        self._threads[ident] = job
        try:
            job.work()
        finally:
            del self._threads[ident]
            job.ended = True
            job.here.release()

    def _call(self, call: Call, path: str) -> None:
        del call, path
        job = self._threads.get(threading.get_ident())
        if job is not None:
            job.here.release()
            job.there.acquire()


class SimulatedKernel:
    """Syncs of simulated files that go on beside the loop, as `aiodq.storage.io.kernel_aio.KernelAio` has them.

    Attributes:
        eventfd: a descriptor that can be read once a sync has ended.
        number: of the last sync that was begun.
    """

    def __init__(self, executor: SimulatedExecutor) -> None:
        """Use these threads.

        Raises:
            OSError: the machine has no eventfd.
        """
        if not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._executor = executor
        self.eventfd: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.number: int = 0
        self._ended: list[tuple[int, int]] = []
        self._closed = False

    def submit(self, file: File) -> None:
        """Begin a sync, which has `number` then.

        Raises:
            OSError: none was begun: the file is not a simulated one, say.
        """
        if not isinstance(file, SimulatedFile):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        number = self.number + 1
        self._executor.submit(self._sync, number, file.held())
        self.number = number

    def _sync(self, number: int, file: SimulatedFile) -> None:
        code = 0
        try:
            file.sync()
        except OSError as error:
            code = error.errno or errno.EIO
        self._ended.append((number, code))
        if not self._closed:
            os.eventfd_write(self.eventfd, 1)

    @staticmethod
    def is_watched() -> bool:
        """Return False: these syncs can be seen by the file system."""
        return False

    def ended(self) -> list[tuple[int, int]]:
        """Return the numbers of the syncs that have ended since the last call, each with its errno, 0 for none."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Tell nobody any more. Repeating it does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self.eventfd)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` on a `SimulatedLoop`, as `asyncio.run` does on a real one.

    Raises:
        StalledError: it waits for something that nothing will bring.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main())
