"""Many processes on one store that is shared, all forked by this one, so that a thousand cost little.

`python -m tests.shared.crowd STORE` does what lines to its standard input say, and tells by lines to standard output
what it and its children do; each begins with the name of a child:

    start NAME LOOP   a child that puts numbered messages and works off whatever comes, until SIGTERM
    settle NAME LOOP PATIENCE  one that settles in every way there is, see `tests.shared.settling`
    audit NAME LOOP PATIENCE   likewise, one at a time
    letters NAME LOOP PATIENCE  one that has letters, see `tests.shared.lettering`
    open NAME COUNT   a child that waits for `go` and opens the store so often at once
    go                all those begin

    NAME is PID              it was started
    NAME put NUMBER OFFSET   a put was acknowledged
    NAME got OFFSET ATTEMPTS it holds a message
    NAME did OFFSET          its ack was, or its transaction
    NAME sees COUNT PIDS     it has opened the store so often, and these are the owners that were found
    NAME ended CODE          it is gone

Ends with its standard input; its children are the one's to end who started it, with the group of processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import select
import signal
import sys
import traceback
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, NoReturn

import aiodq
import aiodq.shared.handles.shared_store  # else each child would import it
from tests.loops import run_on
from tests.shared import lettering, settling
from tests.shared.talking import say, unless

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

TOPIC: Final = "jobs"
OPTIONS: Final = aiodq.StoreOptions(segment_bytes=200_000, retention=aiodq.Retention(consumed="keep"))

MADE: Final = "made"
TRANSACTED: Final = 3
"""Each third message is acked in a transaction that puts its offset into another topic."""

_TOGETHER: Final = 8
_BACKLOG: Final = 150
"""Puts of one task at once, and messages that are ready before it stops for a while."""


# --- what children do


class Living:
    """A child: it puts and works off until it is to end; what it holds then it still does."""

    def __init__(self, name: str, queue: aiodq.Queue) -> None:
        self.name = name
        self.queue = queue
        self.ending = asyncio.Event()
        self.random = random.Random(name)

    async def put(self) -> None:
        number = 0
        while not self.ending.is_set():
            count = self.random.randint(1, _TOGETHER)
            await asyncio.gather(*(self._put(each) for each in range(number, number + count)))
            number += count
            while self.queue.qsize() > _BACKLOG and not self.ending.is_set():
                await asyncio.sleep(0.01)

    async def _put(self, number: int) -> None:
        offset = await self.queue.put(f"{self.name} {number}".encode())
        say(f"{self.name} put {number} {offset}")

    async def work(self) -> None:
        while not self.ending.is_set() and (message := await unless(self.ending, self.queue.get())) is not None:
            say(f"{self.name} got {message.offset} {message.attempts}")
            await asyncio.sleep(self.random.random() * 0.01)
            if message.offset % TRANSACTED:
                await message.ack()
            else:
                async with message.transaction() as transaction:
                    transaction.put(MADE, b"%d" % message.offset)
            say(f"{self.name} did {message.offset}")


def until_sigterm() -> asyncio.Event:
    """Return what is set by SIGTERM, be it that it has come already."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return ended


async def live(name: str, path: str) -> None:
    """Put and work off until SIGTERM."""
    ended = until_sigterm()
    async with aiodq.open(path, OPTIONS, mode="shared") as store:
        living = Living(name, store.queue(TOPIC))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(living.put())
            for _ in range(3):
                tasks.create_task(living.work())
            await ended.wait()
            living.ending.set()


async def settle(name: str, path: str, *, audits: bool, patience: float) -> None:
    """Settle until SIGTERM."""
    await settling.settle(name, path, OPTIONS, until_sigterm(), audits=audits, patience=patience)


async def have_letters(name: str, path: str, patience: float) -> None:
    """Have letters until SIGTERM."""
    await lettering.work_off(name, path, TOPIC, OPTIONS, until_sigterm(), patience=patience)


async def open_at_last(stack: AsyncExitStack, path: str) -> aiodq.Store:
    """Open the store, however long its owner has so many others to answer."""
    while True:
        with suppress(aiodq.OwnerStalledError):
            return await stack.enter_async_context(aiodq.open(path, OPTIONS, mode="shared", failover=300))


async def open_often(name: str, path: str, count: int) -> None:
    """Open the store so often at once, put by each, and close all of them at SIGTERM."""
    ended = until_sigterm()
    async with AsyncExitStack() as stack:
        stores = await asyncio.gather(*(open_at_last(stack, path) for _ in range(count)))

        async def put(number: int, store: aiodq.Store) -> None:
            say(f"{name} put {number} {await store.queue(TOPIC).put(f'{name} {number}'.encode())}")

        await asyncio.gather(*(put(number, store) for number, store in enumerate(stores)))
        links = [store._remote.link for store in stores]  # type: ignore[attr-defined]  # of a store that is shared
        say(f"{name} sees {count} {' '.join(map(str, sorted({link.owner_pid for link in links})))}")
        await ended.wait()


# --- the parent


class Crowd:
    """Whoever starts the children, and tells of their ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: dict[int, str] = {}
        self._input = b""
        self._barrier = os.pipe()
        self._woken, self._waking = os.pipe()
        for end in (self._woken, self._waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})  # until a child is ready for them

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([0, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, self._input = (self._input + data).split(b"\n")
                for line in lines:
                    self._do(line.decode().split())

    def _do(self, words: list[str]) -> None:
        match words:
            case ["start", name, loop]:
                self._fork(name, loop, live(name, self._path))
            case ["settle" | "audit" as role, name, loop, patience]:
                settling = settle(name, self._path, audits=role == "audit", patience=float(patience))
                self._fork(name, loop, settling)
            case ["letters", name, loop, patience]:
                self._fork(name, loop, have_letters(name, self._path, float(patience)))
            case ["open", name, count]:
                self._fork(name, "asyncio", open_often(name, self._path, int(count)), waits=True)
            case ["go"]:
                os.close(self._barrier[1])
                os.close(self._barrier[0])
                self._barrier = os.pipe()

    def _fork(self, name: str, loop: str, doing: Coroutine[Any, Any, None], *, waits: bool = False) -> None:
        pid = os.fork()
        if not pid:
            say(f"{name} is {os.getpid()}")  # before anything else of it: its parent might be later than it
            self._be(loop, doing, waits=waits)
        doing.close()
        self._names[pid] = name

    def _be(self, loop: str, doing: Coroutine[Any, Any, None], *, waits: bool) -> NoReturn:
        """Be a child, to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._barrier[1])
            if waits:
                os.read(self._barrier[0], 1)  # it ends when the parent closes the other end
            run_on(loop, doing)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, it is told, and this process is no parent
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                say(f"{self._names.pop(found[0])} ended {os.waitstatus_to_exitcode(found[1])}")


def allow_many_files() -> None:
    """Let an owner have more connections than most systems allow from the first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    allow_many_files()
    Crowd(sys.argv[1]).run()
