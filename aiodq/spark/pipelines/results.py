"""The earlier results of `compact` in a topic, identified by the names of its commits."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidOptionError
from aiodq.spark.planning import beside_its_owner, snapshot
from aiodq.spark.writing.committing import single_writes
from aiodq.storage.io.filesystem import name_exists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["name_of_result"]

_HOW: Final = {(False, False): "all", (True, False): "alive", (False, True): "found", (True, True): "foundalive"}
"""The prefixes of names, by `drop_empty` and `lossy`."""


def name_of_result(
    fs: FileSystem, place: str, into: str, splits: Sequence[Split], *, drop_empty: bool, lossy: bool = False
) -> str:
    """Return the `txnId` that identifies the result of compacting these splits of one topic.

    It contains the uuid of the topic, the first offset and the one after the last, and how often the result was written
    into a topic that was deleted since.

    Args:
        fs: the file system.
        place: the store that is written to; it may not exist yet.
        into: the topic in it.
        splits: all splits of the source topic, in order; at least one.
        drop_empty: as for `compact`.
        lossy: as for `compact`. A result without losses also counts as one that may have them.

    Raises:
        InvalidOptionError: there is a result of the same topic with other messages, or with other options.
        StorageError: as mapped from the system's error.
    """
    topic = f"compact-{splits[0].place.topic.hex}-{zlib.crc32(into.encode()):08x}-"
    start = f"{topic}{splits[0].start}-{splits[-1].stop}-"
    names = [f"{start}{_HOW[drop_empty, left_out]}" for left_out in ((False, True) if lossy else (False,))]
    writes = {write: done for write, done in single_writes(place).items() if write.startswith(topic)}
    there = set(writes) if _has_had(fs, place, into) else {write for write, done in writes.items() if not done}
    same = [write for write in there if write.rpartition("-")[0] in names]
    if there and not same:
        first, stop, how = max(there, key=_number).removeprefix(topic).split("-")[:3]
        found = next((kinds for kinds, kind in _HOW.items() if kind == how), (False, False))
        raise InvalidOptionError(
            f"the topic {into!r} has what was compacted of the messages {first} to {int(stop) - 1}{_without(*found)}; "
            f"these are {splits[0].start} to {splits[-1].stop - 1}{_without(drop_empty, lossy)}: put it into another "
            f"topic, delete that one first, or give a txn_id, by which it is put after the earlier one"
        )
    return max(same, key=_number, default=f"{names[-1]}-{len(writes)}")


def _without(empty: bool, lost: bool) -> str:  # noqa: FBT001 - as the table has them
    return f"{', without empty ones' if empty else ''}{', with lossy' if lost else ''}"


def _number(write: str) -> int:
    return int(write.rpartition("-")[2])


def _has_had(fs: FileSystem, place: str, topic: str) -> bool:
    """Return whether the topic exists and has, or had, messages."""
    directory = os.path.join(place, topic)
    return name_exists(fs, directory) and beside_its_owner(lambda: snapshot(fs, place, topic)).view.stop > 0
