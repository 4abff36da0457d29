"""Checks every checksum of every segment in parallel, and looks for gaps and repetitions of offsets."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import read_options
from aiodq.spark.packing import OPENING_BYTES, pack, tasks_for
from aiodq.spark.pipelines.session import check_stores, topics_option
from aiodq.spark.pipelines.spread import spread
from aiodq.spark.planning import snapshot, topics_of
from aiodq.spark.visible import Place, require_seen, store_uuid
from aiodq.storage.io.filesystem import name_exists
from aiodq.storage.offline.verify_segment import check_segment
from aiodq.storage.state.watermark import WATERMARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from pyspark.sql import SparkSession

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.offline.verify_segment import SegmentCheck
    from aiodq.storage.read.snapshot import LogSnapshot

__all__ = ["AuditFinding", "AuditSummary", "audit"]

_FOUND: Final = (
    "store STRING, topic STRING, path STRING, position BIGINT, reason STRING, "
    "first BIGINT, stop BIGINT, records BIGINT, bytes BIGINT"
)
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("store", "topic", "path")),
        ("position", pa.int64()),
        ("reason", pa.string()),
        *((name, pa.int64()) for name in ("first", "stop", "records", "bytes")),
    ]
)


_FASTER: Final = 8
"""Checking a segment takes only this share of the time of starting a task, so a task checks several."""


class _Piece(NamedTuple):
    """One segment as it is sent to a task, with all that `check_segment` needs."""

    store: str
    topic: str
    place: Place
    path: str
    base: int
    durable_end: int
    size: int
    last: bool
    copied: bool


@dataclass(frozen=True)
class AuditFinding:
    """A place in a store that is not as it was written.

    Attributes:
        store, topic: the store and the topic.
        path, position: the file, and the position in it.
        reason: a description.
        first, stop: the first offset that is lost and the one after the last; equal if none is, or if it is unknown.
    """

    store: str
    topic: str
    path: str
    position: int
    reason: str
    first: int
    stop: int


@dataclass(frozen=True)
class AuditSummary:
    """The result of one run.

    Attributes:
        findings: in the order of store, topic, file and position; empty if all is well.
        segments, records, bytes: how many were read.
        seconds: the duration of the run.
    """

    findings: tuple[AuditFinding, ...]
    segments: int
    records: int
    bytes: int
    seconds: float


def audit(spark: SparkSession, stores: str | os.PathLike[str], *, topics: Sequence[str] | None = None) -> AuditSummary:
    """Read every byte of every segment, even while owners run. Tasks get equal shares. Nothing is written. Blocking.

    Messages that retention or a purge has deleted are no finding, nor is an unfinished write.

    Args:
        spark: the session.
        stores: a store's directory, several separated by commas, or a pattern.
        topics: names or patterns; None: all topics.

    Raises:
        StoreNotFoundError: there is no such store or topic, or none that matches.
        FormatVersionError: a file has a newer version.
        PySparkException: Spark's, with the cause in its text; a worker that does not see the store is one.
    """
    began, fs = time.monotonic(), AnyFileSystem()
    check_stores(stores, topics)
    wanted = read_options({"path": os.fspath(stores), **topics_option(topics)})
    findings: list[AuditFinding] = []
    work: list[_Piece] = []
    for store in wanted.stores:
        uuid = store_uuid(fs, store)
        for topic in topics_of(fs, store, wanted.topics):
            log = snapshot(fs, store, topic)
            findings += [
                AuditFinding(store, topic, damage.path, damage.position, damage.reason, damage.first, damage.stop)
                for damage in log.damages
            ]
            work += _pieces(fs, store, topic, uuid, log)
    tasks = _tasks(work)
    records = size = 0
    for row in spread(spark, tasks, _check_all, _FOUND).collect() if tasks else ():
        records += row["records"]
        size += row["bytes"]
        if row["reason"] is not None:
            place = row["store"], row["topic"], row["path"], row["position"]
            findings.append(AuditFinding(*place, row["reason"], row["first"], row["stop"]))
    unique = {(finding.path, finding.position, finding.first): finding for finding in findings}
    ordered = sorted(unique.values(), key=lambda found: (found.store, found.topic, found.path, found.position))
    return AuditSummary(tuple(ordered), len(work), records, size, time.monotonic() - began)


def _pieces(fs: FileSystem, store: str, topic: str, uuid: UUID | None, log: LogSnapshot) -> Iterator[_Piece]:
    segments, place = log.view.segments, Place(log.directory, log.meta.uuid, uuid)
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        durable_end = log.durable_end if last else segments[number + 1].base
        # Looked up only where it matters: in object storage each look takes its time.
        noted = not (last and segment.sealed) or durable_end >= segment.end
        copied = not (noted or name_exists(fs, os.path.join(log.directory, WATERMARK)))
        yield _Piece(store, topic, place, segment.path, segment.base, durable_end, segment.size, last, copied)


def _tasks(work: Sequence[_Piece]) -> list[tuple[_Piece, ...]]:
    """Return what each task checks, in the order of the work."""
    return pack(work, _weight, tasks_for(sum(map(_weight, work)) // _FASTER))


def _weight(piece: _Piece) -> int:
    return piece.size + OPENING_BYTES


def _check_all(pieces: Sequence[_Piece]) -> Iterator[pa.RecordBatch]:
    """Check the segments of a task; the first row says how much was read, the others are findings.

    All rows are one batch: each batch takes Spark as long as checking a megabyte.

    Raises:
        StoreNotFoundError: this machine does not have the topic and the store that they were planned from.
    """
    fs = AnyFileSystem()
    for place in dict.fromkeys(piece.place for piece in pieces):
        require_seen(fs, place)
    read: dict[str, Any] = {"records": 0, "bytes": 0}
    found: list[dict[str, Any]] = []
    for piece in pieces:
        if not name_exists(fs, piece.path):
            require_seen(fs, piece.place)
            continue  # its owner deleted it meanwhile
        check = check_segment(
            fs, piece.path, piece.base, piece.place.topic, piece.durable_end, last=piece.last, copied=piece.copied
        )
        read["records"] += check.records
        read["bytes"] += check.size
        found += _damage(piece, check)
    yield pa.RecordBatch.from_pylist([read, *found], _SCHEMA)


def _damage(piece: _Piece, check: SegmentCheck) -> Iterator[dict[str, Any]]:
    place = {"store": piece.store, "topic": piece.topic, "path": piece.path, "records": 0, "bytes": 0}
    for severity, position, reason, first, stop in check.findings:
        if severity == "damage":
            yield {**place, "position": position, "reason": reason, "first": first, "stop": stop}
