"""One of several processes that share a queue: it does what it is asked to by lines of JSON, and serves meanwhile.

Both ends of the pipe are here: `Participant` is what `benchmarks.shared` has of such a process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, cast

import aiodq
from aiodq import StoreOptions
from benchmarks.workers import ROOT, loop_factory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiodq.shared.handles.shared_store import SharedStore

__all__ = ["Participant", "main"]

PATIENCE = 120.0
"""Seconds for an answer."""
LOCKED = 30.0
"""Seconds that SQLite waits for another process's transaction."""
TOGETHER = 1000
"""Messages in one call, where many go together."""


# --- the process


class _Driver(ABC):
    """A queue that several processes have open.

    Attributes:
        together: tasks may put at once. Else a call blocks its process, and one puts after the other.
        does: what only this kind of queue does, by name.
    """

    together = True

    def __init__(self) -> None:
        self.does: dict[str, Callable[..., Awaitable[object]]] = {}

    @abstractmethod
    async def open(self) -> None:
        """Open it."""

    @abstractmethod
    async def close(self) -> None:
        """Leave it to the others."""

    @property
    @abstractmethod
    def put(self) -> Callable[[bytes], Awaitable[object]]:
        """What puts a message, as durable as it gets: the queue's own, as a coroutine in between would be measured."""


Mode = Literal["exclusive", "shared", "client"]
Backend = Literal["auto", "thread", "aio"]


class _Aiodq(_Driver):
    def __init__(self, path: str, *, mode: Mode, sync: Literal["always", "os"], sync_backend: Backend) -> None:
        super().__init__()
        self._path, self._mode = path, mode
        self._options = StoreOptions(sync=sync, sync_backend=sync_backend)
        self._store: aiodq.Store
        self._queue: aiodq.Queue
        self.does |= {
            "fill": self._fill,
            "batches": self._batches,
            "each": self._each,
            "owner": self._owner,
            "gap": self._gap,
        }

    async def open(self) -> None:
        self._store = await aiodq.open(self._path, self._options, mode=self._mode)
        self._queue = self._store.queue("queue")

    async def close(self) -> None:
        await self._store.aclose()

    @property
    def put(self) -> Callable[[bytes], Awaitable[object]]:
        return self._queue.put

    async def _fill(self, messages: int, size: int) -> None:
        for _ in range(0, messages, TOGETHER):
            await self._queue.put_many([bytes(size)] * TOGETHER)

    async def _batches(self, messages: int) -> float:
        """Work off a backlog by `get_many` and `ack_many`; return the seconds."""
        queue, left, began = self._queue, messages, monotonic()
        while left > 0:
            found = await queue.get_many(min(left, TOGETHER))
            await queue.ack_many(found)
            left -= len(found)
        return monotonic() - began

    async def _each(self, messages: int) -> float:
        """Likewise, one by one."""
        left, began = messages, monotonic()
        async for message in self._queue:
            message.ack_nowait()
            left -= 1
            if not left:
                break
        await self._queue.join()
        return monotonic() - began

    async def _owner(self) -> int:
        """Return the owner's process."""
        administration = importlib.import_module("aiodq.shared.administration")
        found = await administration.visitors_of(cast("SharedStore", self._store))
        return int(found["owner"]["pid"])

    async def _gap(self, pid: int, number: int, seconds: float) -> float:
        """Send a process a signal, none where `number` is 0; return how long a put took at most in the time after."""
        longest, put, size = 0.0, self._queue.put, 100
        for _ in range(10):
            await put(bytes(size))
        until = monotonic() + seconds
        os.kill(pid, number)
        while (began := monotonic()) < until:
            await put(bytes(size))
            longest = max(longest, monotonic() - began)
        return longest


class _Redis(_Driver):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._client: Any = None

    async def open(self) -> None:
        client = importlib.import_module("redis.asyncio").Redis
        self._client = client(unix_socket_path=self._path, protocol=2, max_connections=1000)
        await asyncio.gather(*(self._client.ping() for _ in range(100)))

    @property
    def put(self) -> Callable[[bytes], Awaitable[object]]:
        add = self._client.xadd
        return lambda body: add("queue", {b"b": body})

    async def close(self) -> None:
        await self._client.aclose()


class _Blocking(_Driver):
    """One whose calls block, and which is open once it is made."""

    together = False

    def __init__(self, put: Callable[[bytes], object]) -> None:
        super().__init__()
        self._put = put

    async def open(self) -> None:
        """Nothing is left to do."""

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def put(self) -> Callable[[bytes], Awaitable[object]]:
        return self._put_at_once

    async def _put_at_once(self, body: bytes) -> object:
        return self._put(body)


def _huey(path: str) -> _Driver:
    huey = importlib.import_module("huey").SqliteHuey
    queue = huey("queue", filename=path, fsync=True, timeout=LOCKED, results=False)
    task: Callable[[bytes], object] = queue.task()(_nothing)
    return _Blocking(task)


def _nothing(_body: bytes) -> None:
    """Do nothing: this is only ever asked for."""


def _litequeue(path: str, *, synchronous: str) -> _Driver:
    queue = importlib.import_module("litequeue").LiteQueue(path, timeout=LOCKED)
    queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
    return _Blocking(queue.put)


DRIVERS: dict[str, Callable[..., _Driver]] = {
    "aiodq": _Aiodq,
    "redis": _Redis,
    "huey": _huey,
    "litequeue": _litequeue,
}


async def _put(driver: _Driver, start: float, stop: float, producers: int, size: int) -> int:
    """Put from one moment of the system's clock to another; return how many puts had returned by then."""

    async def produce() -> int:
        put, body, count = driver.put, bytes(size), 0
        while True:
            await put(body)
            if monotonic() >= stop:
                return count
            count += 1

    await asyncio.sleep(max(0.0, start - monotonic()))
    return sum(await asyncio.gather(*(produce() for _ in range(producers if driver.together else 1))))


async def _answers(driver: _Driver, lines: asyncio.StreamReader, say: Callable[[object], None]) -> None:
    while line := await lines.readline():
        what, given = json.loads(line)
        try:
            doing: Awaitable[object] = _put(driver, **given) if what == "put" else driver.does[what](**given)
            say({"found": await doing})
        except Exception as error:  # noqa: BLE001 - whatever it is, who has asked is told
            say({"error": f"{type(error).__name__}: {error}"})


async def _participate(kind: str, given: dict[str, Any], say: Callable[[object], None]) -> None:
    """Open a queue, and do what is asked until nobody asks any more, or the process is told to end."""
    loop, lines, driver = asyncio.get_running_loop(), asyncio.StreamReader(), DRIVERS[kind](**given)
    await driver.open()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, lines.feed_eof)
    say({"found": None})
    try:
        await _answers(driver, lines, say)
    finally:
        await driver.close()
        transport.close()


def main() -> None:
    """Be one of them: `python -m benchmarks.sharing LOOP KIND GIVEN`."""
    # What a library prints must not come between.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    loop, kind, given = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory(loop)[1]) as runner:
        runner.run(_participate(kind, json.loads(given), say))


# --- what the benchmark has of it


class Participant:
    """One process that has a queue open."""

    def __init__(self, loop: str, kind: str, given: dict[str, Any]) -> None:
        """Start it; `ready` waits until it has opened the queue."""
        command = [sys.executable, "-m", "benchmarks.sharing", loop, kind, json.dumps(given)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(  # noqa: S603 - as above
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=Path(ROOT)
        )

    @property
    def pid(self) -> int:
        """Its process's number."""
        return self._process.pid

    def ready(self) -> None:
        """Wait until it has opened the queue."""
        self.answer()

    def say(self, what: str, **given: object) -> None:
        """Have something done; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, given]).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:  # noqa: ANN401 - whatever was asked
        """Return what it answers."""
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                raise TimeoutError(f"no answer within {PATIENCE:g} s")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"its process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["found"]

    def ask(self, what: str, **given: object) -> Any:  # noqa: ANN401 - likewise
        """Have something done, and return what it answers."""
        self.say(what, **given)
        return self.answer()

    def ended(self) -> None:
        """Wait for the end of a process that was sent a signal."""
        self._process.wait(PATIENCE)
        self._let_go()

    def close(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        with suppress(OSError):  # one that is gone
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


if __name__ == "__main__":
    main()
