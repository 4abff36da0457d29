"""Sealed segments, as they are, to object storage: what is there is read as the store itself is."""

from __future__ import annotations

import os
import time
import zlib
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from aiodq.errors import CorruptionError, InvalidOptionError, OffsetError
from aiodq.spark.objects import AnyFileSystem, find_objects, full_path, is_url, local_path, numbered
from aiodq.spark.pipelines.places import some
from aiodq.spark.planning import snapshot, topics_of
from aiodq.spark.stream.stream_hold import keep, wait_until_known
from aiodq.spark.visible import store_uuid
from aiodq.storage.io.durable_io import TEMPORARY, read_file
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.io.lock import LOCK_NAME, in_turn
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.segment_files import segment_base
from aiodq.storage.state.holds import Hold, read_hold
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, encode_meta, read_meta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.read.snapshot import LogSnapshot
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["MANIFEST", "ShipSummary", "ship"]

MANIFEST: Final = "manifest.json"
"""Of a topic: which segments were shipped, with their sizes and checksums, and from which store where it says so."""
_VERSION: Final = 1


@dataclass(frozen=True)
class ShipSummary:
    """What one run did: so many segments with so many messages and bytes brought to a place, in so many seconds.

    `lost` is how many messages had been deleted before, and were left out with `lossy`.
    """

    target: str
    segments: int
    rows: int
    bytes: int
    seconds: float
    lost: int = 0


@dataclass(frozen=True)
class _Manifest:
    """What was shipped of a topic: by file name its size, its checksum, and the offset behind it."""

    segments: dict[str, tuple[int, str, int]]

    @property
    def stop(self) -> int | None:
        return max((stop for _, _, stop in self.segments.values()), default=None)

    @property
    def gaps(self) -> Ranges:
        """The offsets between its segments. None of them is a loss: what is missing is not shipped past."""
        spans = sorted((segment_base(name) or 0, stop) for name, (_, _, stop) in self.segments.items())
        return tuple((stop, base) for (_, stop), (base, _) in pairwise(spans) if stop < base)


def ship(
    store: str | os.PathLike[str],
    target: str,
    *,
    topics: Sequence[str] | None = None,
    hold: str | None = None,
    lossy: bool = False,
) -> ShipSummary:
    """Bring the sealed segments that are not there yet to a place in object storage, byte by byte. Blocking, no Spark.

    An object is made only where there is none; repeated after it was cut short, it goes on. What is not sealed yet is
    for the next run. The place is read as a store is: `spark.read.format("aiodq").load(target)`.

    Args:
        store: the store's directory. It may be open in another process.
        target: a URL that fsspec knows: `s3://bucket/shop`.
        topics: names or patterns; all topics where None.
        hold: the name under which the store keeps from retention what is not shipped yet. The first run with one takes
            a second more, until an owner knows of it.
        lossy: go on behind messages that were deleted before they were shipped, as a purge does, instead of failing.

    Raises:
        StoreNotFoundError: there is no such store or topic.
        OffsetError: messages were deleted before they were shipped; not with `lossy`.
        CorruptionError: messages are missing or damaged at the ends of segments; or a manifest is.
        InvalidOptionError: under the name of a topic something else lies there, or the place is a store, or another
            machine's; or topics are no list.
        MissingExtraError: fsspec, or what it needs for that kind of URL, is not installed.
        StorageError: as mapped from the system's error.
    """
    began, fs, path = time.monotonic(), AnyFileSystem(), full_path(os.fspath(store))
    topics = some("topics", topics) or None
    _check_target(fs, target)
    topics_of(fs, path, topics)
    if hold is not None and read_hold(fs, path, hold) is None:
        # Kept first, and then looked at, as a stream does.
        keep(path, hold, Hold({}, None if topics is None else tuple(topics)))
        wait_until_known()
    names, uuid = topics_of(fs, path, topics), store_uuid(fs, path)
    shipped: list[Segment] = []
    lost = 0
    for topic in names:
        left, end = 1, 0
        while left:
            log = snapshot(fs, path, topic)
            found, end, gone, left = _ship_topic(fs, log, f"{target.rstrip('/')}/{topic}", uuid, lossy=lossy)
            shipped += found
            lost += gone
        if hold is not None:
            held = read_hold(fs, path, hold) or Hold({}, None if topics is None else tuple(topics))
            keep(path, hold, replace(held, offsets={**held.offsets, topic: end}))
    rows, size = sum(segment.records for segment in shipped), sum(segment.size for segment in shipped)
    return ShipSummary(target, len(shipped), rows, size, time.monotonic() - began, lost)


def _check_target(fs: FileSystem, target: str) -> None:
    """Make sure that the place is read by that name, and is no store, of whose topics descriptions would be replaced.

    Raises:
        InvalidOptionError: it is one, or cannot.
        MissingExtraError: fsspec, or what it needs for that kind of URL, is not installed.
        StorageError: as mapped from the system's error; fsspec knows no such kind, or it cannot be told.
    """
    local_path(target)
    with os_errors(target):
        find_objects(target)
    if name_exists(fs, f"{target.rstrip('/')}/{LOCK_NAME}"):
        raise InvalidOptionError(f"{target} is a store: name a place of its own for what is shipped")


def _ship_topic(
    fs: FileSystem, log: LogSnapshot, place: str, store: UUID | None, *, lossy: bool
) -> tuple[list[Segment], int, int, int]:
    """Ship what is new of a topic.

    Returns:
        Its segments, the offset behind all that was shipped ever, how many messages were deleted before, and how many
        segments are to be looked for anew, as their owner has deleted one meanwhile.
    """
    before = read_meta(fs, place)
    if before is not None and before.uuid != log.meta.uuid:
        raise InvalidOptionError(f"in {place!r} is another topic of that name: ship to another place")
    known = _manifest(fs, place)
    start = log.begin if known.stop is None else known.stop
    new = [segment for segment in log.view.segments if segment.sealed and segment.end > start]
    if not new:
        return [], start, 0, 0
    gone = max(min(new[0].base, log.begin) - start, 0)
    if gone and not lossy:
        raise OffsetError(
            f"the messages {start} to {start + gone - 1} of {log.directory!r} were deleted before they were shipped to "
            f"{place!r}: ship with a hold, and lossy goes on without them; or begin anew in another place"
        )
    lost = log.lost(start + gone, new[-1].end)
    if lost is not None:
        raise CorruptionError(lost.reason, lost.path, lost.position)
    shipped: dict[str, tuple[int, str, int]] = {}
    for segment in new:
        data, name = read_file(fs, segment.path, segment.size), os.path.basename(segment.path)
        if data is None:
            break
        _make(f"{place}/{name}", data)
        shipped[name] = (len(data), _checksum(data), segment.end)
    done = new[: len(shipped)]
    if not done:
        return [], start, 0, len(new)
    _tell_of(fs, log, place, store, {**known.segments, **shipped})
    return done, done[-1].end, gone, len(new) - len(done)


def _tell_of(
    fs: FileSystem, log: LogSnapshot, place: str, store: UUID | None, shipped: Mapping[str, tuple[int, str, int]]
) -> None:
    """Say in a topic's place that these segments were shipped, beside those of which it says so already."""
    # By fsspec nobody can replace an object on the condition that it is as it was read. But all who ship a topic see
    # its directory, mostly from one machine.
    with nullcontext() if is_url(log.directory) else in_turn(log.directory):
        # Another run may have come further meanwhile; what its manifest named is not shipped again.
        segments = {**shipped, **_manifest(fs, place).segments}
        before = read_meta(fs, place)
        begin = log.begin if before is None else before.begin
        # What was shipped is there for good, and nobody consumes it there.
        meta = replace(log.meta, begin=begin, channels={}, paused=frozenset(), channel_options={})
        # What retention has deleted between two segments, the store forgets once the earlier one is gone.
        _replace(f"{place}/{TOPIC_FILE}", encode_meta(replace(meta, deleted=_Manifest(segments).gaps)))
        # CRASH: the manifest last: what it does not name yet is found to be the same by the next run.
        content = {"topic": str(log.meta.uuid), "segments": {name: list(entry) for name, entry in segments.items()}}
        content |= {} if store is None else {"store": str(store)}
        _replace(f"{place}/{MANIFEST}", encode_checked("manifest", _VERSION, content))


def _manifest(fs: FileSystem, place: str) -> _Manifest:
    path = f"{place}/{MANIFEST}"
    data = read_file(fs, path)
    if data is None:
        return _Manifest({})
    found = decode_checked(data, "manifest", _VERSION, path, "the manifest")["segments"]
    with taking_apart(path, "the manifest"):
        return _Manifest({str(name): (int(size), str(crc), int(stop)) for name, (size, crc, stop) in found.items()})


def _make(url: str, data: bytes) -> None:
    """Make an object, unless the same is there, or make it whole.

    Raises:
        InvalidOptionError: something else is there.
        StorageError: as mapped from the system's error.
    """
    fs, path = find_objects(url)
    with os_errors(url):
        with numbered():
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with numbered():
                fs.pipe_file(path, data, mode="create")
        except FileExistsError as cause:
            with numbered():
                there = bytes(fs.cat_file(path))
            if there == data:
                return
            # In a bucket an object is whole; of a file, a run that was killed leaves a part.
            if not (_is_local(fs) and data.startswith(there)):
                raise InvalidOptionError(f"at {url!r} is something else than what is to be shipped there") from cause
            _replace(url, data)


def _is_local(fs: Any) -> bool:  # noqa: ANN401 - fsspec has no types
    """Return whether objects are this machine's files."""
    return bool(getattr(fs, "local_file", False))


def _replace(url: str, data: bytes) -> None:
    fs, path = find_objects(url)
    # An object in a bucket appears whole; a file is written bit by bit, and somebody may read it, or this be killed.
    place = f"{path}.{uuid4().hex}{TEMPORARY}" if _is_local(fs) else path
    with os_errors(url), numbered():
        fs.pipe_file(place, data)
        if place != path:
            fs.mv(place, path)


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"
