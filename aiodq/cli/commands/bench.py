"""`aiodq bench`: how fast messages are put, taken and acked on this disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter, validators

from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE, CommandError
from aiodq.cli.loop import run_command
from aiodq.cli.show import figures_table, human_bytes, print_json, rate, stdout
from aiodq.engine.queue_errors import QueueEmpty
from aiodq.opening import open_queue
from aiodq.options import StoreOptions, SyncPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.table import Table

    from aiodq.queue import Queue

__all__ = ["bench"]

_AT_ONCE: Final = 100
_PREFIX: Final = "aiodq-bench-"


class Result(NamedTuple):
    """The result of one part of the measurement.

    Attributes:
        name: what was done.
        messages: the number of messages.
        bytes: the total size of their bodies.
        seconds: the time it took.
        messages_per_second, bytes_per_second: the speed.
        p50_ms, p99_ms: the median and the 99th percentile of the time of a call, milliseconds.
        fsyncs: the number of syncs of the log.
    """

    name: str
    messages: int
    bytes: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    p50_ms: float
    p99_ms: float
    fsyncs: int


def bench(
    directory: Place = ".",
    /,
    *,
    size: Annotated[
        int, Parameter(converter=whole, validator=validators.Number(gte=0, lte=StoreOptions().max_message_bytes))
    ] = 1000,
    tasks: Annotated[int, Parameter(converter=whole, validator=validators.Number(gte=1, lte=10_000))] = 100,
    seconds: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=60))] = 1.0,
    sync: SyncPolicy = "always",
    json: bool = False,
) -> int:
    """Measure how fast messages are put, taken and acked on this disk: in a queue of its own, removed at the end.

    Args:
        directory: where the queue is created; this measures the disk that it is on.
        size: bytes of a message.
        tasks: how many tasks put, or get, at once.
        seconds: the most time for each of the four parts.
        sync: when a put counts as stored: always, interval or os, as in StoreOptions.
        json: print the figures as JSON.
    """
    if not os.path.isdir(directory):
        raise CommandError(f"there is no directory {directory}")
    try:
        place = tempfile.mkdtemp(prefix=_PREFIX, dir=directory)
    except OSError as cause:
        raise CommandError(f"nothing can be written in {directory}: {cause.strerror}") from cause
    try:
        return run_command(_Bench(place, size, tasks, seconds).run(os.path.realpath(directory), sync, json=json))
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Bench:
    """One run."""

    def __init__(self, place: str, size: int, tasks: int, seconds: float) -> None:
        self._place = place
        self._body = os.urandom(size)  # such as no disk makes smaller
        self._tasks = tasks
        self._seconds = seconds

    async def run(self, directory: str, sync: SyncPolicy, *, json: bool) -> int:
        async with open_queue(os.path.join(self._place, "queue"), StoreOptions(sync=sync)) as queue:
            results = [
                await self._part("put, one at a time", queue, lambda: self._put(queue), tasks=1),
                await self._part(f"put, {self._tasks:,} at once", queue, lambda: self._put(queue)),
                await self._part(f"put_many of {_AT_ONCE}", queue, lambda: self._put_many(queue), tasks=1),
                await self._part(f"get and ack, {self._tasks:,} at once", queue, lambda: self._get(queue)),
            ]
        if json:
            print_json({"directory": directory, "size": len(self._body), "sync": sync, "results": results})
        else:
            stdout().print(_table(results))
        return DONE

    async def _put(self, queue: Queue) -> int:
        await queue.put(self._body)
        return 1

    async def _put_many(self, queue: Queue) -> int:
        return len(await queue.put_many([self._body] * _AT_ONCE))

    async def _get(self, queue: Queue) -> int:
        try:
            message = queue.get_nowait()
        except QueueEmpty:
            return 0
        await message.ack()
        return 1

    async def _part(
        self, name: str, queue: Queue, step: Callable[[], Awaitable[int]], tasks: int | None = None
    ) -> Result:
        """Have tasks take a step over and over, until the time is up or there is nothing to do."""
        took: list[float] = []
        done = 0
        before = queue.topic_stats().fsyncs
        began = time.perf_counter()

        async def work() -> None:
            nonlocal done
            while (start := time.perf_counter()) - began < self._seconds:
                count = await step()
                if not count:
                    return
                done += count
                took.append(time.perf_counter() - start)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks or self._tasks):
                group.create_task(work())
        spent = time.perf_counter() - began
        took.sort()
        size = done * len(self._body)
        half, most = (1000 * took[len(took) * share // 100] if took else 0.0 for share in (50, 99))
        fsyncs = queue.topic_stats().fsyncs - before
        return Result(name, done, size, spent, rate(done, spent), rate(size, spent), half, most, fsyncs)


def _table(results: list[Result]) -> Table:
    names = ["on this disk", "messages/s", "bytes/s", "p50 ms", "p99 ms", "log fsyncs/s"]
    rows = [
        [
            result.name,
            f"{result.messages_per_second:,.0f}",
            f"{human_bytes(result.bytes_per_second)}/s",
            f"{result.p50_ms:,.2f}",
            f"{result.p99_ms:,.2f}",
            f"{rate(result.fsyncs, result.seconds):,.0f}",
        ]
        for result in results
    ]
    return figures_table(names, rows)
