"""Divides the limit of a batch among the topics of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.spark.objects import AnyFileSystem
from aiodq.storage.read.log_reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = ["shares", "up_to_bytes"]


def shares(waiting: Mapping[str, int], most: int, turn: int) -> dict[str, int]:
    """Return how many messages the batch reads of each topic: equal numbers, as far as they have as many.

    Args:
        waiting: how many wait in each topic.
        most: the most in all.
        turn: how many were read before; if there are fewer messages than topics, it decides which topics have a turn.
    """
    given = dict.fromkeys(waiting, 0)
    hungry = sorted(topic for topic, count in waiting.items() if count)
    while hungry and most >= len(hungry):
        each = min(most // len(hungry), *(waiting[topic] - given[topic] for topic in hungry))
        for topic in hungry:
            given[topic] += each
        most -= each * len(hungry)
        hungry = [topic for topic in hungry if given[topic] < waiting[topic]]
    begin = turn // most % len(hungry) if most and hungry else 0
    for topic in (hungry[begin:] + hungry[:begin])[:most]:
        given[topic] += 1
    return given


def up_to_bytes(log: LogSnapshot, start: int, end: int, size: int) -> int:
    """Return the offset after about `size` bytes, as exact as the segments' indexes, and larger than `start`."""
    reader = LogReader(AnyFileSystem())
    try:
        return min(reader.offset_behind(log.view, start, max(size, 1)), end)
    finally:
        reader.close()
