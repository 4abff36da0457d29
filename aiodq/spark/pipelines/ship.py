"""Copies sealed segments to object storage, where they can be read like the store itself."""

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
from aiodq.spark.planning import gaps_in, snapshot, topics_of
from aiodq.spark.stream.stream_hold import keep, wait_until_known
from aiodq.spark.visible import store_uuid
from aiodq.storage.io.durable_io import TEMPORARY, read_file
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.io.lock import LOCK_NAME, in_turn
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.segments.offset_ranges import total, without
from aiodq.storage.segments.segment_files import segment_base
from aiodq.storage.state.holds import Hold, read_hold
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE, encode_meta, read_meta
from aiodq.storage.store_layout import refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.read.snapshot import LogSnapshot
    from aiodq.storage.segments.offset_ranges import Ranges
    from aiodq.storage.segments.segment_files import Segment

__all__ = ["MANIFEST", "ShipSummary", "ship"]

MANIFEST: Final = "manifest.json"
"""The manifest of a topic: the segments that were shipped, with sizes and checksums, and the store if it is known."""
_VERSION: Final = 1
_REPAIR: Final = "aiodq repair settles it, and the next run goes on"
"""Advice in errors about messages that are damaged or missing, which are not skipped here."""


@dataclass(frozen=True)
class ShipSummary:
    """The result of one run: the numbers of segments, messages and bytes, the target, and the seconds that it took.

    `lost` is the number of messages that were deleted before they were shipped, with `lossy`.
    """

    target: str
    segments: int
    rows: int
    bytes: int
    seconds: float
    lost: int = 0


@dataclass(frozen=True)
class _Manifest:
    """The shipped segments of a topic: by file name the size, the checksum, and the offset after the last message.

    `before` are the gaps between segments that there were when the first was shipped.
    """

    segments: dict[str, tuple[int, str, int]]
    before: Ranges = ()

    @property
    def stop(self) -> int | None:
        return max((stop for _, _, stop in self.segments.values()), default=None)

    @property
    def gaps(self) -> Ranges:
        """The gaps between its segments. They are no loss: shipping stops at messages that are missing."""
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
    """Copy the sealed segments that are not there yet to object storage, unchanged. Blocking; it needs no Spark.

    Existing objects are not overwritten; a run after one that was aborted goes on. An object that is gone is copied
    again, unless it was the oldest. Segments that are not sealed yet are left for the next run. The target is read like
    a store: `spark.read.format("aiodq").load(target)`.

    Args:
        store: the store's directory. It may be open in another process.
        target: a URL that fsspec knows: `s3://bucket/shop`.
        topics: names or patterns; None: all topics.
        hold: the name of a hold that keeps retention from deleting what is not shipped yet. The first run with it takes
            a second longer, until an owner respects it.
        lossy: go on after messages that were deleted before they were shipped, as by a purge, instead of failing.

    Raises:
        StoreNotFoundError: there is no such store, topic or bucket.
        OffsetError: messages were deleted before they were shipped; not with `lossy`.
        CorruptionError: messages are missing or damaged at the ends of segments; or a manifest is; or an object that
            was shipped is gone, is not the oldest, and the store does not have its segment any more (not with `lossy`).
        InvalidOptionError: something else has the name of a topic there; the target is a store, or on another machine;
            or `topics` is no list.
        NotAStoreError: the target lies among a store's own files.
        MissingExtraError: fsspec, or what it needs for that kind of URL, is not installed.
        StorageError: as mapped from the system's error.
    """
    began, fs, path = time.monotonic(), AnyFileSystem(), full_path(os.fspath(store))
    topics = some("topics", topics) or None
    _check_target(fs, target)
    topics_of(fs, path, topics)
    if hold is not None and read_hold(fs, path, hold) is None:
        # The hold first, then a look at the topics, as in a stream.
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
    """Make sure that the target can be read, and is no store, whose topic descriptions would be overwritten.

    Raises:
        InvalidOptionError: it is a store, or cannot be read; or the URL names no place.
        NotAStoreError: it lies among a store's own files, such as a topic's, which are removed with the topic.
        MissingExtraError: fsspec, or what it needs for that kind of URL, is not installed.
        StorageError: as mapped from the system's error; fsspec does not know this kind of URL; or it is not known.
    """
    local = local_path(target)
    if is_url(local) and not is_url(local.rstrip("/")):
        raise InvalidOptionError(f"the URL {target!r} names no place: write one as s3://bucket/shop")
    if not is_url(local):
        refuse_inside_store(fs, os.path.realpath(local))
    with os_errors(target):
        find_objects(target)
    if name_exists(fs, f"{target.rstrip('/')}/{LOCK_NAME}"):
        raise InvalidOptionError(f"{target} is a store: name a place of its own for what is shipped")


def _ship_topic(
    fs: FileSystem, log: LogSnapshot, place: str, store: UUID | None, *, lossy: bool
) -> tuple[list[Segment], int, int, int]:
    """Ship the new segments of a topic.

    Returns:
        Its segments, the offset after everything that was ever shipped, the number of messages deleted before, and the
        number of segments to look for again, as the owner has deleted one meanwhile.
    """
    before = read_meta(fs, place)
    if before is not None and before.uuid != log.meta.uuid:
        raise InvalidOptionError(f"in {place!r} is another topic of that name: ship to another place")
    known = _manifest(fs, place)
    again = _ship_again(fs, log, place, known, lossy=lossy)
    start = log.begin if known.stop is None else known.stop
    new = [segment for segment in log.view.segments if segment.sealed and segment.end > start]
    if not new:
        return again, start, 0, 0
    known = known if known.segments else replace(known, before=gaps_in(log.view))
    gone = _deleted(log, start, new, known.before)
    if gone and not lossy:
        raise OffsetError(
            f"the messages {gone[0][0]} to {gone[0][1] - 1} of {log.directory!r} were deleted before they were shipped "
            f"to {place!r}: ship with a hold, and lossy goes on without them; or start again in another place"
        )
    lost = log.lost(max(start, min(new[0].base, log.begin)), new[-1].end)
    if lost is not None:
        raise CorruptionError(f"{lost.reason}; {_REPAIR}", lost.path, lost.position)
    shipped: dict[str, tuple[int, str, int]] = {}
    for segment in new:
        data, name = read_file(fs, segment.path, segment.size), os.path.basename(segment.path)
        if data is None:
            break
        _make(f"{place}/{name}", data)
        shipped[name] = (len(data), _checksum(data), segment.end)
    done = new[: len(shipped)]
    if not done:
        return again, start, 0, len(new)
    _tell_of(fs, log, place, store, replace(known, segments={**known.segments, **shipped}))
    passed = total(without(gone, [(done[-1].end, new[-1].end)]))
    return again + done, done[-1].end, passed, len(new) - len(done)


def _deleted(log: LogSnapshot, start: int, new: Sequence[Segment], before: Ranges) -> Ranges:
    """Return what was deleted since the run before: offsets that are neither to be shipped now nor missing."""
    missing = ((gap.first, gap.stop) for gap in log.gaps)
    there = ((segment.base, segment.end) for segment in new)
    return without([(start, new[-1].end)], (*there, *missing, *before))


def _ship_again(fs: FileSystem, log: LogSnapshot, place: str, known: _Manifest, *, lossy: bool) -> list[Segment]:
    """Ship again what was shipped and is there no more; return these segments.

    The oldest objects are left out: they may have expired, as the owner of a bucket may have wanted.

    Raises:
        CorruptionError: the topic does not have the segment any more, as it was; not with `lossy`.
    """
    names = sorted(known.segments)
    with os_errors(place):
        there = set(fs.listdir(place)) if names else set[str]()
    first = next((number for number, name in enumerate(names) if name in there), len(names))
    sealed = {os.path.basename(segment.path): segment for segment in log.view.segments if segment.sealed}
    again: list[Segment] = []
    for name in names[first:]:
        if name in there:
            continue
        segment, (size, checksum, _) = sealed.get(name), known.segments[name]
        data = None if segment is None else read_file(fs, segment.path, segment.size)
        if segment is not None and data is not None and (len(data), _checksum(data)) == (size, checksum):
            _make(f"{place}/{name}", data)
            again.append(segment)
        elif not lossy:
            raise CorruptionError(
                "it was shipped, and is there no more, nor does the store have it as it was: put it back, or ship to "
                "another place; lossy goes on without it", f"{place}/{name}", 0,
            )  # fmt: skip
    return again


def _tell_of(fs: FileSystem, log: LogSnapshot, place: str, store: UUID | None, shipped: _Manifest) -> None:
    """Add these segments to the manifest of a topic."""
    # With fsspec, an object cannot be replaced on the condition that it is unchanged. But all who ship a topic see
    # its directory, usually on one machine.
    with nullcontext() if is_url(log.directory) else in_turn(log.directory):
        # Another run may have got further meanwhile; what its manifest names is not shipped again.
        named = _manifest(fs, place)
        segments, gaps = {**shipped.segments, **named.segments}, (named if named.segments else shipped).before
        before = read_meta(fs, place)
        begin = log.begin if before is None else before.begin
        # What was shipped stays for good: nothing is consumed there, and shipping stops at what is missing.
        meta = replace(log.meta, begin=begin, channels={}, paused=frozenset(), channel_options={}, lost=())
        # The store forgets a gap between two segments once retention has deleted the earlier one.
        _replace(f"{place}/{TOPIC_FILE}", encode_meta(replace(meta, deleted=_Manifest(segments).gaps)))
        # CRASH: the manifest is last: the next run finds that segments that it does not name yet are the same.
        entries = {name: list(entry) for name, entry in segments.items()}
        content: dict[str, object] = {"topic": str(log.meta.uuid), "segments": entries}
        content |= {} if store is None else {"store": str(store)}
        content |= {"before": gaps} if gaps else {}
        _replace(f"{place}/{MANIFEST}", encode_checked("manifest", _VERSION, content))


def _manifest(fs: FileSystem, place: str) -> _Manifest:
    path = f"{place}/{MANIFEST}"
    data = read_file(fs, path)
    if data is None:
        return _Manifest({})
    content = decode_checked(data, "manifest", _VERSION, path, "the manifest")
    with taking_apart(path, "the manifest"):
        found = content["segments"]
        segments = {str(name): (int(size), str(crc), int(stop)) for name, (size, crc, stop) in found.items()}
        return _Manifest(segments, tuple((int(first), int(stop)) for first, stop in content.get("before", ())))


def _make(url: str, data: bytes) -> None:
    """Write an object, or complete a partial one; do nothing if it is there already.

    Raises:
        InvalidOptionError: something else is there.
        StoreNotFoundError: there is no such bucket.
        StorageError: as mapped from the system's error.
    """
    fs, path = find_objects(url)
    with os_errors(url):
        if path.startswith("/"):
            # Where paths begin with a bucket there are no directories; fsspec would make the bucket of a misspelt name.
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
            # Objects in a bucket are complete; a run that was killed may leave a partial file.
            if not (_is_local(fs) and data.startswith(there)):
                raise InvalidOptionError(f"at {url!r} is something else than what is to be shipped there") from cause
            _replace(url, data)


def _is_local(fs: Any) -> bool:  # noqa: ANN401 - fsspec has no types
    """Return whether the objects are files of this machine."""
    return bool(getattr(fs, "local_file", False))


def _replace(url: str, data: bytes) -> None:
    fs, path = find_objects(url)
    # An object in a bucket appears complete. A file is written in steps: it may be read, or this killed, in between.
    place = f"{path}.{uuid4().hex}{TEMPORARY}" if _is_local(fs) else path
    with os_errors(url), numbered():
        fs.pipe_file(place, data)
        if place != path:
            fs.mv(place, path)


def _checksum(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"
