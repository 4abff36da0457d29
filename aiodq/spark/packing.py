"""Small pieces of work together in one task: what a task costs Spark is paid once for many of them."""

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
"""To open a topic, or a segment, takes about as long as to read so much of one."""


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
    """Return splits by task, by their bytes and their count, in their order."""
    total = sum(map(_weight, splits))
    number = tasks_for(total) if options.split_bytes is None else -(-total // options.split_bytes)
    return pack(splits, _weight, max(number, options.min_partitions or 0))


def tasks_for(total: int) -> int:
    """Return among how many tasks so many bytes are shared: each core has as many of them, unless there is little."""
    return min(most_tasks(total), -(-total // LEAST_BYTES))


def pack(pieces: Sequence[T], weight: Callable[[T], int], number: int) -> list[tuple[T, ...]]:
    """Return pieces in their order, in at most so many parts that weigh about the same, none of them empty."""
    total = sum(map(weight, pieces))
    parts: dict[int, list[T]] = {}
    before = 0
    for piece in pieces:
        own = weight(piece)
        # By where its middle lies: of two neighbours a piece goes to the one that has more of it.
        parts.setdefault((2 * before + own) * max(number, 1) // max(2 * total, 1), []).append(piece)
        before += own
    return [tuple(part) for part in parts.values()]


def _weight(split: Split) -> int:
    return bytes_of(split) + OPENING_BYTES
