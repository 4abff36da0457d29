"""Checks every checksum of every segment in parallel, and looks for gaps and repetitions of offsets."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from aiodq.errors import StoreNotFoundError
from aiodq.spark.objects import AnyFileSystem
from aiodq.spark.options import read_options
from aiodq.spark.packing import OPENING_BYTES, pack, tasks_for
from aiodq.spark.pipelines.session import check_stores, topics_option
from aiodq.spark.pipelines.spread import spread
from aiodq.spark.planning import beside_its_owner, topics_of
from aiodq.spark.visible import Place, is_deleted, require_seen, store_uuid
from aiodq.storage.offline.store_report import Finding
from aiodq.storage.offline.verify_log import log_findings, plan_log
from aiodq.storage.offline.verify_segment import check_segment
from aiodq.storage.store_layout import has_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from aiodq.storage.io.filesystem import FileSystem
    from aiodq.storage.offline.verify_log import LogPlan, Span
    from aiodq.storage.offline.verify_segment import SegmentCheck

__all__ = ["AuditFinding", "AuditSummary", "audit"]

_FOUND: Final = (
    "log BIGINT, path STRING, position BIGINT, reason STRING, first BIGINT, stop BIGINT, "
    "numbers ARRAY<BIGINT>, ends ARRAY<BIGINT>, records BIGINT, bytes BIGINT"
)
_SCHEMA: Final = pa.schema(
    [
        ("log", pa.int64()),
        ("path", pa.string()),
        ("position", pa.int64()),
        ("reason", pa.string()),
        *((name, pa.int64()) for name in ("first", "stop")),
        *((name, pa.list_(pa.int64())) for name in ("numbers", "ends")),
        *((name, pa.int64()) for name in ("records", "bytes")),
    ]
)
_UNREADABLE: Final = -1
"""Stands for the end of a segment in which nothing can be read."""


_FASTER: Final = 8
"""Checking a segment takes only this share of the time of starting a task, so a task checks several."""


class _Log(NamedTuple):
    """A topic's log, and what is to be read of it."""

    store: str
    topic: str
    place: Place
    plan: LogPlan


class _Piece(NamedTuple):
    """One segment as it is sent to a task, with all that `check_segment` needs, and where it is in the work."""

    number: int
    log: int
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
        path, position: the file, and the position in it; for messages that are missing, the segment after them, the
            topic's watermark, or its description, which names what was missing at an opening.
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

    It finds the damage that `aiodq verify` finds in a topic's segments, its description and its watermark, and the
    messages that are missing. Messages that retention or a purge has deleted are no finding, nor is an unfinished
    write. A store's other files, such as those of channels, are not read.

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
    logs = [log for store in wanted.stores for log in _logs(fs, store, wanted.topics)]
    work = _pieces(logs)
    checked: list[dict[str, Span | None]] = [{} for _ in logs]
    findings: list[tuple[int, Finding]] = []
    tasks = _tasks(work)
    records = size = 0
    for row in spread(spark, tasks, _check_all, _FOUND).collect() if tasks else ():
        if row["reason"] is not None:
            found = Finding("damage", row["path"], row["position"], row["reason"], row["first"], row["stop"])
            findings.append((row["log"], found))
            continue
        records += row["records"]
        size += row["bytes"]
        for number, end in zip(row["numbers"], row["ends"], strict=True):
            piece = work[number]
            checked[piece.log][piece.path] = None if end == _UNREADABLE else (piece.base, end)
    for number, log in enumerate(logs):
        together = (*log.plan.findings, *log_findings(fs, log.plan, checked[number]))
        findings += [(number, found) for found in together if found.severity == "damage"]
    # What does not fit together may be the files of two topics: one that was deleted, and a new one of its name.
    gone = {number for number in {number for number, _ in findings} if is_deleted(fs, logs[number].place)}
    found_all = [
        AuditFinding(*logs[number][:2], found.path, found.position, found.reason, found.first, found.stop)
        for number, found in findings
        if number not in gone
    ]
    ordered = sorted(found_all, key=lambda found: (found.store, found.topic, found.path, found.position))
    return AuditSummary(tuple(ordered), len(work), records, size, time.monotonic() - began)


def _logs(fs: FileSystem, store: str, topics: Sequence[str] | None) -> Iterator[_Log]:
    """Yield what is to be read of a store's topics, without those that are deleted meanwhile."""
    uuid, host = store_uuid(fs, store), socket.gethostname()
    for topic in topics_of(fs, store, topics):
        directory = os.path.join(store, topic)
        try:
            plan = beside_its_owner(partial(plan_log, fs, directory))
        except StoreNotFoundError:
            if has_topic(fs, store, topic):
                raise
            continue
        yield _Log(store, topic, Place(directory, plan.meta.uuid, uuid, host, named=plan.named), plan)


def _pieces(logs: Iterable[_Log]) -> list[_Piece]:
    """Return the segments of logs."""
    work: list[_Piece] = []
    for number, log in enumerate(logs):
        for one in log.plan.segments:
            where = log.place, one.path, one.base, one.durable_end, one.found.size
            work.append(_Piece(len(work), number, *where, last=one.last, copied=log.plan.copied))
    return work


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
    there = {place: _is_there(fs, place) for place in dict.fromkeys(piece.place for piece in pieces)}
    read: dict[str, Any] = {"numbers": [], "ends": [], "records": 0, "bytes": 0}
    found: list[dict[str, Any]] = []
    for piece in pieces:
        check = _checked(fs, piece) if there[piece.place] else None
        if check is None:
            continue
        read["numbers"].append(piece.number)
        read["ends"].append(_UNREADABLE if check.contents is None else check.end)
        read["records"] += check.records
        read["bytes"] += check.size
        found += _damage(piece, check)
    yield pa.RecordBatch.from_pylist([read, *found], _SCHEMA)


def _is_there(fs: FileSystem, place: Place) -> bool:
    """Return whether a topic is where it was planned; False if it was deleted since then.

    Raises:
        StoreNotFoundError: this machine does not have it.
    """
    try:
        require_seen(fs, place)
    except StoreNotFoundError:
        if not is_deleted(fs, place):
            raise
        return False
    return True


def _checked(fs: FileSystem, piece: _Piece) -> SegmentCheck | None:
    """Check a segment; None if its owner has deleted it meanwhile."""
    try:
        return check_segment(
            fs, piece.path, piece.base, piece.place.topic, piece.durable_end, last=piece.last, copied=piece.copied
        )
    except StoreNotFoundError:
        # Not only the segment may be gone, but the whole store: what a task does not see is no deletion.
        _is_there(fs, piece.place)
        return None


def _damage(piece: _Piece, check: SegmentCheck) -> Iterator[dict[str, Any]]:
    for severity, position, reason, first, stop in check.findings:
        if severity == "damage":
            place = {"log": piece.log, "path": piece.path, "position": position}
            yield {**place, "reason": reason, "first": first, "stop": stop}
