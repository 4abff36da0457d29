"""System calls that fail, for real: each kind, each error, each call in turn. No acknowledgement is false."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.real.support import held, put_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.real.support import Zygote

    Record = Callable[[str, Any], None]

SYNCS: Final = ("fdatasync", "fsync")
SYNC_ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT")
OTHERS: Final = {
    "write": ("EIO", "ENOSPC", "EINTR"),
    "pwrite64": ("EIO", "ENOSPC", "EINTR"),
    "/^pwritev": ("EIO", "ENOSPC", "EINTR"),
    "/^rename": ("EIO", "ENOSPC"),
    "openat": ("EIO", "ENOSPC", "EMFILE", "EINTR"),
    "ftruncate": ("EIO", "ENOSPC", "EINTR"),
    "/^unlink": ("EIO", "EACCES"),
    "/^mkdir": ("EIO", "ENOSPC"),
    "pread64": ("EIO", "EINTR"),
}
CALLS: Final = "/^(write|pwrite64|pwritev2?|rename.*|openat|ftruncate|unlink.*|mkdir.*|pread64|fdatasync|fsync)$"
OPERATIONS: Final = 200
MOST: Final = 50
"""Calls of a kind that fail in turn, of each thread; syncs are all tried."""


def fail_one(traced: Zygote, call: str, error: str, number: int, seed: int) -> bool:
    """Let one call of a kind fail and hold the store against what was promised; return whether there was one."""
    ended = traced.run("mixed", seed, OPERATIONS, calls=CALLS, inject=f"{call}:error={error}:when={number}")
    where = f"{call} {number} with {error}, told {ended.told[:3]}"
    assert ended.code == 0, f"{where}: {traced.complaints()[-3000:]}"
    if call in SYNCS and ended.injected:
        assert "StoreFailedError" in ended.told, where
    try:
        held(ended)
        asyncio.run(put_one(ended.store))
    except Exception as problem:
        problem.add_note(where)
        raise
    return ended.injected > 0


def fail_each(traced: Zygote, call: str, error: str, numbers: Iterable[int], seed: int) -> int:
    """Let one call after the other fail, until there is none; return how many failed."""
    failed = 0
    for number in numbers:
        if not fail_one(traced, call, error, number, seed):
            break
        failed += 1
    return failed


def kill_one(traced: Zygote, number: int, seed: int) -> bool:
    """Kill the process as it enters its n-th call that changes something; return whether it came to that."""
    calls = CALLS.replace("|pread64", "")
    ended = traced.run("mixed", seed, OPERATIONS, calls=calls, inject=f"{calls}:signal=KILL:when={number}")
    assert ended.code in {0, -signal.SIGKILL}, traced.complaints()[-3000:]
    try:
        held(ended)
    except Exception as problem:
        problem.add_note(f"killed at call {number}")
        raise
    return ended.code != 0


@pytest.mark.parametrize("error", SYNC_ERRORS)
def test_a_sync_that_fails_acknowledges_nothing_and_stops_the_store(
    error: str, traced: Zygote, seed: int, record_property: Record
) -> None:
    rng = random.Random(f"{seed} {error}")
    hits = [fail_one(traced, "fdatasync", error, rng.randint(1, 150), seed)]
    hits += [fail_one(traced, "fsync", error, rng.randint(1, 15), seed)]
    assert all(hits)
    record_property("trials", len(hits))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("error", SYNC_ERRORS)
@pytest.mark.parametrize("call", SYNCS)
def test_each_sync_that_fails_acknowledges_nothing_and_stops_the_store(
    call: str, error: str, traced: Zygote, seed: int, record_property: Record
) -> None:
    failed = fail_each(traced, call, error, range(1, 10_000), seed)
    assert failed >= (100 if call == "fdatasync" else 10)
    record_property("trials", failed)


@pytest.mark.parametrize("call", OTHERS)
def test_a_call_that_fails_reaches_the_caller_or_is_harmless(
    call: str, traced: Zygote, seed: int, record_property: Record
) -> None:
    rng = random.Random(f"{seed} {call}")
    hit = fail_one(traced, call, rng.choice(OTHERS[call]), rng.randint(1, 5), seed)
    record_property("trials", int(hit))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("call", "error"), [(call, error) for call, errors in OTHERS.items() for error in errors])
def test_each_call_that_fails_reaches_the_caller_or_is_harmless(
    call: str, error: str, traced: Zygote, seed: int, record_property: Record
) -> None:
    failed = fail_each(traced, call, error, range(1, MOST + 1), seed)
    assert failed
    record_property("trials", failed)


def test_a_kill_at_a_system_call_loses_nothing(traced: Zygote, seed: int, record_property: Record) -> None:
    rng = random.Random(seed)
    assert all(kill_one(traced, rng.randint(1, 200), seed) for _ in range(3))
    record_property("trials", 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_at_each_system_call_loses_nothing(traced: Zygote, seed: int, record_property: Record) -> None:
    killed = 0
    while kill_one(traced, killed + 1, seed):
        killed += 1
    assert killed >= 200
    record_property("trials", killed)
