"""Spark killed in the middle of its work, its driver or its workers: what it carries is there once.

`python -m tests.spark.kills` does the same as often as one likes.
"""

from __future__ import annotations

import asyncio
import json
import random
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.kills import PROCESSES, WAYS, WHO, Carrying, carry, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = Callable[[str, Any], None]

KILLS = 5

can_find_workers = pytest.mark.skipif(not (PROCESSES / "self" / "stat").exists(), reason="workers are found by /proc")


@pytest.mark.timeout(600)
@can_find_workers
def test_nothing_is_missing_and_nothing_is_twice(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    way, who, owned = rng.choice(WAYS), rng.choice(WHO), rng.random() < 0.5
    job = carry(tmp_path / "run", way, who, seed, 1, owned=owned, clustered=False, batches=4)
    assert job.put > 0


@pytest.mark.parametrize("bodies", [[b"0", b"2"], [b"0", b"1", b"2", b"2"], [b"0", b"1", b"2", b"3"]])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_missing_or_twice_is_noticed(tmp_path: Path, way: str, bodies: list[bytes]) -> None:
    job = Carrying(tmp_path, way, "driver", random.Random(0))
    if way == "out":
        (tmp_path / "target" / "_spark_metadata").mkdir(parents=True)
        for number, body in enumerate(bodies):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"body": [body]}), path)
            line = json.dumps({"path": path.as_uri(), "action": "add"})
            (tmp_path / "target" / "_spark_metadata" / str(number)).write_text(f"v1\n{line}")
    else:
        asyncio.run(put(tmp_path / "target", bodies))
    job.put = 3
    with pytest.raises(AssertionError, match="missing or twice"):
        job.check()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@can_find_workers
@pytest.mark.parametrize("clustered", [False, True], ids=["local", "cluster"])
@pytest.mark.parametrize("what", list(product(WAYS, WHO)), ids="-".join)
def test_nothing_is_missing_through_many_kills(
    tmp_path: Path, seed: int, what: tuple[str, str], clustered: bool, record_property: Record
) -> None:
    found = [
        carry(tmp_path / str(owned), *what, seed, KILLS, owned=owned, clustered=clustered) for owned in (True, False)
    ]
    record_property("trials", sum(job.kills for job in found))
    assert any(job.amid for job in found), "none was killed amid a batch"
