"""Packs small pieces of work into one task, because each task has a fixed cost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from aiodq.spark.planning import LEAST_BYTES, bytes_of, most_tasks, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiodq.spark.options import ReadOptions
    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["OPENING_BYTES", "pack", "pack_splits", "plan_tasks", "tasks_for"]

T = TypeVar("T")

_LOG: Final = logging.getLogger("aiodq.spark")

OPENING_BYTES: Final = 256 << 10
"""Opening a topic or a segment takes about as long as reading so many bytes."""


def plan_tasks(fs: FileSystem, options: ReadOptions) -> list[tuple[Split, ...]]:
    """Return what each task of a read is to read, in the order of their topics and offsets. Blocking.

    Raises:
        AiodqError: as `plan`.
    """
    splits = plan(fs, options)
    tasks = pack_splits(splits, options)
    topics = sorted({split.topic for split in splits})
    messages = sum(split.stop - split.start for split in splits)
    _LOG.info("read of the topics %s: messages: %d, tasks: %d", topics, messages, len(tasks))
    return tasks


def pack_splits(splits: Sequence[Split], options: ReadOptions) -> list[tuple[Split, ...]]:
    """Return the splits of each task, balanced by bytes and number, in order."""
    total = sum(map(_weight, splits))
    number = tasks_for(total) if options.split_bytes is None else -(-total // options.split_bytes)
    return pack(splits, _weight, max(number, options.min_partitions or 0))


def tasks_for(total: int) -> int:
    """Return the number of tasks for so many bytes: a multiple of the cores, unless there are few bytes."""
    return min(most_tasks(total), -(-total // LEAST_BYTES))


def pack(pieces: Sequence[T], weight: Callable[[T], int], number: int) -> list[tuple[T, ...]]:
    """Return the pieces in order, in at most so many parts of about the same weight; no part is empty."""
    total = sum(map(weight, pieces))
    parts: dict[int, list[T]] = {}
    before = 0
    for piece in pieces:
        own = weight(piece)
        # By its middle: a piece across a boundary goes to the part that has more of it.
        parts.setdefault((2 * before + own) * max(number, 1) // max(2 * total, 1), []).append(piece)
        before += own
    return [tuple(part) for part in parts.values()]


def _weight(split: Split) -> int:
    return bytes_of(split) + OPENING_BYTES
