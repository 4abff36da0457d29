"""Merging of small consecutive batches: a batch of one message costs about as much as a batch of many."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from aiodq.format.columns import Columns
from aiodq.format.frame import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LONGEST_RUN", "SMALL", "is_small", "joined", "merged"]

LONGEST_RUN: Final = 1000
"""The most messages merged into one batch."""

SMALL: Final = 64
"""The most messages of a small batch."""


def is_small(batch: Batch) -> bool:
    """Return whether a batch is to be merged with its neighbours; what a transaction put stays by itself."""
    return len(batch.columns.bodies) <= SMALL and batch.columns.transaction is None


def joined(parts: Sequence[Batch]) -> Batch:
    """Return consecutive batches, without gaps, as one."""
    if len(parts) == 1:
        return parts[0]
    times = list(chain.from_iterable(part.columns.times or [part.time_ns] * len(part.columns.bodies) for part in parts))
    columns = replace(Columns.joined([part.columns for part in parts]), times=times)
    return Batch(parts[0].first, times[0], columns)


def merged(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches, with small consecutive ones merged."""
    run: list[Batch] = []
    messages = 0
    for batch in batches:
        small = is_small(batch)
        if run and (not small or batch.first != run[-1].stop or messages + len(batch.columns.bodies) > LONGEST_RUN):
            yield joined(run)
            run, messages = [], 0
        if small:
            run.append(batch)
            messages += len(batch.columns.bodies)
        else:
            yield batch
    if run:
        yield joined(run)
