"""Spark killed in the middle of its work, its driver or its workers: what it carries is there once.

`python -m tests.spark.kills` does the same as often as one likes.
"""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.kills import PROCESSES, WAYS, WHO, carry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = Callable[[str, Any], None]

KILLS = 5

can_find_workers = pytest.mark.skipif(not (PROCESSES / "self" / "stat").exists(), reason="workers are found by /proc")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["driver", pytest.param("workers", marks=can_find_workers)])
def test_nothing_is_missing_and_nothing_is_twice(tmp_path: Path, seed: int, who: str) -> None:
    rng = random.Random(seed)
    way, owned = rng.choice(WAYS), rng.random() < 0.5
    job = carry(tmp_path / "run", way, who, seed, 2 if who == "driver" else 6, owned=owned, clustered=False)
    assert job.put > 0


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
