"""The audit on Spark and `verify` find the same, whatever has happened to a store's segments."""

from __future__ import annotations

import os
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiodq
from aiodq.spark.pipelines import audit
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pytest

STORES = 12


def here(_: object, work: Sequence[Any], task: Callable[[Any], Iterator[Any]], __: str) -> SimpleNamespace:
    """Do as `spread`, without Spark."""
    rows = [row for piece in work for batch in task(piece) for row in batch.to_pylist()]
    return SimpleNamespace(collect=lambda: rows)


async def fill(path: Path, rng: Random) -> None:
    options = aiodq.StoreOptions(
        sync=rng.choice(("os", "always")),
        segment_bytes=rng.choice((2000, 6000)),
        compression=rng.choice((None, "zstd")),
    )
    async with aiodq.open(path, options) as store:
        for number in range(rng.randint(1, 3)):
            topic = store.topic(f"t{number}")
            for _ in range(rng.randint(1, 25)):
                bodies = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randint(1, 20))]
                await topic.put_many([aiodq.Draft(body, tag="a") for body in bodies] if rng.random() < 0.3 else bodies)
            await topic.sync()


def harm(path: Path, rng: Random) -> str:
    """Do something to a segment; say what."""
    segment, other = (rng.choice(sorted(path.rglob("*.seg"))) for _ in range(2))
    data = segment.read_bytes()
    at = min(rng.choice((rng.randrange(64), rng.randrange(len(data) or 1), len(data) - rng.randint(1, 120))), len(data))
    at = max(at, 0)
    what = rng.choice(("flip", "cut", "delete", "clear", "insert", "append", "copy", "empty"))
    if what == "delete":
        segment.unlink()
    else:
        changed = {
            "flip": data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :],
            "cut": data[:at],
            "clear": (data[:at] + bytes(300))[: len(data)],
            "insert": data[:at] + rng.randbytes(9) + data[at:],
            "append": data + rng.choice((rng.randbytes(99), bytes(99))),
            "copy": other.read_bytes(),
            "empty": b"",
        }
        segment.write_bytes(changed[what])
    return f"{what} {segment.relative_to(path)} at {at} of {len(data)} [{other.relative_to(path)}]"


async def test_an_audit_and_a_verification_find_the_same_topics_damaged_and_the_same_messages_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(import_module("aiodq.spark.pipelines.audit"), "spread", here)
    spark: Any = None
    for number in range(seed, seed + STORES):
        rng, path = Random(number), tmp_path / str(number)
        await fill(path, rng)
        assert audit(spark, path).findings == ()
        done = [harm(path, rng) for _ in range(rng.randint(1, 3)) if list(path.rglob("*.seg"))]
        report = verify_store(str(path), OsFileSystem())
        found = (finding for finding in report.findings if finding.severity == "damage")
        verified, audited = (lost_in(each, path) for each in (found, audit(spark, path).findings))
        assert audited == verified, f"seed {number}: {done}"


def lost_in(findings: Any, path: Path) -> dict[str, set[int]]:
    """Return what each damaged topic has lost."""
    lost: dict[str, set[int]] = {}
    for finding in findings:
        topic = os.path.relpath(finding.path, path).split(os.sep)[0]
        lost.setdefault(topic, set()).update(range(finding.first, finding.stop))
    return lost
