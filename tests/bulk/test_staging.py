"""What is staged from Arrow arrays is what is staged of their values one by one."""

from __future__ import annotations

import random
from itertools import count
from uuid import UUID

import pyarrow as pa
import pytest

from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.vectorized.encode import ArrowColumns
from aiodq.storage.bulk.staging import StagingWriter
from tests.bulk.support import STORE
from tests.channels.support import Machine

Rows = list[tuple[bytes, str | None, bytes | None]]


def drawn(rng: random.Random) -> Rows:
    """Return records of any size, some of them with labels."""
    largest = rng.choice((0, 3, 200, 3000, 100_000))
    return [
        (
            rng.randbytes(rng.randint(0, largest)),
            rng.choice((None, "", "r\u00f6t", "blue" * 9)),
            rng.choice((None, b"", rng.randbytes(9))),
        )
        for _ in range(rng.choice((1, 1, 2, 30, 1500)) if largest < 3000 else rng.randint(1, 30))
    ]


def staged(
    machine: Machine, puts: list[tuple[str, Columns | ArrowColumns]], segment_bytes: int, codec: int
) -> tuple[object, object]:
    """Return what a writer that puts these says it has staged, and the files."""
    writer = StagingWriter(machine.fs, machine.clock, STORE, "w", segment_bytes=segment_bytes, codec=codec)
    for topic, columns in puts:
        writer.put(topic, columns)
    return writer.finish(), machine.fs.image()


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
@pytest.mark.parametrize("segment_bytes", [1000, 100_000, 1 << 26])
def test_it_is_the_same_whichever_way_it_comes(
    monkeypatch: pytest.MonkeyPatch, seed: int, segment_bytes: int, codec: int
) -> None:
    rng = random.Random(seed)
    by_value: list[tuple[str, Columns | ArrowColumns]] = []
    by_array: list[tuple[str, Columns | ArrowColumns]] = []
    for _ in range(12):
        topic, rows = rng.choice("ab"), drawn(rng)
        bodies, tags, keys = (list(column) for column in zip(*rows, strict=True))
        tagged, keyed = rng.random() < 0.3, rng.random() < 0.3
        by_value.append((topic, Columns(bodies, tags=tags if tagged else None, keys=keys if keyed else None)))
        arrays = pa.array(tags, pa.string()) if tagged else None, pa.array(keys, pa.binary()) if keyed else None
        by_array.append((topic, ArrowColumns(pa.array(bodies, pa.binary()), *arrays)))
    found = []
    for puts in (by_value, by_array):
        numbers = count()
        monkeypatch.setattr("aiodq.storage.bulk.staging.uuid4", lambda numbers=numbers: UUID(int=next(numbers)))
        machine = Machine()
        machine.fs.make_directory(STORE)
        found.append(staged(machine, puts, segment_bytes, codec))
    assert found[0] == found[1]
