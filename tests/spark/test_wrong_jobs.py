"""Jobs with wrong arguments: told before Spark is asked for anything, and so without Spark here."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

import aiodq
from aiodq.spark.objects import check_outside_stores, find_objects
from aiodq.spark.options import write_options
from aiodq.spark.pipelines import archive, audit, check_stores, compact, replay, report, ship, start_session
from aiodq.spark.pipelines.archive import _own_hold, _Run, check_target
from aiodq.spark.pipelines.places import refuse_moved, target_path
from aiodq.spark.pipelines.replay import check_range
from aiodq.spark.source import AiodqDataSource
from aiodq.spark.writing.writers import BatchWriter, StreamWriter
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import Hold, read_hold, write_hold
from tests.spark.support import fill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NONE: Any = object()
"""No session: whoever asks it for something gets an AttributeError."""

EARLIER, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

TOPICS: list[Callable[[Path, Any], object]] = [
    lambda store, topics: archive(NONE, store, store / "lake", topics=topics),
    lambda store, topics: replay(NONE, store / "lake", store, topics=topics),
    lambda store, topics: report(NONE, store, store / "report.html", topics=topics),
    lambda store, topics: audit(NONE, store, topics=topics),
    lambda store, topics: ship(store, "memory://bucket/shop", topics=topics),
    check_stores,
]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store", rounds=2)
    return tmp_path / "store"


@pytest.mark.parametrize("job", TOPICS, ids=["archive", "replay", "report", "audit", "ship", "check_stores"])
async def test_topics_are_a_list(store: Path, job: Callable[[Path, Any], object]) -> None:
    """Of a text the letters would be names; of none at all, every topic."""
    with pytest.raises(aiodq.InvalidOptionError, match=r"topics are several names: write topics=\['orders'\]"):
        job(store, "orders")
    with pytest.raises(aiodq.InvalidOptionError, match="topics is empty: leave it out for all of them"):
        job(store, [])


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (lambda store: archive(NONE, store, store), "is a store: name a directory of its own"),
        (lambda store: archive(NONE, store, ""), "the path of the archive is empty"),
        (lambda store: archive(NONE, store, store / "LOCK"), "is no directory: name one for the files"),
        (lambda store: archive(NONE, f"{store},{store}/b", store / "lake"), "archive is for one store, not for 2: /"),
        (lambda store: report(NONE, f"{store},{store}/b", "r.html"), "report is for one store, not for 2"),
        (lambda store: compact(NONE, f"{store},/b", "orders", "latest"), "compact is for one store, not for 2"),
        (lambda store: replay(NONE, store / "lake", store, first=10, stop=9), "to stop before 9, and its first .* 10"),
        (
            lambda store: replay(NONE, store / "lake", store, since=LATER, until=EARLIER),
            "it is to end before 2026-01-01",
        ),
        (lambda store: replay(NONE, store, store), "is a store: replay reads what archive wrote"),
        (lambda store: replay(NONE, store / "lake", store, tags="red"), r"write tags=\['red'\]"),
        (lambda store: replay(NONE, store / "lake", store, into="t#ephemeral"), "only its owner can put into it"),
        (lambda store: replay(NONE, store / "lake", store, txn_id=" "), "txnId is empty"),
        (lambda store: replay(NONE, store / "lake", "s3://bucket/shop"), "is in object storage"),
        (lambda store: compact(NONE, store, "orders", "t#ephemeral"), "only its owner can put into it"),
        (lambda store: compact(NONE, store, "orders", "latest", segment_bytes=0), "segmentBytes is bytes"),
        (lambda store: compact(NONE, store, "orders", "latest", target="s3://b/s"), "is in object storage"),
    ],
)
async def test_what_no_job_can_do(store: Path, job: Callable[[Path], object], told: str) -> None:
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        job(store)


@pytest.mark.parametrize(
    "job",
    [
        lambda store: replay(NONE, store / "lake", store, into="a/b"),
        lambda store: compact(NONE, store, "orders", "a/b"),
    ],
)
async def test_names_that_no_topic_can_have(store: Path, job: Callable[[Path], object]) -> None:
    with pytest.raises(aiodq.InvalidNameError, match="'a/b' is no name for a topic"):
        job(store)


async def test_what_is_no_place_for_a_store_is_told_before_anything_is_read(store: Path) -> None:
    (store.parent / "file").touch()
    for path, error in ((store.parent / "file", aiodq.NotAStoreError), (store / "no" / "s", aiodq.StoreNotFoundError)):
        with pytest.raises(error, match="no directory"):
            replay(NONE, store.parent / "lake", path)
        with pytest.raises(error, match="no directory"):
            compact(NONE, store, "orders", "latest", target=path)
        assert not (store / "no").exists()


INSIDE: list[Callable[[Path, Path], object]] = [
    lambda _store, place: BatchWriter(write_options({"path": str(place), "topic": "t"}, stream=False)),
    lambda _store, place: StreamWriter(write_options({"path": str(place), "topic": "t", "txnAppId": "a"}, stream=True)),
    lambda store, place: compact(NONE, store, "orders", "latest", target=place),
    lambda store, place: replay(NONE, store.parent / "lake", place),
    lambda store, place: archive(NONE, store, place),
    lambda store, place: archive(NONE, store, store.parent / "lake", checkpoint=place),
    lambda store, place: ship(store, str(place)),
    lambda store, place: report(NONE, store, place),
    lambda _store, place: check_outside_stores(str(place)),
    lambda _store, place: check_outside_stores(f"file://{place}"),
]


@pytest.mark.parametrize("inside", ["orders/sub", "orders", "#staging/sub", "link/sub"])
@pytest.mark.parametrize(
    "job",
    INSIDE,
    ids=[
        "write",
        "stream",
        "compact",
        "replay",
        "archive",
        "checkpoint",
        "segments",
        "report",
        "result",
        "result-by-url",
    ],
)
async def test_nothing_is_written_where_it_goes_with_a_topic(
    store: Path, job: Callable[[Path, Path], object], inside: str
) -> None:
    (store.parent / "link").symlink_to(store / "orders")
    place = store.parent / inside if inside.startswith("link") else store / inside
    before = sorted(store.rglob("*"))
    with pytest.raises(aiodq.NotAStoreError, match=r"this lies inside '(orders|#staging)' of the store .* outside"):
        job(store, place)
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "told"), [("LOCK", "is the lock of a store"), ("#store", "this lies inside '#store' of the store")]
)
async def test_a_report_replaces_no_file_of_a_store(store: Path, name: str, told: str) -> None:
    before = (store / name).read_bytes()
    (store.parent / "link").symlink_to(store / name)
    for place in (store / name, store.parent / "link"):
        with pytest.raises(aiodq.AiodqError, match=told):
            report(NONE, store, place)
    assert (store / name).read_bytes() == before


async def test_a_result_may_lie_beside_the_topics_or_elsewhere(store: Path) -> None:
    for place in (store / "result", store.parent / "result", "s3://bucket/orders", "hdfs:/state", "result"):
        check_outside_stores(str(place))


async def test_a_pattern_may_name_the_one_store(store: Path) -> None:
    with pytest.raises(aiodq.StoreNotFoundError, match="there is no topic 'unknown'"):
        report(NONE, f"{store.parent}/sto*", "report.html", topics=["unknown"])


async def test_a_report_that_cannot_be_written_is_not_counted_for(store: Path) -> None:
    with pytest.raises(FileNotFoundError):
        report(NONE, store, store / "nowhere" / "report.html")
    with pytest.raises(IsADirectoryError):
        report(NONE, store, store)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a report find no messages, without Spark."""
    monkeypatch.setattr(sys.modules[report.__module__], "_topics", lambda *_, **__: ({}, {}))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("earlier", ["the earlier report", None])
async def test_a_report_for_which_there_is_no_space_leaves_the_earlier_one(
    store: Path, tmp_path: Path, earlier: str | None
) -> None:
    place = tmp_path / "reports" / "r.html"
    place.parent.mkdir()
    if earlier is not None:
        place.write_text(earlier)
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with pytest.raises(aiodq.DiskFullError, match=r"no space left: the file may not grow .*r\.html"):
            report(NONE, store, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.read_text() for path in place.parent.iterdir()] == ([] if earlier is None else [earlier])


@pytest.mark.usefixtures("counted")
async def test_a_report_takes_the_place_of_the_earlier_one(store: Path, tmp_path: Path) -> None:
    """Also behind a link; who may read that one may read this one."""
    place, link = tmp_path / "reports" / f"{'r' * 250}.html", tmp_path / "latest.html"
    place.parent.mkdir()
    link.symlink_to(place)
    report(NONE, store, place)
    (tmp_path / "new").touch()
    assert place.stat().st_mode == (tmp_path / "new").stat().st_mode
    place.write_text("earlier")
    place.chmod(0o640)
    report(NONE, store, link)
    assert link.is_symlink()
    assert place.read_text().startswith("<!")
    assert place.stat().st_mode & 0o777 == 0o640
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.usefixtures("counted")
async def test_a_report_may_go_into_a_pipe(store: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        report(NONE, store, tmp_path / "pipe")
        assert os.read(reader, 1 << 20).startswith(b"<!")
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    "given",
    [
        (None, None, None, None),
        (5, None, None, None),
        (None, 5, None, None),
        (5, 5, None, None),
        (0, 5, None, None),
        (None, None, LATER, None),
        (None, None, None, EARLIER),
        (None, None, EARLIER, EARLIER),
        (9, 10, EARLIER, LATER),
    ],
)
def test_a_range_that_can_be(given: tuple[int | None, int | None, datetime | None, datetime | None]) -> None:
    check_range(*given)


async def test_what_is_there_is_told_from_what_is_not(store: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "LOCK").touch()
    for topics in (None, ["orders"], ["ord*"], ["ord*", "typo*"]):
        check_stores(store, topics)
    check_stores(tmp_path / "bare")
    check_stores(store, ["typo*"], coming=True)
    for stores, topics in ((store, ["typo*"]), (tmp_path / "bare", ["*"])):
        with pytest.raises(aiodq.StoreNotFoundError, match="no topic matches"):
            check_stores(stores, topics)


@pytest.mark.parametrize("conf", [None, {"spark.ui.enabled": "true", "spark.executor.memory": "2g"}])
def test_settings_of_the_user_go_before_those_of_a_session(
    conf: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    class Builder:
        dataSource = property(lambda self: self)  # noqa: N815 - Spark's

        def master(self, master: str) -> Builder:
            asked["master"] = master
            return self

        def appName(self, name: str) -> Builder:  # noqa: N802 - likewise
            asked["name"] = name
            return self

        def config(self, key: str, value: str) -> Builder:
            asked[key] = value
            return self

        def getOrCreate(self) -> Builder:  # noqa: N802 - likewise
            return self

        def register(self, source: object) -> None:
            asked["source"] = source

    def prepared(master: str, environment: object) -> None:
        asked["prepared"] = master, environment is os.environ

    session = sys.modules[start_session.__module__]
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(session, "prepare", prepared)
    assert isinstance(start_session("local[3]", conf, "mine"), Builder)
    assert asked == {
        "master": "local[3]",
        "name": "mine",
        "prepared": ("local[3]", True),
        "source": AiodqDataSource,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        **(conf or {}),
    }


def test_a_batch_of_an_archive_is_told_once() -> None:
    """Of a topic that was created again the offsets go back: told again, its hold would go back and forth."""
    told: list[tuple[Any, Any, int]] = []
    progress = [
        {"batchId": number, "sources": [{"numInputRows": rows, "startOffset": start, "endOffset": end}]}
        for number, rows, start, end in (
            (0, 5, None, '{"topics": {"a": 5}}'),
            (1, 2, {"topics": {"a": 5}}, {"topics": {"a": 7}}),
            (2, 0, {"topics": {"a": 7}}, None),
        )
    ]
    query = SimpleNamespace(recentProgress=progress[:1], stop=lambda: told.append((None, None, 0)))
    run = _Run(lambda: cast("Any", query), cast("Any", SimpleNamespace(batch=lambda *batch: told.append(batch))))
    rows: list[int] = []
    run.look(rows.append)
    query.recentProgress = progress[:2]
    for _ in range(2):
        run.look(rows.append)
    query.recentProgress = progress[1:]
    run.look(None)
    run.close()
    assert told == [(None, {"a": 5}, 5), ({"a": 5}, {"a": 7}, 2), (None, None, 0)]
    assert (rows, run.rows, run.batches) == ([5, 7, 7], 7, 2)


IMPATIENT = "Query [id = 0a01] terminated with exception: Python worker failed to connect back."


@pytest.mark.parametrize(
    ("errors", "read", "starts"),
    [
        ([IMPATIENT, IMPATIENT], 0, 3),
        ([IMPATIENT] * 9, 0, 5),
        (["OffsetError"], 0, 1),
        ([IMPATIENT], 1, 1),
    ],
    ids=["again", "not-for-ever", "another-error", "has-read"],
)
def test_a_query_that_spark_had_no_patience_with_is_begun_again(errors: list[str], read: int, starts: int) -> None:
    """It waits for ten seconds until the process that reads answers, however busy the machine is."""
    left, begun, running = list(errors), list[object](), set[object]()

    class Query:
        recentProgress = [{"batchId": 0, "sources": [{"numInputRows": 1, "endOffset": None, "startOffset": None}]}][  # noqa: N815 - Spark's
            :read
        ]

        def __init__(self) -> None:
            assert not running, "Spark refuses a second one"
            begun.append(self)
            running.add(self)

        def stop(self) -> None:
            running.remove(self)

        def awaitTermination(self, _: int) -> bool:  # noqa: N802 - likewise
            if left:
                raise StreamingQueryException(left.pop(0))
            return True

    run = _Run(cast("Any", Query), cast("Any", None))
    ended = nullcontext() if starts == len(errors) + 1 else pytest.raises(StreamingQueryException)
    with ended:
        while not run.wait():
            pass
    assert len(begun) == starts


async def test_the_hold_of_an_archive_of_which_nothing_is_left_is_a_new_one_s(store: Path, tmp_path: Path) -> None:
    fs, target, checkpoint = OsFileSystem(), str(tmp_path / "lake"), tmp_path / "state"
    name = _own_hold(str(store), target, str(checkpoint))
    assert read_hold(fs, str(store), name) is None
    held = Hold({"orders": 5}, None, under_way=True)
    write_hold(fs, str(store), name, held)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()
    assert _own_hold(str(store), target, str(checkpoint)) == name
    assert read_hold(fs, str(store), name) == held
    (checkpoint / "offsets" / "0").unlink()
    assert _own_hold(str(store), target, str(checkpoint)) == name
    assert read_hold(fs, str(store), name) == replace(held, under_way=False)
    assert _own_hold(str(store), f"{target}2", str(checkpoint)) != name


@pytest.mark.parametrize(
    ("written", "moved"),
    [
        ("file://{here}/topic=a/date=2026-01-01/part-0.parquet", False),
        ("{here}/topic=a/part-0.parquet", False),
        ("file://{link}/topic=a/part-0.parquet", False),
        ("hdfs://host/lake/topic=a/part-0.parquet", False),
        ("file:///elsewhere/topic=a/part-0.parquet", True),
        ("/elsewhere/topic=a/part-0.parquet", True),
        ("file://{here}/sub/topic=a/part-0.parquet", True),
    ],
)
def test_an_archive_that_was_moved_is_known_by_its_log(tmp_path: Path, written: str, moved: bool) -> None:
    """Beside batches without a file, and what is no batch."""
    here, link = tmp_path / "a lake", tmp_path / "link"
    link.symlink_to("a lake")
    refuse_moved(str(here))
    log = here / "_spark_metadata"
    log.mkdir(parents=True)
    refuse_moved(str(here))
    path = written.format(here=str(here).replace(" ", "%20"), link=link)
    (log / "0").write_text("v1\n")
    (log / "1.compact").write_text(f"v1\n{json.dumps({'path': path})}\n{json.dumps({'path': '/not/looked/at'})}\n")
    (log / ".0.crc").write_bytes(b"crc\0\n\xff")
    (log / "2").write_text("v1\nno JSON\n")
    with pytest.raises(aiodq.InvalidOptionError, match="was moved or copied") if moved else nullcontext():
        refuse_moved(str(here))


@pytest.mark.parametrize("line", [b"no JSON", b"\xff\xfe", b"{}", b"[]", b"5"])
def test_an_archive_whose_log_is_spoilt_says_so(tmp_path: Path, line: bytes) -> None:
    log = tmp_path / "_spark_metadata" / "0"
    log.parent.mkdir()
    log.write_bytes(b"v1\n" + line + b"\n")
    with pytest.raises(aiodq.CorruptionError, match="Spark's log of the archive's files cannot be read") as caught:
        refuse_moved(str(tmp_path))
    assert caught.value.path == str(log)


def test_a_directory_with_a_batch_that_the_checkpoint_does_not_know_is_another_s(tmp_path: Path) -> None:
    """By the latest of each; of what Spark writes beside them nothing counts."""
    log, offsets = tmp_path / "out" / "_spark_metadata", tmp_path / "checkpoint" / "offsets"
    for directory in (log, offsets):
        directory.mkdir(parents=True)
        for name in ("0", "9", "10", "x.tmp"):
            (directory / name).write_text("v1\n")
    archiving = sys.modules[archive.__module__]
    archiving._refuse_another_checkpoint(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    (log / "11.compact").write_text("v1\n")
    with pytest.raises(aiodq.InvalidOptionError, match="was written with another checkpoint"):
        archiving._refuse_another_checkpoint(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    (offsets / "12").touch()
    archiving._refuse_another_checkpoint(str(tmp_path / "out"), str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("place", ["{here}/state", "memory://{unique}"])
def test_the_checkpoint_of_another_directory_is_refused(tmp_path: Path, place: str) -> None:
    """What it has read is archived there; and Spark cannot read a directory in which a batch is missing."""
    log, state = tmp_path / "out" / "_spark_metadata", place.format(here=tmp_path, unique=uuid4())
    fs, within = find_objects(state)
    fs.makedirs(f"{within}/commits")
    fs.pipe_file(f"{within}/commits/.9.crc", b"crc")
    assert check_target(tmp_path / "out", state) == (str(tmp_path / "out"), state)
    for number in range(3):
        for directory in ("offsets", "commits"):
            fs.makedirs(f"{within}/{directory}", exist_ok=True)
            fs.pipe_file(f"{within}/{directory}/{number}", b"v1")
    with pytest.raises(aiodq.InvalidOptionError, match=r"is another directory's: .*/out does not have batch 2"):
        check_target(tmp_path / "out", state)
    log.mkdir(parents=True)
    (log / "1").touch()
    with pytest.raises(aiodq.InvalidOptionError, match=r"is another directory's: .*/out does not have batch 2"):
        check_target(tmp_path / "out", state)
    (log / "2.compact").touch()
    assert check_target(tmp_path / "out", state) == (str(tmp_path / "out"), state)


def test_a_checkpoint_in_object_storage_is_known_again(tmp_path: Path) -> None:
    log, state = tmp_path / "out" / "_spark_metadata", f"memory://{uuid4()}"
    log.mkdir(parents=True)
    (log / "3").touch()
    with pytest.raises(aiodq.InvalidOptionError, match="was written with another checkpoint"):
        check_target(tmp_path / "out", state)
    fs, place = find_objects(state)
    fs.pipe_file(f"{place}/offsets/3", b"v1")
    assert check_target(tmp_path / "out", state) == (str(tmp_path / "out"), state)
    (log / "4").touch()
    with pytest.raises(aiodq.InvalidOptionError, match="was written with another checkpoint"):
        check_target(tmp_path / "out", state)


@pytest.mark.parametrize("place", ["out/_spark_metadata", "checkpoint/offsets"])
async def test_an_archive_whose_state_may_not_be_read_is_told(
    store: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / place).mkdir(parents=True)
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(tmp_path / place):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(aiodq.ReadOnlyError, match=f"not permitted: Permission denied .*{place}"):
        archive(NONE, store, tmp_path / "out", checkpoint=tmp_path / "checkpoint")
    with pytest.raises(aiodq.ReadOnlyError) if "out" in place else nullcontext():
        refuse_moved(str(tmp_path / "out"))


async def test_an_archive_whose_log_cannot_be_read_is_told(store: Path, tmp_path: Path) -> None:
    """A directory that is closed looks from outside as if there was no log in it."""
    log = tmp_path / "out" / "_spark_metadata"
    log.parent.mkdir()
    log.symlink_to(log.name)
    with pytest.raises(aiodq.StorageError, match=r"symbolic link.*_spark_metadata"):
        archive(NONE, store, tmp_path / "out")
    log.unlink()
    (log / "0").mkdir(parents=True)
    for job in (archive, partial(replay, into="orders")):
        with pytest.raises(aiodq.StorageError, match=r"Is a directory.*_spark_metadata/0"):
            job(NONE, *((store, tmp_path / "out") if job is archive else (tmp_path / "out", store)))


def test_a_link_to_nowhere_is_no_directory_for_an_archive(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    with pytest.raises(aiodq.InvalidOptionError, match="is no directory: name one for the files"):
        target_path(tmp_path / "out")
