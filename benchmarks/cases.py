"""What is measured. Throughput cases run a number of operations; latency cases run for a time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, cast

from benchmarks.harness import BATCH, LATENCIES, RATE, Case, Durability, Metric, Operation, Sample, Trial, percentile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.harness import MovingSession

__all__ = ["CASES", "HEADLINES"]

WINDOW = 2.0
"""Length of a timed case, in measurements of a throughput case."""

PACE = 0.001
"""Seconds that the paced producer rests between two puts."""

TICK = 0.005
"""Period of the ticker, in seconds."""

LAGS = (Metric("p50", "s", resolution=1e-3), Metric("p99", "s", resolution=1e-3))
"""uvloop's timers count whole milliseconds."""

BURN = (57e-6, 0.6e-3)
"""Shortest and longest callback of a busy loop, in seconds."""

SYNCED = frozenset({Durability.SYNCED})
WRITTEN = frozenset({Durability.DEFERRED, Durability.KERNEL})

ACKS = (
    "Not like with like: aiodq's ack_nowait is on disk at its next commit under every policy, a peer that syncs "
    "before it returns also syncs each removal; for taking, compare aiodq with those that sync later."
)
"""What a reader of the consuming cases must know."""


async def _rate(operations: int, work: Awaitable[object]) -> Sample:
    """Time `work`, which does `operations` operations."""
    start = perf_counter()
    await work
    elapsed = perf_counter() - start
    return Sample(elapsed, {"ops/s": operations / elapsed})


async def _put(trial: Trial, producers: int) -> Sample:
    share = trial.count // producers
    work = asyncio.gather(*(trial.session.produce(trial.body, share) for _ in range(producers)))
    return await _rate(share * producers, work)


async def _put_many(trial: Trial) -> Sample:
    async def batches() -> None:
        for _ in range(trial.count // BATCH):
            await trial.session.put_many([trial.body] * BATCH)

    return await _rate(trial.count, batches())


async def _get(trial: Trial) -> Sample:
    return await _rate(trial.count, trial.session.consume(trial.count))


async def _iterate(trial: Trial) -> Sample:
    return await _rate(trial.count, trial.session.iterate(trial.count))


async def _get_many(trial: Trial) -> Sample:
    return await _rate(trial.count, trial.session.take_many(trial.count))


async def _ack(trial: Trial, consumers: int) -> Sample:
    share = trial.count // consumers
    work = asyncio.gather(*(trial.session.ack_each(share) for _ in range(consumers)))
    return await _rate(share * consumers, work)


async def _put_get(trial: Trial) -> Sample:
    return await _rate(trial.count, trial.session.put_get(trial.body, trial.count))


async def _move(trial: Trial, tasks: int) -> Sample:
    share, session = trial.count // tasks, cast("MovingSession", trial.session)
    return await _rate(share * tasks, asyncio.gather(*(session.move(share) for _ in range(tasks))))


def _spread(elapsed: float, latencies: list[float]) -> Sample:
    rate = len(latencies) / elapsed
    return Sample(elapsed, {"p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99), "ops/s": rate})


async def _timed_puts(trial: Trial, end: float, rest: Callable[[], Awaitable[object]] | None) -> list[float]:
    """Put until `end`, resting after each put; return how long each put took, in seconds."""
    latencies = []
    while (start := perf_counter()) < end:
        await trial.session.put(trial.body)
        latencies.append(perf_counter() - start)
        if rest is not None:
            await rest()
    return latencies


def _producers(trial: Trial, end: float, count: int) -> list[asyncio.Task[list[float]]]:
    """Start producers that put as fast as they can until `end`."""
    # A blocking put never suspends: without a rest one producer would keep the loop for itself.
    rest = partial(asyncio.sleep, 0) if trial.blocking else None
    return [asyncio.create_task(_timed_puts(trial, end, rest)) for _ in range(count)]


async def _paced(trial: Trial) -> Sample:
    window = WINDOW * trial.seconds
    return _spread(window, await _timed_puts(trial, perf_counter() + window, partial(asyncio.sleep, PACE)))


async def _lag(trial: Trial, producers: int) -> Sample:
    window = WINDOW * trial.seconds
    end = perf_counter() + window
    tasks = _producers(trial, end, producers)
    lags = []
    while (start := perf_counter()) < end:
        await asyncio.sleep(TICK)
        lags.append(max(0.0, perf_counter() - start - TICK))
    await asyncio.gather(*tasks)
    return _spread(window, lags)


class _Burner:
    """Keeps the event loop busy with callbacks of various lengths, back to back, that hold the GIL."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(0)  # the same lengths for every subject

    def __call__(self) -> None:
        """Burn once, and once more at the loop's next turn until the time is up."""
        until = perf_counter() + self._random.uniform(*BURN)
        while perf_counter() < until:
            pass
        if until < self._end:
            self._loop.call_soon(self)


async def _busy(trial: Trial, producers: int) -> Sample:
    """Measure puts on a loop that is never idle; what still waits at the end is released when the burning stops."""
    window = WINDOW * trial.seconds
    end = perf_counter() + window
    tasks = _producers(trial, end, producers)
    asyncio.get_running_loop().call_soon(_Burner(end))
    latencies = await asyncio.gather(*tasks)
    return _spread(window, [latency for each in latencies for latency in each])


def _put_case(producers: int) -> Case:
    return Case(
        name=f"put, {producers} producer{'s' * (producers > 1)}",
        summary="One message a call. A library that blocks gains nothing from more producers.",
        operation=Operation.PUT,
        run=partial(_put, producers=producers),
        unit=producers,
    )


def _move_case(tasks: int) -> Case:
    return Case(
        name=f"transaction: ack and put, {tasks} task{'s' * (tasks > 1)}",
        summary="Take a message of a backlog, settle it and put it into another queue, both or neither. aiodq syncs "
        "that under every policy. A connection of SQLite has one transaction at a time, so its tasks take turns.",
        operation=Operation.MOVE,
        run=partial(_move, tasks=tasks),
        unit=tasks,
        prefilled=True,
    )


def _busy_case(producers: int) -> Case:
    return Case(
        name=f"put on a busy loop, {producers} producer{'s' * (producers > 1)}",
        summary="Time of a put while the loop runs 57 µs to 0.6 ms of Python back to back. Needs an idle machine: "
        "another process that takes the loop's core hands the GIL to a starving thread and hides the starvation. "
        "A library that blocks cannot starve, but stops the loop instead: see the lag above. "
        "A put still waiting when the time is up is let through then: twice --seconds is the largest figure.",
        operation=Operation.TIMED_PUT,
        run=partial(_busy, producers=producers),
        metrics=LATENCIES + RATE,
        durabilities=SYNCED,
        timed=True,
    )


def _headline(case: Case, headline: str, against: str | None = None, only: frozenset[Durability] | None = None) -> Case:
    """Return a case as one of those that are measured when none is named."""
    return replace(case, headline=headline, against=against, durabilities=only or case.durabilities)


PUT_MANY = Case(
    name="put_many, 1000 a call",
    summary="Messages a second. A library without a batch call is called 1000 times.",
    operation=Operation.PUT_MANY,
    run=_put_many,
    unit=BATCH,
)
ITERATE = Case(
    name="async for + ack",
    summary=f"A backlog left by an earlier session, iterated; peers have no iterator and are called in a loop. {ACKS}",
    operation=Operation.ITERATE,
    run=_iterate,
    prefilled=True,
)
GET_MANY = Case(
    name="get_many + ack_many, 1000 a call",
    summary=f"The same backlog. A library without a call that takes many is called 1000 times. {ACKS}",
    operation=Operation.GET_MANY,
    run=_get_many,
    unit=BATCH,
    prefilled=True,
)
ACK_EACH = Case(
    name="await ack, 100 consumers",
    summary="The same backlog; each consumer takes a message and waits until its ack is as durable as promised.",
    operation=Operation.ACK,
    run=partial(_ack, consumers=100),
    unit=100,
    prefilled=True,
)

HEADLINES: tuple[Case, ...] = (
    _headline(
        replace(_put_case(1), name="put, written, 1 producer"),
        "put, written to the kernel, 1 producer",
        "aiodq os",
        WRITTEN,
    ),
    _headline(replace(PUT_MANY, name="put_many, written, 1000 a call"), "put_many of 1000", "aiodq interval", WRITTEN),
    _headline(
        replace(_put_case(1), name="put, synced, 1 producer"), "put, on disk, 1 producer", "aiodq always", SYNCED
    ),
    _headline(
        replace(_put_case(100), name="put, synced, 100 producers"),
        "put, on disk, 100 producers",
        "aiodq always",
        SYNCED,
    ),
    _headline(ITERATE, "async for + ack_nowait, a backlog on disk"),
    _headline(GET_MANY, "get_many(1000) + ack_many, a backlog on disk"),
    _headline(ACK_EACH, "await message.ack(), 100 consumers"),
)
"""What is measured where nothing is named, and what a summary shows."""

CASES: tuple[Case, ...] = (
    *HEADLINES,
    *(_put_case(producers) for producers in (1, 100, 1000)),
    PUT_MANY,
    Case(
        name="get + ack",
        summary=f"A backlog left by an earlier session, in the page cache; one consumer. {ACKS}",
        operation=Operation.GET,
        run=_get,
        prefilled=True,
    ),
    Case(
        name="put + get, 1:1",
        summary=f"Pairs a second: one task puts a message, takes it and settles it. {ACKS}",
        operation=Operation.PUT_GET,
        run=_put_get,
    ),
    *(_move_case(tasks) for tasks in (1, 100)),
    Case(
        name="put latency, paced",
        summary="Time of a put; one producer that rests 1 ms between two puts.",
        operation=Operation.TIMED_PUT,
        run=_paced,
        metrics=LATENCIES,
        durabilities=SYNCED,
        timed=True,
    ),
    Case(
        name="event-loop lag, 100 producers",
        summary="How late a 5 ms ticker wakes while 100 tasks put as fast as they can.",
        operation=Operation.LAG,
        run=partial(_lag, producers=100),
        metrics=LAGS,
        durabilities=SYNCED,
        timed=True,
    ),
    *(_busy_case(producers) for producers in (1, 100)),
)
