"""How far a query is behind the stores that it reads: from its checkpoint, without Spark."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiodq.errors import CorruptionError, InvalidOptionError, StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem, full_path
from aiodq.spark.planning import snapshot
from aiodq.storage.io.durable_io import read_file
from aiodq.storage.io.os_errors import storage_error
from aiodq.storage.store_layout import check_store_directory, has_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["TopicLag", "lag"]


@dataclass(frozen=True)
class TopicLag:
    """How far a query is behind a topic.

    Attributes:
        store, topic: which.
        taken: the offset behind the last message of the last batch that is finished.
        end: the offset behind the newest message that there is now.
        lag: how many messages there are between the two; those that were deleted do not count.
    """

    store: str
    topic: str
    taken: int
    end: int
    lag: int


def lag(checkpoint: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> list[TopicLag]:
    """Return how far a query is behind each topic that it has met, by store and topic. Blocking.

    It may be running, or not. A topic that was deleted is left out; of one that was made anew nothing is taken in.

    Args:
        checkpoint: the query's directory; on a file system of this machine.
        store: the directory of the store that it reads; of several, the checkpoint knows them itself.

    Raises:
        StoreNotFoundError: there is no such checkpoint, or no such store.
        InvalidOptionError: the query reads one store, and it was not said which; or no aiodq at all.
        CorruptionError: the checkpoint is not what Spark writes.
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
    end = log.view.stop
    return TopicLag(store, topic, taken, end, max(end - max(taken, log.begin), 0))


def _said(store: str | os.PathLike[str] | None) -> str:
    if store is None:
        raise InvalidOptionError(
            "which store does the query read? Its checkpoint does not know: say the directory, too"
        )
    return full_path(os.fspath(store))


def _sources(fs: FileSystem, checkpoint: str) -> Iterator[dict[str, Any]]:
    """Yield the offsets of those of a query's sources that are aiodq's, as of its last batch that is finished."""
    finished = _batches(fs, os.path.join(checkpoint, "commits"))
    if not finished:
        raise InvalidOptionError(f"no batch of the query with the checkpoint {checkpoint!r} is finished yet")
    path = os.path.join(checkpoint, "offsets", str(finished[-1]))
    data = read_file(fs, path)
    if data is None:
        raise CorruptionError("the offsets of a batch that is finished are missing", path, 0)
    ours = False
    for line in data.decode(errors="replace").splitlines()[2:]:
        offsets = _decoded(line)
        if offsets is not None:
            ours = True
            yield offsets
    if not ours:
        raise InvalidOptionError(f"the query with the checkpoint {checkpoint!r} reads nothing of aiodq")


def _decoded(line: str) -> dict[str, Any] | None:
    """Return a source's offsets; None where they are not aiodq's."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    ours = isinstance(found, dict) and found.get("v") in {1, 2} and isinstance(found.get("topics"), dict)
    return found if ours else None


def _batches(fs: FileSystem, directory: str) -> list[int]:
    try:
        return sorted(int(name) for name in fs.listdir(directory) if name.isdecimal())
    except FileNotFoundError as cause:
        raise StoreNotFoundError("there is no checkpoint of a query", directory) from cause
    except OSError as cause:
        raise storage_error(cause, directory) from cause
