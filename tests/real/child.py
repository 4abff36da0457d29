"""The process whose system calls fail: forked from one that has imported everything, and traced from then on.

So the calls that are counted are aiodq's and not those of the interpreter's start. The loop is asyncio's and there is
one thread besides, so that a seed and a number name the same call each time. Notes are written by `writev`, which aiodq
does not use and which no test lets fail.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from unittest.mock import patch

import aiodq
from aiodq import opening
from aiodq.storage.io.filesystem import OsFile
from aiodq.storage.io.kernel_aio import KernelAio
from tests.system.child import CHANNELS, TOPIC, Worker, digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from aiodq import Draft

OPTIONS: Final = aiodq.StoreOptions(segment_bytes=8_000, memory_bytes=1 << 20)
ALL_MESSAGES: Final = aiodq.ChannelOptions(start="earliest")
TOLD: Final = b"told\n"
"""A thread's note that a sync has ended."""
TURNS: Final = 10
"""Of the loop, in which what has been put is written."""
LARGE: Final = 300_000
"""Bytes of a message: half the producers' are as much as is written while a sync runs."""
CRASHED: Final = 70
_WATCHDOG: Final = 60
_SUBREAPER: Final = 36


class Job(NamedTuple):
    """What a process is to do.

    Attributes:
        work: see `WORKS`.
        store: the store's directory.
        notes: the file for its notes.
        seed: of what it does.
        operations: how many.
        calls: the system calls to trace; none for no tracing.
        inject: what is to happen to some of them, as strace's `inject=` has it.
    """

    work: str
    store: str
    notes: str
    seed: int
    operations: int = 0
    calls: str = ""
    inject: tuple[str, ...] = ()


class Careful(Worker):
    """Does one thing after the other, notes what it was told, and does not give up at an error of aiodq."""

    failed = False

    def note(self, *what: object) -> None:
        os.writev(self.notes, [json.dumps(what).encode() + b"\n"])

    def draft(self) -> Draft:
        body = self.rng.randbytes(self.rng.randrange(8, 900))
        return aiodq.Draft(body) if self.rng.random() < 0.7 else aiodq.Draft(body, "x", b"y", {"mark": "z"})

    async def put_once(self) -> None:
        # 200 of them are several frames, which are written by one call of their own kind.
        drafts = [self.draft() for _ in range(self.rng.choice((*[1] * 12, *[4] * 3, 200)))]
        number = next(self.numbers)
        digests = [digest(bytes(d.body), d.tag, None if d.key is None else bytes(d.key), d.headers) for d in drafts]
        self.note("will_put", number, 0, digests)
        try:
            if len(drafts) > 1:
                first = (await self.topic.put_many(drafts)).start
            else:
                (draft,) = drafts
                first = await self.topic.put(draft.body, tag=draft.tag, key=draft.key, headers=draft.headers)
        except aiodq.AiodqError as error:
            self.told(error)
            if isinstance(error, aiodq.DiskFullError):
                self.note("refused", number)
            return
        self.note("put", number, first)
        if self.failed:
            self.note("put_after_failure", number)

    async def consume_once(self) -> None:
        channel = self.topic.channel(self.rng.choice(CHANNELS), ALL_MESSAGES)
        try:
            await self.topic.settle_in()
            if not channel.qsize():
                return
            message = await channel.get(timeout=_WATCHDOG / 2)
            text = digest(message.body, message.tag, message.key, message.headers)
            self.note("got", channel.name, message.offset, text)
            await self.settle(channel.name, message)
        except aiodq.AiodqError as error:
            self.told(error)

    def told(self, error: aiodq.AiodqError) -> None:
        self.note("told", type(error).__name__, str(error))
        self.failed = self.failed or isinstance(error, aiodq.StoreFailedError)


async def mixed(job: Job, notes: int) -> None:
    """Put, get and ack, one thing after the other."""
    rng = random.Random(job.seed)
    try:
        async with aiodq.open(job.store, OPTIONS, executor=ThreadPoolExecutor(1)) as store:
            topic = store.topic(TOPIC)
            # A channel that is named later does not see what the others have consumed by then.
            for name in CHANNELS:
                topic.channel(name, ALL_MESSAGES)
            worker = Careful(notes, rng, topic, count())
            for _ in range(job.operations):
                await (worker.put_once() if rng.random() < 0.5 else worker.consume_once())
    except aiodq.AiodqError as error:
        os.writev(notes, [json.dumps(("told", type(error).__name__, str(error))).encode() + b"\n"])


class Waiting:
    """Who puts at odd times, and who of them waits for a put."""

    producers = puts = 0


class SlowKernel(KernelAio):
    """The system's syncs, of which it is told only once every producer waits: so a put comes while each one runs."""

    def ended(self) -> list[tuple[int, int]]:
        return super().ended() if Waiting.puts == Waiting.producers else []


def slow_thread(notes: int) -> Callable[[OsFile], None]:
    """Return `OsFile.sync`, which returns, in a thread, only after every producer waits, and notes that."""
    sync, loop = OsFile.sync, asyncio.get_running_loop()

    def slow(file: OsFile) -> None:
        sync(file)
        if threading.current_thread() is threading.main_thread():
            return
        while Waiting.puts < Waiting.producers:
            time.sleep(0.0001)
        for _ in range(TURNS):
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            turned.wait()
        os.writev(notes, [TOLD])

    return slow


async def together(job: Job, notes: int, sync_backend: Literal["thread", "aio"] = "thread") -> None:
    """Put from eight producers at once, at odd times. The bodies are text, to be found in what strace writes.

    Some times all of them are large.
    """
    numbers, rng = count(), random.Random(job.seed)
    with patch.object(opening, "KernelAio", SlowKernel):
        opened = aiodq.open(job.store, aiodq.StoreOptions(sync_backend=sync_backend))
    with patch.object(OsFile, "sync", slow_thread(notes)):
        await _put_together(opened, job, notes, numbers, rng)


async def _put_together(
    opened: AbstractAsyncContextManager[aiodq.Store], job: Job, notes: int, numbers: count[int], rng: random.Random
) -> None:
    async with opened as store:
        topic = store.topic(TOPIC)

        async def produce() -> None:
            Waiting.producers += 1
            while (number := next(numbers)) < job.operations:
                await asyncio.sleep(rng.uniform(0, 0.001))
                Waiting.puts += 1
                await topic.put(b"m%06d" % number + b"." * (LARGE if number % 60 < 20 else 0))
                Waiting.puts -= 1
                os.writev(notes, [b"m%06d\n" % number])
            Waiting.producers -= 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(produce())


async def flood(job: Job, notes: int) -> None:
    """Put as fast as the buffer takes it; note how much was accepted and not durable."""
    size, most = 1000, 0
    async with aiodq.open(job.store, OPTIONS) as store:
        topic = store.topic(TOPIC)
        accepted = await topic.put(bytes(size)) + 1
        for _ in range(job.operations):
            try:
                while True:
                    topic.put_nowait(bytes(size))
                    accepted += 1
            except aiodq.QueueFull:
                most = max(most, (accepted - topic.durable_offset) * size)
            await topic.put(bytes(size))
            accepted += 1
    os.writev(notes, [json.dumps(("most", most, accepted)).encode() + b"\n"])


WORKS: Final[dict[str, Any]] = {
    "mixed": mixed,
    "together": together,
    "together by the kernel": partial(together, sync_backend="aio"),
    "flood": flood,
}


def trace(job: Job) -> None:
    """Have strace attach to this very process, and return once it has."""
    faults = [argument for fault in job.inject for argument in ("-e", f"inject={fault}")]
    command = ["strace", "-f", "-y", "-ttt", "-s", "1000000", "-o", job.notes + ".strace", "-e", f"trace={job.calls}"]
    said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the process ends without closing anything
    tracer = subprocess.Popen([*command, *faults, "-p", str(os.getpid())], stderr=said)
    # From the moment it attaches, calls of this loop are counted, too: it makes none that is to fail.
    text = b""
    while b"attached" not in text:
        ended = tracer.poll() is not None
        said.seek(0)
        text = said.read()
        if ended:
            raise OSError(f"strace: {text.decode()}")
        time.sleep(0.0005)


def run(job: Job) -> None:
    """Do the work, and end."""
    status = CRASHED
    try:
        signal.alarm(_WATCHDOG)
        notes = os.open(job.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if job.calls:
            trace(job)
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(WORKS[job.work](job, notes))
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and says why
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    """Fork a process for each line of JSON that comes in; write how it ended once it, and its tracer, have."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as directory:
        # Whatever is imported late is imported now.
        asyncio.run(mixed(Job("mixed", f"{directory}/store", "", 1, 60), os.open(os.devnull, os.O_WRONLY)))
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            run(Job(*json.loads(line)))
        _, status = os.waitpid(pid, 0)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
