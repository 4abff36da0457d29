"""What `compact` has put into a topic before, by the names of its commits."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidOptionError
from aiodq.spark.planning import beside_its_owner, snapshot
from aiodq.spark.writing import single_writes
from aiodq.storage.io.filesystem import name_exists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiodq.spark.planning import Split
    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["name_of_result"]

_HOW: Final = {False: "all", True: "alive"}


def name_of_result(fs: FileSystem, place: str, into: str, splits: Sequence[Split], *, drop_empty: bool) -> str:
    """Return the name by which what is made of these splits of one topic is known again: a `txnId`.

    It says of which topic they are, by its uuid, and from which offset to which; and how often that was written into a
    topic that was deleted since.

    Args:
        fs: the files.
        place: the store that is written to; there may be none.
        into: the topic in it.
        splits: all that the topic has that is read, in order; at least one.
        drop_empty: as for `compact`.

    Raises:
        InvalidOptionError: there is what was made of that topic when it had other messages, or in another way.
        StorageError: as mapped from the system's error.
    """
    topic = f"compact-{splits[0].place.topic.hex}-{zlib.crc32(into.encode()):08x}-"
    name = f"{topic}{splits[0].start}-{splits[-1].stop}-{_HOW[drop_empty]}"
    writes = {write: done for write, done in single_writes(place).items() if write.startswith(topic)}
    there = set(writes) if _has_had(fs, place, into) else {write for write, done in writes.items() if not done}
    same = [write for write in there if write.rpartition("-")[0] == name]
    if there and not same:
        first, stop, how = max(there, key=_number).removeprefix(topic).split("-")[:3]
        without = ", without empty ones" if how == _HOW[True] else ""
        raise InvalidOptionError(
            f"the topic {into!r} has what was compacted of the messages {first} to {int(stop) - 1}{without}; these are "
            f"{splits[0].start} to {splits[-1].stop - 1}{', without empty ones' if drop_empty else ''}: put it into "
            f"another topic, delete that one first, or give a txn_id, by which it is put behind the earlier one"
        )
    return max(same, key=_number, default=f"{name}-{len(writes)}")


def _number(write: str) -> int:
    return int(write.rpartition("-")[2])


def _has_had(fs: FileSystem, place: str, topic: str) -> bool:
    """Return whether there is a topic that has, or had, messages."""
    directory = os.path.join(place, topic)
    return name_exists(fs, directory) and beside_its_owner(lambda: snapshot(fs, place, topic)).view.stop > 0
