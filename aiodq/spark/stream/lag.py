"""The lag of a query behind the stores that it reads, from its checkpoint and without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import CorruptionError, InvalidOptionError, StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem, full_path
from aiodq.spark.planning import deleted_ranges, snapshot
from aiodq.spark.stream.stream_offsets import are_offsets, are_whole
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.segments.offset_ranges import total
from aiodq.storage.store_layout import check_store_directory, has_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["TopicLag", "lag"]

_NAMED: Final = "v2"
"""The version of Spark's offsets in which each source's come after its name, or its number, and a colon."""


@dataclass(frozen=True)
class TopicLag:
    """The lag of a query behind one topic.

    Attributes:
        store, topic: the store and the topic.
        taken: the offset after the last message of the last finished batch.
        end: the offset after the newest message.
        lag: the number of messages between the two, without those that were deleted.
    """

    store: str
    topic: str
    taken: int
    end: int
    lag: int


def lag(checkpoint: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> list[TopicLag]:
    """Return the lag of a query behind each topic that it has read, by store and topic. Blocking.

    The query may be running or not. Deleted topics are left out; of a topic that was deleted and created again, nothing
    counts as read.

    Args:
        checkpoint: the query's checkpoint, a directory of this machine.
        store: the directory of the store that it reads; not needed for several, which the checkpoint names.

    Raises:
        StoreNotFoundError: there is no such checkpoint, or no such store.
        InvalidOptionError: the query reads one store and `store` is missing, or it reads no store of aiodq.
        CorruptionError: the checkpoint is not what Spark writes, or has offsets that aiodq does not write.
        StorageError: as mapped from the system's error.
    """
    fs, found = AnyFileSystem(), dict[tuple[str, str], tuple[int, str]]()
    for source in _sources(fs, full_path(os.fspath(checkpoint))):
        for key, taken in source["topics"].items():
            where, _, topic = key.rpartition("/")
            if source["v"] == 1:
                where = _said(store)
            place, until = (where or "/", topic), (taken, source.get("ids", {}).get(key, ""))
            found[place] = min(found.get(place, until), until)
    for each in {each for each, _ in found}:
        check_store_directory(fs, each)
    return [_of(fs, *place, *until) for place, until in sorted(found.items()) if has_topic(fs, *place)]


def _of(fs: FileSystem, store: str, topic: str, taken: int, known: str) -> TopicLag:
    log = snapshot(fs, store, topic, walk=False)
    if known and log.described and known != str(log.meta.uuid):
        taken = 0
    end, first = log.view.stop, max(taken, log.begin)
    return TopicLag(store, topic, taken, end, max(end - first - total(deleted_ranges(log, first, end)), 0))


def _said(store: str | os.PathLike[str] | None) -> str:
    if store is None:
        raise InvalidOptionError(
            "which store does the query read? Its checkpoint does not know: say the directory, too"
        )
    return full_path(os.fspath(store))


def _sources(fs: FileSystem, checkpoint: str) -> Iterator[dict[str, Any]]:
    """Yield the offsets of a query's sources of the format `aiodq`, after its last finished batch."""
    finished = _batches(fs, os.path.join(checkpoint, "commits"))
    if not finished:
        raise InvalidOptionError(f"no batch of the query with the checkpoint {checkpoint!r} is finished yet")
    path = os.path.join(checkpoint, "offsets", str(finished[-1]))
    data = read_file(fs, path)
    if data is None:
        raise CorruptionError("the offsets of a batch that is finished are missing", path, 0)
    ours = False
    lines = data.decode(errors="replace").splitlines()
    for said in lines[2:]:
        line = said.partition(":")[2] if lines[0] == _NAMED else said
        offsets = _decoded(line)
        if offsets is None:
            continue
        if not are_whole(offsets):
            raise CorruptionError(f"it has offsets that aiodq does not write: {line:.200}", path, 0)
        ours = True
        yield offsets
    if not ours:
        raise InvalidOptionError(f"the query with the checkpoint {checkpoint!r} reads nothing of aiodq")


def _decoded(line: str) -> dict[str, Any] | None:
    """Return a source's offsets; None if they are not aiodq's."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if are_offsets(found) else None


def _batches(fs: FileSystem, directory: str) -> list[int]:
    try:
        return sorted(int(name) for name in fs.listdir(directory) if name.isdecimal())
    except FileNotFoundError as cause:
        raise StoreNotFoundError("there is no checkpoint of a query", directory) from cause
    except OSError as cause:
        raise storage_error(cause, directory) from cause
