"""Gaps between a topic's segments, of which a stream's offsets say whether a query has lost the messages.

Retention deletes a segment once every channel has settled all of it, also one between others. What was deleted before
a query first saw the topic was never for it to read. What is deleted later, and before it was read, is lost to it.
`"gaps": {"7f1c…": [[10, 90]]}` holds the former, by the topic's uuid, as far as they lie ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.spark.planning import gaps_in

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from aiodq.storage.read.snapshot import LogSnapshot
    from aiodq.storage.segments.offset_ranges import Ranges

__all__ = ["after_gap", "gaps_of", "with_gaps"]


def gaps_of(offsets: Mapping[str, Any], uuid: str | None) -> Ranges:
    """Return the gaps in offsets of the topic with this uuid; none if they are not as they were written."""
    said = offsets.get("gaps")
    gaps = said.get(uuid) if isinstance(said, dict) else None
    whole = isinstance(gaps, list) and all(isinstance(gap, list) and list(map(type, gap)) == [int, int] for gap in gaps)
    return tuple((first, stop) for first, stop in gaps) if gaps and whole else ()


def with_gaps(
    offsets: dict[str, Any],
    start: Mapping[str, Any],
    logs: Mapping[str, LogSnapshot],
    taken: Mapping[str, int],
    seen: Container[str],
) -> dict[str, Any]:
    """Return the offsets at which a batch ends, with gaps.

    Args:
        offsets: the offsets without gaps.
        start: the offsets at which the batch begins.
        logs: the topics.
        taken: where the batch begins in each topic.
        seen: the topics that the query knew before. Of the others, what is a gap now is none of its losses.
    """
    found: dict[str, list[list[int]]] = {}
    for topic, log in logs.items():
        uuid = str(log.meta.uuid)
        known = gaps_of(start, uuid) if topic in seen else gaps_in(log.view)
        ahead = [[first, stop] for first, stop in known if stop > taken[topic]]
        if ahead:
            found[uuid] = ahead
    return {**offsets, "gaps": found} if found else offsets


def after_gap(first: int, known: Ranges) -> int:
    """Return the offset where reading begins if it is to begin at this one, which may lie in a known gap."""
    return next((stop for low, stop in known if low <= first < stop), first)
