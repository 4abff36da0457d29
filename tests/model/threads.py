"""`aiodq.sync` under the names of `aiodq`, so that the steps can take it: each call runs in a thread of its task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

import aiodq
import aiodq.sync
from aiodq.sync.store import _opened
from aiodq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from aiodq.testing import WatchedFileSystem

T = TypeVar("T")

__all__ = ["Faced", "ThreadsClock", "open_in_threads", "within"]

_KINDS: Final = (
    aiodq.sync.Store,
    aiodq.sync.Topic,
    aiodq.sync.Channel,
    aiodq.sync.Queue,
    aiodq.sync.Message,
    aiodq.sync.DeferredMessage,
    aiodq.sync.Transaction,
    aiodq.sync.Receipt,
)
_AT_ONCE: Final = frozenset({
    *("topic", "topics", "queue", "channel", "channels", "transaction", "scan", "deferred_messages", "events"),
    *("stats", "qsize", "in_flight", "deferred", "empty", "full", "done"),
    *("get_nowait", "put_nowait", "ack_nowait", "nack_nowait", "release", "task_done", "shutdown"),
})  # fmt: skip
"""The methods that are called and not awaited, of all objects but a transaction, of which no method is awaited."""

_TIMED: Final = frozenset({"put", "put_many"})
_PATIENCE: Final = 20.0
_NO_MORE: Final = object()
_WITHIN: ContextVar[float | None] = ContextVar("_WITHIN", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give the puts in the block so many seconds: they raise TimeoutError if they take longer."""
    token = _WITHIN.set(seconds)
    try:
        yield
    finally:
        _WITHIN.reset(token)


class _Threads:
    """A thread for each task: what `aiodq.sync` does for a thread, such as joining its transaction, it does for it."""

    def __init__(self) -> None:
        self._threads: WeakKeyDictionary[asyncio.Task[Any], ThreadPoolExecutor] = WeakKeyDictionary()

    def start(self, function: Callable[[], T]) -> Future[T]:
        task = asyncio.current_task()
        assert task is not None
        if task not in self._threads:
            self._threads[task] = ThreadPoolExecutor(1)
            task.add_done_callback(lambda _: self._threads[task].shutdown(wait=False))
        return self._threads[task].submit(function)


class Faced:
    """An object of `aiodq.sync` with the methods that the one of `aiodq` has."""

    def __init__(self, inner: Any, threads: _Threads) -> None:
        self._inner = inner
        self._threads = threads

    def __repr__(self) -> str:
        return self._threads.start(lambda: repr(self._inner)).result(_PATIENCE)

    def __getattr__(self, name: str) -> Any:
        known = "close" if name == "aclose" else name
        found = self._threads.start(lambda: getattr(self._inner, known)).result(_PATIENCE)
        if not callable(found):
            return self._faced(found)

        in_transaction = isinstance(self._inner, aiodq.sync.Transaction)

        def begin(*args: Any, **kwargs: Any) -> Future[Any]:
            if _WITHIN.get() is not None and name in _TIMED and not in_transaction:
                kwargs["timeout"] = _WITHIN.get()
            bare = [self._bare(each) for each in args], {key: self._bare(value) for key, value in kwargs.items()}
            return self._threads.start(lambda: found(*bare[0], **bare[1]))

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._faced(begin(*args, **kwargs).result(_PATIENCE))

        async def wait(*args: Any, **kwargs: Any) -> Any:
            return self._faced(await asyncio.wrap_future(begin(*args, **kwargs)))

        return call if name in _AT_ONCE or in_transaction else wait

    def _faced(self, found: Any) -> Any:
        if isinstance(found, _KINDS):
            return Faced(found, self._threads)
        if isinstance(found, list):
            return [self._faced(each) for each in found]
        return self._each(found) if isinstance(found, Iterator) else found

    def _bare(self, given: Any) -> Any:
        if isinstance(given, Faced):
            return given._inner
        if isinstance(given, list):
            return [self._bare(each) for each in given]
        return (lambda *args: given(*map(self._faced, args))) if callable(given) else given

    async def _each(self, found: Iterator[Any]) -> AsyncIterator[Any]:
        while (one := await self._wait(lambda: next(found, _NO_MORE))) is not _NO_MORE:
            yield self._faced(one)

    async def _wait(self, function: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._threads.start(function))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each(iter(self._inner))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait(self._inner.result).__await__()

    async def __aenter__(self) -> Self:
        await self._wait(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._wait(lambda: self._inner.__exit__(*error))


class ThreadsClock(FakeClock):
    """A clock that is moved in one thread and rings in that of the loop that watches it."""

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` in this thread whenever time has passed."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def ring() -> None:
            if threading.get_ident() == thread:
                watcher()
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(_soon(watcher), loop).result(_PATIENCE)

        return super().watch(ring)


async def _soon(function: Callable[[], None]) -> None:
    function()


async def open_in_threads(path: str, options: aiodq.StoreOptions, fs: WatchedFileSystem, clock: ThreadsClock) -> Any:
    """Open a store of `aiodq.sync`, and return it with the methods of an `aiodq.Store`."""
    threads = _Threads()

    def opened() -> aiodq.sync.Store:
        return aiodq.sync.Store(*_opened(path, aiodq.open(path, options, fs=fs, clock=clock)))

    return Faced(await asyncio.wrap_future(threads.start(opened)), threads)
